"""Which sessions are worth a Spark's start, and which run in the caller's process."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.planning.sizing import SESSION_SECONDS, Resources, SessionSize, size_session
from compactor.planning.where_to_run import SessionPlacement, choose_placements, in_one_process

GIB = 1024**3


def size(
    delta_rows: int,
    index_rows: int = 0,
    *,
    delta_bytes: int | None = None,
    delta_files: int = 1,
    compacted_files: int = 0,
    compacted_bytes: int = 0,
    lake_is_remote: bool = False,
) -> SessionSize:
    return SessionSize(
        index_rows=index_rows,
        delta_rows=delta_rows,
        delta_bytes=10 * delta_rows if delta_bytes is None else delta_bytes,
        sort_values_bytes=9,
        inherited_hash_bucket_count=1 if index_rows else None,
        delta_files=delta_files,
        compacted_files=compacted_files,
        compacted_bytes=compacted_bytes,
        lake_is_remote=lake_is_remote,
        rows_up_to_file=tuple(delta_rows * number // delta_files for number in range(1, delta_files + 1)),
    )


def placements_of(
    sizes: list[SessionSize], max_rows_per_round: int | None = None, memory_bytes: int = 8 * GIB, cores: int = 8
) -> tuple[SessionPlacement, ...]:
    return choose_placements(sizes, max_rows_per_round, memory_bytes, cores)


def placement_of(
    only: SessionSize, max_rows_per_round: int | None = None, memory_bytes: int = 8 * GIB, cores: int = 8
) -> SessionPlacement:
    (placement,) = placements_of([only], max_rows_per_round, memory_bytes, cores)
    return placement


sizes = st.builds(
    size,
    delta_rows=st.integers(0, 10**8),
    index_rows=st.integers(0, 10**8),
    delta_files=st.integers(0, 10**3),
    compacted_files=st.integers(0, 100),
    lake_is_remote=st.booleans(),
)


def test_a_session_of_a_million_rows_runs_in_this_process() -> None:
    placement = placement_of(size(1_000_000))
    assert not placement.on_spark
    assert placement.why == "in this process: 0.4 s and 157,000,000 bytes at most, and a Spark takes 5.0 s to start"


def test_a_session_that_takes_as_long_as_a_spark_s_start_runs_on_spark() -> None:
    placement = placement_of(size(15_000_000))
    assert placement.on_spark
    assert placement.why == "on Spark: it may take 5.1 s in this process, and a Spark starts in 5.0 s"


def test_a_session_whose_memory_does_not_fit_runs_on_spark() -> None:
    placement = placement_of(size(1_000_000), memory_bytes=GIB // 4)
    assert placement.on_spark
    assert placement.why == "on Spark: it may hold 157,000,000 bytes in this process, of 134,217,728"


@pytest.mark.parametrize(
    "large",
    [
        size(1, index_rows=23_000_000),
        size(1_000, delta_bytes=4 * 10**9),
        size(1_000, index_rows=1_000, compacted_bytes=4 * 10**9),
        size(3_000, delta_files=3_000),
    ],
    ids=["rows that it may rewrite", "wide rows", "wide rows that it may rewrite", "many files"],
)
def test_files_that_may_have_to_be_read_count(large: SessionSize) -> None:
    assert placement_of(large).on_spark


def test_the_time_of_a_session_is_that_of_its_plan() -> None:
    """One prediction: a session that is planned in this process expects the time by which it was placed here."""
    for only in (size(2_000_000), size(100_000, 3_000_000, delta_files=20, compacted_files=7, compacted_bytes=10**9)):
        placement = placement_of(only)
        resources = Resources(8 * GIB, 1, start_seconds=0.0, in_process=True)
        assert placement.alone.seconds == size_session(only, resources, None, None).time.seconds


def test_a_session_may_share_a_spark_job_if_it_takes_less_time_than_the_start_of_one_of_its_own() -> None:
    """Of a Spark 5 s, of a cluster minutes."""
    rows = size(15_000_000)
    assert in_one_process(size(5_000_000), None, 8 * GIB).reasons_for_spark == ()
    assert in_one_process(rows, None, 8 * GIB).reasons_for_spark == (
        "it may take 5.1 s in this process, and a Spark starts in 5.0 s",
    )
    assert in_one_process(rows, None, 8 * GIB, start_seconds=420.0).reasons_for_spark == ()
    assert in_one_process(rows, None, GIB, start_seconds=420.0).reasons_for_spark != ()


def test_files_that_lie_far_away_take_longer() -> None:
    assert not placement_of(size(1_000, delta_files=1_000)).on_spark
    assert placement_of(size(1_000, delta_files=1_000, lake_is_remote=True)).on_spark


def test_rounds_count_and_there_are_no_more_of_them_than_files() -> None:
    assert not placement_of(size(1_000, delta_files=1), max_rows_per_round=1).on_spark
    assert placement_of(size(1_000, delta_files=400), max_rows_per_round=1).on_spark
    assert not placement_of(size(1_000, delta_files=400)).on_spark


def test_once_a_spark_is_needed_the_others_use_it_where_they_gain_by_it() -> None:
    small, middling, large = placements_of([size(10), size(4_000_000), size(16_000_000)])
    assert [small.on_spark, middling.on_spark, large.on_spark] == [False, True, True]
    assert small.why.endswith("and a Spark that runs takes 0.4 s")
    assert middling.why.startswith("on Spark, which is started anyway: it gains 0.7 s of 1.4 s")


def test_many_sessions_are_worth_a_start_together_where_they_gain_more_by_it() -> None:
    wide = size(8_000_000, delta_bytes=600_000_000)
    assert [placement.on_spark for placement in placements_of([wide] * 10)] == [True] * 10
    assert [placement.on_spark for placement in placements_of([wide] * 2)] == [False] * 2
    assert not any(placement.on_spark for placement in placements_of([size(1_000)] * 10_000))


@given(st.lists(sizes, max_size=5), st.none() | st.integers(1, 10**6), st.integers(2**28, 2**34), st.integers(1, 64))
def test_more_memory_and_fewer_rows_never_bring_a_session_to_spark(
    many: list[SessionSize], max_rows_per_round: int | None, memory_bytes: int, cores: int
) -> None:
    placements = placements_of(many, max_rows_per_round, memory_bytes, cores)
    assert len(placements) == len(many)
    for only, placement in zip(many, placements, strict=True):
        alone = placement_of(only, max_rows_per_round, memory_bytes, cores)
        assert placement.on_spark or not alone.on_spark, "what needs a Spark alone needs it in company"
        roomier = placement_of(only, max_rows_per_round, 2 * memory_bytes, cores)
        assert alone.on_spark or not roomier.on_spark


@given(st.integers(1, 10**6))
def test_a_spark_without_a_second_core_is_started_for_no_session_that_fits(rows: int) -> None:
    assert rows / 10**6 < SESSION_SECONDS
    assert not any(placement.on_spark for placement in placements_of([size(rows)] * 20, cores=1))


def test_a_session_fits_beside_others_if_its_records_take_half_of_the_part_of_the_memory_and_it_needs_no_spark() -> (
    None
):
    placement = placement_of(size(1_000))
    assert placement.fits(2 * placement.alone.bytes_held)
    assert not placement.fits(2 * placement.alone.bytes_held - 1)
    on_spark = placement_of(size(100_000_000))
    assert on_spark.on_spark
    assert not on_spark.fits(1 << 60)
