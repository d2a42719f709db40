"""Ranks of rows among the surviving rows of their file, from which the compacted row pointers are computed.

A compacted table's rows are ordered by materialize task, source file, dedupe task (the paper, end of the illustration).
A dedupe task knows the ranks of its own survivors within each file; the counts of all tasks give the offsets.
"""

from collections.abc import Sequence

import numba as nb
import numpy as np
import numpy.typing as npt

from compactor.kernels.compilation import kernel
from compactor.model.errors import Corrupt

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
RowIndices = npt.NDArray[np.signedinteger]

_ROWS_PER_UINT32 = 1 << 32

_GUESS_BITS = 14
"""A table of first guesses with that many bits takes 64 KiB."""


class RanksWithinFiles:
    """Ranks of surviving rows among the survivors of their file. All rows are added before any rank is read.

    A row's number is its position in the concatenation of all files: file f's rows have numbers [file_bounds[f],
    file_bounds[f + 1]). There is one bit per row, so that millions of rows fit a processor's cache.

    Attributes:
        row_numbers, files: int32 (rows,): of every row, whether it survives or not

    Precondition: 0 <= row_number < file_bounds[-1], each once, and `files` are their files, as `sort_by_digest` and
    `files_of_rows` leave them; 0 <= row < len(row_numbers) where a row is counted."""

    def __init__(self, row_numbers: Int32s, files: Int32s, file_bounds: Int64s) -> None:
        self._row_numbers = row_numbers
        self._files = files
        self._file_bounds = file_bounds
        self._marks = np.zeros((int(file_bounds[-1]) >> 6) + 1, np.uint64)
        self._before: Int64s | None = None
        self._first = np.empty(len(file_bounds) - 1, np.int64)

    def add(self, rows: RowIndices, counted: Bools) -> None:
        """Adds surviving rows, each once, in any order, where `counted`; other elements of `rows` are not read."""
        _check_counted(rows, counted)
        _mark(rows, counted, self._row_numbers, self._marks)

    def of(self, rows: RowIndices, counted: Bools) -> Int32s:
        """Ranks of rows that were added, where `counted`; elsewhere 0. int32 (rows,)."""
        _check_counted(rows, counted)
        if self._before is None:
            self._before = np.zeros(len(self._marks), np.int64)
            _sum_up(self._marks, self._before, self._file_bounds, self._first)
        ranks = np.empty(len(rows), np.int32)
        _rank(rows, counted, self._row_numbers, self._files, self._marks, self._before, self._first, ranks)
        return ranks


def _check_counted(rows: RowIndices, counted: Bools) -> None:
    if len(rows) != len(counted):
        raise ValueError(f"{len(rows)} rows, but {len(counted)} marks")


def count_rows(parts: Int32s, counts: Int64s) -> None:
    """Adds 1 to counts[part] for every row of a part. A row with part -1 is of none.

    Raises `ValueError` for a part beyond the counts.
    """
    if not _count_rows(parts, counts):
        raise ValueError(f"rows of parts other than -1 to {len(counts) - 1}")


def rank_within_parts(
    rows: Sequence[tuple[Int32s, Int64s, Int32s]], first_rows: Int64s, rows_of_parts: Int64s, counts: Int64s
) -> None:
    """Writes the rank of each row, by row index, among the rows of the same part.

    One part after the other, with a bit for each of its rows: those of a file of four million fit a processor's cache.

    Args:
        rows: (parts, row indices in their files, ranks) of some rows: those of parts beyond `rows_of_parts` and of part
            -1 are left as they are
        first_rows: by part: where it begins in its file
        rows_of_parts: of the first parts: how many rows each has. Raises `Corrupt` for a row beyond them, and for one
            that occurs twice
        counts: by part: how many of these rows are in it, as `count_rows` has them

    Precondition, which is checked: a part, a row index and a rank for each row; a first row and a count for each part.
    """
    for parts, row_indices, ranks in rows:
        if not len(parts) == len(row_indices) == len(ranks):
            raise ValueError(f"{len(parts)} parts, {len(row_indices)} row indices, {len(ranks)} ranks")
    if min(len(first_rows), len(counts)) < len(rows_of_parts):
        raise ValueError(f"{len(rows_of_parts)} parts, {len(first_rows)} first rows, {len(counts)} counts")
    bounds = np.concatenate(([0], np.cumsum(counts[: len(rows_of_parts)])))
    rows_max = int(rows_of_parts.max(initial=0))
    grouped = np.empty(int(bounds[-1]), np.uint32 if rows_max < _ROWS_PER_UINT32 else np.uint64)
    cursor = bounds[:-1].copy()
    for parts, row_indices, _ in rows:
        if not _group_by_part(parts, row_indices, first_rows, rows_of_parts, bounds, cursor, grouped):
            raise Corrupt("the primary key index points beyond the end of a compacted file")
    marks = np.zeros((rows_max >> 6) + 1, np.uint64)
    if not _rank_by_part(bounds, grouped, marks, np.empty(len(marks), np.int64)):
        raise Corrupt("the primary key index points twice at one row of a compacted file")
    cursor = bounds[:-1].copy()
    for parts, _, ranks in rows:
        _ungroup(parts, cursor, grouped, ranks)


def put_in_order(parts: Int32s, ranks: Int32s, row_indices: Int64s, starts: Int64s, ordered: RowIndices) -> None:
    """Writes row indices part after part, those of a part by rank; rows of part -1 are left out.

    Args:
        starts: by part, and one more: part p has the places [starts[p], starts[p + 1])
        ordered: signed (places,), in which all row indices fit

    Raises `ValueError` where a rank is beyond the places of its part."""
    if not len(parts) == len(ranks) == len(row_indices) or starts[-1] != len(ordered):
        raise ValueError(f"{len(parts)} parts, {len(ranks)} ranks, {len(row_indices)} rows, room for {len(ordered)}")
    if not _put_in_order(parts, ranks, row_indices, starts, ordered):
        raise ValueError("a row's rank is not below the number of rows of its part")


def files_of_rows(row_numbers: Int32s, file_bounds: Int64s) -> Int32s:
    """The file of each row number. int32 (row_numbers,).

    Precondition: file_bounds ascend from 0, 0 <= row_number < file_bounds[-1].
    """
    files = np.empty(len(row_numbers), np.int32)
    if not len(row_numbers):
        return files
    # The first guess is by a row number's leading bits; then only files that begin within one stride are compared.
    shift = max(int(file_bounds[-1]).bit_length() - _GUESS_BITS, 0)
    strides = np.arange((int(file_bounds[-1]) >> shift) + 1) << shift
    guesses = np.searchsorted(file_bounds, strides, side="right").astype(np.int32) - 1
    _find_files(row_numbers, file_bounds, guesses, np.int64(shift), files)
    return files


def point_at_compacted(
    parts: Int32s,
    ranks: Int32s,
    first_offsets: Int64s,
    first_file_numbers: Int64s,
    rows_per_compacted_file: int,
    file_numbers: Int32s,
    row_indices: Int64s,
) -> None:
    """Writes the output locations of rows; rows of part -1 are left as they are.

    Args:
        parts, ranks: (rows,): the part of each row, and the row's rank in it
        first_offsets: by part: the offset of rank 0 among all rows that its materialize task writes, from 0
        first_file_numbers: by part: number of the first file that this task writes
        file_numbers, row_indices: (rows,), to be written; `file_numbers` may be `parts`

    Precondition: -1 <= part < len(first_offsets). Checked: the lengths, and that a file holds a row or more."""
    if not len(parts) == len(ranks) == len(file_numbers) == len(row_indices):
        raise ValueError(f"{len(parts)} parts, {len(ranks)} ranks, pointers of {len(file_numbers)}, {len(row_indices)}")
    if len(first_offsets) != len(first_file_numbers) or rows_per_compacted_file < 1:
        raise ValueError(
            f"{len(first_offsets)} parts, {len(first_file_numbers)} first files, {rows_per_compacted_file} rows a file"
        )
    _point(parts, ranks, first_offsets, first_file_numbers, rows_per_compacted_file, file_numbers, row_indices)


@nb.njit(inline="always")
def _count_ones(bits):  # type: ignore[no-untyped-def]
    """How many bits are set: sums of 2, 4 and 8 bits side by side, then of all bytes."""
    bits -= (bits >> np.uint64(1)) & np.uint64(0x5555555555555555)
    bits = (bits & np.uint64(0x3333333333333333)) + ((bits >> np.uint64(2)) & np.uint64(0x3333333333333333))
    bits = (bits + (bits >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((bits * np.uint64(0x0101010101010101)) >> np.uint64(56))


@nb.njit(inline="always")
def _survivors_before(row_number, marks, before):  # type: ignore[no-untyped-def]
    earlier_in_word = (np.uint64(1) << np.uint64(row_number & 63)) - np.uint64(1)
    return before[row_number >> 6] + _count_ones(marks[row_number >> 6] & earlier_in_word)


@kernel
def _mark(rows, counted, row_numbers, marks):  # type: ignore[no-untyped-def]
    for survivor in range(rows.size):
        if counted[survivor]:
            row_number = row_numbers[rows[survivor]]
            marks[row_number >> 6] |= np.uint64(1) << np.uint64(row_number & 63)


@kernel
def _sum_up(marks, before, file_bounds, first):  # type: ignore[no-untyped-def]
    for word in range(1, marks.size):
        before[word] = before[word - 1] + _count_ones(marks[word - 1])
    for file in range(first.size):
        first[file] = _survivors_before(file_bounds[file], marks, before)


@kernel
def _rank(rows, counted, row_numbers, files, marks, before, first, ranks):  # type: ignore[no-untyped-def]
    for survivor in range(rows.size):
        ranks[survivor] = 0
        if counted[survivor]:
            row = rows[survivor]
            ranks[survivor] = _survivors_before(row_numbers[row], marks, before) - first[files[row]]


@kernel
def _find_files(row_numbers, file_bounds, guesses, shift, files):  # type: ignore[no-untyped-def]
    for row in range(row_numbers.size):
        row_number = row_numbers[row]
        file = guesses[row_number >> shift]
        while row_number >= file_bounds[file + 1]:
            file += 1
        files[row] = file


@kernel
def _point(parts, ranks, first_offsets, first_file_numbers, rows_per_file, file_numbers, row_indices):  # type: ignore[no-untyped-def]
    for row in range(parts.size):
        part = parts[row]
        if part >= 0:
            offset = first_offsets[part] + ranks[row]
            number = offset // rows_per_file
            file_numbers[row] = first_file_numbers[part] + number
            row_indices[row] = offset - number * rows_per_file


@kernel
def _count_rows(parts, counts):  # type: ignore[no-untyped-def]
    for row in range(parts.size):
        part = parts[row]
        if part < -1 or part >= counts.size:
            return False
        if part >= 0:
            counts[part] += 1
    return True


@kernel
def _group_by_part(parts, row_indices, first_rows, rows_of_parts, bounds, cursor, grouped):  # type: ignore[no-untyped-def]
    for row in range(parts.size):
        part = parts[row]
        if 0 <= part < rows_of_parts.size:
            row_index = row_indices[row] - first_rows[part]
            if row_index < 0 or row_index >= rows_of_parts[part] or cursor[part] >= bounds[part + 1]:
                return False
            grouped[cursor[part]] = row_index
            cursor[part] += 1
    return True


@kernel
def _rank_by_part(bounds, grouped, marks, before):  # type: ignore[no-untyped-def]
    """Puts ranks in place of the row indices. False if a row occurs twice, because it would share its rank."""
    for part in range(bounds.size - 1):
        words = np.int64(0)
        for number in range(bounds[part], bounds[part + 1]):
            row = np.int64(grouped[number])
            marks[row >> 6] |= np.uint64(1) << np.uint64(row & 63)
            words = max(words, (row >> 6) + 1)
        total = np.int64(0)
        for word in range(words):
            before[word] = total
            total += _count_ones(marks[word])
        if total != bounds[part + 1] - bounds[part]:
            return False
        for number in range(bounds[part], bounds[part + 1]):
            grouped[number] = _survivors_before(np.int64(grouped[number]), marks, before)
        marks[:words] = 0
    return True


@kernel
def _ungroup(parts, cursor, grouped, ranks):  # type: ignore[no-untyped-def]
    for row in range(parts.size):
        part = parts[row]
        if 0 <= part < cursor.size:
            ranks[row] = grouped[cursor[part]]
            cursor[part] += 1


@kernel
def _put_in_order(parts, ranks, row_indices, starts, ordered):  # type: ignore[no-untyped-def]
    for row in range(parts.size):
        part = parts[row]
        if part >= 0:
            if part + 1 >= starts.size or ranks[row] < 0 or ranks[row] >= starts[part + 1] - starts[part]:
                return False
            ordered[starts[part] + ranks[row]] = row_indices[row]
    return True
