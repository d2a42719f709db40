"""Runs one round, or a rehash, on an engine: hash bucket, dedupe, materialize. It decides and commits nothing.

    delta files --hash_rows--> pointer records --shuffle by bucket--> dedupe_bucket --> survivors, kept
                                       counts, as each task's note--> lay_out
    survivors --finish_bucket--> index files
                           |--> row indices --shuffle by writer--> materialize --> compacted files

There are two passes: from the counts of the first, the second knows the output location of every row. Every task is a
function of its input, and each of its attempts writes files under its own names; so an engine may run a task again,
anywhere, and while the first attempt still runs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from compactor.engine.protocol import Engine
from compactor.kernels.sort_values import encoded_width
from compactor.model.clock import Clock
from compactor.model.counts import RowCounts, StepFigures
from compactor.model.errors import Corrupt
from compactor.model.files import DataFile, DeletionVector, IndexFile
from compactor.planning.round_plan import RehashPlan, RoundPlan
from compactor.planning.rounds import group_for_tasks
from compactor.planning.sizing import KEPT_BYTES_PER_KEY
from compactor.planning.task_memory import BYTES_PER_TASK, rows_per_hash_task
from compactor.steps.dedupe import DedupeStep, indexed_buckets
from compactor.steps.hash_bucket import HashStep, hash_rows
from compactor.steps.index_update import FinishStep, finish_tasks
from compactor.steps.output_files import WriteStep
from compactor.steps.packing import all_rows, count_all, rows_of_tasks
from compactor.steps.partitions import WrittenFiles, dedupe_partition, finish_partition, write_partition
from compactor.steps.parts import Parts
from compactor.steps.placement import BucketCounts, MaterializeLayout, Writers, lay_out, writer_tasks
from compactor.steps.rehash import RehashStep, join_bucket, old_buckets, split_bucket

HASH_TASKS_PER_CORE = 4
"""There are more tasks than cores, so that a core that ends early has more work."""

ROWS_PER_HASH_TASK = 500_000
"""A hash task has at least this many rows, since each has Spark's overhead of a task."""


@dataclass(frozen=True)
class RoundResult:
    """The output of a round. Its files are not visible before the commit.

    Attributes:
        files_added: new compacted files
        files_removed: numbers of compacted files without live rows, or whose rows were rewritten"""

    files_added: tuple[DataFile, ...]
    files_removed: tuple[int, ...]
    deletion_vectors: tuple[DeletionVector, ...]
    index_files: tuple[IndexFile, ...]
    counts: RowCounts
    steps: dict[str, StepFigures]


def run_round(engine: Engine, plan: RoundPlan, clock: Clock, on_step: Callable[[str, int], None]) -> RoundResult:
    """Runs the steps. `on_step` is called with each step's name and number of tasks before it starts.

    Raises the errors of the steps: `Corrupt` if files and log disagree or the row counts do not reconcile.
    """
    if not plan.key_columns:
        return _pack(engine, plan, clock, on_step)
    started = clock.monotonic_seconds()
    groups = group_for_tasks(plan.deltas, hash_tasks(plan))
    on_step("dedupe", plan.hash_bucket_count)
    with engine.exchange(plan.spare_scratch_bytes) as exchange:
        hashed = exchange.map(groups, partial(hash_rows, HashStep.of(plan)))
        by_bucket = hashed.shuffle(plan.hash_bucket_count)
        step = DedupeStep.of(plan)
        dedupe, buckets = partial(dedupe_partition, step), indexed_buckets(plan)
        with by_bucket.keep("hash bucket and dedupe", buckets, dedupe, _bytes_of_survivors(plan)) as survivors:
            deduped = clock.monotonic_seconds()
            layout = lay_out(plan, step.sources.parts, survivors.notes)
            writers = Writers.of(plan, layout)
            on_step("materialize", writers.count)
            finish = partial(finish_partition, FinishStep.of(plan, step.sources, layout, writers))
            finishes = finish_tasks(plan, layout, survivors.notes)
            by_writer = survivors.records.map(finishes, finish).shuffle(writers.count)
            write = partial(write_partition, WriteStep.of(plan))
            written = by_writer.collect("materialize", writer_tasks(plan, layout, writers), write)
            materialized = clock.monotonic_seconds()
    counts = survivors.notes
    # Hash bucket and dedupe are one pass: the time of hash bucket is that of its tasks, divided by the cores.
    hash_seconds = min(sum(count.hash_seconds for count in counts) / plan.tasks, deduped - started)
    steps = {
        "hash_bucket": StepFigures(
            seconds=hash_seconds,
            tasks=len(groups),
            peak_memory_bytes=max((count.hash_peak_memory_bytes for count in counts), default=0),
            cores=plan.tasks,
        ),
        "dedupe": StepFigures(
            seconds=deduped - started - hash_seconds,
            tasks=plan.hash_bucket_count,
            peak_memory_bytes=max((count.peak_memory_bytes for count in counts), default=0),
            cores=plan.tasks,
        ),
        "materialize": StepFigures(
            seconds=materialized - deduped,
            tasks=writers.count,
            peak_memory_bytes=max((each.peak_memory_bytes for each in written), default=0),
            cores=plan.tasks,
        ),
    }
    return _result(plan, layout, counts, written, steps)


def _pack(engine: Engine, plan: RoundPlan, clock: Clock, on_step: Callable[[str, int], None]) -> RoundResult:
    """A round of a table without a key: there is only the last step."""
    started = clock.monotonic_seconds()
    counts = [count_all(plan)]
    layout = lay_out(plan, Parts.of_round(plan), counts)
    writers = Writers.of(plan, layout)
    on_step("materialize", writers.count)
    tasks = writer_tasks(plan, layout, writers)
    with engine.exchange(plan.spare_scratch_bytes) as exchange:
        by_writer = exchange.map(rows_of_tasks(plan, layout, writers), all_rows).shuffle(writers.count)
        written = by_writer.collect("materialize", tasks, partial(write_partition, WriteStep.of(plan)))
    figures = StepFigures(
        seconds=clock.monotonic_seconds() - started,
        tasks=writers.count,
        peak_memory_bytes=max((each.peak_memory_bytes for each in written), default=0),
        cores=plan.tasks,
    )
    return _result(plan, layout, counts, written, {"materialize": figures})


def hash_tasks(plan: RoundPlan) -> int:
    """The number of hash tasks: some per core, and more if a task would hold too much or take too long."""
    rows = sum(file.rows for file in plan.deltas)
    by_rows = -(-rows // rows_per_hash_task(plan.task_memory_bytes, encoded_width(plan.sort_columns)))
    by_bytes = -(-sum(file.size_bytes for file in plan.deltas) // BYTES_PER_TASK)
    return max(plan.tasks, min(plan.tasks * HASH_TASKS_PER_CORE, rows // ROWS_PER_HASH_TASK), by_rows, by_bytes)


def _bytes_of_survivors(plan: RoundPlan) -> int:
    """The most bytes that dedupe may leave: those of every key of the delta and of the absorbed runs."""
    absorbed = sum(file.rows for file in plan.index_files if file.run in plan.absorbed_runs)
    keys = absorbed + sum(file.rows for file in plan.deltas)
    return keys * (KEPT_BYTES_PER_KEY + encoded_width(plan.sort_columns))


def _result(
    plan: RoundPlan,
    layout: MaterializeLayout,
    counts: Sequence[BucketCounts],
    written: Sequence[WrittenFiles],
    steps: dict[str, StepFigures],
) -> RoundResult:
    """Combines the tasks' results and reconciles the row counts: a round whose counts differ is never committed."""
    vectors = tuple(vector for each in written for vector in each.deletion_vectors)
    added = sorted((file for each in written for file in each.files), key=lambda file: file.file_number)
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
    _reconcile(row_counts, counts)
    kept = [file for file in plan.index_files if file.run not in plan.absorbed_runs]
    carried = set(layout.carried)
    removed = tuple(file.file_number for file in plan.compacted if file.ordinal not in carried)
    index_written = [file for each in written for file in each.index_files]
    # A file of a kept run with new pointers replaces the one without them.
    index_files = {(file.hash_bucket, file.run, file.part): file for file in (*kept, *index_written)}
    in_order = tuple(index_files[each] for each in sorted(index_files))
    return RoundResult(tuple(added), removed, vectors, in_order, row_counts, steps)


def _reconcile(rows: RowCounts, counts: Sequence[BucketCounts]) -> None:
    rows_in = sum(count.rows_in for count in counts)
    if rows.rows_in != rows_in:
        raise Corrupt(f"the round's files hold {rows.rows_in} rows, but {rows_in} keys and rows were deduplicated")
    accounted = rows.rows_out + rows.rows_deduplicated + rows.rows_deleted
    if rows.rows_in != accounted:
        raise Corrupt(
            f"the row counts do not reconcile: {rows.rows_in} rows in, but {rows.rows_out} out "
            f"+ {rows.rows_deduplicated} deduplicated + {rows.rows_deleted} deleted = {accounted}"
        )
    surviving = sum(count.rows.sum() for count in counts)
    if surviving != rows.rows_out:
        raise Corrupt(f"{surviving} rows survive by the index, but the compacted files hold {rows.rows_out}")
    if rows.tombstones < 0:
        raise Corrupt(f"the index would remember {rows.tombstones} tombstones")


def rehash(engine: Engine, plan: RehashPlan) -> tuple[IndexFile, ...]:
    """Moves a primary key index to another hash bucket count: its runs are merged into one, without entries that newer
    runs have voided. Returns the new index version's files, in bucket order.

    The files are not visible before the commit, which replaces the index version in one entry. The old version's files
    stay until garbage collection finds that no readable entry names them.
    """
    step, new_buckets = RehashStep.of(plan), range(plan.hash_bucket_count)
    with engine.exchange() as exchange:
        by_bucket = exchange.map(old_buckets(plan), partial(split_bucket, step)).shuffle(len(new_buckets))
        written = by_bucket.collect("rehash", new_buckets, partial(join_bucket, step))
    for bucket in written:
        bucket.sending.wait()
    files = sorted(
        (file for bucket in written for file in bucket.files), key=lambda file: (file.hash_bucket, file.part)
    )
    rows = sum(file.rows for file in files)
    if rows != plan.keys:
        raise Corrupt(f"the stream has {plan.keys} live rows and tombstones, but the rehashed index has {rows} rows")
    return tuple(files)
