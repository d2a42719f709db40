"""How far tables were behind, a sample a minute, in the history.

The order of durable writes, from a sample to its place:

    1  the file of the minute    by put-if-absent: of two keepers of a lake one writes it
    2  the file of the day       once the day is over, from all files of its minutes, by put-if-absent
    3  the deletion of the minutes' files

A keeper that ends in between leaves what the next one goes on from. A sample that comes after 2 is of a keeper that was
stopped for an hour in the middle of a request: it is deleted.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from compactor.log.columns import RecordCodec
from compactor.model.errors import Corrupt, LithifyError, Unavailable
from compactor.model.names import counted
from compactor.storage.concurrently import run_concurrently
from compactor.storage.object_store import ObjectStore
from dispatcher.records.history import day_of
from dispatcher.records.keys import LagDay, LagMinute, LagMinutesOfDay


@dataclass(frozen=True)
class LagSample:
    """A table at a minute. `lag_bound_seconds` None: no policy has one; `published_lag_seconds`: it is not
    published. `unsent_decisions`: of the keeper, that the queue has not taken."""

    at_ms: int
    lake: str
    table: str
    partitions: int
    lag_seconds: float
    lag_bound_seconds: float | None
    pending_deltas: int
    pending_rows: int
    pending_bytes: int
    files: int
    file_bytes: int
    small_files: int
    rows: int
    dead_rows: int
    published_lag_seconds: float | None
    unsent_decisions: int = 0


_SAMPLE = RecordCodec(LagSample)


def write_sample(store: ObjectStore, lake: str, at_ms: int, tables: Iterable[LagSample]) -> bool:
    """Step 1. Returns whether this was the minute's first sample of the lake. No tables: a sample without rows."""
    batch = pa.RecordBatch.from_struct_array(_SAMPLE.to_array(list(tables)))
    key = LagMinute(day_of(at_ms), f"{datetime.fromtimestamp(at_ms / 1000, UTC):%H%M}", lake).key
    return store.put_if_absent(key, _parquet([pa.Table.from_batches([batch])]))


def close_lag_days(store: ObjectStore, before_day: str) -> list[str]:
    """Steps 2 and 3 of all days before a day; returns them. Raises the first error of a day, after the other days:
    `Corrupt` if a sample cannot be read, `Unavailable` if one could not be deleted."""
    due = sorted(day for day in store.list_folders(LagMinutesOfDay.prefix()) if day < before_day)
    errors: list[LithifyError] = []
    for day in due:
        try:
            _close_lag_day(store, day)
        except LithifyError as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return due


def _close_lag_day(store: ObjectStore, day: str) -> None:
    keys = [entry.key for entry in store.list(f"{LagMinutesOfDay(day).key}/")]
    if not any(True for _ in store.list(LagDay(day).key)):
        found = run_concurrently(store.location, partial(_read, store), keys)
        tables = [each for each in found if each is not None]
        if tables:  # else another dispatcher has closed the day since it was listed
            store.put_if_absent(LagDay(day).key, _parquet(tables))
    failed = store.delete_many(keys)
    if failed:
        raise Unavailable(f"{len(failed)} of {counted(len(keys), 'object')}: {next(iter(failed.values()))}")


def last_sampled(store: ObjectStore, since_ms: int) -> dict[str, int]:
    """When the last sample of each lake was taken, in ms, of those since a time: by one listing."""
    after = f"{LagMinutesOfDay(day_of(since_ms)).key}/{datetime.fromtimestamp(since_ms / 1000, UTC):%H%M}"
    found: dict[str, int] = {}
    for entry in store.list(LagMinutesOfDay.prefix(), after):
        minute = LagMinute.parse(entry.key)
        at = datetime.strptime(f"{minute.day} {minute.minute}", "%Y-%m-%d %H%M").replace(tzinfo=UTC)
        found[minute.lake] = round(at.timestamp() * 1000)
    return found


def unsent_decisions(store: ObjectStore, lake: str, at_ms: int) -> int:
    """Of all tables of a lake, in the sample of a minute; 0: it is not there any more."""
    table = _read(store, LagMinute(day_of(at_ms), f"{datetime.fromtimestamp(at_ms / 1000, UTC):%H%M}", lake).key)
    if table is None or "unsent_decisions" not in table.column_names:
        return 0
    return pc.sum(table["unsent_decisions"]).as_py() or 0


@dataclass(frozen=True)
class LagHour:
    """The most lag of a table within an hour, in the samples that were read. `at_ms`: the hour's begin."""

    at_ms: int
    lag_seconds: float
    lag_bound_seconds: float | None
    published_lag_seconds: float | None


_LAG_COLUMNS = ["at_ms", "lake", "table", "lag_seconds", "lag_bound_seconds", "published_lag_seconds"]
_HOUR_MS = 3_600_000
BATCH_ROWS = 65_536
"""Rows that are in memory at a time while the file of a day is searched for one table."""


def days_of_lag(store: ObjectStore) -> tuple[frozenset[str], frozenset[str]]:
    """The days that have a file, and those that have samples of minutes: two listings."""
    closed = frozenset(LagDay.parse(entry.key).day for entry in store.list(LagDay.prefix()))
    return closed, frozenset(store.list_folders(LagMinutesOfDay.prefix()))


def lag_of_day(store: ObjectStore, lake: str, table: str, day: str) -> tuple[LagHour, ...]:
    """From the file of a day that has one: one request."""
    body = store.read(LagDay(day).key)
    return () if body is None else _hours(lake, table, [body])


def lag_of_open_day(store: ObjectStore, lake: str, table: str, day: str) -> tuple[LagHour, ...]:
    """From the last sample of each hour of a day that has no file yet: a listing and 24 requests at most."""
    last: dict[str, str] = {}
    for entry in store.list(f"{LagMinutesOfDay(day).key}/"):
        minute = LagMinute.parse(entry.key)
        if minute.lake == lake:
            last[minute.minute[:2]] = entry.key
    bodies = run_concurrently(store.location, store.read, list(last.values()))
    return _hours(lake, table, [body for body in bodies if body is not None])


def _hours(lake: str, table: str, files: Iterable[bytes]) -> tuple[LagHour, ...]:
    found: dict[int, LagHour] = {}
    for body in files:
        file = pq.ParquetFile(pa.BufferReader(body), page_checksum_verification=True)
        for batch in file.iter_batches(BATCH_ROWS, columns=_LAG_COLUMNS):
            ours = batch.filter((pc.field("table") == table) & (pc.field("lake") == lake))
            for row in ours.to_pylist():
                hour_ms = row["at_ms"] // _HOUR_MS * _HOUR_MS
                before = found.get(hour_ms)
                if before is None or row["lag_seconds"] >= before.lag_seconds:
                    figures = (row["lag_seconds"], row["lag_bound_seconds"], row["published_lag_seconds"])
                    found[hour_ms] = LagHour(hour_ms, *figures)
    return tuple(found[hour_ms] for hour_ms in sorted(found))


def _read(store: ObjectStore, key: str) -> pa.Table | None:
    """Raises `Corrupt` if it is no sample."""
    body = store.read(key)
    try:
        return None if body is None else pq.read_table(pa.BufferReader(body), page_checksum_verification=True)
    except (pa.ArrowException, OSError) as error:
        raise Corrupt(f"{key} cannot be read as Parquet: {error}. Delete it: it is one minute's sample") from error


def _parquet(tables: list[pa.Table]) -> bytes:
    sink = pa.BufferOutputStream()
    whole = pa.concat_tables(tables, promote_options="default").sort_by(
        [("at_ms", "ascending"), ("table", "ascending")]
    )
    pq.write_table(whole, sink, compression="zstd", write_page_checksum=True)
    body: bytes = sink.getvalue().to_pybytes()
    return body
