"""What the pages of tables show: folds of the logs of their streams, and those logs entry by entry. Reads only."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache, partial

from pydantic import JsonValue
from pydantic_core import to_json

from compactor.catalog.stream import PartitionStream
from compactor.lake import Table
from compactor.maintenance.retirement import retention_of
from compactor.model.clock import Clock, date_of
from compactor.model.document import Document
from compactor.model.errors import Denied, Invalid, LithifyError, Outdated, Unavailable
from compactor.model.names import counted
from compactor.planning.stream_figures import StreamFigures
from compactor.planning.table_figures import read_figures
from compactor.storage.concurrently import run_concurrently
from compactor.storage.keys import decode_partition, encode_partition
from compactor.storage.object_store import ObjectStore
from dispatcher.operations.table_lag import TableLag, lag_of, most_behind_first, with_published
from dispatcher.records.history import day_of
from dispatcher.records.lag_samples import LagHour, days_of_lag, lag_of_day, lag_of_open_day
from dispatcher.web.shared import Commands

DAYS_SHOWN = 30
DAYS_KEPT = 64 * DAYS_SHOWN
"""Days of tables that are kept: 24 hours each."""


class LagHistory:
    """Safe to share between threads."""

    def __init__(self, store: ObjectStore, lake_uri: str) -> None:
        """`store`: of the state. `lake_uri`: as its keeper has it."""
        self._store = store
        self._lake_uri = lake_uri
        self._closed_day = lru_cache(DAYS_KEPT)(partial(lag_of_day, store, lake_uri))

    def of(self, table_id: str, now_ms: int) -> tuple[LagHour, ...]:
        """The last 30 days. A day whose samples are not in one file yet has one sample an hour."""
        first = (date_of(now_ms) - timedelta(days=DAYS_SHOWN - 1)).isoformat()
        closed, of_minutes = days_of_lag(self._store)
        wanted = sorted(day for day in closed | of_minutes if first <= day <= day_of(now_ms))
        read = partial(self._day, table_id, closed)
        return tuple(hour for hours in run_concurrently(self._store.location, read, wanted) for hour in hours)

    def _day(self, table_id: str, closed: frozenset[str], day: str) -> tuple[LagHour, ...]:
        if day not in closed:
            return lag_of_open_day(self._store, self._lake_uri, table_id, day)
        return self._closed_day(table_id, day)


STREAMS_SHOWN = 200
ENTRIES_ON_A_PAGE = 20
ACTION_CHARACTERS_MAX = 20_000
"""Characters of an action that are shown; a round of many files is longer, and `lithify table log` shows all of it."""

_BESIDE = ("action", "at_ms")
_WORDS_MAX = 40
"""Characters of a value in the summary of an action: digests and schemas are longer."""


@dataclass(frozen=True)
class ShownStream:
    partition: dict[str, str]
    figures: StreamFigures

    @property
    def key(self) -> str:
        return encode_partition(self.partition)


@dataclass(frozen=True)
class PrivacyWait:
    """Why values of deleted rows may still be in an object. `command` removes them, from `until_ms` on; None: now."""

    what: str
    command: str
    until_ms: int | None = None


@dataclass(frozen=True)
class OneTable:
    """`streams`: those that are most behind, `STREAMS_SHOWN` at most."""

    lag: TableLag
    table: Table
    streams: tuple[ShownStream, ...]


@dataclass(frozen=True)
class UnreadTable:
    """A table that cannot be read; the others are shown."""

    table_id: str
    reason: str


@dataclass(frozen=True)
class Tables:
    lags: tuple[TableLag, ...]
    unread: tuple[UnreadTable, ...]


def read_table(store: ObjectStore, table: Table, clock: Clock) -> OneTable:
    """Reads the logs of all of its streams, and what is published of them."""
    partitions = table.partitions()
    figures = read_figures(table, partitions)
    lag = with_published(lag_of(table, figures, clock), store, table, clock, partitions)
    now_ms = clock.now_ms()
    streams = sorted(
        (ShownStream(partition, each) for partition, each in zip(partitions, figures, strict=True)),
        key=lambda each: (-each.figures.lag_seconds(now_ms), -each.figures.pending_rows, each.key),
    )
    return OneTable(lag, table, tuple(streams[:STREAMS_SHOWN]))


def read_tables(table_ids: Sequence[str], lag: Callable[[str], TableLag]) -> Tables:
    """One that cannot be read says why. Raises `Unavailable` if the store does not answer."""
    lags: list[TableLag] = []
    unread: list[UnreadTable] = []
    for table_id in table_ids:
        try:
            lags.append(lag(table_id))
        except LithifyError as error:
            if isinstance(error, Unavailable) and not isinstance(error, Outdated | Denied):
                raise
            unread.append(UnreadTable(table_id, str(error)))
    return Tables(tuple(most_behind_first(lags)), tuple(unread))


# ------------------------------------------------------------------------------------------------------------- privacy


def privacy_waits(lag: TableLag, table: Table, commands: Commands) -> Iterator[PrivacyWait]:
    """What a delete goes through until no object holds its rows, as far as the logs tell. Pure."""
    figures, properties, table_id = lag.figures, table.properties, table.table_id
    collects = commands.table("gc", table_id, "--delete")
    keys = () if properties.primary_keys else ("--primary-key", "COLUMN")
    if figures.pending_deltas:
        what = f"{counted(figures.pending_deltas, 'delta')} to be compacted: a delete among them has marked no row yet."
        yield PrivacyWait(what, commands.table("compact", table_id, *keys))
    if figures.dead_rows:
        what = f"{counted(figures.dead_rows, 'deleted or replaced row')} in live files: a rewrite leaves them out."
        yield PrivacyWait(what, commands.table("compact", table_id, "--max-dead-row-share", "0", *keys))
    if figures.last_compacted_at_ms is not None:
        kept_seconds = max(properties.retention_seconds or 0, properties.grace_seconds)
        until_ms = figures.last_compacted_at_ms + kept_seconds * 1000
        if until_ms > lag.at_ms:
            what = "Files that the last round replaced stay for readers of older snapshots."
            yield PrivacyWait(what, collects, until_ms)
    if figures.last_write_at_ms is not None:
        retention_seconds = retention_of(properties.retention_seconds, properties.grace_seconds)
        until_ms = figures.last_write_at_ms + round(retention_seconds * 1000)
        if until_ms > lag.at_ms:
            yield PrivacyWait("The files of compacted deltas stay until the deltas are retired.", collects, until_ms)
    if figures.unpublished_files:
        what = f"{counted(figures.unpublished_files, 'change')} of files to be published: other engines read old ones."
        yield PrivacyWait(what, commands.table("publish", table_id))


# ----------------------------------------------------------------------------------------------------------------- log


@dataclass(frozen=True)
class ShownAction:
    """`summary`: its figures that are neither files nor documents. `body`: all of it as JSON, cut if it is long."""

    action: str
    summary: str
    body: str
    is_cut: bool


@dataclass(frozen=True)
class ShownEntry:
    number: int
    at_ms: int
    actions: tuple[ShownAction, ...]


@dataclass(frozen=True)
class LogPage:
    """Entries of a stream's log, the latest first. `before`, `after`: where the older and the newer page begin, if
    any."""

    table_id: str
    partition: dict[str, str]
    partition_key: str
    newest: int
    entries: tuple[ShownEntry, ...]
    before: int | None
    after: int | None


def stream_of(table: Table, key: str) -> PartitionStream:
    """By `encode_partition` of its partition. Raises `Invalid` if there is no such stream."""
    missing = f"there is no partition {key!r} in {table.table_id}: the page of the table lists those there are"
    try:
        stream = table.stream(decode_partition(key))
    except Invalid as error:
        raise Invalid(missing) from error
    if stream.log.load().entry_number == 0:
        raise Invalid(missing)
    return stream


def read_log_page(table: Table, key: str, before: int | None) -> LogPage:
    """`before`: the number above the first entry shown; None: the newest is shown."""
    stream = stream_of(table, key)
    newest = stream.log.newest.entry_number
    last = newest if before is None else min(max(before - 1, 0), newest)
    first = max(last - ENTRIES_ON_A_PAGE + 1, 1)
    entries = tuple(
        ShownEntry(entry.number, entry.at_ms, tuple(map(_shown, entry.actions)))
        for entry in stream.log.entries_between(first, last)
    )
    older, newer = first if first > 1 else None, last + ENTRIES_ON_A_PAGE + 1 if last < newest else None
    return LogPage(table.table_id, dict(stream.partition), key, newest, entries[::-1], older, newer)


def _shown(action: Document) -> ShownAction:
    value: dict[str, JsonValue] = action.model_dump(mode="json")
    plain = {name: each for name, each in value.items() if isinstance(each, str | int | float) and name not in _BESIDE}
    lists = {name: len(each) for name, each in value.items() if isinstance(each, list)}
    words = [f"{name} {_words(each)}" for name, each in plain.items() if len(str(each)) <= _WORDS_MAX]
    words += [f"{name} ({count:,})" for name, count in lists.items() if count]
    body = to_json(value, indent=1).decode()
    cut = body[:ACTION_CHARACTERS_MAX]
    return ShownAction(str(value["action"]), ", ".join(words), cut, len(body) > len(cut))


def _words(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
