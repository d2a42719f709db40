"""A table of Apache Iceberg: the files of one snapshot of it, as PyIceberg reads its metadata.

A file stays where it is unless rows of it are deleted, or its columns have other names than the table's, or it has
columns that the table has not. Its rows are then read by the ids that the table gives to its columns. Position deletes
and equality deletes are applied here, the latter by the digests of their columns, as keys are compared everywhere:
PyIceberg reads no equality deletes. Partition fields become partition keys, derived ones with their transforms.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.exceptions import NoSuchTableError, ValidationError
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestEntry
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable
from pyiceberg.table.delete_file_index import DeleteFileIndex
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import IdentityTransform, VoidTransform
from pyiceberg.typedef import Record

from compactor.importing.file_rows import (
    NO_DIGESTS,
    Bools,
    Digests,
    FileRows,
    TableColumns,
    bare_schema,
    digests_of,
    id_in_file,
    name_in_file,
    parquet,
)
from compactor.importing.source_table import (
    METADATA_SUFFIX,
    OldFile,
    SourceTable,
    divided,
    is_metadata,
    partition_text,
    plain_uri,
    reading_table,
)
from compactor.model.errors import Invalid
from compactor.model.names import counted
from compactor.storage.concurrently import run_concurrently
from compactor.storage.location import StoreLocation
from compactor.storage.object_store import ObjectStore
from compactor.storage.opening import open_store, with_region
from compactor.tabular import read_batches, read_schema

_VERSION = re.compile(r"v(?P<number>\d+)(?:\.gz)?\.metadata\.json")
_REWRITE_IT = "rewrite it there first (rewrite_data_files, where deletes are concerned with delete-file-threshold 1)"
_DELETE_FILES_AT_ONCE = 64
"""Delete files whose content is kept while the files that they apply to are read."""

Int64s = npt.NDArray[np.int64]


def read_iceberg_table(location: StoreLocation, snapshot_id: int | None, null_value: str | None) -> SourceTable:
    """The files of a snapshot of the table at `location`: its folder, or its metadata file.

    Reads manifests, and the end of each data file; delete files are read with the rows.

    Args:
        snapshot_id: None: the current one
        null_value: what the partition of null values is called; None: it is refused

    Raises `Invalid` for a table that cannot be imported."""
    table = _open(location, location.root_uri if is_metadata(location) else _newest_metadata(open_store(location)))
    snapshot = table.snapshot_by_id(snapshot_id) if snapshot_id is not None else table.current_snapshot()
    if snapshot is None:
        of = "has no snapshot, so no rows" if snapshot_id is None else f"has no snapshot {snapshot_id}"
        raise Invalid(f"{location.root_uri} {of}")
    return _Reading(table, snapshot, location, null_value).source()


def _open(location: StoreLocation, metadata_uri: str) -> StaticTable:
    options: dict[str, str] = {}
    if location.is_remote:
        region, endpoint = with_region(location).region, location.endpoint_url
        options |= {} if region is None else {"s3.region": region}
        options |= {} if endpoint is None else {"s3.endpoint": endpoint}
    with reading_table(metadata_uri, "Apache Iceberg", NoSuchTableError, ValidationError, ValueError):
        return StaticTable.from_metadata(metadata_uri, options)


def _newest_metadata(store: ObjectStore) -> str:
    """The URI of the newest metadata file of the table at the store's root.

    Raises `Invalid` if only a catalog knows which is the newest: files that no commit names may be there.
    """
    names = [entry.key.rpartition("/")[2] for entry in store.list("metadata/")]
    found = [name for name in names if name.endswith(METADATA_SUFFIX)]
    numbers = {int(match["number"]): name for name in found if (match := _VERSION.fullmatch(name))}
    root_uri = store.location.root_uri
    if len(numbers) < len(found):
        raise Invalid(
            f"{root_uri} is a table of Apache Iceberg, and only its catalog knows which of its "
            f"{counted(len(found), 'metadata file')} is the current one: name that file, "
            f"{root_uri}/metadata/{max(found)} for one (Glue has it as the table's parameter metadata_location)"
        )
    return f"{root_uri}/metadata/{numbers[max(numbers)]}"


@dataclass(frozen=True)
class _Reading:
    """A snapshot that is being read."""

    table: StaticTable
    snapshot: Snapshot
    location: StoreLocation
    null_value: str | None

    def source(self) -> SourceTable:
        data, deletes = self._entries
        for entry in data:
            self._check(entry.data_file)
        keys = tuple(each.name for each in self._fields)
        files = run_concurrently(self.location, partial(self._file, deletes), data)
        placed = zip((self._values(entry.data_file) for entry in data), files, strict=True)
        root_uri = plain_uri(self.table.location()).rstrip("/")
        return SourceTable(
            root_uri,
            f"table of Apache Iceberg {root_uri} at snapshot {self.snapshot.snapshot_id}",
            keys,
            divided(keys, placed),
            partition_by=dict(self._derived()),
            version=self.snapshot.snapshot_id,
        )

    # ---------------------------------------------------------------------------------------------------- partitions

    @cached_property
    def _schema(self) -> Schema:
        """Of an older snapshot that of its time."""
        then = self.snapshot.schema_id
        is_old = self.snapshot != self.table.current_snapshot()
        return self.table.schemas()[then] if is_old and then is not None else self.table.schema()

    @cached_property
    def _fields(self) -> tuple[PartitionField, ...]:
        """Those of the current spec that divide rows: a field that was removed from a table of version 1 is void."""
        return tuple(each for each in self.table.spec().fields if not isinstance(each.transform, VoidTransform))

    def _derived(self) -> Iterator[tuple[str, str]]:
        for each in self._fields:
            column = self._column(each.source_id)
            if not isinstance(each.transform, IdentityTransform):
                yield each.name, f"{each.transform}({column})"
            elif each.name != column:
                yield each.name, f"identity({column})"

    def _column(self, field_id: int) -> str:
        found = self._schema.find_column_name(field_id)
        if found is None:
            raise Invalid(f"{self.location.root_uri} has no column any more with id {field_id}, by which it is divided")
        return found

    def _check(self, file: DataFile) -> None:
        """Raises `Invalid` for a data file that cannot be imported."""
        if file.file_format != FileFormat.PARQUET:
            raise Invalid(
                f"{file.file_path} is {file.file_format.value}, and of tables of Apache Iceberg only Parquet is read: "
                f"{_REWRITE_IT}"
            )
        if _division(self.table.specs()[file.spec_id]) != _division(self.table.spec()):
            raise Invalid(
                f"{file.file_path} is of partition spec {file.spec_id}, by which the table is no longer divided: "
                f"{_REWRITE_IT}"
            )

    def _values(self, file: DataFile) -> tuple[str, ...]:
        """The texts of the file's partition."""
        spec, texts = self.table.specs()[file.spec_id], list[str]()
        for each in self._fields:
            at = next(at for at, other in enumerate(spec.fields) if other.name == each.name)
            value = file.partition[at]
            kind = self._schema.find_type(each.source_id)
            text = None if value is None else each.transform.to_human_string(kind, value)
            texts.append(
                partition_text(each.name, text.lower() if isinstance(value, bool) and text else text, self.null_value)
            )
        return tuple(texts)

    # --------------------------------------------------------------------------------------------------------- files

    @cached_property
    def _entries(self) -> tuple[list[ManifestEntry], _Deletes]:
        """The data files, the oldest first, and what deletes rows of them."""
        data, deletes = list[ManifestEntry](), _Deletes(self.location.root_uri, self._schema, self._columns)
        with reading_table(self.location.root_uri, "Apache Iceberg", ValueError):
            manifests = self.snapshot.manifests(self.table.io)
            entries = [entry for each in manifests for entry in each.fetch_manifest_entry(self.table.io)]
        for entry in entries:
            if entry.data_file.content == DataFileContent.DATA:
                data.append(entry)
            else:
                deletes.add(entry, is_global=not self.table.specs()[entry.data_file.spec_id].fields)
        return sorted(data, key=lambda each: (each.sequence_number or 0, each.data_file.file_path)), deletes

    def _file(self, deletes: _Deletes, entry: ManifestEntry) -> OldFile:
        file, of_file = entry.data_file, deletes.of(entry)
        uri = plain_uri(file.file_path)
        held = read_schema(self.location, parquet(uri))
        constants = dict(self._constants(file, held))
        live = of_file.live if of_file.reasons else None
        rows = FileRows(uri, held, self._columns.named(held), self._columns.written, constants, live, of_file.live_by)
        return OldFile(uri, file.file_size_in_bytes, rows.rewrite(of_file.reasons))

    @cached_property
    def _columns(self) -> _Columns:
        mapping = self.table.name_mapping()
        names: dict[str, Sequence[str]] = {}
        fields = list(mapping.root) if mapping is not None else []
        while fields:
            each = fields.pop()
            if each.field_id is not None:
                names[str(each.field_id)] = each.names
            fields += each.fields
        return _Columns(schema_to_pyarrow(self._schema), names)

    def _constants(self, file: DataFile, held: pa.Schema) -> Iterator[tuple[str, pa.Scalar]]:
        """The values of columns that the file lacks: of a partition, or what a column was added with."""
        there = set(self._columns.named(held).names)
        spec = self.table.specs()[file.spec_id]
        for column in self._schema.fields:
            if column.name in there:
                continue
            value = column.initial_default
            for at, each in enumerate(spec.fields):
                if each.source_id == column.field_id and isinstance(each.transform, IdentityTransform):
                    value = file.partition[at]
            if value is not None:
                yield column.name, pa.scalar(value, self._columns.written.field(column.name).type)


def _division(spec: PartitionSpec) -> list[tuple[int, str, str]]:
    fields = (each for each in spec.fields if not isinstance(each.transform, VoidTransform))
    return [(each.source_id, str(each.transform), each.name) for each in fields]


@dataclass(frozen=True)
class _Columns:
    """The table's columns. `names`: by id, those that files without ids have for a column."""

    schema: pa.Schema
    names: Mapping[str, Sequence[str]]

    @cached_property
    def written(self) -> pa.Schema:
        return bare_schema(self.schema)

    def named(self, held: pa.Schema) -> pa.Schema:
        """See `TableColumns`. Raises `Invalid` for a file whose columns cannot be told."""
        if any(id_in_file(each) for each in held):
            return TableColumns(self.schema, lambda column: (id_in_file(column),), id_in_file).named(held)
        if not self.names:
            raise Invalid(
                f"the columns {', '.join(held.names)} of a file have no ids, and the table has no name mapping "
                "(schema.name-mapping.default), so that nothing tells which of the table's they are"
            )
        return TableColumns(self.schema, lambda column: self.names.get(id_in_file(column), ()), name_in_file).named(
            held
        )


# ------------------------------------------------------------------------------------------------------------- deletes


@dataclass(frozen=True)
class _EqualityDeletes:
    """A file of rows whose like are deleted in older files of a partition. `partition` None: of every one."""

    file: DataFile
    sequence_number: int
    partition: tuple[int, Record] | None

    def applies_to(self, entry: ManifestEntry) -> bool:
        file = entry.data_file
        is_there = self.partition is None or self.partition == (file.spec_id, file.partition)
        return is_there and self.sequence_number > (entry.sequence_number or 0)


class _Deletes:
    """The delete files of a snapshot. What they hold is kept while the files of a partition are read."""

    def __init__(self, root_uri: str, schema: Schema, columns: _Columns) -> None:
        self._root_uri, self._schema, self._columns = root_uri, schema, columns
        self._positions, self._equality = DeleteFileIndex(), list[_EqualityDeletes]()
        self.dead_rows = lru_cache(_DELETE_FILES_AT_ONCE)(self._dead_rows)
        self.digests = lru_cache(_DELETE_FILES_AT_ONCE)(self._digests)

    def add(self, entry: ManifestEntry, *, is_global: bool) -> None:
        """Raises `Invalid` for a file that cannot be applied."""
        file = entry.data_file
        if file.file_format != FileFormat.PARQUET:
            raise Invalid(
                f"{file.file_path}, a delete file, is {file.file_format.value}, and only Parquet is read: {_REWRITE_IT}"
            )
        if file.content == DataFileContent.POSITION_DELETES:
            self._positions.add_delete_file(entry, partition_key=file.partition)
        else:
            partition = None if is_global else (file.spec_id, file.partition)
            self._equality.append(_EqualityDeletes(file, entry.sequence_number or 0, partition))

    def of(self, entry: ManifestEntry) -> _FileDeletes:
        file = entry.data_file
        found = self._positions.for_data_file(entry.sequence_number or 0, file, partition_key=file.partition)
        equality = [each.file for each in self._equality if each.applies_to(entry)]
        return _FileDeletes(
            self,
            file.file_path,
            tuple(sorted(each.file_path for each in found)),
            tuple((each.file_path, self._names_of(each)) for each in equality),
        )

    def _names_of(self, file: DataFile) -> tuple[str, ...]:
        by_id = {each.field_id: each.name for each in self._schema.fields}
        names = [by_id.get(each) for each in file.equality_ids or ()]
        if not names or None in names:
            raise Invalid(
                f"{file.file_path} deletes rows by columns that {self._root_uri} has no more, or that are within "
                f"others: {_REWRITE_IT}"
            )
        return tuple(sorted(name for name in names if name is not None))

    def _dead_rows(self, location: StoreLocation, path: str) -> Mapping[str, Int64s]:
        """The rows that a file of position deletes names, by data file."""
        batches = list(read_batches(location, parquet(plain_uri(path)), ["file_path", "pos"]))
        if not batches:
            return {}
        rows = pa.Table.from_batches(batches).combine_chunks()
        files = rows["file_path"].combine_chunks().dictionary_encode()
        numbers, positions = files.indices.to_numpy(), rows["pos"].to_numpy()
        return {file: positions[numbers == number] for number, file in enumerate(files.dictionary.to_pylist())}

    def _digests(self, location: StoreLocation, path: str, names: tuple[str, ...]) -> Digests:
        """Of the values that a file of equality deletes has."""
        uri = plain_uri(path)
        held = read_schema(location, parquet(uri))
        written = pa.schema([self._columns.written.field(name) for name in names])
        rows = FileRows(uri, held, self._columns.named(held), written)
        found = [digests_of(batch, names) for batch in rows.read(location)]
        return np.unique(np.concatenate(found)) if found else NO_DIGESTS


@dataclass(frozen=True)
class _FileDeletes:
    """What deletes rows of a data file. `equality`: files, each with the columns whose values must be equal."""

    deletes: _Deletes
    path: str
    positions: tuple[str, ...]
    equality: tuple[tuple[str, tuple[str, ...]], ...]

    @property
    def reasons(self) -> tuple[str, ...]:
        kinds = ((len(self.positions), "position"), (len(self.equality), "equality"))
        found = [
            counted(number, f"file of {kind} deletes", f"files of {kind} deletes") for number, kind in kinds if number
        ]
        return (f"has rows that may be deleted by {' and '.join(found)}",) if found else ()

    @property
    def live_by(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for _, names in self.equality for name in names))

    def live(self, location: StoreLocation, first: int, rows: pa.RecordBatch) -> Bools:
        live = np.ones(rows.num_rows, np.bool_)
        for path in self.positions:
            dead = self.deletes.dead_rows(location, path).get(self.path)
            if dead is not None:
                live[dead[(dead >= first) & (dead < first + rows.num_rows)] - first] = False
        known: dict[tuple[str, ...], Digests] = {}
        for path, names in self.equality:
            if names not in known:
                known[names] = digests_of(rows, names)
            live &= ~np.isin(known[names], self.deletes.digests(location, path, names))
        return live
