"""The arithmetic of a session, by worked numbers, and what holds for any numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.errors import Invalid
from compactor.sizing import (
    DEDUPE_BYTES_PER_ROW,
    REHASH_MEMORY_SHARE,
    SLA_BUFFER,
    TARGET_MEMORY_SHARE,
    Resources,
    SessionSize,
    dedupe_bytes_per_row,
    hash_buckets_for,
    memory_share,
    predict_seconds,
    size_session,
)

GIB = 1024**3
EIGHT_CORES = Resources(task_memory_bytes=8 * GIB, tasks=8)

sizes = st.builds(
    SessionSize,
    index_rows=st.integers(0, 10**9),
    delta_rows=st.integers(1, 10**9),
    delta_bytes=st.just(0),
    sort_values_bytes=st.integers(0, 36),
    inherited_hash_bucket_count=st.none() | st.integers(1, 500),
)
resources = st.builds(Resources, task_memory_bytes=st.integers(256 * 1024**2, 16 * GIB), tasks=st.integers(1, 2_000))


def size(
    index_rows: int = 0, delta_rows: int = 1_000, sort_values_bytes: int = 0, inherited: int | None = None
) -> SessionSize:
    return SessionSize(index_rows, delta_rows, 100 * delta_rows, sort_values_bytes, inherited)


def test_sort_values_take_their_share_of_a_row() -> None:
    assert dedupe_bytes_per_row(0) == DEDUPE_BYTES_PER_ROW
    assert dedupe_bytes_per_row(9) > dedupe_bytes_per_row(0) + 9


def test_a_bucket_takes_about_half_of_a_task_s_memory() -> None:
    buckets = hash_buckets_for(375_000_000, EIGHT_CORES, 0)
    share = memory_share(375_000_000, buckets, EIGHT_CORES, 0)
    assert share <= TARGET_MEMORY_SHARE
    assert memory_share(375_000_000, buckets - 1, EIGHT_CORES, 0) > TARGET_MEMORY_SHARE


def test_there_is_at_least_one_bucket_per_core() -> None:
    assert hash_buckets_for(1, EIGHT_CORES, 0) == 8


@given(sizes, resources)
def test_a_round_fits_into_the_memory_of_its_tasks(size: SessionSize, resources: Resources) -> None:
    sizing = size_session(size, resources, None, None)
    rows = size.index_rows + min(size.delta_rows, sizing.max_rows_per_round)
    share = memory_share(rows, sizing.hash_bucket_count, resources, size.sort_values_bytes)
    assert share <= REHASH_MEMORY_SHARE + 1e-9
    assert sizing.rounds * sizing.max_rows_per_round >= size.delta_rows


@given(sizes, resources)
def test_an_inherited_bucket_count_is_kept_until_it_would_take_more_than_nine_tenths(
    size: SessionSize, resources: Resources
) -> None:
    inherited = size.inherited_hash_bucket_count
    chosen = size_session(size, resources, None, None).hash_bucket_count
    if inherited is None:
        return
    share = memory_share(size.index_rows + size.delta_rows, inherited, resources, size.sort_values_bytes)
    if share <= REHASH_MEMORY_SHARE:
        assert chosen == inherited
    else:
        rows = size.index_rows + size.delta_rows
        assert memory_share(rows, chosen, resources, size.sort_values_bytes) <= TARGET_MEMORY_SHARE + 1e-9


def test_the_bucket_count_and_the_rows_of_a_round_can_be_asked_for() -> None:
    sizing = size_session(size(delta_rows=1_000), EIGHT_CORES, 3, 400)
    assert (sizing.hash_bucket_count, sizing.max_rows_per_round, sizing.rounds) == (3, 400, 3)


def test_more_rows_a_round_than_memory_holds_are_not_given_though_asked_for() -> None:
    small = Resources(task_memory_bytes=1_000 * DEDUPE_BYTES_PER_ROW, tasks=1)
    assert size_session(size(delta_rows=10_000), small, 1, 5_000).max_rows_per_round == 900


def test_a_bucket_count_that_cannot_even_hold_the_index_is_refused_with_both_figures() -> None:
    small = Resources(task_memory_bytes=1_000 * DEDUPE_BYTES_PER_ROW, tasks=1)
    with pytest.raises(Invalid, match=r"5000 index rows of 128 bytes in 1 hash buckets take more than 90% .* 128000"):
        size_session(size(index_rows=5_000), small, 1, None)


def test_the_expected_sla_is_the_predicted_time_and_ten_percent() -> None:
    sizing = size_session(size(delta_rows=5_000_000), EIGHT_CORES, None, None)
    assert sizing.expected_sla == pytest.approx(
        SLA_BUFFER * predict_seconds(size(delta_rows=5_000_000), EIGHT_CORES, 1)
    )


def test_more_cores_are_never_slower_and_more_rows_never_quicker() -> None:
    two, eight = Resources(GIB, 2), Resources(GIB, 8)
    assert predict_seconds(size(delta_rows=10**7), eight, 1) < predict_seconds(size(delta_rows=10**7), two, 1)
    assert predict_seconds(size(delta_rows=10**7), two, 1) < predict_seconds(size(delta_rows=10**8), two, 1)


def test_the_arithmetic_is_told_in_sentences() -> None:
    told = " / ".join(size_session(size(1_000, 2_000, inherited=4), EIGHT_CORES, None, None).arithmetic)
    assert "1,000 index rows + 2,000 delta rows" in told
    assert "4 hash buckets: inherited from the index" in told
    assert "10 % buffer" in told
