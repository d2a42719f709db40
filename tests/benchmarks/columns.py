"""What a table of very many columns takes, on a folder: an append, a compaction and a read of it, in this process."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from compactor import DeltaCatalog, compact

COLUMNS = 20_000

_ROWS = 10
_TABLE = "BENCH.COLUMNS.V1"


@dataclass(frozen=True)
class Columns:
    """Seconds of the processor, of all threads."""

    columns: int
    append_seconds: float
    compact_seconds: float
    read_seconds: float


def measure_columns(folder: Path, scale: float) -> Columns:
    columns = max(round(COLUMNS * scale), 10)
    rows = pa.table({"id": range(_ROWS), **{f"c{number}": range(_ROWS) for number in range(columns - 1)}})
    lake = DeltaCatalog.open(folder / "lake")
    _measure(lake, "BENCH.FIRST.V1", rows.select(["id"]))  # what a process loads, it loads once
    found = _measure(lake, _TABLE, rows)
    if lake.table(_TABLE).scan().to_table().num_columns != columns:
        raise RuntimeError(f"the table has not {columns} columns")
    return found


def _measure(lake: DeltaCatalog, table_id: str, rows: pa.Table) -> Columns:
    table = lake.create_table(table_id)
    return Columns(
        rows.num_columns,
        _seconds(lambda: table.append({}, rows)),
        _seconds(lambda: compact(table_id, {"id"}, delta_catalog_client=lake)),
        _seconds(lambda: table.scan().to_table()),
    )


def _seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began
