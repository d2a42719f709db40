"""Digest order is a stable sort by digest, whatever the digests are."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from compactor.kernels.digest_order import digest_order
from compactor.kernels.sha1 import Words

# Real digests are uniform. Words from so few values tie, and share their leading bits, at every place.
_WORD = st.sampled_from([0, 1, 2**31, 2**32 - 1]) | st.integers(0, 2**32 - 1)
_WORDS = st.lists(st.tuples(_WORD, _WORD, _WORD, _WORD, _WORD), max_size=60)


def plain_order(words: Words) -> list[int]:
    return sorted(range(len(words)), key=lambda row: words[row].astype(">u4").tobytes())


@given(_WORDS)
def test_any_words_come_in_digest_order_and_equal_ones_in_their_old_order(rows: list[tuple[int, ...]]) -> None:
    words = np.array(rows, np.uint32).reshape(-1, 5)
    assert digest_order(words).tolist() == plain_order(words)


def test_many_uniform_digests_with_repeats_come_in_stable_order() -> None:
    words = np.random.default_rng(1).integers(0, 2**32, (20_000, 5), dtype=np.uint32)
    words[10_000:] = words[:10_000]
    assert digest_order(words).tolist() == plain_order(words)
