"""Where every surviving row will come to lie, against writing the rows one by one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from compactor.catalog.actions import DeletionVector, Watermark
from compactor.catalog.paths import TableFolder
from compactor.index.files import IndexTarget
from compactor.kernels.pointers import compacted_pointers
from compactor.names import ContentType, Operation
from compactor.object_store import StoreLocation
from compactor.planning import CompactedSource, DeltaSource, Output, ReadPoint, RoundPlan
from compactor.steps.layout import CARRIED, ROWS_PER_SMALL_FILE, BucketCounts, MaterializeLayout, lay_out
from compactor.tabular import TabularFile

BUCKETS = 3
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
        output=Output(
            content_type=ContentType.PARQUET,
            schema=pa.schema([("id", pa.int64())]),
            rows_per_compacted_file=rows_per_file,
            max_dead_row_share=max_dead_row_share,
            compacted_stream_version=1,
            next_file_number=NEXT_FILE_NUMBER,
            index=IndexTarget(folder, 1, "c", 100),
        ),
        tasks=tasks,
    )


def counts_of(sources: list[Survivors]) -> list[BucketCounts]:
    counts = []
    for bucket in range(BUCKETS):
        rows = np.array([source.per_bucket[bucket] for source in sources], np.int64)
        ordinals = np.flatnonzero(rows)
        counts.append(
            BucketCounts(
                hash_bucket=bucket,
                ordinals=ordinals.astype(np.int32),
                rows=rows[ordinals],
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
    return lay_out(plan, counts_of(sources))


per_bucket = st.tuples(*[st.integers(0, 4)] * BUCKETS)
delta_survivors = st.lists(st.builds(Survivors, per_bucket), max_size=5)
compacted_survivors = st.lists(st.builds(Survivors, per_bucket, died=st.sampled_from([0, 0, 1, 5])), max_size=4)


@given(compacted_survivors, delta_survivors, st.integers(1, 6))
def test_pointers_are_where_the_tasks_write_their_rows(
    compacted: list[Survivors], deltas: list[Survivors], rows_per_file: int
) -> None:
    sources = [*compacted, *deltas]
    layout = laid_out(plan_of(compacted, deltas, rows_per_file), sources)
    file_number = NEXT_FILE_NUMBER
    for task in range(layout.task_count):
        # The paper's order: materialize task, source file, dedupe task.
        written = [
            (source, bucket)
            for source in np.flatnonzero(layout.tasks == task)
            for bucket in range(BUCKETS)
            for _ in range(sources[source].per_bucket[bucket])
        ]
        assert layout.rows_of_tasks[task] == len(written) > 0
        assert layout.first_file_numbers[task] == file_number
        rank = dict.fromkeys(written, 0)
        for place, cell in enumerate(written):
            source, bucket = cell
            pointer = compacted_pointers(
                np.array([source], np.int32),
                np.array([rank[cell]], np.int32),
                layout.places[:, bucket],
                layout.first_file_numbers_by_source,
                rows_per_file,
            )
            assert (int(pointer[0][0]), int(pointer[1][0])) == (
                file_number + place // rows_per_file,
                place % rows_per_file,
            )
            rank[cell] += 1
        file_number += -(-len(written) // rows_per_file)


@given(compacted_survivors, delta_survivors, st.integers(1, 6))
def test_tasks_take_consecutive_sources_and_every_row_is_either_written_or_carried(
    compacted: list[Survivors], deltas: list[Survivors], rows_per_file: int
) -> None:
    sources = [*compacted, *deltas]
    layout = laid_out(plan_of(compacted, deltas, rows_per_file), sources)
    taken = layout.tasks[layout.tasks != CARRIED]
    assert (np.diff(taken) >= 0).all()
    assert set(taken.tolist()) == set(range(layout.task_count))
    for ordinal, source in enumerate(sources):
        survives = sum(source.per_bucket) > 0
        carried = ordinal < len(compacted) and survives and not source.died
        assert (ordinal in layout.carried) == carried
        assert (layout.tasks[ordinal] != CARRIED) == (survives and not carried)
    rows = sum(sum(source.per_bucket) for source in sources)
    assert int(layout.rows_of_tasks.sum()) + layout.carried_rows == rows
    assert layout.marked == ()


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
    assert layout.tasks.tolist() == [CARRIED, 0, CARRIED, CARRIED]
    assert laid_out(plan_of(sources, [], 100), sources).carried == (2,)


def test_no_survivors_make_no_tasks() -> None:
    layout = laid_out(plan_of([Survivors((0, 0, 0), died=3)], [], 10), [Survivors((0, 0, 0), died=3)])
    assert layout.task_count == 0
    assert layout.carried == ()


def test_a_round_of_many_rows_gives_every_core_a_task() -> None:
    big = Survivors((ROWS_PER_SMALL_FILE, ROWS_PER_SMALL_FILE, 0))
    sources = [big] * 8
    layout = laid_out(plan_of([], sources, 4_000_000, tasks=4), sources)
    assert layout.rows_of_tasks.tolist() == [4 * ROWS_PER_SMALL_FILE] * 4
