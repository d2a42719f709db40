"""Which type a format gives back for a type it is given, and which types it cannot hold at all.

A writer brings its rows to the stored types first, so that what a file's schema says is what a reader finds, and a
value that would not survive is refused before the file is finished. Parquet and Arrow IPC give every type back,
Parquet because the Arrow schema is written beside its own.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from compactor.errors import Invalid
from compactor.names import ContentType

_StoredType = Callable[[pa.DataType], pa.DataType | None]


def stored_schema(schema: pa.Schema, content_type: ContentType) -> pa.Schema:
    """The schema that a file of `content_type` holds for rows of `schema`.

    A column of type null is left out where the format cannot hold one: a missing column is null. Raises `Invalid` for
    types without a stored form, and for JSON lines, which PyArrow does not write.
    """
    stored = _STORED_TYPES.get(content_type)
    if stored is None:
        raise Invalid("JSON lines are read, not written: ask for parquet, feather, orc, csv or tsv")
    fields = []
    for field in schema:
        if content_type is ContentType.ORC and pa.types.is_null(field.type):
            continue
        kind = stored(field.type)
        if kind is None:
            instead = "feather" if content_type is ContentType.PARQUET else "parquet or feather"
            raise Invalid(
                f"a {content_type} file cannot hold column {field.name!r} of type {field.type}: choose {instead}"
            )
        fields.append(field.with_type(kind))
    return pa.schema(fields, metadata=schema.metadata)


def _nested(
    kind: pa.DataType, stored: _StoredType, make: Callable[[list[pa.Field]], pa.DataType]
) -> pa.DataType | None:
    """A nested type, made again from its children as they are stored."""
    children = []
    for position in range(kind.num_fields):
        child = kind.field(position)
        child_kind = stored(child.type)
        if child_kind is None:
            return None
        children.append(child.with_type(child_kind))
    return make(children)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_list_view(kind))


def _is_large_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_large_list(kind) or pa.types.is_large_list_view(kind))


# ------------------------------------------------------------------------------------- Parquet and Arrow IPC


def _wide_dictionary(kind: pa.DataType) -> pa.DataType:
    """Indices of at least 32 bits: rows of several files with a dictionary each may need more values than 8 bits count.

    PyArrow writes such a Parquet file, and then cannot read it.
    """
    index = kind.index_type if kind.index_type.bit_width >= 32 else pa.int32()
    return pa.dictionary(index, kind.value_type, ordered=kind.ordered)


def _in_arrow(kind: pa.DataType) -> pa.DataType | None:
    if pa.types.is_dictionary(kind):
        return _wide_dictionary(kind)
    if pa.types.is_nested(kind) and not pa.types.is_union(kind) and not pa.types.is_run_end_encoded(kind):
        return _nested_like(kind, _in_arrow)
    return kind


def _in_parquet(kind: pa.DataType) -> pa.DataType | None:
    if pa.types.is_dictionary(kind):
        return _wide_dictionary(kind)
    if pa.types.is_run_end_encoded(kind):
        return _in_parquet(kind.value_type)
    if pa.types.is_union(kind) or kind == pa.month_day_nano_interval():
        return None
    if pa.types.is_struct(kind) and kind.num_fields == 0:
        return None
    if pa.types.is_nested(kind):
        return _nested_like(kind, _in_parquet)
    return kind


def _nested_like(kind: pa.DataType, stored: _StoredType) -> pa.DataType | None:
    if pa.types.is_struct(kind):
        return _nested(kind, stored, pa.struct)
    if pa.types.is_map(kind):
        key, item = stored(kind.key_type), stored(kind.item_type)
        if key is None or item is None:
            return None
        fields = kind.key_field.with_type(key), kind.item_field.with_type(item)
        return pa.map_(*fields, keys_sorted=kind.keys_sorted)
    if pa.types.is_fixed_size_list(kind):
        return _nested(kind, stored, lambda children: pa.list_(children[0], kind.list_size))
    for is_one, make in _LIST_MAKERS:
        if is_one(kind):
            item = _nested(kind, stored, pa.struct)
            return None if item is None else make(item.field(0))
    return None


_LIST_MAKERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Field], pa.DataType]], ...] = (
    (pa.types.is_list, pa.list_),
    (pa.types.is_large_list, pa.large_list),
    (pa.types.is_list_view, pa.list_view),
    (pa.types.is_large_list_view, pa.large_list_view),
)


# ------------------------------------------------------------------------------------------------------- ORC

_ORC_PLAIN = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
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


def stored_in_orc(kind: pa.DataType) -> pa.DataType | None:
    """What ORC holds in a type's place; None: it cannot hold it.

    Signed integers, one kind of text, bytes and list, timestamps in nanoseconds (UTC where they have a zone).
    """
    kind = _unwrapped(kind)
    if kind in _ORC_SAME:
        return kind
    if kind in _ORC_PLAIN:
        return _ORC_PLAIN[kind]
    if pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("ns", None if kind.tz is None else "UTC")
    if pa.types.is_decimal(kind):
        return pa.decimal128(kind.precision, kind.scale) if kind.precision <= 38 else None
    return _nested_in_orc(kind)


def _nested_in_orc(kind: pa.DataType) -> pa.DataType | None:
    if pa.types.is_struct(kind) and kind.num_fields > 0:
        return _nested(kind, stored_in_orc, pa.struct)
    if pa.types.is_map(kind):
        key, item = stored_in_orc(kind.key_type), stored_in_orc(kind.item_type)
        return None if key is None or item is None else pa.map_(key, item)
    if _is_list(kind) or _is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _nested(kind, stored_in_orc, lambda children: pa.list_(children[0]))
    return None


def _unwrapped(kind: pa.DataType) -> pa.DataType:
    """Without dictionary, run ends or extension type."""
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return _unwrapped(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return _unwrapped(kind.storage_type)
    return kind


# ------------------------------------------------------------------------------------------------------ text


def _in_text(kind: pa.DataType) -> pa.DataType | None:
    """Anything with a text that reads back; never nested values, nor bytes, which need not be text."""
    kind = _unwrapped(kind)
    if kind == pa.string_view():
        return pa.string()
    if pa.types.is_float16(kind):
        return pa.float32()
    bytes_like = pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
    if (bytes_like and not pa.types.is_decimal(kind)) or kind == pa.binary_view():
        return None
    if pa.types.is_nested(kind) or kind == pa.month_day_nano_interval():
        return None
    return kind


_STORED_TYPES: dict[ContentType, _StoredType] = {
    ContentType.PARQUET: _in_parquet,
    ContentType.FEATHER: _in_arrow,
    ContentType.ORC: stored_in_orc,
    ContentType.CSV: _in_text,
    ContentType.TSV: _in_text,
}
