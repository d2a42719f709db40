"""The values of Debezium's events: Arrow types by the schema of the events, or by the table's."""

import base64
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Context, Decimal
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from compactor.catalog.partition_transforms import is_binary, is_text
from compactor.model.errors import Invalid
from compactor.schemas.cast import cast_array

_PLAIN = {
    "boolean": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.string(),
}
_EPOCHS: Mapping[str, pa.DataType] = {
    "io.debezium.time.Date": pa.date32(),
    "org.apache.kafka.connect.data.Date": pa.date32(),
    "io.debezium.time.Time": pa.time32("ms"),
    "org.apache.kafka.connect.data.Time": pa.time32("ms"),
    "io.debezium.time.MicroTime": pa.time64("us"),
    "io.debezium.time.NanoTime": pa.time64("ns"),
    "io.debezium.time.Timestamp": pa.timestamp("ms"),
    "org.apache.kafka.connect.data.Timestamp": pa.timestamp("ms"),
    "io.debezium.time.MicroTimestamp": pa.timestamp("us"),
    "io.debezium.time.NanoTimestamp": pa.timestamp("ns"),
}
_DECIMAL = "org.apache.kafka.connect.data.Decimal"
_VARIABLE = "io.debezium.data.VariableScaleDecimal"
_ZONED = "io.debezium.time.ZonedTimestamp"
DECIMAL_DIGITS_MAX = 38
_EXACT = Context(prec=100)
"""Python's own context rounds to 28 digits."""


def wire_type(schema: Mapping[str, Any], lines: Sequence[bytes], name: str = "") -> pa.DataType:
    """The Arrow type of the field `name` as it stands in the JSON of these lines."""
    kind = schema.get("type")
    if kind == "struct":
        return pa.struct([(each["field"], wire_type(each, lines, each["field"])) for each in schema.get("fields", ())])
    if kind == "array":
        return pa.list_(wire_type(schema["items"], lines, name))
    if kind == "map":
        raise Invalid(
            f"the schema of the events has the map {schema.get('field')!r}, which cannot be read: let the source write "
            "it as text (hstore.handling.mode=json), or leave it out (column.exclude.list)"
        )
    if kind not in _PLAIN:
        raise Invalid(f"the schema of the events has the type {kind!r}, which Kafka Connect does not know")
    if schema.get("name") == _DECIMAL and _are_numbers(name, lines):
        return pa.decimal128(DECIMAL_DIGITS_MAX, max(_scale(schema), 0))
    return _PLAIN[str(kind)]


def logical(values: pa.Array, field: Mapping[str, Any], column: str, kind: pa.DataType | None) -> pa.Array:
    """The values as the schema means them; text of zoned times stays that where the table declares text (`kind`).
    Raises `Invalid` for a value that means nothing."""
    is_zoned = field.get("name") == _ZONED
    if is_zoned and kind is not None and is_text(kind):
        return values
    try:
        return _meant(values, field)
    except (ValueError, ArithmeticError) as error:
        what_to_do = ": declare the column as text to keep it" if is_zoned else ""
        raise Invalid(f"{column} is no {field.get('name') or field.get('type')} ({error}){what_to_do}") from error


def _meant(values: pa.Array, field: Mapping[str, Any]) -> pa.Array:
    name = field.get("name")
    if name in _EPOCHS:
        epoch = _EPOCHS[str(name)]
        wire = pa.int32() if epoch.bit_width == 32 else pa.int64()
        return values.cast(wire).cast(epoch)
    if name == _ZONED:
        return _zoned(values)
    if name == _VARIABLE:
        return _texts_of_decimals(values)
    if name == _DECIMAL:
        precision = int(field.get("parameters", {}).get("connect.decimal.precision", DECIMAL_DIGITS_MAX))
        return _decimals(values, _scale(field), precision)
    if field.get("type") == "bytes":
        return _bytes(values, pa.binary())
    return _within(values, partial(_meant_within, field=field))


def _meant_within(values: pa.Array, name: str | None, field: Mapping[str, Any]) -> pa.Array:
    if name is None:
        return _meant(values, field["items"])
    return _meant(values, next(each for each in field["fields"] if each["field"] == name))


def _scale(field: Mapping[str, Any]) -> int:
    return int(field.get("parameters", {}).get("scale", 0))


def _zoned(texts: pa.Array) -> pa.Array:
    """In microseconds, if they have no more digits."""
    try:
        return texts.cast(pa.timestamp("us", "UTC"))
    except pa.ArrowInvalid:
        return texts.cast(pa.timestamp("ns", "UTC"))


def _texts_of_decimals(values: pa.Array) -> pa.Array:
    """Of decimals that have a scale each, so that no type holds all of them."""
    unscaled = _bytes(pc.struct_field(values, "value"), pa.binary()).to_pylist()
    scales = pc.struct_field(values, "scale").to_pylist()
    found = [
        None if each is None else f"{Decimal(int.from_bytes(each, 'big', signed=True)).scaleb(-scale, _EXACT):f}"
        for each, scale in zip(unscaled, scales, strict=True)
    ]
    return pa.array(found, pa.string())


def _decimals(values: pa.Array, scale: int, precision: int) -> pa.Array:
    """From base64 of the unscaled number, big-endian, or from numbers. Text, if there may be more digits than a decimal
    has."""
    if pa.types.is_decimal(values.type):
        return values.cast(pa.decimal128(min(precision - min(scale, 0), DECIMAL_DIGITS_MAX), max(scale, 0)))
    found = [
        None if each is None else Decimal(int.from_bytes(each, "big", signed=True)).scaleb(-scale, _EXACT)
        for each in _bytes(values, pa.binary()).to_pylist()
    ]
    if precision - min(scale, 0) > DECIMAL_DIGITS_MAX:
        return pa.array([None if each is None else f"{each:f}" for each in found], pa.string())
    return pa.array(found, pa.decimal128(precision - min(scale, 0), max(scale, 0)))


def _bytes(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """From base64, of either alphabet."""
    plain = pc.replace_substring(pc.replace_substring(values, "-", "+"), "_", "/").to_pylist()
    found = [None if each is None else base64.b64decode(each, validate=True) for each in plain]
    return pa.array(found, kind)


def json_type(name: str, kind: pa.DataType, lines: Sequence[bytes]) -> pa.DataType:
    """The type by which JSON is read, of a declared one: times and decimals are numbers or text, as the first is."""
    if pa.types.is_struct(kind):
        return pa.struct([(each.name, json_type(each.name, each.type, lines)) for each in kind])
    if pa.types.is_list(kind):
        return pa.list_(json_type(name, kind.value_type, lines))
    if is_binary(kind):
        return pa.string()
    if not (pa.types.is_temporal(kind) or pa.types.is_decimal(kind)):
        return kind
    if next(_begins(name, lines), b'"') == b'"':
        return pa.string()
    return kind if pa.types.is_decimal(kind) else pa.int64()


def _are_numbers(name: str, lines: Sequence[bytes]) -> bool:
    """As `decimal.format=NUMERIC` writes decimals. None may be text: that would be base64, which Arrow takes for a
    number if it has digits only."""
    begins = _begins(name, lines)
    return next(begins, b'"') != b'"' and b'"' not in begins


def _begins(name: str, lines: Sequence[bytes]) -> Iterator[bytes]:
    """The first byte of each line's first value of a field that is a number or text."""
    value = re.compile(re.escape(json.dumps(name, ensure_ascii=False).encode()) + rb"\s*:[\s\[]*([-\d\"])")
    return (found[1] for found in map(value.search, map(_rows_of, lines)) if found)


def _rows_of(line: bytes) -> bytes:
    """Without the fields of `source`, which may be called as columns are."""
    rows = line.rpartition(b'"source"')[0]
    return rows if b'"after"' in rows else line


def as_declared(values: pa.Array, kind: pa.DataType, column: str) -> pa.Array:
    """Raises `Invalid` for a value that is not of the declared type."""
    if values.type == kind:
        return values
    try:
        if pa.types.is_struct(kind) or pa.types.is_list(kind):
            return cast_array(_within(values, partial(_item_as_declared, kind=kind, column=column)), kind)
        if pa.types.is_integer(values.type) and pa.types.is_temporal(kind):
            wire = pa.int32() if kind.bit_width == 32 else pa.int64()
            return values.cast(wire).cast(kind)
        if pa.types.is_decimal(kind) and pa.types.is_string(values.type):
            return values.cast(kind)
        if is_binary(kind) and pa.types.is_string(values.type):
            return _bytes(values, kind)
        return cast_array(values, kind)
    except (ValueError, pa.ArrowNotImplementedError) as error:
        raise Invalid(
            f"{column} is {values.type} and declared as {kind}, and cannot be read as that "
            f"({error}): let Debezium send schemas (value.converter.schemas.enable=true), or numbers as text "
            "(decimal.handling.mode=string)"
        ) from error


def _item_as_declared(values: pa.Array, name: str | None, kind: pa.DataType, column: str) -> pa.Array:
    if name is None:
        return as_declared(values, kind.value_type, column)
    at = kind.get_field_index(name)
    return values if at < 0 else as_declared(values, kind.field(at).type, column)


def _within(values: pa.Array, convert: Callable[[pa.Array, str | None], pa.Array]) -> pa.Array:
    """Lists and rows with their items and fields converted; items have no name. Other values as they are."""
    if pa.types.is_list(values.type):
        ends = np.cumsum(pc.list_value_length(values).fill_null(0).to_numpy())
        items = convert(values.flatten(), None)
        return pa.ListArray.from_arrays(pa.array(np.append(0, ends), pa.int32()), items, mask=values.is_null())
    if pa.types.is_struct(values.type):
        names = [each.name for each in values.type]
        fields = [convert(pc.struct_field(values, name), name) for name in names]
        return pa.StructArray.from_arrays(fields, names, mask=values.is_null())
    return values
