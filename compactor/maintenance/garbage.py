"""Deletes data files of attempts that were never committed, and those that later rounds have replaced.

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
that the newest one does not need, and lists of entries that were not written, are, if they are older than the grace
period.

Only the stream's own log counts. A compacted file that was also registered in place as a delta of another table is
deleted all the same: append its rows instead, or copy the file.

A log that cannot be seen is no reason to delete: a folder may be restored, mounted or copied in the wrong order. Files
of a compaction without a log, and a log that lacks an entry, are `Corrupt`. Delta files without a log are garbage, as
an append leaves them that ends before its first entry, but only if another stream of the table has a log.

Several processes may collect the garbage of one lake at the same time, without a lock, which a killed process would
leave behind: what is garbage stays garbage, since its keys are never used again and no later entry names it, and to
delete it twice is no error. Retirement is decided by an entry of the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby

from compactor.catalog.actions import (
    DeltaAdded,
    DeltasTaken,
    IndexRehashed,
    RoundCommitted,
    SessionPlanAnnounced,
    SessionPlanEnded,
)
from compactor.catalog.definition import TableDefinition
from compactor.catalog.keys import (
    DeltaFilePath,
    NewsHint,
    OpenFilePath,
    StreamFolder,
    TableFolder,
    is_open_file,
    partition_hash,
)
from compactor.catalog.properties import GRACE_SECONDS
from compactor.catalog.snapshot import ReadPoint, StreamSnapshot
from compactor.catalog.stream import PartitionStream
from compactor.log.durable_log import LogState
from compactor.maintenance.named_files import (
    DATA_KEYS,
    FilesOfEarlierRounds,
    keeps_deltas,
    paths_of_action,
    paths_of_snapshot,
)
from compactor.model.clock import CLOCKS_DIFFER_MS, Clock
from compactor.model.document import Document
from compactor.model.errors import Corrupt, Invalid
from compactor.model.names import counted
from compactor.planning.spec import Partition
from compactor.publishing import keys as publishing_keys
from compactor.publishing.keys import (
    DeltaLogCheckpoint,
    DeltaLogCommit,
    DeltaVectorPath,
    IcebergDeletes,
    IcebergFolder,
    IcebergManifest,
    IcebergManifestList,
    IcebergMetadata,
)
from compactor.publishing.publication import PublishedFiles, published_files
from compactor.storage.concurrently import run_many
from compactor.storage.keys import decode_partition, encode_partition, parse_any
from compactor.storage.object_store import ObjectEntry, ObjectStore, UnfinishedWrite, decoded_names
from compactor.tabular.output_file import is_unfinished


class GarbageFile(Document):
    """A file that can be deleted. `key` is relative to the lake's root."""

    key: str
    size_bytes: int
    modified_at_ms: int


class StreamGarbage(Document):
    """The files of one partition stream.

    Attributes:
        kept_files: files that stay, without those of appends that began in the grace period: they are not looked at
        garbage: files that can be deleted, and objects of the log that are no entries
        unknown: keys of files without one of Lithify's names: they stay"""

    stream: str
    partition: Partition
    kept_files: int
    kept_bytes: int
    garbage: tuple[GarbageFile, ...]
    unknown: tuple[str, ...]

    @property
    def garbage_bytes(self) -> int:
        return sum(file.size_bytes for file in self.garbage)


STREAMS_AT_ONCE = 32
"""Streams of a remote lake that are searched at the same time: each takes some requests, one after the other."""

REQUESTS_AT_ONCE = 32
"""Requests that wait for answers together: a client of S3 keeps so many connections."""

NAMES_FIRST = 100
"""Old files up to which their names are looked at before the log: nothing is read for files that are not Lithify's."""

ENTRIES_TO_A_CHECKPOINT = 32
"""Entries after the retention's begin that are read, to fold the snapshot there from no earlier checkpoint."""

IDS_AHEAD_MS = 86_400_000
"""Time by which an append id may be ahead of this clock, and is still taken for one that begins with a time."""


def find_garbage(
    store: ObjectStore,
    table_id: str,
    clock: Clock,
    grace_seconds: float = GRACE_SECONDS,
    retention_seconds: float | None = None,
    before: Callable[[PartitionStream], None] = lambda _: None,
) -> Iterator[StreamGarbage]:
    """The garbage of each stream, also of those without a log entry. Raises `Corrupt` at one whose log lacks something.

    Args:
        retention_seconds: for which replaced files are kept; None: for the grace period
        before: is called with each stream that has a log before it is searched, by several threads at a time: what it
            reads of the log is not read again"""
    if grace_seconds < 0:
        raise Invalid(f"a grace period of {grace_seconds} seconds is none: give 0 or more")
    now_ms = clock.now_ms()
    since_ms = now_ms - int(grace_seconds * 1_000)
    named_since_ms = now_ms - int(max(grace_seconds, retention_seconds or 0.0) * 1_000)
    yield from _Search(store, TableFolder(table_id), clock, since_ms, named_since_ms, before).streams()


def find_unfinished(
    store: ObjectStore, clock: Clock, grace_seconds: float = GRACE_SECONDS
) -> tuple[UnfinishedWrite, ...]:
    """Writes below the lake's root that began before the grace period: their writers cannot be alive."""
    since_ms = clock.now_ms() - int(grace_seconds * 1_000)
    return tuple(write for write in store.unfinished() if write.begun_at_ms < since_ms)


def find_dropped_garbage(
    store: ObjectStore, definition: TableDefinition, clock: Clock, grace_seconds: float
) -> StreamGarbage:
    """Of a table that was dropped: all of its objects but logs and marks of what was dropped, published files and
    metadata too, once nobody can need them.

    A file of a table that was dropped before its grace period, and before its retention if that is longer, is garbage
    if it was written before the grace period too: an append that had opened the table may have written it later."""
    folder, dropped_at_ms = TableFolder(definition.table_id), definition.dropped_at_ms
    since_ms = clock.now_ms() - int(grace_seconds * 1_000)
    kept_seconds = max(grace_seconds, definition.properties.retention_seconds or 0)
    is_over = dropped_at_ms is not None and dropped_at_ms < clock.now_ms() - int(kept_seconds * 1_000)
    sorted_out = SortedOut(
        since_ms if is_over else 0, lambda key: is_unfinished(key) or parse_any(key, KEYS) is not None
    )
    for part in (f"{folder.key}/data", folder.open_files, IcebergFolder(definition.table_id).key, folder.news):
        for entry in store.list(f"{part}/"):
            sorted_out.add(entry, is_needed=False)
    return sorted_out.garbage(f"{definition.table_id}, dropped", {})


def delete_unfinished(store: ObjectStore, writes: Iterable[UnfinishedWrite]) -> None:
    for write in writes:
        store.give_up(write)


def delete_garbage(store: ObjectStore, garbage: StreamGarbage) -> dict[str, str]:
    """Deletes the files. Returns the reasons of those that could not be deleted, by key. May be called again."""
    return store.delete_many([file.key for file in garbage.garbage])


@dataclass(frozen=True)
class _Place:
    """A partition stream, and what was listed of its open files."""

    partition: dict[str, str]
    open_files: tuple[ObjectEntry, ...] = ()


class _Search:
    """One pass over the data of a table: each object is listed once.

    Attributes:
        since_ms: files that are younger stay
        named_since_ms: files that the log has named at any time since then stay"""

    def __init__(
        self,
        store: ObjectStore,
        folder: TableFolder,
        clock: Clock,
        since_ms: int,
        named_since_ms: int,
        before: Callable[[PartitionStream], None],
    ) -> None:
        self._now_ms = clock.now_ms()
        self._before = before
        self._store = store
        self._folder = folder
        self._clock = clock
        self._since_ms = since_ms
        self._named_since_ms = named_since_ms
        self._root = f"{store.location.root_uri}/"
        self._published = PublishedFiles()
        self._logged: set[str] = set()
        """Encoded partitions that have a log."""
        self._found: set[str] = set()
        """Encoded partitions that were looked at with their open files."""
        self._others: list[ObjectEntry] = []
        """Objects for other engines that belong to no stream."""
        self._entries_at_once = REQUESTS_AT_ONCE

    def streams(self) -> Iterator[StreamGarbage]:
        partitions = list(decoded_names(self._store, f"{self._folder.key}/data/", decode_partition))
        logged = list(decoded_names(self._store, f"{self._folder.streams}/", decode_partition))
        self._logged = set(map(encode_partition, logged))
        self._entries_at_once = REQUESTS_AT_ONCE // min(STREAMS_AT_ONCE, max(len(partitions), 1))
        is_published = self._read_published()
        if is_published:
            yield from self._each(self._with_open_files(logged))
        rest = [_Place(each) for each in partitions if encode_partition(each) not in self._found]
        with_data = self._found | {encode_partition(each) for each in partitions}
        rest += [_Place(each) for each in logged if encode_partition(each) not in with_data]
        yield from self._each(place for place in rest if self._has_log(place))
        # All of them are checked before any is given to be deleted.
        yield from list(self._each(place for place in rest if not self._has_log(place)))
        if is_published:
            yield _published_garbage(self._folder.table_id, self._others, self._published, self._since_ms)

    def _has_log(self, place: _Place) -> bool:
        return encode_partition(place.partition) in self._logged

    def _each(self, places: Iterable[_Place]) -> Iterator[StreamGarbage]:
        return run_many(self._store.location, self._stream, places, STREAMS_AT_ONCE)

    # -- published tables

    def _read_published(self) -> bool:
        """Whether the table has objects for other engines."""
        self._others = list(self._store.list(f"{IcebergFolder(self._folder.table_id).key}/"))
        if not self._others and next(iter(self._store.list(f"{self._folder.open_files}/")), None) is None:
            return False
        self._published = published_files(self._store, self._folder.table_id, self._clock, self._since_ms)
        return True

    def _with_open_files(self, partitions: Iterable[dict[str, str]]) -> Iterator[_Place]:
        """The streams that have open files, in the order of one listing of all of these."""
        by_hash = {partition_hash(partition): partition for partition in partitions}
        prefix = f"{self._folder.open_files}/"
        for name, group in groupby(
            self._store.list(prefix), lambda file: file.key.removeprefix(prefix).partition("/")[0]
        ):
            files, partition = tuple(group), by_hash.get(name)
            if partition is None:
                self._check_have_no_stream(name, files)
                self._others += files
            else:
                self._found.add(encode_partition(partition))
                yield _Place(partition, files)

    def _check_have_no_stream(self, name: str, files: Iterable[ObjectEntry]) -> None:
        """The log of a new stream may have come after the streams were listed: its files are younger then."""
        old = [file for file in files if file.modified_at_ms < self._since_ms and is_open_file(file.key)]
        if old:
            raise self._lost_log(f"{self._folder.open_files}/{name}", old, f"{self._folder.streams}/")

    # -- one stream

    def _stream(self, place: _Place) -> StreamGarbage:
        """The log is read before the files are listed, and to its end again before any of them is garbage."""
        stream = PartitionStream.open(self._store, self._folder.stream(place.partition), self._clock)
        if self._has_log(place):
            self._before(stream)
        known = stream.log.newest if stream.log.newest.entry_number else stream.log.load()
        stream.log.check_whole(known)
        live = set(self._keys(paths_of_snapshot(known.state)))
        sorted_out = SortedOut(self._since_ms, _is_data)
        for file in chain(self._listed(stream.folder), place.open_files):
            sorted_out.add(file, is_needed=file.key in live or file.key in self._published.paths)
        if len(sorted_out.old) < NAMES_FIRST:
            sorted_out.leave_unknown()
        if sorted_out.old:
            self._keep_needed(stream, sorted_out)
        unneeded = stream.log.unneeded_objects() if known.entry_number else ()
        of_log = [each for each in unneeded if each.modified_at_ms < self._since_ms]
        return sorted_out.garbage(str(stream), stream.partition, of_log)

    def _listed(self, folder: StreamFolder) -> Iterator[ObjectEntry]:
        """The files of a stream. Those of appends that began in the grace period, by their ids, are left out, unless
        there are append ids that do not begin with a time: these may stand anywhere."""
        listed = self._store.list(f"{folder.data}/")
        begin = DeltaFilePath.begin_of(folder, self._since_ms + CLOCKS_DIFFER_MS)
        end = DeltaFilePath.begin_of(folder, self._now_ms + IDS_AHEAD_MS)
        for file in listed:
            if begin <= file.key < end:
                rest = self._store.list(f"{folder.data}/", end)
                after = next(rest, None)
                if after is None or not after.key.startswith(DeltaFilePath.begin_of(folder)):
                    yield from chain([] if after is None else [after], rest)
                    return
                yield from chain([file], listed)
                return
            yield file

    def _keep_needed(self, stream: PartitionStream, sorted_out: SortedOut) -> None:
        if not stream.log.load().entry_number:
            sorted_out.leave_unknown()
            made = [file for file in sorted_out.old.values() if not _is_of_an_append(file.key)]
            if made:
                raise self._lost_log(stream.folder.data, made, f"{stream.folder.log}/")
            if not self._logged:
                sorted_out.keep(list(sorted_out.old))
            return
        for paths in self._paths_in_reach(stream, sorted_out):
            sorted_out.keep(self._keys(paths))
            if not sorted_out.old:
                return

    def _paths_in_reach(self, stream: PartitionStream, sorted_out: SortedOut) -> Iterator[Iterable[str]]:
        """What the log has named since the time, and at the entries that readers of the published table may see."""
        newest = stream.log.newest
        begin = stream.log.entry_number_at(self._named_since_ms, newest)
        first, last = self._published.entries.get(encode_partition(stream.partition), (0, 0))
        yield from self._paths_between(stream, begin, newest, sorted_out)
        if 0 < first < begin:
            yield from self._paths_between(stream, first, stream.load(as_of=min(last, begin)), sorted_out)

    def _paths_between(
        self, stream: PartitionStream, begin: int, end: LogState[StreamSnapshot], sorted_out: SortedOut
    ) -> Iterator[Iterable[str]]:
        """What is named at entry `begin`, at `end`, and by the entries between them that may name another old file.

        Where every delta of these entries is named at the end, only rounds and rehashes name others. Each of them began
        after the entry of the one before it, of which it has the read point (`catalog/transaction.py`): so did its
        files, but those that the one before it named. So none of them names a file that was written before the last
        round up to `begin`, and none of them is old after the first such entry that the store has since the grace
        period.
        """
        earlier = self._state_at(stream, begin)
        of_rounds = FilesOfEarlierRounds.of(earlier, end.state, sorted_out.old, self._root)
        yield paths_of_snapshot(earlier)
        yield paths_of_snapshot(end.state)
        keeps = keeps_deltas(earlier, end.state)
        if keeps and (ReadPoint.of(earlier) == ReadPoint.of(end.state) or sorted_out.is_all(of_rounds.has)):
            return
        young_ms = self._since_ms + CLOCKS_DIFFER_MS
        for entry in stream.log.entries_between(begin + 1, end.entry_number, self._entries_at_once):
            yield from map(paths_of_action, entry.actions)
            is_compacted = any(isinstance(action, RoundCommitted | IndexRehashed) for action in entry.actions)
            is_young = is_compacted and entry.at_ms >= young_ms and stream.log.stored_at_ms(entry.number) >= young_ms
            if keeps and (is_young or (is_compacted and sorted_out.is_all(of_rounds.has))):
                return

    def _state_at(self, stream: PartitionStream, begin: int) -> StreamSnapshot:
        """The state at an entry, or at a checkpoint soon after it, if only deltas were added in between: an earlier
        collection has left one (`retirement.py`)."""
        if not begin:
            return StreamSnapshot()
        later = stream.log.checkpoint_after(begin)
        if later is not None and later - begin <= ENTRIES_TO_A_CHECKPOINT:
            between = stream.log.entries_between(begin + 1, later, self._entries_at_once)
            if all(isinstance(action, _ONLY_ADDS) for entry in between for action in entry.actions):
                begin = later
        return stream.load(as_of=begin).state

    def _keys(self, paths: Iterable[str]) -> Iterator[str]:
        """A file below the root may have been registered in place by its absolute URI."""
        return (path.removeprefix(self._root) for path in paths)

    def _lost_log(self, folder: str, files: Sequence[ObjectEntry], log: str) -> Corrupt:
        return Corrupt(
            f"{self._root}{folder} has {counted(len(files), 'file')} of a compaction, {files[0].key} among them, and "
            f"there is no log for it in {self._root}{log}: nothing is deleted. If the log was lost, by a restore, a "
            f"mount or a copy, bring it back; if no compaction has ever committed there, compact into "
            f"{self._folder.table_id}, or delete the folder"
        )


class SortedOut:
    """The files of a stream by what becomes of them. `is_ours`: whether a key is one of Lithify's names.

    Attributes:
        old: those that may be garbage, by key
        unknown: those that have none of Lithify's names"""

    def __init__(self, since_ms: int, is_ours: Callable[[str], bool]) -> None:
        self._since_ms = since_ms
        self._is_ours = is_ours
        self.kept_files = 0
        self.kept_bytes = 0
        self.old: dict[str, ObjectEntry] = {}
        self.unknown: list[str] = []

    def add(self, file: ObjectEntry, *, is_needed: bool) -> None:
        if is_needed:
            self._keep(file)
        elif file.modified_at_ms < self._since_ms:
            self.old[file.key] = file
        elif self._is_ours(file.key):
            self._keep(file)
        else:
            self.unknown.append(file.key)

    def leave_unknown(self) -> None:
        """Files without one of Lithify's names are not `old` from now on."""
        for key in [key for key in self.old if not self._is_ours(key)]:
            del self.old[key]
            self.unknown.append(key)

    def keep(self, keys: Iterable[str]) -> None:
        """Those of these keys that are `old` are kept."""
        for key in keys:
            file = self.old.pop(key, None)
            if file is not None:
                self._keep(file)

    def is_all(self, is_garbage: Callable[[ObjectEntry], bool]) -> bool:
        return all(map(is_garbage, self.old.values()))

    def _keep(self, file: ObjectEntry) -> None:
        self.kept_files += 1
        self.kept_bytes += file.size_bytes

    def garbage(self, stream: str, partition: dict[str, str], of_log: Sequence[ObjectEntry] = ()) -> StreamGarbage:
        """What is `old` is garbage, and so are these objects of the log."""
        self.leave_unknown()
        return StreamGarbage(
            stream=stream,
            partition=partition,
            kept_files=self.kept_files,
            kept_bytes=self.kept_bytes,
            garbage=tuple(
                GarbageFile(key=each.key, size_bytes=each.size_bytes, modified_at_ms=each.modified_at_ms)
                for each in (*self.old.values(), *of_log)
            ),
            unknown=tuple(self.unknown),
        )


def _published_garbage(
    table_id: str, files: Iterable[ObjectEntry], published: PublishedFiles, since_ms: int
) -> StreamGarbage:
    """Vectors and metadata of Apache Iceberg that no version of the grace period names, and objects of Delta Lake's log
    below a checkpoint that is older than the grace period: no reader starts below it."""
    sorted_out = SortedOut(since_ms, lambda key: parse_any(key, KEYS) is not None)
    old = [DeltaLogCheckpoint.parse_or_none(file.key) for file in files if file.modified_at_ms < since_ms]
    checkpoint = max((each.version for each in old if each is not None), default=0)
    for file in files:
        path = parse_any(file.key, KEYS)
        if isinstance(path, OpenFilePath):
            continue
        is_needed = path is not None
        if isinstance(path, _KEPT_IF_NAMED):
            is_needed = file.key in published.paths
        elif isinstance(path, DeltaLogCommit | DeltaLogCheckpoint):
            is_needed = path.version >= checkpoint
        sorted_out.add(file, is_needed=is_needed)
    return sorted_out.garbage(f"{table_id}, published", {})


_KEPT_IF_NAMED = (DeltaVectorPath, IcebergMetadata, IcebergManifestList, IcebergManifest, IcebergDeletes)


KEYS = (*DATA_KEYS, NewsHint, *publishing_keys.KEYS)
"""Keys of all objects of a table but logs."""


def _is_data(key: str) -> bool:
    """Whether this is the name of a data file or of a temporary file of a dead writer."""
    return is_unfinished(key) or parse_any(key, DATA_KEYS) is not None


def _is_of_an_append(key: str) -> bool:
    return is_unfinished(key) or DeltaFilePath.parse_or_none(key) is not None


_ONLY_ADDS = (DeltaAdded, DeltasTaken, SessionPlanAnnounced, SessionPlanEnded)
