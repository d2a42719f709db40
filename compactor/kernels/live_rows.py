"""Tells pointers to live rows from stale ones: which files are live, and which of their rows are dead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numba as nb
import numpy as np
import numpy.typing as npt

from compactor.errors import Corrupt

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class LiveRows:
    """Where pointers may lead.

    ordinal_of  int64 by file number: the file's ordinal; -1 for the number of no live file
    rows_of     int64 by ordinal: rows of the file, dead ones included
    starts      int64 by ordinal: where the file's bits begin in `dead`; -1 for a file without dead rows
    dead        uint8: one bit a row, set where it is dead
    """

    ordinal_of: Int64s
    rows_of: Int64s
    starts: Int64s
    dead: npt.NDArray[np.uint8]

    @classmethod
    def of(cls, ordinal_of: Int64s, rows_of: Int64s, dead_rows: Mapping[int, Int64s]) -> LiveRows:
        """`dead_rows` by ordinal, where there are any. Raises `Corrupt` where a file does not have so many rows."""
        starts = np.full(len(rows_of), -1, np.int64)
        bits = 0
        for ordinal in sorted(dead_rows):
            starts[ordinal] = bits
            bits += -(-int(rows_of[ordinal]) // 8) * 8
        dead = np.zeros(bits // 8, np.uint8)
        for ordinal, rows in dead_rows.items():
            if len(rows) and not 0 <= rows.min() <= rows.max() < rows_of[ordinal]:
                raise Corrupt(_BEYOND)
            _set_bits(dead, rows + starts[ordinal])
        return cls(ordinal_of, rows_of, starts, dead)


def count_live(live: LiveRows, file_numbers: npt.NDArray[np.int32], row_indices: Int64s, counts: Int64s) -> None:
    """Adds 1 to counts[ordinal] for every pointer to a live row of that file.

    Raises `Corrupt` for a pointer beyond the end of its file.
    """
    if not _count(live.ordinal_of, live.rows_of, live.starts, live.dead, file_numbers, row_indices, counts):
        raise Corrupt(_BEYOND)


def live_pointers(
    live: LiveRows, file_numbers: npt.NDArray[np.int32], row_indices: Int64s, wanted: npt.NDArray[np.bool_]
) -> Int64s:
    """Which pointers lead to live rows of wanted files (`wanted` by ordinal), ascending.

    Raises `Corrupt` for a pointer beyond the end of a wanted file; `count_live` has looked at all others.
    """
    places = np.empty(len(file_numbers), np.int64)
    ordinal_of = np.where(np.append(wanted, False)[live.ordinal_of], live.ordinal_of, _STALE)
    found = _select(ordinal_of, live.rows_of, live.starts, live.dead, file_numbers, row_indices, places)
    if found < 0:
        raise Corrupt(_BEYOND)
    return places[:found].copy()


_BEYOND = "the primary key index, or a deletion vector, points beyond the end of a compacted file"
_STALE = -1


@nb.njit(cache=True, nogil=True)
def _set_bits(dead, bits):  # type: ignore[no-untyped-def]
    for bit in bits:
        dead[bit >> 3] |= np.uint8(1 << (bit & 7))


# Both loops are written out: in a function of its own, what they share would cost each pointer ten times as much, since
# numba counts references to arrays that it hands on.
@nb.njit(cache=True, nogil=True)
def _count(ordinal_of, rows_of, starts, dead, file_numbers, row_indices, counts):  # type: ignore[no-untyped-def]
    for place in range(file_numbers.size):
        file_number = file_numbers[place]
        ordinal = ordinal_of[file_number] if 0 <= file_number < ordinal_of.size else np.int64(_STALE)
        if ordinal >= 0:
            row_index = row_indices[place]
            if row_index < 0 or row_index >= rows_of[ordinal]:
                return False
            bit = starts[ordinal] + row_index
            if starts[ordinal] < 0 or not dead[bit >> 3] & (1 << (bit & 7)):
                counts[ordinal] += 1
    return True


@nb.njit(cache=True, nogil=True)
def _select(ordinal_of, rows_of, starts, dead, file_numbers, row_indices, places):  # type: ignore[no-untyped-def]
    selected = 0
    for place in range(file_numbers.size):
        file_number = file_numbers[place]
        ordinal = ordinal_of[file_number] if 0 <= file_number < ordinal_of.size else np.int64(_STALE)
        if ordinal >= 0:
            row_index = row_indices[place]
            if row_index < 0 or row_index >= rows_of[ordinal]:
                return -1
            bit = starts[ordinal] + row_index
            if starts[ordinal] < 0 or not dead[bit >> 3] & (1 << (bit & 7)):
                places[selected] = place
                selected += 1
    return selected
