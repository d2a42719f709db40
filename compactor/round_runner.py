"""Runs one round on Spark: hash bucket, dedupe, materialize. It decides nothing, and commits nothing.

    delta files --hash_files--> pointer records --shuffle by bucket--> dedupe_bucket --> survivors, kept
               counts, beside them (an accumulator)--> driver: lay_out
    survivors --finish_bucket--> index files
                           |--> row indices --shuffle by writer--> materialize --> compacted files

Two Spark jobs: the counts of the first are what the second needs to know where every row will lie. Every task is a
function of its input, and writes files under names that only this attempt uses; so Spark may run one again, anywhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from pyspark import RDD, Accumulator, AccumulatorParam, SparkContext

from compactor.catalog.actions import DataFile, DeletionVector, IndexFile, RowCounts, StepFigures
from compactor.clock import Clock
from compactor.errors import Corrupt
from compactor.kernels.sort_values import encoded_width
from compactor.planning import DeltaSource, RoundPlan, group_for_tasks
from compactor.spark_errors import spark_job
from compactor.spark_records import RecordSerializer, one_by_one, record_serializer, shuffle
from compactor.spark_storage import storage_level
from compactor.steps.dedupe import (
    BYTES_OF_NEW_KEY,
    DeadPointers,
    DedupedBucket,
    RunPiece,
    dedupe_bucket,
)
from compactor.steps.finish import RowsOfFiles, dead_rows_to_mark, finish_bucket
from compactor.steps.hash_bucket import HashedRows, hash_files
from compactor.steps.layout import BucketCounts, MaterializeLayout, lay_out
from compactor.steps.mark_dead import mark_dead
from compactor.steps.materialize import MaterializedFiles, materialize
from compactor.steps.memory import peak_memory_bytes

HASH_TASKS_PER_CORE = 4
"""More tasks than cores, so that a core that is done early has something left to take."""

ROWS_PER_HASH_TASK = 500_000
"""But no more than there is work for: Spark's part of a task takes as long as to hash a hundred thousand rows."""

WRITERS_PER_CORE = 2
"""So too here, but few: one with several materialize tasks finishes one's file while it writes the next one's."""

ElementT = TypeVar("ElementT")


@dataclass(frozen=True)
class RoundResult:
    """What a round wrote. Nobody sees its files before they are committed.

    files_added    new compacted files
    files_removed  numbers of compacted files that hold no row of the stream any more, or whose rows were rewritten
    """

    files_added: tuple[DataFile, ...]
    files_removed: tuple[int, ...]
    deletion_vectors: tuple[DeletionVector, ...]
    index_files: tuple[IndexFile, ...]
    counts: RowCounts
    steps: dict[str, StepFigures]


@dataclass(frozen=True)
class FinishedIndex:
    """What a finish task says of itself, beside the rows it asks for."""

    files: tuple[IndexFile, ...]
    peak_memory_bytes: int


@dataclass(frozen=True)
class _Written:
    """What the tasks of the second Spark job wrote."""

    index: tuple[FinishedIndex, ...]
    files: tuple[MaterializedFiles, ...]
    vectors: tuple[DeletionVector, ...]


def run_round(spark: SparkContext, plan: RoundPlan, clock: Clock, on_step: Callable[[str, int], None]) -> RoundResult:
    """Runs the steps. `on_step` is told each step's name and its number of tasks before it starts.

    Raises what the steps raise: `Corrupt` where files and log disagree or the books do not balance.
    """
    with record_serializer(spark) as serializer:
        return _run_steps(spark, plan, clock, on_step, serializer)


def _run_steps(
    spark: SparkContext,
    plan: RoundPlan,
    clock: Clock,
    on_step: Callable[[str, int], None],
    serializer: RecordSerializer,
) -> RoundResult:
    started = clock.monotonic_seconds()
    groups = group_for_tasks(plan.deltas, _hash_tasks(plan))
    on_step("dedupe", plan.hash_bucket_count)
    counted: Accumulator[dict[int, BucketCounts]] = spark.accumulator({}, _ByBucket())
    level = storage_level(spark, _bytes_of_survivors(plan))
    survivors = _survivors(spark, plan, groups, counted, serializer).persist(level)
    try:
        with spark_job("hash bucket and dedupe"):
            _compute(survivors)
        counts = [counted.value[bucket] for bucket in range(plan.hash_bucket_count)]
        deduped = clock.monotonic_seconds()
        layout = lay_out(plan, counts)
        writers = max(min(layout.task_count + len(layout.marked), plan.tasks * WRITERS_PER_CORE), 1)
        on_step("materialize", writers)
        with spark_job("materialize"):
            finished = _finish(survivors, plan, layout, writers, serializer).collect()
        materialized = clock.monotonic_seconds()
    finally:
        survivors.unpersist()
    index = [item for item in finished if isinstance(item, FinishedIndex)]
    files = [item for item in finished if isinstance(item, MaterializedFiles)]
    vectors = [item for item in finished if isinstance(item, DeletionVector)]
    peaks = [item.peak_memory_bytes for item in index] + [item.peak_memory_bytes for item in files]
    # Hash bucket and dedupe are one Spark job: hash bucket's part is what its tasks took, spread over the cores.
    hash_seconds = min(sum(count.hash_seconds for count in counts) / plan.tasks, deduped - started)
    steps = {
        "hash_bucket": StepFigures(
            seconds=hash_seconds,
            tasks=len(groups),
            peak_memory_bytes=max((count.hash_peak_memory_bytes for count in counts), default=0),
        ),
        "dedupe": StepFigures(
            seconds=deduped - started - hash_seconds,
            tasks=plan.hash_bucket_count,
            peak_memory_bytes=max((count.peak_memory_bytes for count in counts), default=0),
        ),
        "materialize": StepFigures(
            seconds=materialized - deduped,
            tasks=writers,
            peak_memory_bytes=max(peaks, default=0),
        ),
    }
    written = _Written(tuple(index), tuple(files), tuple(vectors))
    return _result(plan, layout, counts, written, steps)


def _hash_tasks(plan: RoundPlan) -> int:
    rows = sum(file.rows for file in plan.deltas)
    return max(plan.tasks, min(plan.tasks * HASH_TASKS_PER_CORE, rows // ROWS_PER_HASH_TASK))


class _ByBucket(AccumulatorParam[dict[int, BucketCounts]]):
    """Gathers the counts beside the survivors, which so need not be read for them. Spark may add a task's counts twice;
    they are the same."""

    def zero(self, value: dict[int, BucketCounts]) -> dict[int, BucketCounts]:
        return {}

    def addInPlace(  # noqa: N802  (Spark's name)
        self, value1: dict[int, BucketCounts], value2: dict[int, BucketCounts]
    ) -> dict[int, BucketCounts]:
        return value1 | value2


def _bytes_of_survivors(plan: RoundPlan) -> int:
    """What dedupe may leave, at the most: every key of the delta and of the runs that are absorbed."""
    absorbed = sum(file.rows for file in plan.index_files if file.run in plan.absorbed_runs)
    keys = absorbed + sum(file.rows for file in plan.deltas)
    return keys * (BYTES_OF_NEW_KEY + encoded_width(plan.sort_columns))


def _compute(rows: RDD[ElementT]) -> None:
    """Has every partition computed, and so kept, where the JVM counts them: `RDD.count` would send them to Python."""
    rows._jrdd.count()  # noqa: SLF001


def _survivors(
    spark: SparkContext,
    plan: RoundPlan,
    groups: Sequence[tuple[DeltaSource, ...]],
    counted: Accumulator[dict[int, BucketCounts]],
    serializer: RecordSerializer,
) -> RDD[RunPiece | DeadPointers]:
    hashed = spark.parallelize(groups, max(len(groups), 1)).flatMap(partial(hash_files, plan))
    by_bucket = shuffle(hashed, plan.hash_bucket_count, _own_partition, serializer)
    return one_by_one(by_bucket.mapPartitionsWithIndex(partial(_dedupe_partition, plan, counted)), serializer)


def _finish(
    survivors: RDD[RunPiece | DeadPointers],
    plan: RoundPlan,
    layout: MaterializeLayout,
    writers: int,
    serializer: RecordSerializer,
) -> RDD[FinishedIndex | MaterializedFiles | DeletionVector]:
    """One partition per writer, which has consecutive materialize tasks and marked files. More partitions than writers
    would each cost a task's start, which takes longer than to mark a file."""
    asked = survivors.mapPartitionsWithIndex(partial(_finish_partition, plan, layout))
    writer_of = partial(_writer_of, layout.task_count, len(layout.marked), writers)
    by_writer = shuffle(asked, writers, writer_of, serializer)
    return by_writer.mapPartitionsWithIndex(partial(_materialize_partition, plan, layout))


def _writer_of(task_count: int, marked_count: int, writers: int, key: int) -> int:
    """Keys are materialize tasks, then marked files, then one for what was written of the index, which is passed on."""
    if key < task_count:
        return key * writers // task_count
    marked = key - task_count
    return marked * writers // marked_count if marked < marked_count else 0


def _own_partition(key: int) -> int:
    return key


def _dedupe_partition(
    plan: RoundPlan,
    counted: Accumulator[dict[int, BucketCounts]],
    hash_bucket: int,
    blocks: Iterator[tuple[int, HashedRows]],
) -> Iterator[RunPiece | DeadPointers]:
    for found in dedupe_bucket(plan, hash_bucket, [block for _, block in blocks]):
        if isinstance(found, BucketCounts):
            counted.add({hash_bucket: found})
        else:
            yield found


def _finish_partition(
    plan: RoundPlan, layout: MaterializeLayout, hash_bucket: int, pieces: Iterator[RunPiece | DeadPointers]
) -> Iterator[tuple[int, RowsOfFiles | FinishedIndex]]:
    bucket = DedupedBucket.from_pieces(hash_bucket, pieces, encoded_width(plan.sort_columns))
    files, rows_to_fetch = finish_bucket(plan, layout, bucket)
    yield from rows_to_fetch
    for ordinal, died in dead_rows_to_mark(layout, bucket):
        yield layout.task_count + layout.marked.index(ordinal), died
    yield layout.task_count + len(layout.marked), FinishedIndex(files, peak_memory_bytes())


def _materialize_partition(
    plan: RoundPlan, layout: MaterializeLayout, _: int, blocks: Iterator[tuple[int, RowsOfFiles | FinishedIndex]]
) -> Iterator[MaterializedFiles | FinishedIndex | DeletionVector]:
    asked: dict[int, list[RowsOfFiles]] = defaultdict(list)
    died: list[RowsOfFiles] = []
    for key, value in blocks:
        if isinstance(value, FinishedIndex):
            yield value
        elif key < layout.task_count:
            asked[key].append(value)
        else:
            died.append(value)
    yield from materialize(plan, layout, asked)
    yield from mark_dead(plan, died)


def _result(
    plan: RoundPlan,
    layout: MaterializeLayout,
    counts: Sequence[BucketCounts],
    written: _Written,
    steps: dict[str, StepFigures],
) -> RoundResult:
    """Puts the tasks' answers together, and balances the books: what does not add up is never committed."""
    added = sorted((file for item in written.files for file in item.files), key=lambda file: file.file_number)
    carried_rows = layout.carried_rows
    row_counts = RowCounts(
        rows_before=sum(file.live_rows for file in plan.compacted),
        rows_in=sum(file.live_rows for file in plan.sources),
        rows_out=carried_rows + sum(file.rows for file in added),
        rows_deduplicated=sum(count.rows_deduplicated for count in counts),
        rows_deleted=sum(count.rows_deleted for count in counts),
        rows_carried=carried_rows,
        tombstones=plan.tombstones + sum(count.tombstones_added for count in counts),
    )
    _balance(row_counts, counts)
    kept = [file for file in plan.index_files if file.run not in plan.absorbed_runs]
    carried = set(layout.carried)
    removed = tuple(file.file_number for file in plan.compacted if file.ordinal not in carried)
    written_files = [file for item in written.index for file in item.files]
    # A file of a kept run that has new pointers takes the place of the one without them.
    index_files = {(file.hash_bucket, file.run, file.part): file for file in (*kept, *written_files)}
    in_order = tuple(index_files[place] for place in sorted(index_files))
    return RoundResult(tuple(added), removed, written.vectors, in_order, row_counts, steps)


def _balance(rows: RowCounts, counts: Sequence[BucketCounts]) -> None:
    rows_in = sum(count.rows_in for count in counts)
    if rows.rows_in != rows_in:
        raise Corrupt(f"the round's files hold {rows.rows_in} rows, but {rows_in} keys and rows were deduplicated")
    accounted = rows.rows_out + rows.rows_deduplicated + rows.rows_deleted
    if rows.rows_in != accounted:
        raise Corrupt(
            f"the books do not balance: {rows.rows_in} rows in, but {rows.rows_out} out + {rows.rows_deduplicated} "
            f"deduplicated + {rows.rows_deleted} deleted = {accounted}"
        )
    surviving = sum(int(count.rows.sum()) for count in counts)
    if surviving != rows.rows_out:
        raise Corrupt(f"{surviving} rows survive by the index, but the compacted files hold {rows.rows_out}")
    if rows.tombstones < 0:
        raise Corrupt(f"the index would remember {rows.tombstones} tombstones")
