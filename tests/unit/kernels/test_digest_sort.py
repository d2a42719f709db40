"""Rows that are moved into digest order are all there, in a stable order, whatever the digests are."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.kernels.digest_sort import sort_by_digest
from compactor.kernels.sha1 import Digests

# Real digests are uniform. Half of these words are of few values: they tie, and share their leading bits.
_FEW = np.array([0, 1, 2**24, 2**31, 2**32 - 1], np.uint32)
_WORDS = np.concatenate([np.resize(_FEW, 128), np.random.default_rng(1).integers(0, 2**32, 128, np.uint32)])
_PIECES = st.lists(st.binary(max_size=200), max_size=4)
"""A byte a word, by its number in `_WORDS`."""


def plain_order(digests: Digests) -> npt.NDArray[np.intp]:
    """By NumPy's own stable sort, the most significant word last, as it wants them."""
    return np.lexsort([digests[:, word] for word in reversed(range(5))])


def check_sorted(pieces: list[Digests], width: int) -> None:
    digests = np.concatenate([np.empty((0, 5), np.uint32), *pieces])
    values = np.arange(len(digests) * width).astype(np.uint8).reshape(len(digests), width)
    cuts = np.cumsum([0, *map(len, pieces)])
    values_of_pieces = [values[start:end] for start, end in pairwise(cuts)]
    indices_of_pieces = [np.arange(start, end).astype(np.uint32) * 3 for start, end in pairwise(cuts)]
    given_digests = list(pieces)
    found = sort_by_digest(given_digests, indices_of_pieces, values_of_pieces, width)
    order = plain_order(digests)
    assert (found.row_numbers == order).all()
    assert (found.digests == digests[order]).all()
    assert (found.row_indices == order * 3).all()
    assert (found.sort_values == values[order]).all()
    assert given_digests == indices_of_pieces == values_of_pieces == []


@given(_PIECES, st.sampled_from([0, 1, 9]))
def test_any_digests_come_in_digest_order_with_their_values(pieces: list[bytes], width: int) -> None:
    words = [_WORDS[np.frombuffer(piece, np.uint8)] for piece in pieces]
    check_sorted([piece[: len(piece) // 5 * 5].reshape(-1, 5) for piece in words], width)


@pytest.mark.parametrize("rows", [8_191, 8_192, 50_000, 2_200_000])
def test_many_uniform_digests_with_repeats_come_in_stable_order(rows: int) -> None:
    digests = np.random.default_rng(rows).integers(0, 2**32, (rows, 5), dtype=np.uint32)
    digests[rows // 2 :] = digests[: rows - rows // 2]
    check_sorted([digests[: rows // 3], digests[rows // 3 :]], 2)


def test_rows_of_one_digest_keep_their_order() -> None:
    check_sorted([np.full((30_000, 5), 7, np.uint32)], 4)
