"""Names every object that may still contain the values of a key, with the time of its deletion. Writes nothing.

    data files      delta files and compacted files, live, replaced or never committed: their key columns are read
    index files     live or replaced: their digests are searched for the key's own
    log entries     with bounds of columns: a bound may be a value. Columns that are private beforehand have none
    checkpoints     of such entries
    published       commits and checkpoints of Delta Lake, and manifests of Apache Iceberg, with such bounds
    unfinished writes, and objects without one of Lithify's names: their content is not known

The *values of a key* are those of its key columns, and of the columns that the table declares private; of a table that
declares none, those of all columns. An unreadable object is reported, since it may contain the values, and so is a
bound that cannot be read as the key column's type. Deletion vectors, pointers, logs without bounds, and published
vectors, position deletes and versions contain numbers only.

The table, its source, and all that it is compacted into are searched. `lithify gc --delete` deletes after the time.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Self, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from compactor.catalog.actions import (
    DeltaAdded,
    DeltasTaken,
    StreamAction,
    StreamVersionCreated,
    data_files_of,
)
from compactor.catalog.keys import (
    CompactedFilePath,
    DeltaFilePath,
    OpenFilePath,
    TableFolder,
    is_open_file,
    partition_hash,
)
from compactor.catalog.snapshot import StreamSnapshot
from compactor.catalog.stream import PartitionStream
from compactor.catalog.tables import DeltaCatalog, Table
from compactor.index.deletion_vectors import read_dead_rows
from compactor.index.keys import IndexFilePath
from compactor.index.layout import TOMBSTONE_FILE_NUMBER
from compactor.index.packed_pointers import file_numbers_of
from compactor.kernels.canonical import canonical_column
from compactor.kernels.digest import digest_keys
from compactor.log.durable_log import Entry
from compactor.log.keys import EntryObject, ListsObject
from compactor.maintenance.named_files import DATA_KEYS, paths_of_snapshot
from compactor.maintenance.retirement import retention_of
from compactor.maintenance.searched_key import (
    KeyValues,
    SearchedKey,
    compacted_or_dropped,
    key_columns_of,
    key_schema_of,
    may_have,
    searched_key,
)
from compactor.model.clock import Clock
from compactor.model.document import Document
from compactor.model.errors import Corrupt, Invalid
from compactor.model.files import DataFile
from compactor.model.names import ContentType, PartitionValues
from compactor.planning.spec import Partition
from compactor.publishing.keys import IcebergFolder
from compactor.publishing.publication import published_bounds
from compactor.publishing.published_bounds import PublishedBounds, PublishedObject
from compactor.storage.keys import encode_partition, parse_any
from compactor.storage.object_store import ObjectEntry, ObjectStore, UnfinishedWrite
from compactor.tabular import TabularFile, read_batches, read_table

FoundT = TypeVar("FoundT")


class Holder(Document):
    """An object that may hold the key's values.

    Attributes:
        key: in the store; a URI for a file that was registered in place
        goes_at_ms: from this time on `lithify gc --delete` deletes it; None: not before the step in `how`"""

    table_id: str
    key: str
    kind: str
    why: str
    goes_at_ms: int | None
    how: str


class PrivacyProof(Document):
    """The result. If `holders` is empty, no object of the tables contains a value of the key.

    Attributes:
        partition: None: several
        columns: the searched columns; None: all columns"""

    partition: Partition | None
    tables: tuple[str, ...]
    columns: tuple[str, ...] | None
    searched_objects: int
    holders: tuple[Holder, ...]


@dataclass(frozen=True)
class _History:
    """A stream's log, at its end and at all earlier entries.

    Attributes:
        named: paths that it names at its end
        files: every data file that it ever named, by path
        unnamed_at_ms: when the log stopped naming a path
        unnamed_at: the entry that did
        added_at_ms: when a delta file was added"""

    snapshot: StreamSnapshot
    named: frozenset[str]
    unnamed_at_ms: Mapping[str, int]
    unnamed_at: Mapping[str, int]
    added_at_ms: Mapping[str, int]
    files: Mapping[str, DataFile]
    entries: tuple[Entry[StreamAction], ...]


_Found: TypeAlias = Mapping[int, npt.NDArray[np.int64]] | None
"""What an object has of keys, by their numbers, without those of which it has nothing; None: it cannot be read."""


def prove_partitions(
    lake: DeltaCatalog,
    table_id: str,
    partitions: Sequence[PartitionValues],
    keys_of: Callable[[pa.Schema], Sequence[KeyValues]],
    clock: Clock,
) -> list[tuple[KeyValues, PrivacyProof]]:
    """Each key, with its proof over all these partitions together. Every object is read once. A partition that has no
    rows takes the types of the first that has. Raises `Invalid` for keys with other columns than the table's, or with
    different ones.

    Args:
        keys_of: the keys in the types of these columns"""
    table = lake.table_even_dropped(table_id)
    searched = [(partition, _related(lake, table, partition)) for partition in partitions]
    found: dict[str, _TableObjects] = {}
    proofs: list[list[PrivacyProof]] = []
    for (partition, tables), schema in zip(searched, _schemas(searched), strict=True):
        for each in tables:
            if each.table_id not in found:
                found[each.table_id] = _TableObjects.of(lake, each, clock)
        keys = keys_of(schema)
        proofs.append(_prove(partition, [found[each.table_id] for each in tables], schema, keys, clock))
    of_tables = sum(each.count for each in found.values())
    return [(key, _together(of_key, of_tables)) for key, *of_key in zip(keys, *proofs, strict=True)]


def _schemas(searched: Sequence[tuple[PartitionValues, Sequence[Table]]]) -> list[pa.Schema]:
    """The key columns in each partition. Raises `Invalid` if they are known in none."""
    found: list[pa.Schema | None] = []
    for partition, tables in searched:
        try:
            found.append(key_schema_of(tables, partition))
        except Invalid as error:
            found.append(None)
            refused = error
    first = next((each for each in found if each is not None), None)
    if first is None:
        raise refused
    return [first if each is None else each for each in found]


@dataclass(frozen=True)
class _TableObjects:
    """What belongs to no partition of a table alone."""

    store: ObjectStore
    table: Table
    published: tuple[PublishedBounds, ...]
    published_objects: tuple[PublishedObject, ...]
    unfinished: tuple[UnfinishedWrite, ...]

    @classmethod
    def of(cls, lake: DeltaCatalog, table: Table, clock: Clock) -> Self:
        published, folder = published_bounds(lake.store, table, clock), f"{IcebergFolder(table.table_id).key}/"
        objects = tuple(found for each in published for found in each.objects())
        unfinished = (each for each in lake.store.unfinished() if each.name.startswith(folder) or "/" not in each.name)
        return cls(lake.store, table, published, objects, tuple(unfinished))

    @property
    def count(self) -> int:
        return len(self.published_objects) + len(self.unfinished)


def _prove(
    partition: PartitionValues,
    objects: Sequence[_TableObjects],
    schema: pa.Schema,
    keys: Sequence[KeyValues],
    clock: Clock,
) -> list[PrivacyProof]:
    """Without counting what belongs to whole tables."""
    tables = [each.table for each in objects]
    is_known = key_columns_of(tables, partition) is not None
    wanted = [searched_key(schema, key, is_known=is_known) for key in keys]
    if len({key.columns for key in wanted}) > 1:
        raise Invalid("the keys have different columns: give the same ones for each")
    private = sorted({name for table in tables for name in table.properties.private_columns})
    searches = [_StreamSearch(each, partition, wanted, private, clock) for each in objects]
    return [
        PrivacyProof(
            partition=dict(partition),
            tables=tuple(table.table_id for table in tables),
            columns=tuple(dict.fromkeys((*key.columns, *private))) if private else None,
            searched_objects=sum(search.searched for search in searches),
            holders=tuple(holder for search in searches for holder in search.holders(number)),
        )
        for number, key in enumerate(wanted)
    ]


def _together(proofs: Sequence[PrivacyProof], of_tables: int) -> PrivacyProof:
    """Of one key in all partitions. What belongs to a whole table is named once."""
    columns = [each.columns for each in proofs if each.columns is not None]
    return PrivacyProof(
        partition=proofs[0].partition if len(proofs) == 1 else None,
        tables=tuple(dict.fromkeys(table_id for proof in proofs for table_id in proof.tables)),
        columns=tuple(dict.fromkeys(name for each in columns for name in each))
        if len(columns) == len(proofs)
        else None,
        searched_objects=of_tables + sum(proof.searched_objects for proof in proofs),
        holders=tuple(dict.fromkeys(holder for proof in proofs for holder in proof.holders)),
    )


class _StreamSearch:
    """The search of one table's objects of a partition, for some keys. Objects are listed and read when it is made."""

    def __init__(
        self,
        of_table: _TableObjects,
        partition: PartitionValues,
        keys: Sequence[SearchedKey],
        private: Sequence[str],
        clock: Clock,
    ) -> None:
        store, table = of_table.store, of_table.table
        self._store = store
        self._table = table
        self._stream = table.stream(partition)
        self._keys = keys
        self._key = keys[0]
        self._private = private
        self._now_ms = clock.now_ms()
        properties = table.properties
        self._grace_ms = properties.grace_seconds * 1_000
        self._kept_ms = max(properties.retention_seconds or 0, properties.grace_seconds) * 1_000
        # Listed before the log is read, so that the log has every commit of a listed file.
        folder = TableFolder(table.table_id)
        open_files = f"{folder.open_files}/{partition_hash(self._stream.partition)}/"
        self._objects = [*store.list(f"{self._stream.folder.data}/"), *store.list(open_files)]
        self._of_table = of_table
        fresh = PartitionStream.open(store, self._stream.folder, clock)
        self._history = _history(self._stream, fresh)
        prefixes = (f"{self._stream.folder.data}/", open_files)
        self._unfinished_writes = [write for write in self._store.unfinished() if write.name.startswith(prefixes)]
        self._log_listing = list(self._store.list(f"{self._stream.folder.log}/"))
        self._found = {entry.key: self._search(entry) for entry in self._objects}
        self._found_outside = dict(self._search_outside())

    @property
    def searched(self) -> int:
        entries = [entry.number for entry in self._history.entries]
        checkpoints = sum(_checkpoint_number(entry.key) is not None for entry in self._log_listing)
        parts = (self._objects, self._found_outside, self._unfinished_writes, entries)
        return sum(map(len, parts)) + checkpoints

    def holders(self, number: int) -> Iterator[Holder]:
        """Of the key of this number."""
        self._key = self._keys[number]
        for entry in self._objects:
            yield from self._data_object(entry, number)
        yield from self._outside(number)
        yield from self._unfinished()
        yield from self._log_objects()
        yield from self._published_objects()

    # -- data files and index files

    def _search(self, entry: ObjectEntry) -> _Found:
        """Reads one object. What has no rows and no digests has nothing of any key."""
        path, uri = parse_any(entry.key, DATA_KEYS), self._stream.uri_of(entry.key)
        match path:
            case DeltaFilePath() | CompactedFilePath() | OpenFilePath():
                content_type = ContentType.PARQUET if isinstance(path, OpenFilePath) else path.content_type
                return _readable(lambda: _rows_of_keys(self._stream, TabularFile(uri, content_type), self._keys))
            case IndexFilePath():
                return _readable(lambda: _file_numbers_of_keys(self._stream, uri, self._keys))
            case _:
                return {}

    def _data_object(self, entry: ObjectEntry, number: int) -> Iterator[Holder]:
        path, found = parse_any(entry.key, DATA_KEYS), self._found[entry.key]
        match path:
            case None:
                why = "it has none of Lithify's names"
                yield self._holder(entry.key, "unknown object", why, None, "delete it by hand")
            case DeltaFilePath() | CompactedFilePath() | OpenFilePath() | IndexFilePath():
                if found is None or number in found:
                    yield self._data_holder(entry, _kind(path), None if found is None else found[number])
            case _:
                return

    def _data_holder(self, entry: ObjectEntry, kind: str, rows: npt.NDArray[np.int64] | None) -> Holder:
        history = self._history
        unreadable = ", or other values: it cannot be read" if rows is None else ""
        if entry.key in history.named:
            why, at_ms, how = self._live(entry.key, kind, rows)
            return self._holder(entry.key, kind, why + unreadable, at_ms, how)
        unnamed_at_ms = history.unnamed_at_ms.get(entry.key)
        if unnamed_at_ms is None:
            at_ms = entry.modified_at_ms + self._grace_ms
            return self._holder(entry.key, kind, f"no entry names it{unreadable}", at_ms, self._by_gc(at_ms))
        shown_until_ms = self._shown_until_ms(entry.key)
        if shown_until_ms is None and self._table.definition.dropped_at_ms is None:
            why = "it is replaced, but the published table still names it"
            how = f"`lithify publish {self._table.table_id}` removes it there; then gc deletes it"
            return self._holder(entry.key, kind, why + unreadable, None, how)
        at_ms = max(
            unnamed_at_ms + self._kept_ms,
            entry.modified_at_ms + self._grace_ms,
            shown_until_ms + self._grace_ms if shown_until_ms else 0,
        )
        state = "retired" if kind == "delta file" else "replaced"
        why = f"it is {state}, and readers of older snapshots may need it{unreadable}"
        return self._holder(entry.key, kind, why, at_ms, self._by_gc(at_ms))

    def _shown_until_ms(self, key: str) -> int | None:
        """When the last format left out the file; 0: no format shows it; None: one does."""
        if not is_open_file(key):
            return 0
        stream, unnamed_at = encode_partition(self._stream.partition), self._history.unnamed_at[key]
        found = [each.shown_until_ms(key, stream, unnamed_at) for each in self._of_table.published]
        times = [each for each in found if each is not None]
        return max(times) if len(times) == len(found) else None

    def _live(self, key: str, kind: str, rows: npt.NDArray[np.int64] | None) -> tuple[str, int | None, str]:
        """Why the object may contain the key, when it is deleted, and how."""
        table_id = self._table.table_id
        if kind == "delta file":
            return self._live_delta(key)
        if kind == "index file":
            if rows is not None and (rows == TOMBSTONE_FILE_NUMBER).all():
                how = "a round with a `tombstone_retention` that has passed forgets it; then gc deletes it"
                return "the index remembers by the key's digest that it is deleted, for late rows", None, how
            compacted = self._history.snapshot.compacted
            other_count = 1 if compacted is None else compacted.hash_bucket_count + 1
            rehash = f"`lithify rehash {table_id} --hash-bucket-count {other_count}`"
            how = f"rounds that bring many rows merge it, {rehash} at once; then gc deletes it"
            return "the live index has the key's digest", None, how
        if rows is not None and self._are_dead(key, rows):
            how = f"`lithify compact {table_id} --max-dead-row-share 0` rewrites it; then gc deletes it"
            return "it is live, and the key's row in it is dead", None, how
        return "it is live, and has the key's row", None, "append a delete of the key, and compact"

    def _are_dead(self, key: str, rows: npt.NDArray[np.int64]) -> bool:
        compacted, number = self._history.snapshot.compacted, self._history.files[key].file_number
        vectors = () if compacted is None else compacted.deletion_vectors
        dead = [read_dead_rows(self._stream.location, each) for each in vectors if each.file_number == number]
        return bool(dead) and bool(np.isin(rows, dead[0]).all())

    def _live_delta(self, key: str) -> tuple[str, int | None, str]:
        added_at_ms = self._history.added_at_ms[key]
        properties = self._table.properties
        retention_seconds = retention_of(properties.retention_seconds, properties.grace_seconds)
        retires_at_ms = max(self._now_ms, added_at_ms + int(retention_seconds * 1_000))
        goes_at_ms = retires_at_ms + self._kept_ms
        how = "once it is compacted, `lithify gc --delete` retires it, and another run after that deletes it"
        return "it belongs to a delta that is not retired", goes_at_ms, how

    def _search_outside(self) -> Iterator[tuple[str, _Found]]:
        """Files that were registered in place, by URI; without those that were deleted."""
        for path, file in self._history.files.items():
            if "://" not in path:
                continue
            try:
                yield path, _rows_of_keys(self._stream, TabularFile(path, file.content_type), self._keys)
            except Corrupt:
                yield path, {}  # it was deleted
            except Invalid:
                yield path, None

    def _outside(self, number: int) -> Iterator[Holder]:
        """Lithify never deletes files that were registered in place."""
        for path, found in self._found_outside.items():
            if found is None or number in found:
                how = "Lithify never deletes it: its owner must"
                yield self._holder(path, "registered file", "it is registered in place", None, how)

    def _unfinished(self) -> Iterator[Holder]:
        for write in (*self._unfinished_writes, *self._of_table.unfinished):
            at_ms = write.begun_at_ms + self._grace_ms
            yield self._holder(write.name, "unfinished write", "it was never finished", at_ms, self._by_gc(at_ms))

    # -- logs

    def _log_objects(self) -> Iterator[Holder]:
        first: int | None = None
        log = self._stream.folder.log
        beside = {each.key: each for each in self._log_listing if ListsObject.parse_or_none(each.key) is not None}
        for entry in self._history.entries:
            lists = beside.pop(ListsObject(log, entry.number, entry.entry_id).key, None)  # with all of its bounds
            why = self._bounds_in(entry)
            if why is not None:
                first = entry.number if first is None else first
                key = EntryObject(log, entry.number).key if lists is None else lists.key
                yield self._holder(key, "log entry", why, None, "never: an entry of a log is not deleted")
        for key, stray in beside.items():
            at_ms, why = stray.modified_at_ms + self._grace_ms, "it has lists of an entry that was not written"
            yield self._holder(key, "log entry", why, at_ms, self._by_gc(at_ms))
        if first is None:
            return
        for found in self._log_listing:
            number = _checkpoint_number(found.key)
            if number is not None and number >= first:
                how = "later checkpoints replace it, unless the same bounds are still live; then gc deletes it"
                yield self._holder(found.key, "checkpoint", "it may repeat an entry's bounds", None, how)

    def _published_objects(self) -> Iterator[Holder]:
        """Published metadata with bounds of this partition's files, which the log had when it named them."""
        telling = {path: frozenset(self._telling_columns(file)) for path, file in self._history.files.items()}
        for each in self._of_table.published_objects:
            if each.bounded is None:
                why = "it cannot be read, and may repeat an entry's bounds"
            elif any(columns & telling.get(path, frozenset()) for path, columns in each.bounded.items()):
                why = "it repeats an entry's bounds"
            else:
                continue
            at_ms = None if each.goes_from_ms is None else each.goes_from_ms + self._grace_ms
            how = each.how if at_ms is None else self._by_gc(at_ms)
            yield self._holder(each.key, "published metadata", why, at_ms, how)

    def _bounds_in(self, entry: Entry[StreamAction]) -> str | None:
        """Names a bound in the entry that may be a value of the key."""
        for action in entry.actions:
            for file in data_files_of(action):
                for name, what in self._telling_columns(file).items():
                    return f"a bound of column {name!r} {what}"
        return None

    def _telling_columns(self, file: DataFile) -> dict[str, str]:
        """The columns with a bound that may be a value of the key, and what it is."""
        found = {}
        for name, stats in file.columns.items():
            given = {bound for bound in (stats.min_value, stats.max_value) if bound is not None}
            if name in self._key.columns:
                has = {self._key.has(name, bound) for bound in given}
                if has & {True, None}:
                    found[name] = "is the key's value" if True in has else "cannot be read, and may be the key's value"
            elif given and (not self._private or name in self._private) and may_have(file, self._key):
                found[name] = "may be a value of the key's row"
        return found

    def _by_gc(self, at_ms: int) -> str:
        return "`lithify gc --delete` deletes it" + (" now" if at_ms <= self._now_ms else "")

    def _holder(self, key: str, kind: str, why: str, goes_at_ms: int | None, how: str) -> Holder:
        return Holder(table_id=self._table.table_id, key=key, kind=kind, why=why, goes_at_ms=goes_at_ms, how=how)


def _history(stream: PartitionStream, reread: PartitionStream) -> _History:
    """`reread`: the same stream without a cache, so that its folds are read in order."""
    entries = tuple(stream.log.entries())
    named: set[str] = set()
    unnamed_at_ms: dict[str, int] = {}
    unnamed_at: dict[str, int] = {}
    added_at_ms: dict[str, int] = {}
    files: dict[str, DataFile] = {}
    for entry in entries:
        for action in entry.actions:
            files |= {file.path: file for file in data_files_of(action)}
            if isinstance(action, DeltaAdded):
                added_at_ms |= {file.path: entry.at_ms for file in action.files}
        if all(isinstance(action, DeltaAdded | StreamVersionCreated | DeltasTaken) for action in entry.actions):
            named |= added_at_ms.keys() - unnamed_at_ms.keys()
            continue
        now = frozenset(paths_of_snapshot(reread.load(as_of=entry.number).state))
        unnamed_at_ms |= dict.fromkeys(named - now, entry.at_ms)
        unnamed_at |= dict.fromkeys(named - now, entry.number)
        named = set(now)
    return _History(stream.load().state, frozenset(named), unnamed_at_ms, unnamed_at, added_at_ms, files, entries)


def _related(lake: DeltaCatalog, table: Table, partition: PartitionValues) -> tuple[Table, ...]:
    """The table, and all tables connected with it by compactions, directly or not."""
    compacted_from: dict[str, str] = {}
    for each in _every_table(lake):
        if each.partition_keys == table.partition_keys:
            compacted = compacted_or_dropped(each.stream(partition))
            if compacted is not None:
                compacted_from[each.table_id] = compacted.source_table_id
    found, grown = {table.table_id}, True
    while grown:
        pairs = compacted_from.items()
        more = {end for pair in pairs for end in pair if found.intersection(pair)}
        grown = not more <= found
        found |= more
    return tuple(lake.table_even_dropped(table_id) for table_id in (table.table_id, *sorted(found - {table.table_id})))


def _every_table(lake: DeltaCatalog) -> Iterator[Table]:
    """Dropped tables too, as long as their log is there. A copied folder is no table."""
    for table_id in (*lake.tables(), *lake.dropped_tables()):
        with suppress(Invalid):
            yield lake.table_even_dropped(table_id)


def _kind(path: DeltaFilePath | CompactedFilePath | OpenFilePath | IndexFilePath) -> str:
    match path:
        case DeltaFilePath():
            return "delta file"
        case IndexFilePath():
            return "index file"
        case _:
            return "compacted file"


def _checkpoint_number(key: str) -> int | None:
    """The entry of a checkpoint's rows; None: it is another object of a log."""
    name = key.rpartition("/log/")[2].removeprefix("checkpoints/")
    return int(name[:20]) if name.endswith(".parquet") and name[:20].isdecimal() else None


def _rows_of_keys(
    stream: PartitionStream, file: TabularFile, keys: Sequence[SearchedKey]
) -> dict[int, npt.NDArray[np.int64]]:
    """Indices of the rows that have the keys, by the key's number. Raises `Invalid` if a key column is missing."""
    first_key, found = keys[0], dict[int, list[npt.NDArray[np.int64]]]()
    starts = np.array([key.digests[0, 0] for key in keys])
    first = 0
    for batch in read_batches(stream.location, file, first_key.columns, first_key.schema, own_pages=False):
        if set(batch.schema.names) != set(first_key.columns):
            raise Invalid(f"{file.uri} lacks a key column")
        columns = [canonical_column(name, pa.chunked_array([batch.column(name)])) for name in first_key.columns]
        digests = digest_keys(columns, batch.num_rows)
        maybe = np.flatnonzero(np.isin(digests[:, 0], starts))
        candidates = digests[maybe]
        for number in map(int, np.flatnonzero(np.isin(starts, candidates[:, 0]))):
            rows = maybe[(candidates == keys[number].digests).all(axis=1)]
            if len(rows):
                found.setdefault(number, []).append(rows + first)
        first += batch.num_rows
    return {number: np.concatenate(rows) for number, rows in found.items()}


def _file_numbers_of_keys(
    stream: PartitionStream, uri: str, keys: Sequence[SearchedKey]
) -> dict[int, npt.NDArray[np.int64]]:
    """Of the keys' index rows, by the key's number: where the row is, or that it is deleted."""
    rows = read_table(stream.location, TabularFile(uri, ContentType.FEATHER), ["digest", "file_number"])
    digests = rows.column("digest")
    wanted = pa.array([key.digest for key in keys], digests.type)
    held = rows.filter(pc.is_in(digests, value_set=wanted))
    found: dict[int, npt.NDArray[np.int64]] = {}
    for number, key in enumerate(keys) if held.num_rows else ():
        of_key = held.filter(pc.equal(held.column("digest"), pa.scalar(key.digest, digests.type)))
        if of_key.num_rows:
            found[number] = file_numbers_of(of_key.column("file_number").combine_chunks()).astype(np.int64)
    return found


def _readable(read: Callable[[], FoundT]) -> FoundT | None:
    """None: the object cannot be read."""
    with suppress(Invalid, Corrupt):
        return read()
    return None
