"""What a stream version takes: the rules by which a delta is added, and a stream version created and released. Pure.

Every function looks at one snapshot and says what to write, or refuses. The log calls them again on a newer snapshot
when another writer was faster, so N writers of one stream all come through, each with a position of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compactor.catalog.actions import DeltaAdded, StreamAction, StreamVersionCreated, StreamVersionReleased
from compactor.catalog.delta_files import DeltaFiles
from compactor.catalog.snapshot import SourceStream, StreamSnapshot
from compactor.errors import Invalid
from compactor.names import LifecycleState, Operation

POSITION_MIN, POSITION_MAX = -(2**63) + 2, 2**63 - 1
"""The two least numbers of 64 bits mean something else where the index is folded (kernels/survivors.py)."""


@dataclass(frozen=True)
class DeltaRequest:
    """What a writer asks for, but for the rows.

    position        None: the writer's clock in ms, or the last position + 1 if that is greater
    delta_id        what tells a repeated append from a new one
    stream_version  None: the active one
    """

    operation: Operation
    position: int | None
    delta_id: str
    stream_version: int | None

    def __post_init__(self) -> None:
        if self.position is not None and not POSITION_MIN <= self.position <= POSITION_MAX:
            raise Invalid(f"position {self.position} does not fit into 64 bits: use {POSITION_MIN} to {POSITION_MAX}")
        if not self.delta_id:
            raise Invalid("delta_id is empty: leave it out, or give every delta an id of its own")


def find_delta(snapshot: StreamSnapshot, request: DeltaRequest) -> DeltaAdded | None:
    """The delta with the request's id, if it was added before.

    A request that names no stream version is looked for in all: the active one may have changed since the first try.
    """
    for stream in snapshot.sources.values():
        if request.stream_version in (None, stream.stream_version):
            for delta in stream.deltas:
                if delta.delta_id == request.delta_id:
                    return delta
    return None


def check_same_delta(standing: DeltaAdded, request: DeltaRequest, content_digest: str) -> None:
    """Raises `Invalid` unless the request repeats the standing delta in everything it says."""
    differences = []
    if standing.content_digest != content_digest:
        differences.append("other content")
    if standing.operation != request.operation:
        differences.append(f"operation {standing.operation}, not {request.operation}")
    if request.position not in (None, standing.position):
        differences.append(f"position {standing.position}, not {request.position}")
    if differences:
        raise Invalid(
            f"delta id {request.delta_id!r} was already used, with {' and '.join(differences)}: "
            "give a new delta a new id"
        )


def check_request(snapshot: StreamSnapshot, request: DeltaRequest) -> None:
    """Raises `Invalid` if no delta could be added so. For before the files are written; `add_delta` checks again."""
    stream = _target(snapshot, request)
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
    """The actions that add the delta; none if it stands already.

    The first delta of a partition stream brings its first stream version along, active, in the same entry.
    """
    standing = find_delta(snapshot, request)
    if standing is not None:
        check_same_delta(standing, request, delta_files.content_digest)
        return []
    check_request(snapshot, request)
    stream = _target(snapshot, request)
    created: list[StreamAction] = []
    if stream is None:
        stream = SourceStream(stream_version=1, state=LifecycleState.ACTIVE)
        created.append(StreamVersionCreated(stream_version=1, state=LifecycleState.ACTIVE))
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
        ),
    ]


def create_stream_version(snapshot: StreamSnapshot, state: LifecycleState) -> Sequence[StreamAction]:
    """The next stream version; `active` makes it the one that writers and compactions take, at once."""
    if state is LifecycleState.DEPRECATED:
        raise Invalid("a stream version cannot begin as deprecated: create it unreleased or active")
    number = max(snapshot.sources, default=0) + 1
    created = StreamVersionCreated(stream_version=number, state=LifecycleState.UNRELEASED)
    return [created] if state is LifecycleState.UNRELEASED else [created, *_release(number)]


def release_stream_version(snapshot: StreamSnapshot, stream_version: int) -> Sequence[StreamAction]:
    """Make an unreleased version the active one; nothing to do if it is."""
    stream = _named(snapshot, stream_version)
    if stream.state is LifecycleState.DEPRECATED:
        raise Invalid(f"stream version {stream_version} is deprecated and cannot come back: create a new version")
    return [] if stream.state is LifecycleState.ACTIVE else _release(stream_version)


def _release(stream_version: int) -> list[StreamAction]:
    return [StreamVersionReleased(stream_version=stream_version)]


def _target(snapshot: StreamSnapshot, request: DeltaRequest) -> SourceStream | None:
    """The stream version that the delta goes to; None where it will be the first."""
    if request.stream_version is not None:
        stream = _named(snapshot, request.stream_version)
        if stream.state is LifecycleState.DEPRECATED:
            raise Invalid(f"stream version {request.stream_version} is deprecated: it takes no more deltas")
        return stream
    if snapshot.sources and snapshot.active is None:
        raise Invalid("no stream version is active: release one, or name the unreleased one to append to")
    return snapshot.active


def _named(snapshot: StreamSnapshot, stream_version: int) -> SourceStream:
    stream = snapshot.sources.get(stream_version)
    if stream is None:
        there_are = ", ".join(str(number) for number in snapshot.sources) or "none"
        raise Invalid(f"there is no stream version {stream_version} (there are: {there_are}): create it first")
    return stream
