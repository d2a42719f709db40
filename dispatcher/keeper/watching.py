"""What the keeper knows of a table's streams: their figures, kept between looks. Reads logs only.

A look asks of each stream that may have something new for the entry after the last one that was seen, and folds the
log again where there is one. Which streams may have something:

    the table has news hints   those with a hint, by one listing, and those that had work at the last look
    it has no partition keys   its only stream
    otherwise                  all, each by a request

All streams of a table with hints are looked at now and then. What was seen is noted in the state, for the next keeper.
Streams that are compacted into another table are read again while they have work, and all now and then: what becomes of
them is in that table's logs.
"""

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields

from compactor.catalog.compact_when import CompactWhen, Preset
from compactor.catalog.dropping import definition_log
from compactor.catalog.keys import TableFolder
from compactor.catalog.tables import Table
from compactor.log.keys import EntryObject
from compactor.log_context import LOG, Logged
from compactor.model.clock import Clock
from compactor.model.document import Document
from compactor.model.errors import Corrupt, LithifyError, Outdated
from compactor.planning.due import has_work
from compactor.planning.stream_figures import StreamFigures
from compactor.planning.table_figures import merge_limits, read_figures
from compactor.storage.concurrently import run_concurrently
from compactor.storage.keys import encode_partition
from compactor.storage.object_store import ObjectStore

ALL_STREAMS_MS = 6 * 3_600_000
"""Interval between two looks at all streams of a table with news hints. The first one is at once if the policy has
bounds that a stream without deltas can reach, or the table is published."""

STREAMS_AT_ONCE = 64
"""Streams whose logs are folded before their figures are kept: a `Table` keeps more folds than that."""


@dataclass(frozen=True)
class WatchedStream:
    """`entry_number`: the last entry of its log that was seen."""

    partition: dict[str, str]
    entry_number: int
    figures: StreamFigures

    @property
    def key(self) -> str:
        return encode_partition(self.partition)

    @property
    def has_work(self) -> bool:
        """Whether it has a hint, where the table has hints."""
        return bool(self.figures.pending_deltas or self.figures.dead_rows)


class StreamsSeen(Document):
    """What a keeper knows of a table's streams, between its looks and in the state: overwritten, a hint.

    Attributes:
        basis: of the table and what its figures depend on: they are not those of another one
        all_at_ms: when all streams were looked at, of a table with news hints"""

    basis: str
    streams: tuple[WatchedStream, ...] = ()
    all_at_ms: int | None = None


@dataclass(frozen=True)
class _ToLookAt:
    """`are_all`: the table has no other streams. `changed`: keys of those that need not be asked, since their hint has
    come or gone. `all_at_ms`: as of what was seen, once these partitions are read."""

    partitions: list[dict[str, str]]
    are_all: bool
    changed: frozenset[str] = frozenset()
    all_at_ms: int | None = None


def sees_idle_streams(policy: CompactWhen) -> bool:
    """Whether a stream without pending deltas and dead rows can be due."""
    if policy.preset in (Preset.UPSOLVER, Preset.SIZE_RATIO):
        return True
    return bool(policy.resolved.model_dump(mode="json").keys() & {"small_files", "small_file_share"})


class TableWatch:
    """The streams of one table. Not thread-safe."""

    def __init__(self, store: ObjectStore, clock: Clock, state: ObjectStore, key: str) -> None:
        """`state`, `key`: where what was seen is noted."""
        self._store = store
        self._clock = clock
        self._state = state
        self._key = key
        self._noted = b""
        self._elsewhere_at_ms: int | None = None
        self._take(StreamsSeen(basis=""))

    @property
    def streams(self) -> Sequence[WatchedStream]:
        """All streams that were read, in the order of their keys."""
        return [self._streams[key] for key in sorted(self._streams)]

    def begin(self, table: Table) -> None:
        """Takes what was noted, or forgets what is known, if it is of another table or its figures are made otherwise.
        Raises errors of table and state."""
        created = definition_log(self._store, table.table_id, self._clock).entry(1).at_ms
        names = [each.name for each in fields(StreamFigures)]
        facts = f"{created} {merge_limits(table.properties)} {names}"
        basis = hashlib.sha256(facts.encode()).hexdigest()[:16]
        if basis == self._basis:
            return
        noted, body = StreamsSeen(basis=basis), self._state.read(self._key) or b""
        try:
            found = StreamsSeen.parse_durable(body, self._key) if body else noted
        except (Corrupt, Outdated) as error:
            LOG.warning("streams_seen_unreadable", reason=str(error))
            found = noted
        self._noted = body
        self._take(found if found.basis == basis else noted)

    def note(self) -> None:
        """Notes what is known, if it is new. Without that the next keeper asks for more."""
        seen = StreamsSeen(basis=self._basis, streams=tuple(self.streams), all_at_ms=self._all_at_ms)
        body = seen.model_dump_json(exclude_defaults=True).encode()
        with Logged("streams_seen_not_noted", LithifyError):
            if body != self._noted:
                self._state.overwrite(self._key, body)
                self._noted = body

    def _take(self, seen: StreamsSeen) -> None:
        self._basis, self._all_at_ms = seen.basis, seen.all_at_ms
        self._streams = {each.key: each for each in seen.streams}

    def look(self, table: Table, policy: CompactWhen) -> None:
        """Raises the errors of the table's logs; the figures of streams that were read until then are kept."""
        found = self._to_look_at(table, policy)
        goes_elsewhere = table.properties.destination_compacted_table_id not in (None, table.table_id)
        now_ms, last_ms = self._clock.now_ms(), self._elsewhere_at_ms
        is_time = goes_elsewhere and (last_ms is None or not 0 <= now_ms - last_ms < ALL_STREAMS_MS)

        def is_new(partition: dict[str, str]) -> bool:
            key = encode_partition(partition)
            known = self._streams.get(key)
            if known is None or is_time:
                return True
            changed = has_work(known.figures) if goes_elsewhere else key in found.changed
            return changed or self._has_grown(table, known)

        news = run_concurrently(self._store.location, is_new, found.partitions)
        if found.are_all:  # without those of dropped partitions
            listed = set(map(encode_partition, found.partitions))
            self._streams = {key: known for key, known in self._streams.items() if key in listed}
        changed = [partition for partition, is_changed in zip(found.partitions, news, strict=True) if is_changed]
        for first in range(0, len(changed), STREAMS_AT_ONCE):
            self._read(table, changed[first : first + STREAMS_AT_ONCE])
        self._all_at_ms = found.all_at_ms  # not before all were read
        self._elsewhere_at_ms = now_ms if is_time else last_ms

    def have_grown(self, table: Table, keys: Collection[str]) -> bool:
        """Whether one of these streams has been written to since it was read, of those that the last look did not ask:
        they have no hint. They are read again."""
        if not table.properties.news_hints:
            return False
        idle = [each for each in self.streams if each.key in keys and not each.has_work]
        news = run_concurrently(self._store.location, lambda each: self._has_grown(table, each), idle)
        grown = [each.partition for each, is_new in zip(idle, news, strict=True) if is_new]
        self._read(table, grown)
        return bool(grown)

    def _to_look_at(self, table: Table, policy: CompactWhen) -> _ToLookAt:
        if not table.properties.news_hints:
            return _ToLookAt(table.partitions() if table.partition_keys else [{}], True)
        now_ms = self._clock.now_ms()
        counts_idle = sees_idle_streams(policy) or table.properties.publish
        last_ms = self._all_at_ms if self._all_at_ms is not None or counts_idle else now_ms
        if last_ms is None or not 0 <= now_ms - last_ms < ALL_STREAMS_MS:
            return _ToLookAt(table.partitions(), True, all_at_ms=now_ms)
        hinted = {encode_partition(each): each for each in table.each_partition(with_news=True)}
        with_work = {each.key: each.partition for each in self.streams if each.has_work}
        changed = frozenset(with_work.keys() ^ hinted.keys())
        return _ToLookAt(list({**with_work, **hinted}.values()), False, changed, last_ms)

    def _has_grown(self, table: Table, known: WatchedStream) -> bool:
        """One request: whether its log has the entry after the last one that was seen."""
        folder = TableFolder(table.table_id).stream(known.partition)
        return self._store.read(EntryObject(folder.log, known.entry_number + 1).key) is not None

    def _read(self, table: Table, partitions: Sequence[dict[str, str]]) -> None:
        for partition, figures in zip(partitions, read_figures(table, partitions), strict=True):
            number = table.stream(partition).log.newest.entry_number
            if number:
                self._streams[encode_partition(partition)] = WatchedStream(partition, number, figures)
            else:
                self._streams.pop(encode_partition(partition), None)
