"""Rows in digest order, in O(n): digests are uniform, so a scatter by their top bits leaves only tiny runs to sort."""

from __future__ import annotations

import numba as nb
import numpy as np
import numpy.typing as npt

from compactor.kernels.sha1 import Words

_ROWS_PER_SLOT = 4
_SLOT_BITS_MAX = 24


def digest_order(words: Words) -> npt.NDArray[np.int64]:
    """The stable order of rows by digest: equal digests keep their old order. int64 (rows,).

    Any input sorts right; input whose top bits are not uniform (never SHA-1's) only sorts slower.
    """
    rows = len(words)
    slot_bits = min(max(rows // _ROWS_PER_SLOT, 1).bit_length(), _SLOT_BITS_MAX)
    order = np.empty(rows, np.int64)
    heads = np.empty(rows, np.uint64)
    _scatter_by_top_bits(words, slot_bits, order, heads)
    return order


@nb.njit(cache=True, nogil=True)
def _later(words, left, right):  # type: ignore[no-untyped-def]
    """Whether row `left` sorts after row `right`, given that their first two words are equal."""
    for word in range(2, 5):
        if words[left, word] != words[right, word]:
            return words[left, word] > words[right, word]
    return False


@nb.njit(cache=True, nogil=True)
def _scatter_by_top_bits(words, slot_bits, order, heads):  # type: ignore[no-untyped-def]
    shift = np.uint64(64 - slot_bits)
    starts = np.zeros((1 << slot_bits) + 1, np.int64)
    for row in range(words.shape[0]):
        head = (np.uint64(words[row, 0]) << np.uint64(32)) | np.uint64(words[row, 1])
        starts[np.int64(head >> shift) + 1] += 1
    for slot in range(1, starts.size):
        starts[slot] += starts[slot - 1]
    cursor = starts[:-1].copy()
    for row in range(words.shape[0]):
        head = (np.uint64(words[row, 0]) << np.uint64(32)) | np.uint64(words[row, 1])
        at = cursor[np.int64(head >> shift)]
        cursor[np.int64(head >> shift)] = at + 1
        begin = starts[np.int64(head >> shift)]
        # Insertion into the slot's sorted run; strictly later rows move up, equal ones stay before: stable.
        while at > begin and (heads[at - 1] > head or (heads[at - 1] == head and _later(words, order[at - 1], row))):
            heads[at] = heads[at - 1]
            order[at] = order[at - 1]
            at -= 1
        heads[at] = head
        order[at] = row
