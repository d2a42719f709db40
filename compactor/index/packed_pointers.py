"""How the two columns of pointers lie in an index file: as whole numbers of 4 and 8 bytes, or packed into fewer.

A search of a remote index reads nearly every page of what it needs of the pointers, so their bytes are its cost.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from compactor.kernels.packed_numbers import pack_numbers, unpack_numbers, width_of
from compactor.model.files import FILE_NUMBER_BYTES, ROW_INDEX_BYTES

PACKED_ROWS_MIN = 8 * 1024
"""Files with fewer rows are not packed: it would save less than a page."""

FILE_NUMBER, ROW_INDEX = "file_number", "row_index"

_FILE_NUMBER_ADDED = 1
"""So that void, which is -1, is the least packed file number."""


@dataclass(frozen=True)
class PointerColumns:
    """The pointers of some rows, as they lie in a file.

    Attributes:
        index_format: of the file that holds them
        file_number_bytes, row_index_bytes: of each value"""

    arrays: tuple[pa.Array, pa.Array]
    index_format: int
    file_number_bytes: int
    row_index_bytes: int

    @property
    def fields(self) -> tuple[pa.Field, pa.Field]:
        numbers, indices = self.arrays
        return (
            pa.field(FILE_NUMBER, numbers.type, nullable=False),
            pa.field(ROW_INDEX, indices.type, nullable=False),
        )

    @classmethod
    def of(cls, file_numbers: npt.NDArray[np.int32], row_indices: npt.NDArray[np.int64], packed_rows_min: int) -> Self:
        """Packed, where there are so many rows or more, and packing saves a byte."""
        widths = width_of(file_numbers, _FILE_NUMBER_ADDED), width_of(row_indices, 0)
        numbers_width, indices_width = widths
        if (
            len(file_numbers) < packed_rows_min
            or numbers_width is None
            or indices_width is None
            or numbers_width + indices_width >= FILE_NUMBER_BYTES + ROW_INDEX_BYTES
        ):
            plain = pa.array(file_numbers, pa.int32()), pa.array(row_indices, pa.int64())
            return cls(plain, 1, FILE_NUMBER_BYTES, ROW_INDEX_BYTES)
        packed = (
            _binary(pack_numbers(file_numbers, numbers_width, _FILE_NUMBER_ADDED)),
            _binary(pack_numbers(row_indices, indices_width, 0)),
        )
        return cls(packed, 2, numbers_width, indices_width)


def file_numbers_of(column: pa.Array, positions: npt.NDArray[np.int64] | None = None) -> npt.NDArray[np.int32]:
    """The file numbers of a column of either form: all, or those at these positions."""
    if not pa.types.is_fixed_size_binary(column.type):
        return _plain(column, positions)
    packed = _packed_at(column, positions)
    numbers = np.empty(len(packed), np.int32)
    unpack_numbers(packed, _FILE_NUMBER_ADDED, numbers)
    return numbers


def row_indices_of(column: pa.Array, positions: npt.NDArray[np.int64] | None = None) -> npt.NDArray[np.int64]:
    """Likewise the row indices."""
    if not pa.types.is_fixed_size_binary(column.type):
        return _plain(column, positions)
    packed = _packed_at(column, positions)
    indices = np.empty(len(packed), np.int64)
    unpack_numbers(packed, 0, indices)
    return indices


def _plain(column: pa.Array, positions: npt.NDArray[np.int64] | None) -> npt.NDArray[np.signedinteger]:
    numbers: npt.NDArray[np.signedinteger] = column.to_numpy()
    return numbers if positions is None else numbers.take(positions)


def _packed_at(column: pa.Array, positions: npt.NDArray[np.int64] | None) -> npt.NDArray[np.uint8]:
    width = column.type.byte_width
    held = np.frombuffer(column.buffers()[1], np.uint8, count=width * len(column), offset=width * column.offset)
    raw = held.reshape(-1, width)
    return raw if positions is None else raw.take(positions, axis=0)


def _binary(packed: npt.NDArray[np.uint8]) -> pa.Array:
    rows, width = packed.shape
    return pa.Array.from_buffers(pa.binary(width), rows, [None, pa.py_buffer(packed)])
