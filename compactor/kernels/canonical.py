"""Key columns as canonical bytes: equal values, equal bytes, whatever Arrow type held them (FORMAT.md, "Key digests").

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

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from compactor.errors import Invalid

_SECOND_PARTS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_DECIMAL = pa.decimal256(76, 38)
_MS_PER_DAY = 86_400_000

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class FixedColumn:
    """Canonical bytes of one width. values: uint8 (rows, width); valid: bool (rows,), or None where no row is null."""

    values: Bytes
    valid: npt.NDArray[np.bool_] | None


@dataclass(frozen=True)
class VariableColumn:
    """Canonical bytes of any width: row i is data[offsets[i]:offsets[i + 1]]. offsets: int64 (rows + 1,)."""

    offsets: npt.NDArray[np.int64]
    data: Bytes
    valid: npt.NDArray[np.bool_] | None


CanonicalColumn = FixedColumn | VariableColumn


def canonical_column(name: str, column: pa.ChunkedArray) -> CanonicalColumn:
    """The canonical bytes of a key column. Raises `Invalid` for a nested type or a value that has no canonical form."""
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], column.type)
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    valid = array.is_valid().to_numpy(zero_copy_only=False) if array.null_count else None
    if _is_bytes_like(array.type):
        return _variable(array, valid)
    if pa.types.is_uint64(array.type):
        return _unsigned(array, valid)
    return FixedColumn(np.ascontiguousarray(_fixed_bytes(name, array)), valid)


def _is_bytes_like(arrow_type: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(arrow_type)
        or pa.types.is_large_string(arrow_type)
        or pa.types.is_string_view(arrow_type)
        or pa.types.is_binary(arrow_type)
        or pa.types.is_large_binary(arrow_type)
        or pa.types.is_binary_view(arrow_type)
        or pa.types.is_fixed_size_binary(arrow_type)
    )


def _variable(array: pa.Array, valid: npt.NDArray[np.bool_] | None) -> VariableColumn:
    if not (pa.types.is_string(array.type) or pa.types.is_binary(array.type)):
        array = array.cast(pa.large_binary())
    offset_type = np.int64 if pa.types.is_large_binary(array.type) else np.int32
    _, offset_buffer, data_buffer = array.buffers()
    rows = len(array)
    if rows == 0 or data_buffer is None:
        return VariableColumn(np.zeros(rows + 1, np.int64), np.empty(0, np.uint8), valid)
    offsets = np.frombuffer(offset_buffer, offset_type)[array.offset : array.offset + rows + 1]
    return VariableColumn(offsets.astype(np.int64), np.frombuffer(data_buffer, np.uint8), valid)


def _unsigned(array: pa.Array, valid: npt.NDArray[np.bool_] | None) -> CanonicalColumn:
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


def _fixed_bytes(name: str, array: pa.Array) -> Bytes:
    arrow_type = array.type
    if pa.types.is_null(arrow_type):
        return np.zeros((len(array), 8), np.uint8)
    if pa.types.is_boolean(arrow_type):
        bits: Bytes = array.fill_null(False).to_numpy(zero_copy_only=False).astype(np.uint8)
        return bits.reshape(-1, 1)
    if pa.types.is_decimal(arrow_type):
        return _decimal_bytes(name, array)
    if pa.types.is_floating(arrow_type):
        return _float_bytes(array)
    if pa.types.is_timestamp(arrow_type) or pa.types.is_duration(arrow_type):
        return _instant_bytes(array)
    if pa.types.is_integer(arrow_type):
        integers = array.fill_null(0).to_numpy(zero_copy_only=False)
    elif pa.types.is_date32(arrow_type):
        integers = array.view(pa.int32()).fill_null(0).to_numpy(zero_copy_only=False)
    elif pa.types.is_date64(arrow_type):
        integers = array.view(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False) // _MS_PER_DAY
    elif pa.types.is_time(arrow_type):
        ticks = array.view(pa.int32() if pa.types.is_time32(arrow_type) else pa.int64()).fill_null(0)
        per_tick = 1_000_000_000 // _SECOND_PARTS[arrow_type.unit]
        integers = ticks.to_numpy(zero_copy_only=False).astype(np.int64) * per_tick
    else:
        raise Invalid(f"column {name!r} has type {arrow_type}, which cannot be a primary key: use un-nested columns")
    return np.asarray(integers, "<i8").view(np.uint8).reshape(-1, 8)


def _float_bytes(array: pa.Array) -> Bytes:
    with np.errstate(invalid="ignore"):  # a signalling NaN is a NaN
        doubles = np.asarray(array.fill_null(0).to_numpy(zero_copy_only=False), "<f8") + 0.0  # -0.0 + 0.0 is 0.0
    doubles[np.isnan(doubles)] = np.nan
    return doubles.view(np.uint8).reshape(-1, 8)


def _decimal_bytes(name: str, array: pa.Array) -> Bytes:
    try:
        scaled = array.cast(_DECIMAL)
    except pa.ArrowInvalid as error:
        message = f"column {name!r} of type {array.type} holds a value outside the range of decimal keys: {error}"
        raise Invalid(message) from error
    if len(scaled) == 0:
        return np.empty((0, 32), np.uint8)
    raw = np.frombuffer(scaled.buffers()[1], np.uint8).reshape(-1, 32)
    return raw[scaled.offset : scaled.offset + len(scaled)]


def _instant_bytes(array: pa.Array) -> Bytes:
    per_second = _SECOND_PARTS[array.type.unit]
    ticks = array.view(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    seconds, rest = np.divmod(ticks, per_second)
    out = np.empty((len(ticks), 12), np.uint8)
    out[:, :8] = seconds.astype("<i8").view(np.uint8).reshape(-1, 8)
    out[:, 8:] = (rest * (1_000_000_000 // per_second)).astype("<u4").view(np.uint8).reshape(-1, 4)
    return out
