"""Finds and deletes data files that are no longer needed: files of attempts that were never committed, and files that
later rounds have replaced.

A file is garbage if both are true:

- the stream's log does not name it, and did not at any time of the grace period, or of the table's retention if that is
  longer;
- it was written before the grace period: a younger one may belong to a round or an append that is not committed yet.

For a published table, files named by the published log entry are kept too, whatever its age, and so are the files of
all published versions that readers may have opened in the grace period. Published vectors and metadata that no such
version needs are garbage after the same time.

Unfinished writes of killed writers are not objects and belong to no stream: only their age counts (`find_unfinished`).

So the grace period must be longer than any attempt takes from its first file to its commit, and `scan(as_of=...)` can
go back as far as the grace period, or the retention if that is longer. Deltas stay as long as the log's snapshot has
them (`retirement.py`). Entries are never deleted, nor any file without one of Lithify's names; objects of checkpoints
are, if the newest checkpoint does not need them and they are older than the grace period.

Only the stream's own log counts. A compacted file that was also registered in place as a delta of another table is
deleted all the same: append its rows instead, or copy the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import assert_never

from compactor.catalog.actions import (
    DeltaAdded,
    DeltaRetracted,
    DeltasRetired,
    DeltasTaken,
    IndexRehashed,
    RoundCommitted,
    SessionPlanEnded,
    SessionPlanned,
    StreamAction,
    StreamVersionCreated,
    StreamVersionDeprecated,
    StreamVersionReleased,
)
from compactor.catalog.properties import GRACE_SECONDS
from compactor.catalog.snapshot import StreamSnapshot
from compactor.catalog.stream import PartitionStream
from compactor.model.clock import Clock
from compactor.model.document import Document
from compactor.model.errors import Invalid
from compactor.planning.spec import Partition
from compactor.publishing.publication import PublishedFiles, published_files
from compactor.storage.listing import decoded_names
from compactor.storage.object_store import ObjectEntry, ObjectStore, UnfinishedWrite
from compactor.storage.paths import (
    CompactedFilePath,
    DeletionVectorPath,
    DeltaFilePath,
    DeltaLogObject,
    DeltaVectorPath,
    IcebergDeletes,
    IcebergManifest,
    IcebergManifestList,
    IcebergMetadata,
    IndexFilePath,
    IndexPointersPath,
    ObjectPath,
    OpenFilePath,
    TableFolder,
    decode_partition,
    encode_partition,
    parse,
    partition_hash,
)
from compactor.tabular.output_file import is_unfinished


class GarbageFile(Document):
    """A file that can be deleted. `key` is relative to the lake's root."""

    key: str
    size_bytes: int
    modified_at_ms: int


class StreamGarbage(Document):
    """The files of one partition stream.

    kept_files   files that stay
    garbage      files that can be deleted, and objects of checkpoints
    unknown      keys of files without one of Lithify's names: they stay
    """

    stream: str
    partition: Partition
    kept_files: int
    kept_bytes: int
    garbage: tuple[GarbageFile, ...]
    unknown: tuple[str, ...]

    @property
    def garbage_bytes(self) -> int:
        return sum(file.size_bytes for file in self.garbage)


def find_garbage(
    store: ObjectStore,
    table_id: str,
    clock: Clock,
    grace_seconds: float = GRACE_SECONDS,
    retention_seconds: float | None = None,
) -> Iterator[StreamGarbage]:
    """The garbage, stream by stream, also of streams that have data but no log entry.

    retention_seconds  for which replaced files are kept; None: for the grace period
    """
    if grace_seconds < 0:
        raise Invalid(f"a grace period of {grace_seconds} seconds is none: give 0 or more")
    since_ms = clock.now_ms() - int(grace_seconds * 1_000)
    named_since_ms = since_ms - int(max(0.0, (retention_seconds or 0.0) - grace_seconds) * 1_000)
    folder = TableFolder(table_id)
    # Listed before any log is read, as below.
    open_files = list(store.list(f"{folder.open_files}/"))
    metadata = list(store.list(f"{folder.iceberg}/"))
    is_published = bool(open_files or metadata)
    published = published_files(store, table_id, clock, since_ms) if is_published else PublishedFiles()
    for partition in decoded_names(store, f"{folder.key}/data/", decode_partition):
        stream = PartitionStream.open(store, folder.stream(partition), clock)
        # Listed before the log is read, so that the log has every commit of a listed file.
        files = list(store.list(f"{stream.folder.data}/"))
        files += _open_files_of(partition, open_files)
        named = {*_named(stream, named_since_ms), *_published(stream, published), *published.paths}
        found = _sort_out(stream, files, named, since_ms)
        checkpoints = (_garbage(each) for each in stream.log.unneeded_checkpoints() if each.modified_at_ms < since_ms)
        yield found.model_copy(update={"garbage": (*found.garbage, *checkpoints)})
    if is_published:
        yield _published_garbage(table_id, [*open_files, *metadata], published, since_ms)


def find_unfinished(
    store: ObjectStore, clock: Clock, grace_seconds: float = GRACE_SECONDS
) -> tuple[UnfinishedWrite, ...]:
    """Writes below the lake's root that began before the grace period: their writers cannot be alive."""
    since_ms = clock.now_ms() - int(grace_seconds * 1_000)
    return tuple(write for write in store.unfinished() if write.begun_at_ms < since_ms)


def delete_unfinished(store: ObjectStore, writes: Iterable[UnfinishedWrite]) -> None:
    for write in writes:
        store.give_up(write)


def delete_garbage(store: ObjectStore, garbage: StreamGarbage) -> None:
    """Deletes the files, one after the other. After an interruption it can be called again."""
    for file in garbage.garbage:
        store.delete(file.key)


def _open_files_of(partition: dict[str, str], files: Iterable[ObjectEntry]) -> list[ObjectEntry]:
    hashed = partition_hash(partition)
    paths = [(file, _parsed(file.key)) for file in files]
    return [file for file, path in paths if isinstance(path, OpenFilePath) and path.partition_hash == hashed]


def _published_garbage(
    table_id: str, files: Iterable[ObjectEntry], published: PublishedFiles, since_ms: int
) -> StreamGarbage:
    """Vectors and metadata of Apache Iceberg that no version of the grace period names, and objects of Delta Lake's log
    below a checkpoint that is older than the grace period: no reader starts below it."""
    kept, garbage, unknown = [], [], []
    old = [(file, _parsed(file.key)) for file in files if file.modified_at_ms < since_ms]
    logged = [path for _, path in old if isinstance(path, DeltaLogObject) and path.kind == "checkpoint"]
    checkpoint = max((path.version or 0 for path in logged), default=0)
    for file in files:
        path = _parsed(file.key)
        if isinstance(path, OpenFilePath):
            continue
        if path is None:
            unknown.append(file.key)
        elif file.modified_at_ms < since_ms and (
            (isinstance(path, _KEPT_IF_NAMED) and file.key not in published.paths)
            or (isinstance(path, DeltaLogObject) and path.version is not None and path.version < checkpoint)
        ):
            garbage.append(_garbage(file))
        else:
            kept.append(file)
    return StreamGarbage(
        stream=f"{table_id}, published",
        partition={},
        kept_files=len(kept),
        kept_bytes=sum(file.size_bytes for file in kept),
        garbage=tuple(garbage),
        unknown=tuple(unknown),
    )


def _published(stream: PartitionStream, published: PublishedFiles) -> Iterator[str]:
    """The keys that the log names at the entries that readers may see."""
    first, last = published.entries.get(encode_partition(stream.partition), (0, 0))
    if not first:
        return
    yield from paths_of_snapshot(stream.load(as_of=first).state)
    for entry in stream.log.entries(after=first):
        if entry.number > last:
            return
        yield from (path for action in entry.actions for path in _paths_of_action(action))


_KEPT_IF_NAMED = (DeltaVectorPath, IcebergMetadata, IcebergManifestList, IcebergManifest, IcebergDeletes)


def _parsed(key: str) -> ObjectPath | None:
    try:
        return parse(key)
    except Invalid:
        return None


def _sort_out(stream: PartitionStream, files: Iterable[ObjectEntry], named: set[str], since_ms: int) -> StreamGarbage:
    kept, garbage, unknown = [], [], []
    for file in files:
        if not _is_ours(file.key):
            unknown.append(file.key)
        elif file.key in named or file.modified_at_ms >= since_ms:
            kept.append(file)
        else:
            garbage.append(_garbage(file))
    return StreamGarbage(
        stream=str(stream),
        partition=stream.partition,
        kept_files=len(kept),
        kept_bytes=sum(file.size_bytes for file in kept),
        garbage=tuple(garbage),
        unknown=tuple(unknown),
    )


def _garbage(entry: ObjectEntry) -> GarbageFile:
    return GarbageFile(key=entry.key, size_bytes=entry.size_bytes, modified_at_ms=entry.modified_at_ms)


_DATA_PATHS = (DeltaFilePath, CompactedFilePath, OpenFilePath, DeletionVectorPath, IndexFilePath, IndexPointersPath)


def _is_ours(key: str) -> bool:
    """Whether this is one of Lithify's names, of a data file or of a temporary file of a dead writer."""
    return is_unfinished(key) or isinstance(_parsed(key), _DATA_PATHS)


def _named(stream: PartitionStream, since_ms: int) -> Iterator[str]:
    """Keys of all files that the log has named at any time since then."""
    root = f"{stream.location.root_uri}/"
    before = stream.log.entry_number_at(since_ms)
    paths = [paths_of_snapshot(stream.load(as_of=before).state)] if before else []
    paths += [_paths_of_action(action) for entry in stream.log.entries(after=before) for action in entry.actions]
    for group in paths:
        # A file below the root may have been registered in place by its absolute URI.
        yield from (path.removeprefix(root) for path in group)


def paths_of_snapshot(snapshot: StreamSnapshot) -> list[str]:
    paths = [file.path for source in snapshot.sources.values() for delta in source.deltas for file in delta.files]
    if snapshot.compacted is not None:
        paths += [file.path for file in snapshot.compacted.files.values()]
        paths += [path for file in snapshot.compacted.index_files for path in file.paths]
        paths += [vector.path for vector in snapshot.compacted.deletion_vectors]
    return paths


def _paths_of_action(action: StreamAction) -> list[str]:
    match action:
        case DeltaAdded():
            return [file.path for file in action.files]
        case RoundCommitted():
            paths = [file.path for file in action.files_added]
            paths += [path for file in action.index_files for path in file.paths]
            return paths + [vector.path for vector in action.deletion_vectors]
        case IndexRehashed():
            return [path for file in action.index_files for path in file.paths]
        case StreamVersionCreated() | StreamVersionReleased() | StreamVersionDeprecated():
            return []
        case DeltaRetracted() | DeltasTaken() | DeltasRetired():
            return []
        case SessionPlanned() | SessionPlanEnded():
            return []
        case _:
            assert_never(action)
