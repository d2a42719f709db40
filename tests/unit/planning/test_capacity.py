"""What cannot fit a machine is refused before it is launched, with both figures and what to change."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.model.errors import Invalid
from compactor.planning.capacity import check_capacity
from compactor.planning.sizing import INDEX_BYTES_PER_ROW, Resources, SessionSize, rows_in_memory, size_session

GIB = 1024**3
MACHINE = Resources(8 * GIB, 2, scratch_bytes=100 * GIB, driver_memory_bytes=GIB)
SMALL = SessionSize(0, 1_000, 10**5, 0, None, largest_delta_file_rows=1_000)


def refusal(size: SessionSize, resources: Resources, hash_buckets: int | None = None, share: float = 1.0) -> str:
    with pytest.raises(Invalid) as refused:
        check_capacity(size_session(size, resources, hash_buckets, None, share))
    return str(refused.value)


def test_what_fits_and_what_is_not_known_is_not_refused() -> None:
    check_capacity(size_session(SMALL, MACHINE, None, None))
    huge = replace(SMALL, delta_rows=10**12, largest_delta_file_rows=10**12, compacted_files=10**6)
    check_capacity(size_session(huge, Resources(8 * GIB, 2), None, None))


def test_a_file_whose_records_fit_no_scratch_folder_is_refused_with_the_rows_that_do() -> None:
    one_file = SessionSize(0, 10**9, 10**9, 9, None, largest_delta_file_rows=10**9)
    said = refusal(one_file, replace(MACHINE, scratch_bytes=GIB))
    assert said == (
        "the largest delta file has 1,000,000,000 rows, whose round takes 86,000,000,000 bytes of scratch folders, "
        "which have 1,073,741,824, and a file is not cut between rounds: write files of at most 12,485,370 rows, or "
        "give executors more disk"
    )


def test_a_file_whose_rows_fit_no_task_is_refused_with_the_hash_buckets_in_which_they_do() -> None:
    one_file = SessionSize(0, 10**9, 10**9, 0, None, largest_delta_file_rows=10**9)
    roomy = replace(MACHINE, scratch_bytes=None)
    said = refusal(one_file, roomy, hash_buckets=1)
    assert "1,000,000,000 rows of 49 bytes in 1 hash bucket, each of which one task holds in 75% of its" in said
    told = re.search(r"ask for ([\d,]+) hash buckets or more \(hash_bucket_count\), or write smaller files", said)
    assert told is not None
    enough = int(told[1])
    check_capacity(size_session(one_file, roomy, enough, None))
    check_capacity(size_session(one_file, roomy, enough, None, 0.5))  # by all memory, after a lack of it
    assert "ask for" in refusal(one_file, roomy, enough - 1)
    check_capacity(size_session(replace(one_file, largest_delta_file_rows=10**8), roomy, 1, None))
    check_capacity(size_session(replace(one_file, has_key=False), roomy, 1, None))


def test_a_table_without_a_key_is_refused_only_for_the_numbers_of_its_rows() -> None:
    one_file = SessionSize(0, 10**9, 10**9, 0, None, largest_delta_file_rows=10**9, has_key=False)
    check_capacity(size_session(one_file, replace(MACHINE, scratch_bytes=4 * 10**9), None, None))
    assert "takes 4,000,000,000 bytes" in refusal(one_file, replace(MACHINE, scratch_bytes=4 * 10**9 - 1))


def test_a_rehash_whose_rows_fit_no_scratch_folder_is_refused() -> None:
    indexed = replace(SMALL, index_rows=10**9, inherited_hash_bucket_count=40)
    assert size_session(indexed, MACHINE, 40, None).rehash_scratch_bytes == 0
    assert size_session(indexed, MACHINE, 80, None).rehash_scratch_bytes == 10**9 * INDEX_BYTES_PER_ROW
    check_capacity(size_session(indexed, replace(MACHINE, scratch_bytes=32 * 10**9), 80, None))
    said = refusal(indexed, replace(MACHINE, scratch_bytes=31 * 10**9), 80)
    assert "1,000,000,000 index rows are rehashed from 40 to 80 hash buckets over 32,000,000,000 bytes" in said
    assert "which have 31,000,000,000" in said


def test_a_hash_bucket_that_no_task_reads_whole_is_not_rehashed() -> None:
    one_bucket = replace(SMALL, index_rows=10**9, inherited_hash_bucket_count=1)
    roomy = replace(MACHINE, task_memory_bytes=40 * 10**9)
    check_capacity(size_session(one_bucket, roomy, 80, None))
    said = refusal(one_bucket, replace(roomy, task_memory_bytes=39 * 10**9), 80)
    assert "1,000,000,000 index rows are rehashed from 1 hash bucket, each of which one task reads" in said
    assert "at least 40,000,000,000 bytes, and a task has 39,000,000,000 bytes of memory: give each task more" in said


@given(st.integers(10_000, 10**6), st.integers(10, 10_000), st.integers(0, 10**9))
def test_the_hash_buckets_that_a_refused_driver_is_told_do_fit_it_and_hold_the_index(
    compacted_files: int, hash_buckets: int, index_rows: int
) -> None:
    size = replace(SMALL, index_rows=index_rows, compacted_files=compacted_files)
    try:
        check_capacity(size_session(size, MACHINE, hash_buckets, None))
    except Invalid as error:
        told = re.search(r"at most ([\d,]+) hash buckets \(hash_bucket_count\)", str(error))
        if told is None:
            return
        fewer = int(told[1].replace(",", ""))
        check_capacity(size_session(size, MACHINE, fewer, None))
        assert rows_in_memory(MACHINE.task_memory_bytes, fewer, 0) > index_rows
        with pytest.raises(Invalid):
            check_capacity(size_session(size, MACHINE, fewer + 1, None))


def test_a_driver_that_no_number_of_hash_buckets_helps_is_told_the_other_ways() -> None:
    said = refusal(replace(SMALL, compacted_files=2 * 10**6), MACHINE, 1_000)
    assert re.match(r"2,000,001 source files in 1,000 buckets take [\d,]+ bytes of the driver's memory", said)
    assert said.endswith("write larger compacted files (rows_per_compacted_file), or give the driver more memory")
    assert "ask for" not in said


def test_a_row_group_that_no_task_holds_is_refused_by_all_of_its_memory_also_after_a_lack_of_it() -> None:
    held = replace(SMALL, held_row_group_bytes=6 * GIB)
    check_capacity(size_session(held, MACHINE, None, None, 0.5))
    said = refusal(replace(held, held_row_group_bytes=9 * GIB), MACHINE, share=0.5)
    assert "has 9,663,676,416 stored bytes, which one task holds at once, and a task has 8,589,934,592" in said
    assert "write smaller row groups" in said


def test_everything_that_does_not_fit_is_told_at_once() -> None:
    bad = SessionSize(0, 10**9, 1, 0, None, largest_delta_file_rows=10**9, held_row_group_bytes=9 * GIB)
    with pytest.raises(Invalid) as refused:
        check_capacity(size_session(bad, replace(MACHINE, scratch_bytes=GIB), None, None))
    assert len(refused.value.reasons) == 2
