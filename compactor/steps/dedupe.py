"""The dedupe step (the paper): folds a hash bucket's row pointers into its index, and finds the rows that survive.

The index is a few runs. The newest are *absorbed*: read whole, and merged into the run that the round writes. The older
ones are only searched for the arriving keys, so the cost of a round follows its input, not the size of the table.

A dedupe task knows only its own bucket. Its output is survivors with pointers into *source* files; once the counts of
all buckets are known (`placement.py`), `index_update.py` turns them into pointers into compacted files.

Valid pointers: a pointer to a live row of a live compacted file is valid, and a key has at most one. When a row dies,
it is added to a deletion vector, or its file is rewritten and every other row of that file gets a new pointer. So a
stale pointer names a removed file or a dead row.
"""

from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Self

import numpy as np
import numpy.typing as npt

from compactor.index.files import IndexPart, Prefetch, open_bucket, overlay
from compactor.index.layout import IndexSegment
from compactor.kernels.digest_sort import DigestSort
from compactor.kernels.gather import DeltaRows, LocatedRows, gather_rows
from compactor.kernels.live_rows import count_live, live_pointers
from compactor.kernels.pointers import RanksWithinFiles, files_of_rows
from compactor.kernels.sha1 import Digests
from compactor.kernels.sort_values import SortColumn, encoded_width
from compactor.kernels.survivors import (
    ERASED,
    LIVE,
    TOMBSTONE,
    ArrivingRows,
    RememberedKeys,
    Survivors,
    WinningRows,
    find_survivors,
)
from compactor.model.files import IndexFile
from compactor.model.machine import peak_memory_bytes
from compactor.planning.round_plan import RoundPlan
from compactor.planning.task_memory import KEPT_INDEX
from compactor.steps.hash_bucket import ROWS_PER_UINT32, HashedRows
from compactor.steps.new_run import KEYS_PER_PIECE, BucketPiece, DeadPointers, Int32s, Int64s, NewRun, Outcomes
from compactor.steps.parts import Parts
from compactor.steps.placement import BucketCounts, NumbersByPart
from compactor.steps.sources import Sources
from compactor.task_progress import ProgressAddress


@dataclass(frozen=True)
class DedupeStep:
    """The arguments that all dedupe tasks of a round share."""

    sources: Sources
    sort_columns: tuple[SortColumn, ...]
    hash_bucket_count: int
    horizon: int
    tombstone_retention: int
    progress: ProgressAddress | None
    index_bytes_kept: int = KEPT_INDEX.bytes_max

    @classmethod
    def of(cls, plan: RoundPlan) -> Self:
        return cls(
            sources=Sources.of(plan),
            sort_columns=plan.sort_columns,
            hash_bucket_count=plan.hash_bucket_count,
            horizon=plan.horizon,
            tombstone_retention=plan.tombstone_retention,
            progress=plan.progress,
            index_bytes_kept=KEPT_INDEX.of(plan.task_memory_bytes),
        )


@dataclass(frozen=True)
class IndexedBucket:
    """The argument of one dedupe task: a hash bucket, and the files of its index.

    Attributes:
        absorbed: of the runs that the round merges into the run which it writes
        older: of the runs that it only searches"""

    hash_bucket: int
    absorbed: tuple[IndexFile, ...]
    older: tuple[IndexFile, ...]


def indexed_buckets(plan: RoundPlan) -> list[IndexedBucket]:
    """One for each dedupe task."""
    absorbed: dict[int, list[IndexFile]] = defaultdict(list)
    older: dict[int, list[IndexFile]] = defaultdict(list)
    for file in plan.index_files:
        (absorbed if file.run in plan.absorbed_runs else older)[file.hash_bucket].append(file)
    buckets = range(plan.hash_bucket_count)
    return [IndexedBucket(bucket, tuple(absorbed[bucket]), tuple(older[bucket])) for bucket in buckets]


@dataclass(frozen=True)
class _Arrived:
    """A bucket's pointer records in digest order.

    A row's number is its position in the order (stream position, file number, row index).

    Attributes:
        row_numbers: int32 (rows,)
        row_indices: unsigned (rows,): which row of its file
        ordinals: int32 (files,)
        file_bounds: int64 (files + 1,): file f's rows have numbers [file_bounds[f], file_bounds[f + 1])
        hash_*: measurements of the hash bucket tasks"""

    rows: ArrivingRows
    row_numbers: Int32s
    row_indices: npt.NDArray[np.unsignedinteger]
    ordinals: Int32s
    file_bounds: Int64s
    hash_seconds: float
    hash_peak_memory_bytes: int


@dataclass(frozen=True)
class _Remembered:
    """The index entries that the round needs: all of the absorbed runs, and those of arriving keys.

    Attributes:
        digests: sorted, the newest entry of each key
        row_indices, sort_values: as in `IndexRows`
        outcomes: uint8 (keys,): the outcome of each key: LIVE, TOMBSTONE or ERASED
        ordinals: int32 (keys,): the compacted file that holds the row, where the key is LIVE
        absorbed: bool (keys,): whether the entry is from an absorbed run rather than from an older one"""

    digests: Digests
    row_indices: Int64s
    sort_values: npt.NDArray[np.uint8]
    outcomes: Outcomes
    ordinals: Int32s
    absorbed: npt.NDArray[np.bool_]

    @property
    def are_live(self) -> npt.NDArray[np.bool_]:
        live: npt.NDArray[np.bool_] = self.outcomes == LIVE
        return live


def dedupe_bucket(
    step: DedupeStep, bucket: IndexedBucket, blocks: Iterable[HashedRows]
) -> Generator[BucketPiece, None, BucketCounts]:
    """One dedupe task: the survivors of one hash bucket. A block's memory is released before the next one is asked for.

    Yields the pieces of a `DedupedBucket` as it finds them, so the run is never whole in memory; returns counts.
    """
    arrived = _arrange(step, blocks)
    prefetch = Prefetch(arrived.rows.digests, file_numbers=True, everything=False, kept_bytes=step.index_bytes_kept)
    older = open_bucket(step.sources.location, bucket.older, step.hash_bucket_count, prefetch)
    remembered = _remember(step, bucket.absorbed, older, arrived.rows.digests)
    survivors = find_survivors(
        RememberedKeys(remembered.digests, remembered.sort_values, remembered.outcomes, remembered.row_indices),
        arrived.rows,
        step.horizon,
        step.tombstone_retention,
        keep_marks=bool(older),
    )
    died = _died(remembered, survivors)
    parts = step.sources.parts
    in_older = _live_rows_in(step, older)
    died_in_older = np.flatnonzero(died & ~remembered.absorbed)
    still_live = in_older - _count_by_part(
        parts, remembered.ordinals[died_in_older], remembered.row_indices[died_in_older]
    )
    dead = DeadPointers(remembered.ordinals[died], remembered.row_indices[died])
    del died, died_in_older
    for keys_in_all, run in _new_run(remembered, arrived, survivors):
        still_live += _count_by_part(parts, run.ordinals_of_rows, run.indices_of_rows)
        yield BucketPiece(keys_in_all, run, dead)
        dead = DeadPointers.none()
    return _count(bucket.hash_bucket, arrived, remembered, survivors, int(in_older.sum()), still_live)


def _remember(
    step: DedupeStep, absorbed: Sequence[IndexFile], older: Sequence[IndexSegment], digests: Digests
) -> _Remembered:
    segments = open_bucket(step.sources.location, absorbed, step.hash_bucket_count)
    parts = [IndexPart(segment) for segment in segments]
    absorbed_count = sum(len(part) for part in parts)
    parts += [IndexPart(segment, segment.find(digests)) for segment in older]
    rows, numbers = overlay(parts, step.sort_columns)
    are_absorbed = numbers < absorbed_count
    del numbers
    outcomes = rows.outcomes()
    ordinals = step.sources.live_files().ordinals_of(rows.file_numbers, outcomes == LIVE)
    return _Remembered(rows.digests, rows.row_indices, rows.sort_values, outcomes, ordinals, are_absorbed)


def _arrange(step: DedupeStep, blocks: Iterable[HashedRows]) -> _Arrived:
    """The blocks' rows in digest order; those of a key in the order (stream position, file number, row index)."""
    rows_of_deltas = step.sources.rows[step.sources.compacted_count :]
    index_type = np.uint32 if rows_of_deltas.max(initial=0) < ROWS_PER_UINT32 else np.uint64
    expected = int(rows_of_deltas.sum()) // step.hash_bucket_count
    sort = DigestSort(expected, index_type, encoded_width(step.sort_columns))
    files, firsts, seconds, peak = [], [], 0.0, 0
    for block in blocks:
        if int(block.row_counts.sum()) != len(block.digests):
            raise ValueError(f"{len(block.digests)} pointer records of files with {block.row_counts.sum()} rows")
        sort.add(block.digests, block.row_indices, block.sort_values)
        files.append((block.ordinals, block.row_counts))
        firsts.append((int(block.ordinals[0]), int(block.row_indices[0])))
        seconds, peak = seconds + block.seconds, max(peak, block.peak_memory_bytes)
    order = np.array(sorted(range(len(firsts)), key=firsts.__getitem__), np.int64)
    ordinals, row_counts = _files_of([files[number] for number in order.tolist()])
    in_order = sort.in_order(order)
    deltas = ordinals - step.sources.compacted_count
    file_bounds = np.concatenate(([0], np.cumsum(row_counts))).astype(np.int64)
    rows = ArrivingRows(
        digests=in_order.digests,
        files=files_of_rows(in_order.row_numbers, file_bounds),
        sort_values=in_order.sort_values,
        operations=step.sources.operations[deltas],
        positions=step.sources.positions[deltas],
    )
    return _Arrived(rows, in_order.row_numbers, in_order.row_indices, ordinals, file_bounds, seconds, peak)


def _files_of(blocks: Sequence[tuple[Int32s, Int64s]]) -> tuple[Int32s, Int64s]:
    """Files in order, and the rows of each; one that continues in the next block is the same file."""
    ordinals = np.concatenate([np.empty(0, np.int32), *(of_block for of_block, _ in blocks)])
    row_counts = np.concatenate([np.empty(0, np.int64), *(of_block for _, of_block in blocks)])
    begins = np.flatnonzero(np.diff(ordinals, prepend=-1))
    return ordinals[begins], np.add.reduceat(row_counts, begins) if len(begins) else row_counts


def _new_run(remembered: _Remembered, arrived: _Arrived, survivors: Survivors) -> Iterator[tuple[int, NewRun]]:
    """The keys that the new run will certainly hold, in pieces, each with the number of all keys; at least one piece.

    A surviving row that an older run holds stays in that run.
    """
    known = len(remembered.digests)
    winning_rows, outcomes = survivors.winning_rows, survivors.outcomes
    if not remembered.absorbed.all():
        left_to_older = np.append(~remembered.absorbed, False)[np.minimum(winning_rows, known)] & (outcomes != ERASED)
        winning_rows, outcomes = winning_rows[~left_to_older], outcomes[~left_to_older]
        del left_to_older
    compacted = LocatedRows(remembered.digests, remembered.ordinals, remembered.row_indices, remembered.sort_values)
    arriving = DeltaRows(
        arrived.rows.digests, arrived.rows.files, arrived.row_indices, arrived.rows.sort_values, arrived.ordinals
    )
    pieces = [slice(start, start + KEYS_PER_PIECE) for start in range(0, max(len(winning_rows), 1), KEYS_PER_PIECE)]
    ranks = RanksWithinFiles(arrived.row_numbers, arrived.rows.files, arrived.file_bounds)
    for keys in pieces:
        ranks.add(winning_rows[keys] - known, _are_arriving_rows(winning_rows[keys], outcomes[keys], known))
    for keys in pieces:
        run = gather_rows(winning_rows[keys], compacted, arriving)
        yield len(winning_rows), _located(run, winning_rows[keys], outcomes[keys], known, arrived, ranks)


def _are_arriving_rows(winning_rows: WinningRows, outcomes: Outcomes, known: int) -> npt.NDArray[np.bool_]:
    """The keys whose winning row is a live row of the delta: row `winning_row - known`."""
    arriving: npt.NDArray[np.bool_] = (outcomes == LIVE) & (winning_rows >= known)
    return arriving


def _located(
    run: LocatedRows,
    winning_rows: WinningRows,
    outcomes: Outcomes,
    known: int,
    arrived: _Arrived,
    ranks_within_files: RanksWithinFiles,
) -> NewRun:
    """Turns the rows of some keys into index entries of these keys."""
    ranks = ranks_within_files.of(winning_rows - known, _are_arriving_rows(winning_rows, outcomes, known))
    # Most rows are live; only the others are changed here.
    others = np.flatnonzero(outcomes != LIVE)
    tombstones = others[outcomes[others] == TOMBSTONE]
    arriving_deletes = tombstones[winning_rows[tombstones] >= known]
    run.row_indices[arriving_deletes] = arrived.rows.positions[
        arrived.rows.files[winning_rows[arriving_deletes] - known]
    ]
    run.row_indices[others[outcomes[others] == ERASED]] = 0
    return NewRun(run.digests, outcomes, run.ordinals, run.row_indices, ranks, run.sort_values)


def _died(remembered: _Remembered, survivors: Survivors) -> npt.NDArray[np.bool_]:
    """The remembered rows that were live and have died."""
    lives_on = np.zeros(len(remembered.digests), np.bool_)
    are_remembered = (survivors.winning_rows < len(remembered.digests)) & (survivors.outcomes == LIVE)
    lives_on[survivors.winning_rows[are_remembered]] = True
    return remembered.are_live & ~lives_on


def _live_rows_in(step: DedupeStep, segments: Sequence[IndexSegment]) -> Int64s:
    """The number of live rows of each part that these index segments point at, before the round."""
    parts = step.sources.parts
    counts, counts_of_parts = np.zeros(len(step.sources), np.int64), np.zeros(len(parts), np.int64)
    live = step.sources.live_rows({})
    have_parts = np.diff(parts.starts) > 1
    of_compacted = have_parts[: step.sources.compacted_count]
    for segment in segments:
        numbers = segment.file_numbers
        row_indices = segment.row_indices_where(partial(live.may_be_dead, numbers))
        count_live(live, numbers, row_indices, counts)
        if of_compacted.any():
            # A pointer's row index tells which part it leads to: of a remote index it is read for these files only.
            found = live_pointers(live, numbers, row_indices, of_compacted)
            counts_of_parts += _count_by_part(parts, live.files.ordinals[numbers[found]], segment.row_indices_at(found))
    if parts.are_files:
        return counts
    counts_of_parts[parts.starts[:-1][~have_parts]] = counts[~have_parts]
    return counts_of_parts


def _count_by_part(parts: Parts, ordinals: Int32s, row_indices: Int64s) -> Int64s:
    """How many of these rows each part has."""
    return np.bincount(parts.of_rows(ordinals, row_indices), minlength=len(parts))


def _count(
    hash_bucket: int,
    arrived: _Arrived,
    remembered: _Remembered,
    survivors: Survivors,
    rows_in_older: int,
    live_rows_of_parts: Int64s,
) -> BucketCounts:
    absorbed_live = int((remembered.are_live & remembered.absorbed).sum())
    tombstones_before = int((remembered.outcomes == TOMBSTONE).sum())
    return BucketCounts(
        hash_bucket=hash_bucket,
        rows=NumbersByPart.of(live_rows_of_parts),
        rows_in=absorbed_live + rows_in_older + len(arrived.rows.digests),
        rows_deduplicated=survivors.rows_deduplicated,
        rows_deleted=survivors.rows_deleted,
        tombstones_added=int((survivors.outcomes == TOMBSTONE).sum()) - tombstones_before,
        hash_seconds=arrived.hash_seconds,
        hash_peak_memory_bytes=arrived.hash_peak_memory_bytes,
        peak_memory_bytes=peak_memory_bytes(),
    )
