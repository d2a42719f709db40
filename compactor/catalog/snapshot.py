"""The fold of a partition stream's log: what the stream is at one entry. Pure: values in, a value out.

One log holds both sides of a partition stream: the *source side* (deltas per stream version, appended by writers)
and the *compacted side* (the files and the index that the last committed round left). A table that is compacted into
another table has deltas and no compacted side; the other table has a compacted side and, usually, no deltas.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import assert_never

from compactor.catalog.actions import (
    DataFile,
    DeletionVector,
    DeltaAdded,
    IndexFile,
    IndexRehashed,
    RoundCommitted,
    SortKey,
    StreamAction,
    StreamVersionCreated,
    StreamVersionReleased,
    Watermark,
)
from compactor.errors import Corrupt
from compactor.names import LifecycleState


@dataclass(frozen=True)
class SourceStream:
    """One stream version's deltas, in position order."""

    stream_version: int
    state: LifecycleState
    deltas: tuple[DeltaAdded, ...] = ()

    @property
    def last_position(self) -> int | None:
        return self.deltas[-1].position if self.deltas else None


@dataclass(frozen=True)
class CompactedStream:
    """What the last committed round left, and what the next one starts from.

    files             live compacted files by file number
    deletion_vectors  which rows of them are dead, by file number
    next_file_number  above every file number ever used in this compacted stream version
    last_round        the completion that the next round reads
    """

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

    def has_more_dead_rows_than(self, max_dead_row_share: float) -> bool:
        """Whether a file's share of dead rows is above a bound."""
        return any(
            vector.rows > max_dead_row_share * self.files[vector.file_number].rows for vector in self.deletion_vectors
        )

    @property
    def bytes_at_rest(self) -> int:
        return sum(file.size_bytes for file in self.files.values())


@dataclass(frozen=True)
class StreamSnapshot:
    """A partition stream at one log entry. Entry number 0 is the empty log."""

    sources: Mapping[int, SourceStream] = field(default_factory=lambda: MappingProxyType({}))
    compacted: CompactedStream | None = None
    last_index_version: int = 0

    @property
    def active(self) -> SourceStream | None:
        """The latest active stream version."""
        versions = [stream for stream in self.sources.values() if stream.state is LifecycleState.ACTIVE]
        return max(versions, key=lambda stream: stream.stream_version, default=None)


def apply(snapshot: StreamSnapshot, action: StreamAction) -> StreamSnapshot:
    """The snapshot after one more action. Raises `Corrupt` where the action cannot follow: the log was not ours."""
    match action:
        case StreamVersionCreated():
            return _create_stream_version(snapshot, action)
        case StreamVersionReleased():
            return _release_stream_version(snapshot, action)
        case DeltaAdded():
            return _add_delta(snapshot, action)
        case RoundCommitted():
            return _commit_round(snapshot, action)
        case IndexRehashed():
            return _replace_index(snapshot, action)
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


def _add_delta(snapshot: StreamSnapshot, action: DeltaAdded) -> StreamSnapshot:
    stream = snapshot.sources.get(action.stream_version)
    if stream is None:
        raise Corrupt(
            f"delta {action.delta_id!r} is in stream version {action.stream_version}, which was never created"
        )
    if stream.last_position is not None and action.position <= stream.last_position:
        raise Corrupt(f"delta {action.delta_id!r} at {action.position} is not above position {stream.last_position}")
    grown = replace(stream, deltas=(*stream.deltas, action))
    return replace(snapshot, sources=MappingProxyType({**snapshot.sources, action.stream_version: grown}))


def _commit_round(snapshot: StreamSnapshot, action: RoundCommitted) -> StreamSnapshot:
    before = snapshot.compacted
    continues = before is not None and before.stream_version == action.compacted_stream_version
    files = dict(before.files) if before is not None and continues else {}
    vectors = {vector.file_number: vector for vector in before.deletion_vectors} if before and continues else {}
    next_file_number = before.next_file_number if before is not None and continues else 1
    for number in action.files_removed:
        if files.pop(number, None) is None:
            raise Corrupt(f"round {action.commit_id} removes compacted file {number}, which is not there")
        vectors.pop(number, None)
    for file in action.files_added:
        if file.file_number < next_file_number:
            raise Corrupt(f"round {action.commit_id} uses file number {file.file_number} again")
        files[file.file_number] = file
    for vector in action.deletion_vectors:
        if vector.file_number not in files:
            raise Corrupt(f"round {action.commit_id} has dead rows in file {vector.file_number}, which is not there")
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
    return replace(snapshot, compacted=compacted, last_index_version=action.index_version)


def _replace_index(snapshot: StreamSnapshot, action: IndexRehashed) -> StreamSnapshot:
    before = snapshot.compacted
    if before is None or before.index_version != action.from_index_version:
        raise Corrupt(
            f"rehash {action.commit_id} replaces index version {action.from_index_version}, which is not there"
        )
    compacted = replace(
        before,
        index_version=action.index_version,
        hash_bucket_count=action.hash_bucket_count,
        index_files=action.index_files,
    )
    return replace(snapshot, compacted=compacted, last_index_version=action.index_version)
