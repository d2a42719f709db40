"""Where every surviving row will come to lie, against writing the rows one by one."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.catalog.keys import TableFolder
from compactor.catalog.snapshot import ReadPoint
from compactor.index.files import IndexTarget
from compactor.kernels.pointers import point_at_compacted
from compactor.model.counts import Watermark
from compactor.model.files import DeletionVector, IndexFile
from compactor.model.names import ContentType, Operation
from compactor.planning.round_plan import CompactedSource, DeltaSource, RoundOutput, RoundPlan
from compactor.planning.task_memory import BYTES_PER_TASK, ROWS_PER_SMALL_FILE, rows_per_writer
from compactor.sessions.round_runner import hash_tasks
from compactor.steps.dedupe import DedupeStep, indexed_buckets
from compactor.steps.hash_bucket import HashStep
from compactor.steps.index_update import FinishStep, finish_tasks
from compactor.steps.output_files import WriteStep
from compactor.steps.parts import PARTS_PER_CORE, Parts
from compactor.steps.placement import (
    BucketCounts,
    MaterializeLayout,
    NumbersByPart,
    PlacesInBucket,
    Writers,
    assign_writers,
    lay_out,
    writer_tasks,
)
from compactor.storage.location import StoreLocation
from compactor.tabular import TabularFile

BUCKETS = 3
NOTHING = -1
NEXT_FILE_NUMBER = 7


@dataclass(frozen=True)
class Survivors:
    """Of one source file: rows that survive per bucket, and of a compacted file also how many rows did not.

    dead  of those, rows that were dead before the round
    """

    per_bucket: tuple[int, ...]
    died: int = 0
    dead: int = 0

    @property
    def rows(self) -> int:
        return sum(self.per_bucket) + self.died


def plan_of(
    compacted: list[Survivors],
    deltas: list[Survivors],
    rows_per_file: int,
    max_dead_row_share: float = 0.0,
    tasks: int = 2,
    task_memory_bytes: int = 2**30,
) -> RoundPlan:
    def file(number: int) -> TabularFile:
        return TabularFile(f"file:///lake/{number}.parquet", ContentType.PARQUET)

    def vector(number: int, dead: int) -> DeletionVector | None:
        return DeletionVector(file_number=number, path=f"{number}", rows=dead, size_bytes=1) if dead else None

    folder = TableFolder("ACME.ORDERS.V1").stream({})
    return RoundPlan(
        commit_id="c",
        round_number=1,
        rounds=1,
        location=StoreLocation("file:///lake"),
        read_point=ReadPoint(None, None),
        compacted=tuple(
            CompactedSource(place, file(place), each.rows, 1, place + 1, vector(place + 1, each.dead))
            for place, each in enumerate(compacted)
        ),
        deltas=tuple(
            DeltaSource(place, file(place), each.rows, 1, place, Operation.UPSERT, sorts=True)
            for place, each in enumerate(deltas, len(compacted))
        ),
        index_files=(),
        absorbed_runs=frozenset(),
        tombstones=0,
        hash_bucket_count=BUCKETS,
        key_columns=("id",),
        sort_columns=(),
        sort_keys=(),
        processed=Watermark(position=1),
        horizon=1,
        tombstone_retention=-1,
        output=RoundOutput(
            content_type=ContentType.PARQUET,
            schema=pa.schema([("id", pa.int64())]),
            rows_per_compacted_file=rows_per_file,
            max_dead_row_share=max_dead_row_share,
            own_parquet_pages=True,
            page_check_share=0.0,
            compacted_stream_version=1,
            next_file_number=NEXT_FILE_NUMBER,
            index=IndexTarget(folder, 1, "c", 100),
        ),
        tasks=tasks,
        task_memory_bytes=task_memory_bytes,
    )


def counts_of(sources: list[Survivors]) -> list[BucketCounts]:
    counts = []
    for bucket in range(BUCKETS):
        rows = np.array([source.per_bucket[bucket] for source in sources], np.int64)
        counts.append(
            BucketCounts(
                hash_bucket=bucket,
                rows=NumbersByPart.of(rows),
                rows_in=0,
                rows_deduplicated=0,
                rows_deleted=0,
                tombstones_added=0,
                hash_seconds=0.0,
                hash_peak_memory_bytes=0,
                peak_memory_bytes=0,
            )
        )
    return counts


def laid_out(plan: RoundPlan, sources: list[Survivors]) -> MaterializeLayout:
    return lay_out(plan, Parts.of_round(plan), counts_of(sources))


memory_of_tasks = st.sampled_from([2**30, 200, 400, 1_000])
"""Plenty, and such that a writer may hold the indices of 3, 6 and 15 rows."""

per_bucket = st.tuples(*[st.integers(0, 4)] * BUCKETS)
delta_survivors = st.lists(st.builds(Survivors, per_bucket), max_size=5)
compacted_survivors = st.lists(st.builds(Survivors, per_bucket, died=st.sampled_from([0, 0, 1, 5])), max_size=4)


def places_in(layout: MaterializeLayout, sources: list[Survivors]) -> list[PlacesInBucket]:
    """Of each hash bucket."""
    ranks = layout.pieces.ranks(counts_of(sources))
    return [layout.pieces.places(bucket, each, layout.first_file_numbers) for bucket, each in enumerate(ranks)]


def tasks_of(layout: MaterializeLayout, sources: list[Survivors]) -> npt.NDArray[np.int64]:
    """(sources, buckets): the task of each pair; NOTHING where there is nothing to write."""
    here = places_in(layout, sources)
    return np.stack([np.where(each.are_written, each.tasks, NOTHING) for each in here], axis=1)


@given(compacted_survivors, delta_survivors, st.integers(1, 6), memory_of_tasks)
def test_pointers_are_where_the_tasks_write_their_rows(
    compacted: list[Survivors], deltas: list[Survivors], rows_per_file: int, task_memory_bytes: int
) -> None:
    sources = [*compacted, *deltas]
    layout = laid_out(plan_of(compacted, deltas, rows_per_file, task_memory_bytes=task_memory_bytes), sources)
    tasks, places = tasks_of(layout, sources), places_in(layout, sources)
    file_number = NEXT_FILE_NUMBER
    for task in range(layout.task_count):
        # The paper's order: materialize task, source file, dedupe task. Each file is one part.
        written = [
            (source, bucket)
            for source in range(len(sources))
            for bucket in range(BUCKETS)
            if tasks[source, bucket] == task
            for _ in range(sources[source].per_bucket[bucket])
        ]
        assert layout.rows_of_tasks[task] == len(written) > 0
        assert layout.first_file_numbers[task] == file_number
        rank = dict.fromkeys(written, 0)
        for place, cell in enumerate(written):
            source, bucket = cell
            here = places[bucket]
            number, row_index = np.empty(1, np.int32), np.empty(1, np.int64)
            point_at_compacted(
                np.array([source], np.int32),
                np.array([rank[cell]], np.int32),
                here.output_offsets,
                here.first_file_numbers,
                rows_per_file,
                number,
                row_index,
            )
            assert (int(number[0]), int(row_index[0])) == (file_number + place // rows_per_file, place % rows_per_file)
            rank[cell] += 1
        file_number += -(-len(written) // rows_per_file)


@given(compacted_survivors, delta_survivors, st.integers(1, 6), memory_of_tasks)
def test_tasks_take_consecutive_sources_and_every_row_is_either_written_or_carried(
    compacted: list[Survivors], deltas: list[Survivors], rows_per_file: int, task_memory_bytes: int
) -> None:
    sources = [*compacted, *deltas]
    layout = laid_out(plan_of(compacted, deltas, rows_per_file, task_memory_bytes=task_memory_bytes), sources)
    tasks = tasks_of(layout, sources)
    taken = tasks[tasks != NOTHING]
    assert (np.diff(taken) >= 0).all()
    assert set(taken.tolist()) == set(range(layout.task_count))
    for ordinal, source in enumerate(sources):
        survives = sum(source.per_bucket) > 0
        carried = ordinal < len(compacted) and survives and not source.died
        assert (ordinal in layout.carried) == carried
        assert (ordinal in layout.rewritten) == (survives and not carried)
        for bucket, rows_here in enumerate(source.per_bucket):
            assert (tasks[ordinal, bucket] != NOTHING) == (rows_here > 0 and not carried)
    rows = sum(sum(source.per_bucket) for source in sources)
    assert int(layout.rows_of_tasks.sum()) + layout.carried_rows == rows
    assert layout.marked == ()


@given(compacted_survivors, delta_survivors, st.integers(1, 6), memory_of_tasks, st.sampled_from([0.0, 0.3]))
def test_a_writer_is_told_its_own_tasks_and_the_files_that_these_read(
    compacted: list[Survivors], deltas: list[Survivors], rows_per_file: int, task_memory_bytes: int, dead_share: float
) -> None:
    sources = [*compacted, *deltas]
    plan = plan_of(compacted, deltas, rows_per_file, dead_share, task_memory_bytes=task_memory_bytes)
    layout = laid_out(plan, sources)
    writers = Writers.of(plan, layout)
    of_writers = writer_tasks(plan, layout, writers)
    assert len(of_writers) == writers.count >= 1
    tasks = tasks_of(layout, sources)
    found = [task for each in of_writers for task in each.materialize]
    assert [task.number for task in found] == list(range(layout.task_count))
    for task in found:
        assert (task.first_file_number, task.rows) == (
            layout.first_file_numbers[task.number],
            layout.rows_of_tasks[task.number],
        )
        assert [file.ordinal for file in task.sources] == np.flatnonzero((tasks == task.number).any(axis=1)).tolist()
        assert all(plan.sources[file.ordinal] is file for file in task.sources)
    assert sorted(file.ordinal for each in of_writers for file in each.marked) == list(layout.marked)


def test_a_file_with_few_dead_rows_is_carried_and_marked_where_that_is_asked_for() -> None:
    few, many, none, old = (
        Survivors((4, 4, 1), died=1),
        Survivors((1, 0, 1), died=8),
        Survivors((1, 1, 1)),
        Survivors((4, 4, 1), died=1, dead=1),
    )
    sources = [few, many, none, old]
    layout = laid_out(plan_of(sources, [], 100, max_dead_row_share=0.1), sources)
    assert layout.carried == (0, 2, 3)
    assert layout.marked == (0,)
    assert layout.carried_rows == 9 + 3 + 9
    assert tasks_of(layout, sources).tolist() == [[NOTHING] * 3, [0, NOTHING, 0], [NOTHING] * 3, [NOTHING] * 3]
    assert laid_out(plan_of(sources, [], 100), sources).carried == (2,)


@given(st.lists(st.sampled_from([0, 0, 0, 1, 255, 256, 65_536, 2**32]), max_size=40))
def test_numbers_by_part_are_kept_in_few_bytes_and_come_back_as_they_were(numbers: list[int]) -> None:
    kept = NumbersByPart.of(np.array(numbers, np.int64))
    assert kept.by_part().tolist() == numbers
    assert kept.sum() == sum(numbers)
    whole = kept.numbers.itemsize * len(numbers)
    assert kept.numbers.nbytes + (0 if kept.parts is None else kept.parts.nbytes) <= whole


def test_a_round_over_files_that_it_leaves_as_they_are_sends_their_buckets_no_places() -> None:
    sources = [Survivors((4, 4, 4))] * 1_000 + [Survivors((1, 0, 0), died=1)]
    layout = laid_out(plan_of(sources, [], 100), sources)
    assert layout.rewritten.tolist() == [1_000]
    ranks = list(layout.pieces.ranks(counts_of(sources)))
    assert [each.numbers.tolist() for each in ranks] == [[1], [], []]


def test_no_survivors_make_no_tasks() -> None:
    layout = laid_out(plan_of([Survivors((0, 0, 0), died=3)], [], 10), [Survivors((0, 0, 0), died=3)])
    assert layout.task_count == 0
    assert layout.carried == ()


def test_a_round_of_many_rows_gives_every_core_a_task() -> None:
    big = Survivors((ROWS_PER_SMALL_FILE, ROWS_PER_SMALL_FILE, 0))
    sources = [big] * 8
    layout = laid_out(plan_of([], sources, 4_000_000, tasks=4), sources)
    assert layout.rows_of_tasks.tolist() == [4 * ROWS_PER_SMALL_FILE] * 4


def test_one_large_file_gives_every_core_a_task() -> None:
    big = Survivors((8 * ROWS_PER_SMALL_FILE, 0, 0))
    plan = plan_of([], [big], 4_000_000, tasks=4, task_memory_bytes=2**40)
    parts = Parts.of_round(plan)
    assert len(parts) == 4 * PARTS_PER_CORE
    assert len(Parts.of_round(replace(plan, key_columns=()))) == 1
    rows = NumbersByPart.of(parts.row_counts(np.array([8 * ROWS_PER_SMALL_FILE])))
    counts = [replace(count, rows=rows) for count in counts_of([big])[:1]]
    assert lay_out(plan, parts, counts).rows_of_tasks.tolist() == [2 * ROWS_PER_SMALL_FILE] * 4


@given(delta_survivors, st.sampled_from([500, 1_000, 2_000]))
def test_no_writer_has_more_rows_than_its_memory_holds_the_indices_of(
    deltas: list[Survivors], task_memory_bytes: int
) -> None:
    # The largest part of a file in a bucket is 4 rows here, half of what a writer of 500 bytes may hold.
    plan = plan_of([], deltas, 4_000_000, task_memory_bytes=task_memory_bytes)
    layout = laid_out(plan, deltas)
    writers = assign_writers(plan, layout, writers_max=2)
    rows = np.bincount(writers, weights=layout.rows_of_tasks, minlength=1)
    assert rows.max() <= max(rows_per_writer(task_memory_bytes), 4 + rows_per_writer(task_memory_bytes) // 2)
    assert (np.diff(writers) >= 0).all()
    assert set(writers.tolist()) == set(range(len(set(writers.tolist()))))


def test_a_source_file_with_more_rows_than_a_writer_may_have_is_cut_between_hash_buckets() -> None:
    large = Survivors((40, 40, 40))
    plan = plan_of([], [large], 4_000_000, task_memory_bytes=100 * 64)
    layout = laid_out(plan, [large])
    assert tasks_of(layout, [large]).tolist() == [[0, 1, 2]]
    assert layout.rows_of_tasks.tolist() == [40, 40, 40]
    assert assign_writers(plan, layout, writers_max=1).tolist() == [0, 1, 2]


def test_the_usual_case_has_few_writers_and_each_of_them_consecutive_tasks() -> None:
    big = Survivors((ROWS_PER_SMALL_FILE, ROWS_PER_SMALL_FILE, 0))
    plan = plan_of([], [big] * 8, 1_000_000, tasks=2)
    layout = laid_out(plan, [big] * 8)
    assert layout.rows_of_tasks.tolist() == [2 * ROWS_PER_SMALL_FILE * 2] * 4
    assert assign_writers(plan, layout, writers_max=4).tolist() == [0, 1, 2, 3]
    assert assign_writers(plan, layout, writers_max=2).tolist() == [0, 0, 1, 1]


def test_files_that_take_minutes_to_write_have_a_writer_each() -> None:
    big = Survivors((ROWS_PER_SMALL_FILE, ROWS_PER_SMALL_FILE, 0))
    plan = plan_of([], [big] * 4, 500_000, tasks=2, task_memory_bytes=2**40)
    heavy = tuple(replace(file, size_bytes=BYTES_PER_TASK // 2 + 1) for file in plan.deltas)
    layout = laid_out(replace(plan, deltas=heavy), [big] * 4)
    assert assign_writers(plan, layout, writers_max=2).tolist() == [0, 1, 2, 3]


def test_hash_tasks_are_as_many_as_it_takes_for_each_to_hold_its_rows_and_to_last_minutes() -> None:
    few = plan_of([], [Survivors((400_000, 0, 0))] * 4, 4_000_000, task_memory_bytes=2**33)
    assert hash_tasks(few) == 3
    assert hash_tasks(replace(few, task_memory_bytes=128 * 100_000)) == 16
    heavy = tuple(replace(file, size_bytes=5 * BYTES_PER_TASK) for file in few.deltas)
    assert hash_tasks(replace(few, deltas=heavy)) == 20


def test_the_value_of_a_task_names_its_own_files_only() -> None:
    compacted, deltas = [Survivors((9, 9, 9), died=1)] * 4, [Survivors((9, 9, 9))] * 5
    plan = plan_of(compacted, deltas, 30, tasks=1)
    index = tuple(
        IndexFile(hash_bucket=bucket, run=run, part=0, path=f"index-{bucket}-{run}", rows=9, size_bytes=9)
        for bucket in range(BUCKETS)
        for run in (1, 2)
    )
    plan = replace(plan, index_files=index, absorbed_runs=frozenset({2}))
    layout = laid_out(plan, [*compacted, *deltas])
    writers = Writers.of(plan, layout)
    assert writers.count == 2

    def named(*values: object) -> set[str]:
        pickled = b"".join(pickle.dumps(value) for value in values)
        data = {file.file.uri for file in plan.sources if file.file.uri.encode() in pickled}
        return data | {file.path for file in index if file.path.encode() in pickled}

    dedupe = DedupeStep.of(plan)
    steps = HashStep.of(plan), dedupe, FinishStep.of(plan, dedupe.sources, layout, writers), WriteStep.of(plan)
    assert named(*steps) == set()
    for bucket, bucket_task in enumerate(indexed_buckets(plan)):
        assert named(bucket_task) == {f"index-{bucket}-1", f"index-{bucket}-2"}
    for bucket, finish in enumerate(finish_tasks(plan, layout, counts_of([*compacted, *deltas]))):
        assert named(finish) == {f"index-{bucket}-1"}
    of_writers = [named(bucket_task) for bucket_task in writer_tasks(plan, layout, writers)]
    assert set().union(*of_writers) == {file.file.uri for file in plan.sources}
    assert sum(map(len, of_writers)) == len(plan.sources)


def test_a_writer_for_each_task_and_each_marked_file_up_to_two_a_core() -> None:
    few = Survivors((4, 4, 1), died=1)
    for marked, count in [(0, 1), (1, 2), (3, 4), (4, 4)]:
        compacted, deltas = [few] * marked, [Survivors((1, 0, 0))]
        plan = plan_of(compacted, deltas, 100, max_dead_row_share=0.5, tasks=2)
        layout = laid_out(plan, [*compacted, *deltas])
        assert (layout.task_count, len(layout.marked)) == (1, marked)
        writers = Writers.of(plan, layout)
        assert writers.count == count
        assert writers.of_marked.tolist() == [place * count // marked for place in range(marked)]


def test_a_round_that_writes_no_rows_has_one_writer() -> None:
    gone = [Survivors((0, 0, 0), died=3)]
    plan = plan_of(gone, [], 10)
    assert Writers.of(plan, laid_out(plan, gone)).count == 1


@pytest.mark.parametrize(
    ("rows", "rows_of_tasks"),
    [([90, *[10] * 9], [90, 90]), ([3, 3, 4], [6, 4]), ([3, 4, 3], [3, 7]), ([1, 1, 8], [2, 8]), ([8, 1, 1], [8, 2])],
)
def test_source_files_are_shared_out_by_their_rows_and_one_goes_where_its_middle_lies(
    rows: list[int], rows_of_tasks: list[int]
) -> None:
    sources = [Survivors((each, 0, 0)) for each in rows]
    layout = laid_out(plan_of([], sources, -(-sum(rows) // 2)), sources)
    assert layout.rows_of_tasks.tolist() == rows_of_tasks


@pytest.mark.parametrize(("beyond", "writers"), [(0, [0, 0]), (1, [0, 1])])
def test_a_writer_takes_as_many_rows_and_bytes_as_it_may_and_not_one_more(beyond: int, writers: list[int]) -> None:
    sources = [Survivors((8, 0, 0)), Survivors((7 + beyond, 0, 0))]
    memory = next(memory for memory in range(100_000) if rows_per_writer(memory) == 15)
    plan = plan_of([], sources, 8, task_memory_bytes=memory)
    assert assign_writers(plan, laid_out(plan, sources), 1).tolist() == writers
    halves = [Survivors((8, 0, 0)), Survivors((8, 0, 0))]
    plan = plan_of([], halves, 8, task_memory_bytes=2**40)
    first, second = plan.deltas
    half = BYTES_PER_TASK // 2
    plan = replace(plan, deltas=(replace(first, size_bytes=half), replace(second, size_bytes=half + beyond * 8)))
    assert assign_writers(plan, laid_out(plan, halves), 1).tolist() == writers


def test_the_lookups_of_a_finish_task_by_source_are_flags_and_integers() -> None:
    sources = [Survivors((1, 0, 0))]
    here = places_in(laid_out(plan_of([], sources, 1), sources), sources)[1]
    assert [
        each.dtype.name for each in (here.are_written, here.tasks, here.output_offsets, here.first_file_numbers)
    ] == [
        "bool",
        "int64",
        "int64",
        "int64",
    ]
