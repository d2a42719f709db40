"""The end of dedupe, once the row counts of all buckets are known (seed 000): pointers into what will be written.

The rows that move get new pointers: those that arrived, and those of compacted files that are rewritten. Of the latter
the new run holds some. Older runs hold the others: where few of a run's rows move, the new run takes them over; where
many do, the run gets new pointers, and keeps its digests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from compactor.catalog.actions import IndexFile
from compactor.index.files import write_bucket, write_pointers
from compactor.index.layout import TOMBSTONE_FILE_NUMBER, VOID_FILE_NUMBER, IndexRows, IndexSegment
from compactor.kernels.digest_sort import digest_order
from compactor.kernels.live_rows import live_pointers
from compactor.kernels.pointers import compacted_pointers, ranks_within_files
from compactor.planning import RoundPlan
from compactor.steps.dedupe import (
    VOID_OVER_OLDER_RUNS,
    DedupedBucket,
    NewRun,
    live_rows,
    narrowest,
    older_segments,
    ordinals_of_compacted,
)
from compactor.steps.layout import CARRIED, MaterializeLayout

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]

REPOINTED_SHARE_MIN = 0.25
"""Of an index file's rows that move, from which on it gets new pointers, 12 bytes for each of its rows. With fewer, the
new run takes them over: 32 bytes and the sort values, and the work of merging them, for each row that moves."""


@dataclass(frozen=True)
class RowsOfFiles:
    """What one bucket tells one task of the materialize step: rows to fetch, or rows that died; ascending in each file.

    ordinals, row_counts  one per source file, in ordinal order
    row_indices           int64 (rows,), file after file
    """

    hash_bucket: int
    ordinals: npt.NDArray[np.int32]
    row_counts: Int64s
    row_indices: Int64s

    def __reduce__(self) -> tuple[object, ...]:
        # Half of what passes through Spark's shuffle.
        return _restore_rows, (self.hash_bucket, self.ordinals, self.row_counts, narrowest(self.row_indices))


def _restore_rows(
    hash_bucket: int, ordinals: Int32s, row_counts: Int64s, row_indices: npt.NDArray[np.signedinteger]
) -> RowsOfFiles:
    return RowsOfFiles(hash_bucket, ordinals, row_counts, row_indices.astype(np.int64))


@dataclass(frozen=True)
class _LeavingRows:
    """Live rows of an older run's file whose compacted files are rewritten.

    places    int64 (rows,): where in the index file, ascending
    ordinals  int32 (rows,): the compacted file that each is in
    """

    segment: IndexSegment
    places: Int64s
    ordinals: Int32s

    @property
    def are_many(self) -> bool:
        return len(self.places) >= REPOINTED_SHARE_MIN * self.segment.file.rows


@dataclass(frozen=True)
class _MovingRows:
    """Rows that will be written.

    ordinals, row_indices  where each is: the source file, the row in it
    ranks                  of a delta row: its rank among this bucket's survivors in its file; of others nothing yet
    """

    ordinals: Int32s
    row_indices: Int64s
    ranks: Int32s


def finish_bucket(
    plan: RoundPlan, layout: MaterializeLayout, bucket: DedupedBucket
) -> tuple[tuple[IndexFile, ...], Iterator[tuple[int, RowsOfFiles]]]:
    """Writes the bucket's new run, and new pointers for older ones.

    Returns the index files that are new or have new pointers, and (materialize task, rows to fetch) for every task.
    """
    leaving = list(_leaving_rows(plan, layout, bucket))
    repointed = [each for each in leaving if each.are_many]
    run = _with_rows(plan, bucket.run, [each for each in leaving if not each.are_many])
    # What is no row has a negative ordinal, which counts from the end.
    moves = np.append(layout.tasks, [CARRIED, CARRIED])[run.ordinals] != CARRIED
    moving = _ranked(plan, _moving_rows(run, moves, repointed))
    pointers = compacted_pointers(
        moving.ordinals,
        moving.ranks,
        np.ascontiguousarray(layout.places[:, bucket.hash_bucket]),
        layout.first_file_numbers_by_source,
        plan.output.rows_per_compacted_file,
    )
    written = _write_index(plan, bucket.hash_bucket, run, moves, pointers, repointed)
    return written, _rows_to_fetch(layout, bucket.hash_bucket, moving)


def _write_index(
    plan: RoundPlan,
    hash_bucket: int,
    run: NewRun,
    moves: npt.NDArray[np.bool_],
    pointers: tuple[Int32s, Int64s],
    repointed: Sequence[_LeavingRows],
) -> tuple[IndexFile, ...]:
    """`pointers` are of the run's rows that move, then of the rows that leave each file of `repointed`."""
    file_numbers, row_indices = pointers
    start = int(moves.sum())
    rows = _index_rows(plan, run, moves, file_numbers[:start], row_indices[:start])
    files = list(write_bucket(plan.location, plan.output.index, hash_bucket, rows, plan.sort_columns))
    for each in repointed:
        end = start + len(each.places)
        files.append(_repoint(plan, each, file_numbers[start:end], row_indices[start:end]))
        start = end
    return tuple(files)


def _leaving_rows(plan: RoundPlan, layout: MaterializeLayout, bucket: DedupedBucket) -> Iterator[_LeavingRows]:
    rewritten = layout.tasks[: len(plan.compacted)] != CARRIED
    if not rewritten.any():
        return
    ordinal_of = ordinals_of_compacted(plan)
    live = live_rows(plan, bucket.died.by_file())
    for segment in older_segments(plan, bucket.hash_bucket):
        places = live_pointers(live, segment.file_numbers, segment.row_indices, rewritten)
        if len(places):
            yield _LeavingRows(segment, places, ordinal_of[segment.file_numbers[places]].astype(np.int32))


def _with_rows(plan: RoundPlan, run: NewRun, leaving: Sequence[_LeavingRows]) -> NewRun:
    """The new run with rows of older ones; in digest order."""
    if not leaving:
        return run
    taken = IndexRows.concatenate([each.segment.rows(plan.sort_columns, each.places) for each in leaving])
    words = np.concatenate([run.words, taken.words])
    order = digest_order(words)
    return NewRun(
        words=words.take(order, axis=0),
        ordinals=np.concatenate([run.ordinals, *(each.ordinals for each in leaving)]).take(order),
        row_indices=np.concatenate([run.row_indices, taken.row_indices]).take(order),
        ranks=np.concatenate([run.ranks, np.zeros(len(taken), np.int32)]).take(order),
        sort_values=np.concatenate([run.sort_values, taken.sort_values]).take(order, axis=0),
    )


def _moving_rows(run: NewRun, moves: npt.NDArray[np.bool_], repointed: Sequence[_LeavingRows]) -> _MovingRows:
    """Those of the new run, then those of runs that get new pointers."""
    if not repointed and moves.all():
        return _MovingRows(run.ordinals, run.row_indices, run.ranks)
    rows_in = [each.segment.row_indices[each.places] for each in repointed]
    return _MovingRows(
        ordinals=np.concatenate([run.ordinals[moves], *(each.ordinals for each in repointed)]),
        row_indices=np.concatenate([run.row_indices[moves], *rows_in]),
        ranks=np.concatenate([run.ranks[moves], *(np.zeros(len(each.places), np.int32) for each in repointed)]),
    )


def _ranked(plan: RoundPlan, moving: _MovingRows) -> _MovingRows:
    """With the ranks of rows out of compacted files: by their place in the file."""
    compacted = np.flatnonzero(moving.ordinals < len(plan.compacted))
    if len(compacted):
        rows_of_files = np.array([file.rows for file in plan.compacted], np.int64)
        moving.ranks[compacted] = ranks_within_files(
            moving.ordinals[compacted], moving.row_indices[compacted], rows_of_files
        )
    return moving


def _index_rows(
    plan: RoundPlan, run: NewRun, moves: npt.NDArray[np.bool_], new_numbers: Int32s, new_indices: Int64s
) -> IndexRows:
    """The new run as the index has it: of rows that move, with their new pointers."""
    if moves.all():
        return IndexRows(run.words, new_numbers, new_indices, run.sort_values)
    file_numbers = np.where(run.ordinals == VOID_OVER_OLDER_RUNS, VOID_FILE_NUMBER, TOMBSTONE_FILE_NUMBER)
    file_numbers, row_indices = file_numbers.astype(np.int32), run.row_indices.copy()
    stays = (run.ordinals >= 0) & ~moves
    file_numbers[stays] = np.array([file.file_number for file in plan.compacted], np.int32)[run.ordinals[stays]]
    file_numbers[moves], row_indices[moves] = new_numbers, new_indices
    return IndexRows(run.words, file_numbers, row_indices, run.sort_values)


def _repoint(plan: RoundPlan, leaving: _LeavingRows, new_numbers: Int32s, new_indices: Int64s) -> IndexFile:
    """Pointers for an older run's file: of rows that leave, the new ones; of all others, those that it has."""
    file_numbers, row_indices = leaving.segment.file_numbers.copy(), leaving.segment.row_indices.copy()
    file_numbers[leaving.places], row_indices[leaving.places] = new_numbers, new_indices
    return write_pointers(plan.location, plan.output.index, leaving.segment.file, file_numbers, row_indices)


def _rows_to_fetch(
    layout: MaterializeLayout, hash_bucket: int, moving: _MovingRows
) -> Iterator[tuple[int, RowsOfFiles]]:
    counts = np.bincount(moving.ordinals, minlength=len(layout.tasks))
    starts = np.concatenate(([0], np.cumsum(counts)))
    ordered = np.empty(len(moving.ordinals), np.int64)
    ordered[starts[moving.ordinals] + moving.ranks] = moving.row_indices
    present = np.flatnonzero(counts)
    tasks = layout.tasks[present]
    for task in np.unique(tasks):
        files = present[tasks == task]
        pieces = [ordered[starts[file] : starts[file + 1]] for file in files]
        yield (
            int(task),
            RowsOfFiles(hash_bucket, files.astype(np.int32), counts[files], np.concatenate(pieces)),
        )


def dead_rows_to_mark(layout: MaterializeLayout, bucket: DedupedBucket) -> Iterator[tuple[int, RowsOfFiles]]:
    """(ordinal, rows that died) for every compacted file that is kept in spite of them."""
    died = bucket.died.by_file() if layout.marked else {}
    for ordinal, rows in died.items():
        if ordinal in layout.marked:
            files, counts = np.array([ordinal], np.int32), np.array([len(rows)], np.int64)
            yield ordinal, RowsOfFiles(bucket.hash_bucket, files, counts, rows)
