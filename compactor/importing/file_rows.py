"""The rows of a file of another table format, as the table has them now: under its names, without the deleted ones.

A table says by a name or an id which column of a file is which of its own, at any depth; so columns may have been
renamed, added or dropped since a file was written.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from compactor.importing.source_table import Rewrite
from compactor.kernels.canonical import canonical_column
from compactor.kernels.digest import digest_keys
from compactor.model.errors import Invalid
from compactor.model.names import ContentType
from compactor.schemas.cast import cast_array
from compactor.storage.location import StoreLocation
from compactor.tabular import TabularFile, measure, read_batches

FIELD_ID = b"PARQUET:field_id"
"""The key of a column's id in a file, as Arrow has it."""

_NO_LONGER = "\0 dropped "
"""The beginning of the names that dropped columns get: no column of a table is named so."""

ROWS_AT_ONCE = 1 << 20
"""Rows of a file that are counted at a time."""

Bools = npt.NDArray[np.bool_]
Digests = npt.NDArray[np.void]
NO_DIGESTS: Digests = np.empty(0, "V20")
LiveRows = Callable[[StoreLocation, int, pa.RecordBatch], Bools]
"""bool (rows,): which rows of a batch are live, of the number of its first row in the file and its columns."""


@dataclass(frozen=True)
class TableColumns:
    """The columns of a table, and how it finds them in files.

    Attributes:
        keys: the names or ids by which a file may hold a column
        key_in_file: the one by which it does"""

    schema: pa.Schema
    keys: Callable[[pa.Field], Sequence[str]]
    key_in_file: Callable[[pa.Field], str]

    def named(self, held: pa.Schema) -> pa.Schema:
        """A file's schema with the table's names; dropped columns have names of their own."""
        return pa.schema(self._fields(list(held), list(self.schema)))

    def _fields(self, held: Sequence[pa.Field], wanted: Sequence[pa.Field]) -> list[pa.Field]:
        by_key = {key: each for each in wanted for key in self.keys(each)}
        key_in_file = self.key_in_file
        return [self._field(each, by_key.get(key_in_file(each))) for each in held]

    def _field(self, held: pa.Field, wanted: pa.Field | None) -> pa.Field:
        if wanted is None:
            return pa.field(f"{_NO_LONGER}{held.name}", held.type)
        return pa.field(wanted.name, self._type(held.type, wanted.type))

    def _type(self, held: pa.DataType, wanted: pa.DataType) -> pa.DataType:
        """What lists and maps hold is found by its place."""
        if pa.types.is_struct(held) and pa.types.is_struct(wanted):
            return pa.struct(self._fields(list(held), list(wanted)))
        if pa.types.is_map(held) and pa.types.is_map(wanted):
            return pa.map_(self._type(held.key_type, wanted.key_type), self._type(held.item_type, wanted.item_type))
        if _is_list(held) and _is_list(wanted):
            make: Callable[[pa.Field], pa.DataType] = pa.large_list if pa.types.is_large_list(held) else pa.list_
            return make(held.value_field.with_type(self._type(held.value_type, wanted.value_type)))
        return held


@dataclass(frozen=True)
class FileRows:
    """The rows of a Parquet file.

    Attributes:
        held: its schema
        named: the same with the table's names
        written: the columns of the rows that are written, of which the file may lack some
        constants: values of columns that it lacks; of others they are null
        live: None: every row is live
        live_by: the columns that `live` looks at"""

    uri: str
    held: pa.Schema
    named: pa.Schema
    written: pa.Schema
    constants: Mapping[str, pa.Scalar] = field(default_factory=dict)
    live: LiveRows | None = None
    live_by: tuple[str, ...] = ()

    def rewrite(self, deletes: Sequence[str]) -> Rewrite | None:
        """None: the file can stay as it is. `deletes`: what leaves rows of it out, in words.

        Raises `Invalid` for a file of which the table has no column: its rows would all be null.
        """
        if all(name.startswith(_NO_LONGER) for name in self.named.names):
            raise Invalid(f"{self.uri} has none of the table's columns, but {', '.join(self.held.names)}")
        why = (*deletes, *self._reasons())
        return Rewrite(why, self.written, self.read, self.count) if why else None

    def _reasons(self) -> Iterator[str]:
        pairs = list(zip(_paths(self.held), _paths(self.named), strict=True))
        dropped = [held for held, named in pairs if _NO_LONGER in named]
        renamed = [named for held, named in pairs if held != named and _NO_LONGER not in named]
        for names, what in ((dropped, "has columns that the table has not"), (renamed, "has other names for columns")):
            if names:
                more = f" and {len(names) - 1:,} more" if len(names) > 1 else ""
                yield f"{what}: {names[0]}{more}"
        if self.constants:
            yield f"lacks columns whose value is in the table's metadata: {', '.join(self.constants)}"

    def count(self, location: StoreLocation) -> int:
        """The number of live rows. Reads no more than the columns that say which are live."""
        if self.live_by:
            return sum(rows.num_rows for rows in self.read(location, ()))
        rows, live = measure(location, parquet(self.uri)).rows, self.live
        if live is None:
            return rows
        pieces = (
            live(location, first, pa.record_batch({"": pa.nulls(min(ROWS_AT_ONCE, rows - first))}))
            for first in range(0, rows, ROWS_AT_ONCE)
        )
        return sum(int(np.count_nonzero(each)) for each in pieces)

    def read(self, location: StoreLocation, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The live rows. `columns`: those to read, beside those that say which are live; None: all."""
        names = self.written.names if columns is None else dict.fromkeys((*columns, *self.live_by))
        written, row = pa.schema([self.written.field(name) for name in names]), 0
        held = [held for held, named in zip(self.held.names, self.named.names) if named in names]
        for batch in read_batches(location, parquet(self.uri), held or None):
            places = map(self.held.get_field_index, batch.schema.names)
            named = pa.record_batch(_Relabelled(batch, pa.schema([self.named.field(place) for place in places])))
            rows = pa.RecordBatch.from_arrays([self._column(named, each) for each in written], schema=written)
            yield rows if self.live is None else rows.filter(pa.array(self.live(location, row, rows)))
            row += batch.num_rows

    def _column(self, rows: pa.RecordBatch, wanted: pa.Field) -> pa.Array:
        at = rows.schema.get_field_index(wanted.name)
        if at >= 0:
            return cast_array(rows.column(at), wanted.type)
        constant = self.constants.get(wanted.name)
        return pa.nulls(rows.num_rows, wanted.type) if constant is None else pa.repeat(constant, rows.num_rows)


@dataclass(frozen=True)
class _Relabelled:
    """A batch under a schema of the same layout, whose names differ, at any depth."""

    batch: pa.RecordBatch
    schema: pa.Schema

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return self.schema.__arrow_c_schema__(), self.batch.__arrow_c_array__()[1]


def digests_of(rows: pa.RecordBatch, names: Sequence[str]) -> Digests:
    """V20 (rows,): equal where all columns are, nulls included."""
    table = pa.Table.from_batches([rows])
    found = digest_keys([canonical_column(name, table.column(name)) for name in names], table.num_rows)
    return np.ascontiguousarray(found).view(NO_DIGESTS.dtype).reshape(-1)


def parquet(uri: str) -> TabularFile:
    return TabularFile(uri, ContentType.PARQUET)


def bare_schema(schema: pa.Schema) -> pa.Schema:
    """Without the table's ids, and without large offsets, which only some libraries give to text and lists."""
    return pa.schema([pa.field(each.name, _bare_type(each.type)) for each in schema])


def _bare_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(each.name, _bare_type(each.type)) for each in kind])
    if pa.types.is_map(kind):
        return pa.map_(_bare_type(kind.key_type), _bare_type(kind.item_type))
    if _is_list(kind):
        return pa.list_(_bare_type(kind.value_type))
    return {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}.get(kind, kind)


def id_in_file(column: pa.Field) -> str:
    return str((column.metadata or {}).get(FIELD_ID, b"").decode())


def name_in_file(column: pa.Field) -> str:
    return str(column.name)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _paths(columns: Sequence[pa.Field] | pa.Schema | pa.DataType, above: str = "") -> Iterator[str]:
    """The dotted names of columns and of the fields in them, in a stable order."""
    for each in columns:
        path = f"{above}{each.name}"
        yield path
        yield from _paths_within(each.type, f"{path}.")


def _paths_within(kind: pa.DataType, above: str) -> Iterator[str]:
    if pa.types.is_struct(kind):
        yield from _paths(kind, above)
    elif pa.types.is_map(kind):
        yield from _paths_within(kind.key_type, above)
        yield from _paths_within(kind.item_type, above)
    elif _is_list(kind):
        yield from _paths_within(kind.value_type, above)
