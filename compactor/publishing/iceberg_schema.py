"""Schemas and column bounds as Apache Iceberg writes them. Pure.

Every column and every nested field has the id that is in the files, which follows from its name alone. Ids never
change, so a schema with other columns or wider types describes older files as well.
"""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from types import MappingProxyType

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
)

from compactor.model.files import ColumnStats, DataFile, Scalar
from compactor.schemas.open_types import field_id

_PLAIN: Mapping[pa.DataType, IcebergType] = MappingProxyType(
    {
        pa.bool_(): BooleanType(),
        pa.int8(): IntegerType(),
        pa.int16(): IntegerType(),
        pa.int32(): IntegerType(),
        pa.int64(): LongType(),
        pa.float32(): FloatType(),
        pa.float64(): DoubleType(),
        pa.string(): StringType(),
        pa.large_string(): StringType(),
        pa.binary(): BinaryType(),
        pa.large_binary(): BinaryType(),
        pa.date32(): DateType(),
        pa.date64(): DateType(),
        pa.time64("us"): TimeType(),
    }
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def iceberg_schema(schema: pa.Schema, partition_keys: tuple[str, ...], schema_id: int = 0) -> Schema:
    """The schema of published rows: partition columns last, as text. Columns of type null are left out."""
    columns = [_field(field.name, field.type, field.name) for field in schema if field.name not in partition_keys]
    columns += [_field(key, pa.string(), key) for key in partition_keys]
    return Schema(*[column for column in columns if column is not None], schema_id=schema_id)


def not_read_as(narrow: pa.Schema, wide: pa.Schema) -> tuple[str, ...]:
    """Why Iceberg does not read files of the first schema by the second one: a reason for each such column."""
    found = []
    for field in narrow:
        wider = _type_of(wide.field(field.name).type, field.name)
        own = _type_of(field.type, field.name)
        if own is not None and wider is not None and not _is_read_as(own, wider):
            found.append(
                f"column {field.name!r} is {own} in some files and {wider} in others, and Iceberg does not read one as "
                "the other: write all partitions with one type and compact them, then delete the table's folder "
                "iceberg/, and publish again"
            )
    return tuple(found)


@dataclass(frozen=True)
class Bounds:
    """Statistics of a file's columns, by field id, as manifests have them."""

    value_counts: dict[int, int]
    null_value_counts: dict[int, int]
    lower_bounds: dict[int, bytes]
    upper_bounds: dict[int, bytes]


def bounds_of(file: DataFile, schema: Schema) -> Bounds:
    """From the log. Columns whose bounds readers understand differently have none."""
    found = Bounds({}, {}, {}, {})
    for column in schema.fields:
        stats = file.columns.get(column.name)
        if stats is None or not column.field_type.is_primitive:
            continue
        if stats.null_count is not None:
            found.value_counts[column.field_id] = file.rows
            found.null_value_counts[column.field_id] = stats.null_count
        low, high = _bounds(stats, column.field_type)
        if low is not None and high is not None:
            found.lower_bounds[column.field_id], found.upper_bounds[column.field_id] = low, high
    return found


def _bounds(stats: ColumnStats, kind: IcebergType) -> tuple[bytes | None, bytes | None]:
    return _bound(stats.min_value, kind), _bound(stats.max_value, kind)


def _bound(value: Scalar | None, kind: IcebergType) -> bytes | None:
    """None for floats, whose bounds do not cover NaN; for decimals; and for truth values."""
    if isinstance(value, int) and isinstance(kind, IntegerType | LongType):
        return struct.pack("<i" if isinstance(kind, IntegerType) else "<q", value)
    if not isinstance(value, str):
        return None
    try:
        if isinstance(kind, StringType):
            return value.encode()
        if isinstance(kind, DateType):
            return struct.pack("<i", (date.fromisoformat(value) - _EPOCH.date()).days)
        if isinstance(kind, TimestampType | TimestamptzType):
            at = datetime.fromisoformat(value.removesuffix("Z")).replace(tzinfo=UTC)
            return struct.pack("<q", (at - _EPOCH) // timedelta(microseconds=1))
    except (ValueError, OverflowError):  # a year that Python does not have
        return None
    return None


def _field(name: str, kind: pa.DataType, dotted: str) -> NestedField | None:
    iceberg_type = _type_of(kind, dotted)
    return None if iceberg_type is None else NestedField(field_id(dotted), name, iceberg_type, required=False)


def _type_of(kind: pa.DataType, name: str) -> IcebergType | None:
    """Of an open type. None: a column of type null."""
    if kind in _PLAIN:
        return _PLAIN[kind]
    if pa.types.is_timestamp(kind):
        return TimestampType() if kind.tz is None else TimestamptzType()
    if pa.types.is_decimal(kind):
        return DecimalType(kind.precision, kind.scale)
    if pa.types.is_fixed_size_binary(kind):
        return FixedType(kind.byte_width)
    return _nested(kind, name)


def _nested(kind: pa.DataType, name: str) -> IcebergType | None:
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        element = f"{name}.element"
        item = _type_of(kind.value_type, element)
        return None if item is None else ListType(field_id(element), item, element_required=False)
    if pa.types.is_map(kind):
        key_name, value_name = f"{name}.key", f"{name}.value"
        key, value = _type_of(kind.key_type, key_name), _type_of(kind.item_type, value_name)
        if key is None or value is None:
            return None
        return MapType(field_id(key_name), key, field_id(value_name), value, value_required=False)
    if pa.types.is_struct(kind):
        fields = [_field(child.name, child.type, f"{name}.{child.name}") for child in kind]
        return StructType(*[field for field in fields if field is not None])
    return None


def _is_read_as(narrow: IcebergType, wide: IcebergType) -> bool:
    """Whether Iceberg's rules of schema evolution allow the change."""
    if isinstance(narrow, DecimalType) and isinstance(wide, DecimalType):
        return narrow.scale == wide.scale and narrow.precision <= wide.precision
    if type(narrow) is not type(wide):
        return (type(narrow), type(wide)) in {(IntegerType, LongType), (FloatType, DoubleType)}
    if narrow.is_primitive:
        return narrow == wide
    return all(_is_read_as(*pair) for pair in _children(narrow, wide))


def _children(narrow: IcebergType, wide: IcebergType) -> Iterator[tuple[IcebergType, IcebergType]]:
    """The pairs of equally named parts of two nested types of one kind."""
    if isinstance(narrow, ListType) and isinstance(wide, ListType):
        yield narrow.element_type, wide.element_type
    elif isinstance(narrow, MapType) and isinstance(wide, MapType):
        yield narrow.key_type, wide.key_type
        yield narrow.value_type, wide.value_type
    elif isinstance(narrow, StructType) and isinstance(wide, StructType):
        wider = {field.field_id: field.field_type for field in wide.fields}
        for field in narrow.fields:
            yield field.field_type, wider[field.field_id]
