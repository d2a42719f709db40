"""Statistics of a column chunk: exact extremes of its values."""

import numpy as np

from compactor.kernels.parquet_values import (
    LENGTH_BYTES,
    extremes,
)
from compactor.tabular.parquet_pages.page_format import NUMBER_TYPES, STATISTIC_BYTES_MAX
from compactor.tabular.parquet_pages.page_reader import Bytes, ColumnType, Values


class Extremes:
    """The minimum and maximum of a column chunk, in the form of Parquet's statistics."""

    def __init__(self, column_type: ColumnType) -> None:
        self._column_type = column_type
        self._found: list[bytes] = []

    def add(self, values: Values) -> None:
        """`values`: contiguous."""
        if not len(values):
            return
        if self._column_type.physical == "BOOLEAN":
            self._found += [bytes([values.data.min()]), bytes([values.data.max()])]
        elif self._column_type.physical in NUMBER_TYPES:
            self._found += _extreme_numbers(self._column_type, values.data)
        else:
            self._found += _extreme_bytes(self._column_type, values)

    def bounds(self) -> tuple[bytes, bytes] | None:
        """Minimum and maximum; None: there are no values, or they are too long."""
        if not self._found:
            return None
        found = self._found
        if self._column_type.physical in NUMBER_TYPES:
            least, greatest = _extreme_numbers(self._column_type, np.frombuffer(b"".join(found), np.uint8))
        elif self._column_type.logical_type == "Decimal":
            numbers = {value: int.from_bytes(value, "big", signed=True) for value in found}
            least, greatest = min(found, key=numbers.__getitem__), max(found, key=numbers.__getitem__)
        else:
            least, greatest = min(found), max(found)
        return (least, greatest) if max(len(least), len(greatest)) <= STATISTIC_BYTES_MAX else None


def _extreme_bytes(column_type: ColumnType, values: Values) -> list[bytes]:
    if values.spans is None:
        starts = np.arange(0, len(values.data), column_type.width)
        ends = starts + column_type.width
    else:
        starts, ends = values.spans[0] + LENGTH_BYTES, values.spans[1]
    flipped = 128 if column_type.logical_type == "Decimal" else 0
    return [values.data[starts[each] : ends[each]].tobytes() for each in extremes(values.data, starts, ends, flipped)]


def _extreme_numbers(column_type: ColumnType, data: Bytes) -> list[bytes]:
    """Minimum and maximum; empty if every value is NaN."""
    dtype = np.dtype(NUMBER_TYPES[column_type.physical])
    if not column_type.signed:
        dtype = np.dtype(f"u{dtype.itemsize}")
    numbers = data.view(dtype)
    if dtype.kind != "f":
        return [numbers.min().tobytes(), numbers.max().tobytes()]
    numbers = numbers[~np.isnan(numbers)]
    if not len(numbers):
        return []
    # 0.0 equals -0.0: the format wants -0.0 as a minimum and 0.0 as a maximum, which cover both.
    low, high = numbers.min(), numbers.max()
    least, greatest = (-0.0 if low == 0 else low), (0.0 if high == 0 else high)
    return [np.array(least, dtype).tobytes(), np.array(greatest, dtype).tobytes()]
