"""The fold of a partition stream's log: the stream's state at one entry. Pure: values in, a value out.

One log has both sides of a partition stream: the *source side* (deltas per stream version, appended by writers) and
the *compacted side* (files and index as of the last committed round). A table that is compacted into another table has
deltas and no compacted side; the other table has a compacted side and, usually, no deltas.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Self, assert_never

from compactor.catalog.actions import (
    DeltaAdded,
    DeltaRetracted,
    DeltasRetired,
    DeltasTaken,
    IndexRehashed,
    RestoredSide,
    RoundCommitted,
    SessionPlanAnnounced,
    SessionPlanEnded,
    SkippedPositions,
    StreamAction,
    StreamDropped,
    StreamRestored,
    StreamVersionCreated,
    StreamVersionDeprecated,
    StreamVersionReleased,
)
from compactor.catalog.delta_sequence import DeltaSequence
from compactor.catalog.retired import RetiredDeltas
from compactor.model.counts import SortKey, Watermark
from compactor.model.errors import Corrupt
from compactor.model.files import DataFile, DeletionVector, IndexFile
from compactor.model.names import LifecycleState


@dataclass(frozen=True)
class RetractedDelta:
    delta_id: str
    position: int


@dataclass(frozen=True)
class TakenBy:
    """The last position of a stream version that a compaction into another table has, or is about to commit."""

    compacted_table_id: str
    position: int


@dataclass(frozen=True)
class SourceStream:
    """One stream version: its deltas in position order, its retracted deltas, and how far other tables have read it.

    Attributes:
        deltas: without retracted and retired ones
        retired: None: no delta was retired
        last_position: the last position ever used, also by a retracted or retired delta; None: no position was used
        last_write_at_ms: when the last delta was appended, by its writer's clock; None: not recorded"""

    stream_version: int
    state: LifecycleState
    deltas: DeltaSequence = field(default_factory=DeltaSequence)
    retracted: tuple[RetractedDelta, ...] = ()
    taken: tuple[TakenBy, ...] = ()
    retired: RetiredDeltas | None = None
    last_position: int | None = None
    last_write_at_ms: int | None = None

    @property
    def retracted_positions(self) -> frozenset[int]:
        return frozenset(delta.position for delta in self.retracted)


@dataclass(frozen=True)
class CompactedStream:
    """The compacted stream after the last committed round. The next round starts from it.

    Attributes:
        files: live compacted files by file number
        deletion_vectors: their dead rows, by file number
        next_file_number: above every file number ever used in this compacted stream version
        last_round: the last round's completion"""

    stream_version: int
    source_table_id: str
    source_stream_version: int
    processed: Watermark
    primary_keys: tuple[str, ...]
    sort_keys: tuple[SortKey, ...]
    digest_encoding: int
    hash_bucket_count: int
    index_version: int
    files: Mapping[int, DataFile]
    index_files: tuple[IndexFile, ...]
    deletion_vectors: tuple[DeletionVector, ...]
    next_file_number: int
    last_round: RoundCommitted

    @property
    def rows(self) -> int:
        """Live rows."""
        return sum(file.rows for file in self.files.values()) - sum(vector.rows for vector in self.deletion_vectors)

    def files_with_more_dead_rows_than(self, max_dead_row_share: float) -> tuple[DeletionVector, ...]:
        """The deletion vectors of files whose share of dead rows is above a bound."""
        return tuple(
            vector
            for vector in self.deletion_vectors
            if vector.rows > max_dead_row_share * self.files[vector.file_number].rows
        )

    def has_taken(self, table_id: str, stream_version: int, position: int) -> bool:
        """Whether the delta at a position of a source stream is compacted, completely or in part."""
        return self._is_of(table_id, stream_version) and position <= self.processed.position

    def has_file(self, table_id: str, stream_version: int, position: int, file_number: int) -> bool:
        """Whether a file of the delta at a position of a source stream is compacted."""
        return self._is_of(table_id, stream_version) and self.processed.covers(position, file_number)

    def _is_of(self, table_id: str, stream_version: int) -> bool:
        return (self.source_table_id, self.source_stream_version) == (table_id, stream_version)

    @property
    def bytes_at_rest(self) -> int:
        return sum(file.size_bytes for file in self.files.values())


@dataclass(frozen=True)
class Reset:
    """The last drop or restore of a stream. `as_of_entry`: the entry that was restored; None: it was dropped."""

    reset_id: str
    as_of_entry: int | None = None


@dataclass(frozen=True)
class StreamSnapshot:
    """A partition stream at one log entry. Entry number 0 is the empty log.

    Attributes:
        in_flight: the plan in force; None: no session has a plan in the log
        reset: None: the stream was never dropped or restored
        dropped_version: the greatest stream version that was dropped; 0: none was
        skipped: positions of the source that no compaction of this stream reads"""

    sources: Mapping[int, SourceStream] = field(default_factory=lambda: MappingProxyType({}))
    compacted: CompactedStream | None = None
    last_index_version: int = 0
    in_flight: SessionPlanAnnounced | None = None
    reset: Reset | None = None
    dropped_version: int = 0
    skipped: tuple[SkippedPositions, ...] = ()

    @property
    def is_dropped(self) -> bool:
        """Whether the stream was dropped, and nobody has written to it since."""
        reset = self.reset
        is_drop = reset is not None and reset.as_of_entry is None
        return is_drop and self.compacted is None and max(self.sources, default=0) <= self.dropped_version

    def skips(self, stream_version: int, position: int) -> bool:
        """Whether a restore has put the delta at a position of the source out of force."""
        return any(
            each.stream_version == stream_version and each.after < position <= each.until for each in self.skipped
        )

    @property
    def active(self) -> SourceStream | None:
        """The latest active stream version."""
        versions = [stream for stream in self.sources.values() if stream.state is LifecycleState.ACTIVE]
        return max(versions, key=lambda stream: stream.stream_version, default=None)


@dataclass(frozen=True)
class ReadPoint:
    """The version of a stream's compacted side, which every round, rehash, drop and restore changes. None: nothing is
    compacted yet; `reset_id` None: the stream was never dropped or restored."""

    index_version: int | None
    round_commit_id: str | None
    reset_id: str | None = None

    @classmethod
    def of(cls, snapshot: StreamSnapshot) -> Self:
        compacted = snapshot.compacted
        reset_id = None if snapshot.reset is None else snapshot.reset.reset_id
        if compacted is None:
            return cls(None, None, reset_id)
        return cls(compacted.index_version, compacted.last_round.commit_id, reset_id)

    def __str__(self) -> str:
        if self.round_commit_id is None:
            return "no compacted round"
        return f"index version {self.index_version} of round {self.round_commit_id}"


def apply(snapshot: StreamSnapshot, action: StreamAction) -> StreamSnapshot:
    """The snapshot after one more action. Raises `Corrupt` if the action cannot follow: the log is damaged."""
    match action:
        case RoundCommitted():
            return _commit_round(snapshot, action)
        case IndexRehashed():
            return _replace_index(snapshot, action)
        case SessionPlanAnnounced() | SessionPlanEnded():
            return _change_plan(snapshot, action)
        case StreamDropped() | StreamRestored():
            return _reset(snapshot, action)
        case StreamVersionCreated() | StreamVersionReleased() | StreamVersionDeprecated():
            return _change_versions(snapshot, action)
        case _:
            return _apply_to_deltas(snapshot, action)


def _change_versions(
    snapshot: StreamSnapshot, action: StreamVersionCreated | StreamVersionReleased | StreamVersionDeprecated
) -> StreamSnapshot:
    match action:
        case StreamVersionCreated():
            return _create_stream_version(snapshot, action)
        case StreamVersionReleased():
            return _release_stream_version(snapshot, action)
        case StreamVersionDeprecated():
            return _deprecate_stream_version(snapshot, action)
        case _:
            assert_never(action)


def _apply_to_deltas(
    snapshot: StreamSnapshot, action: DeltaAdded | DeltaRetracted | DeltasTaken | DeltasRetired
) -> StreamSnapshot:
    match action:
        case DeltaAdded():
            return _add_delta(snapshot, action)
        case DeltaRetracted():
            return _retract_delta(snapshot, action)
        case DeltasTaken():
            return _take_deltas(snapshot, action)
        case DeltasRetired():
            return _retire_deltas(snapshot, action)
        case _:
            assert_never(action)


def _create_stream_version(snapshot: StreamSnapshot, action: StreamVersionCreated) -> StreamSnapshot:
    if action.stream_version in snapshot.sources:
        raise Corrupt(f"stream version {action.stream_version} is created twice")
    created = SourceStream(action.stream_version, action.state)
    return replace(snapshot, sources=MappingProxyType({**snapshot.sources, action.stream_version: created}))


def _release_stream_version(snapshot: StreamSnapshot, action: StreamVersionReleased) -> StreamSnapshot:
    if action.stream_version not in snapshot.sources:
        raise Corrupt(f"stream version {action.stream_version} is released but was never created")
    sources = {}
    for number, stream in snapshot.sources.items():
        if number == action.stream_version:
            stream = replace(stream, state=LifecycleState.ACTIVE)
        elif stream.state is LifecycleState.ACTIVE:
            stream = replace(stream, state=LifecycleState.DEPRECATED)
        sources[number] = stream
    return replace(snapshot, sources=MappingProxyType(sources))


def _deprecate_stream_version(snapshot: StreamSnapshot, action: StreamVersionDeprecated) -> StreamSnapshot:
    stream = snapshot.sources.get(action.stream_version)
    if stream is None:
        raise Corrupt(f"stream version {action.stream_version} is deprecated but was never created")
    changed = replace(stream, state=LifecycleState.DEPRECATED)
    return replace(snapshot, sources=MappingProxyType({**snapshot.sources, action.stream_version: changed}))


def _add_delta(snapshot: StreamSnapshot, action: DeltaAdded) -> StreamSnapshot:
    stream = snapshot.sources.get(action.stream_version)
    if stream is None:
        raise Corrupt(
            f"delta {action.delta_id!r} is in stream version {action.stream_version}, which was never created"
        )
    if stream.last_position is not None and action.position <= stream.last_position:
        raise Corrupt(f"delta {action.delta_id!r} at {action.position} is not above position {stream.last_position}")
    deltas = stream.deltas.added(action)
    grown = replace(stream, deltas=deltas, last_position=action.position, last_write_at_ms=action.at_ms)
    return replace(snapshot, sources=MappingProxyType({**snapshot.sources, action.stream_version: grown}))


def _retract_delta(snapshot: StreamSnapshot, action: DeltaRetracted) -> StreamSnapshot:
    stream = snapshot.sources.get(action.stream_version)
    kept = stream.deltas.without(action.position) if stream else DeltaSequence()
    if stream is None or len(kept) == len(stream.deltas):
        raise Corrupt(f"delta {action.delta_id!r} at {action.position} is retracted, but does not exist")
    taken_back = stream.deltas.find(action.delta_id)
    ids = (action.delta_id,) if taken_back is None else taken_back.ids
    retracted = (*stream.retracted, *(RetractedDelta(each, action.position) for each in ids))
    changed = replace(stream, deltas=kept, retracted=retracted)
    return replace(snapshot, sources=MappingProxyType({**snapshot.sources, action.stream_version: changed}))


def _take_deltas(snapshot: StreamSnapshot, action: DeltasTaken) -> StreamSnapshot:
    stream = snapshot.sources.get(action.stream_version)
    if stream is None:
        raise Corrupt(f"{action.compacted_table_id} takes stream version {action.stream_version}, which does not exist")
    others = tuple(each for each in stream.taken if each.compacted_table_id != action.compacted_table_id)
    changed = replace(stream, taken=(*others, TakenBy(action.compacted_table_id, action.position)))
    return replace(snapshot, sources=MappingProxyType({**snapshot.sources, action.stream_version: changed}))


def _retire_deltas(snapshot: StreamSnapshot, action: DeltasRetired) -> StreamSnapshot:
    stream = snapshot.sources.get(action.stream_version)
    if stream is None:
        raise Corrupt(f"deltas of stream version {action.stream_version} are retired, which does not exist")
    if stream.last_position is None or action.position > stream.last_position:
        raise Corrupt(f"deltas up to {action.position} are retired, beyond the last position {stream.last_position}")
    leaving, staying = stream.deltas.split(action.position)
    retired = (stream.retired or RetiredDeltas(action.position)).with_more(
        action.position, leaving.ids(), action.ids_refused_until_ms, action.at_ms
    )
    changed = replace(stream, deltas=staying, retired=retired)
    return replace(snapshot, sources=MappingProxyType({**snapshot.sources, action.stream_version: changed}))


def _commit_round(snapshot: StreamSnapshot, action: RoundCommitted) -> StreamSnapshot:
    before = snapshot.compacted
    continues = before is not None and before.stream_version == action.compacted_stream_version
    files = dict(before.files) if before is not None and continues else {}
    vectors = {vector.file_number: vector for vector in before.deletion_vectors} if before and continues else {}
    next_file_number = before.next_file_number if before is not None and continues else 1
    for number in action.files_removed:
        if files.pop(number, None) is None:
            raise Corrupt(f"round {action.commit_id} removes compacted file {number}, which does not exist")
        vectors.pop(number, None)
    for file in action.files_added:
        if file.file_number < next_file_number:
            raise Corrupt(f"round {action.commit_id} uses file number {file.file_number} again")
        files[file.file_number] = file
    for vector in action.deletion_vectors:
        if vector.file_number not in files:
            raise Corrupt(f"round {action.commit_id} has dead rows in file {vector.file_number}, which does not exist")
        vectors[vector.file_number] = vector
    highest = max((file.file_number for file in action.files_added), default=next_file_number - 1)
    compacted = CompactedStream(
        stream_version=action.compacted_stream_version,
        source_table_id=action.source_table_id,
        source_stream_version=action.source_stream_version,
        processed=action.processed,
        primary_keys=action.primary_keys,
        sort_keys=action.sort_keys,
        digest_encoding=action.digest_encoding,
        hash_bucket_count=action.hash_bucket_count,
        index_version=action.index_version,
        files=MappingProxyType(files),
        index_files=action.index_files,
        deletion_vectors=tuple(vectors[number] for number in sorted(vectors)),
        next_file_number=highest + 1,
        last_round=action,
    )
    in_flight = _plan_after(snapshot, action, is_last=action.round_number >= action.rounds)
    skipped = tuple(
        each
        for each in snapshot.skipped
        if each.stream_version == action.source_stream_version and each.until > action.processed.position
    )
    return replace(
        snapshot,
        compacted=compacted,
        last_index_version=action.index_version,
        in_flight=in_flight,
        skipped=skipped,
    )


def _plan_after(
    snapshot: StreamSnapshot, action: RoundCommitted | IndexRehashed, *, is_last: bool
) -> SessionPlanAnnounced | None:
    """The plan that is still in force after a commit: that of the same session, unless it was its last one."""
    plan = snapshot.in_flight
    goes_on = plan is not None and plan.is_of(action.job_run_id, action.session_id) and not is_last
    return plan if goes_on else None


def _change_plan(snapshot: StreamSnapshot, action: SessionPlanAnnounced | SessionPlanEnded) -> StreamSnapshot:
    """The end of a plan that is no longer in force changes nothing."""
    if isinstance(action, SessionPlanAnnounced):
        return replace(snapshot, in_flight=action)
    plan = snapshot.in_flight
    return replace(snapshot, in_flight=None) if plan is not None and plan.plan_id == action.plan_id else snapshot


def _replace_index(snapshot: StreamSnapshot, action: IndexRehashed) -> StreamSnapshot:
    before = snapshot.compacted
    if before is None or before.index_version != action.from_index_version:
        raise Corrupt(
            f"rehash {action.commit_id} replaces index version {action.from_index_version}, which does not exist"
        )
    compacted = replace(
        before,
        index_version=action.index_version,
        hash_bucket_count=action.hash_bucket_count,
        index_files=action.index_files,
    )
    plan = snapshot.in_flight
    in_flight = _plan_after(snapshot, action, is_last=plan is None or not plan.rounds)
    return replace(snapshot, compacted=compacted, last_index_version=action.index_version, in_flight=in_flight)


def _reset(snapshot: StreamSnapshot, action: StreamDropped | StreamRestored) -> StreamSnapshot:
    if isinstance(action, StreamRestored):
        restored = None if action.compacted is None else _compacted_side(action.compacted)
        return replace(
            snapshot,
            compacted=restored,
            last_index_version=max(snapshot.last_index_version, restored.index_version if restored else 0),
            in_flight=None,
            reset=Reset(action.restore_id, action.as_of_entry),
            skipped=action.skipped,
        )
    sources = {number: _without_deltas(source, action) for number, source in snapshot.sources.items()}
    return replace(
        snapshot,
        sources=MappingProxyType(sources),
        compacted=None,
        in_flight=None,
        reset=Reset(action.drop_id),
        dropped_version=max(sources, default=0),
        skipped=(),
    )


def _without_deltas(source: SourceStream, action: StreamDropped) -> SourceStream:
    retired, ids = source.retired, list(source.deltas.ids())
    if source.last_position is not None and (ids or retired is not None):
        before = retired or RetiredDeltas(source.last_position)
        retired = before.with_more(source.last_position, ids, action.ids_refused_until_ms, action.at_ms)
    return replace(source, state=LifecycleState.DEPRECATED, deltas=DeltaSequence(), retired=retired)


def _compacted_side(restored: RestoredSide) -> CompactedStream:
    fields = {name: getattr(restored, name) for name in type(restored).model_fields}
    return CompactedStream(**{**fields, "files": MappingProxyType({file.file_number: file for file in restored.files})})
