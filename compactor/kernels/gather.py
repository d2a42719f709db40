"""Gathers the columns of the keys that remain after a round, in one pass over rows in digest order."""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from compactor.kernels.compilation import copy_bytes, kernel
from compactor.kernels.sha1 import Digests

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
_Kind = TypeVar("_Kind", bound=np.generic)
WinningRows = npt.NDArray[np.signedinteger]


_AT_ONCE = 16 * 1024


def look_up(table: npt.NDArray[_Kind], numbers: Int32s) -> npt.NDArray[_Kind]:
    """table[numbers], a few at a time: NumPy would copy all of them to 64 bits. A number that is too small or too large
    takes the first or the last entry."""
    found = np.empty(len(numbers), table.dtype)
    for start in range(0, len(numbers), _AT_ONCE):
        some = slice(start, start + _AT_ONCE)
        table.take(numbers[some], mode="clip", out=found[some])
    return found


@dataclass(frozen=True)
class LocatedRows:
    """Rows in digest order, and where they lie.

    Attributes:
        digests: (rows, 5)
        ordinals: int32 (rows,): which source file the row is in
        row_indices: int64 (rows,): which row of it
        sort_values: uint8 (rows, width)"""

    digests: Digests
    ordinals: Int32s
    row_indices: Int64s
    sort_values: Bytes


@dataclass(frozen=True)
class DeltaRows:
    """Rows of a bucket's delta files in digest order.

    Attributes:
        digests: (rows, 5)
        files: int32 (rows,): which of these files the row is from
        row_indices: unsigned (rows,): which row of it
        sort_values: uint8 (rows, width)
        ordinals: int32 (files,): which source file that is"""

    digests: Digests
    files: Int32s
    row_indices: npt.NDArray[np.unsignedinteger]
    sort_values: Bytes
    ordinals: Int32s


def gather_rows(winning_rows: WinningRows, remembered: LocatedRows, arriving: DeltaRows) -> LocatedRows:
    """The rows `winning_rows` of two sets, numbered one after the other: those below len(remembered.digests) are of the
    first set.

    Precondition: 0 <= winning_rows < len(remembered.digests) + len(arriving.digests), and 0 <= arriving.files <
    len(arriving.ordinals), as `find_survivors` and `files_of_rows` leave them. Checked: the lengths of the arrays of
    each set, and that sort values are of one width.
    """
    keys = len(winning_rows)
    _check_lengths("remembered", len(remembered.digests), remembered.ordinals, remembered.row_indices)
    _check_lengths("arriving", len(arriving.digests), arriving.files, arriving.row_indices)
    width = arriving.sort_values.shape[1]
    for kind, rows in (("remembered", remembered), ("arriving", arriving)):
        if rows.sort_values.shape != (len(rows.digests), width):
            raise ValueError(
                f"{len(rows.digests)} {kind} rows have sort values {rows.sort_values.shape}, not {width} wide"
            )
    gathered = LocatedRows(
        np.empty((keys, 5), np.uint32),
        np.empty(keys, np.int32),
        np.empty(keys, np.int64),
        np.empty((keys, width), np.uint8),
    )
    _gather(
        winning_rows,
        remembered.digests,
        remembered.ordinals,
        remembered.row_indices,
        remembered.sort_values,
        arriving.digests,
        arriving.files,
        arriving.row_indices,
        arriving.sort_values,
        arriving.ordinals,
        gathered.digests,
        gathered.ordinals,
        gathered.row_indices,
        gathered.sort_values,
    )
    return gathered


def _check_lengths(kind: str, rows: int, *columns: npt.NDArray[np.generic]) -> None:
    if any(len(column) != rows for column in columns):
        raise ValueError(f"{rows} {kind} rows have columns of {[len(column) for column in columns]}")


# Arrays are named one by one: out of a tuple, or handed to another function, numba would count references for each row.
@kernel
def _gather(  # type: ignore[no-untyped-def]
    winning_rows,
    old_digests,
    old_ordinals,
    old_row_indices,
    old_sort,
    new_digests,
    files,
    new_row_indices,
    new_sort,
    ordinals_of_files,
    digests,
    ordinals,
    row_indices,
    sort,
):
    known, width = old_ordinals.size, np.int64(sort.shape[1])
    to, old_from, new_from = sort.reshape(-1), old_sort.reshape(-1), new_sort.reshape(-1)
    for key in range(winning_rows.size):
        row = winning_rows[key]
        if row < known:
            for word in range(5):
                digests[key, word] = old_digests[row, word]
            ordinals[key], row_indices[key] = old_ordinals[row], old_row_indices[row]
            copy_bytes(to, key * width, old_from, row * width, width)  # type: ignore[call-arg]
        else:
            row -= known
            for word in range(5):
                digests[key, word] = new_digests[row, word]
            ordinals[key], row_indices[key] = ordinals_of_files[files[row]], new_row_indices[row]
            copy_bytes(to, key * width, new_from, row * width, width)  # type: ignore[call-arg]
