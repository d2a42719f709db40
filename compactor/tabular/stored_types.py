"""The type that each format stores for an Arrow type, and the types that it cannot store.

A writer first casts its rows to the stored types, so that a reader finds the types of the file's schema, and a value
that does not fit is refused before the file is finished. Parquet and Arrow IPC store every type unchanged except string
and binary views, which are plain text and bytes everywhere; Parquet because the Arrow schema is stored beside its own.
"""

from collections.abc import Callable

import pyarrow as pa

from compactor.model.arrow_types import value_type, wide_dictionary
from compactor.model.errors import Invalid
from compactor.model.names import ContentType
from compactor.schemas.unify import is_list, plain_type, with_fields

_StoredType = Callable[[pa.DataType], pa.DataType]


class _NotStored(Exception):
    """The format has no type for such values."""


def stored_schema(schema: pa.Schema, content_type: ContentType) -> pa.Schema:
    """The schema of a file of `content_type` for rows of `schema`.

    A column of type null is left out if the format cannot store one: a missing column is null. Raises `Invalid` for
    types without a stored form, and for JSON lines, which PyArrow does not write.
    """
    stored = _STORED_TYPES.get(content_type)
    if stored is None:
        raise Invalid("JSON lines are read, not written: ask for parquet, feather, orc, csv or tsv")
    fields = []
    for field in schema:
        if content_type is ContentType.ORC and pa.types.is_null(field.type):
            continue
        try:
            fields.append(field.with_type(stored(plain_type(field.type))))
        except _NotStored as error:
            instead = "feather" if content_type is ContentType.PARQUET else "parquet or feather"
            raise Invalid(
                f"a {content_type} file cannot hold column {field.name!r} of type {field.type}: choose {instead}"
            ) from error
    return pa.schema(fields, metadata=schema.metadata)


def _within(arrow_type: pa.DataType, stored: _StoredType) -> pa.DataType:
    """A nested type with the stored types of its fields; any other type unchanged."""
    return with_fields(arrow_type, lambda field: field.with_type(stored(field.type)))


# ------------------------------------------------------------------------------------- Parquet and Arrow IPC


def _in_arrow(arrow_type: pa.DataType) -> pa.DataType:
    return wide_dictionary(_within(arrow_type, _in_arrow))


def _in_parquet(arrow_type: pa.DataType) -> pa.DataType:
    if pa.types.is_run_end_encoded(arrow_type):
        return _in_parquet(arrow_type.value_type)
    is_empty = pa.types.is_struct(arrow_type) and arrow_type.num_fields == 0
    if is_empty or pa.types.is_union(arrow_type) or arrow_type == pa.month_day_nano_interval():
        raise _NotStored
    return wide_dictionary(_within(arrow_type, _in_parquet))


# ------------------------------------------------------------------------------------------------------- ORC

_ORC_PLAIN = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.large_string(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.date64(): pa.date32(),
}
_ORC_SAME = frozenset(
    {
        pa.bool_(),
        pa.int8(),
        pa.int16(),
        pa.int32(),
        pa.int64(),
        pa.float32(),
        pa.float64(),
        pa.string(),
        pa.binary(),
        pa.date32(),
    }
)


def stands_in_orc(arrow_type: pa.DataType) -> bool:
    """Whether ORC stores the type, or another one in its place."""
    try:
        _in_orc(arrow_type)
    except _NotStored:
        return False
    return True


def _in_orc(arrow_type: pa.DataType) -> pa.DataType:
    """Signed integers, one kind of text, bytes and list, timestamps in nanoseconds (UTC where they have a zone)."""
    arrow_type = value_type(arrow_type)
    if arrow_type in _ORC_SAME:
        return arrow_type
    if arrow_type in _ORC_PLAIN:
        return _ORC_PLAIN[arrow_type]
    if pa.types.is_fixed_size_binary(arrow_type):
        return pa.binary()
    if pa.types.is_timestamp(arrow_type):
        return pa.timestamp("ns", None if arrow_type.tz is None else "UTC")
    if pa.types.is_decimal(arrow_type) and arrow_type.precision <= 38:
        return pa.decimal128(arrow_type.precision, arrow_type.scale)
    return _nested_in_orc(arrow_type)


def _nested_in_orc(arrow_type: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(arrow_type) and arrow_type.num_fields > 0:
        return _within(arrow_type, _in_orc)
    if pa.types.is_map(arrow_type):
        return pa.map_(_in_orc(arrow_type.key_type), _in_orc(arrow_type.item_type))
    if is_list(arrow_type):
        return pa.list_(arrow_type.value_field.with_type(_in_orc(arrow_type.value_type)))
    raise _NotStored


# ------------------------------------------------------------------------------------------------------ text


def _in_text(arrow_type: pa.DataType) -> pa.DataType:
    """Types whose text form can be read back; not nested types, and not bytes, which need not be text. A duration would
    be a number without its unit: where the column's type in another file is of another unit, it would be another value.
    """
    arrow_type = value_type(arrow_type)
    if pa.types.is_float16(arrow_type):
        return pa.float32()
    if (
        pa.types.is_binary(arrow_type)
        or pa.types.is_large_binary(arrow_type)
        or pa.types.is_fixed_size_binary(arrow_type)
        or pa.types.is_nested(arrow_type)
        or pa.types.is_duration(arrow_type)
        or arrow_type == pa.month_day_nano_interval()
    ):
        raise _NotStored
    return arrow_type


_STORED_TYPES: dict[ContentType, _StoredType] = {
    ContentType.PARQUET: _in_parquet,
    ContentType.FEATHER: _in_arrow,
    ContentType.ORC: _in_orc,
    ContentType.CSV: _in_text,
    ContentType.TSV: _in_text,
}
