"""Sorts rows by digest: by their top bits into parts that fit a processor's cache, then each part in it.

Sorting row numbers alone would move less data, but reading rows in that order would be random access. All columns of a
row move together, in two passes of sequential reads or writes, so that later passes read sequentially.

Rows are put into their parts as they come, so that no row is in memory twice: each part has room for its share of the
rows that are expected, and for as many more as chance brings. Memory that no row has touched takes none.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numba as nb
import numpy as np
import numpy.typing as npt

from compactor.kernels.compilation import copy_bytes, kernel
from compactor.kernels.sha1 import Digests
from compactor.model.errors import Invalid

_ROWS_PER_PART = 8 * 1024
_PART_BITS_MAX = 8
_ROWS_PER_SLOT = 1
_SLOT_BITS_MAX = 24
_ROWS_MAX = 2**31 - 1

_SPARE_SHARE = 1 / 8
_SPARE_DEVIATIONS = 6
"""A part's room beyond its share, in rows of it and in standard deviations of what is random."""

_ROOM_GROWTH = 1.5

_FEW_ROWS_OF_A_KEY = 16
"""So many rows of a key are put in order one by one."""

Bytes = npt.NDArray[np.uint8]
Int64s = npt.NDArray[np.int64]
RowIndices = npt.NDArray[np.unsignedinteger]


@dataclass(frozen=True)
class SortedRows:
    """Rows in digest order; those of a digest by their numbers.

    Attributes:
        digests: (rows, 5)
        row_numbers: int32 (rows,): where the row stood among all pieces
        row_indices: unsigned (rows,)
        sort_values: uint8 (rows, width)"""

    digests: Digests
    row_numbers: npt.NDArray[np.int32]
    row_indices: RowIndices
    sort_values: Bytes


class DigestSort:
    """Takes rows in pieces, and returns them in digest order.

    Any input is sorted correctly; input whose top bits are not uniform (SHA-1's always are) sorts slower, and more rows
    than expected are moved to where there is more room.

    Args:
        rows_expected: about as many as there will be
        index_type: unsigned: of row indices
        width: of sort values, in bytes"""

    def __init__(self, rows_expected: int, index_type: type[np.unsignedinteger], width: int) -> None:
        self._part_bits = min((rows_expected // _ROWS_PER_PART).bit_length(), _PART_BITS_MAX)
        share = rows_expected / (1 << self._part_bits)
        room = int(share * (1 + _SPARE_SHARE) + _SPARE_DEVIATIONS * math.sqrt(share)) + 1
        self._starts: Int64s = np.arange((1 << self._part_bits) + 1, dtype=np.int64) * room
        self._counts = np.zeros(1 << self._part_bits, np.int64)
        self._digests, self._row_numbers, self._row_indices, self._sort_values = (
            np.empty((int(self._starts[-1]), *each), kind) for each, kind in self._shapes(index_type, width)
        )
        self._firsts = [0]

    @staticmethod
    def _shapes(index_type: type[np.unsignedinteger], width: int) -> list[tuple[tuple[int, ...], type[np.generic]]]:
        return [((5,), np.uint32), ((), np.int32), ((), index_type), ((width,), np.uint8)]

    def add(self, digests: Digests, row_indices: RowIndices, sort_values: Bytes) -> None:
        """Adds a piece.

        Args:
            digests: (rows, 5)
            row_indices: unsigned (rows,)
            sort_values: uint8 (rows, width)

        Precondition, which is checked: the rows of all are as many, and the width is the one that was stated.
        Raises `Invalid` for more rows than an int32 counts."""
        rows, width = len(digests), self._sort_values.shape[1]
        if digests.shape != (rows, 5) or len(row_indices) != rows or sort_values.shape != (rows, width):
            raise ValueError(f"{rows} digests, but {len(row_indices)} row indices and sort values {sort_values.shape}")
        first = self._firsts[-1]
        if first + rows > _ROWS_MAX:
            what = f"a round has more than {_ROWS_MAX} rows in one hash bucket"
            raise Invalid(f"{what}: ask for more hash buckets")
        counts = np.zeros(len(self._counts), np.int64)
        _count(digests, self._part_bits, counts)
        needed = self._counts + counts
        if (needed > np.diff(self._starts)).any():
            self._make_room(needed)
        cursor = self._starts[:-1] + self._counts
        indices = row_indices.astype(self._row_indices.dtype, copy=False)
        _scatter(
            digests,
            indices,
            sort_values,
            first,
            self._part_bits,
            cursor,
            self._digests,
            self._row_numbers,
            self._row_indices,
            self._sort_values,
        )
        self._counts = needed
        self._firsts.append(first + rows)

    def in_order(self, order: npt.NDArray[np.integer] | None = None) -> SortedRows:
        """All rows; no more can be added.

        `order`: of the pieces, by when each was added; None: as they were added."""
        if order is not None:
            self._number_anew(order)
        _sort_parts(
            self._starts,
            self._counts,
            self._part_bits,
            self._digests,
            self._row_numbers,
            self._row_indices,
            self._sort_values,
        )
        rows, width = self._firsts[-1], self._sort_values.shape[1]
        # What is beyond the rows is returned to the system.
        self._digests.resize((rows, 5), refcheck=False)
        self._row_numbers.resize(rows, refcheck=False)
        self._row_indices.resize(rows, refcheck=False)
        self._sort_values.resize((rows, width), refcheck=False)
        return SortedRows(self._digests, self._row_numbers, self._row_indices, self._sort_values)

    def _number_anew(self, order: npt.NDArray[np.integer]) -> None:
        """Numbers the rows as if their pieces had come in this order."""
        firsts = np.array(self._firsts, np.int64)
        rows = np.diff(firsts)
        moved = np.empty(len(rows), np.int64)
        moved[order] = np.cumsum(rows[order]) - rows[order]
        moved -= firsts[:-1]
        if moved.any():
            _renumber(self._starts, self._counts, self._row_numbers, firsts, moved)

    def _make_room(self, needed: Int64s) -> None:
        """Moves all rows, column by column, to where each part has room for what it needs."""
        room = np.diff(self._starts)
        room = np.where(needed > room, (needed * _ROOM_GROWTH).astype(np.int64), room)
        starts = np.concatenate(([0], np.cumsum(room)))
        self._digests = self._moved(self._digests, starts)
        self._row_numbers = self._moved(self._row_numbers, starts)
        self._row_indices = self._moved(self._row_indices, starts)
        self._sort_values = self._moved(self._sort_values, starts)
        self._starts = starts

    def _moved(self, column: npt.NDArray[Any], starts: Int64s) -> npt.NDArray[Any]:
        moved = np.empty((int(starts[-1]), *column.shape[1:]), column.dtype)
        for old, new, count in zip(self._starts.tolist(), starts.tolist(), self._counts.tolist(), strict=False):
            moved[new : new + count] = column[old : old + count]
        return moved


@dataclass(frozen=True)
class MergedRows:
    """Rows of several pieces in digest order; equal digests in the order of the pieces.

    Attributes:
        digests: (rows, 5)
        row_numbers: int32 (rows,): where the row stood among all pieces
        row_indices: int64 (rows,)
        others: the other columns"""

    digests: Digests
    row_numbers: npt.NDArray[np.int32]
    row_indices: npt.NDArray[np.int64]
    others: tuple[npt.NDArray[Any], ...]


@dataclass(frozen=True)
class RowsToMerge:
    """Rows in memory.

    Attributes:
        digests: (rows, 5)
        row_indices: int64 (rows,)
        others: other columns, (rows,) or (rows, n)
        rank: pieces are ordered by it; those of one rank as they come"""

    digests: Digests
    row_indices: npt.NDArray[np.int64]
    others: tuple[npt.NDArray[Any], ...]
    rank: int = 0


def merge_by_digest(pieces: Iterator[RowsToMerge], rows: int) -> MergedRows:
    """Rows of one piece or more, whose columns have the same types. A piece is read when the one before has moved.

    `rows`: of all of them, about."""
    piece = next(pieces)
    kinds = [(column.dtype, column.shape[1:]) for column in piece.others]
    widths = [dtype.itemsize * math.prod(shape) for dtype, shape in kinds]
    sort, ranks = DigestSort(rows, np.uint64, sum(widths)), []
    for piece in chain([piece], pieces):  # noqa: B020
        values = np.concatenate([_bytes_of(column) for column in piece.others], axis=1)
        sort.add(piece.digests, piece.row_indices.astype(np.uint64), values)
        ranks.append(piece.rank)
    in_order = sort.in_order(np.argsort(ranks, kind="stable"))
    del piece, sort
    ends = np.cumsum(widths)
    columns = tuple(
        np.ascontiguousarray(in_order.sort_values[:, end - width : end])
        .view(dtype)
        .reshape(len(in_order.digests), *shape)
        for (dtype, shape), end, width in zip(kinds, ends, widths, strict=True)
    )
    return MergedRows(in_order.digests, in_order.row_numbers, in_order.row_indices.view(np.int64), columns)


def _bytes_of(column: npt.NDArray[Any]) -> Bytes:
    """uint8 (rows, width)."""
    width = column.dtype.itemsize * (column.shape[1] if column.ndim == 2 else 1)
    return np.ascontiguousarray(column).view(np.uint8).reshape(len(column), width)


@nb.njit(inline="always")
def _part(word, part_bits):  # type: ignore[no-untyped-def]
    return np.int64(np.uint64(word) >> np.uint64(32 - part_bits))


@kernel
def _count(digests, part_bits, counts):  # type: ignore[no-untyped-def]
    for row in range(digests.shape[0]):
        counts[_part(digests[row, 0], part_bits)] += 1


@kernel
def _scatter(  # type: ignore[no-untyped-def]
    digests, indices, values, first, part_bits, cursor, out_digests, out_row_numbers, out_indices, out_values
):
    """Precondition: `cursor` has a number for each part, and the rows that follow it are as many as `_count` found."""
    width, from_values, to_values = np.int64(values.shape[1]), values.reshape(-1), out_values.reshape(-1)
    for row in range(digests.shape[0]):
        part = _part(digests[row, 0], part_bits)
        at = cursor[part]
        cursor[part] = at + 1
        for word in range(5):
            out_digests[at, word] = digests[row, word]
        out_row_numbers[at] = first + row
        out_indices[at] = indices[row]
        copy_bytes(to_values, at * width, from_values, row * width, width)  # type: ignore[call-arg]


@kernel
def _renumber(starts, counts, row_numbers, firsts, moved):  # type: ignore[no-untyped-def]
    """Adds to each row's number what its piece has moved. The rows of a part are in the order of the pieces."""
    for part in range(counts.size):
        piece = 0
        for row in range(starts[part], starts[part] + counts[part]):
            while row_numbers[row] >= firsts[piece + 1]:
                piece += 1
            row_numbers[row] += moved[piece]


@kernel
def _sorts_after(digests, left, right):  # type: ignore[no-untyped-def]
    """Whether row `left` sorts after row `right`, given that their first two words are equal."""
    for word in range(2, 5):
        if digests[left, word] != digests[right, word]:
            return digests[left, word] > digests[right, word]
    return False


@kernel
def _order_part(digests, part_bits, slot_bits, starts, cursor, heads, order):  # type: ignore[no-untyped-def]
    """The order of a part's rows: a scatter by the bits that follow the part's, and insertion into tiny runs. Rows of a
    digest are in the order in which they stood.

    Precondition: 1 <= slot_bits, len(starts) > 2^slot_bits, len(cursor) >= 2^slot_bits, and `heads` and `order` have
    room for all rows, which fit an int32.
    """
    slots, shift = 1 << slot_bits, np.uint64(64 - slot_bits)
    starts[: slots + 1] = 0
    for row in range(digests.shape[0]):
        head = (np.uint64(digests[row, 0]) << np.uint64(32)) | np.uint64(digests[row, 1])
        starts[np.int64((head << np.uint64(part_bits)) >> shift) + 1] += 1
    for slot in range(slots):
        starts[slot + 1] += starts[slot]
        cursor[slot] = starts[slot]
    for row in range(digests.shape[0]):
        head = (np.uint64(digests[row, 0]) << np.uint64(32)) | np.uint64(digests[row, 1])
        slot_start = np.int64((head << np.uint64(part_bits)) >> shift)
        at = cursor[slot_start]
        cursor[slot_start] = at + 1
        # Strictly later rows move up, equal ones stay before: stable.
        while at > starts[slot_start] and (
            heads[at - 1] > head or (heads[at - 1] == head and _sorts_after(digests, order[at - 1], row))
        ):
            heads[at] = heads[at - 1]
            order[at] = order[at - 1]
            at -= 1
        heads[at] = head
        order[at] = row


@nb.njit(inline="always")
def _slot_bits(rows):  # type: ignore[no-untyped-def]
    bits = 1
    while (_ROWS_PER_SLOT << bits) < rows and bits < _SLOT_BITS_MAX:
        bits += 1
    return bits


@kernel
def _order_rows_of_keys(digests, row_numbers, heads, order):  # type: ignore[no-untyped-def]
    """Puts rows of one digest, which follow each other, in the order of their numbers."""
    begin = 0
    while begin < order.size:
        end, ascend = begin + 1, True
        while end < order.size and heads[end] == heads[begin] and not _sorts_after(digests, order[end], order[begin]):
            ascend = ascend and row_numbers[order[end - 1]] < row_numbers[order[end]]
            end += 1
        if not ascend and end - begin <= _FEW_ROWS_OF_A_KEY:
            for row in range(begin + 1, end):
                at, moving = row, order[row]
                while at > begin and row_numbers[order[at - 1]] > row_numbers[moving]:
                    order[at] = order[at - 1]
                    at -= 1
                order[at] = moving
        elif not ascend:
            of_key = np.empty(end - begin, np.int64)
            for row in range(begin, end):
                of_key[row - begin] = (np.int64(row_numbers[order[row]]) << 32) | np.int64(order[row])
            of_key.sort()
            for row in range(begin, end):
                order[row] = of_key[row - begin] & 0xFFFFFFFF
        begin = end


@kernel
def _sort_parts(starts_of_parts, counts, part_bits, digests, row_numbers, indices, values):  # type: ignore[no-untyped-def]
    """Sorts each part, and moves them together: afterwards, all rows are at the begin of the arrays.

    Precondition: part p has counts[p] rows from starts_of_parts[p] on, and the next one begins after these."""
    rows_max = counts.max()
    slots_max = 1 << _slot_bits(rows_max)
    starts, cursor = np.empty(slots_max + 1, np.int32), np.empty(slots_max, np.int32)
    heads, order = np.empty(rows_max, np.uint64), np.empty(rows_max, np.int32)
    part_digests, part_row_numbers = np.empty((rows_max, 5), np.uint32), np.empty(rows_max, np.int32)
    part_indices = np.empty(rows_max, indices.dtype)
    width, all_values = np.int64(values.shape[1]), values.reshape(-1)
    part_values = np.empty(rows_max * width, np.uint8)
    target = 0
    for part in range(counts.size):
        begin, rows = starts_of_parts[part], counts[part]
        part_digests[:rows] = digests[begin : begin + rows]
        part_row_numbers[:rows] = row_numbers[begin : begin + rows]
        part_indices[:rows] = indices[begin : begin + rows]
        copy_bytes(part_values, 0, all_values, begin * width, rows * width)  # type: ignore[call-arg]
        _order_part(part_digests[:rows], part_bits, _slot_bits(rows), starts, cursor, heads, order)
        _order_rows_of_keys(part_digests, part_row_numbers, heads, order[:rows])
        for row in range(rows):
            source = order[row]
            for word in range(5):
                digests[target, word] = part_digests[source, word]
            row_numbers[target], indices[target] = part_row_numbers[source], part_indices[source]
            copy_bytes(all_values, target * width, part_values, source * width, width)
            target += 1
