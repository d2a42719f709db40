"""Partition keys that are derived from a column, by the transforms of Apache Iceberg. Pure.

`day(ordered_at)`, and so `year`, `month`, `hour`; `bucket[16](order_id)`; `truncate[4](code)`; `identity(region)`. What
they give is Iceberg's own text: `2026`, `2026-11`, `2026-11-25`, `2026-11-25-13`, the number of a bucket, the beginning
of a text, a number without its remainder. FORMAT.md has test vectors.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Context, Decimal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from compactor.model.arrow_types import value_type
from compactor.model.errors import Invalid

Int64s = npt.NDArray[np.int64]
Uint32s = npt.NDArray[np.uint32]

IDENTITY, BUCKET, TRUNCATE, HOUR = "identity", "bucket", "truncate", "hour"
_OF_TIME: Mapping[str, str] = {"year": "Y", "month": "M", "day": "D", HOUR: "h"}
"""NumPy's units of time, by the name of the transform."""

_WRITTEN = re.compile(
    r"\s*(?P<name>[a-z]+)\s*(?:\[\s*(?P<width>\d+)\s*\])?"
    r"\s*\(\s*(?:(?P<of_sql>\d+)\s*,)?\s*(?P<column>.+?)\s*\)\s*"
)
_WIDTH_MAX = (1 << 31) - 1
_EXACT = Context(prec=100)
"""Python's own context rounds to 28 digits."""
_MICROS_OF_A_DAY = 86_400_000_000
_NANOS_OF: Mapping[str, int] = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
_COUNTED = re.compile(r"-?\d+(-\d\d){0,3}")
_WITH_TEXTS = (pa.string(), pa.int64(), pa.bool_(), pa.date32(), pa.timestamp("us"))


@dataclass(frozen=True)
class Transform:
    """`width`: buckets, or what is left of a text or a number; None: the transform has none."""

    name: str
    column: str
    width: int | None = None

    def __str__(self) -> str:
        width = "" if self.width is None else f"[{self.width}]"
        return f"{self.name}{width}({self.column})"

    def reason_against(self, kind: pa.DataType) -> str | None:
        """Why a column of this type cannot be transformed."""
        kind = value_type(kind)
        if self._fits(kind):
            return None
        what = f"{self} is of" if self.name != IDENTITY else "a partition is"
        return f"column {self.column!r} is {kind}, and {what} {_KINDS_OF[self.name]}"

    def _fits(self, kind: pa.DataType) -> bool:
        if self.name in _OF_TIME:
            return bool(pa.types.is_timestamp(kind) or (self.name != HOUR and pa.types.is_date(kind)))
        has_one_text = is_text(kind) or pa.types.is_integer(kind)
        if self.name == IDENTITY:
            return bool(has_one_text or pa.types.is_boolean(kind) or pa.types.is_date(kind))
        if self.name == TRUNCATE:
            return bool(has_one_text or pa.types.is_decimal128(kind))
        return bool(has_one_text or pa.types.is_decimal128(kind) or pa.types.is_temporal(kind) or is_binary(kind))

    def values(self, column: pa.Array) -> pa.Array:
        """One value a row: numbers, or text. `column` has no nulls, and a type that `reason_against` accepts."""
        if self.name in _OF_TIME:
            return pa.array(_whole_units(column, self.name))
        if self.name == BUCKET:
            return pa.array((_hashes(column) & np.uint32(0x7FFFFFFF)).astype(np.int64) % (self.width or 1))
        if self.name == TRUNCATE:
            return _truncated(column, self.width or 1)
        return column

    def texts(self, values: pa.Array) -> pa.Array:
        """The partition's values, of what `values` has given."""
        unit = self._unit(values.type)
        if unit is None:
            return values.cast(pa.string())
        counts = _days(values) if pa.types.is_date(values.type) else values.to_numpy(zero_copy_only=False)
        return pa.array(_texts_of(counts, unit), pa.string())

    def value_of(self, text: str, kind: pa.DataType) -> int | str | None:
        """The value with this text, as Iceberg has it: dates and times are counts since 1970. None: no value has it.

        Args:
            kind: the column's, which `reason_against` accepts, and no decimal"""
        unit, kind = self._unit(value_type(kind)), value_type(kind)
        try:
            if unit is not None:
                count = _count_of(text, unit)
                return count if _texts_of(np.array([count]), unit) == [text] else None
            if self.name == BUCKET:
                return int(text) if int(text) in range(self.width or 1) and text == str(int(text)) else None
            whole = pa.types.is_integer(kind)  # what is left of a narrow number may be beneath its type
            value = pa.array([text]).cast(pa.int64() if whole else kind)
            return value[0].as_py() if self.texts(self.values(value))[0].as_py() == text else None
        except (ValueError, OverflowError, Invalid):
            return None

    def may_give(self, text: str) -> bool:
        """Whether a value of a column of some type has this text."""
        return any(self._fits(kind) and self.value_of(text, kind) is not None for kind in _WITH_TEXTS)

    def _unit(self, kind: pa.DataType) -> str | None:
        """NumPy's unit of what the texts say. `kind`: the column's, or that of `values`."""
        return "D" if self.name == IDENTITY and pa.types.is_date(kind) else _OF_TIME.get(self.name)


_KINDS_OF: Mapping[str, str] = {
    IDENTITY: "text, whole numbers, dates or bools",
    **dict.fromkeys(("year", "month", "day"), "dates or times of a day"),
    HOUR: "times of a day",
    BUCKET: "text, bytes, whole numbers, decimals, dates or times",
    TRUNCATE: "text, whole numbers or decimals",
}


def parse_transform(key: str, text: str) -> Transform:
    """Raises `Invalid` for what is no transform of a column."""
    found = _WRITTEN.fullmatch(text)
    if found is None or found["name"] not in _KINDS_OF:
        raise Invalid(
            f"partition_by: {key} is {text!r}: write a transform of a column, such as day(ordered_at), "
            f"bucket[16](id), truncate[4](code): there are {', '.join(sorted(_KINDS_OF))}"
        )
    name, written = found["name"], found["width"] or found["of_sql"]
    if (name in (BUCKET, TRUNCATE)) != (written is not None):
        raise Invalid(f"partition_by: {key} is {text!r}: bucket and truncate, and no others, have a width in brackets")
    width = None if written is None else int(written)
    if width is not None and not 0 < width <= _WIDTH_MAX:
        raise Invalid(f"partition_by: {key} is {text!r}: its width must be from 1 to {_WIDTH_MAX:,}")
    return Transform(name, found["column"], width)


def is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


# --------------------------------------------------------------------------------------------------------------- times


def _micros(column: pa.Array) -> Int64s:
    """int64 (rows,): of dates and times since 1970 in UTC, of times of day since midnight."""
    kind = column.type
    if pa.types.is_date(kind):
        return _days(column) * _MICROS_OF_A_DAY
    counts: Int64s = column.view(pa.int32() if kind.bit_width == 32 else pa.int64()).to_numpy().astype(np.int64)
    nanos = _NANOS_OF[kind.unit]
    if nanos < 1_000:
        return counts // (1_000 // nanos)
    micros = counts * (nanos // 1_000)
    if (micros // (nanos // 1_000) != counts).any():
        raise Invalid(f"a {kind} is beyond the microseconds that int64 holds")
    return micros


def _days(column: pa.Array) -> Int64s:
    days: Int64s = column.cast(pa.date32()).view(pa.int32()).to_numpy().astype(np.int64)
    return days


def _texts_of(counts: Int64s, unit: str) -> list[str]:
    return [each.replace("T", "-") for each in np.datetime_as_string(counts.astype(f"datetime64[{unit}]")).tolist()]


def _count_of(text: str, unit: str) -> int:
    """Raises `ValueError` for what is no such date."""
    if _COUNTED.fullmatch(text) is None:
        raise ValueError(text)
    written = f"{text[:-3]}T{text[-2:]}" if unit == "h" else text
    return int(np.array([written], f"datetime64[{unit}]").astype(np.int64)[0])


def _whole_units(column: pa.Array, name: str) -> Int64s:
    """int64 (rows,): years, months, days or hours since 1970."""
    if name == HOUR:
        return _micros(column) // (_MICROS_OF_A_DAY // 24)
    days = _days(column) if pa.types.is_date(column.type) else _micros(column) // _MICROS_OF_A_DAY
    return days.astype("datetime64[D]").astype(f"datetime64[{_OF_TIME[name]}]").astype(np.int64)


# ----------------------------------------------------------------------------------------------------------- truncated


def _truncated(column: pa.Array, width: int) -> pa.Array:
    kind = column.type
    if is_text(kind):
        import pyarrow.compute as pc

        return pc.utf8_slice_codeunits(column.cast(pa.string()), 0, width)
    if pa.types.is_integer(kind):
        numbers = column.cast(pa.uint64() if kind == pa.uint64() else pa.int64()).to_numpy()
        lower = numbers - numbers % numbers.dtype.type(width)
        if (lower > numbers).any() or (kind == pa.int32() and lower.min(initial=0) < -(1 << 31)):
            raise _beyond(column, kind, width)
        return pa.array(lower)
    distinct = column.dictionary_encode()
    unscaled = (each - each % width for each in _unscaled(distinct.dictionary))
    try:
        found = pa.array(
            [Decimal(each).scaleb(-kind.scale, _EXACT) for each in unscaled], pa.decimal128(38, kind.scale)
        )
    except pa.ArrowInvalid as error:
        raise _beyond(column, kind, width) from error
    return found.take(distinct.indices)


def _beyond(column: pa.Array, kind: pa.DataType, width: int) -> Invalid:
    return Invalid(f"truncate[{width}] of {min(column.to_pylist())} is no {kind}: no partition can have it")


def _unscaled(decimals: pa.Array) -> list[int]:
    return [int(each.scaleb(decimals.type.scale, _EXACT)) for each in decimals.to_pylist()]


# -------------------------------------------------------------------------------------------------------------- hashes


def _hashes(column: pa.Array) -> Uint32s:
    """Murmur3 (32 bits, x86, seed 0) of each value's bytes, as Iceberg has them."""
    kind = column.type
    if pa.types.is_integer(kind):
        try:
            return _hashes_of_numbers(column.cast(pa.int64()).to_numpy())
        except pa.ArrowInvalid as error:
            raise Invalid(f"{max(column.to_pylist())} is beyond int64, and a bucket is of numbers within it") from error
    if pa.types.is_date(kind):
        return _hashes_of_numbers(_days(column))
    if pa.types.is_temporal(kind):
        return _hashes_of_numbers(_micros(column))
    if pa.types.is_decimal(kind):
        distinct = column.dictionary_encode()
        unscaled = _unscaled(distinct.dictionary)
        raw = pa.array([each.to_bytes(_bytes_of(each), "big", signed=True) for each in unscaled], pa.binary())
        found: Uint32s = _hashes_of_bytes(raw)[distinct.indices.to_numpy()]
        return found
    return _hashes_of_bytes(column.cast(pa.string() if is_text(kind) else pa.binary()))


def _bytes_of(number: int) -> int:
    """Bytes of the shortest two's complement."""
    return (number if number >= 0 else ~number).bit_length() // 8 + 1


def _hashes_of_numbers(numbers: Int64s) -> Uint32s:
    """Each as 8 bytes, the lowest first."""
    halves = numbers.astype("<i8").view("<u4").reshape(-1, 2)
    found = np.zeros(len(numbers), np.uint32)
    for half in (0, 1):
        found = _mixed(found, halves[:, half])
    return _finished(found, np.full(len(numbers), 8, np.uint32))


def _hashes_of_bytes(values: pa.Array) -> Uint32s:
    buffers = values.buffers()
    offsets = np.frombuffer(buffers[1], np.int32)[values.offset : values.offset + len(values) + 1].astype(np.int64)
    data = np.frombuffer(buffers[2], np.uint8) if buffers[2] is not None else np.zeros(0, np.uint8)
    starts, lengths = offsets[:-1], np.diff(offsets)
    found = np.zeros(len(values), np.uint32)
    for block in range(int(lengths.max(initial=0)) // 4):
        rows = np.flatnonzero(lengths // 4 > block)
        at = starts[rows] + 4 * block
        word = np.zeros(len(rows), np.uint32)
        for byte in range(4):
            word |= data[at + byte].astype(np.uint32) << np.uint32(8 * byte)
        found[rows] = _mixed(found[rows], word)
    rest, tail = lengths % 4, np.zeros(len(values), np.uint32)
    for byte in range(3):
        rows = np.flatnonzero(rest > byte)
        at = starts[rows] + lengths[rows] - rest[rows] + byte
        tail[rows] |= data[at].astype(np.uint32) << np.uint32(8 * byte)
    return _finished(found ^ _scrambled(tail), lengths.astype(np.uint32))


def _rotated(words: Uint32s, bits: int) -> Uint32s:
    return (words << np.uint32(bits)) | (words >> np.uint32(32 - bits))


def _scrambled(words: Uint32s) -> Uint32s:
    return _rotated(words * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)


def _mixed(found: Uint32s, words: Uint32s) -> Uint32s:
    return _rotated(found ^ _scrambled(words), 13) * np.uint32(5) + np.uint32(0xE6546B64)


def _finished(found: Uint32s, lengths: Uint32s) -> Uint32s:
    found = found ^ lengths
    found = (found ^ (found >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    found = (found ^ (found >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return found ^ (found >> np.uint32(16))
