"""The in-process engine with the behaviour of a cluster: it breaks every assumption that a step may not make.

Functions and records are pickled between tasks, records arrive in any order, and any task may run twice. With an odd
seed large records are in files, with an even seed none is. tests/contract/test_engine.py tests it beside Spark.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar, cast

from compactor import DeltaCatalog, compact
from compactor.engine.in_process import InProcessEngine, InProcessExchange
from compactor.engine.record_files import record_files
from compactor.engine.records import RecordSerializer
from compactor.planning.sizing import Resources
from tests.builders import TABLE_ID

RecordT = TypeVar("RecordT")
ResultT = TypeVar("ResultT")
ValueT = TypeVar("ValueT")


class UnrulyEngine(InProcessEngine):
    """`seed` decides the order of records, the tasks that run twice (`share_run_twice`), and whether records are in
    files."""

    def __init__(self, seed: int = 0, share_run_twice: float = 0.1) -> None:
        super().__init__()
        self._share_run_twice = share_run_twice
        self._chance = random.Random(seed)
        self._uses_files = bool(seed % 2)
        self._serializer = RecordSerializer()

    def resources(self) -> Resources:
        return Resources(task_memory_bytes=1 << 30, tasks=2)

    @contextmanager
    def exchange(self, spare_scratch_bytes: int | None = None) -> Iterator[InProcessExchange]:
        with TemporaryDirectory() as folder, record_files(Path(folder)) as files:
            self._serializer = RecordSerializer(files) if self._uses_files else RecordSerializer()
            yield InProcessExchange(self)

    def run_task(self, task: Callable[[], ResultT]) -> ResultT:
        result = super().run_task(task)
        return super().run_task(task) if self._chance.random() < self._share_run_twice else result

    def send(self, value: ValueT) -> ValueT:
        return cast("ValueT", self._serializer.loads(self._serializer.dumps(value)))

    def order_of_arrival(self, records: list[RecordT]) -> list[RecordT]:
        return self._chance.sample(records, len(records))


def compact_orders(lake: DeltaCatalog, into: str | None = None, max_rows_per_round: int | None = None) -> None:
    """The table `TABLE_ID` by its key `id`, in one hash bucket."""
    compact(
        TABLE_ID,
        {"id"},
        delta_catalog_client=lake,
        destination_compacted_table_id=into,
        hash_bucket_count=1,
        max_rows_per_round=max_rows_per_round,
        engine=UnrulyEngine(),
    )
