"""Casts columns and tables to a wider schema without changing any value."""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from compactor.model.arrow_types import decoded_type, stored_values
from compactor.model.errors import Corrupt, Invalid
from compactor.schemas.open_types import widens_to_open
from compactor.schemas.unify import (
    _text_for_nanoseconds,
    is_list,
    plain_schema,
    unify_schemas,
    unify_types,
    with_fields,
)


def conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table with exactly the columns of `schema`, in its order: missing ones null, the others widened.

    Raises `Invalid` if data would be lost: a column that `schema` does not have, a type that does not widen to the
    schema's, a value that the wider unit cannot hold.
    """
    if table.schema == schema:
        return pa.Table.from_arrays(table.columns, schema=schema) if schema.names else table
    held = table.schema
    unknown = [name for name in held.names if schema.get_field_index(name) < 0]
    if unknown:
        raise Invalid(f"column {unknown[0]!r} is not part of the schema ({', '.join(schema.names)})")
    columns = []
    for field in schema:
        position = held.get_field_index(field.name)
        if position < 0:
            columns.append(pa.chunked_array([pa.nulls(table.num_rows, field.type)]))
            continue
        column = table.column(position)
        if not _widens(column.type, field.type):
            raise Invalid(f"column {field.name!r} is {column.type}, which does not widen to {field.type}")
        try:
            columns.append(cast_column(column, field.type))
        except pa.ArrowException as error:
            raise Invalid(f"column {field.name!r} does not fit {field.type}: {error}") from error
    if not columns:
        return table.select([])
    return pa.Table.from_arrays(columns, schema=schema)


def joined(tables: Sequence[tuple[str, pa.Table]]) -> pa.Table:
    """The rows of all of them, one after the other, with the columns and the types that hold all. Each has a name for
    the error. Raises `Invalid` if two types of a column have none in common."""
    schema = unify_schemas([(name, rows.schema) for name, rows in tables])
    return pa.concat_tables([conform(rows, schema) for _, rows in tables])


def _widens(narrow: pa.DataType, wide: pa.DataType) -> bool:
    """Whether every value of the one type has a form in the other, or, in an open file, those that a cast leaves."""
    if narrow == wide or unify_types(wide, narrow) == wide or widens_to_open(narrow, wide):
        return True
    # Plain values may always be encoded.
    return pa.types.is_dictionary(wide) and _widens(decoded_type(narrow), wide.value_type)


def plain_table(table: pa.Table) -> pa.Table:
    """See `plain_type`. Raises `Invalid` if a chunk's text exceeds the plain type (2 GiB)."""
    held = table.schema
    schema = plain_schema(held)
    if schema is held:
        return table
    try:
        columns = [cast_column(column, field.type) for column, field in zip(table.columns, schema, strict=True)]
    except pa.ArrowInvalid as error:
        raise Invalid(f"views of text or bytes do not fit plain types: {error}") from error
    return pa.Table.from_arrays(columns, schema=schema)


def cast_column(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """The same values as another type, inside nested values too. Raises `pa.ArrowInvalid` if a value would change."""
    if column.type == kind:
        return column
    return pa.chunked_array([cast_array(chunk, kind) for chunk in column.chunks], type=kind)


def cast_array(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """See `cast_column`. PyArrow's own cast does not add fields to all nested structs, and breaks list views."""
    held = array.type
    if held == kind:
        return array
    if pa.types.is_null(held):
        return pa.nulls(len(array), kind)
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, cast_array(_values(array), kind.storage_type))
    if pa.types.is_run_end_encoded(held):
        return cast_array(_values(array), kind)
    if pa.types.is_dictionary(held) or pa.types.is_dictionary(kind):
        return _cast_dictionary(_values(array), kind)
    if pa.types.is_nested(held) and pa.types.is_nested(kind):
        return _cast_nested(array, kind)
    return _cast_plain(_values(array), kind)


def _values(array: pa.Array) -> pa.Array:
    return stored_values(array, keep_dictionary=True)


def _cast_plain(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_string(array.type) and pa.types.is_time(kind):
        # PyArrow parses timestamps from text, but not times of day.
        return pc.binary_join_element_wise("1970-01-01", array, " ").cast(pa.timestamp(kind.unit)).cast(kind)
    return array.cast(kind)


def _cast_nested(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_struct(array.type) and pa.types.is_struct(kind):
        return _cast_struct(array, kind)
    if pa.types.is_map(array.type) and pa.types.is_map(kind):
        return _cast_map(array, kind)
    if is_list(array.type) and is_list(kind):
        return _cast_list(array, kind)
    return array.cast(kind)


def _cast_dictionary(array: pa.Array, kind: pa.DataType) -> pa.Array:
    held = array.type
    if not pa.types.is_dictionary(kind):
        return cast_array(stored_values(array), kind)
    if pa.types.is_dictionary(held):
        if not len(array.dictionary):
            return pa.nulls(len(array), kind)
        return pa.DictionaryArray.from_arrays(
            array.indices.cast(kind.index_type), cast_array(array.dictionary, kind.value_type), ordered=kind.ordered
        )
    encoded = cast_array(array, kind.value_type).dictionary_encode()
    return pa.DictionaryArray.from_arrays(
        encoded.indices.cast(kind.index_type), encoded.dictionary, ordered=kind.ordered
    )


def _cast_struct(array: pa.StructArray, kind: pa.DataType) -> pa.Array:
    children = []
    for field in kind:
        position = array.type.get_field_index(field.name)
        child = pa.nulls(len(array)) if position < 0 else array.field(position)
        children.append(cast_array(child, field.type))
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())


def _cast_list(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_fixed_size_list(kind):
        if not pa.types.is_fixed_size_list(array.type) or array.type.list_size != kind.list_size:
            return array.cast(kind)
        size = kind.list_size
        # Null lists also have values in this layout.
        values = array.values.slice(array.offset * size, len(array) * size)
        return pa.FixedSizeListArray.from_arrays(cast_array(values, kind.value_type), type=kind, mask=array.is_null())
    values = cast_array(array.flatten(), kind.value_type)
    offsets = _offsets(array)
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        make = pa.ListViewArray if pa.types.is_list_view(kind) else pa.LargeListViewArray
        width = pa.int32() if pa.types.is_list_view(kind) else pa.int64()
        starts = offsets.slice(0, len(array)).cast(width)
        return make.from_arrays(starts, _lengths(array).cast(width), values, type=kind, mask=array.is_null())
    if pa.types.is_large_list(kind):
        return pa.LargeListArray.from_arrays(offsets, values, type=kind, mask=array.is_null())
    return pa.ListArray.from_arrays(offsets.cast(pa.int32()), values, type=kind, mask=array.is_null())


def _cast_map(array: pa.MapArray, kind: pa.DataType) -> pa.Array:
    # A map has the layout of a list of its entries, and only lists can be flattened without the values under nulls.
    entries = pa.StructArray.from_arrays([array.keys, array.items], names=["key", "value"])
    validity, offsets = array.buffers()[:2]
    lists = pa.ListArray.from_buffers(
        pa.list_(entries.type), len(array), [validity, offsets], offset=array.offset, children=[entries]
    )
    flat = lists.flatten()
    return pa.MapArray.from_arrays(
        _offsets(lists).cast(pa.int32()),
        cast_array(flat.field(0), kind.key_type),
        cast_array(flat.field(1), kind.item_type),
        type=kind,
        mask=array.is_null(),
    )


def _lengths(array: pa.Array) -> pa.Array:
    """The length of each list; 0 for a null one, whose values `flatten` omits."""
    return pc.fill_null(pc.list_value_length(array).cast(pa.int64()), 0)


def _offsets(array: pa.Array) -> pa.Array:
    return pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(_lengths(array))])


def python_rows(table: pa.Table, *, replaces_bytes: bool = False) -> list[dict[str, object]]:
    """The rows as Python values. A column of a precision that Python lacks (nanoseconds) becomes text.

    Raises `Corrupt` for text that is not UTF-8, unless its bytes are to be replaced. Only registered files may hold it:
    `append` refuses it elsewhere.
    """
    columns = [
        _python_values(column, name, replaces_bytes=replaces_bytes)
        for name, column in zip(table.column_names, table.columns, strict=True)
    ]
    return [dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def _python_values(column: pa.ChunkedArray, name: str, *, replaces_bytes: bool) -> list[object]:
    try:
        values: list[object] = column.to_pylist()
    except UnicodeDecodeError as error:
        if replaces_bytes:
            readable = _bytes_for_text(_text_for_nanoseconds(column.type))
            return [_with_text(each) for each in cast_column(column, readable).to_pylist()]
        raise Corrupt(
            f"column {name!r} holds text that is not UTF-8 ({error}), as its writer stored it: append these rows anew; "
            "to read the bytes, cast the column of a scan's to_table() to binary"
        ) from error
    except ValueError:
        values = cast_column(column, _text_for_nanoseconds(column.type)).to_pylist()
    return values


def _bytes_for_text(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return pa.large_binary()
    return with_fields(kind, lambda field: field.with_type(_bytes_for_text(field.type)))


def _with_text(value: object) -> object:
    """A value with text in place of bytes, at any depth."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, list | tuple):
        return [_with_text(each) for each in value]
    return {name: _with_text(each) for name, each in value.items()} if isinstance(value, dict) else value
