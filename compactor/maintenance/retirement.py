"""Retires deltas that every compaction of their stream has taken: they leave the stream's snapshot and its
checkpoints, and later their files are garbage.

The order, from an append to the last byte of a delta, each step durable before the next:

    1  the delta                 an entry of the source's log
    2  its compaction            a `round_committed` of every table that the stream is compacted into
    3  `deltas_retired`          an entry of the source's log, here; not before the retention has passed since 1
    4  its files are deleted     `garbage.py`; not before the grace period and the retention have passed since 3

A compaction is *registered* in the stream if it is the stream's own, or if a `deltas_taken` of its table is in the log.
The position that may be retired is the minimum that the registered compactions have committed. If another table
registers between this check and the entry, nothing is retired and the check is repeated.

No reader and no attempt misses a file: one that began at an entry before 3 needs files that step 4 leaves for the
grace period, which is longer than any attempt; one that begins after 3 reads a snapshot without the deltas, and every
registered compaction has their rows. A compaction into another table that begins after 3 would lack them, and is
refused (`planning/session_input.py`).
"""

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass

from compactor.catalog.actions import DeltaAdded, DeltasRetired, StreamAction
from compactor.catalog.dropping import is_gone
from compactor.catalog.keys import TableFolder
from compactor.catalog.properties import GRACE_SECONDS
from compactor.catalog.retired import refused_until_ms
from compactor.catalog.snapshot import CompactedStream, Reset, SourceStream, StreamSnapshot
from compactor.catalog.stream import PartitionStream
from compactor.log.durable_log import CHECKPOINT_ENTRIES, LogState
from compactor.model.clock import Clock
from compactor.storage.object_store import ObjectStore

RETENTION_SECONDS = GRACE_SECONDS
"""The retention of a table that sets no other."""

_ENTRIES_BACK = 8
"""Entries that are looked through for the last delta before a time."""

_TRIES = 3
"""Looks at the registered compactions, at most, while others register."""


@dataclass(frozen=True)
class Retirement:
    """The deltas of a stream version, up to a position, that no compaction needs any more."""

    stream_version: int
    position: int
    deltas: int


@dataclass(frozen=True)
class StreamRetired:
    """A stream's deltas that may be retired, or were."""

    stream: str
    partition: dict[str, str]
    retirements: tuple[Retirement, ...]

    @property
    def deltas(self) -> int:
        return sum(each.deltas for each in self.retirements)


def retention_of(retention_seconds: float | None, grace_seconds: float) -> float:
    """For how many seconds compacted deltas stay in a log's snapshot: never less than the grace period, which is longer
    than any attempt. `retention_seconds` None: the table sets none."""
    return max(RETENTION_SECONDS if retention_seconds is None else retention_seconds, grace_seconds)


class StreamRetirement:
    """Finds and retires the deltas of one partition stream."""

    def __init__(self, store: ObjectStore, stream: PartitionStream, clock: Clock) -> None:
        self._store = store
        self._stream = stream
        self._clock = clock

    def find(self, retention_seconds: float) -> tuple[Retirement, ...]:
        """The deltas that may be retired now, by stream version. Writes nothing."""
        return self._find(self._stream.load(), retention_seconds)

    def retire(self, retention_seconds: float) -> tuple[Retirement, ...]:
        """Retires all deltas that may be retired, in one entry. May be repeated after any failure.

        The state before it is kept as a checkpoint, also if nothing retires yet: `garbage.py` asks for it when the
        retention has passed."""
        for _ in range(_TRIES):
            known = self._stream.load()
            found = self._find(known, retention_seconds)
            if any(source.deltas for source in known.state.sources.values()):
                self._stream.log.keep_checkpoint(known)
            if not found or self._append(known, found):
                return found
        return ()

    def _append(self, known: LogState[StreamSnapshot], found: Sequence[Retirement]) -> bool:
        now_ms = self._clock.now_ms()
        until_ms, compacted_by = refused_until_ms(now_ms), _compacted_by(known.state)

        def decide(log_state: LogState[StreamSnapshot]) -> Sequence[StreamAction]:
            if _compacted_by(log_state.state) != compacted_by:
                return []
            return [
                DeltasRetired(
                    stream_version=each.stream_version,
                    position=each.position,
                    at_ms=now_ms,
                    ids_refused_until_ms=until_ms,
                )
                for each in found
                if _count(log_state.state.sources[each.stream_version], each.position)
            ]

        appended = self._stream.log.append(decide, known)
        if appended.entry is not None and appended.entry.number % CHECKPOINT_ENTRIES == 1:
            self._stream.log.keep_checkpoint(appended.after)  # so the checkpoint before it is kept, too
        return appended.entry is not None or _compacted_by(appended.after.state) == compacted_by

    def _find(self, known: LogState[StreamSnapshot], retention_seconds: float) -> tuple[Retirement, ...]:
        since_ms = self._clock.now_ms() - int(retention_seconds * 1_000)
        sources = known.state.sources
        old = [version for version, source in sources.items() if source.deltas and _is_old(source.deltas[0], since_ms)]
        compactions = list(self._compactions(known.state)) if old else []
        taken = {version: _taken(compactions, version) for version in old}
        taken = {version: position for version, position in taken.items() if _count(sources[version], position)}
        if not taken:
            return ()
        aged = self._last_positions(self._stream.log.entry_number_at(since_ms, known), taken.keys())
        limits = {version: min(aged[version], position) for version, position in taken.items() if version in aged}
        found = (Retirement(version, limit, _count(sources[version], limit)) for version, limit in limits.items())
        return tuple(each for each in found if each.deltas)

    def _last_positions(self, number: int, versions: Set[int]) -> dict[int, int]:
        """The last position of stream versions at an entry, of those that had one: by the entries just before it, or
        else by the snapshot, which may take all that were written before it."""
        found: dict[int, int] = {}
        for each in range(number, max(number - _ENTRIES_BACK, 0), -1):
            for action in reversed(self._stream.log.entry(each).actions):
                if isinstance(action, DeltaAdded):
                    found.setdefault(action.stream_version, action.position)
            if versions <= found.keys():
                return found
        sources = self._stream.load(as_of=number).state.sources if number else {}
        return {version: each.last_position for version, each in sources.items() if each.last_position is not None}

    def _compactions(self, snapshot: StreamSnapshot) -> Iterator[CompactedStream | None]:
        """Every registered compaction; None: one that has registered and committed nothing yet."""
        own = snapshot.compacted
        if own is not None and own.source_table_id == self._stream.table_id:
            yield own
        registered = {each.compacted_table_id for source in snapshot.sources.values() for each in source.taken}
        for table_id in sorted(registered):
            folder = TableFolder(table_id).stream(self._stream.partition)
            state = PartitionStream.open(self._store, folder, self._clock).load().state
            compacted = state.compacted
            if compacted is not None and compacted.source_table_id == self._stream.table_id:
                yield compacted
            elif not state.is_dropped and not is_gone(self._store, table_id):
                yield None


def _is_old(delta: DeltaAdded, since_ms: int) -> bool:
    """False: its entry, which is not older than the delta, was written since."""
    return delta.at_ms is None or delta.at_ms <= since_ms


def _compacted_by(snapshot: StreamSnapshot) -> tuple[Reset | None, frozenset[tuple[int, str]]]:
    """What must not change between the check and the entry: the registered compactions, and the last restore."""
    registered = (
        (version, each.compacted_table_id) for version, source in snapshot.sources.items() for each in source.taken
    )
    return snapshot.reset, frozenset(registered)


def _taken(compactions: Sequence[CompactedStream | None], version: int) -> int:
    """The greatest position whose delta every compaction has read, or will never read as it reads a later version."""
    if not compactions:
        return _NOTHING
    limits = [_EVERYTHING]
    for compacted in compactions:
        if compacted is None or compacted.source_stream_version < version:
            return _NOTHING
        if compacted.source_stream_version == version:
            limits.append(compacted.processed.whole_position)
    return min(limits)


_NOTHING, _EVERYTHING = -(2**63), 2**63 - 1


def _count(source: SourceStream, position: int) -> int:
    return len(source.deltas.split(position)[0])
