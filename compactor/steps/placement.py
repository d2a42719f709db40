"""Between dedupe and materialize: computes the output location of every surviving row from the row counts of all
buckets. Pure.

The compacted rows of a round are ordered by materialize task, source file, dedupe task (the paper); those of a large
file by its parts first (`parts.py`). So the position of a bucket's first row of a part, in the output of its
materialize task, is a sum of counts; and a row's compacted pointer is known before the row has been read: the
predictive index of the paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from compactor.planning.round_plan import CompactedSource, RoundPlan, SourceFile
from compactor.planning.sizing import BYTES_PER_TASK, rows_per_writer
from compactor.steps.parts import Parts

Int64s = npt.NDArray[np.int64]

WRITERS_PER_CORE = 2
"""There are more writers than cores, so that a core that ends early has more work, but few: a writer with several
materialize tasks fsyncs the file of one while it writes the next.
"""

ROWS_PER_SMALL_FILE = 250_000
"""To use all cores, a round may write files smaller than requested, but not smaller than this many rows."""


@dataclass(frozen=True)
class BucketCounts:
    """The counts of one dedupe task: rows per part of a source file that keeps rows, and totals of the bucket.

    parts             int32 (parts,): their numbers
    rows              int64 (parts,): surviving rows of that part in this bucket
    tombstones_added  minus removed ones; may be negative
    hash_seconds      this bucket's share of the time of the hash bucket tasks
    """

    hash_bucket: int
    parts: npt.NDArray[np.int32]
    rows: npt.NDArray[np.int64]
    rows_in: int
    rows_deduplicated: int
    rows_deleted: int
    tombstones_added: int
    hash_seconds: float
    hash_peak_memory_bytes: int
    peak_memory_bytes: int


@dataclass(frozen=True)
class PlacesInBucket:
    """The writing task and the position of one hash bucket's rows, by part.

    are_written         bool (parts,): False for files that are carried over by reference, or if no rows are here
    tasks               int64 (parts,): the materialize task; 0, without meaning, for parts that are not written
    output_offsets      int64 (parts,): in its task's output, of the part's first row in this bucket
    first_file_numbers  int64 (parts,): of the task
    """

    are_written: npt.NDArray[np.bool_]
    tasks: npt.NDArray[np.int64]
    output_offsets: npt.NDArray[np.int64]
    first_file_numbers: npt.NDArray[np.int64]


@dataclass(frozen=True)
class BucketCells:
    """The parts from which one hash bucket has rows to write.

    parts     int32 (cells,): ascending
    tasks     int32 (cells,): the materialize task that writes these rows
    output_offsets    int64 (cells,): in its task's output, of the first of them
    """

    parts: npt.NDArray[np.int32]
    tasks: npt.NDArray[np.int32]
    output_offsets: npt.NDArray[np.int64]

    def by_part(self, parts: int, first_file_numbers: npt.NDArray[np.int64]) -> PlacesInBucket:
        """`parts`: how many there are in all; `first_file_numbers`: of each materialize task."""
        are_written = np.zeros(parts, np.bool_)
        tasks, output_offsets, first_numbers = (np.zeros(parts, np.int64) for _ in range(3))
        are_written[self.parts], tasks[self.parts], output_offsets[self.parts] = True, self.tasks, self.output_offsets
        first_numbers[self.parts] = first_file_numbers[self.tasks]
        return PlacesInBucket(are_written, tasks, output_offsets, first_numbers)


@dataclass(frozen=True)
class Cells:
    """Pairs of part and hash bucket that share rows to write, bucket by bucket: most pairs share none.

    starts  int64 (buckets + 1,): bucket b's are [starts[b], starts[b + 1])
    """

    starts: npt.NDArray[np.int64]
    parts: npt.NDArray[np.int32]
    tasks: npt.NDArray[np.int32]
    output_offsets: npt.NDArray[np.int64]

    def of_bucket(self, hash_bucket: int) -> BucketCells:
        cells = slice(self.starts[hash_bucket], self.starts[hash_bucket + 1])
        return BucketCells(self.parts[cells], self.tasks[cells], self.output_offsets[cells])


@dataclass(frozen=True)
class MaterializeLayout:
    """Which task writes the rows of each source file, and where.

    parts               parts of source files in all
    sources_of_tasks    ordinals of the source files that each task writes rows of, ascending
    rewritten           int64: ordinals of source files that have rows to write
    first_file_numbers  int64 (tasks,): number of the first compacted file that a task writes
    rows_of_tasks       int64 (tasks,): rows that a task writes
    bytes_of_tasks      int64 (tasks,): bytes of these rows in their sources, on average
    carried             ordinals of compacted files that are carried over by reference
    marked              those of them with newly dead rows: they get a new deletion vector
    carried_rows        live rows in carried files
    """

    parts: int
    sources_of_tasks: tuple[Int64s, ...]
    rewritten: npt.NDArray[np.int64]
    cells: Cells
    first_file_numbers: npt.NDArray[np.int64]
    rows_of_tasks: npt.NDArray[np.int64]
    bytes_of_tasks: npt.NDArray[np.int64]
    carried: tuple[int, ...]
    marked: tuple[int, ...]
    carried_rows: int

    @property
    def task_count(self) -> int:
        return len(self.rows_of_tasks)


def lay_out(plan: RoundPlan, counts: Sequence[BucketCounts]) -> MaterializeLayout:
    """Assigns parts of source files to materialize tasks, in order and balanced by rows, and numbers the files they
    write."""
    all_parts = Parts.of(plan.sources, plan.task_memory_bytes)
    parts, buckets, rows = _part_by_part(counts)
    sources = all_parts.ordinals[parts].astype(np.int64)
    surviving = np.bincount(sources, weights=rows, minlength=len(plan.sources)).astype(np.int64)
    carried = tuple(
        file.ordinal for file in plan.compacted if _is_carried_over(plan, file, int(surviving[file.ordinal]))
    )
    is_carried = np.zeros(len(plan.sources), np.bool_)
    is_carried[list(carried)] = True
    written = np.flatnonzero(~is_carried[sources])
    parts, sources, buckets, rows = parts[written], sources[written], buckets[written], rows[written]
    tasks = _assign(parts, rows, plan)
    task_count = int(tasks[-1]) + 1 if len(tasks) else 0
    rows_of_tasks = np.bincount(tasks, weights=rows, minlength=task_count).astype(np.int64)
    bytes_per_row = np.array([file.size_bytes / max(file.rows, 1) for file in plan.sources])
    bytes_of_tasks = np.bincount(tasks, weights=rows * bytes_per_row[sources], minlength=task_count).astype(np.int64)
    # Tasks take consecutive cells, so the position is the running sum over them minus the task's start.
    output_offsets = np.cumsum(rows) - rows - (np.cumsum(rows_of_tasks) - rows_of_tasks)[tasks]
    files_of_tasks = -(-rows_of_tasks // plan.output.rows_per_compacted_file)
    by_bucket = np.argsort(buckets, kind="stable")
    return MaterializeLayout(
        parts=len(all_parts),
        sources_of_tasks=_sources_of_tasks(tasks, sources, task_count),
        rewritten=np.unique(sources),
        cells=Cells(
            np.searchsorted(buckets[by_bucket], np.arange(plan.hash_bucket_count + 1)),
            parts[by_bucket].astype(np.int32),
            tasks[by_bucket].astype(np.int32),
            output_offsets[by_bucket],
        ),
        first_file_numbers=plan.output.next_file_number + np.cumsum(files_of_tasks) - files_of_tasks,
        rows_of_tasks=rows_of_tasks,
        bytes_of_tasks=bytes_of_tasks,
        carried=carried,
        marked=tuple(ordinal for ordinal in carried if surviving[ordinal] < plan.sources[ordinal].live_rows),
        carried_rows=int(surviving[list(carried)].sum()),
    )


@dataclass(frozen=True)
class Writers:
    """The assignment of work to writers in the materialize step.

    of_tasks   int64 (tasks,): the writer of each materialize task
    of_marked  int64 (marked,): the writer of each file that gets a deletion vector; they are distributed over all
               writers
    """

    count: int
    of_tasks: npt.NDArray[np.int64]
    of_marked: npt.NDArray[np.int64]

    @classmethod
    def of(cls, plan: RoundPlan, layout: MaterializeLayout) -> Writers:
        marked, usual = len(layout.marked), plan.tasks * WRITERS_PER_CORE
        of_tasks = assign_writers(plan, layout, usual)
        # More writers would each cost the start of a task, which takes longer than writing a vector.
        count = max(min(layout.task_count + marked, usual), int(of_tasks.max(initial=0)) + 1)
        return cls(count, of_tasks, np.arange(marked) * count // max(marked, 1))


@dataclass(frozen=True)
class MaterializeTask:
    """The output and the sources of one materialize task.

    first_file_number  of the compacted files that it writes
    rows               in all
    sources            in order
    """

    number: int
    first_file_number: int
    rows: int
    sources: tuple[SourceFile, ...]


@dataclass(frozen=True)
class WriterTask:
    """The argument of one writer: its materialize tasks, in order, and the files to mark."""

    materialize: tuple[MaterializeTask, ...]
    marked: tuple[CompactedSource, ...]


def writer_tasks(plan: RoundPlan, layout: MaterializeLayout, writers: Writers) -> list[WriterTask]:
    """One for each writer."""
    sources = plan.sources
    tasks = [
        MaterializeTask(number, int(first), int(rows), tuple(sources[ordinal] for ordinal in ordinals))
        for number, (first, rows, ordinals) in enumerate(
            zip(layout.first_file_numbers, layout.rows_of_tasks, layout.sources_of_tasks, strict=True)
        )
    ]
    return [
        WriterTask(
            materialize=tuple(tasks[number] for number in np.flatnonzero(writers.of_tasks == writer)),
            marked=tuple(
                plan.compacted[layout.marked[number]] for number in np.flatnonzero(writers.of_marked == writer)
            ),
        )
        for writer in range(writers.count)
    ]


def assign_writers(plan: RoundPlan, layout: MaterializeLayout, writers_max: int) -> npt.NDArray[np.int64]:
    """The writer of each materialize task: each gets consecutive tasks, and at least one.

    There are at most `writers_max`, unless one would then hold more row indices than it may, or take too long: then
    every task has a writer of its own.
    """
    count = layout.task_count
    numbers = np.arange(count)
    together = numbers * min(writers_max, count) // max(count, 1)
    rows = np.bincount(together, weights=layout.rows_of_tasks, minlength=1)
    size = np.bincount(together, weights=layout.bytes_of_tasks, minlength=1)
    fits = rows.max() <= rows_per_writer(plan.task_memory_bytes) and size.max() <= BYTES_PER_TASK
    return together if fits else numbers


def _part_by_part(counts: Sequence[BucketCounts]) -> tuple[Int64s, Int64s, Int64s]:
    """Parts, buckets and row counts of all pairs that share rows, in the order of writing."""
    parts = np.concatenate([np.empty(0, np.int64), *(count.parts.astype(np.int64) for count in counts)])
    buckets = np.repeat([count.hash_bucket for count in counts], [len(count.parts) for count in counts])
    rows = np.concatenate([np.empty(0, np.int64), *(count.rows for count in counts)])
    order = np.lexsort((buckets, parts))
    order = order[rows[order] > 0]
    return parts[order], buckets.astype(np.int64)[order], rows[order]


def _sources_of_tasks(tasks: Int64s, sources: Int64s, task_count: int) -> tuple[Int64s, ...]:
    """The source files of each task. Cells ascend by task, then by source file."""
    begins = np.flatnonzero((np.diff(tasks, prepend=-1) != 0) | (np.diff(sources, prepend=-1) != 0))
    return tuple(np.split(sources[begins], np.searchsorted(tasks[begins], np.arange(1, task_count))))[:task_count]


def _is_carried_over(plan: RoundPlan, file: CompactedSource, live_rows: int) -> bool:
    """Whether a compacted file is kept as it is: it still has rows, and not too many of them are dead."""
    return (
        live_rows > 0 and not file.is_rewritten and file.rows - live_rows <= plan.output.max_dead_row_share * file.rows
    )


def _assign(parts: Int64s, rows: Int64s, plan: RoundPlan) -> Int64s:
    """The task of each cell: consecutive parts per task; one task per full file's rows, or per core if there are
    enough rows.

    If a task would exceed the rows of a writer, tasks are smaller, and a part with many rows is split between
    hash buckets; a bucket's rows of it always fit, because a dedupe task held all of the bucket.
    """
    total = int(rows.sum())
    if not total:
        return np.empty(0, np.int64)
    full_files = -(-total // plan.output.rows_per_compacted_file)
    wanted = max(full_files, min(plan.tasks, total // ROWS_PER_SMALL_FILE), 1)
    _, whole_parts = np.unique(parts, return_inverse=True)
    tasks = _split_evenly(whole_parts, rows, wanted)
    rows_max = rows_per_writer(plan.task_memory_bytes)
    if np.bincount(tasks, weights=rows).max() <= rows_max:
        return tasks
    half = max(rows_max // 2, 1)
    is_cut = np.bincount(whole_parts, weights=rows)[whole_parts] > half
    begins = np.diff(whole_parts, prepend=-1).astype(np.bool_) | is_cut
    return _split_evenly(np.cumsum(begins) - 1, rows, max(wanted, -(-total // half)))


def _split_evenly(items: Int64s, rows: Int64s, wanted: int) -> Int64s:
    """Assigns consecutive items, numbered from 0, to at most `wanted` tasks of about equal rows.

    An item belongs to the task whose share of the rows contains the item's middle.
    """
    rows_of_items = np.bincount(items, weights=rows)
    middles = np.cumsum(rows_of_items) - rows_of_items / 2
    shares = np.minimum((middles * wanted / rows_of_items.sum()).astype(np.int64), wanted - 1)
    _, tasks = np.unique(shares, return_inverse=True)
    return np.asarray(tasks[items], np.int64)
