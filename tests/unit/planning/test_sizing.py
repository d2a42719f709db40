"""The arithmetic of a session, by worked numbers, and what holds for any numbers."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.model.errors import Invalid
from compactor.planning.rounds import RoundLimits
from compactor.planning.sizing import (
    BYTES_PER_SOURCE_FILE,
    DEDUPE_BYTES_PER_ROW,
    DRIVER_BYTES_PER_COUNT,
    DRIVER_MEMORY_SHARE,
    FILES_PER_ROUND_MIN,
    REHASH_MEMORY_SHARE,
    ROWS_OF_ONLY_HASH_BUCKET_MAX,
    ROWS_PER_HASH_BUCKET_MIN,
    SCRATCH_SHARE,
    SPARE_SCRATCH_SHARE,
    TARGET_MEMORY_SHARE,
    Resources,
    SessionSize,
    dedupe_bytes_per_row,
    hash_buckets_for,
    memory_share,
    predicted_time,
    rows_in_memory,
    scratch_bytes,
    scratch_of_a_round,
    size_session,
    spare_scratch_bytes,
)
from compactor.planning.task_memory import AHEAD, KEPT_INDEX, SENT_INDEX, parts_of
from compactor.planning.time_model import SLA_BUFFER, with_buffer

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


def predict_seconds(
    size: SessionSize, resources: Resources, rounds: int, hash_bucket_count: int | None = None
) -> float:
    return predicted_time(size, resources, rounds, hash_bucket_count).seconds


def size(
    index_rows: int = 0, delta_rows: int = 1_000, sort_values_bytes: int = 0, inherited: int | None = None
) -> SessionSize:
    return SessionSize(index_rows, delta_rows, 100 * delta_rows, sort_values_bytes, inherited)


def test_sort_values_take_their_share_of_a_row() -> None:
    assert dedupe_bytes_per_row(0) == DEDUPE_BYTES_PER_ROW
    assert dedupe_bytes_per_row(9) > dedupe_bytes_per_row(0) + 9


def test_a_bucket_takes_about_half_of_a_task_s_memory() -> None:
    buckets = hash_buckets_for(3_750_000_000, EIGHT_CORES, 0)
    share = memory_share(3_750_000_000, buckets, EIGHT_CORES, 0)
    assert share <= TARGET_MEMORY_SHARE
    assert memory_share(3_750_000_000, buckets - 1, EIGHT_CORES, 0) > TARGET_MEMORY_SHARE


def test_each_core_has_a_bucket_if_it_has_rows_enough() -> None:
    rows = [1, ROWS_PER_HASH_BUCKET_MIN, ROWS_PER_HASH_BUCKET_MIN + 1, 10_000_000]
    assert [hash_buckets_for(each, EIGHT_CORES, 0) for each in rows] == [1, 1, 2, 8]


def test_an_index_that_began_with_one_bucket_is_rehashed_once_tasks_can_share_it() -> None:
    grown = size(index_rows=ROWS_OF_ONLY_HASH_BUCKET_MAX, inherited=1)
    assert size_session(replace(grown, delta_rows=0), EIGHT_CORES, None, None).hash_bucket_count == 1
    assert size_session(replace(grown, delta_rows=1), EIGHT_CORES, None, None).hash_bucket_count == 8
    assert size_session(replace(grown, delta_rows=1), replace(EIGHT_CORES, tasks=1), None, None).hash_bucket_count == 1


@given(sizes, resources)
def test_a_round_fits_into_the_memory_of_its_tasks(size: SessionSize, resources: Resources) -> None:
    sizing = size_session(size, resources, None, None)
    rows = min(size.index_rows + size.delta_rows, size.index_rows + sizing.max_rows_per_round)
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
    rows = size.index_rows + size.delta_rows
    is_only_one_for_many = inherited == 1 and rows > ROWS_OF_ONLY_HASH_BUCKET_MAX
    if memory_share(rows, inherited, resources, size.sort_values_bytes) <= REHASH_MEMORY_SHARE:
        assert chosen == inherited or is_only_one_for_many
    else:
        assert memory_share(rows, chosen, resources, size.sort_values_bytes) <= TARGET_MEMORY_SHARE + 1e-9


def test_the_bucket_count_and_the_rows_of_a_round_can_be_asked_for() -> None:
    sizing = size_session(size(delta_rows=1_000), EIGHT_CORES, 3, 400)
    assert (sizing.hash_bucket_count, sizing.max_rows_per_round, sizing.rounds) == (3, 400, 3)


def test_more_rows_a_round_than_memory_holds_are_not_given_though_asked_for() -> None:
    small = Resources(task_memory_bytes=1_000 * DEDUPE_BYTES_PER_ROW, tasks=1)
    # Later rounds meet as many rows of the index as arrive, so they are half of the 750 that three quarters hold.
    assert size_session(size(delta_rows=10_000), small, 1, 5_000).max_rows_per_round == 375
    assert size_session(size(delta_rows=700), small, 1, 5_000).rounds == 1


def test_a_bucket_count_that_cannot_even_hold_the_index_is_refused_with_both_figures() -> None:
    small = Resources(task_memory_bytes=1_000 * DEDUPE_BYTES_PER_ROW, tasks=1)
    with pytest.raises(Invalid) as refused:
        size_session(size(index_rows=5_000), small, 1, None)
    assert str(refused.value) == (
        "5,000 index rows of 49 bytes in 1 hash bucket are 245,000 bytes in a task, which may take 75% of its "
        "49,000: ask for 7 hash buckets or more"
    )


@given(st.integers(1, 10**9), st.integers(2_000, 10**9), st.integers(0, 36))
def test_the_bucket_count_that_a_refusal_asks_for_is_the_least_that_holds_the_index(
    index_rows: int, task_memory_bytes: int, sort_values_bytes: int
) -> None:
    resources = Resources(task_memory_bytes, 1)
    requested = size(index_rows=index_rows, delta_rows=1, sort_values_bytes=sort_values_bytes)
    try:
        size_session(requested, resources, 1, None)
    except Invalid as error:
        (found,) = re.findall(r"ask for ([\d,]+) hash buckets? or more", str(error))
        enough = int(found.replace(",", ""))
        assert size_session(requested, resources, enough, None).hash_bucket_count == enough
        with pytest.raises(Invalid):
            size_session(requested, resources, enough - 1, None)


def test_the_expected_sla_is_the_predicted_time_and_ten_percent() -> None:
    sizing = size_session(size(delta_rows=5_000_000), EIGHT_CORES, None, None)
    assert sizing.expected_sla == pytest.approx(
        SLA_BUFFER * predict_seconds(size(delta_rows=5_000_000), EIGHT_CORES, 1)
    )


def test_the_buffer_is_half_a_second_at_least() -> None:
    assert with_buffer(20.0) == pytest.approx(22.0)
    assert with_buffer(1.0) == 1.5


def test_more_cores_are_never_slower_and_more_rows_never_quicker() -> None:
    two, eight = Resources(GIB, 2), Resources(GIB, 8)
    assert predict_seconds(size(delta_rows=10**7), eight, 1) < predict_seconds(size(delta_rows=10**7), two, 1)
    assert predict_seconds(size(delta_rows=10**7), two, 1) < predict_seconds(size(delta_rows=10**8), two, 1)


def test_the_arithmetic_is_told_in_sentences() -> None:
    arithmetic = " / ".join(size_session(size(1_000, 2_000, inherited=4), EIGHT_CORES, None, None).arithmetic)
    assert "1,000 index rows + 2,000 delta rows" in arithmetic
    assert "4 hash buckets: inherited from the index" in arithmetic
    assert "10 % buffer" in arithmetic


def test_what_is_read_ahead_of_an_object_store_is_a_part_of_a_task_s_memory_and_told() -> None:
    far = replace(size(1_000, 2_000), lake_is_remote=True)
    arithmetic = size_session(far, Resources(256 * 1024**2, 2), None, None).arithmetic
    assert (
        "a task prefetches at most 16 MiB from the store, keeps 16 MiB of the index, "
        "and uploads 16 MiB of new index files at a time"
    ) in arithmetic
    assert (AHEAD.of(64 * GIB), KEPT_INDEX.of(64 * GIB)) == (AHEAD.bytes_max, KEPT_INDEX.bytes_max)
    assert SENT_INDEX.of(64 * GIB) == SENT_INDEX.bytes_max


# ------------------------------------------------------------------------------------- what else bounds a round

bounded_resources = st.builds(
    Resources,
    task_memory_bytes=st.integers(256 * 1024**2, 16 * GIB),
    tasks=st.integers(1, 200),
    scratch_bytes=st.none() | st.integers(GIB, 1_000 * GIB),
    driver_memory_bytes=st.none() | st.integers(GIB // 2, 16 * GIB),
)
many_files = st.builds(
    SessionSize,
    index_rows=st.integers(0, 10**9),
    delta_rows=st.integers(1, 4 * 10**9),
    delta_bytes=st.just(0),
    sort_values_bytes=st.integers(0, 36),
    inherited_hash_bucket_count=st.none() | st.integers(1, 500),
    delta_files=st.integers(1, 10**6),
    largest_delta_file_rows=st.just(1),
    compacted_files=st.integers(0, 10_000),
)


def test_an_eighth_of_the_scratch_space_of_a_round_is_kept_for_the_next_one_if_it_is_known() -> None:
    assert spare_scratch_bytes(4 * GIB) == GIB // 2
    assert spare_scratch_bytes(0) == 0
    assert spare_scratch_bytes(None) is None


@given(many_files, bounded_resources)
def test_the_scratch_files_of_a_round_fit_with_the_index_that_it_absorbs(
    size: SessionSize, resources: Resources
) -> None:
    sizing = size_session(size, resources, None, None)
    rows, width = min(sizing.max_rows_per_round, size.delta_rows), size.sort_values_bytes
    scratch = scratch_of_a_round(size, resources)
    room = RoundLimits(resources.task_memory_bytes, sizing.hash_bucket_count, scratch)
    absorbed = room.rows_to_absorb(rows, size.index_rows + size.delta_rows - rows, width)
    if resources.scratch_bytes is None:
        return
    assert rows == 1 or scratch_bytes(rows, absorbed, width) <= SCRATCH_SHARE * resources.scratch_bytes
    spare = spare_scratch_bytes(scratch)
    assert spare is not None
    assert spare <= SPARE_SCRATCH_SHARE * resources.scratch_bytes


@given(many_files, bounded_resources, st.integers(1, 100))
def test_the_rows_of_a_bucket_fit_the_memory_also_with_few_requested_buckets(
    size: SessionSize, resources: Resources, requested: int
) -> None:
    width = size.sort_values_bytes
    try:
        sizing = size_session(size, resources, requested, None)
    except Invalid:
        return
    fit = rows_in_memory(resources.task_memory_bytes, requested, width)
    assert fit > size.index_rows
    arriving = min(sizing.max_rows_per_round, size.delta_rows)
    for index_rows in (size.index_rows, size.index_rows + size.delta_rows - arriving):
        absorbed = RoundLimits(resources.task_memory_bytes, requested, None).rows_to_absorb(arriving, index_rows, width)
        met = min(index_rows - min(absorbed, index_rows), arriving)
        assert arriving + min(absorbed, index_rows) + met <= max(fit, 2)


@given(many_files, bounded_resources)
def test_the_counts_of_the_driver_fit_its_share_of_memory(size: SessionSize, resources: Resources) -> None:
    sizing = size_session(size, resources, None, None)
    if resources.driver_memory_bytes is None or sizing.max_files_per_round == FILES_PER_ROUND_MIN:
        return
    files = size.compacted_files + sizing.max_files_per_round
    used = sizing.driver_bytes(sizing.max_files_per_round)
    assert used <= DRIVER_MEMORY_SHARE * resources.driver_memory_bytes
    assert used >= files * (BYTES_PER_SOURCE_FILE + DRIVER_BYTES_PER_COUNT * sizing.hash_bucket_count)


def test_more_cores_take_more_files_a_round_since_each_writer_has_its_own() -> None:
    size = SessionSize(0, 80_000_000_000, 128 * 1024**4, 0, None, delta_files=240_000, largest_delta_file_rows=350_000)
    few, many = (
        size_session(size, Resources(7 * GIB, cores, network_byte=1e-9), 8_000, None).max_files_per_round
        for cores in (32, 8_000)
    )
    assert few < size.delta_files < many


@pytest.mark.parametrize(("memory", "parts"), [(GIB, 10), (GIB // 2, 90)])
def test_files_that_do_not_fit_a_task_have_a_count_for_each_of_their_parts(memory: int, parts: int) -> None:
    assert parts_of(10, 10 * 64 * 2**20, memory) == parts


def test_the_driver_of_360_billion_rows_in_10000_buckets_is_a_machine_that_there_is() -> None:
    paper = SessionSize(360 * 10**9, 10**9, 10**11, 0, 10_000, delta_files=1_000, compacted_files=90_000)
    sizing = size_session(paper, Resources(16 * GIB, 2_000), 10_000, None)
    assert sizing.driver_bytes(1_000) // 10**6 == 7_373
    assert sizing.driver_memory_needed == 2 * sizing.driver_bytes(1_000)


def test_two_billion_rows_on_two_cores_of_8_gib_are_several_rounds_of_many_tasks() -> None:
    resources = Resources(8 * GIB, 2, scratch_bytes=100 * GIB, driver_memory_bytes=GIB)
    billions = SessionSize(0, 2 * 10**9, 150 * 10**9, 9, None, delta_files=8_000, largest_delta_file_rows=250_000)
    sizing = size_session(billions, resources, None, None)
    assert sizing.rounds == 6
    arithmetic = " / ".join(sizing.arithmetic)
    assert "6 rounds of at most 377,763,733 delta rows: what scratch holds" in arithmetic
    assert (
        "a round takes 80.5 GB of scratch folders at most, of 107.4 GB: 33 bytes a row shuffled, 49 kept" in arithmetic
    )
    assert (
        "8,000 source files a round x 32 hash buckets: 10 MB in the driver, at most 50% of its 1,074 MB" in arithmetic
    )
    assert "a hash task holds at most 52,377,649 rows at a time" in arithmetic


def test_a_plan_after_running_out_of_memory_takes_less_of_it() -> None:
    whole, half = (size_session(size(delta_rows=10**9), EIGHT_CORES, None, None, share) for share in (1.0, 0.5))
    assert half.resources.task_memory_bytes == whole.resources.task_memory_bytes // 2
    assert half.hash_bucket_count in range(2 * whole.hash_bucket_count - 1, 2 * whole.hash_bucket_count + 1)
    assert "planned with 50% of a task's memory: 4,294,967,296 bytes" in half.arithmetic
    retried = size_session(size(delta_rows=10**9), EIGHT_CORES, 20, None, 0.5)
    assert retried.max_rows_per_round < size_session(size(delta_rows=10**9), EIGHT_CORES, 20, None).max_rows_per_round


def test_a_delta_file_that_fits_no_round_is_reported() -> None:
    resources = Resources(8 * GIB, 2, scratch_bytes=GIB)
    one_file = SessionSize(0, 10**9, 10**9, 9, None, delta_files=1, largest_delta_file_rows=10**9)
    arithmetic = " / ".join(size_session(one_file, resources, None, None).arithmetic)
    assert "but the largest delta file has 1,000,000,000 rows, and files are not cut between rounds" in arithmetic


def test_a_small_session_is_one_round_whatever_is_known_of_the_machine() -> None:
    small = SessionSize(0, 5_000_000, 400 * 10**6, 9, None, delta_files=20, largest_delta_file_rows=250_000)
    for resources in (Resources(8 * GIB, 2), Resources(8 * GIB, 2, 10 * GIB, GIB // 2)):
        sizing = size_session(small, resources, None, None)
        assert (sizing.rounds, sizing.hash_bucket_count) == (1, 2)


def test_a_plan_says_which_files_one_task_has_to_read() -> None:
    text = SessionSize(0, 8_000_000, 600_000_000, 0, None, undivided_rows=8_000_000, uncut_files=1)
    cuts = "cuts fall between row groups of Parquet, stripes of ORC, and lines of text without quotes"
    said = f"not cut between tasks: 1 large delta file; {cuts}"
    cores = Resources(1 << 30, 4)
    assert f"{said}; one task reads up to 8,000,000 rows" in size_session(text, cores, None, None).arithmetic
    cut = size_session(replace(text, uncut_files=0), cores, None, None)
    assert not any(sentence.startswith("not cut") for sentence in cut.arithmetic)
