"""Schemas and column bounds as Delta Lake writes them. Pure.

Delta has no type for a time of day: such columns, and such fields of structs, are left out of its schema; readers then
do not see them, and all other columns are whole.
"""

import json
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from types import MappingProxyType

import pyarrow as pa
from pydantic import JsonValue

from compactor.model.files import ColumnStats, DataFile, Scalar

_PLAIN: Mapping[pa.DataType, str] = MappingProxyType(
    {
        pa.bool_(): "boolean",
        pa.int8(): "byte",
        pa.int16(): "short",
        pa.int32(): "integer",
        pa.int64(): "long",
        pa.float32(): "float",
        pa.float64(): "double",
        pa.string(): "string",
        pa.large_string(): "string",
        pa.binary(): "binary",
        pa.large_binary(): "binary",
        pa.date32(): "date",
        pa.date64(): "date",
    }
)


def delta_schema(schema: pa.Schema, partition_keys: tuple[str, ...]) -> str:
    """The schema as Delta's JSON: partition columns last, as text."""
    fields = [rendered for field in schema if field.name not in partition_keys for rendered in _rendered(field)]
    fields += [_field(key, "string") for key in partition_keys]
    return json.dumps({"type": "struct", "fields": fields}, separators=(",", ":"))


def left_out(schema: pa.Schema) -> tuple[str, ...]:
    """Dotted names of the columns and fields that Delta has no type for."""
    return tuple(name for field in schema for name in _left_out(field, field.name))


def has_zoneless_timestamp(schema: pa.Schema) -> bool:
    return any(_holds_zoneless(field.type) for field in schema)


def stats_json(file: DataFile, schema: pa.Schema, has_vector: bool) -> str:
    """Row count and bounds of a file, from the log. Beside a vector, rows at the bounds may be dead: not tight."""
    least: dict[str, JsonValue] = {}
    greatest: dict[str, JsonValue] = {}
    nulls: dict[str, JsonValue] = {}
    for name, stats in file.columns.items():
        position = schema.get_field_index(name)
        if position < 0 or _type_of(schema.field(position).type) is None:
            continue
        if stats.null_count is not None:
            nulls[name] = stats.null_count
        low, high = _bounds(stats, schema.field(position).type)
        if low is not None and high is not None:
            least[name], greatest[name] = low, high
    statistics: dict[str, JsonValue] = {"numRecords": file.rows, "tightBounds": not has_vector}
    statistics |= {"minValues": least, "maxValues": greatest, "nullCount": nulls}
    return json.dumps(statistics, separators=(",", ":"), ensure_ascii=False)


def _bounds(stats: ColumnStats, kind: pa.DataType) -> tuple[Scalar | None, Scalar | None]:
    """None for floats, whose bounds do not cover NaN; for decimals, which some readers take for doubles; and for truth
    values, which Delta does not bound."""
    low, high = stats.min_value, stats.max_value
    if pa.types.is_integer(kind) and isinstance(low, int) and isinstance(high, int):
        return low, high
    if not isinstance(low, str) or not isinstance(high, str):
        return None, None
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_date(kind):
        return low, high
    if pa.types.is_timestamp(kind):
        return _to_milliseconds(low, kind, up=False), _to_milliseconds(high, kind, up=True)
    return None, None


def _to_milliseconds(text: str, kind: pa.DataType, up: bool) -> str | None:
    """Delta's bounds of timestamps are in milliseconds: outwards, so that they hold."""
    try:
        time = datetime.fromisoformat(text.removesuffix("Z"))
        whole = time.replace(microsecond=time.microsecond // 1_000 * 1_000)
        if up and whole != time:
            whole += timedelta(milliseconds=1)
    except (ValueError, OverflowError):
        return None
    return whole.isoformat(timespec="milliseconds") + ("Z" if kind.tz is not None else "")


def _rendered(field: pa.Field) -> list[JsonValue]:
    kind = _type_of(field.type)
    return [] if kind is None else [_field(field.name, kind)]


def _field(name: str, kind: JsonValue) -> JsonValue:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


def _type_of(kind: pa.DataType) -> JsonValue:
    """None: Delta has no such type."""
    if kind in _PLAIN:
        return _PLAIN[kind]
    if pa.types.is_timestamp(kind):
        return "timestamp_ntz" if kind.tz is None else "timestamp"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_fixed_size_binary(kind):
        return "binary"
    return _nested(kind)


def _nested(kind: pa.DataType) -> JsonValue:
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        item = _type_of(kind.value_type)
        return None if item is None else {"type": "array", "elementType": item, "containsNull": True}
    if pa.types.is_map(kind):
        key, item = _type_of(kind.key_type), _type_of(kind.item_type)
        if key is None or item is None:
            return None
        return {"type": "map", "keyType": key, "valueType": item, "valueContainsNull": True}
    if pa.types.is_struct(kind):
        fields = [rendered for field in kind for rendered in _rendered(field)]
        return {"type": "struct", "fields": fields} if fields else None
    return None


def _children(kind: pa.DataType) -> list[pa.Field]:
    return [kind.field(position) for position in range(kind.num_fields)]


def _left_out(field: pa.Field, name: str) -> Iterator[str]:
    if _type_of(field.type) is None:
        yield name
    elif pa.types.is_nested(field.type):
        for child in _children(field.type):
            yield from _left_out(child, f"{name}.{child.name}")


def _holds_zoneless(kind: pa.DataType) -> bool:
    is_one = pa.types.is_timestamp(kind) and kind.tz is None
    return is_one or any(_holds_zoneless(child.type) for child in _children(kind))
