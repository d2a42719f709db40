"""Separates pointers to live rows from stale pointers, by the live files and their dead rows."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from compactor.kernels.compilation import kernel
from compactor.kernels.gather import look_up
from compactor.model.errors import Corrupt

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]

NO_FILE, ALL_LIVE, SOME_DEAD = 0, 1, 2
"""What a file number stands for: no live file, one without dead rows, one with some."""


@dataclass(frozen=True)
class LiveFiles:
    """The live compacted files of a stream.

    Attributes:
        numbers: int32 by ordinal: the file's number
        exists: bool by file number; the first and the last entry are of no file
        ordinals: int32 by file number: the file's ordinal; 0, without meaning, for a number that no file has"""

    numbers: Int32s
    exists: npt.NDArray[np.bool_]
    ordinals: Int32s

    @classmethod
    def of(cls, numbers: Int32s) -> Self:
        """`numbers` by ordinal, each once. Precondition, which is checked: from 1 on."""
        if numbers.min(initial=1) < 1:
            raise ValueError(f"a compacted file has number {numbers.min()}")
        size = int(numbers.max(initial=0)) + 2
        exists, ordinals = np.zeros(size, np.bool_), np.zeros(size, np.int32)
        exists[numbers], ordinals[numbers] = True, np.arange(len(numbers))
        return cls(numbers, exists, ordinals)

    def ordinals_of(self, file_numbers: Int32s, are_rows: npt.NDArray[np.bool_]) -> Int32s:
        """The ordinals of the files that pointers name; 0 where `are_rows` says that there is no row to point at.

        Raises `Corrupt` for a row in a file that is not live. File numbers may be anything.
        """
        # A number that is too small or too large takes the first or the last entry, and these are of no file.
        if not np.array_equal(look_up(self.exists, file_numbers), are_rows):
            raise Corrupt("the primary key index names a compacted file that is not in the stream")
        return look_up(self.ordinals, file_numbers)


@dataclass(frozen=True)
class LiveRows:
    """Rows that pointers may point at.

    Attributes:
        states: uint8 by file number: NO_FILE, ALL_LIVE or SOME_DEAD
        rows_of: int64 by ordinal: rows of the file, dead ones included
        starts: int64 by ordinal: where the file's bits begin in `dead`, if some of its rows are
        dead: uint8: one bit a row, set where it is dead"""

    files: LiveFiles
    states: npt.NDArray[np.uint8]
    rows_of: Int64s
    starts: Int64s
    dead: npt.NDArray[np.uint8]

    def may_be_dead(self, file_numbers: Int32s, wanted: npt.NDArray[np.bool_] | None = None) -> npt.NDArray[np.bool_]:
        """Which pointers lead to files with dead rows, so that their row index matters; only to `wanted` files (by
        ordinal). File numbers may be anything."""
        have_dead = self.states == SOME_DEAD
        if wanted is not None:
            of_wanted = np.zeros_like(have_dead)
            of_wanted[self.files.numbers[wanted]] = True
            have_dead &= of_wanted
        # A number that is too small or too large takes the first or the last entry, and these are of no file.
        return look_up(have_dead, file_numbers)

    @classmethod
    def of(cls, files: LiveFiles, rows_of: Int64s, dead_rows: Mapping[int, Int64s]) -> Self:
        """`dead_rows` by ordinal, where there are any. Raises `Corrupt` where a file does not have so many rows.

        Precondition, which is checked: `rows_of` has a number for each of the files.
        """
        if len(rows_of) < len(files.numbers):
            raise ValueError(f"{len(files.numbers)} files, but the rows of {len(rows_of)}")
        states, starts = files.exists.astype(np.uint8) * np.uint8(ALL_LIVE), np.zeros(len(rows_of), np.int64)
        bits = 0
        for ordinal in sorted(dead_rows):
            states[files.numbers[ordinal]] = SOME_DEAD
            starts[ordinal] = bits
            bits += -(-int(rows_of[ordinal]) // 8) * 8
        dead = np.zeros(bits // 8, np.uint8)
        for ordinal, rows in dead_rows.items():
            if len(rows) and not 0 <= rows.min() <= rows.max() < rows_of[ordinal]:
                raise Corrupt(_OUT_OF_RANGE)
            _set_bits(dead, rows + starts[ordinal])
        return cls(files, states, rows_of, starts, dead)


def count_live(live: LiveRows, file_numbers: Int32s, row_indices: Int64s, counts: Int64s) -> None:
    """Adds 1 to counts[ordinal] for every pointer to a live row of that file. Pointers may be anything.

    Precondition, which is checked: as many row indices as file numbers, and a count for each file.
    Raises `Corrupt` for a pointer beyond the end of its file.
    """
    file_numbers, row_indices = _pairs(file_numbers, row_indices)
    if len(counts) < len(live.files.numbers):
        raise ValueError(f"{len(live.files.numbers)} files, but {len(counts)} counts")
    ordinals = live.files.ordinals
    if not _count(live.states, ordinals, live.rows_of, live.starts, live.dead, file_numbers, row_indices, counts):
        raise Corrupt(_OUT_OF_RANGE)


def live_pointers(live: LiveRows, file_numbers: Int32s, row_indices: Int64s, wanted: npt.NDArray[np.bool_]) -> Int64s:
    """Which pointers lead to live rows of wanted files (`wanted` by ordinal), ascending. Pointers may be anything.

    Precondition, which is checked: as many row indices as file numbers, and a flag for each file.
    Raises `Corrupt` for a pointer beyond the end of a wanted file; `count_live` has checked all others.
    """
    file_numbers, row_indices = _pairs(file_numbers, row_indices)
    rows = np.empty(len(file_numbers), np.int64)
    states, numbers = np.zeros_like(live.states), live.files.numbers[wanted]
    states[numbers] = live.states[numbers]
    ordinals = live.files.ordinals
    found, all_fit = _select(states, ordinals, live.rows_of, live.starts, live.dead, file_numbers, row_indices, rows)
    if not all_fit:
        raise Corrupt(_OUT_OF_RANGE)
    return rows[:found].copy()


def _pairs(file_numbers: Int32s, row_indices: Int64s) -> tuple[Int32s, Int64s]:
    """Both read-only, as those of a mapped index are: numba would compile the kernels anew for those that are not."""
    if len(file_numbers) != len(row_indices):
        raise ValueError(f"{len(file_numbers)} file numbers, but {len(row_indices)} row indices")
    file_numbers, row_indices = file_numbers.view(), row_indices.view()
    file_numbers.flags.writeable = row_indices.flags.writeable = False
    return file_numbers, row_indices


_OUT_OF_RANGE = "the primary key index, or a deletion vector, points beyond the end of a compacted file"


@kernel
def _set_bits(dead, bits):  # type: ignore[no-untyped-def]
    for bit in bits:
        dead[bit >> 3] |= np.uint8(1 << (bit & 7))


# Both loops are written out: in a shared function numba would count references to its arrays for each pointer.
@kernel
def _count(states, ordinals, rows_of, starts, dead, file_numbers, row_indices, counts):  # type: ignore[no-untyped-def]
    for row in range(file_numbers.size):
        file_number = file_numbers[row]
        state = states[file_number] if 0 <= file_number < states.size else np.uint8(NO_FILE)
        if state != NO_FILE:
            ordinal, row_index = ordinals[file_number], row_indices[row]
            if row_index < 0 or row_index >= rows_of[ordinal]:
                return False
            bit = starts[ordinal] + row_index
            if state == ALL_LIVE or not dead[bit >> 3] & (1 << (bit & 7)):
                counts[ordinal] += 1
    return True


@kernel
def _select(states, ordinals, rows_of, starts, dead, file_numbers, row_indices, rows):  # type: ignore[no-untyped-def]
    selected = 0
    for row in range(file_numbers.size):
        file_number = file_numbers[row]
        state = states[file_number] if 0 <= file_number < states.size else np.uint8(NO_FILE)
        if state != NO_FILE:
            ordinal, row_index = ordinals[file_number], row_indices[row]
            if row_index < 0 or row_index >= rows_of[ordinal]:
                return selected, False
            bit = starts[ordinal] + row_index
            if state == ALL_LIVE or not dead[bit >> 3] & (1 << (bit & 7)):
                rows[selected] = row
                selected += 1
    return selected, True
