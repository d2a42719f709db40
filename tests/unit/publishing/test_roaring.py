"""64-bit Roaring bitmaps are what another implementation reads, and writes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyroaring import BitMap64

from compactor.publishing.roaring import roaring_bitmap

_ROWS = st.one_of(
    st.sets(st.integers(0, 200_000), max_size=300),
    st.sets(st.integers(0, 2**40), max_size=50),
    st.builds(
        lambda start, count, step: set(range(start, start + count * step, step)),
        st.integers(0, 2**33),
        st.integers(0, 10_000),
        st.integers(1, 5),
    ),
)


@given(_ROWS)
@example(set())
@example({0, 65_535, 65_536, 2**32 - 1, 2**32, 2**63 - 1})
@example(set(range(0, 4_096 * 2, 2)))
@example(set(range(0, 4_097 * 2, 2)))
@example(set(range(65_536)))
def test_another_implementation_reads_the_same_rows(rows: set[int]) -> None:
    written = roaring_bitmap(np.array(sorted(rows), np.int64))
    assert sorted(BitMap64.deserialize(written)) == sorted(rows)


def test_rows_without_runs_are_the_bytes_that_another_implementation_writes() -> None:
    rows = np.unique(np.random.default_rng(1).integers(0, 6_000_000, 50_000))
    assert roaring_bitmap(rows) == BitMap64(rows.tolist()).serialize()


@pytest.mark.parametrize("dead_share", [0.001, 0.1, 0.9])
def test_a_vector_of_many_rows_takes_no_more_than_its_bits(dead_share: float) -> None:
    rows = np.flatnonzero(np.random.default_rng(2).random(1_000_000) < dead_share)
    assert len(roaring_bitmap(rows)) <= min(2 * len(rows), 1_000_000 // 8 + 8_192) + 16 * 20
