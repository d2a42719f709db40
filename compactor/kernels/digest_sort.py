"""Sorts rows by digest: by their top bits into parts that fit a processor's cache, then each part in it.

Sorting row numbers alone would move less data, but reading rows in that order would be random access. All columns of a
row move together, in two passes of sequential reads or writes, so that later passes read sequentially.
"""

import math
from dataclasses import dataclass
from typing import Any

import numba as nb
import numpy as np
import numpy.typing as npt

from compactor.kernels.compilation import copy_bytes
from compactor.kernels.sha1 import Digests
from compactor.model.errors import Invalid

_ROWS_PER_PART = 8 * 1024
_PART_BITS_MAX = 8
_ROWS_PER_SLOT = 1
_SLOT_BITS_MAX = 24
_ROWS_MAX = 2**31 - 1

Bytes = npt.NDArray[np.uint8]
RowIndices = npt.NDArray[np.unsignedinteger]


@dataclass(frozen=True)
class SortedRows:
    """Rows in digest order; equal digests in their old order.

    Attributes:
        digests: (rows, 5)
        row_numbers: int32 (rows,): where the row stood before
        row_indices: unsigned (rows,)
        sort_values: uint8 (rows, width)"""

    digests: Digests
    row_numbers: npt.NDArray[np.int32]
    row_indices: RowIndices
    sort_values: Bytes


def sort_by_digest(
    digests: list[Digests], row_indices: list[RowIndices], sort_values: list[Bytes], width: int
) -> SortedRows:
    """Rows that lie in pieces, one after the other, in digest order.

    The lists are emptied piece by piece, which releases the old memory as rows move.
    Any input is sorted correctly; input whose top bits are not uniform (SHA-1's always are) sorts slower.

    Args:
        digests: pieces of (rows, 5)
        row_indices: pieces of unsigned (rows,), which may differ in width
        sort_values: pieces of uint8 (rows, width)

    Precondition, which is checked: the lists' pieces have the same rows, and all sort values that width.
    Raises `Invalid` for more rows than an int32 counts."""
    for piece, indices, values in zip(digests, row_indices, sort_values, strict=True):
        if piece.shape != (len(piece), 5) or len(indices) != len(piece) or values.shape != (len(piece), width):
            raise ValueError(f"{len(piece)} digests, but {len(indices)} row indices and sort values {values.shape}")
    rows = sum(len(piece) for piece in digests)
    if rows > _ROWS_MAX:
        raise Invalid(f"a round has {rows} rows in one hash bucket, {_ROWS_MAX} at most: ask for more hash buckets")
    part_bits = min((rows // _ROWS_PER_PART).bit_length(), _PART_BITS_MAX)
    counts = np.zeros(1 << part_bits, np.int64)
    for piece in digests:
        _count(piece, part_bits, counts)
    bounds = np.concatenate(([0], np.cumsum(counts)))
    index_type = np.result_type(np.uint32, *(piece.dtype for piece in row_indices))
    moved = SortedRows(
        np.empty((rows, 5), np.uint32),
        np.empty(rows, np.int32),
        np.empty(rows, index_type),
        np.empty((rows, width), np.uint8),
    )
    cursor, first = bounds[:-1].copy(), 0
    targets = (moved.digests, moved.row_numbers, moved.row_indices, moved.sort_values)
    while digests:
        piece, indices, values = digests.pop(0), row_indices.pop(0).astype(index_type, copy=False), sort_values.pop(0)
        _scatter(piece, indices, values, first, part_bits, cursor, *targets)
        first += len(piece)
    _sort_parts(bounds, part_bits, *targets)
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


Piece = tuple[Digests, npt.NDArray[np.int64], tuple[npt.NDArray[Any], ...]]
"""Digests, row indices, and other columns, (rows,) or (rows, n)."""


def merge_by_digest(pieces: list[Piece]) -> MergedRows:
    """Rows of one piece or more, whose columns have the same types. Emptying the list releases pieces as rows move."""
    kinds = [(column.dtype, column.shape[1:]) for column in pieces[0][2]]
    digests, row_indices, others = [], [], []
    while pieces:
        piece = pieces.pop(0)
        digests.append(piece[0])
        row_indices.append(piece[1].astype(np.uint64))
        others.append(np.concatenate([_bytes_of(column) for column in piece[2]], axis=1))
        del piece
    widths = [dtype.itemsize * math.prod(shape) for dtype, shape in kinds]
    in_order = sort_by_digest(digests, row_indices, others, sum(widths))
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


@nb.njit(cache=True, nogil=True)
def _count(digests, part_bits, counts):  # type: ignore[no-untyped-def]
    for row in range(digests.shape[0]):
        counts[_part(digests[row, 0], part_bits)] += 1


@nb.njit(cache=True, nogil=True)
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


@nb.njit(cache=True, nogil=True)
def _sorts_after(digests, left, right):  # type: ignore[no-untyped-def]
    """Whether row `left` sorts after row `right`, given that their first two words are equal."""
    for word in range(2, 5):
        if digests[left, word] != digests[right, word]:
            return digests[left, word] > digests[right, word]
    return False


@nb.njit(cache=True, nogil=True)
def _order_part(digests, part_bits, slot_bits, starts, cursor, heads, order):  # type: ignore[no-untyped-def]
    """The stable order of a part's rows: a scatter by the bits that follow the part's, and insertion into tiny runs.

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


@nb.njit(cache=True, nogil=True)
def _sort_parts(bounds, part_bits, digests, row_numbers, indices, values):  # type: ignore[no-untyped-def]
    rows_max = np.diff(bounds).max()
    slots_max = 1 << _slot_bits(rows_max)
    starts, cursor = np.empty(slots_max + 1, np.int32), np.empty(slots_max, np.int32)
    heads, order = np.empty(rows_max, np.uint64), np.empty(rows_max, np.int32)
    part_digests, part_row_numbers = np.empty((rows_max, 5), np.uint32), np.empty(rows_max, np.int32)
    part_indices = np.empty(rows_max, indices.dtype)
    width, all_values = np.int64(values.shape[1]), values.reshape(-1)
    part_values = np.empty(rows_max * width, np.uint8)
    for part in range(bounds.size - 1):
        begin, rows = bounds[part], bounds[part + 1] - bounds[part]
        part_digests[:rows] = digests[begin : begin + rows]
        part_row_numbers[:rows] = row_numbers[begin : begin + rows]
        part_indices[:rows] = indices[begin : begin + rows]
        copy_bytes(part_values, 0, all_values, begin * width, rows * width)  # type: ignore[call-arg]
        _order_part(part_digests[:rows], part_bits, _slot_bits(rows), starts, cursor, heads, order)
        for row in range(rows):
            source, target = order[row], begin + row
            for word in range(5):
                digests[target, word] = part_digests[source, word]
            row_numbers[target], indices[target] = part_row_numbers[source], part_indices[source]
            copy_bytes(all_values, target * width, part_values, source * width, width)
