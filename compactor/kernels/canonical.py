"""Key columns as canonical bytes: equal values, equal bytes, independent of the Arrow type (FORMAT.md, "Key digests").

integers             8 bytes, two's complement, little-endian; 9 bytes (a zero on top) from 2^63 on
floats               8 bytes, IEEE 754 double, little-endian; -0.0 is 0.0, every NaN is one NaN
bool                 1 byte
decimal              32 bytes, two's complement, little-endian, of the value times 10^38
string, binary       the bytes themselves
date                 8 bytes: days since 1970-01-01
time                 8 bytes: nanoseconds since midnight
timestamp, duration  12 bytes: seconds (8 bytes, floored), then nanoseconds (4 bytes)

A dictionary-encoded value is the value it stands for, a value of an extension type (a UUID) what it is stored as.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from compactor.model.arrow_types import stored_values, value_type
from compactor.model.errors import Invalid

_SECOND_PARTS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_DECIMAL = pa.decimal256(76, 38)
_MS_PER_DAY = 86_400_000

Bytes = npt.NDArray[np.uint8]
Valid: TypeAlias = npt.NDArray[np.bool_] | None


@dataclass(frozen=True)
class FixedColumn:
    """Canonical bytes of one width. values: uint8 (rows, width); valid: bool (rows,), or None where no row is null."""

    values: Bytes
    valid: Valid


@dataclass(frozen=True)
class VariableColumn:
    """Canonical bytes of any width: row i is data[offsets[i]:offsets[i + 1]]. offsets: int64 (rows + 1,)."""

    offsets: npt.NDArray[np.int64]
    data: Bytes
    valid: Valid


CanonicalColumn = FixedColumn | VariableColumn


def canonical_column(name: str, column: pa.ChunkedArray) -> CanonicalColumn:
    """The canonical bytes of a key column. Raises `Invalid` for a type or a value that has no canonical form."""
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], column.type)
    array = stored_values(array)
    encode = _encoder_of(array.type)
    if encode is None:
        raise Invalid(unsupported_key_type(name, column.type))
    try:
        return encode(array, array.is_valid().to_numpy(zero_copy_only=False) if array.null_count else None)
    except pa.ArrowInvalid as error:
        message = f"column {name!r} of type {array.type} holds a value outside the range of decimal keys: {error}"
        raise Invalid(message) from error


def is_key_type(arrow_type: pa.DataType) -> bool:
    """Whether a primary key column may have this type: whether its values have a canonical form."""
    return _encoder_of(value_type(arrow_type)) is not None


def unsupported_key_type(name: str, arrow_type: pa.DataType) -> str:
    """The message for a key column whose type is not supported."""
    return f"primary key column {name!r} has type {arrow_type}: keys cannot be nested, nor calendar intervals"


def _variable(array: pa.Array, valid: Valid) -> CanonicalColumn:
    if not (pa.types.is_string(array.type) or pa.types.is_binary(array.type)):
        array = array.cast(pa.large_binary())
    offset_type = np.int64 if pa.types.is_large_binary(array.type) else np.int32
    _, offset_buffer, data_buffer = array.buffers()
    rows = len(array)
    if rows == 0 or data_buffer is None:
        return VariableColumn(np.zeros(rows + 1, np.int64), np.empty(0, np.uint8), valid)
    offsets = np.frombuffer(offset_buffer, offset_type)[array.offset : array.offset + rows + 1]
    return VariableColumn(offsets.astype(np.int64), np.frombuffer(data_buffer, np.uint8), valid)


def _unsigned(array: pa.Array, valid: Valid) -> CanonicalColumn:
    values = array.fill_null(0).to_numpy(zero_copy_only=False)
    beyond_int64 = values >= np.uint64(1 << 63)
    narrow = values.astype("<u8").view(np.uint8).reshape(-1, 8)
    if not beyond_int64.any():
        return FixedColumn(narrow, valid)
    nine = np.zeros((len(values), 9), np.uint8)
    nine[:, :8] = narrow
    widths = np.where(beyond_int64, 9, 8)
    kept = np.arange(9)[None, :] < widths[:, None]
    return VariableColumn(np.concatenate(([0], np.cumsum(widths))).astype(np.int64), nine[kept], valid)


def _nulls(array: pa.Array, valid: Valid) -> CanonicalColumn:
    return FixedColumn(np.zeros((len(array), 8), np.uint8), valid)


def _bools(array: pa.Array, valid: Valid) -> CanonicalColumn:
    bits: Bytes = array.fill_null(False).to_numpy(zero_copy_only=False).astype(np.uint8)
    return FixedColumn(bits.reshape(-1, 1), valid)


def _integers(array: pa.Array, valid: Valid) -> CanonicalColumn:
    return _eight_bytes(array.fill_null(0).to_numpy(zero_copy_only=False), valid)


def _days(array: pa.Array, valid: Valid) -> CanonicalColumn:
    if pa.types.is_date32(array.type):
        return _integers(array.view(pa.int32()), valid)
    milliseconds = array.view(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    return _eight_bytes(milliseconds // _MS_PER_DAY, valid)


def _times(array: pa.Array, valid: Valid) -> CanonicalColumn:
    ticks = array.view(pa.int32() if pa.types.is_time32(array.type) else pa.int64()).fill_null(0)
    per_tick = 1_000_000_000 // _SECOND_PARTS[array.type.unit]
    return _eight_bytes(ticks.to_numpy(zero_copy_only=False).astype(np.int64) * per_tick, valid)


def _eight_bytes(integers: npt.NDArray[np.integer], valid: Valid) -> CanonicalColumn:
    return FixedColumn(np.ascontiguousarray(np.asarray(integers, "<i8").view(np.uint8).reshape(-1, 8)), valid)


def _floats(array: pa.Array, valid: Valid) -> CanonicalColumn:
    with np.errstate(invalid="ignore"):  # a signalling NaN is a NaN
        doubles = np.asarray(array.fill_null(0).to_numpy(zero_copy_only=False), "<f8") + 0.0  # -0.0 + 0.0 is 0.0
    doubles[np.isnan(doubles)] = np.nan
    return FixedColumn(doubles.view(np.uint8).reshape(-1, 8), valid)


def _decimals(array: pa.Array, valid: Valid) -> CanonicalColumn:
    scaled = array.cast(_DECIMAL)
    if len(scaled) == 0:
        return FixedColumn(np.empty((0, 32), np.uint8), valid)
    raw = np.frombuffer(scaled.buffers()[1], np.uint8).reshape(-1, 32)
    return FixedColumn(np.ascontiguousarray(raw[scaled.offset : scaled.offset + len(scaled)]), valid)


def _instants(array: pa.Array, valid: Valid) -> CanonicalColumn:
    per_second = _SECOND_PARTS[array.type.unit]
    ticks = array.view(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    seconds, rest = np.divmod(ticks, per_second)
    out = np.empty((len(ticks), 12), np.uint8)
    out[:, :8] = seconds.astype("<i8").view(np.uint8).reshape(-1, 8)
    out[:, 8:] = (rest * (1_000_000_000 // per_second)).astype("<u4").view(np.uint8).reshape(-1, 4)
    return FixedColumn(out, valid)


def is_bytes_like(arrow_type: pa.DataType) -> bool:
    """Text and bytes of any layout."""
    return bool(
        pa.types.is_string(arrow_type)
        or pa.types.is_large_string(arrow_type)
        or pa.types.is_string_view(arrow_type)
        or pa.types.is_binary(arrow_type)
        or pa.types.is_large_binary(arrow_type)
        or pa.types.is_binary_view(arrow_type)
        or pa.types.is_fixed_size_binary(arrow_type)
    )


_Encoder = Callable[[pa.Array, Valid], CanonicalColumn]

_ENCODERS: tuple[tuple[Callable[[pa.DataType], bool], _Encoder], ...] = (
    (pa.types.is_uint64, _unsigned),
    (pa.types.is_integer, _integers),
    (pa.types.is_decimal, _decimals),
    (is_bytes_like, _variable),
    (pa.types.is_null, _nulls),
    (pa.types.is_boolean, _bools),
    (pa.types.is_floating, _floats),
    (pa.types.is_timestamp, _instants),
    (pa.types.is_duration, _instants),
    (pa.types.is_date, _days),
    (pa.types.is_time, _times),
)
"""The key types, after `stored_values`: the first match applies."""


def _encoder_of(arrow_type: pa.DataType) -> _Encoder | None:
    return next((encode for fits, encode in _ENCODERS if fits(arrow_type)), None)
