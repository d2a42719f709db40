"""Finds the data files that nobody needs any more, and deletes them: those of attempts that were never committed, and
those that later rounds have replaced.

A file is garbage if both are true:

- the stream's log does not name it, neither now nor at any moment of the grace period;
- it was written before the grace period: a younger one may belong to a round or an append that is yet to be committed.

So the grace period must be longer than any attempt takes from its first file to its commit, and `scan(as_of=...)` can
look back as far as it reaches. Deltas stay as long as the log names them, which is for ever. Logs are not touched, nor
is any file whose name Lithify does not give.

Each stream's own log decides. A compacted file that somebody registered in place as a delta of another table is not
spared for that table's sake: append its rows instead, or copy the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import assert_never

from compactor.catalog.actions import (
    DeltaAdded,
    IndexRehashed,
    RoundCommitted,
    StreamAction,
    StreamVersionCreated,
    StreamVersionReleased,
)
from compactor.catalog.listing import encoded_names
from compactor.catalog.paths import (
    CompactedFilePath,
    DeletionVectorPath,
    DeltaFilePath,
    IndexFilePath,
    IndexPointersPath,
    TableFolder,
    decode_partition,
    parse,
)
from compactor.catalog.snapshot import StreamSnapshot
from compactor.catalog.stream import PartitionStream
from compactor.clock import Clock
from compactor.document import Document
from compactor.errors import Invalid
from compactor.object_store import ObjectEntry, ObjectStore
from compactor.tabular.writer import is_unfinished

GRACE_SECONDS = 7 * 24 * 3600
"""Longer than any attempt, and long enough to notice that a table was compacted wrongly and look at what it was."""


class GarbageFile(Document):
    """A file that can go. `key` is relative to the lake's root."""

    key: str
    size_bytes: int
    modified_at_ms: int


class StreamGarbage(Document):
    """What was found of one partition stream.

    kept_files   files that stay
    garbage      files that can go
    unknown      keys of files that Lithify has not named: they stay, whoever put them there
    """

    stream: str
    kept_files: int
    kept_bytes: int
    garbage: tuple[GarbageFile, ...]
    unknown: tuple[str, ...]

    @property
    def garbage_bytes(self) -> int:
        return sum(file.size_bytes for file in self.garbage)


def find_garbage(
    store: ObjectStore, table_id: str, clock: Clock, grace_seconds: float = GRACE_SECONDS
) -> Iterator[StreamGarbage]:
    """What can go, stream by stream; streams count for which somebody wrote data but no log entry."""
    if grace_seconds < 0:
        raise Invalid(f"a grace period of {grace_seconds} seconds is none: give 0 or more")
    since_ms = clock.now_ms() - int(grace_seconds * 1_000)
    folder = TableFolder(table_id)
    for name in encoded_names(store, f"{folder.key}/data/"):
        try:
            partition = decode_partition(name)
        except Invalid:
            continue  # no name that Lithify gives: somebody else's folder
        stream = PartitionStream.open(store, folder.stream(partition), clock)
        # Listed first, and the log read then: what is committed in between is seen in the log.
        files = list(store.list(f"{stream.folder.data}/"))
        yield _sort_out(stream, files, set(_named(stream, since_ms)), since_ms)


def delete_garbage(store: ObjectStore, garbage: StreamGarbage) -> None:
    """Deletes the files, one after the other. Cut off anywhere, it can be done again."""
    for file in garbage.garbage:
        store.delete(file.key)


def _sort_out(stream: PartitionStream, files: Iterable[ObjectEntry], named: set[str], since_ms: int) -> StreamGarbage:
    kept, garbage, unknown = [], [], []
    for file in files:
        if not _is_ours(file.key):
            unknown.append(file.key)
        elif file.key in named or file.modified_at_ms >= since_ms:
            kept.append(file)
        else:
            garbage.append(GarbageFile(key=file.key, size_bytes=file.size_bytes, modified_at_ms=file.modified_at_ms))
    return StreamGarbage(
        stream=str(stream),
        kept_files=len(kept),
        kept_bytes=sum(file.size_bytes for file in kept),
        garbage=tuple(garbage),
        unknown=tuple(unknown),
    )


_DATA_PATHS = (DeltaFilePath, CompactedFilePath, DeletionVectorPath, IndexFilePath, IndexPointersPath)


def _is_ours(key: str) -> bool:
    """Whether Lithify gave this name, to a data file or to one that a writer which died has not finished."""
    if is_unfinished(key):
        return True
    try:
        return isinstance(parse(key), _DATA_PATHS)
    except Invalid:
        return False


def _named(stream: PartitionStream, since_ms: int) -> Iterator[str]:
    """Keys of all files that the log has named at any moment since then."""
    root = f"{stream.location.root_uri}/"
    before = stream.log.entry_number_at(since_ms)
    paths = [_paths_of_snapshot(stream.load(as_of=before).state)] if before else []
    paths += [_paths_of_action(action) for entry in stream.log.entries(after=before) for action in entry.actions]
    for group in paths:
        # A file below the root may have been registered in place by its whole URI.
        yield from (path.removeprefix(root) for path in group)


def _paths_of_snapshot(snapshot: StreamSnapshot) -> list[str]:
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
        case StreamVersionCreated() | StreamVersionReleased():
            return []
        case _:
            assert_never(action)
