"""What it costs to trust the pages that are written here: their checksums, and row groups that Arrow reads back.

Measured is processor time inside of one compaction that reads every row group back; a share of them costs that share.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, TypeVar
from unittest.mock import patch

from compactor import DeltaCatalog, compact
from compactor.engine.in_process import InProcessEngine
from compactor.planning.spec import PAGE_CHECK_SHARE
from compactor.steps import output_files
from compactor.tabular.parquet_pages import page_reader, page_writer
from compactor.tabular.parquet_pages.page_format import page_checksum
from compactor.tabular.parquet_pages.read_back import check_row_group
from tests.benchmarks import data
from tests.benchmarks.data import KEY, NARROW

TABLE = "BENCHMARK.ORDERS.V1"
ArgumentsT = ParamSpec("ArgumentsT")
ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class PageTrust:
    """Processor seconds. `compaction`: of the whole, without the two; `row_groups`: how many were read back."""

    rows: int
    row_groups: int
    compaction: float
    checksums: float
    read_back: float

    @property
    def share(self) -> float:
        """Of a compaction at the default sample."""
        added = self.checksums + PAGE_CHECK_SHARE * self.read_back
        return added / (self.compaction + added)


class _Watch:
    """Counts the calls of a function, and their processor time."""

    def __init__(self) -> None:
        self.calls = 0
        self.seconds = 0.0

    def over(self, function: Callable[ArgumentsT, ResultT]) -> Callable[ArgumentsT, ResultT]:
        def timed(*args: ArgumentsT.args, **kwargs: ArgumentsT.kwargs) -> ResultT:
            started = time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds += time.thread_time() - started
                self.calls += 1

        return timed


@contextmanager
def _watched(checksums: _Watch, read_back: _Watch) -> Iterator[None]:
    with (
        patch(f"{page_reader.__name__}.page_checksum", checksums.over(page_checksum)),
        patch(f"{page_writer.__name__}.page_checksum", checksums.over(page_checksum)),
        patch(f"{output_files.__name__}.check_row_group", read_back.over(check_row_group)),
    ):
        yield


def measure_page_trust(folder: Path, scale: float) -> PageTrust:
    """One compaction of the narrow table, after a first one that is not counted. In one bucket rows would keep their
    order, and row groups be passed on whole."""
    shape = NARROW.scaled(scale)
    table = data.write_table(folder / "page-trust", shape)
    for _ in range(2):
        checksums, read_back = _Watch(), _Watch()
        lake = DeltaCatalog.open(folder / "page-trust" / "lake")
        lake.create_table(TABLE).append({}, list(table.paths))
        with _watched(checksums, read_back):
            started = time.process_time()
            compact(
                TABLE,
                {KEY},
                delta_catalog_client=lake,
                hash_bucket_count=2,
                page_check_share=1.0,
                engine=InProcessEngine(),
            )
            seconds = time.process_time() - started
        shutil.rmtree(folder / "page-trust" / "lake")
    shutil.rmtree(folder / "page-trust")
    whole = seconds - checksums.seconds - read_back.seconds
    return PageTrust(shape.rows, read_back.calls, whole, checksums.seconds, read_back.seconds)
