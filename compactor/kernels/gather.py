"""Gathers what is known of surviving rows from where it lies, in one pass: independent random reads overlap."""

from __future__ import annotations

from dataclasses import dataclass

import numba as nb
import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RowFacts:
    """What is known of rows besides their digests, all (rows,) but sort_values (rows, width).

    files  int64: number or ordinal of the row's file, as the caller has it
    """

    files: Int64s
    row_indices: Int64s
    ranks: Int64s
    sort_values: npt.NDArray[np.uint8]

    @classmethod
    def empty(cls, rows: int, width: int) -> RowFacts:
        return cls(
            np.empty(rows, np.int64),
            np.empty(rows, np.int64),
            np.empty(rows, np.int64),
            np.empty((rows, width), np.uint8),
        )


def gather_rows(holders: Int64s, first: RowFacts, second: RowFacts) -> RowFacts:
    """The facts of rows `holders` of two sets laid one after the other: below len(first.files) the first's."""
    out = RowFacts.empty(len(holders), second.sort_values.shape[1])
    _gather(
        holders,
        first.files,
        first.row_indices,
        first.ranks,
        first.sort_values,
        second.files,
        second.row_indices,
        second.ranks,
        second.sort_values,
        out.files,
        out.row_indices,
        out.ranks,
        out.sort_values,
    )
    return out


@nb.njit(cache=True, nogil=True)
def _gather(  # type: ignore[no-untyped-def]
    holders,
    files,
    rows,
    ranks,
    sorts,
    more_files,
    more_rows,
    more_ranks,
    more_sorts,
    out_files,
    out_rows,
    out_ranks,
    out_sorts,
):
    known, width = files.size, out_sorts.shape[1]
    for key in range(holders.size):
        row = holders[key]
        if row < known:
            out_files[key], out_rows[key], out_ranks[key] = files[row], rows[row], ranks[row]
            for column in range(width):
                out_sorts[key, column] = sorts[row, column]
        else:
            row -= known
            out_files[key], out_rows[key], out_ranks[key] = more_files[row], more_rows[row], more_ranks[row]
            for column in range(width):
                out_sorts[key, column] = more_sorts[row, column]
