"""Thrift's compact protocol, in which Parquet writes footers and page headers; `page_format.py` names the fields.

A struct is a mapping from field numbers to fields, so unknown fields are kept when it is written again.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import pyarrow as pa


class Kind:
    """The protocol's types: plain integers for speed. The type of a boolean field is its value."""

    TRUE = 1
    FALSE = 2
    I8 = 3
    I16 = 4
    I32 = 5
    I64 = 6
    DOUBLE = 7
    BINARY = 8
    LIST = 9
    STRUCT = 12


class Items(NamedTuple):
    """A list, and the kind of its elements."""

    kind: int
    values: Sequence[Value]


Value: TypeAlias = "bool | int | float | bytes | Items | Struct"


class Field(NamedTuple):
    """One field of a struct."""

    kind: int
    value: Value


Struct: TypeAlias = dict[int, Field]


Wanted: TypeAlias = "Mapping[int, Wanted | None]"
"""The fields of a struct to read, each with those of its own structs (None: all); others are skipped."""


class UnknownKindError(Exception):
    """A value of an unknown type, whose size is unknown too; Arrow may know it."""


_BITS_MAX = 63
_ONE_BYTE = frozenset({Kind.TRUE, Kind.FALSE, Kind.I8})
_WHOLE_NUMBERS = frozenset({Kind.I16, Kind.I32, Kind.I64})


def i32(value: int) -> Field:
    return Field(Kind.I32, value)


def i64(value: int) -> Field:
    return Field(Kind.I64, value)


def boolean(value: bool) -> Field:
    return Field(Kind.TRUE if value else Kind.FALSE, value)


def binary(value: bytes) -> Field:
    return Field(Kind.BINARY, value)


def structure(value: Struct) -> Field:
    return Field(Kind.STRUCT, value)


def items(kind: int, values: Sequence[Value]) -> Field:
    return Field(Kind.LIST, Items(kind, values))


def number_in(fields: Struct, field: int) -> int:
    """The integer in a field. Raises `pa.ArrowInvalid` if there is none."""
    value = fields[field].value if field in fields else None
    if not isinstance(value, int):
        raise pa.ArrowInvalid(f"Parquet metadata lacks the number in field {field}")
    return value


def struct_in(fields: Struct, field: int) -> Struct:
    """The struct in a field. Raises `pa.ArrowInvalid` if there is none."""
    value = fields[field].value if field in fields else None
    if not isinstance(value, dict):
        raise pa.ArrowInvalid(f"Parquet metadata lacks the struct in field {field}")
    return value


def structs_in(fields: Struct, field: int) -> list[Struct]:
    """The list of structs in a field. Raises `pa.ArrowInvalid` if there is none."""
    value = fields[field].value if field in fields else None
    if not isinstance(value, Items):
        raise pa.ArrowInvalid(f"Parquet metadata lacks the list in field {field}")
    return [each for each in value.values if isinstance(each, dict)]


def read_struct(data: bytes | memoryview, position: int = 0, wanted: Wanted | None = None) -> tuple[Struct, int]:
    """The struct at a position, and its end. Raises `pa.ArrowInvalid` for damaged bytes, and `UnknownKindError` for a
    type that another reader may know. `wanted` None: all fields."""
    reader = _Reader(data, position)
    try:
        return reader.structure(wanted), reader.position
    except (IndexError, ValueError, struct.error, RecursionError) as error:
        raise pa.ArrowInvalid(f"Parquet metadata at byte {position} is damaged: {error}") from error


def write_struct(fields: Struct) -> bytes:
    out = bytearray()
    _write_struct(out, fields)
    return bytes(out)


class _Reader:
    def __init__(self, data: bytes | memoryview, position: int) -> None:
        self.position = position
        self._data = data

    def structure(self, wanted: Wanted | None = None) -> Struct:
        fields: Struct = {}
        number = 0
        while head := self._byte():
            step, kind = head >> 4, head & 0x0F
            number = number + step if step else self._signed()
            if kind in {Kind.TRUE, Kind.FALSE}:
                fields[number] = Field(kind, kind == Kind.TRUE)
            elif wanted is None or number in wanted:
                fields[number] = Field(kind, self._value(kind, None if wanted is None else wanted[number]))
            else:
                self.position = _end_of(self._data, self.position, kind)
        return fields

    def _value(self, kind: int, wanted: Wanted | None = None) -> Value:
        if kind in _WHOLE_NUMBERS:
            return self._signed()
        if kind == Kind.BINARY:
            return self._bytes(self._unsigned())
        if kind == Kind.STRUCT:
            return self.structure(wanted)
        if kind == Kind.LIST:
            count, inner = self._list_head()
            return Items(inner, [self._value(inner, wanted) for _ in range(count)])
        if kind == Kind.DOUBLE:
            return float(struct.unpack("<d", self._bytes(8))[0])
        if kind not in _ONE_BYTE:
            raise UnknownKindError(f"a Thrift value of kind {kind}")
        byte = self._byte()
        return byte == Kind.TRUE if kind != Kind.I8 else byte - ((byte & 0x80) << 1)

    def end_of_counted(self, kind: int) -> int:
        """Where bytes or a list end."""
        if kind == Kind.BINARY:
            return self._unsigned() + self.position
        if kind != Kind.LIST:
            raise UnknownKindError(f"a Thrift value of kind {kind}")
        count, inner = self._list_head()
        for _ in range(count):
            self.position = _end_of(self._data, self.position, inner)
        return self.position

    def _list_head(self) -> tuple[int, int]:
        """The number of elements, and their kind."""
        head = self._byte()
        return head >> 4 if head >> 4 < 0x0F else self._unsigned(), head & 0x0F

    def _byte(self) -> int:
        byte = self._data[self.position]
        self.position += 1
        return byte

    def _bytes(self, count: int) -> bytes:
        taken = bytes(self._data[self.position : self.position + count])
        if len(taken) < count:
            raise ValueError("it ends early")
        self.position += count
        return taken

    def _unsigned(self) -> int:
        number = shift = 0
        while (byte := self._byte()) >= 0x80:
            number |= (byte & 0x7F) << shift
            shift += 7
            if shift > _BITS_MAX:
                raise ValueError("a number does not end")
        return number | byte << shift

    def _signed(self) -> int:
        number = self._unsigned()
        return (number >> 1) ^ -(number & 1)


def _end_of(data: bytes | memoryview, position: int, kind: int) -> int:
    """Where a value ends. Most of a footer is skipped, so no value is built."""
    if kind in _WHOLE_NUMBERS:
        while data[position] >= 0x80:
            position += 1
        return position + 1
    if kind == Kind.STRUCT:
        while head := data[position]:
            position += 1
            if not head >> 4:
                position = _end_of(data, position, Kind.I16)
            inner = head & 0x0F
            if inner in _WHOLE_NUMBERS and data[position] < 0x80:  # the most frequent ones, without a call
                position += 1
            elif inner > Kind.FALSE:
                position = _end_of(data, position, inner)
        return position + 1
    if kind == Kind.DOUBLE:
        return position + 8
    if kind in _ONE_BYTE:
        return position + 1
    return _Reader(data, position).end_of_counted(kind)


def _write_struct(out: bytearray, fields: Struct) -> None:
    before = 0
    for number, field in sorted(fields.items()):
        step = number - before
        if 0 < step <= 0x0F:
            out.append(step << 4 | field.kind)
        else:
            out.append(field.kind)
            _write_signed(out, number)
        before = number
        if field.kind > Kind.FALSE:
            _write_value(out, field.kind, field.value)
    out.append(0)


def _write_value(out: bytearray, kind: int, value: Value) -> None:
    if isinstance(value, dict):
        _write_struct(out, value)
    elif isinstance(value, Items):
        count = len(value.values)
        out.append(min(count, 0x0F) << 4 | value.kind)
        if count >= 0x0F:
            write_unsigned(out, count)
        for each in value.values:
            _write_value(out, value.kind, each)
    elif isinstance(value, bytes):
        write_unsigned(out, len(value))
        out += value
    elif isinstance(value, float):
        out += struct.pack("<d", value)
    elif kind in _WHOLE_NUMBERS:
        _write_signed(out, value)
    elif kind == Kind.I8:
        out.append(value & 0xFF)
    else:
        out.append(Kind.TRUE if value else Kind.FALSE)


def write_unsigned(out: bytearray, number: int) -> None:
    """Appends a varint, seven bits per byte; Parquet's levels and codes use them too."""
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def _write_signed(out: bytearray, number: int) -> None:
    write_unsigned(out, number << 1 if number >= 0 else (-number << 1) - 1)
