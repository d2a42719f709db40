"""Which small files are merged: neighbours that fit one file, of which none is larger than the others together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compactor.catalog.properties import NO_PROPERTIES
from compactor.model.files import DataFile, DeletionVector
from compactor.model.names import ContentType
from compactor.planning.small_files import MERGES_PER_ROUND, MergeLimits, small_files, small_files_to_merge

LIMITS = MergeLimits(rows_per_file=1_000, bytes_per_file=100_000, small_files=4, share=0.0)
BY_ROWS = replace(LIMITS, bytes_per_file=None)


def files(*rows: int, bytes_per_row: int = 100) -> dict[int, DataFile]:
    return {
        number: DataFile(
            file_number=number,
            path=f"{number}.parquet",
            content_type=ContentType.PARQUET,
            rows=count,
            size_bytes=count * bytes_per_row,
        )
        for number, count in enumerate(rows, 1)
    }


def dead(number: int, rows: int) -> DeletionVector:
    return DeletionVector(file_number=number, path=f"{number}.arrow", rows=rows, size_bytes=100)


def test_a_file_is_small_below_a_quarter_of_the_rows_and_of_the_bytes_of_a_full_one() -> None:
    assert small_files(files(249, 250, 1_000, 1), [], LIMITS) == (1, 4)
    wide = files(100, bytes_per_row=250)
    assert small_files(wide, [], LIMITS) == ()
    assert small_files(wide, [dead(1, 1)], LIMITS) == (1,), "only live rows count"
    assert small_files(wide, [], BY_ROWS) == (1,), "without a bound of bytes rows decide"


def test_neighbours_of_one_size_become_one_file() -> None:
    assert small_files_to_merge(files(100, 100, 100, 100), [], LIMITS) == ((1, 2, 3, 4),)


def test_too_few_small_files_are_left_alone() -> None:
    assert small_files_to_merge(files(100, 100, 100), [], LIMITS) == ()
    few_of_all = replace(LIMITS, share=0.5)
    assert small_files_to_merge(files(*[100] * 4, *[1_000] * 5), [], few_of_all) == ()
    assert small_files_to_merge(files(*[100] * 4, *[1_000] * 4), [], few_of_all) == ((1, 2, 3, 4),)


def test_no_small_files_is_the_number_with_which_none_are_merged() -> None:
    assert small_files_to_merge(files(*[1] * 100), [], replace(LIMITS, small_files=0)) == ()


def test_a_group_fits_one_compacted_file() -> None:
    assert small_files_to_merge(files(*[240] * 6), [], LIMITS) == ((1, 2, 3, 4), (5, 6))
    wide = replace(LIMITS, rows_per_file=1_000_000)
    assert small_files_to_merge(files(*[240] * 6), [], wide) == ((1, 2, 3, 4), (5, 6))


def test_a_file_is_not_written_again_for_files_that_are_smaller_together() -> None:
    assert small_files_to_merge(files(80, 10, 10, 10, 10, 10, 10, 10), [], LIMITS) == ((2, 3, 4, 5, 6, 7, 8),)
    assert small_files_to_merge(files(80, *[10] * 8), [], LIMITS) == (tuple(range(1, 10)),)
    assert small_files_to_merge(files(80, 40, 20, 10), [], LIMITS) == ()


def test_larger_files_between_small_ones_do_not_keep_them_apart() -> None:
    assert small_files_to_merge(files(10, 1_000, 10, 1_000, 10, 10), [], LIMITS) == ((1, 3, 5, 6),)


def test_a_round_makes_a_bounded_number_of_files() -> None:
    groups = small_files_to_merge(files(*[240] * (4 * MERGES_PER_ROUND + 8)), [], LIMITS)
    assert len(groups) == MERGES_PER_ROUND


IN_ORDER = replace(LIMITS, in_order=True)


def test_where_rows_keep_their_order_a_file_is_small_below_half_of_a_full_one() -> None:
    assert small_files(files(499, 500, 1_000, 1), [], IN_ORDER) == (1, 4)
    assert small_files_to_merge(files(1_000, 499, 499, 499, 499), [], IN_ORDER) == ((2, 3, 4, 5),)


def test_where_rows_keep_their_order_only_the_last_small_files_are_merged() -> None:
    assert small_files_to_merge(files(10, 10, 1_000, 10, 10, 10, 10), [], IN_ORDER) == ((4, 5, 6, 7),)
    assert small_files_to_merge(files(10, 10, 10, 10, 1_000), [], IN_ORDER) == ()
    assert small_files_to_merge(files(10, 1_000, 10, 10, 10), [], IN_ORDER) == (), "too few are at the end"


def test_where_rows_keep_their_order_the_last_files_may_be_as_large_as_what_arrives() -> None:
    assert small_files_to_merge(files(80, 40, 20, 10), [], IN_ORDER) == ()
    assert small_files_to_merge(files(80, 40, 20, 10), [], IN_ORDER, arriving=files(5).values()) == ()
    assert small_files_to_merge(files(80, 40, 20, 10), [], IN_ORDER, arriving=files(10).values()) == ((1, 2, 3, 4),)
    assert small_files_to_merge(files(200, 40, 20, 10), [], IN_ORDER, arriving=files(10).values()) == ((2, 3, 4),)


@pytest.mark.parametrize(("arriving_rows", "merged"), [(499, ()), (500, ((2, 3),)), (5_000, ((2, 3),))])
def test_few_last_files_are_merged_with_what_would_leave_them_small_for_ever(
    arriving_rows: int, merged: tuple[tuple[int, ...], ...]
) -> None:
    last = files(1_000, 300, 10)
    assert small_files_to_merge(last, [], IN_ORDER, arriving=files(arriving_rows).values()) == merged
    never = replace(IN_ORDER, small_files=0)
    assert small_files_to_merge(last, [], never, arriving=files(arriving_rows).values()) == ()


@given(
    st.lists(st.integers(1, 50), min_size=2, max_size=120),
    st.integers(2, 6),
    st.sampled_from([20, 100, 400, 10_000_000]),
)
@settings(max_examples=80, deadline=None)
def test_the_last_files_are_written_again_at_most_log2_of_the_files_times(
    appended: list[int], enough: int, rows_per_file: int
) -> None:
    """What is more than a file takes begins another one."""
    limits = replace(BY_ROWS, rows_per_file=rows_per_file, small_files=enough, in_order=True)
    rows: list[int] = []
    written = 0
    for arrived in appended:
        groups = small_files_to_merge(files(*rows), [], limits, arriving=files(arrived).values())
        taken = sum(len(group) for group in groups)
        kept, again = rows[: len(rows) - taken], rows[len(rows) - taken :]
        assert [number for group in groups for number in group] == list(range(len(kept) + 1, len(rows) + 1))
        full, rest = divmod(sum(again) + arrived, rows_per_file)
        rows, written = [*kept, *[rows_per_file] * full, *([rest] if rest else [])], written + sum(again)
    assert sum(rows) == sum(appended)
    assert written <= sum(appended) * math.log2(len(appended))
    small = small_files(files(*rows), [], limits)
    assert small == tuple(range(len(rows) + 1 - len(small), len(rows) + 1)), "all are at the end"


def _merged_until_nothing_is_left(sizes: Sequence[int], limits: MergeLimits) -> tuple[list[int], int]:
    """The files' rows after every merge that is due, and the rows that the merges have written."""
    rows, written = list(sizes), 0
    while groups := small_files_to_merge(files(*rows), [], limits):
        merged = [sum(rows[number - 1] for number in group) for group in groups]
        gone = {number for group in groups for number in group}
        kept = [each for number, each in enumerate(rows, 1) if number not in gone]
        assert len(kept) + len(merged) < len(rows)
        rows, written = [*kept, *merged], written + sum(merged)
    return rows, written


@given(
    st.lists(st.one_of(st.integers(1, 10), st.integers(1, 100_000)), min_size=2, max_size=150),
    st.sampled_from([20, 1_000, 100_000]),
    st.integers(2, 10),
)
@settings(max_examples=60, deadline=None)
def test_over_the_life_of_a_table_merges_write_its_bytes_at_most_log2_of_its_files_times(
    appended: list[int], rows_per_file: int, enough: int
) -> None:
    limits = replace(BY_ROWS, rows_per_file=rows_per_file, small_files=enough)
    rows: list[int] = []
    written = 0
    for arrived in appended:
        rows, more = _merged_until_nothing_is_left([*rows, arrived], limits)
        written += more
    assert sum(rows) == sum(appended)
    assert written <= sum(appended) * math.log2(len(appended))
    assert all(each <= max(rows_per_file, *appended) for each in rows)


def test_five_hundred_appends_of_one_size_leave_eight_files_at_most() -> None:
    limits = MergeLimits(4_000_000, None, NO_PROPERTIES.merge_small_files, NO_PROPERTIES.merge_small_files_share)
    rows: list[int] = []
    for _ in range(500):
        groups = small_files_to_merge(files(*rows), [], limits)
        gone = {number for group in groups for number in group}
        merged = [sum(rows[number - 1] for number in group) for group in groups]
        rows = [*(each for number, each in enumerate(rows, 1) if number not in gone), *merged, 1_000]
        assert len(rows) <= 9
    assert len(rows) <= 8
