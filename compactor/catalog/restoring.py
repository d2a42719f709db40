"""Restores partitions: their compacted side is again what it was at an earlier entry of their log.

One entry for each partition (FORMAT.md, section 6.5). No row is copied: the files of that entry are still stored, and
the entry names them again. Writers go on, in the same stream version. Deltas that were appended since are put out of
force; those that were appended by then, and not compacted, are compacted next.

Nothing is restored that garbage collection or retirement may be about to take. Both decide by a time, their beginning
less the retention. A state that was in force after (now - retention + margin) is named by entries that a collection
reads which begins later, and an earlier one spares it; so clocks may differ by the margin.

A call that is repeated, after a crash or a lost answer, restores only the partitions that it has not restored: what
was appended to the others meanwhile stays.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

from compactor.catalog.actions import (
    DeltaAdded,
    RestoredSide,
    SkippedPositions,
    StreamAction,
    StreamRestored,
    StreamVersionCreated,
)
from compactor.catalog.appending import POSITION_MIN, take_deltas
from compactor.catalog.dropping import definition_log, time_text
from compactor.catalog.keys import TableFolder, partition_hash
from compactor.catalog.properties import TableProperties
from compactor.catalog.snapshot import CompactedStream, ReadPoint, SourceStream, StreamSnapshot
from compactor.catalog.stream import PartitionStream
from compactor.log.durable_log import LogState
from compactor.model.clock import Clock
from compactor.model.counts import Watermark
from compactor.model.errors import Corrupt, Invalid
from compactor.model.names import LifecycleState, counted
from compactor.storage.object_store import ObjectStore

MARGIN_SECONDS = 3_600
"""Largest assumed difference between the clocks of a restore and of garbage collection."""

_NOTHING = POSITION_MIN - 1
"""A watermark below every position."""

Outcome: TypeAlias = Literal["restored", "unchanged", "restored before"]


@dataclass(frozen=True)
class RestoredPartition:
    """What a restore does, or would do, to a partition.

    Attributes:
        outcome: `unchanged`: it is as it was then; `restored before`: by an earlier call to the same time, and what was
            appended since stays
        as_of_entry: of its log; 0: it was not there yet, and becomes empty
        rows_now: compacted rows before the restore
        rows_then: and after it
        rows_undone: of deltas that were appended since
        rows_pending: of deltas that were appended by then, not compacted: they are compacted next
        rows_left_out: of such deltas of another table, in a stream version that is no longer active: append them again
    """

    partition: Mapping[str, str]
    outcome: Outcome
    as_of_entry: int
    rows_now: int
    rows_then: int
    rows_undone: int = 0
    rows_pending: int = 0
    rows_left_out: int = 0


@dataclass(frozen=True)
class Restore:
    """What a restore does, or would do."""

    table_id: str
    as_of_ms: int
    partitions: tuple[RestoredPartition, ...]


class StreamRestore:
    """The restore of one partition stream to a time, or to an entry of its log."""

    def __init__(
        self,
        store: ObjectStore,
        stream: PartitionStream,
        properties: TableProperties,
        clock: Clock,
        *,
        as_of_ms: int,
        as_of_entry: int | None,
    ) -> None:
        self._store = store
        self._stream = stream
        self._clock = clock
        self._kept_ms = _kept_ms(properties)
        self.as_of_ms = as_of_ms
        self._entry = stream.log.entry_number_at(as_of_ms) if as_of_entry is None else as_of_entry
        self._then = stream.load(as_of=self._entry).state if self._entry else StreamSnapshot()

    def plan(self) -> RestoredPartition:
        """What `run` would do. Raises `Invalid` for a state that is out of reach."""
        now = self._stream.load().state
        outcome = self._outcome(now)
        if outcome == "restored":
            self._check_in_reach(now)
        return self._describe(now, outcome)

    def run(self) -> RestoredPartition:
        """Restores the partition, unless it is done. May be repeated after any failure."""
        before, planned = self._stream.load(), self.plan()
        if planned.outcome != "restored":
            return planned
        restore_id = self._clock.new_id()
        self._take_source()

        def decide(at: LogState[StreamSnapshot]) -> Sequence[StreamAction]:
            return self._actions(at.state, restore_id) if self._outcome(at.state) == "restored" else []

        self._stream.log.append(decide)
        missing = self._missing_files(before.state)
        if missing:
            raise Corrupt(
                f"{self._stream} was restored, and garbage collection has deleted {missing[0]} at the same time: "
                f"restore it as of entry {before.entry_number}, which is as it was before"
            )
        return planned

    def _outcome(self, now: StreamSnapshot) -> Outcome:
        if now.reset is not None and now.reset.as_of_entry == self._entry:
            return "restored before"
        is_same = ReadPoint.of(now) == ReadPoint.of(self._then) and now.skipped == self._then.skipped
        was_nothing = self._then.compacted is None and not self._pending_then
        is_untouched = is_same and not self._undone(now) and not self._names_again(now)
        is_as_then = is_untouched or (now.is_dropped and was_nothing)
        return "unchanged" if is_as_then else "restored"

    def _describe(self, now: StreamSnapshot, outcome: Outcome) -> RestoredPartition:
        rows_now = 0 if now.compacted is None else now.compacted.rows
        if outcome != "restored":
            return RestoredPartition(self._stream.partition, outcome, self._entry, rows_now, rows_now)
        pending = _rows(self._pending_then)
        stays = self._source is None or self._goes_on(now)
        return RestoredPartition(
            partition=self._stream.partition,
            outcome=outcome,
            as_of_entry=self._entry,
            rows_now=rows_now,
            rows_then=0 if self._then.compacted is None else self._then.compacted.rows,
            rows_undone=_rows(self._undone(now)),
            rows_pending=pending if stays else 0,
            rows_left_out=0 if stays else pending,
        )

    # -- the source, which may be another table's stream

    @cached_property
    def _source(self) -> PartitionStream | None:
        """None: the stream is its own source."""
        compacted = self._then.compacted or self._stream.load().state.compacted
        if compacted is None or compacted.source_table_id == self._stream.table_id:
            return None
        folder = TableFolder(compacted.source_table_id).stream(self._stream.partition)
        return PartitionStream.open(self._store, folder, self._clock)

    @cached_property
    def _source_then(self) -> StreamSnapshot:
        if self._source is None:
            return self._then
        number = self._source.log.entry_number_at(self.as_of_ms)
        return self._source.load(as_of=number).state if number else StreamSnapshot()

    @cached_property
    def _other_source_now(self) -> StreamSnapshot | None:
        """As it was first read: what is appended later is not undone."""
        return None if self._source is None else self._source.load().state

    def _source_now(self, now: StreamSnapshot) -> StreamSnapshot:
        return now if self._other_source_now is None else self._other_source_now

    def _active(self, now: StreamSnapshot) -> SourceStream | None:
        return self._source_now(now).active

    def _goes_on(self, now: StreamSnapshot) -> bool:
        """Whether the stream version that was active then still is."""
        active, then = self._active(now), self._source_then.active
        return active is not None and then is not None and active.stream_version == then.stream_version

    def _begins_anew(self, now: StreamSnapshot) -> bool:
        """Whether it was dropped with its deltas: those that were pending then are put into a new stream version."""
        return now.is_dropped and self._source is None

    def _names_again(self, now: StreamSnapshot) -> bool:
        """Whether the entry has the deltas again that were pending then, since their stream version is over."""
        has_version = self._active(now) is not None or self._begins_anew(now)
        return self._source is None and has_version and not self._goes_on(now) and bool(self._pending_then)

    @cached_property
    def _pending_then(self) -> list[DeltaAdded]:
        """Deltas that were appended by then, and neither compacted nor put out of force, with their files that were
        not compacted."""
        compacted = self._then.compacted
        active = self._source_then.active
        if active is None:
            return []
        processed = _processed(compacted, active.stream_version)
        now = self._source_now(self._stream.load().state).sources[active.stream_version]
        return [
            rest
            for delta in active.deltas.above(processed.whole_position)
            if not self._then.skips(active.stream_version, delta.position)
            and delta.position not in now.retracted_positions
            and (rest := _rest(delta, processed)).files
        ]

    def _undone(self, now: StreamSnapshot) -> list[DeltaAdded]:
        """Deltas of the active stream version that are in force, and were not then."""
        active = self._active(now)
        if active is None:
            return []
        last = self._last_then(active.stream_version)
        return [each for each in active.deltas.above(last) if not now.skips(active.stream_version, each.position)]

    def _last_then(self, stream_version: int) -> int:
        """The last position of the stream version that was in force: none of a version that was not active."""
        active = self._source_then.active
        if active is None or active.stream_version != stream_version or active.last_position is None:
            return _NOTHING
        return active.last_position

    def _take_source(self) -> None:
        """Records in another table's log that this one has what was appended, so that nobody takes it back."""
        now = self._other_source_now
        if self._source is None or now is None or now.active is None or not now.active.deltas:
            return
        version, last = now.active.stream_version, now.active.deltas[-1].position
        self._source.log.append(lambda at: take_deltas(at.state, version, {last}, self._stream.table_id))

    # -- the entry

    def _actions(self, now: StreamSnapshot, restore_id: str) -> Sequence[StreamAction]:
        if self._begins_anew(now):
            return self._begin_anew(now, restore_id)
        active = self._active(now)
        if active is None:
            return [self._restored(now, restore_id, None, ())]
        version = active.stream_version
        last_now = _NOTHING if active.last_position is None else active.last_position
        goes_on, last_then = self._goes_on(now), self._last_then(version)
        skipped = [each for each in self._then.skipped if each.stream_version == version]
        if last_now > last_then:
            skipped.append(SkippedPositions(stream_version=version, after=last_then, until=last_now))
        if goes_on:
            return [self._restored(now, restore_id, None, tuple(skipped))]
        if self._then.compacted is None:
            restored = self._restored(now, restore_id, None, tuple(skipped))
        else:
            restored = self._restored(now, restore_id, (version, Watermark(position=last_now)), ())
        return [restored, *self._appended_again(version, last_now, restore_id)]

    def _appended_again(self, stream_version: int, last_now: int, restore_id: str) -> list[DeltaAdded]:
        """The deltas pending then, in the version active by now. Another table's log is not written."""
        if self._source is not None:
            return []
        first = max(last_now + 1, self._clock.now_ms())
        return [
            delta.model_copy(
                update={
                    "stream_version": stream_version,
                    "position": position,
                    "delta_id": f"{delta.delta_id}, restored by {restore_id}",
                    "joined": (),
                }
            )
            for position, delta in enumerate(self._pending_then, first)
        ]

    def _begin_anew(self, now: StreamSnapshot, restore_id: str) -> Sequence[StreamAction]:
        """Of a dropped stream: the next stream version has the deltas that were pending then."""
        version = max(now.sources, default=0) + 1
        source = (version, Watermark(position=_NOTHING))
        return [
            StreamVersionCreated(stream_version=version, state=LifecycleState.ACTIVE),
            *(delta.model_copy(update={"stream_version": version}) for delta in self._pending_then),
            self._restored(now, restore_id, source, ()),
        ]

    def _restored(
        self,
        now: StreamSnapshot,
        restore_id: str,
        source: tuple[int, Watermark] | None,
        skipped: tuple[SkippedPositions, ...],
    ) -> StreamRestored:
        """`source`: the stream version that the compacted side goes on with, and how far it has that; None: as then."""
        then = self._then.compacted
        side = None if then is None else _side(then, now.compacted, source)
        return StreamRestored(restore_id=restore_id, as_of_entry=self._entry, compacted=side, skipped=skipped)

    # -- what is out of reach

    def _check_in_reach(self, now: StreamSnapshot) -> None:
        reasons = list(self._reasons(now))
        if reasons:
            cannot = f"{self._stream} cannot be restored as of {time_text(self.as_of_ms)}"
            raise Invalid(*(f"{cannot}: {each}" for each in reasons))

    def _reasons(self, now: StreamSnapshot) -> Iterator[str]:
        if self._then.compacted is not None or self._names_again(now):
            since_ms = self._since_ms(self._kept_ms)
            at_limit = self._stream.log.entry_number_at(since_ms)
            is_recent = self._entry >= at_limit or ReadPoint.of(self._then) == ReadPoint.of(
                self._stream.load(as_of=at_limit).state
            )
            if not is_recent:
                yield (
                    f"its files of then are out of the retention, which reaches back to {time_text(since_ms)}: gc may "
                    "have begun to delete them"
                )
            missing = self._missing_files(now)
            if missing:
                yield f"{counted(len(missing), 'file')} of then are deleted, for example {missing[0]}"
        yield from self._reasons_of_source(now)

    def _reasons_of_source(self, now: StreamSnapshot) -> Iterator[str]:
        """Deltas to be compacted again must not have been retired, nor be about to be."""
        active = self._active(now)
        if active is None or not self._goes_on(now):
            return
        processed = _processed(self._then.compacted, active.stream_version).whole_position
        taken = _processed(now.compacted, active.stream_version).whole_position
        source = self._source or self._stream
        number = source.log.entry_number_at(self._since_ms(self._kept_ms_of_source()))
        old = source.load(as_of=number).state.sources.get(active.stream_version) if number else None
        old_last = _NOTHING if old is None or old.last_position is None else old.last_position
        retired = active.retired is not None and active.retired.position > processed
        if retired or any(each.position <= min(old_last, taken) for each in active.deltas.above(processed)):
            yield "deltas that were not compacted then have been compacted and retired since, or are about to be"

    def _since_ms(self, kept_ms: int) -> int:
        return self._clock.now_ms() - kept_ms + min(MARGIN_SECONDS * 1_000, kept_ms // 2)

    def _kept_ms_of_source(self) -> int:
        if self._source is None:
            return self._kept_ms
        definition = definition_log(self._store, self._source.table_id, self._clock).load().state
        return self._kept_ms if definition is None else _kept_ms(definition.properties)

    def _missing_files(self, before: StreamSnapshot) -> list[str]:
        """Of the files that a restore from this state puts in force again, those that are deleted."""
        then = self._then.compacted
        paths = [file.path for delta in self._pending_then for file in delta.files] if self._names_again(before) else []
        if then is not None:
            paths += [file.path for file in then.files.values()]
            paths += [path for file in then.index_files for path in file.paths]
            paths += [vector.path for vector in then.deletion_vectors]
        folder = TableFolder(self._stream.table_id)
        prefixes = (f"{self._stream.folder.data}/", f"{folder.open_files}/{partition_hash(self._stream.partition)}/")
        stored = {entry.key for prefix in prefixes for entry in self._store.list(prefix)}
        return [path for path in paths if "://" not in path and path not in stored]


def _side(then: CompactedStream, now: CompactedStream | None, source: tuple[int, Watermark] | None) -> RestoredSide:
    version, processed = (then.source_stream_version, then.processed) if source is None else source
    is_same = now is not None and now.stream_version == then.stream_version
    latest = max(then.stream_version, 0 if now is None else now.stream_version)
    return RestoredSide.from_facts(
        then,
        stream_version=then.stream_version if is_same else latest + 1,
        source_stream_version=version,
        processed=processed,
        files=tuple(then.files.values()),
        next_file_number=max(then.next_file_number, 1 if now is None else now.next_file_number),
    )


def _processed(compacted: CompactedStream | None, stream_version: int) -> Watermark:
    """How far a stream version of the source is compacted."""
    if compacted is None or compacted.source_stream_version != stream_version:
        return Watermark(position=_NOTHING)
    return compacted.processed


def _rest(delta: DeltaAdded, processed: Watermark) -> DeltaAdded:
    """The delta with its files that are not compacted, which are numbered from 1 again."""
    done = processed.file_number
    if delta.position != processed.position or done is None:
        return delta
    files = (each for each in delta.files if each.file_number > done)
    numbered = tuple(each.model_copy(update={"file_number": each.file_number - done}) for each in files)
    return delta.model_copy(update={"files": numbered})


def _kept_ms(properties: TableProperties) -> int:
    """For how long replaced files and compacted deltas stay, by these properties."""
    return 1_000 * max(properties.retention_seconds or 0, properties.grace_seconds)


def _rows(deltas: Sequence[DeltaAdded]) -> int:
    return sum(file.rows for delta in deltas for file in delta.files)
