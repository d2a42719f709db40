"""The second part of dedupe, once all buckets' row counts are known (the paper): pointers into files to be written.

Moving rows get new pointers: arriving rows, and rows of compacted files that are rewritten. The new run holds some of
the latter, older runs the others. If few of an older run's rows move, they are written to the new run; if many do, the
older run gets new pointers and keeps its digests.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Self

import numpy as np
import numpy.typing as npt

from compactor.index.files import IndexTarget, Prefetch, open_bucket, write_bucket, write_pointers
from compactor.index.layout import TOMBSTONE_FILE_NUMBER, VOID_FILE_NUMBER, IndexRows, IndexSegment
from compactor.kernels.gather import look_up
from compactor.kernels.live_rows import live_pointers
from compactor.kernels.pointers import count_rows, point_at_compacted, put_in_order, rank_within_parts
from compactor.kernels.sort_values import SortColumn
from compactor.kernels.survivors import ERASED, LIVE, TOMBSTONE
from compactor.model.files import IndexFile
from compactor.model.machine import peak_memory_bytes
from compactor.planning.round_plan import RoundPlan
from compactor.planning.task_memory import KEPT_INDEX, SENT_INDEX
from compactor.steps.dedupe import indexed_buckets
from compactor.steps.new_run import DedupedBucket, NewRun, merge_runs, narrowest
from compactor.steps.placement import (
    BucketCounts,
    MaterializeLayout,
    NumbersByPart,
    Pieces,
    PlacesInBucket,
    Writers,
)
from compactor.steps.sources import Sources
from compactor.storage.sending import Sending
from compactor.task_progress import ProgressAddress

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]

REPOINTED_SHARE_MIN = 0.25
"""An index file gets new pointers, at most 12 bytes for each of its rows, if this share of its rows moves. Below it,
the moving rows are merged into the new run: 20 bytes more and the sort values for each."""


@dataclass(frozen=True)
class RowsOfFiles:
    """Rows of source files, in the order in which they are written.

    Attributes:
        ordinals, parts, row_counts: the source file, the part and the rows of each part, in order
        row_indices: signed (rows,), part after part"""

    ordinals: npt.NDArray[np.int32]
    parts: npt.NDArray[np.int32]
    row_counts: Int64s
    row_indices: npt.NDArray[np.signedinteger]

    def __reduce__(self) -> tuple[object, ...]:
        # Half of the bytes of Spark's shuffle.
        return _restore_rows, (self.ordinals, self.parts, self.row_counts, narrowest(self.row_indices))


def _restore_rows(
    ordinals: Int32s, parts: Int32s, row_counts: Int64s, row_indices: npt.NDArray[np.signedinteger]
) -> RowsOfFiles:
    return RowsOfFiles(ordinals, parts, row_counts, row_indices.astype(np.int64))


@dataclass(frozen=True)
class BucketForWriter:
    """The output of one hash bucket for one writer.

    Attributes:
        rows: to fetch, by materialize task
        died: rows of compacted files that get a deletion vector, by ordinal; ascending
        index_files: which the bucket wrote, or for which it wrote new pointers: the first writer passes them on, once
            they have arrived
        peak_memory_bytes: of the task that finished the bucket"""

    hash_bucket: int
    rows: Mapping[int, RowsOfFiles]
    died: Mapping[int, Int64s]
    index_files: tuple[IndexFile, ...]
    peak_memory_bytes: int
    sending: Sending | None = None


@dataclass(frozen=True)
class FinishStep:
    """The arguments that all tasks which finish a bucket share.

    Attributes:
        is_rewritten: bool (compacted,): by ordinal
        first_file_numbers: int64 (tasks,): of each materialize task
        marked: int64: ordinals of compacted files that get a deletion vector, ascending"""

    sources: Sources
    sort_columns: tuple[SortColumn, ...]
    hash_bucket_count: int
    is_rewritten: npt.NDArray[np.bool_]
    pieces: Pieces
    first_file_numbers: Int64s
    marked: Int64s
    writers: Writers
    rows_per_compacted_file: int
    index: IndexTarget
    progress: ProgressAddress | None
    index_bytes_sent: int
    index_bytes_kept: int

    @classmethod
    def of(cls, plan: RoundPlan, sources: Sources, layout: MaterializeLayout, writers: Writers) -> Self:
        is_rewritten = np.zeros(len(plan.sources), np.bool_)
        is_rewritten[layout.rewritten] = True
        return cls(
            sources=sources,
            sort_columns=plan.sort_columns,
            hash_bucket_count=plan.hash_bucket_count,
            is_rewritten=is_rewritten[: len(plan.compacted)],
            pieces=layout.pieces,
            first_file_numbers=layout.first_file_numbers,
            marked=np.array(layout.marked, np.int64),
            writers=writers,
            rows_per_compacted_file=plan.output.rows_per_compacted_file,
            index=plan.output.index,
            progress=plan.progress,
            index_bytes_sent=SENT_INDEX.of(plan.task_memory_bytes),
            index_bytes_kept=KEPT_INDEX.of(plan.task_memory_bytes),
        )


@dataclass(frozen=True)
class FinishTask:
    """The argument of one of them: a hash bucket, and its files of the remaining runs.

    Attributes:
        ranks: by part with rows to write: of the bucket's first row in its piece, from 1"""

    hash_bucket: int
    ranks: NumbersByPart
    older: tuple[IndexFile, ...]


def finish_tasks(plan: RoundPlan, layout: MaterializeLayout, counts: Sequence[BucketCounts]) -> list[FinishTask]:
    """One for each hash bucket. `counts`: of each, in order."""
    ranks = layout.pieces.ranks(counts)
    return [
        FinishTask(bucket.hash_bucket, of_bucket, bucket.older)
        for bucket, of_bucket in zip(indexed_buckets(plan), ranks, strict=True)
    ]


@dataclass(frozen=True)
class _LeavingRows:
    """Live rows of an older run's file whose compacted files are rewritten.

    Attributes:
        positions: int64 (rows,): in the index file, ascending
        ordinals: int32 (rows,): the compacted file that each is in"""

    segment: IndexSegment
    positions: Int64s
    ordinals: Int32s

    @property
    def are_many(self) -> bool:
        return len(self.positions) >= REPOINTED_SHARE_MIN * self.segment.file.rows

    def as_run(self, sort_columns: Sequence[SortColumn]) -> NewRun:
        """These rows as they are merged into the new run."""
        rows, count = self.segment.rows(sort_columns, self.positions), len(self.positions)
        outcomes, ranks = np.full(count, LIVE, np.uint8), np.zeros(count, np.int32)
        return NewRun(rows.digests, outcomes, self.ordinals, rows.row_indices, ranks, rows.sort_values)


@dataclass(frozen=True)
class _Pointers:
    """Pointers of the new run, or those that leave an older run's file: first old ones, then new ones in their place.

    Attributes:
        parts: int32 (rows,): of the source file that each is in; -1: its row does not move
        row_indices: int64 (rows,): in that file; once it has moved, in the new one
        ranks: int32 (rows,): rank among this bucket's rows in the part. Of delta rows they are known from the start
        file_numbers: int32 (rows,): of rows that do not move; once all have moved, of all. It may be `parts`"""

    parts: Int32s
    row_indices: Int64s
    ranks: Int32s
    file_numbers: Int32s


def finish_bucket(
    step: FinishStep, task: FinishTask, bucket: DedupedBucket, task_attempt: str
) -> Iterator[tuple[int, BucketForWriter]]:
    """Writes the bucket's new run, and new pointers for older ones.

    Yields (writer, its input) for every writer that has work, and last for the first one, which passes on the index
    files: they are on their way to a store meanwhile.

    The order of the steps keeps memory low (`planning.sizing.DEDUPE_BYTES_PER_ROW`): what is not needed any more is
    overwritten or released before the index files take shape.
    """
    leaving = list(_leaving_rows(step, task, bucket))
    died: dict[int, dict[int, Int64s]] = defaultdict(dict)
    for number, ordinal, of_file in _dead_rows_to_mark(step, bucket):
        died[int(step.writers.of_marked[number])][ordinal] = of_file
    runs = [bucket.run, *(each.as_run(step.sort_columns) for each in leaving if not each.are_many)]
    del bucket
    run = merge_runs(runs)
    repointed = [each for each in leaving if each.are_many]
    here = step.pieces.places(task.hash_bucket, task.ranks, step.first_file_numbers)
    pointers = [_of_run(step, run, here), *(_of_leaving(step, each) for each in repointed)]
    digests, sort_values = run.digests, run.sort_values
    del run
    counts = _rank(step, pointers)
    rows: dict[int, dict[int, RowsOfFiles]] = defaultdict(dict)
    for number, of_task in _rows_to_fetch(step, here, pointers, counts):
        rows[int(step.writers.of_tasks[number])][number] = of_task
    for each in pointers:
        point_at_compacted(
            each.parts,
            each.ranks,
            here.output_offsets,
            here.first_file_numbers,
            step.rows_per_compacted_file,
            each.file_numbers,
            each.row_indices,
        )
    of_run, *of_repointed = [(each.file_numbers, each.row_indices) for each in pointers]
    del each, pointers
    sending = Sending(step.index_bytes_sent)
    where = _IndexOutput(task.hash_bucket, task_attempt, sending)
    written = _write_index(step, where, IndexRows(digests, *of_run, sort_values), repointed, of_repointed)
    peak = peak_memory_bytes()
    for writer in sorted({*rows, *died} - {0}):
        yield writer, BucketForWriter(task.hash_bucket, rows[writer], died[writer], (), peak)
    yield 0, BucketForWriter(task.hash_bucket, rows[0], died[0], written, peak, sending)


@dataclass(frozen=True)
class _IndexOutput:
    """The destination of one bucket's index files."""

    hash_bucket: int
    task_attempt: str
    sending: Sending


def _write_index(
    step: FinishStep,
    where: _IndexOutput,
    rows: IndexRows,
    repointed: Sequence[_LeavingRows],
    placed: Sequence[tuple[Int32s, Int64s]],
) -> tuple[IndexFile, ...]:
    """The new run, and new pointers of `repointed`: file numbers and row indices of the rows that leave each."""
    location = step.sources.location
    attempt, sending = where.task_attempt, where.sending
    files = list(
        write_bucket(location, step.index, where.hash_bucket, rows, step.sort_columns, attempt, sending=sending)
    )
    for each, (new_numbers, new_indices) in zip(repointed, placed, strict=True):
        files.append(_repoint(step, where, each, new_numbers, new_indices))
    return tuple(files)


def _leaving_rows(step: FinishStep, task: FinishTask, bucket: DedupedBucket) -> Iterator[_LeavingRows]:
    if not step.is_rewritten.any():
        return
    live = step.sources.live_rows(bucket.died.by_file())
    prefetch = Prefetch(file_numbers=True, everything=False, kept_bytes=step.index_bytes_kept)
    for segment in open_bucket(step.sources.location, task.older, step.hash_bucket_count, prefetch):
        numbers = segment.file_numbers
        may_be_dead = partial(live.may_be_dead, numbers, step.is_rewritten)
        positions = live_pointers(live, numbers, segment.row_indices_where(may_be_dead), step.is_rewritten)
        if len(positions):
            yield _LeavingRows(segment, positions, live.files.ordinals[numbers[positions]])


def _of_run(step: FinishStep, run: NewRun, here: PlacesInBucket) -> _Pointers:
    """The run's arrays are taken over: they will be overwritten."""
    parts = step.sources.parts.of_rows(run.ordinals, run.row_indices)
    moves = look_up(here.are_written, parts)
    moves &= run.is_row
    if moves.all():
        return _Pointers(parts, run.row_indices, run.ranks, parts)
    file_numbers = look_up(np.append(step.sources.file_numbers, _NO_FILE).astype(np.int32), run.ordinals)
    file_numbers[run.outcomes == TOMBSTONE] = TOMBSTONE_FILE_NUMBER
    file_numbers[run.outcomes == ERASED] = VOID_FILE_NUMBER
    stays = np.logical_not(moves, out=moves)
    if (stays & (file_numbers == _NO_FILE)).any():
        raise ValueError("a row of a delta file survives, and no task writes it")
    parts[stays] = _NO_PART
    return _Pointers(parts, run.row_indices, run.ranks, file_numbers)


_NO_PART = -1
_NO_FILE = -2
"""What rows of delta files have instead of a file number, until they have moved."""


def _of_leaving(step: FinishStep, leaving: _LeavingRows) -> _Pointers:
    row_indices = leaving.segment.row_indices_at(leaving.positions)
    parts = step.sources.parts.of_rows(leaving.ordinals, row_indices)
    return _Pointers(parts, row_indices, np.zeros(len(parts), np.int32), parts)


def _rank(step: FinishStep, pointers: Sequence[_Pointers]) -> Int64s:
    """Ranks within parts: of rows from compacted files by their position; those of delta rows are by file until now.
    Returns the number of rows to write, by part."""
    parts = step.sources.parts
    counts = np.zeros(len(parts), np.int64)
    for each in pointers:
        count_rows(each.parts, counts)
    compacted_parts = int(parts.starts[step.sources.compacted_count])
    rank_within_parts(
        [(each.parts, each.row_indices, each.ranks) for each in pointers],
        parts.first_rows,
        parts.row_counts(step.sources.rows)[:compacted_parts],
        counts,
    )
    if not parts.are_files:
        before = parts.rows_before(counts).astype(np.int32)
        before[:compacted_parts] = 0
        for each in pointers:
            np.subtract(each.ranks, before[each.parts], out=each.ranks)
    return counts


def _repoint(
    step: FinishStep, where: _IndexOutput, leaving: _LeavingRows, new_numbers: Int32s, new_indices: Int64s
) -> IndexFile:
    """Pointers for an older run's file: new ones for rows that leave, existing ones for all others."""
    file_numbers, row_indices = leaving.segment.file_numbers.copy(), leaving.segment.row_indices.copy()
    file_numbers[leaving.positions], row_indices[leaving.positions] = new_numbers, new_indices
    file, location = leaving.segment.file, step.sources.location
    attempt, sending = where.task_attempt, where.sending
    return write_pointers(location, step.index, file, file_numbers, row_indices, attempt, sending=sending)


def _rows_to_fetch(
    step: FinishStep, here: PlacesInBucket, pointers: Sequence[_Pointers], counts: Int64s
) -> Iterator[tuple[int, RowsOfFiles]]:
    """(materialize task, rows) for every task that reads rows of this bucket. `counts`: of those rows, by part."""
    starts = np.concatenate(([0], np.cumsum(counts)))
    fits = int(step.sources.rows.max(initial=0)) <= np.iinfo(np.int32).max
    ordered: npt.NDArray[np.signedinteger] = np.empty(int(starts[-1]), np.int32 if fits else np.int64)
    for each in pointers:
        put_in_order(each.parts, each.ranks, each.row_indices, starts, ordered)
    present, ordinals = np.flatnonzero(counts), step.sources.parts.ordinals
    tasks = here.tasks[present]
    for task in np.unique(tasks):
        numbers = present[tasks == task]
        pieces = [ordered[starts[part] : starts[part + 1]] for part in numbers]
        follow = len(pieces) == 1 or (np.diff(np.flatnonzero(tasks == task)) == 1).all()
        row_indices = ordered[starts[numbers[0]] : starts[numbers[-1] + 1]] if follow else np.concatenate(pieces)
        yield int(task), RowsOfFiles(ordinals[numbers], numbers.astype(np.int32), counts[numbers], row_indices)


def _dead_rows_to_mark(step: FinishStep, bucket: DedupedBucket) -> Iterator[tuple[int, int, Int64s]]:
    """(index into `step.marked`, ordinal, rows that died) for every compacted file that is kept with dead rows."""
    numbers = {ordinal: number for number, ordinal in enumerate(step.marked.tolist())}
    for ordinal, rows in bucket.died.by_file().items() if numbers else ():
        if ordinal in numbers:
            yield numbers[ordinal], ordinal, rows
