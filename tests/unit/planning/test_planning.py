"""How delta files become rounds and tasks, and what a round says it has processed."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.model.counts import Watermark
from compactor.model.files import DataFile, IndexFile
from compactor.model.names import ContentType, Operation
from compactor.planning.round_plan import DeltaFileRef, DeltaSource, RowsToHash
from compactor.planning.rounds import (
    INDEX_RUNS_MAX,
    group_for_tasks,
    runs_to_absorb,
    split_into_rounds,
    watermark_after,
)
from compactor.planning.sizing import SessionSize, count_rounds
from compactor.planning.task_memory import ROWS_PER_CUT
from compactor.tabular import TabularFile


def delta_file(position: int, file_number: int, rows: int, size_bytes: int = 1_000) -> DeltaFileRef:
    path = f"{position}/{file_number}.parquet"
    file = DataFile(
        file_number=file_number, path=path, content_type=ContentType.PARQUET, rows=rows, size_bytes=size_bytes
    )
    return DeltaFileRef(position, Operation.UPSERT, file, f"file:///lake/{path}")


def delta_source(ordinal: int, size_bytes: int, row_groups: tuple[int, ...] = ()) -> DeltaSource:
    return DeltaSource(
        ordinal=ordinal,
        file=TabularFile(f"file:///lake/{ordinal}.parquet", ContentType.PARQUET),
        rows=sum(row_groups) if row_groups else 1,
        row_groups=row_groups,
        size_bytes=size_bytes,
        position=ordinal,
        operation=Operation.UPSERT,
        sorts=True,
    )


@st.composite
def pending_files(draw: st.DrawFn) -> list[DeltaFileRef]:
    files_of_positions = draw(st.lists(st.lists(st.integers(0, 20), min_size=1, max_size=4), max_size=6))
    return [
        delta_file(position, number, rows)
        for position, files in enumerate(files_of_positions)
        for number, rows in enumerate(files, 1)
    ]


def rows_of(files: tuple[DeltaFileRef, ...]) -> int:
    return sum(each.file.rows for each in files)


@given(pending_files(), st.integers(1, 40))
def test_rounds_take_every_file_once_in_order_and_hold_at_most_the_rows_asked_for(
    files: list[DeltaFileRef], rows_max: int
) -> None:
    rounds = list(split_into_rounds(files, rows_max))
    assert [file for each in rounds for file in each] == files
    assert all(rows_of(each) <= rows_max or len(each) == 1 for each in rounds)


@given(pending_files(), st.integers(1, 40))
def test_no_round_could_have_taken_the_file_that_follows_it(files: list[DeltaFileRef], rows_max: int) -> None:
    rounds = list(split_into_rounds(files, rows_max))
    for each, following in itertools.pairwise(rounds):
        assert rows_of(each) + following[0].file.rows > rows_max


@given(pending_files(), st.integers(1, 40), st.integers(1, 4))
def test_as_many_rounds_are_predicted_as_are_made(files: list[DeltaFileRef], rows_max: int, files_max: int) -> None:
    ends = tuple(itertools.accumulate(each.file.rows for each in files))
    size = SessionSize(0, rows_of(tuple(files)), 0, 0, None, delta_files=len(files), rows_up_to_file=ends)
    assert count_rounds(size, rows_max, files_max) == len(list(split_into_rounds(files, rows_max, files_max)))


@given(pending_files(), st.integers(1, 40), st.integers(1, 4))
def test_a_round_has_no_more_files_than_asked_for(files: list[DeltaFileRef], rows_max: int, files_max: int) -> None:
    rounds = list(split_into_rounds(files, rows_max, files_max))
    assert [file for each in rounds for file in each] == files
    assert all(len(each) <= files_max for each in rounds)


def index_file(run: int, rows: int) -> IndexFile:
    return IndexFile(hash_bucket=0, run=run, part=1, path=f"{run}", rows=rows, size_bytes=rows)


@given(st.lists(st.integers(1, 50), max_size=12), st.integers(0, 50), st.integers(0, 200))
def test_no_more_of_the_index_is_absorbed_than_there_is_room_for(sizes: list[int], arriving: int, room: int) -> None:
    files = [index_file(run, rows) for run, rows in enumerate(sizes, 1)]
    absorbed = runs_to_absorb(files, arriving, room)
    assert sum(file.rows for file in files if file.run in absorbed) <= room
    assert runs_to_absorb(files, arriving, 10**9) == runs_to_absorb(files, arriving)
    # The newest ones, without a gap: what a run says of a key, newer ones may have made void.
    assert sorted(absorbed) == [file.run for file in files][len(files) - len(absorbed) :]


@pytest.mark.parametrize(
    ("arriving", "rows", "absorbed"), [(100, 200, True), (100, 201, False), (0, 2, True), (0, 3, False)]
)
def test_a_run_is_absorbed_while_it_has_at_most_twice_the_rows_gathered_before_it(
    arriving: int, rows: int, absorbed: bool
) -> None:
    assert runs_to_absorb([index_file(1, rows)], arriving) == ({1} if absorbed else set())
    # Those of all its files.
    parts = [index_file(1, 1), index_file(1, rows - 1)]
    assert runs_to_absorb(parts, arriving) == ({1} if absorbed else set())


def test_the_rows_of_a_run_are_included_in_the_next_one() -> None:
    files = [index_file(1, 6 * 100), index_file(2, 200)]
    assert runs_to_absorb(files, 100) == {1, 2}
    assert runs_to_absorb(files, 99) == set()


@pytest.mark.parametrize("runs", [1, 7, 8, 9, 12])
def test_a_round_leaves_eight_runs_at_the_most(runs: int) -> None:
    # Each is far too large to be absorbed for its size.
    files = [index_file(run, 10 ** (20 - run)) for run in range(1, runs + 1)]
    absorbed = runs_to_absorb(files, 1)
    assert absorbed == set(range(min(runs, INDEX_RUNS_MAX - 1) + 1, runs + 1))


def test_a_run_that_just_fits_is_absorbed() -> None:
    files = [index_file(1, 30), index_file(2, 20)]
    assert [len(runs_to_absorb(files, 100, room)) for room in (19, 20, 49, 50)] == [0, 1, 1, 2]


@given(pending_files(), st.integers(1, 40))
def test_a_round_s_watermark_covers_what_it_and_the_rounds_before_took_and_nothing_else(
    files: list[DeltaFileRef], rows_max: int
) -> None:
    taken: list[DeltaFileRef] = []
    rounds = list(split_into_rounds(files, rows_max))
    for place, each in enumerate(rounds):
        taken += each
        following = rounds[place + 1][0] if place + 1 < len(rounds) else None
        watermark = watermark_after(each, following)
        covered = [file for file in files if watermark.covers(file.position, file.file.file_number)]
        assert covered == taken


def test_a_position_that_a_round_finishes_is_covered_whole() -> None:
    last = delta_file(7, 2, 1)
    assert watermark_after([delta_file(7, 1, 1), last], None) == Watermark(position=7)
    assert watermark_after([last], delta_file(8, 1, 1)) == Watermark(position=7)
    assert watermark_after([last], delta_file(7, 3, 1)) == Watermark(position=7, file_number=2)


@given(st.lists(st.integers(0, 20) | st.integers(1, 1_000), max_size=30), st.integers(1, 12))
def test_tasks_take_consecutive_files_and_none_is_empty(sizes: list[int], groups: int) -> None:
    files = [delta_source(ordinal, size) for ordinal, size in enumerate(sizes)]
    grouped = group_for_tasks(files, groups)
    assert [piece.source for group in grouped for piece in group] == files
    assert all(grouped)
    assert len(grouped) <= groups


@given(st.lists(st.integers(1, 1_000), min_size=1, max_size=30), st.integers(1, 12))
def test_no_task_takes_more_than_its_share_and_the_file_that_crosses_it(sizes: list[int], groups: int) -> None:
    grouped = group_for_tasks([delta_source(ordinal, size) for ordinal, size in enumerate(sizes)], groups)
    share = sum(sizes) / groups
    for group in grouped:
        assert sum(file.size_bytes for file in group) <= share + max(file.size_bytes for file in group)


@pytest.mark.parametrize("groups", [1, 2, 7])
def test_files_of_one_size_make_as_many_tasks_as_asked_for(groups: int) -> None:
    files = [delta_source(ordinal, 5) for ordinal in range(3 * groups)]
    assert [len(group) for group in group_for_tasks(files, groups)] == [3] * groups


def test_a_task_ends_with_the_file_that_fills_its_share() -> None:
    files = [delta_source(ordinal, size) for ordinal, size in enumerate([4, 3, 3])]
    assert [len(group) for group in group_for_tasks(files, 2)] == [2, 1]


@pytest.mark.parametrize("sizes", [[0] * 5, [5, 5, 0, 0], [0, 0, 5]])
def test_files_without_bytes_make_no_more_tasks_than_asked_for(sizes: list[int]) -> None:
    files = [delta_source(ordinal, size) for ordinal, size in enumerate(sizes)]
    grouped = group_for_tasks(files, 2)
    assert [piece.source for group in grouped for piece in group] == files
    assert len(grouped) <= 2


files_with_row_groups = st.lists(
    st.lists(st.integers(0, 3 * ROWS_PER_CUT), min_size=1, max_size=12).map(tuple), min_size=1, max_size=6
)


@given(files_with_row_groups, st.integers(1, 12))
def test_tasks_read_every_row_once_in_order_and_files_are_cut_between_row_groups_only(
    row_groups: list[tuple[int, ...]], groups: int
) -> None:
    files = [delta_source(ordinal, 8 * sum(rows), rows) for ordinal, rows in enumerate(row_groups)]
    grouped = group_for_tasks(files, groups)
    assert len(grouped) <= groups
    assert all(grouped)
    for file in files:
        pieces = [piece for group in grouped for piece in group if piece.source is file]
        assert [piece.first_row for piece in pieces] == [0, *itertools.accumulate(piece.rows for piece in pieces[:-1])]
        assert sum(piece.rows for piece in pieces) == file.rows
        assert {piece.first_row for piece in pieces} <= {0, *itertools.accumulate(file.row_groups)}
        assert all(piece.rows >= ROWS_PER_CUT for piece in pieces) or len(pieces) == 1
        assert all(sum(piece.source is file for piece in group) <= 1 for group in grouped)


def test_a_large_file_is_shared_by_all_tasks() -> None:
    large = delta_source(0, 10**11, (1_000_000,) * 800)
    grouped = group_for_tasks([large], 256)
    assert [[piece.source for piece in group] for group in grouped] == [[large]] * 256
    assert {piece.rows for group in grouped for piece in group} == {3_000_000, 4_000_000}


def test_files_whose_row_groups_are_not_recorded_stay_whole() -> None:
    stated = delta_source(0, 10**11, (1_000_000,) * 800)
    for file in (replace(stated, row_groups=()), replace(stated, rows=stated.rows + 1)):
        assert group_for_tasks([file], 8) == ((RowsToHash.all_of(file),),)
