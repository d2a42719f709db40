"""Ranks of rows among the surviving rows of their file, from which the compacted row pointers are computed.

A compacted table's rows are ordered by materialize task, source file, dedupe task (the paper, end of the illustration).
A dedupe task knows the ranks of its own survivors within each file; the counts of all tasks give the offsets.
"""

from __future__ import annotations

import numba as nb
import numpy as np
import numpy.typing as npt

from compactor.model.errors import Corrupt

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_GUESS_BITS = 14
"""A table of first guesses with that many bits takes 64 KiB."""


class RanksWithinFiles:
    """Ranks of surviving rows among the survivors of their file. All rows are added before any rank is read.

    A row's number is its position in the concatenation of all files: file f's rows have numbers [file_bounds[f],
    file_bounds[f + 1]). There is one bit per row, so that millions of rows fit a processor's cache.

    row_numbers, files  int32 (rows,): of every row, whether it survives or not

    Precondition: 0 <= row_number < file_bounds[-1], each once, and `files` are their files, as `sort_by_digest` and
    `files_of_rows` leave them; 0 <= row < len(row_numbers) where a row is counted.
    """

    def __init__(self, row_numbers: Int32s, files: Int32s, file_bounds: Int64s) -> None:
        self._row_numbers = row_numbers
        self._files = files
        self._file_bounds = file_bounds
        self._marks = np.zeros((int(file_bounds[-1]) >> 6) + 1, np.uint64)
        self._before: Int64s | None = None
        self._first = np.empty(len(file_bounds) - 1, np.int64)

    def add(self, rows: Int64s, counted: Bools) -> None:
        """Adds surviving rows, each once, in any order, where `counted`; other elements of `rows` are not read."""
        _check_counted(rows, counted)
        _mark(rows, counted, self._row_numbers, self._marks)

    def of(self, rows: Int64s, counted: Bools) -> Int32s:
        """Ranks of rows that were added, where `counted`; elsewhere 0. int32 (rows,)."""
        _check_counted(rows, counted)
        if self._before is None:
            self._before = np.zeros(len(self._marks), np.int64)
            _sum_up(self._marks, self._before, self._file_bounds, self._first)
        ranks = np.empty(len(rows), np.int32)
        _rank(rows, counted, self._row_numbers, self._files, self._marks, self._before, self._first, ranks)
        return ranks


def _check_counted(rows: Int64s, counted: Bools) -> None:
    if len(rows) != len(counted):
        raise ValueError(f"{len(rows)} rows, but {len(counted)} marks")


def ranks_within_files(files: Int32s, row_indices: Int64s, rows_of_files: Int64s) -> Int32s:
    """The rank of each row, by row index, among the rows of the same file. int32 (rows,).

    One file after the other, with a bit for each of its rows: those of a file of four million fit a processor's cache.

    rows_of_files  by file: how many rows it has. Raises `Corrupt` for a row beyond them, and for one that occurs twice.

    Precondition, which is checked: 0 <= file < len(rows_of_files), and a file for each row.
    """
    counts = np.bincount(files, minlength=len(rows_of_files))
    if len(counts) != len(rows_of_files) or len(files) != len(row_indices):
        raise ValueError(f"{len(row_indices)} rows of {len(rows_of_files)} files, but {len(files)} of {len(counts)}")
    bounds = np.concatenate(([0], np.cumsum(counts)))
    grouped = np.empty(len(files), np.int64)
    if not _group_by_file(files, row_indices, rows_of_files, bounds[:-1].copy(), grouped):
        raise Corrupt("the primary key index points beyond the end of a compacted file")
    marks = np.zeros((int(rows_of_files.max(initial=0)) >> 6) + 1, np.uint64)
    if not _rank_by_file(bounds, grouped, marks, np.empty(len(marks), np.int64)):
        raise Corrupt("the primary key index points twice at one row of a compacted file")
    ranks = np.empty(len(files), np.int32)
    _ungroup(files, bounds[:-1].copy(), grouped, ranks)
    return ranks


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


def compacted_pointers(
    files: Int32s, ranks: Int32s, first_offsets: Int64s, first_file_numbers: Int64s, rows_per_compacted_file: int
) -> tuple[Int32s, Int64s]:
    """The output locations of rows, as (file numbers, row indices), (rows,) each.

    files, ranks        (rows,): the source file of each row, and the row's rank in it
    first_offsets       by source file: the offset of rank 0 among all rows that its materialize task writes, from 0
    first_file_numbers  by source file: number of the first file that this task writes

    Precondition: 0 <= file < len(first_offsets). Checked: the lengths, and that a file holds a row or more.
    """
    if len(files) != len(ranks) or len(first_offsets) != len(first_file_numbers) or rows_per_compacted_file < 1:
        raise ValueError(
            f"{len(files)} rows with {len(ranks)} ranks, {len(first_offsets)} files with {len(first_file_numbers)} "
            f"numbers, {rows_per_compacted_file} rows a file"
        )
    file_numbers, row_indices = np.empty(len(files), np.int32), np.empty(len(files), np.int64)
    _point(files, ranks, first_offsets, first_file_numbers, rows_per_compacted_file, file_numbers, row_indices)
    return file_numbers, row_indices


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


@nb.njit(cache=True, nogil=True)
def _mark(rows, counted, row_numbers, marks):  # type: ignore[no-untyped-def]
    for survivor in range(rows.size):
        if counted[survivor]:
            row_number = row_numbers[rows[survivor]]
            marks[row_number >> 6] |= np.uint64(1) << np.uint64(row_number & 63)


@nb.njit(cache=True, nogil=True)
def _sum_up(marks, before, file_bounds, first):  # type: ignore[no-untyped-def]
    for word in range(1, marks.size):
        before[word] = before[word - 1] + _count_ones(marks[word - 1])
    for file in range(first.size):
        first[file] = _survivors_before(file_bounds[file], marks, before)


@nb.njit(cache=True, nogil=True)
def _rank(rows, counted, row_numbers, files, marks, before, first, ranks):  # type: ignore[no-untyped-def]
    for survivor in range(rows.size):
        ranks[survivor] = 0
        if counted[survivor]:
            row = rows[survivor]
            ranks[survivor] = _survivors_before(row_numbers[row], marks, before) - first[files[row]]


@nb.njit(cache=True, nogil=True)
def _find_files(row_numbers, file_bounds, guesses, shift, files):  # type: ignore[no-untyped-def]
    for row in range(row_numbers.size):
        row_number = row_numbers[row]
        file = guesses[row_number >> shift]
        while row_number >= file_bounds[file + 1]:
            file += 1
        files[row] = file


@nb.njit(cache=True, nogil=True)
def _point(files, ranks, first_offsets, first_file_numbers, rows_per_file, file_numbers, row_indices):  # type: ignore[no-untyped-def]
    for row in range(files.size):
        file = files[row]
        offset = first_offsets[file] + ranks[row]
        number = offset // rows_per_file
        file_numbers[row] = first_file_numbers[file] + number
        row_indices[row] = offset - number * rows_per_file


@nb.njit(cache=True, nogil=True)
def _group_by_file(files, row_indices, rows_of_files, cursor, grouped):  # type: ignore[no-untyped-def]
    for row in range(files.size):
        file, row_index = files[row], row_indices[row]
        if row_index < 0 or row_index >= rows_of_files[file]:
            return False
        grouped[cursor[file]] = row_index
        cursor[file] += 1
    return True


@nb.njit(cache=True, nogil=True)
def _rank_by_file(bounds, grouped, marks, before):  # type: ignore[no-untyped-def]
    """Puts ranks in place of the row indices. False if a row occurs twice, because it would share its rank."""
    for file in range(bounds.size - 1):
        words = np.int64(0)
        for number in range(bounds[file], bounds[file + 1]):
            row = grouped[number]
            marks[row >> 6] |= np.uint64(1) << np.uint64(row & 63)
            words = max(words, (row >> 6) + 1)
        total = np.int64(0)
        for word in range(words):
            before[word] = total
            total += _count_ones(marks[word])
        if total != bounds[file + 1] - bounds[file]:
            return False
        for number in range(bounds[file], bounds[file + 1]):
            grouped[number] = _survivors_before(grouped[number], marks, before)
        marks[:words] = 0
    return True


@nb.njit(cache=True, nogil=True)
def _ungroup(files, cursor, grouped, ranks):  # type: ignore[no-untyped-def]
    for row in range(files.size):
        file = files[row]
        ranks[row] = grouped[cursor[file]]
        cursor[file] += 1
