"""How delta files become rounds and tasks, and what a round says it has processed."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from compactor.catalog.actions import DataFile, Watermark
from compactor.names import ContentType, Operation
from compactor.planning import DeltaFileRef, DeltaSource, group_for_tasks, split_into_rounds, watermark_after
from compactor.tabular import TabularFile


def delta_file(position: int, file_number: int, rows: int, size_bytes: int = 1_000) -> DeltaFileRef:
    path = f"{position}/{file_number}.parquet"
    file = DataFile(
        file_number=file_number, path=path, content_type=ContentType.PARQUET, rows=rows, size_bytes=size_bytes
    )
    return DeltaFileRef(position, Operation.UPSERT, file, f"file:///lake/{path}")


def delta_source(ordinal: int, size_bytes: int) -> DeltaSource:
    return DeltaSource(
        ordinal=ordinal,
        file=TabularFile(f"file:///lake/{ordinal}.parquet", ContentType.PARQUET),
        rows=1,
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


@given(st.lists(st.integers(1, 1_000), max_size=30), st.integers(1, 12))
def test_tasks_take_consecutive_files_and_none_is_empty(sizes: list[int], groups: int) -> None:
    files = [delta_source(ordinal, size) for ordinal, size in enumerate(sizes)]
    grouped = group_for_tasks(files, groups)
    assert [file for group in grouped for file in group] == files
    assert all(grouped)
    assert len(grouped) <= groups


@given(st.lists(st.integers(1, 1_000), min_size=1, max_size=30), st.integers(1, 12))
def test_no_task_takes_more_than_its_share_and_the_file_that_crosses_it(sizes: list[int], groups: int) -> None:
    grouped = group_for_tasks([delta_source(ordinal, size) for ordinal, size in enumerate(sizes)], groups)
    share = sum(sizes) / groups
    for group in grouped:
        assert sum(file.size_bytes for file in group) <= share + max(file.size_bytes for file in group)


def test_files_without_bytes_are_grouped_as_well() -> None:
    files = [delta_source(ordinal, 0) for ordinal in range(5)]
    assert [file for group in group_for_tasks(files, 2) for file in group] == files
