"""How schemas grow, and how a table is brought to a schema that grew (contract 2, "Schemas may grow").

A column that a file lacks is null; a new column is appended, in the order first seen; a type widens within its family
(integers, floats, decimals, text, bytes, times of one kind, lists, structs). Across families nothing is reconciled: an
int64 beside a float64 has no type that holds both exactly.

A dictionary is an encoding, not a kind of value: it is kept while every file that has the column has it, and its
indices are widened to int32 then, because the dictionaries of several files together may not fit a narrow index.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from compactor.errors import Invalid

_UNITS = ("s", "ms", "us", "ns")
_TEXT = (pa.string(), pa.large_string(), pa.string_view())
_BYTES = (pa.binary(), pa.large_binary(), pa.binary_view())
_FLOATS = (pa.float16(), pa.float32(), pa.float64())
_SIGNED = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}


def unify_schemas(named: Sequence[tuple[str, pa.Schema]]) -> pa.Schema:
    """One schema that holds the rows of all of them.

    `named` pairs each schema with the name of its file, for the error. Metadata of a field, and of the schema, is
    that of the first that has it. Raises `Invalid` naming both files, the column and both types.
    """
    fields: dict[str, pa.Field] = {}
    last_file: dict[str, str] = {}
    present: Counter[str] = Counter()
    for file, schema in named:
        refuse_repeated_columns(file, schema)
        present.update(schema.names)
        for field in schema:
            before = fields.get(field.name)
            if before is None:
                fields[field.name] = field
                last_file[field.name] = file
                continue
            unified = unify_types(before.type, field.type)
            if unified is None:
                raise Invalid(
                    f"column {field.name!r} is {before.type} in {last_file[field.name]} but {field.type} in {file}: "
                    "no type holds both exactly; write them with the same type"
                )
            if unified != before.type:
                last_file[field.name] = file
            fields[field.name] = before.with_type(unified).with_nullable(before.nullable or field.nullable)
    complete = [field if present[name] == len(named) else field.with_nullable(True) for name, field in fields.items()]
    return pa.schema(complete, metadata=named[0][1].metadata if named else None)


def refuse_repeated_columns(file: str, schema: pa.Schema) -> None:
    """Raises `Invalid` where two columns of `file` have the same name."""
    repeated = [name for name, count in Counter(schema.names).items() if count > 1]
    if repeated:
        raise Invalid(f"{file} has more than one column named {repeated[0]!r}: column names must be unique")


def conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table with exactly the columns of `schema`, in its order: missing ones null, the others widened.

    Raises `Invalid` where that would lose something: a column that `schema` does not have, a type that does not widen
    to the schema's, a value that the wider unit cannot hold.
    """
    if table.schema == schema:
        return pa.Table.from_arrays(table.columns, schema=schema) if schema.names else table
    unknown = [name for name in table.schema.names if name not in schema.names]
    if unknown:
        raise Invalid(f"column {unknown[0]!r} is not part of the schema ({', '.join(schema.names)})")
    columns = []
    for field in schema:
        position = table.schema.get_field_index(field.name)
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


def _widens(narrow: pa.DataType, wide: pa.DataType) -> bool:
    if narrow == wide or unify_types(wide, narrow) == wide:
        return True
    # Plain values may always be encoded.
    return pa.types.is_dictionary(wide) and _widens(_value_type(narrow), wide.value_type)


# ------------------------------------------------------------------------------------------------------ types


def unify_types(first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
    """The narrowest type that holds the values of both; None where there is none. Of two time zones, the first."""
    if first == second and not pa.types.is_nested(first):
        # Two files with the same dictionary type may have other dictionaries.
        return _unify_dictionaries(first, second) if pa.types.is_dictionary(first) else first
    if pa.types.is_null(second):
        return first
    if pa.types.is_null(first):
        return second
    for unify in _FAMILIES:
        unified = unify(first, second)
        if unified is not None:
            return unified
    return first if first == second else None


def _value_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return kind.value_type
    return kind


def _unify_dictionaries(first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
    if not (_value_type(first) is not first or _value_type(second) is not second):
        return None
    both = pa.types.is_dictionary(first) and pa.types.is_dictionary(second)
    if both and first.value_type == second.value_type:
        narrow = all(kind.index_type.bit_width <= 32 and kind.index_type != pa.uint32() for kind in (first, second))
        return pa.dictionary(
            pa.int32() if narrow else pa.int64(), first.value_type, ordered=first.ordered and second.ordered
        )
    return unify_types(_value_type(first), _value_type(second))


def _unify_integers(first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
    if not (pa.types.is_integer(first) and pa.types.is_integer(second)):
        return None
    if pa.types.is_signed_integer(first) == pa.types.is_signed_integer(second):
        return first if first.bit_width >= second.bit_width else second
    signed, unsigned = (first, second) if pa.types.is_signed_integer(first) else (second, first)
    return _SIGNED.get(max(signed.bit_width, 2 * unsigned.bit_width))


def _wider_of(order: tuple[pa.DataType, ...]) -> Callable[[pa.DataType, pa.DataType], pa.DataType | None]:
    def unify(first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
        if first not in order or second not in order:
            return None
        return order[max(order.index(first), order.index(second))]

    return unify


def _unify_bytes(first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
    variable = [pa.binary() if pa.types.is_fixed_size_binary(kind) else kind for kind in (first, second)]
    if pa.types.is_decimal(first) or pa.types.is_decimal(second) or any(kind not in _BYTES for kind in variable):
        return None
    return _wider_of(_BYTES)(*variable)


def _unify_decimals(first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
    if not (pa.types.is_decimal(first) and pa.types.is_decimal(second)):
        return None
    scale = max(first.scale, second.scale)
    precision = max(first.precision - first.scale, second.precision - second.scale) + scale
    bit_width = max(first.bit_width, second.bit_width)
    for width, digits, make in (
        (32, 9, pa.decimal32),
        (64, 18, pa.decimal64),
        (128, 38, pa.decimal128),
        (256, 76, pa.decimal256),
    ):
        if width >= bit_width and precision <= digits:
            return make(precision, scale)
    return None


def _unify_times(first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
    if pa.types.is_date(first) and pa.types.is_date(second):
        return pa.date64()
    if not (hasattr(first, "unit") and hasattr(second, "unit")):
        return None
    unit = max(first.unit, second.unit, key=_UNITS.index)
    if pa.types.is_timestamp(first) and pa.types.is_timestamp(second) and (first.tz is None) == (second.tz is None):
        return pa.timestamp(unit, first.tz)
    if pa.types.is_time(first) and pa.types.is_time(second):
        return pa.time32(unit) if unit in ("s", "ms") else pa.time64(unit)
    if pa.types.is_duration(first) and pa.types.is_duration(second):
        return pa.duration(unit)
    return None


def _is_list(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(kind)
        or pa.types.is_large_list(kind)
        or pa.types.is_fixed_size_list(kind)
        or pa.types.is_list_view(kind)
        or pa.types.is_large_list_view(kind)
    )


def _unify_lists(first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
    if not (_is_list(first) and _is_list(second)):
        return None
    item = _unify_fields(first.value_field, second.value_field)
    if item is None:
        return None
    if pa.types.is_fixed_size_list(first) and pa.types.is_fixed_size_list(second):
        return pa.list_(item, first.list_size) if first.list_size == second.list_size else pa.list_(item)
    if pa.types.is_list_view(first) and pa.types.is_list_view(second):
        return pa.list_view(item)
    if pa.types.is_large_list_view(first) and pa.types.is_large_list_view(second):
        return pa.large_list_view(item)
    large = any(pa.types.is_large_list(kind) or pa.types.is_large_list_view(kind) for kind in (first, second))
    return pa.large_list(item) if large else pa.list_(item)


def _unify_maps(first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
    if not (pa.types.is_map(first) and pa.types.is_map(second)):
        return None
    key = _unify_fields(first.key_field, second.key_field)
    item = _unify_fields(first.item_field, second.item_field)
    if key is None or item is None:
        return None
    return pa.map_(key, item, keys_sorted=first.keys_sorted and second.keys_sorted)


def _unify_structs(first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
    if not (pa.types.is_struct(first) and pa.types.is_struct(second)):
        return None
    names = list(dict.fromkeys([field.name for field in first] + [field.name for field in second]))
    if len(names) < max(first.num_fields, second.num_fields):
        return None  # a name twice within one struct: nothing tells which is which
    fields = []
    for name in names:
        left, right = first.get_field_index(name), second.get_field_index(name)
        if left < 0 or right < 0:
            field = (first.field(left) if right < 0 else second.field(right)).with_nullable(True)
        else:
            field = _unify_fields(first.field(left), second.field(right))
        if field is None:
            return None
        fields.append(field)
    return pa.struct(fields)


def _unify_fields(first: pa.Field, second: pa.Field) -> pa.Field | None:
    unified = unify_types(first.type, second.type)
    if unified is None:
        return None
    return first.with_type(unified).with_nullable(first.nullable or second.nullable)


_FAMILIES: tuple[Callable[[pa.DataType, pa.DataType], pa.DataType | None], ...] = (
    _unify_dictionaries,
    _unify_integers,
    _wider_of(_FLOATS),
    _wider_of(_TEXT),
    _unify_bytes,
    _unify_decimals,
    _unify_times,
    _unify_lists,
    _unify_maps,
    _unify_structs,
)


# ----------------------------------------------------------------------------------------------------- values


def cast_column(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """The same values as another type, inside nested values too. Raises `pa.ArrowInvalid` if a value would change."""
    if column.type == kind:
        return column
    return pa.chunked_array([cast_array(chunk, kind) for chunk in column.chunks], type=kind)


def cast_array(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """See `cast_column`. PyArrow's own cast does not add fields to nested structs everywhere, and breaks list views."""
    held = array.type
    if held == kind:
        return array
    if pa.types.is_null(held):
        return pa.nulls(len(array), kind)
    if pa.types.is_dictionary(held) or pa.types.is_dictionary(kind):
        return _cast_dictionary(_plain(array), kind)
    if pa.types.is_nested(held) and pa.types.is_nested(kind):
        return _cast_nested(array, kind)
    return _cast_plain(_plain(array), kind)


def _plain(array: pa.Array) -> pa.Array:
    """Without the wrapping of extension types and run ends."""
    if isinstance(array.type, pa.BaseExtensionType):
        return array.storage
    return pc.run_end_decode(array) if pa.types.is_run_end_encoded(array.type) else array


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
    if _is_list(array.type) and _is_list(kind):
        return _cast_list(array, kind)
    return array.cast(kind)


def _cast_dictionary(array: pa.Array, kind: pa.DataType) -> pa.Array:
    held = array.type
    if not pa.types.is_dictionary(kind):
        return cast_array(array.dictionary_decode(), kind)
    if pa.types.is_dictionary(held):
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
        # Null lists have values, too, in this layout.
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
    # A map's layout is that of a list of its entries, and only lists can be flattened without what nulls cover.
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
    """Of each list; 0 for a null one, whose values `flatten` leaves out."""
    return pc.fill_null(pc.list_value_length(array).cast(pa.int64()), 0)


def _offsets(array: pa.Array) -> pa.Array:
    return pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(_lengths(array))])


def render_schema(schema: pa.Schema) -> str:
    """An Arrow schema as text for the log."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def parse_schema(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
