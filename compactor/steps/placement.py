"""Between dedupe and materialize: where every surviving row goes, from the row counts of all buckets. Pure.

The compacted rows of a round are ordered by materialize task, source file, dedupe task (the paper); those of a large
file by its parts first (`parts.py`). So the position of a bucket's first row of a part, in the output of its
materialize task, is a sum of counts; and a row's compacted pointer is known before the row has been read: the
predictive index of the paper.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from compactor.planning.round_plan import CompactedSource, RoundPlan, SourceFile
from compactor.planning.task_memory import BYTES_PER_TASK, ROWS_PER_SMALL_FILE, rows_per_writer
from compactor.steps.parts import Parts

Int64s = npt.NDArray[np.int64]

WRITERS_PER_CORE = 2
"""There are more writers than cores, so that a core that ends early has more work, but few: a writer with several
materialize tasks fsyncs the file of one while it writes the next."""


@dataclass(frozen=True)
class NumbersByPart:
    """A number above 0 for each of some parts, in few bytes: the driver holds two of these for each hash bucket.

    Attributes:
        count: parts in all
        parts: uint32 (numbers,): those that have a number, ascending; None: `numbers` has one for each part, or 0
        numbers: unsigned, of the narrowest type that holds them"""

    count: int
    parts: npt.NDArray[np.uint32] | None
    numbers: npt.NDArray[np.unsignedinteger]

    @classmethod
    def of(cls, numbers: Int64s) -> NumbersByPart:
        """`numbers`: of each part; 0: it has none."""
        kind = np.min_scalar_type(int(numbers.max(initial=0)))
        present = np.flatnonzero(numbers)
        if len(present) * (kind.itemsize + np.dtype(np.uint32).itemsize) >= len(numbers) * kind.itemsize:
            return cls(len(numbers), None, numbers.astype(kind))
        return cls(len(numbers), present.astype(np.uint32), numbers[present].astype(kind))

    def by_part(self) -> Int64s:
        """int64 (parts,): of each part; 0: it has none."""
        if self.parts is None:
            return self.numbers.astype(np.int64)
        numbers = np.zeros(self.count, np.int64)
        numbers[self.parts] = self.numbers
        return numbers

    def sum(self) -> int:
        return int(self.numbers.sum(dtype=np.int64))


@dataclass(frozen=True)
class BucketCounts:
    """The counts of one dedupe task: rows per part of a source file, and totals of the bucket.

    Attributes:
        rows: surviving rows of each part in this bucket
        tombstones_added: minus removed ones; may be negative
        hash_seconds: this bucket's share of the time of the hash bucket tasks"""

    hash_bucket: int
    rows: NumbersByPart
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

    Attributes:
        are_written: bool (parts,): False for files that are carried over by reference, or if no rows are here
        tasks: int64 (parts,): the materialize task; 0, without meaning, for parts that are not written
        output_offsets: int64 (parts,): in its task's output, of the part's first row in this bucket
        first_file_numbers: int64 (parts,): of the task"""

    are_written: npt.NDArray[np.bool_]
    tasks: npt.NDArray[np.int64]
    output_offsets: npt.NDArray[np.int64]
    first_file_numbers: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Pieces:
    """Rows that a materialize task writes one after the other: those of a part in consecutive hash buckets. Nearly
    always in all buckets; a part with too many rows for a task has several pieces.

    Attributes:
        parts: int64 (pieces,): ascending in each task
        first_buckets: int64 (pieces,): where the piece begins; it ends before the next one of its part
        rows: int64 (pieces,)
        tasks: int64 (pieces,): the materialize task, ascending"""

    parts: Int64s
    first_buckets: Int64s
    rows: Int64s
    tasks: Int64s

    @classmethod
    def one_after_the_other(cls, several: Sequence[Pieces]) -> Pieces:
        """All together: each one's tasks follow those of the ones before."""
        none = np.empty(0, np.int64)
        ends = np.cumsum([0, *(int(each.tasks.max(initial=-1)) + 1 for each in several)])
        return cls(
            parts=np.concatenate([none, *(each.parts for each in several)]),
            first_buckets=np.concatenate([none, *(each.first_buckets for each in several)]),
            rows=np.concatenate([none, *(each.rows for each in several)]),
            tasks=np.concatenate([none, *(each.tasks + end for each, end in zip(several, ends, strict=False))]),
        )

    @property
    def rows_of_tasks(self) -> Int64s:
        """int64 (tasks,): rows that a task writes."""
        return np.bincount(self.tasks, weights=self.rows).astype(np.int64)

    @property
    def output_offsets(self) -> Int64s:
        """int64 (pieces,): of each piece, in its task's output."""
        # Tasks take consecutive pieces, so the position is the running sum over them minus the task's start.
        rows_of_tasks = self.rows_of_tasks
        before_task: Int64s = np.cumsum(rows_of_tasks) - rows_of_tasks
        return np.asarray(np.cumsum(self.rows) - self.rows - before_task[self.tasks], np.int64)

    def ranks(self, counts: Sequence[BucketCounts]) -> Iterator[NumbersByPart]:
        """For each hash bucket, of each part that it writes rows of: the rank of its first row in its piece, from 1."""
        parts = counts[0].rows.count if counts else 0
        is_written = np.zeros(parts, np.bool_)
        is_written[self.parts] = True
        cut = np.flatnonzero(self.first_buckets)
        before = np.zeros(parts, np.int64)
        for bucket, of_bucket in enumerate(counts):
            before[self.parts[cut[self.first_buckets[cut] == bucket]]] = 0
            rows = of_bucket.rows.by_part()
            yield NumbersByPart.of((before + 1) * (is_written & (rows > 0)))
            before += rows

    def places(self, hash_bucket: int, ranks: NumbersByPart, first_file_numbers: Int64s) -> PlacesInBucket:
        """`ranks`: of this bucket; `first_file_numbers`: of each materialize task."""
        firsts = ranks.by_part()
        are_written = firsts > 0
        tasks, output_offsets, numbers = (np.zeros(len(firsts), np.int64) for _ in range(3))
        # Of a part's pieces that begin here or before, the last one is assigned last.
        begun = np.flatnonzero(self.first_buckets <= hash_bucket)
        tasks[self.parts[begun]] = self.tasks[begun]
        output_offsets[self.parts[begun]] = self.output_offsets[begun]
        output_offsets += firsts - 1
        tasks[~are_written] = output_offsets[~are_written] = 0
        numbers[are_written] = first_file_numbers[tasks[are_written]]
        return PlacesInBucket(are_written, tasks, output_offsets, numbers)


@dataclass(frozen=True)
class MaterializeLayout:
    """Which task writes the rows of each source file, and where.

    Attributes:
        sources_of_tasks: ordinals of the source files that each task writes rows of, ascending
        rewritten: int64: ordinals of source files that have rows to write
        first_file_numbers: int64 (tasks,): number of the first compacted file that a task writes
        rows_of_tasks: int64 (tasks,): rows that a task writes
        bytes_of_tasks: int64 (tasks,): bytes of these rows in their sources, on average
        carried: ordinals of compacted files that are carried over by reference
        marked: those of them with newly dead rows: they get a new deletion vector
        carried_rows: live rows in carried files"""

    sources_of_tasks: tuple[Int64s, ...]
    rewritten: npt.NDArray[np.int64]
    pieces: Pieces
    first_file_numbers: npt.NDArray[np.int64]
    rows_of_tasks: npt.NDArray[np.int64]
    bytes_of_tasks: npt.NDArray[np.int64]
    carried: tuple[int, ...]
    marked: tuple[int, ...]
    carried_rows: int

    @property
    def task_count(self) -> int:
        return len(self.rows_of_tasks)


def lay_out(plan: RoundPlan, parts: Parts, counts: Sequence[BucketCounts]) -> MaterializeLayout:
    """Assigns parts of files to materialize tasks, in order and balanced by rows, and numbers what they write.

    Args:
        parts: of the round
        counts: of each hash bucket, in order. Of files that are carried over, only sums are taken: the cost of the
            layout beyond them follows what is written"""
    surviving_of_parts = np.zeros(len(parts), np.int64)
    for count in counts:
        surviving_of_parts += count.rows.by_part()
    sources = parts.ordinals.astype(np.int64)
    surviving = np.bincount(sources, weights=surviving_of_parts, minlength=len(plan.sources)).astype(np.int64)
    carried = tuple(
        file.ordinal for file in plan.compacted if _is_carried_over(plan, file, int(surviving[file.ordinal]))
    )
    is_carried = np.zeros(len(plan.sources), np.bool_)
    is_carried[list(carried)] = True
    written = np.flatnonzero((surviving_of_parts > 0) & ~is_carried[sources])
    merges = _merges(plan)[sources[written]]
    pieces = Pieces.one_after_the_other(
        [
            _assign(plan, merge, parts_of_merge, surviving_of_parts[parts_of_merge], counts)
            for merge, parts_of_merge in ((merge, written[merges == merge]) for merge in np.unique(merges).tolist())
        ]
    )
    rows_of_tasks, sources_of_pieces = pieces.rows_of_tasks, sources[pieces.parts]
    bytes_per_row = np.array([file.size_bytes / max(file.rows, 1) for file in plan.sources])
    bytes_of_pieces = pieces.rows * bytes_per_row[sources_of_pieces]
    files_of_tasks = -(-rows_of_tasks // plan.output.rows_per_compacted_file)
    return MaterializeLayout(
        sources_of_tasks=_sources_of_tasks(pieces.tasks, sources_of_pieces, len(rows_of_tasks)),
        rewritten=np.unique(sources_of_pieces),
        pieces=pieces,
        first_file_numbers=plan.output.next_file_number + np.cumsum(files_of_tasks) - files_of_tasks,
        rows_of_tasks=rows_of_tasks,
        bytes_of_tasks=np.bincount(pieces.tasks, weights=bytes_of_pieces).astype(np.int64),
        carried=carried,
        marked=tuple(ordinal for ordinal in carried if surviving[ordinal] < plan.compacted[ordinal].live_rows),
        carried_rows=int(surviving[list(carried)].sum()),
    )


@dataclass(frozen=True)
class Writers:
    """The assignment of work to writers in the materialize step.

    Attributes:
        of_tasks: int64 (tasks,): the writer of each materialize task
        of_marked: int64 (marked,): the writer of each file that gets a deletion vector; they are distributed over all
            writers"""

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

    Attributes:
        first_file_number: of the compacted files that it writes
        rows: in all
        sources: in order"""

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


def _sources_of_tasks(tasks: Int64s, sources: Int64s, task_count: int) -> tuple[Int64s, ...]:
    """The source files of each task. Pieces ascend by task, then by source file."""
    begins = np.flatnonzero((np.diff(tasks, prepend=-1) != 0) | (np.diff(sources, prepend=-1) != 0))
    return tuple(np.split(sources[begins], np.searchsorted(tasks[begins], np.arange(1, task_count))))[:task_count]


def _is_carried_over(plan: RoundPlan, file: CompactedSource, live_rows: int) -> bool:
    """Whether a compacted file is kept as it is: it still has rows, and not too many of them are dead."""
    return (
        live_rows > 0
        and not file.is_rewritten
        and file.merge is None
        and file.rows - live_rows <= plan.output.max_dead_row_share * file.rows
    )


_NO_MERGE = np.iinfo(np.int64).max


def _merges(plan: RoundPlan) -> Int64s:
    """The merge of small files that each source file is part of; those of none come last."""
    merges = np.full(len(plan.sources), _NO_MERGE)
    for file in plan.compacted:
        if file.merge is not None:
            merges[file.ordinal] = file.merge
    return merges


def _assign(plan: RoundPlan, merge: int, parts: Int64s, rows: Int64s, counts: Sequence[BucketCounts]) -> Pieces:
    """Consecutive parts per task: of a merge of small files one task, of what is in none one per full file's rows, or
    per core if there are enough rows.

    If a task would exceed the rows of a writer, tasks are smaller, and a part with many rows is split between
    hash buckets; a bucket's rows of it always fit, because a dedupe task held all of the bucket.

    Args:
        parts, rows: those with rows to write, ascending, and how many"""
    total = int(rows.sum())
    whole = np.zeros(len(parts), np.int64)
    wanted = max(-(-total // plan.output.rows_per_compacted_file), 1)
    if merge == _NO_MERGE and plan.key_columns:  # without a key, files are as full as they may be
        wanted = max(wanted, min(plan.tasks, total // ROWS_PER_SMALL_FILE))
    tasks = _split_evenly(rows, wanted)
    rows_max = rows_per_writer(plan.task_memory_bytes)
    if np.bincount(tasks, weights=rows).max() <= rows_max:
        return Pieces(parts, whole, rows, tasks)
    half = max(rows_max // 2, 1)
    parts, first_buckets, rows = _cut(parts, rows, rows > half, counts)
    tasks = _split_evenly(rows, max(wanted, -(-total // half)))
    begins = np.flatnonzero((np.diff(parts, prepend=-1) != 0) | (np.diff(tasks, prepend=-1) != 0))
    return Pieces(parts[begins], first_buckets[begins], np.add.reduceat(rows, begins), tasks[begins])


def _cut(
    parts: Int64s, rows: Int64s, is_cut: npt.NDArray[np.bool_], counts: Sequence[BucketCounts]
) -> tuple[Int64s, Int64s, Int64s]:
    """Parts, first buckets and rows, in order: one of each part that stays whole, one for each bucket that has rows of
    a part that is cut."""
    by_bucket = np.stack([count.rows.by_part()[parts[is_cut]] for count in counts], axis=1)
    places, buckets = np.nonzero(by_bucket)
    in_parts = np.concatenate([parts[~is_cut], parts[is_cut][places]])
    first_buckets = np.concatenate([np.zeros(int((~is_cut).sum()), np.int64), buckets])
    in_rows = np.concatenate([rows[~is_cut], by_bucket[places, buckets]])
    order = np.lexsort((first_buckets, in_parts))
    return in_parts[order], first_buckets[order], in_rows[order]


def _split_evenly(rows: Int64s, wanted: int) -> Int64s:
    """Assigns consecutive items of these rows to at most `wanted` tasks of about equal rows.

    An item belongs to the task whose share of the rows contains the item's middle.
    """
    middles = np.cumsum(rows) - rows / 2
    shares = np.minimum((middles * wanted / rows.sum()).astype(np.int64), wanted - 1)
    _, tasks = np.unique(shares, return_inverse=True)
    return np.asarray(tasks, np.int64)
