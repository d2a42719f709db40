"""The second part of dedupe, once the row counts of all buckets are known (the paper): pointers into the files to be
written.

Moving rows get new pointers: arriving rows, and rows of compacted files that are rewritten. The new run holds some of
the latter, older runs the others. If few of an older run's rows move, they are written to the new run; if many do, the
older run gets new pointers and keeps its digests.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from compactor.index.files import IndexTarget, Prefetch, open_bucket, write_bucket, write_pointers
from compactor.index.layout import TOMBSTONE_FILE_NUMBER, VOID_FILE_NUMBER, IndexRows, IndexSegment
from compactor.kernels.digest_sort import digest_order
from compactor.kernels.live_rows import live_pointers
from compactor.kernels.pointers import compacted_pointers, ranks_within_files
from compactor.kernels.sort_values import SortColumn
from compactor.kernels.survivors import ERASED, LIVE
from compactor.model.files import IndexFile
from compactor.model.machine import peak_memory_bytes
from compactor.planning.round_plan import RoundPlan
from compactor.planning.task_memory import KEPT_INDEX, SENT_INDEX
from compactor.steps.dedupe import indexed_buckets
from compactor.steps.new_run import DedupedBucket, NewRun, narrowest
from compactor.steps.parts import Parts
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
the moving rows are merged into the new run: 20 bytes more and the sort values for each.
"""


@dataclass(frozen=True)
class RowsOfFiles:
    """Rows of source files, in the order in which they are written.

    ordinals, parts, row_counts  the source file, the part and the rows of each part, in order
    row_indices                  int64 (rows,), part after part
    """

    ordinals: npt.NDArray[np.int32]
    parts: npt.NDArray[np.int32]
    row_counts: Int64s
    row_indices: Int64s

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

    rows               to fetch, by materialize task
    died               rows of compacted files that get a deletion vector, by ordinal; ascending
    index_files        which the bucket wrote, or for which it wrote new pointers: the first writer passes them on,
                       once they have arrived
    peak_memory_bytes  of the task that finished the bucket
    """

    hash_bucket: int
    rows: Mapping[int, RowsOfFiles]
    died: Mapping[int, Int64s]
    index_files: tuple[IndexFile, ...]
    peak_memory_bytes: int
    sending: Sending | None = None


@dataclass(frozen=True)
class FinishStep:
    """The arguments that all tasks which finish a bucket share.

    is_rewritten        bool (compacted,): by ordinal
    first_file_numbers  int64 (tasks,): of each materialize task
    marked              int64: ordinals of compacted files that get a deletion vector, ascending
    """

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
    def of(cls, plan: RoundPlan, layout: MaterializeLayout, writers: Writers) -> FinishStep:
        is_rewritten = np.zeros(len(plan.sources), np.bool_)
        is_rewritten[layout.rewritten] = True
        return cls(
            sources=Sources.of(plan),
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

    ranks  by part with rows to write: of the bucket's first row in its piece, from 1
    """

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

    positions  int64 (rows,): in the index file, ascending
    ordinals   int32 (rows,): the compacted file that each is in
    """

    segment: IndexSegment
    positions: Int64s
    ordinals: Int32s

    @property
    def are_many(self) -> bool:
        return len(self.positions) >= REPOINTED_SHARE_MIN * self.segment.file.rows


@dataclass(frozen=True)
class _MovingRows:
    """Rows that will be written.

    parts        of the source file that each is in
    row_indices  in that file
    ranks        rank of a delta row among this bucket's survivors in its file; undefined for others
    """

    parts: Int32s
    row_indices: Int64s
    ranks: Int32s


def finish_bucket(
    step: FinishStep, task: FinishTask, bucket: DedupedBucket, task_attempt: str
) -> Iterator[tuple[int, BucketForWriter]]:
    """Writes the bucket's new run, and new pointers for older ones.

    Yields (writer, its input) for every writer that has work, and last for the first one, which passes on the index
    files: they are on their way to a store meanwhile.
    """
    leaving = list(_leaving_rows(step, task, bucket))
    repointed = [each for each in leaving if each.are_many]
    run = _with_rows(step, bucket.run, [each for each in leaving if not each.are_many])
    parts = step.sources.parts
    here = step.pieces.places(task.hash_bucket, task.ranks, step.first_file_numbers)
    parts_of_run = parts.of_rows(run.ordinals, run.row_indices)
    moves = run.is_row & here.are_written[parts_of_run]
    moving = _ranked(step, _moving_rows(step, run, parts_of_run, moves, repointed))
    pointers = compacted_pointers(
        moving.parts,
        moving.ranks,
        here.output_offsets,
        here.first_file_numbers,
        step.rows_per_compacted_file,
    )
    sending = Sending(step.index_bytes_sent)
    where = _IndexOutput(task.hash_bucket, task_attempt, sending)
    written = _write_index(step, where, run, moves, pointers, repointed)
    rows: dict[int, dict[int, RowsOfFiles]] = defaultdict(dict)
    for number, of_task in _rows_to_fetch(here, parts, moving):
        rows[int(step.writers.of_tasks[number])][number] = of_task
    died: dict[int, dict[int, Int64s]] = defaultdict(dict)
    for number, ordinal, of_file in _dead_rows_to_mark(step, bucket):
        died[int(step.writers.of_marked[number])][ordinal] = of_file
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
    run: NewRun,
    moves: npt.NDArray[np.bool_],
    pointers: tuple[Int32s, Int64s],
    repointed: Sequence[_LeavingRows],
) -> tuple[IndexFile, ...]:
    """`pointers` are those of the run's moving rows, then of the rows that leave each file of `repointed`."""
    file_numbers, row_indices = pointers
    start = int(moves.sum())
    rows = _index_rows(step, run, moves, file_numbers[:start], row_indices[:start])
    location = step.sources.location
    attempt, sending = where.task_attempt, where.sending
    files = list(
        write_bucket(location, step.index, where.hash_bucket, rows, step.sort_columns, attempt, sending=sending)
    )
    for each in repointed:
        end = start + len(each.positions)
        files.append(_repoint(step, where, each, file_numbers[start:end], row_indices[start:end]))
        start = end
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


def _with_rows(step: FinishStep, run: NewRun, leaving: Sequence[_LeavingRows]) -> NewRun:
    """The new run merged with rows of older ones, in digest order."""
    if not leaving:
        return run
    taken = IndexRows.concatenate([each.segment.rows(step.sort_columns, each.positions) for each in leaving])
    digests = np.concatenate([run.digests, taken.digests])
    order = digest_order(digests)
    return NewRun(
        digests=digests.take(order, axis=0),
        outcomes=np.concatenate([run.outcomes, np.full(len(taken), LIVE, np.uint8)]).take(order),
        ordinals=np.concatenate([run.ordinals, *(each.ordinals for each in leaving)]).take(order),
        row_indices=np.concatenate([run.row_indices, taken.row_indices]).take(order),
        ranks=np.concatenate([run.ranks, np.zeros(len(taken), np.int32)]).take(order),
        sort_values=np.concatenate([run.sort_values, taken.sort_values]).take(order, axis=0),
    )


def _moving_rows(
    step: FinishStep,
    run: NewRun,
    parts_of_run: Int32s,
    moves: npt.NDArray[np.bool_],
    repointed: Sequence[_LeavingRows],
) -> _MovingRows:
    """Those of the new run, then those of runs that get new pointers."""
    if not repointed and moves.all():
        return _MovingRows(parts_of_run, run.row_indices, run.ranks)
    rows_in = [each.segment.row_indices_at(each.positions) for each in repointed]
    parts_in = [step.sources.parts.of_rows(each.ordinals, rows) for each, rows in zip(repointed, rows_in, strict=True)]
    return _MovingRows(
        parts=np.concatenate([parts_of_run[moves], *parts_in]),
        row_indices=np.concatenate([run.row_indices[moves], *rows_in]),
        ranks=np.concatenate([run.ranks[moves], *(np.zeros(len(each.positions), np.int32) for each in repointed)]),
    )


def _ranked(step: FinishStep, moving: _MovingRows) -> _MovingRows:
    """Ranks within parts: of rows from compacted files by their position; those of delta rows are by file."""
    parts, compacted_files = step.sources.parts, step.sources.compacted_count
    is_compacted = moving.parts < parts.starts[compacted_files]
    compacted = np.flatnonzero(is_compacted)
    if len(compacted):
        numbers, row_indices = moving.parts[compacted], moving.row_indices[compacted]
        if not parts.are_files:
            row_indices = row_indices - parts.first_rows[numbers]
        rows_of_parts = parts.row_counts(step.sources.rows)[: parts.starts[compacted_files]]
        moving.ranks[compacted] = ranks_within_files(numbers, row_indices, rows_of_parts)
    if not parts.are_files:
        arriving = np.flatnonzero(~is_compacted)
        numbers = moving.parts[arriving]
        moving.ranks[arriving] -= parts.rows_before(np.bincount(numbers, minlength=len(parts)))[numbers]
    return moving


def _index_rows(
    step: FinishStep, run: NewRun, moves: npt.NDArray[np.bool_], new_numbers: Int32s, new_indices: Int64s
) -> IndexRows:
    """The new run in the form of the index: moving rows have their new pointers."""
    if moves.all():
        return IndexRows(run.digests, new_numbers, new_indices, run.sort_values)
    file_numbers = np.where(run.outcomes == ERASED, VOID_FILE_NUMBER, TOMBSTONE_FILE_NUMBER)
    file_numbers, row_indices = file_numbers.astype(np.int32), run.row_indices.copy()
    stays = run.is_row & ~moves
    file_numbers[stays] = step.sources.file_numbers[run.ordinals[stays]]
    file_numbers[moves], row_indices[moves] = new_numbers, new_indices
    return IndexRows(run.digests, file_numbers, row_indices, run.sort_values)


def _repoint(
    step: FinishStep, where: _IndexOutput, leaving: _LeavingRows, new_numbers: Int32s, new_indices: Int64s
) -> IndexFile:
    """Pointers for an older run's file: new ones for rows that leave, existing ones for all others."""
    file_numbers, row_indices = leaving.segment.file_numbers.copy(), leaving.segment.row_indices.copy()
    file_numbers[leaving.positions], row_indices[leaving.positions] = new_numbers, new_indices
    file, location = leaving.segment.file, step.sources.location
    attempt, sending = where.task_attempt, where.sending
    return write_pointers(location, step.index, file, file_numbers, row_indices, attempt, sending=sending)


def _rows_to_fetch(here: PlacesInBucket, parts: Parts, moving: _MovingRows) -> Iterator[tuple[int, RowsOfFiles]]:
    """(materialize task, rows) for every task that reads rows of this bucket."""
    counts = np.bincount(moving.parts, minlength=len(here.tasks))
    starts = np.concatenate(([0], np.cumsum(counts)))
    ordered = np.empty(len(moving.parts), np.int64)
    ordered[starts[moving.parts] + moving.ranks] = moving.row_indices
    present, ordinals = np.flatnonzero(counts), parts.ordinals
    tasks = here.tasks[present]
    for task in np.unique(tasks):
        numbers = present[tasks == task]
        pieces = [ordered[starts[part] : starts[part + 1]] for part in numbers]
        yield (
            int(task),
            RowsOfFiles(ordinals[numbers], numbers.astype(np.int32), counts[numbers], np.concatenate(pieces)),
        )


def _dead_rows_to_mark(step: FinishStep, bucket: DedupedBucket) -> Iterator[tuple[int, int, Int64s]]:
    """(index into `step.marked`, ordinal, rows that died) for every compacted file that is kept with dead rows."""
    numbers = {ordinal: number for number, ordinal in enumerate(step.marked.tolist())}
    for ordinal, rows in bucket.died.by_file().items() if numbers else ():
        if ordinal in numbers:
            yield numbers[ordinal], ordinal, rows
