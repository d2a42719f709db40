"""Every Arrow type that a key may have, with raw values and what the rules of survival say of them, in plain Python.

A raw value is what is easiest to reason about: an int for everything that counts something (days, ticks, numbers), a
float, a str, bytes, a bool, a Decimal. `canonical` is FORMAT.md's "Key digests" written a second time, value by value.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from typing import Literal

import pyarrow as pa
from hypothesis import strategies as st

Raw = int | float | str | bytes | bool | Decimal
TICKS_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
NULL_FRAME = b"\xff\xff\xff\xff"


@dataclass(frozen=True)
class KeyType:
    """One Arrow type. `sortable`: it has a fixed width, so that it can be a sort key as well."""

    arrow_type: pa.DataType
    values: st.SearchStrategy[Raw]
    canonical: Callable[[Raw], bytes]
    sortable: bool

    def __str__(self) -> str:
        return str(self.arrow_type)

    def array(self, values: Sequence[Raw | None]) -> pa.Array:
        return raw_array(self.arrow_type, values)


def raw_array(arrow_type: pa.DataType, values: Sequence[Raw | None]) -> pa.Array:
    """An array of raw values: what counts something is built from its ticks, so that no time zone gets in between."""
    if pa.types.is_dictionary(arrow_type):
        return raw_array(arrow_type.value_type, values).dictionary_encode().cast(arrow_type)
    if pa.types.is_temporal(arrow_type):
        carrier = pa.int32() if arrow_type.bit_width == 32 else pa.int64()
        return pa.array(values, carrier).view(arrow_type)
    if pa.types.is_decimal(arrow_type):
        with localcontext() as context:
            context.prec = 80
            return pa.array(values, arrow_type)
    return pa.array(values, arrow_type)


def canonical_integer(value: Raw) -> bytes:
    number = int(value)
    return number.to_bytes(8, "little", signed=True) if number < 2**63 else number.to_bytes(9, "little")


def canonical_float(value: Raw) -> bytes:
    number = float(value)
    if math.isnan(number):
        return bytes.fromhex("000000000000f87f")
    return struct.pack("<d", 0.0 if number == 0 else number)


def canonical_bool(value: Raw) -> bytes:
    return bytes([bool(value)])


def canonical_decimal(value: Raw) -> bytes:
    with localcontext() as context:
        context.prec = 80
        return int(Decimal(str(value)).scaleb(38)).to_bytes(32, "little", signed=True)


def canonical_bytes(value: Raw) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)  # type: ignore[arg-type]


def canonical_instant(unit: str) -> Callable[[Raw], bytes]:
    def render(ticks: Raw) -> bytes:
        seconds, rest = divmod(int(ticks), TICKS_PER_SECOND[unit])
        nanoseconds = rest * (10**9 // TICKS_PER_SECOND[unit])
        return seconds.to_bytes(8, "little", signed=True) + nanoseconds.to_bytes(4, "little")

    return render


def canonical_time(unit: str) -> Callable[[Raw], bytes]:
    return lambda ticks: canonical_integer(int(ticks) * (10**9 // TICKS_PER_SECOND[unit]))


def canonical_date64(milliseconds: Raw) -> bytes:
    return canonical_integer(int(milliseconds) // 86_400_000)


def plain_digest(frames: Sequence[bytes | None]) -> bytes:
    """SHA-1 of the framed canonical bytes of one key's columns, in sorted name order; None for null."""
    return hashlib.sha1(plain_message(frames)).digest()


def plain_message(frames: Sequence[bytes | None]) -> bytes:
    return b"".join(NULL_FRAME if each is None else len(each).to_bytes(4, "little") + each for each in frames)


def _integers(bits: int, signed: bool) -> KeyType:
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    arrow_type = pa.type_for_alias(f"{'' if signed else 'u'}int{bits}")
    return KeyType(arrow_type, st.integers(low, high), canonical_integer, sortable=True)


def _floats(arrow_type: pa.DataType, width: Literal[16, 32, 64]) -> KeyType:
    return KeyType(arrow_type, st.floats(width=width), canonical_float, sortable=True)


def _decimals(arrow_type: pa.DataType) -> KeyType:
    digits = min(arrow_type.precision, 38)
    numbers = st.integers(-(10**digits) + 1, 10**digits - 1)
    values: st.SearchStrategy[Raw] = numbers.map(lambda number: _scaled(number, arrow_type.scale))
    return KeyType(arrow_type, values, canonical_decimal, sortable=True)


def _scaled(number: int, scale: int) -> Decimal:
    with localcontext() as context:
        context.prec = 80
        return Decimal(number).scaleb(-scale)


def _texts(arrow_type: pa.DataType) -> KeyType:
    return KeyType(arrow_type, st.text(max_size=80), canonical_bytes, sortable=False)


def _binaries(arrow_type: pa.DataType) -> KeyType:
    return KeyType(arrow_type, st.binary(max_size=200), canonical_bytes, sortable=False)


def _ticks(arrow_type: pa.DataType, canonical: Callable[[Raw], bytes], low: int, high: int) -> KeyType:
    return KeyType(arrow_type, st.integers(low, high), canonical, sortable=True)


_INT64 = (-(2**63), 2**63 - 1)
_MS_PER_DAY = 86_400_000
_DAYS = st.integers(-20_000_000, 20_000_000)

KEY_TYPES: tuple[KeyType, ...] = (
    *(_integers(bits, signed) for bits in (8, 16, 32, 64) for signed in (True, False)),
    _floats(pa.float16(), 16),
    _floats(pa.float32(), 32),
    _floats(pa.float64(), 64),
    KeyType(pa.bool_(), st.booleans(), canonical_bool, sortable=True),
    _decimals(pa.decimal32(7, 2)),
    _decimals(pa.decimal64(18, 4)),
    _decimals(pa.decimal128(38, 2)),
    _decimals(pa.decimal256(50, 12)),
    *(_texts(kind) for kind in (pa.string(), pa.large_string(), pa.string_view())),
    *(_binaries(kind) for kind in (pa.binary(), pa.large_binary(), pa.binary_view())),
    KeyType(pa.binary(3), st.binary(min_size=3, max_size=3), canonical_bytes, sortable=True),
    _ticks(pa.date32(), canonical_integer, -(2**31), 2**31 - 1),
    KeyType(pa.date64(), _DAYS.map(lambda days: days * _MS_PER_DAY), canonical_date64, sortable=True),
    *(_ticks(pa.time32(unit), canonical_time(unit), 0, 86_400 * TICKS_PER_SECOND[unit] - 1) for unit in ("s", "ms")),
    *(_ticks(pa.time64(unit), canonical_time(unit), 0, 86_400 * TICKS_PER_SECOND[unit] - 1) for unit in ("us", "ns")),
    *(
        _ticks(pa.timestamp(unit, zone), canonical_instant(unit), *_INT64)
        for unit in ("s", "ms", "us", "ns")
        for zone in (None, "America/Los_Angeles")
    ),
    *(_ticks(pa.duration(unit), canonical_instant(unit), *_INT64) for unit in ("s", "ms", "us", "ns")),
    KeyType(pa.dictionary(pa.int32(), pa.string()), st.text(max_size=9), canonical_bytes, sortable=False),
    KeyType(pa.dictionary(pa.int8(), pa.int64()), st.integers(*_INT64), canonical_integer, sortable=True),
)
