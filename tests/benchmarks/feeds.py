"""What it takes to append the changes of a feed, beside what PyArrow takes to read the same bytes and to write the same
rows as Parquet, in processor seconds of all threads.

A shop's orders change: most changes are updates, one in forty is a delete. Rows are of eight columns in eight
partitions; wide ones also have a text of 1,000 characters that hardly compresses.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from statistics import median

import numpy as np
import pyarrow as pa
import pyarrow.json as pj
import pyarrow.parquet as pq

from compactor.lake import DeltaCatalog

ROWS_OF_LINES, ROWS_OF_PARQUET, ROWS_OF_WIDE = 120_000, 2_000_000, 240_000
REPEATS = 5
DELETED_EACH = 40
JSON_LINES, PARQUET = "JSON lines", "Parquet"

_REGIONS, _TEXT_CHARACTERS = 8, 1_000
_FIRST_ORDERED_MS = 1_790_000_000_000
_ORDER = "change"
_BLOCK_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True)
class FeedSpeed:
    """The medians of one form of a feed.

    kind           JSON_LINES or PARQUET
    mb             of the file, as it is
    arrow_mb       of its rows in memory; of JSON lines, of the changes' rows
    cpu_seconds    to append it
    floor_seconds  for PyArrow to read it, and to write its rows
    """

    form: str
    kind: str
    rows: int
    mb: float
    arrow_mb: float
    cpu_seconds: float
    floor_seconds: float

    @property
    def mb_per_second(self) -> float:
        """Of a file of JSON lines its bytes; of Parquet those of its values, which compression does not change."""
        return (self.mb if self.kind == JSON_LINES else self.arrow_mb) / self.cpu_seconds


@dataclass(frozen=True)
class _Form:
    """`feed`: as `append_changes` takes it; `write` makes the file of these rows."""

    name: str
    kind: str
    feed: str | dict[str, object]
    rows: int
    write: Callable[[pa.Table, Path], None]
    is_wide: bool = False


def measure_feeds(folder: Path, scale: float) -> list[FeedSpeed]:
    """Raises `RuntimeError` if changes are missing."""
    return [_measured(folder / f"{number}", form, scale) for number, form in enumerate(_FORMS)]


def _measured(folder: Path, form: _Form, scale: float) -> FeedSpeed:
    folder.mkdir(parents=True)
    rows = _changed_rows(max(int(form.rows * scale), 1_000), is_wide=form.is_wide)
    file = folder / ("feed.json" if form.kind == JSON_LINES else "feed.parquet")
    form.write(rows, file)
    keys = len(np.unique(rows.column("order_id").to_numpy()))
    taken, floors = [], []
    for turn in range(REPEATS + 1):
        table = DeltaCatalog.open(folder / "lake").create_table(
            "BENCH.ORDERS.V1",
            ["region"],
            schema=None if form.kind == PARQUET else rows.schema,
            primary_keys=["order_id"],
            sort_keys=[(_ORDER, "ascending")],
        )
        began = time.process_time()
        added = table.append_changes([file], form.feed)
        taken.append(time.process_time() - began)
        began = time.process_time()
        _read_and_write(file, rows, folder / "floor.parquet")
        floors.append(time.process_time() - began)
        appended = sum(each.rows for each in added)
        if appended != keys:
            raise RuntimeError(f"{form.name}: {appended} changes of {keys} keys were appended, in turn {turn}")
        rmtree(folder / "lake")
    found = FeedSpeed(
        form.name,
        form.kind,
        rows.num_rows,
        file.stat().st_size / 1e6,
        rows.nbytes / 1e6,
        median(taken[1:]),
        median(floors[1:]),
    )
    rmtree(folder)
    return found


def _read_and_write(file: Path, rows: pa.Table, written: Path) -> None:
    if file.suffix == ".parquet":
        pq.write_table(pq.read_table(file), written)
    else:
        pj.read_json(file, read_options=pj.ReadOptions(block_size=_BLOCK_BYTES))
        pq.write_table(rows, written)


def _changed_rows(count: int, *, is_wide: bool) -> pa.Table:
    """In the order of their changes; each order stays in its region."""
    random = np.random.default_rng(1)
    keys = random.integers(0, count, count)
    columns = {
        "order_id": pa.array(keys),
        "region": pa.array([f"region {number}" for number in range(_REGIONS)]).take(pa.array(keys % _REGIONS)),
        "customer": pa.array([f"customer {number:06}" for number in random.integers(0, 100_000, count).tolist()]),
        "status": pa.array(["NEW", "PAID", "SENT", "DONE"]).take(pa.array(random.integers(0, 4, count))),
        "amount": pa.array(random.integers(0, 1_000_000, count)),
        "quantity": pa.array(random.integers(0, 100, count)),
        "ordered_at": pa.array(random.integers(0, 10**9, count) + _FIRST_ORDERED_MS),
    }
    if is_wide:
        letters = random.integers(97, 123, count * _TEXT_CHARACTERS, np.uint8).tobytes()
        offsets = pa.array((np.arange(count + 1) * _TEXT_CHARACTERS).astype(np.int32))
        columns["note"] = pa.StringArray.from_buffers(count, offsets.buffers()[1], pa.py_buffer(letters))
    return pa.table({**columns, _ORDER: pa.array(np.arange(count))})


# ------------------------------------------------------------------------------------------------------------ the forms


def _write_events(
    event: Callable[[dict[str, object], int, bool], dict[str, object]],
) -> Callable[[pa.Table, Path], None]:
    def write(rows: pa.Table, file: Path) -> None:
        with file.open("w") as opened:
            for row, number, is_delete in _each(rows):
                opened.write(f"{json.dumps(event(row, number, is_delete))}\n")

    return write


def _each(rows: pa.Table) -> Iterator[tuple[dict[str, object], int, bool]]:
    for number, row in enumerate(rows.drop_columns([_ORDER]).to_pylist()):
        yield row, number, number % DELETED_EACH == 0


def _envelope(row: dict[str, object], number: int, is_delete: bool) -> dict[str, object]:
    source = {"version": "2.7.0.Final", "connector": "postgresql", "name": "shop", "ts_ms": _FIRST_ORDERED_MS + number}
    source |= {"snapshot": "false", "db": "shop", "schema": "public", "table": "orders", "txId": number, _ORDER: number}
    before = {**row, "status": "OPEN"}
    return {
        "before": row if is_delete else before,
        "after": None if is_delete else row,
        "source": source,
        "op": "d" if is_delete else "u",
        "ts_ms": _FIRST_ORDERED_MS + number,
    }


def _event_of_maxwell(row: dict[str, object], number: int, is_delete: bool) -> dict[str, object]:
    event = {
        "database": "shop",
        "table": "orders",
        "type": "delete" if is_delete else "update",
        "ts": number,
        "xid": number,
    }
    return {**event, _ORDER: number, "data": row, "old": None if is_delete else {"status": "OPEN"}}


def _message_of_canal(row: dict[str, object], number: int, is_delete: bool) -> dict[str, object]:
    event = {"id": number, "database": "shop", "table": "orders", "pkNames": ["order_id"], "isDdl": False}
    event |= {"type": "DELETE" if is_delete else "UPDATE", "es": number, "ts": number}
    text = {name: str(value) for name, value in row.items()}
    return {**event, "data": [text], "old": None if is_delete else [{"status": "OPEN"}]}


def _write_parquet_of_dms(rows: pa.Table, file: Path) -> None:
    is_delete = np.arange(rows.num_rows) % DELETED_EACH == 0
    letters = pa.array(["U", "D"]).take(pa.array(is_delete.astype(np.int8)))
    pq.write_table(rows.add_column(0, "Op", letters), file)


def _ordered_by(feed: str, field: str) -> dict[str, object]:
    """The feed's own order, by the table's name for it."""
    return {"format": feed, "columns": {f"__source_{field}": _ORDER}}


_FORMS: Sequence[_Form] = (
    _Form("Debezium", JSON_LINES, _ordered_by("debezium", _ORDER), ROWS_OF_LINES, _write_events(_envelope)),
    _Form("Maxwell", JSON_LINES, _ordered_by("maxwell", _ORDER), ROWS_OF_LINES, _write_events(_event_of_maxwell)),
    _Form("Canal", JSON_LINES, _ordered_by("canal", "id"), ROWS_OF_LINES, _write_events(_message_of_canal)),
    _Form("DMS", PARQUET, "dms", ROWS_OF_PARQUET, _write_parquet_of_dms),
    _Form("DMS, rows of 1 KB", PARQUET, "dms", ROWS_OF_WIDE, _write_parquet_of_dms, is_wide=True),
)
