"""Sort key values as bytes whose comparison has the order of the sort keys: the greater sorts later and wins.

Each column becomes one presence byte (0 for null and NaN, which lose to any value) and its value, most significant byte
first, turned so that bytes compare as values do; a descending column's value bytes are inverted. The encoding is
reversible: the index file holds the values in their own Arrow types.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class SortColumn:
    """A sort key column with the type that its values have throughout a round."""

    name: str
    arrow_type: pa.DataType
    descending: bool

    @property
    def value_bytes(self) -> int:
        return fixed_width_bytes(self.arrow_type) or 0


def fixed_width_bytes(arrow_type: pa.DataType) -> int | None:
    """How many bytes a value of a sort key type takes; None where the type cannot be a sort key."""
    if pa.types.is_boolean(arrow_type):
        return 1
    if pa.types.is_fixed_size_binary(arrow_type):
        return int(arrow_type.byte_width)
    is_number = pa.types.is_integer(arrow_type) or pa.types.is_floating(arrow_type) or pa.types.is_decimal(arrow_type)
    is_time = pa.types.is_temporal(arrow_type) and not pa.types.is_interval(arrow_type)
    return int(arrow_type.bit_width) // 8 if is_number or is_time else None


def encoded_width(columns: Sequence[SortColumn]) -> int:
    """Width of the encoded sort values of one row, in bytes."""
    return sum(1 + column.value_bytes for column in columns)


def encode_sort_values(columns: Sequence[SortColumn], values: Sequence[pa.Array], rows: int) -> Bytes:
    """The sort values of every row, uint8 (rows, encoded_width). `values` in the columns' order and types.

    Precondition, which is checked: each has `rows` rows. This is NumPy, which checks its indices.
    """
    if any(len(array) != rows for array in values):
        raise ValueError(f"sort columns of {[len(array) for array in values]} rows, not of {rows}")
    encoded = np.zeros((rows, encoded_width(columns)), np.uint8)
    start = 0
    for column, array in zip(columns, values, strict=True):
        end = start + 1 + column.value_bytes
        present, raw = _big_endian(column, array)
        if column.descending:
            raw = ~raw
        encoded[:, start] = present
        _field(encoded, start + 1, end)[:] = _items(raw)
        if not present.all():
            encoded[~present, start + 1 : end] = 0
        start = end
    return encoded


def decode_sort_values(columns: Sequence[SortColumn], encoded: Bytes) -> list[pa.Array]:
    """The inverse of `encode_sort_values`, but for NaN, which comes back as null."""
    arrays = []
    start = 0
    for column in columns:
        end = start + 1 + column.value_bytes
        present = encoded[:, start] == 1
        values = np.empty((len(encoded), end - start - 1), np.uint8)
        for first in range(0, len(encoded), _ROWS_AT_ONCE):
            rows = slice(first, first + _ROWS_AT_ONCE)
            raw = np.empty_like(values[rows])
            _items(raw)[:] = _field(encoded[rows], start + 1, end)
            values[rows] = _from_big_endian(column, ~raw if column.descending else raw)
        arrays.append(_as_array(column, present, values))
        start = end
    return arrays


_ROWS_AT_ONCE = 16 * 1024
"""Values that are decoded at a time: the steps of it take their bytes several times."""


def _items(raw: Bytes) -> npt.NDArray[np.void]:
    """Rows of bytes as one item each, which NumPy moves at once."""
    kind = np.dtype((np.void, raw.shape[1]))
    return np.ascontiguousarray(raw).view(kind).reshape(-1) if raw.size else np.empty(len(raw), kind)


def _field(encoded: Bytes, start: int, end: int) -> npt.NDArray[np.void]:
    """Some bytes of each row as one item, without a copy."""
    kind = np.dtype((np.void, end - start))
    if not len(encoded) or start == end:
        return np.empty(len(encoded), kind)
    return np.ndarray(len(encoded), kind, encoded, start, (encoded.shape[1],))


def _big_endian(column: SortColumn, array: pa.Array) -> tuple[npt.NDArray[np.bool_], Bytes]:
    present = array.is_valid().to_numpy(zero_copy_only=False)
    width = column.value_bytes
    if pa.types.is_boolean(column.arrow_type):
        raw = array.fill_null(False).to_numpy(zero_copy_only=False).astype(np.uint8).reshape(-1, 1)
    elif len(array) == 0:
        raw = np.empty((0, width), np.uint8)
    else:
        buffer = np.frombuffer(array.buffers()[1], np.uint8)
        raw = buffer[array.offset * width : (array.offset + len(array)) * width].reshape(len(array), width)
    if pa.types.is_fixed_size_binary(column.arrow_type) or width == 0:
        return present, raw
    if pa.types.is_floating(column.arrow_type):
        return _floats_to_ordered(raw, present, width)
    raw = _reversed(raw)
    if not _is_unsigned(column.arrow_type):
        raw[:, 0] ^= 0x80
    return present, raw


def _from_big_endian(column: SortColumn, raw: Bytes) -> Bytes:
    """The values' bytes as Arrow has them."""
    if pa.types.is_floating(column.arrow_type):
        return _ordered_to_floats(raw)
    if pa.types.is_boolean(column.arrow_type) or pa.types.is_fixed_size_binary(column.arrow_type):
        return raw
    if not _is_unsigned(column.arrow_type):
        raw[:, 0] ^= 0x80
    return _reversed(raw)


def _as_array(column: SortColumn, present: npt.NDArray[np.bool_], values: Bytes) -> pa.Array:
    if pa.types.is_boolean(column.arrow_type):
        return pa.array(values[:, 0] == 1, mask=~present)
    validity = None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))
    return pa.Array.from_buffers(column.arrow_type, len(values), [validity, pa.py_buffer(values)])


def _reversed(raw: Bytes) -> Bytes:
    """A copy, each row's last byte first."""
    width = raw.shape[1]
    if width not in _SWAPPED_AS_NUMBERS:
        return raw[:, ::-1].copy()
    return np.ascontiguousarray(raw).view(f"u{width}").byteswap().view(np.uint8).reshape(-1, width)


_SWAPPED_AS_NUMBERS = frozenset({2, 4, 8})


def _is_unsigned(arrow_type: pa.DataType) -> bool:
    return bool(pa.types.is_unsigned_integer(arrow_type) or pa.types.is_boolean(arrow_type))


def _floats_to_ordered(raw: Bytes, present: npt.NDArray[np.bool_], width: int) -> tuple[npt.NDArray[np.bool_], Bytes]:
    values = np.ascontiguousarray(raw).view(f"<f{width}").reshape(-1) + np.dtype(f"<f{width}").type(0)  # -0.0 is 0.0
    bits = values.view(f"<u{width}")
    sign = bits.dtype.type(1 << (8 * width - 1))
    ordered = np.where(bits & sign, ~bits, bits | sign).astype(f">u{width}")
    return present & ~np.isnan(values), ordered.view(np.uint8).reshape(-1, width)


def _ordered_to_floats(raw: Bytes) -> Bytes:
    width = raw.shape[1]
    ordered = np.ascontiguousarray(raw).view(f">u{width}").reshape(-1).astype(f"<u{width}")
    sign = ordered.dtype.type(1 << (8 * width - 1))
    bits = np.where(ordered & sign, ordered ^ sign, ~ordered)
    return bits.astype(f"<u{width}").view(np.uint8).reshape(-1, width)
