"""Gathers what is known of the keys that a round leaves, in one pass over rows that lie in digest order."""

from __future__ import annotations

from dataclasses import dataclass

import numba as nb
import numpy as np
import numpy.typing as npt

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
class PlacedRows:
    """Rows in digest order, and where they stood in the order in which they came, file after file.

    words        (rows, 5)
    files        int32 (rows,): which of the bucket's files the row is from
    places       int32 (rows,): its place among the rows of all of these files
    sort_values  uint8 (rows, width)
    ordinals     int32 (files,): which source file that is
    row_indices  (rows,), by place: which row of its file
    """

    words: Words
    files: Int32s
    places: Int32s
    sort_values: Bytes
    ordinals: Int32s
    row_indices: npt.NDArray[np.unsignedinteger]


def gather_rows(holders: Int64s, remembered: LocatedRows, arriving: PlacedRows) -> LocatedRows:
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
        (remembered.words, remembered.ordinals, remembered.row_indices, remembered.sort_values),
        (arriving.words, arriving.files, arriving.places, arriving.sort_values),
        arriving.ordinals,
        arriving.row_indices,
        (gathered.words, gathered.ordinals, gathered.row_indices, gathered.sort_values),
    )
    return gathered


@nb.njit(inline="always")
def _copy(source, row, target, key):  # type: ignore[no-untyped-def]
    for column in range(source.shape[1]):
        target[key, column] = source[row, column]


@nb.njit(cache=True, nogil=True)
def _gather(holders, remembered, arriving, ordinals_of_files, row_indices_by_place, gathered):  # type: ignore[no-untyped-def]
    old_words, old_ordinals, old_row_indices, old_sort = remembered
    new_words, files, places, new_sort = arriving
    words, ordinals, row_indices, sort = gathered
    known = old_ordinals.size
    for key in range(holders.size):
        row = holders[key]
        if row < known:
            _copy(old_words, row, words, key)
            ordinals[key], row_indices[key] = old_ordinals[row], old_row_indices[row]
            _copy(old_sort, row, sort, key)
        else:
            row -= known
            _copy(new_words, row, words, key)
            ordinals[key] = ordinals_of_files[files[row]]
            row_indices[key] = row_indices_by_place[places[row]]
            _copy(new_sort, row, sort, key)
