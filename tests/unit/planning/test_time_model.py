"""How long a session takes: what it is made of, the paper's own points, and what a table's own rounds change."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.planning.sizing import Resources, SessionSize, predicted_time, recommended_hash_buckets, work_of
from compactor.planning.time_model import (
    CORRECTION_MAX,
    NEAR,
    MeasuredRound,
    Rates,
    SessionWork,
    TasksOfRound,
    correction_of,
    predict_time,
    rates_of,
)

GIB = 1024**3
FAR = rates_of(far=True, in_process=False)

FIGURE_3_1 = (
    (46_875_000_000, 313),
    (93_750_000_000, 625),
    (187_500_000_000, 1_250),
    (375_000_000_000, 2_500),
    (750_000_000_000, 5_000),
    (1_500_000_000_000, 10_000),
    (3_000_000_000_000, 20_000),
    (6_000_000_000_000, 40_000),
)
PAPER_ROWS_PER_BUCKET = 150_000_000


def predict_seconds(
    size: SessionSize, resources: Resources, rounds: int, hash_bucket_count: int | None = None
) -> float:
    return predicted_time(size, resources, rounds, hash_bucket_count).seconds


@pytest.mark.parametrize(("rows", "hash_buckets"), FIGURE_3_1)
def test_figure_3_1_comes_out_of_the_same_function_with_the_paper_s_rows_per_bucket(
    rows: int, hash_buckets: int
) -> None:
    assert recommended_hash_buckets(rows, PAPER_ROWS_PER_BUCKET) == hash_buckets


def test_the_paper_s_rows_per_bucket_are_28_63_bytes_a_row_at_half_of_8_gib() -> None:
    assert round(8 * GIB / 2 / PAPER_ROWS_PER_BUCKET, 2) == 28.63


works = st.builds(
    SessionWork,
    rounds=st.integers(1, 50),
    delta_rows=st.integers(0, 10**10),
    files_read=st.integers(0, 10**5),
    bytes_read=st.integers(0, 10**13),
    shuffled_bytes=st.integers(0, 10**12),
    index_rows=st.integers(0, 10**11),
    rows_written=st.integers(0, 10**10),
    bytes_written=st.integers(0, 10**13),
)


@given(works, st.integers(1, 1_000), st.booleans(), st.booleans())
def test_more_work_takes_longer_and_more_cores_do_not(
    work: SessionWork, cores: int, far: bool, in_process: bool
) -> None:
    rates = rates_of(far=far, in_process=in_process, network_byte=1e-9, machines=2)
    seconds = predict_time(work, rates, cores, 5.0).seconds
    assert seconds >= 5.0
    for name, amount in vars(work).items():
        assert predict_time(replace(work, **{name: amount + 10**6}), rates, cores, 5.0).seconds >= seconds
    assert predict_time(work, rates, cores + 1, 5.0).seconds <= seconds
    assert predict_time(work, rates, cores, 420.0).seconds == pytest.approx(seconds + 415)


@given(works, st.integers(1, 100), st.integers(1, 100))
def test_cores_beyond_the_tasks_of_a_step_make_it_no_faster(work: SessionWork, cores: int, tasks: int) -> None:
    few = TasksOfRound(tasks, tasks, tasks)
    cut = predict_time(work, NEAR, cores, 5.0, few)
    on_as_many = predict_time(work, NEAR, min(cores, tasks), 5.0)
    assert replace(cut, rehash=0.0) == replace(on_as_many, rehash=0.0)


def test_one_file_that_cannot_be_cut_takes_on_many_cores_what_it_takes_on_one() -> None:
    text = SessionSize(0, 8_000_000, 600_000_000, 0, None, undivided_rows=8_000_000, uncut_files=1)
    parquet = replace(text, undivided_rows=1_000_000, uncut_files=0)
    one, many = Resources(1 << 30, 1), Resources(1 << 30, 64)
    slow, cut = (predicted_time(size, many, 1, 64) for size in (text, parquet))
    alone = predicted_time(text, one, 1, 64)
    assert (slow.hash_bucket, slow.materialize) == (alone.hash_bucket, alone.materialize)
    assert slow.dedupe == alone.dedupe / 64
    assert (cut.hash_bucket, cut.materialize) == (alone.hash_bucket / 8, alone.materialize / 8)


def test_a_round_that_had_one_task_is_not_taken_for_a_slow_one() -> None:
    work = SessionWork(1, 10**7, 1, 10**9, 0, 0, 10**7, 10**9)
    took = predict_time(work, NEAR, 1, 0.0)
    steps = {"hash_bucket": took.hash_bucket, "dedupe": took.dedupe}
    one_task = MeasuredRound(work, 8, steps, TasksOfRound(hash_bucket=1, dedupe=1))
    assert correction_of([one_task], NEAR) == {"hash_bucket": 1.0, "dedupe": 1.0}


def test_a_store_that_is_far_and_a_network_take_their_time() -> None:
    work = SessionWork(1, 10**6, 100, 10**9, 24 * 10**6, 0, 10**6, 10**9)
    near, far = (predict_time(work, rates_of(far=each, in_process=False), 2, 0.0) for each in (False, True))
    assert far.read > near.read
    assert far.write > near.write == 0
    slow = rates_of(far=True, in_process=False, network_byte=1e-7, machines=4)
    spread = predict_time(work, slow, 2, 0.0)
    assert (spread.read > far.read, spread.write > far.write, spread.shuffle > far.shuffle == 0) == (True, True, True)


def test_rounds_rewrite_what_the_deltas_touch_and_what_earlier_rounds_wrote() -> None:
    untouched = SessionSize(4_000_000, 1_000_000, 75_000_000, 0, 8, 10, 100_000, 16, 300_000_000, 0, 0.0, 0.0)
    assert work_of(untouched, 2).rows_written == 1_000_000
    uniform = replace(untouched, touched_rows=4_000_000, touched_rows_per_file=4_000_000.0, overlap_share=1.0)
    assert work_of(uniform, 2).rows_written == 1_000_000 + 2 * 4_000_000 + 500_000
    clustered = replace(untouched, touched_rows=1_000_000, touched_rows_per_file=100_000.0)
    assert work_of(clustered, 2).rows_written == 1_000_000 + 1_000_000
    assert work_of(uniform, 2).index_rows == 2 * 4_000_000 + 500_000


def test_an_index_that_is_rehashed_first_takes_longer_and_only_then() -> None:
    size = SessionSize(10**8, 10**6, 75 * 10**6, 0, 8)
    kept, moved = (work_of(size, 1, hash_bucket_count=count) for count in (8, 16))
    assert (kept.rehashed_rows, moved.rehashed_rows) == (0, 10**8)
    two = Resources(GIB, 2)
    assert predict_seconds(size, two, 1, 16) > predict_seconds(size, two, 1, 8) == predict_seconds(size, two, 1)
    assert work_of(replace(size, inherited_hash_bucket_count=None, index_rows=0), 1, 16).rehashed_rows == 0


def test_a_session_that_only_cleans_files_rewrites_them() -> None:
    cleaning = SessionSize(4_000_000, 0, 0, 0, 8, 0, 0, 16, 300_000_000, 500_000, 0.0, 0.0)
    assert work_of(cleaning, 1).rows_written == 500_000


def test_a_session_that_only_merges_small_files_rewrites_their_rows_and_reads_each() -> None:
    merging = SessionSize(4_000_000, 0, 0, 0, 8, 0, 0, 16, 300_000_000, 0, 0.0, 0.0, merged_files=8, merged_rows=80_000)
    work = work_of(merging, 1)
    assert (work.rows_written, work.files_read) == (80_000, 8)
    beside = replace(merging, delta_rows=1_000, delta_bytes=75_000, delta_files=1)
    assert work_of(beside, 1).rows_written == 81_000


def test_small_files_that_deltas_touch_are_not_counted_twice() -> None:
    merging = SessionSize(4_000_000, 1_000, 75_000, 0, 8, 1, 1_000, 16, 300_000_000, None, None, 0.0)
    all_touched = replace(merging, merged_files=8, merged_rows=80_000)
    assert work_of(all_touched, 1) == work_of(merging, 1)


def measured(factors: dict[str, float], rates: Rates = NEAR) -> MeasuredRound:
    work = SessionWork(1, 10**7, 10, 10**9, 0, 10**7, 10**7, 10**9)
    took = predict_time(work, rates, 2, 0.0)
    materialize = took.index + took.materialize + took.read + took.write
    by_step = {"hash_bucket": took.hash_bucket, "dedupe": took.dedupe, "materialize": materialize}
    return MeasuredRound(work, 2, {step: seconds * factors.get(step, 1.0) for step, seconds in by_step.items()})


def test_a_table_s_own_rounds_correct_each_step() -> None:
    factors = correction_of([measured({"materialize": 2.0, "dedupe": 0.5})], NEAR)
    assert factors == pytest.approx({"hash_bucket": 1.0, "dedupe": 0.5, "materialize": 2.0})
    slower = NEAR.corrected(factors)
    assert slower.materialize_row == pytest.approx(2 * NEAR.materialize_row)
    assert slower.hash_row == pytest.approx(NEAR.hash_row)
    assert (slower.dedupe_row, slower.index_row) == pytest.approx((NEAR.dedupe_row / 2, NEAR.index_row / 2))
    far = FAR.corrected(factors)
    assert (far.read_byte, far.write_byte) == pytest.approx((2 * FAR.read_byte, 2 * FAR.write_byte))
    size = SessionSize(0, 10**7, 10**9, 0, None)
    corrected = replace(size, corrections=tuple(factors.items()))
    two = Resources(GIB, 2)
    assert predict_seconds(corrected, two, 1) > predict_seconds(size, two, 1)


def test_a_first_round_that_fetched_the_index_does_not_slow_the_later_ones_of_the_next_session() -> None:
    size = SessionSize(10**7, 10**5, 10**7, 0, 8)
    one, three = (replace(work_of(size, rounds), delta_rows=0) for rounds in (1, 3))
    dedupe_of_one, dedupe_of_three = (predict_time(work, FAR, 2, 0.0).dedupe for work in (one, three))
    factors = correction_of([MeasuredRound(one, 2, {"dedupe": 2 * dedupe_of_one})], FAR)
    corrected = predict_time(three, FAR.corrected(factors), 2, 0.0).dedupe
    assert corrected == pytest.approx(2 * dedupe_of_three)
    assert corrected < 2 * (2 * dedupe_of_one)


def test_of_several_rounds_the_slowest_counts_and_none_counts_for_more_than_it_may() -> None:
    assert correction_of([measured({"dedupe": 1.5}), measured({"dedupe": 0.7})], NEAR)["dedupe"] == pytest.approx(1.5)
    assert correction_of([measured({"dedupe": 1_000.0})], NEAR)["dedupe"] == CORRECTION_MAX
    assert correction_of([measured({}, FAR)], FAR)["materialize"] == pytest.approx(1.0)


def test_a_round_that_was_too_short_to_say_anything_corrects_nothing() -> None:
    work = SessionWork(1, 10, 1, 750, 0, 0, 10, 750)
    assert correction_of([MeasuredRound(work, 2, {"hash_bucket": 3.0, "dedupe": 3.0, "materialize": 3.0})], NEAR) == {}
