"""Unifies schemas, so that the schema of a table can grow.

A column that a file lacks is null; a new column is appended, in the order first seen; a type widens within its family
(integers, floats, decimals, text, bytes, times of one kind, lists, structs). Types of different families are not
reconciled: no type holds both an int64 and a float64 exactly.

A dictionary is an encoding, not a kind of value: it is kept if every file with the column has it; its indices are then
widened to int32, because the dictionaries of several files together may not fit a narrow index.

Views of text and bytes (string_view, binary_view) become plain text and bytes on input, and run ends their values, at
any depth: Arrow cannot take rows from them.
"""

import base64
import hashlib
import operator
from collections import Counter
from collections.abc import Callable, Sequence

import pyarrow as pa

from compactor.model.arrow_types import FLAT_TYPE_IDS, decoded_type
from compactor.model.errors import Invalid

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
    """Raises `Invalid` if two columns of `file` have the same name."""
    repeated = [name for name, count in Counter(schema.names).items() if count > 1]
    if repeated:
        raise Invalid(f"{file} has more than one column named {repeated[0]!r}: column names must be unique")


# ------------------------------------------------------------------------------------------------------ plain


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type with plain text and bytes instead of views, and values instead of run ends, at any depth."""
    if kind in _PLAIN_OF_VIEWS:
        return _PLAIN_OF_VIEWS[kind]
    if isinstance(kind, pa.BaseExtensionType):
        storage = plain_type(kind.storage_type)
        if storage == kind.storage_type:
            return kind
        return pa.json_(storage) if isinstance(kind, pa.JsonType) else storage
    if pa.types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, plain_type(kind.value_type), ordered=kind.ordered)
    if pa.types.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    return with_fields(kind, _plain_field)


def with_fields(kind: pa.DataType, change: Callable[[pa.Field], pa.Field]) -> pa.DataType:
    """A nested type with replaced fields; any other type unchanged."""
    if pa.types.is_struct(kind):
        return pa.struct([change(field) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(change(kind.key_field), change(kind.item_field), keys_sorted=kind.keys_sorted)
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(change(kind.value_field), kind.list_size)
    for is_one, make in LIST_MAKERS:
        if is_one(kind):
            return make(change(kind.value_field))
    return kind


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """See `plain_type`. The same object if nothing changes."""
    fields = list(schema)
    if all(field.type.id in FLAT_TYPE_IDS for field in fields):
        return schema
    plain = [_plain_field(field) for field in fields]
    return schema if all(map(operator.is_, fields, plain)) else pa.schema(plain, metadata=schema.metadata)


def _plain_field(field: pa.Field) -> pa.Field:
    plain = plain_type(field.type)
    return field if plain == field.type else field.with_type(plain)


# ------------------------------------------------------------------------------------------------------ types


LIST_MAKERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Field], pa.DataType]], ...] = (
    (pa.types.is_list, pa.list_),
    (pa.types.is_large_list, pa.large_list),
    (pa.types.is_list_view, pa.list_view),
    (pa.types.is_large_list_view, pa.large_list_view),
)
"""Variable-length list types: the check for each, and its constructor."""

_PLAIN_OF_VIEWS = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}


def unify_types(first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
    """The narrowest type that holds the values of both; None if there is none. Of two time zones, the first."""
    if first == second and not pa.types.is_nested(first):
        # Two files with the same dictionary type may have different dictionaries.
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


def _unify_dictionaries(first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
    if not (decoded_type(first) is not first or decoded_type(second) is not second):
        return None
    both = pa.types.is_dictionary(first) and pa.types.is_dictionary(second)
    if both and first.value_type == second.value_type:
        narrow = all(kind.index_type.bit_width <= 32 and kind.index_type != pa.uint32() for kind in (first, second))
        return pa.dictionary(
            pa.int32() if narrow else pa.int64(), first.value_type, ordered=first.ordered and second.ordered
        )
    return unify_types(decoded_type(first), decoded_type(second))


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


def is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_fixed_size_list(kind)) or any(is_one(kind) for is_one, _ in LIST_MAKERS)


def _unify_lists(first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
    if not (is_list(first) and is_list(second)):
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
        return None  # a name twice within one struct is ambiguous
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


def _text_for_nanoseconds(kind: pa.DataType) -> pa.DataType:
    kind = decoded_type(kind)
    if getattr(kind, "unit", None) == "ns":
        return pa.int64() if pa.types.is_duration(kind) else pa.string()
    return with_fields(kind, lambda field: field.with_type(_text_for_nanoseconds(field.type)))


FINGERPRINT_CHARACTERS = 32
"""Characters of a fingerprint, 128 bits: no two schemas of one lake share them by chance."""


def render_schema(schema: pa.Schema) -> str:
    """An Arrow schema as text for the log."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def parse_schema(text: str) -> pa.Schema:
    """Parses a schema; views become plain types."""
    return plain_schema(pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text))))


def fingerprint_schema(schema: pa.Schema) -> str:
    """Equal for equal columns: names, types, nullability and fields' metadata. The schema's own metadata do not count,
    since writers put the number of rows there."""
    return hashlib.sha256(plain_schema(schema).remove_metadata().serialize()).hexdigest()[:FINGERPRINT_CHARACTERS]
