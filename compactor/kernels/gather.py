"""Gathers what is known of the keys that a round leaves, in one pass over rows that lie in digest order."""

from __future__ import annotations

from dataclasses import dataclass

import numba as nb
import numpy as np
import numpy.typing as npt

from compactor.kernels.copy_bytes import copy_bytes
from compactor.kernels.sha1 import Words

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class LocatedRows:
    """Rows in digest order, and where they lie.

    words        (rows, 5)
    ordinals     int32 (rows,): which source file the row is in
    row_indices  int64 (rows,): which row of it
    sort_values  uint8 (rows, width)
    """

    words: Words
    ordinals: Int32s
    row_indices: Int64s
    sort_values: Bytes


@dataclass(frozen=True)
class DeltaRows:
    """Rows of a bucket's delta files in digest order.

    words        (rows, 5)
    files        int32 (rows,): which of these files the row is from
    row_indices  unsigned (rows,): which row of it
    sort_values  uint8 (rows, width)
    ordinals     int32 (files,): which source file that is
    """

    words: Words
    files: Int32s
    row_indices: npt.NDArray[np.unsignedinteger]
    sort_values: Bytes
    ordinals: Int32s


def gather_rows(holders: Int64s, remembered: LocatedRows, arriving: DeltaRows) -> LocatedRows:
    """The rows `holders` of two sets laid one after the other: below len(remembered.words) the first's."""
    keys = len(holders)
    gathered = LocatedRows(
        np.empty((keys, 5), np.uint32),
        np.empty(keys, np.int32),
        np.empty(keys, np.int64),
        np.empty((keys, arriving.sort_values.shape[1]), np.uint8),
    )
    _gather(
        holders,
        remembered.words,
        remembered.ordinals,
        remembered.row_indices,
        remembered.sort_values,
        arriving.words,
        arriving.files,
        arriving.row_indices,
        arriving.sort_values,
        arriving.ordinals,
        gathered.words,
        gathered.ordinals,
        gathered.row_indices,
        gathered.sort_values,
    )
    return gathered


# Arrays are named one by one: out of a tuple, or handed to another function, numba would count references for each row.
@nb.njit(cache=True, nogil=True)
def _gather(  # type: ignore[no-untyped-def]
    holders,
    old_words,
    old_ordinals,
    old_row_indices,
    old_sort,
    new_words,
    files,
    new_row_indices,
    new_sort,
    ordinals_of_files,
    words,
    ordinals,
    row_indices,
    sort,
):
    known, width = old_ordinals.size, np.int64(sort.shape[1])
    to, old_from, new_from = sort.reshape(-1), old_sort.reshape(-1), new_sort.reshape(-1)
    for key in range(holders.size):
        row = holders[key]
        if row < known:
            for word in range(5):
                words[key, word] = old_words[row, word]
            ordinals[key], row_indices[key] = old_ordinals[row], old_row_indices[row]
            copy_bytes(to, key * width, old_from, row * width, width)  # type: ignore[call-arg]
        else:
            row -= known
            for word in range(5):
                words[key, word] = new_words[row, word]
            ordinals[key], row_indices[key] = ordinals_of_files[files[row]], new_row_indices[row]
            copy_bytes(to, key * width, new_from, row * width, width)  # type: ignore[call-arg]
