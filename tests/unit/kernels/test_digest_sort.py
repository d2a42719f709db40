"""Rows that are moved into digest order are all there, in a stable order, whatever the digests are."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.kernels.digest_sort import DigestSort
from compactor.kernels.sha1 import Digests

# Real digests are uniform. Half of these words are of few values: they tie, and share their leading bits.
_FEW = np.array([0, 1, 2**24, 2**31, 2**32 - 1], np.uint32)
_WORDS = np.concatenate([np.resize(_FEW, 128), np.random.default_rng(1).integers(0, 2**32, 128, np.uint32)])
_PIECES = st.lists(st.binary(max_size=200), max_size=4)
"""A byte a word, by its number in `_WORDS`."""


def plain_order(digests: Digests) -> npt.NDArray[np.intp]:
    """By NumPy's own stable sort, the most significant word last, as it wants them."""
    return np.lexsort([digests[:, word] for word in reversed(range(5))])


def check_sorted(pieces: list[Digests], width: int, rows_expected: int | None = None, seed: int = 0) -> None:
    """Pieces are added in any order, and the rows are in the order of the pieces as they are listed."""
    digests = np.concatenate([np.empty((0, 5), np.uint32), *pieces])
    values = np.arange(len(digests) * width).astype(np.uint8).reshape(len(digests), width)
    indices = np.arange(len(digests), dtype=np.uint32) * 3
    cuts = list(pairwise(np.cumsum([0, *map(len, pieces)]).tolist()))
    arrival = np.random.default_rng(seed).permutation(len(pieces))
    sort = DigestSort(len(digests) if rows_expected is None else rows_expected, np.uint32, width)
    for number in arrival.tolist():
        start, end = cuts[number]
        sort.add(digests[start:end], indices[start:end], values[start:end])
    found = sort.in_order(np.argsort(arrival))
    order = plain_order(digests)
    assert (found.row_numbers == order).all()
    assert (found.digests == digests[order]).all()
    assert (found.row_indices == indices[order]).all()
    assert (found.sort_values == values[order]).all()


@given(_PIECES, st.sampled_from([0, 1, 9]), st.sampled_from([None, 0, 100_000]), st.integers(0, 9))
def test_any_digests_come_in_digest_order_with_their_values(
    pieces: list[bytes], width: int, rows_expected: int | None, seed: int
) -> None:
    words = [_WORDS[np.frombuffer(piece, np.uint8)] for piece in pieces]
    check_sorted([piece[: len(piece) // 5 * 5].reshape(-1, 5) for piece in words], width, rows_expected, seed)


@pytest.mark.parametrize("rows", [8_191, 8_192, 50_000, 2_200_000])
@pytest.mark.parametrize("expected", [0.1, 1, 3])
def test_many_uniform_digests_with_repeats_come_in_stable_order(rows: int, expected: float) -> None:
    digests = np.random.default_rng(rows).integers(0, 2**32, (rows, 5), dtype=np.uint32)
    digests[rows // 2 :] = digests[: rows - rows // 2]
    check_sorted([digests[: rows // 3], digests[rows // 3 :]], 2, int(rows * expected), seed=1)


def test_rows_of_one_digest_keep_their_order() -> None:
    one = np.full((30_000, 5), 7, np.uint32)
    check_sorted([one], 4)
    check_sorted([one[:9_999], one[9_999:], one[:5]], 4, seed=3)


def test_pieces_that_were_not_reordered_are_numbered_as_they_came() -> None:
    sort = DigestSort(1, np.uint64, 0)
    for index in range(3):
        sort.add(np.full((1, 5), 2 - index // 2, np.uint32), np.array([index], np.uint64), np.empty((1, 0), np.uint8))
    found = sort.in_order()
    assert (found.row_numbers.tolist(), found.row_indices.tolist()) == ([2, 0, 1], [2, 0, 1])
