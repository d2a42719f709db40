"""A digest's hash bucket is what the rules of survival say it is, and grouping by it keeps the order of rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.kernels.hash_bucket import group_by_bucket, hash_buckets

_WORD = st.integers(0, 2**32 - 1)


@given(
    st.lists(st.tuples(_WORD, _WORD, _WORD, _WORD, _WORD), max_size=20),
    st.integers(1, 2**31 - 1) | st.integers(1, 64),
)
def test_the_bucket_is_the_digest_as_a_big_endian_number_modulo_the_count(
    rows: list[tuple[int, ...]], hash_bucket_count: int
) -> None:
    digests = np.array(rows, np.uint32).reshape(-1, 5)
    plain = [int.from_bytes(row.astype(">u4").tobytes(), "big") % hash_bucket_count for row in digests]
    assert hash_buckets(digests, hash_bucket_count).tolist() == plain


@given(st.lists(st.integers(0, 6), max_size=40))
def test_rows_are_grouped_by_bucket_in_their_old_order(buckets: list[int]) -> None:
    order, bounds = group_by_bucket(np.array(buckets, np.uint32), 7)
    assert len(bounds) == 8
    for bucket in range(7):
        rows = [row for row, found in enumerate(buckets) if found == bucket]
        assert order[bounds[bucket] : bounds[bucket + 1]].tolist() == rows


@pytest.mark.parametrize("hash_bucket_count", [2, 3, 8, 64])
def test_keys_spread_evenly_over_buckets(hash_bucket_count: int) -> None:
    digests = np.random.default_rng(2).integers(0, 2**32, (64_000, 5), dtype=np.uint32)
    sizes = np.bincount(hash_buckets(digests, hash_bucket_count), minlength=hash_bucket_count)
    assert sizes.min() > 0.85 * sizes.mean()
