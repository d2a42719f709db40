"""What the keeper knows of a table's streams: their figures, kept between looks. Reads logs only.

A look asks of each stream that may have something new for the entry after the last one that was seen, and folds the
log again where there is one. Which streams may have something:

    the table has news hints   those with a hint, by one listing, and those that had one at the last look
    it has no partition keys   its only stream
    otherwise                  all, each by a request

All streams are looked at now and then, if the policy has bounds that a stream without deltas can reach.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from compactor.catalog.compact_when import CompactWhen, Preset
from compactor.catalog.keys import TableFolder
from compactor.catalog.tables import Table
from compactor.log.keys import EntryObject
from compactor.model.clock import Clock
from compactor.planning.stream_figures import StreamFigures
from compactor.planning.table_figures import read_figures
from compactor.storage.concurrently import run_concurrently
from compactor.storage.keys import encode_partition
from compactor.storage.object_store import ObjectStore

ALL_STREAMS_SECONDS = 6 * 3_600.0
"""Interval between two looks at all streams of a table with news hints."""

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


@dataclass(frozen=True)
class _ToLookAt:
    """`had_news`, `all_at_seconds`: what the watch knows of hints once these partitions are read. `are_all`: the table
    has no other streams."""

    partitions: list[dict[str, str]]
    are_all: bool
    had_news: frozenset[str] = frozenset()
    all_at_seconds: float | None = None


def sees_idle_streams(policy: CompactWhen) -> bool:
    """Whether a stream without pending deltas and dead rows can be due."""
    if policy.preset in (Preset.UPSOLVER, Preset.SIZE_RATIO):
        return True
    return bool(policy.resolved.model_dump(mode="json").keys() & {"small_files", "small_file_share"})


class TableWatch:
    """The streams of one table. Not thread-safe."""

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._streams: dict[str, WatchedStream] = {}
        self._had_news: frozenset[str] = frozenset()
        self._all_at_seconds: float | None = None

    @property
    def streams(self) -> Sequence[WatchedStream]:
        """All streams that were read, in the order of their keys."""
        return [self._streams[key] for key in sorted(self._streams)]

    def look(self, table: Table, policy: CompactWhen) -> None:
        """Raises the errors of the table's logs; the figures of streams that were read until then are kept."""
        found = self._to_look_at(table, policy)
        writes_here = table.properties.destination_compacted_table_id in (None, table.table_id)

        def is_new(partition: dict[str, str]) -> bool:
            known = self._streams.get(encode_partition(partition))
            return known is None or not writes_here or self._has_grown(table, known)

        news = run_concurrently(self._store.location, is_new, found.partitions)
        if found.are_all:  # without those of dropped partitions
            listed = set(map(encode_partition, found.partitions))
            self._streams = {key: known for key, known in self._streams.items() if key in listed}
        changed = [partition for partition, is_changed in zip(found.partitions, news, strict=True) if is_changed]
        for first in range(0, len(changed), STREAMS_AT_ONCE):
            self._read(table, changed[first : first + STREAMS_AT_ONCE])
        # Not before all were read: after an error the next look asks for those again that have left.
        self._had_news, self._all_at_seconds = found.had_news, found.all_at_seconds

    def _to_look_at(self, table: Table, policy: CompactWhen) -> _ToLookAt:
        if not table.properties.news_hints:
            return _ToLookAt(table.partitions() if table.partition_keys else [{}], True)
        last, now = self._all_at_seconds, self._clock.monotonic_seconds()
        if sees_idle_streams(policy) and (last is None or now - last >= ALL_STREAMS_SECONDS):
            return _ToLookAt(table.partitions(), True, self._had_news, now)
        hinted = {encode_partition(each): each for each in table.partitions_with_news() or ()}
        left = [self._streams[key].partition for key in self._had_news - hinted.keys() if key in self._streams]
        return _ToLookAt([*hinted.values(), *left], False, frozenset(hinted), self._all_at_seconds)

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
