"""The rules for adding and retracting a delta, and for creating and releasing a stream version. Pure.

Every function takes one snapshot and returns the actions to write, or raises. If another writer appends first, the log
calls the function again with the newer snapshot. So N writers of one stream all succeed, each with its own position.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from compactor.catalog.actions import (
    DeltaAdded,
    DeltaRetracted,
    DeltasTaken,
    JoinedDelta,
    StreamAction,
    StreamDropped,
    StreamVersionCreated,
    StreamVersionDeprecated,
    StreamVersionReleased,
)
from compactor.catalog.joining import Overtaken, Standing, standing_of
from compactor.catalog.retired import refused_until_ms
from compactor.catalog.snapshot import SourceStream, StreamSnapshot
from compactor.model.errors import Fenced, Invalid
from compactor.model.names import LifecycleState, Operation, counted, is_unicode

if TYPE_CHECKING:
    from compactor.catalog.delta_files import DeltaFiles
    from compactor.model.files import DataFile

POSITION_MIN, POSITION_MAX = -(2**63) + 2, 2**63 - 1
"""The two smallest 64-bit numbers are not positions (FORMAT.md §6.2): the greatest of them stands for "before all"."""

POSITION_GIVEN_MAX = POSITION_MAX - 2**32
"""The greatest position that a writer may choose. Those above it are left for the deltas that follow."""


@dataclass(frozen=True)
class DeltaRequest:
    """An append without its rows.

    Attributes:
        position: None: the writer's clock in ms, or the last position + 1 if that is greater
        delta_id: identifies a repeated append
        stream_version: None: the active one
        joined: the appends that the delta consists of; empty: it is one"""

    operation: Operation
    position: int | None
    delta_id: str
    stream_version: int | None
    joined: tuple[JoinedDelta, ...] = ()

    def __post_init__(self) -> None:
        if self.position is not None and not isinstance(self.position, int):
            raise Invalid(f"position is {self.position!r}: give a whole number")
        if self.position is not None and not POSITION_MIN <= self.position <= POSITION_MAX:
            raise Invalid(
                f"position {self.position} does not fit into 64 bits: use {POSITION_MIN} to {POSITION_GIVEN_MAX}"
            )
        if self.position is not None and self.position > POSITION_GIVEN_MAX:
            raise Invalid(
                f"position {self.position} leaves no room for the deltas that follow: use at most {POSITION_GIVEN_MAX}"
            )
        if not is_unicode(self.delta_id):
            raise Invalid(f"delta_id is {self.delta_id!r}: give Unicode text")
        if not self.delta_id:
            raise Invalid("delta_id is empty: leave it out, or give every delta an id of its own")


def retract_delta(snapshot: StreamSnapshot, table_id: str, delta_id: str) -> Sequence[StreamAction]:
    """The action that retracts a delta; none if it is retracted. Raises `Invalid` if a compaction has read it."""
    sources = list(snapshot.sources.values())
    for stream in sources:
        delta = stream.deltas.find(delta_id)
        if delta is not None:
            if delta.delta_id != delta_id:
                raise Invalid(
                    f"{delta_id!r} is one of {len(delta.joined):,} small appends in delta {delta.delta_id!r}, which "
                    "can be taken back with all of them; or append a delta that deletes its rows"
                )
            _refuse_taken(snapshot, stream, table_id, delta)
            return [
                DeltaRetracted(stream_version=stream.stream_version, position=delta.position, delta_id=delta.delta_id)
            ]
    # A restore may have put a dropped delta into a later version: the latest one says what became of it.
    for stream in reversed(sources):
        if any(each.delta_id == delta_id for each in stream.retracted):
            return []
        if stream.retired is not None and stream.retired.refuses(delta_id):
            if stream.stream_version <= snapshot.dropped_version:
                raise Invalid(f"delta {delta_id!r} was dropped with its partition: there is nothing left to take back")
            raise Invalid(
                f"delta {delta_id!r} was compacted, and has been retired since: append a delta that deletes its rows"
            )
    raise Invalid(f"there is no delta {delta_id!r} in this partition stream: lithify table log lists them")


def _refuse_taken(snapshot: StreamSnapshot, stream: SourceStream, table_id: str, delta: DeltaAdded) -> None:
    by = [each.compacted_table_id for each in stream.taken if each.position >= delta.position]
    compacted = snapshot.compacted
    if compacted is not None and compacted.has_taken(table_id, stream.stream_version, delta.position):
        by.append(table_id)
    if by:
        refuse_compacted(delta.delta_id, by[0])


def refuse_compacted(delta_id: str, compacted_table_id: str) -> NoReturn:
    raise Invalid(
        f"delta {delta_id!r} cannot be taken back: a compaction into {compacted_table_id} has it, or is about to "
        "commit it; append a delta that puts its rows right instead"
    )


def take_deltas(
    snapshot: StreamSnapshot, stream_version: int, positions: Collection[int], compacted_table_id: str
) -> Sequence[StreamAction]:
    """The action that records what a compaction into another table is about to commit; none if that is recorded.

    Raises `Fenced` if one of the deltas was retracted after it was read.
    """
    stream = _named(snapshot, stream_version)
    if stream_version <= snapshot.dropped_version:
        raise Fenced("the partition was dropped (lithify table drop) since the session read it: nothing is compacted")
    if stream.retracted_positions.intersection(positions):
        raise Fenced(taken_back(stream, positions))
    taken = {each.compacted_table_id: each.position for each in stream.taken}
    last = max(positions)
    if compacted_table_id in taken and taken[compacted_table_id] >= last:
        return []
    return [DeltasTaken(stream_version=stream_version, position=last, compacted_table_id=compacted_table_id)]


def taken_back(stream: SourceStream, positions: Collection[int]) -> str:
    ids = ", ".join(repr(delta.delta_id) for delta in stream.retracted if delta.position in positions)
    return (
        f"{ids} was taken back (lithify table retract) since the session read it: nothing is lost, run it again to "
        "compact the rest"
    )


def find_delta(snapshot: StreamSnapshot, request: DeltaRequest) -> DeltaAdded | None:
    """The delta with the request's id; None if there is none.

    Without a stream version in the request all versions are searched: the active one may have changed meanwhile.
    """
    sources = [each for each in snapshot.sources.values() if request.stream_version in (None, each.stream_version)]
    for stream in sources:
        delta = stream.deltas.find(request.delta_id)
        if delta is not None:
            return delta
    for stream in reversed(sources):
        if any(each.delta_id == request.delta_id for each in stream.retracted):
            raise Invalid(f"delta id {request.delta_id!r} was taken back: give a new delta a new id")
        if stream.retired is not None and stream.retired.refuses(request.delta_id):
            if stream.stream_version <= snapshot.dropped_version:
                raise Invalid(
                    f"delta id {request.delta_id!r} was used before, by a delta that was dropped with its partition: "
                    "give a new delta a new id, unless a restore has brought its rows back"
                )
            raise Invalid(
                f"delta id {request.delta_id!r} was used before, by a delta that was compacted and has been "
                "retired since: if this is the same delta, there is nothing left to do; give a new one a new id"
            )
    return None


def check_same_delta(existing: DeltaAdded, request: DeltaRequest, content_digest: str) -> None:
    """Raises `Invalid` if a field of the request differs from the existing delta."""
    differences = []
    if existing.digest_of(request.delta_id) != content_digest:
        differences.append("other content")
    if existing.operation != request.operation:
        differences.append(f"operation {existing.operation}, not {request.operation}")
    if request.position not in (None, existing.position):
        differences.append(f"position {existing.position}, not {request.position}")
    if differences:
        raise Invalid(
            f"delta id {request.delta_id!r} was already used, with {' and '.join(differences)}: "
            "give a new delta a new id"
        )


def check_request(snapshot: StreamSnapshot, request: DeltaRequest) -> None:
    """Raises `Invalid` if the delta could not be added. For before its files are written; `add_delta` checks again."""
    stream = target_of(snapshot, request)
    last = None if stream is None else stream.last_position
    if request.position is not None and last is not None and request.position <= last:
        raise Invalid(
            f"position {request.position} is not above {last}, the last position of the stream: positions only grow"
        )
    if request.position is None and last == POSITION_MAX:
        raise Invalid(f"the last position of the stream is {last}: there is none above it")


def add_delta(
    snapshot: StreamSnapshot, request: DeltaRequest, delta_files: DeltaFiles, now_ms: int
) -> Sequence[StreamAction]:
    """The actions that add the delta; none if it exists already.

    The first delta of a partition stream, or of a dropped one, creates a stream version, active, in the same entry.
    Raises `Overtaken` if not all appends that it consists of are still to be added.
    """
    existing = find_delta(snapshot, request)
    if existing is not None:
        own = (each.content_digest for each in request.joined if each.delta_id == request.delta_id)
        check_same_delta(existing, request, next(own, delta_files.content_digest))
        return []
    if any(standing_of(snapshot, each.delta_id, each.sequencer) is not Standing.NEW for each in request.joined):
        raise Overtaken
    check_request(snapshot, request)
    stream = target_of(snapshot, request)
    created: list[StreamAction] = []
    if stream is None:
        number = max(snapshot.sources, default=0) + 1
        stream = SourceStream(stream_version=number, state=LifecycleState.ACTIVE)
        created.append(StreamVersionCreated(stream_version=number, state=LifecycleState.ACTIVE))
    position = request.position
    if position is None:
        position = now_ms if stream.last_position is None else max(now_ms, stream.last_position + 1)
    return [
        *created,
        DeltaAdded(
            stream_version=stream.stream_version,
            position=position,
            operation=request.operation,
            delta_id=request.delta_id,
            content_digest=delta_files.content_digest,
            files=delta_files.files,
            at_ms=now_ms,
            joined=request.joined,
        ),
    ]


def create_stream_version(snapshot: StreamSnapshot, state: LifecycleState) -> Sequence[StreamAction]:
    """The actions that create the next stream version. If it is `active`, writers and compactions use it at once."""
    if state is LifecycleState.DEPRECATED:
        raise Invalid("a stream version cannot begin as deprecated: create it unreleased or active")
    number = max(snapshot.sources, default=0) + 1
    created = StreamVersionCreated(stream_version=number, state=LifecycleState.UNRELEASED)
    return [created] if state is LifecycleState.UNRELEASED else [created, *_release(number)]


def release_stream_version(snapshot: StreamSnapshot, stream_version: int) -> Sequence[StreamAction]:
    """The actions that make an unreleased version the active one; none if it is active."""
    stream = _named(snapshot, stream_version)
    if stream.state is LifecycleState.DEPRECATED:
        raise Invalid(f"stream version {stream_version} is deprecated and cannot come back: create a new version")
    return [] if stream.state is LifecycleState.ACTIVE else _release(stream_version)


def deprecate_stream_version(
    snapshot: StreamSnapshot, table_id: str, stream_version: int, sides: Sequence[StreamSnapshot] | None
) -> Sequence[StreamAction]:
    """The action that deprecates a version; none if it is deprecated. Raises `Invalid` for the active one if it has
    rows that are not compacted, unless these are abandoned: no later compaction would read them.

    Args:
        sides: as of `pending_files`; None: rows that are not compacted are abandoned"""
    stream = _named(snapshot, stream_version)
    if stream.state is LifecycleState.DEPRECATED:
        return []
    may_lose_rows = stream.state is not LifecycleState.UNRELEASED and sides is not None
    rows = sum(file.rows for _, file in pending_files(stream, table_id, sides or ())) if may_lose_rows else 0
    if rows:
        raise Invalid(
            f"stream version {stream_version} has {counted(rows, 'row')} that no compaction has, and once it is "
            "deprecated none will: compact first, or abandon them (--abandon)"
        )
    return [StreamVersionDeprecated(stream_version=stream_version)]


def pending_files(
    stream: SourceStream, table_id: str, sides: Sequence[StreamSnapshot]
) -> Iterator[tuple[DeltaAdded, DataFile]]:
    """The files that no compaction has committed, neither into this table nor into any other, and none passes over.

    Args:
        sides: what the deltas are compacted into (`PartitionStream.compacted_sides`). What is only marked as taken
            counts as pending: its compaction may have failed"""
    version = stream.stream_version
    committed = [side.compacted for side in sides if side.compacted is not None]
    for delta in stream.deltas:
        if not any(side.skips(version, delta.position) for side in sides):
            for file in delta.files:
                if not any(each.has_file(table_id, version, delta.position, file.file_number) for each in committed):
                    yield delta, file


def drop_stream(snapshot: StreamSnapshot, drop_id: str, now_ms: int) -> Sequence[StreamAction]:
    """The action that drops a partition stream; none if it has never had an entry."""
    if snapshot == StreamSnapshot():
        return []
    return [StreamDropped(drop_id=drop_id, at_ms=now_ms, ids_refused_until_ms=refused_until_ms(now_ms))]


def _release(stream_version: int) -> list[StreamAction]:
    return [StreamVersionReleased(stream_version=stream_version)]


def target_of(snapshot: StreamSnapshot, request: DeltaRequest) -> SourceStream | None:
    """The stream version that the delta is added to; None if it will be the first, also after a drop."""
    if request.stream_version is not None:
        stream = _named(snapshot, request.stream_version)
        if stream.state is LifecycleState.DEPRECATED:
            became = "was dropped" if stream.stream_version <= snapshot.dropped_version else "is deprecated"
            raise Invalid(f"stream version {request.stream_version} {became}: it takes no more deltas")
        return stream
    if snapshot.is_dropped:
        return None
    if snapshot.sources and snapshot.active is None:
        raise Invalid("no stream version is active: release one, or name the unreleased one to append to")
    return snapshot.active


def _named(snapshot: StreamSnapshot, stream_version: int) -> SourceStream:
    stream = snapshot.sources.get(stream_version)
    if stream is None:
        there_are = ", ".join(str(number) for number in snapshot.sources) or "none"
        raise Invalid(f"there is no stream version {stream_version} (there are: {there_are}): create it first")
    return stream
