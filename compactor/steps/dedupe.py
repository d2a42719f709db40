"""The dedupe step (seed 000): folds a hash bucket's row pointers into its index, and finds the rows that survive.

The index is a few runs. The newest are *absorbed*: read whole, and merged into the run that the round writes. The older
ones are only searched for the keys that arrive, so a round costs what it brings, not what the table holds.

A dedupe task knows only its own bucket. What it leaves are survivors with pointers into *source* files; once the counts
of all buckets are known (`layout.py`), `finish.py` turns them into pointers into compacted files.

Which pointers are true: a pointer to a live row of a live compacted file is, and no two of them are of one key. When a
row dies, either its deletion vector says so, or its file is rewritten, and every other row of that file gets a new
pointer. So a stale pointer names a file that is no more, or a dead row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from compactor.catalog.actions import DeletionVector
from compactor.deletion_vectors import read_dead_rows
from compactor.errors import Corrupt
from compactor.index.files import open_bucket, overlay
from compactor.index.layout import VOID_FILE_NUMBER, IndexRows, IndexSegment, no_rows
from compactor.kernels.digest_sort import sort_by_digest
from compactor.kernels.gather import DeltaRows, LocatedRows, gather_rows
from compactor.kernels.live_rows import LiveRows, count_live
from compactor.kernels.pointers import RanksWithinFiles, files_of_places
from compactor.kernels.search import find_digests
from compactor.kernels.sha1 import Words
from compactor.kernels.sort_values import encoded_width
from compactor.kernels.survivors import (
    DELETE,
    DELETE_WITHOUT_SORT_VALUES,
    ERASED,
    LIVE,
    NOT_DELETED,
    TOMBSTONE,
    UPSERT,
    VOID,
    ArrivingRows,
    RememberedKeys,
    Survivors,
    find_survivors,
)
from compactor.names import Operation
from compactor.object_store import StoreLocation
from compactor.planning import DeltaSource, RoundPlan
from compactor.steps.hash_bucket import HashedRows
from compactor.steps.layout import BucketCounts
from compactor.steps.memory import peak_memory_bytes

DELETED, VOID_OVER_OLDER_RUNS = -1, -2
"""In place of a source file's ordinal: a tombstone, a mark over older runs."""

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]

BYTES_OF_NEW_KEY = 40
"""Of a key in a new run, beside its sort values: 36 of digest, ordinal, row index and rank, the rest to wrap them."""

KEYS_PER_PIECE = 32 * 1024
"""Of a run on its way through Spark: about a megabyte, so that whoever copies it does so within a processor's cache."""


@dataclass(frozen=True)
class NewRun:
    """Rows of a bucket's new run, in digest order, with pointers into source files.

    ordinals     int32 (keys,): the source file that holds the row; DELETED; VOID_OVER_OLDER_RUNS
    row_indices  int64 (keys,): the row in that file; of a tombstone, the stream position of its delete
    ranks        int32 (keys,): of a delta row, its rank among this bucket's survivors in its file; of others nothing
    """

    words: Words
    ordinals: Int32s
    row_indices: Int64s
    ranks: Int32s
    sort_values: npt.NDArray[np.uint8]

    @classmethod
    def empty(cls, keys: int, width: int) -> NewRun:
        """Room for so many keys with sort values of so many bytes."""
        return cls(
            np.empty((keys, 5), np.uint32),
            np.empty(keys, np.int32),
            np.empty(keys, np.int64),
            np.empty(keys, np.int32),
            np.empty((keys, width), np.uint8),
        )

    def put(self, start: int, part: NewRun) -> None:
        """Fill room from `start` on."""
        keys = slice(start, start + len(part.words))
        self.words[keys], self.ordinals[keys], self.row_indices[keys] = part.words, part.ordinals, part.row_indices
        self.ranks[keys], self.sort_values[keys] = part.ranks, part.sort_values

    def __reduce__(self) -> tuple[object, ...]:
        # Spark keeps the run between its two jobs: narrow numbers are less to write and read.
        numbers = narrowest(self.ordinals), narrowest(self.row_indices), narrowest(self.ranks)
        return _restore_run, (self.words, *numbers, self.sort_values)


@dataclass(frozen=True)
class DeadPointers:
    """Rows of compacted files. ordinals, row_indices: int64 (rows,)."""

    ordinals: Int64s
    row_indices: Int64s

    def by_file(self) -> dict[int, Int64s]:
        """Row indices by ordinal, ascending."""
        order = np.lexsort((self.row_indices, self.ordinals))
        files, starts = np.unique(self.ordinals[order], return_index=True)
        pieces = np.split(self.row_indices[order], starts[1:])
        return {int(file): rows for file, rows in zip(files, pieces, strict=False)}


@dataclass(frozen=True)
class DedupedBucket:
    """What a dedupe task leaves for `finish.py`, put together again.

    died  rows of compacted files that were live before the round and are no more
    """

    hash_bucket: int
    run: NewRun
    died: DeadPointers

    @classmethod
    def from_pieces(
        cls, hash_bucket: int, pieces: Iterable[RunPiece | DeadPointers], sort_value_bytes: int
    ) -> DedupedBucket:
        """The bucket, from its parts in order; a run without keys has no part."""
        run, died = NewRun.empty(0, sort_value_bytes), DeadPointers(np.empty(0, np.int64), np.empty(0, np.int64))
        filled = 0
        for piece in pieces:
            if isinstance(piece, DeadPointers):
                died = piece
                continue
            if not filled:
                run = NewRun.empty(piece.keys_in_all, sort_value_bytes)
            run.put(filled, piece.run)
            filled += len(piece.run.words)
        return cls(hash_bucket, run, died)


@dataclass(frozen=True)
class RunPiece:
    """Consecutive keys of a run that has so many in all."""

    keys_in_all: int
    run: NewRun


@dataclass(frozen=True)
class _Arrived:
    """A bucket's pointer records in digest order.

    A row's place is where it stood in the order (stream position, file number, row index).

    places       int32 (rows,)
    row_indices  unsigned (rows,): which row of its file
    ordinals     int32 (files,)
    file_bounds  int64 (files + 1,): file f's rows have places [file_bounds[f], file_bounds[f + 1])
    hash_*       what the hash bucket tasks say of themselves
    """

    rows: ArrivingRows
    places: Int32s
    row_indices: npt.NDArray[np.unsignedinteger]
    ordinals: Int32s
    file_bounds: Int64s
    hash_seconds: float
    hash_peak_memory_bytes: int


@dataclass(frozen=True)
class _Remembered:
    """What the index says of the keys that matter to the round: all of the absorbed runs, and what arrives again.

    rows      sorted by digest, the newest word on each key
    segments  int64 (keys,): which of the older runs' files the row is from; -1: an absorbed run
    places    int64 (keys,): where in that file
    """

    rows: IndexRows
    segments: Int64s
    places: Int64s

    @property
    def absorbed(self) -> npt.NDArray[np.bool_]:
        return self.segments < 0


def _restore_run(
    words: Words,
    ordinals: npt.NDArray[np.signedinteger],
    row_indices: npt.NDArray[np.signedinteger],
    ranks: npt.NDArray[np.signedinteger],
    sort_values: npt.NDArray[np.uint8],
) -> NewRun:
    return NewRun(words, ordinals.astype(np.int32), row_indices.astype(np.int64), ranks.astype(np.int32), sort_values)


def narrowest(numbers: npt.NDArray[np.signedinteger]) -> npt.NDArray[np.signedinteger]:
    """The numbers in as few bytes each as the least and the greatest of them take."""
    least, greatest = numbers.min(initial=0), numbers.max(initial=0)
    for kind in (np.int8, np.int16, np.int32):
        if np.iinfo(kind).min <= least and greatest <= np.iinfo(kind).max:
            return numbers.astype(kind, copy=False)
    return numbers


def dedupe_bucket(
    plan: RoundPlan, hash_bucket: int, blocks: list[HashedRows]
) -> Iterator[DeadPointers | RunPiece | BucketCounts]:
    """One dedupe task: the survivors of one hash bucket. The list of blocks is emptied, to give back their memory.

    Yields the parts of a `DedupedBucket` as it finds them, so that the run is never whole in memory; counts at the end.
    """
    arrived = _arrange(plan, blocks)
    older = older_segments(plan, hash_bucket)
    remembered = _remember(plan, hash_bucket, older, arrived.rows.words)
    survivors = find_survivors(
        RememberedKeys(remembered.rows.words, remembered.rows.sort_values, remembered.rows.tombstone_positions),
        arrived.rows,
        plan.horizon,
        plan.tombstone_retention,
        keep_marks=bool(older),
    )
    died = _died(remembered, survivors)
    ordinal_of = ordinals_of_compacted(plan)
    in_older = _live_rows_in(plan, older)
    died_in_older = ordinal_of[remembered.rows.file_numbers[died & ~remembered.absorbed]]
    still_live = in_older - np.bincount(died_in_older, minlength=len(plan.sources))
    yield DeadPointers(ordinal_of[remembered.rows.file_numbers[died]], remembered.rows.row_indices[died])
    for piece in _new_run(plan, remembered, arrived, survivors):
        still_live += np.bincount(piece.run.ordinals[piece.run.ordinals >= 0], minlength=len(plan.sources))
        yield piece
    yield _count(hash_bucket, arrived, remembered, survivors, int(in_older.sum()), still_live)


def older_segments(plan: RoundPlan, hash_bucket: int) -> list[IndexSegment]:
    """The files of the runs that the round only searches, newest run first."""
    files = [file for file in plan.index_files if file.hash_bucket == hash_bucket]
    return open_bucket(
        plan.location, [file for file in files if file.run not in plan.absorbed_runs], plan.hash_bucket_count
    )


def _remember(plan: RoundPlan, hash_bucket: int, older: Sequence[IndexSegment], words: Words) -> _Remembered:
    files = [file for file in plan.index_files if file.hash_bucket == hash_bucket and file.run in plan.absorbed_runs]
    pieces = [segment.rows(plan.sort_columns) for segment in open_bucket(plan.location, files, plan.hash_bucket_count)]
    hits = [find_digests(segment.raw_digests, words) for segment in older]
    absorbed = sum(len(piece) for piece in pieces)
    pieces += [segment.rows(plan.sort_columns, found) for segment, found in zip(older, hits, strict=True)]
    rows, kept = overlay(pieces or [no_rows(plan.sort_columns)])
    if len(rows) and not VOID_FILE_NUMBER <= rows.file_numbers.min() <= rows.file_numbers.max() < _files_numbered(plan):
        raise Corrupt("the primary key index names a compacted file that there has never been")
    segments = np.concatenate(
        [np.full(absorbed, -1, np.int64), *(np.full(len(found), number) for number, found in enumerate(hits))]
    )
    places = np.concatenate([np.arange(absorbed), *hits])
    return _Remembered(rows, segments[kept], places[kept])


def _arrange(plan: RoundPlan, blocks: list[HashedRows]) -> _Arrived:
    """The blocks' rows in digest order; those of a key in the order (stream position, file number, row index)."""
    blocks.sort(key=lambda block: (int(block.ordinals[0]), int(block.row_indices[0])))
    ordinals, row_counts = _files_of(blocks)
    seconds = sum(block.seconds for block in blocks)
    peak = max((block.peak_memory_bytes for block in blocks), default=0)
    words, row_indices = [block.words for block in blocks], [block.row_indices for block in blocks]
    sort_values = [block.sort_values for block in blocks]
    blocks.clear()
    in_order = sort_by_digest(words, row_indices, sort_values, encoded_width(plan.sort_columns))
    files: list[DeltaSource] = [plan.deltas[ordinal - len(plan.compacted)] for ordinal in ordinals]
    file_bounds = np.concatenate(([0], np.cumsum(row_counts))).astype(np.int64)
    rows = ArrivingRows(
        words=in_order.words,
        files=files_of_places(in_order.places, file_bounds),
        sort_values=in_order.sort_values,
        operations=np.array([_operation(file) for file in files], np.uint8),
        positions=np.array([file.position for file in files], np.int64),
    )
    return _Arrived(rows, in_order.places, in_order.row_indices, ordinals, file_bounds, seconds, peak)


def _files_of(blocks: Sequence[HashedRows]) -> tuple[Int32s, Int64s]:
    """Files in order, and the rows of each; one that continues in the next block is the same file."""
    ordinals = np.concatenate([np.empty(0, np.int32), *(block.ordinals for block in blocks)])
    row_counts = np.concatenate([np.empty(0, np.int64), *(block.row_counts for block in blocks)])
    begins = np.flatnonzero(np.diff(ordinals, prepend=-1))
    return ordinals[begins], np.add.reduceat(row_counts, begins) if len(begins) else row_counts


def _operation(file: DeltaSource) -> int:
    if file.operation is Operation.UPSERT:
        return UPSERT
    return DELETE if file.sorts else DELETE_WITHOUT_SORT_VALUES


def _new_run(plan: RoundPlan, remembered: _Remembered, arrived: _Arrived, survivors: Survivors) -> Iterator[RunPiece]:
    """The rows that the new run holds for sure. A row that an older run holds and that survives is left to that run."""
    known = len(remembered.rows)
    holders, outcomes = survivors.holders, survivors.outcomes
    if not remembered.absorbed.all():
        left_to_older = np.append(~remembered.absorbed, False)[np.minimum(holders, known)] & (outcomes != ERASED)
        kept = np.flatnonzero(~left_to_older)
        holders, outcomes = holders[kept], outcomes[kept]
    compacted = LocatedRows(
        remembered.rows.words,
        ordinals_of_compacted(plan)[remembered.rows.file_numbers].astype(np.int32),
        remembered.rows.row_indices,
        remembered.rows.sort_values,
    )
    arriving = DeltaRows(
        arrived.rows.words, arrived.rows.files, arrived.row_indices, arrived.rows.sort_values, arrived.ordinals
    )
    pieces = [slice(start, start + KEYS_PER_PIECE) for start in range(0, len(holders), KEYS_PER_PIECE)]
    ranks = RanksWithinFiles(arrived.places, arrived.rows.files, arrived.file_bounds)
    for keys in pieces:
        ranks.add(_arriving_rows(holders[keys], outcomes[keys], known))
    for keys in pieces:
        run = gather_rows(holders[keys], compacted, arriving)
        yield RunPiece(len(holders), _located(run, holders[keys], outcomes[keys], known, arrived, ranks))


def _arriving_rows(holders: Int64s, outcomes: npt.NDArray[np.uint8], known: int) -> Int64s:
    """Of each key the row of the delta that holds it, if that is live; else -1."""
    return np.where((outcomes == LIVE) & (holders >= known), holders - known, -1)


def _located(
    run: LocatedRows,
    holders: Int64s,
    outcomes: npt.NDArray[np.uint8],
    known: int,
    arrived: _Arrived,
    ranks_within_files: RanksWithinFiles,
) -> NewRun:
    """What is known of some of the keys' rows, turned into what the index says of the keys."""
    if ((run.ordinals < 0) & (outcomes == LIVE)).any():
        raise Corrupt("the primary key index points at a compacted file that is not in the stream")
    ranks = ranks_within_files.of(_arriving_rows(holders, outcomes, known))
    # Most rows are live: what follows looks at the others alone.
    others = np.flatnonzero(outcomes != LIVE)
    tombstones = others[outcomes[others] == TOMBSTONE]
    arriving_deletes = tombstones[holders[tombstones] >= known]
    run.row_indices[arriving_deletes] = arrived.rows.positions[arrived.rows.files[holders[arriving_deletes] - known]]
    run.ordinals[tombstones] = DELETED
    erased = others[outcomes[others] == ERASED]
    run.row_indices[erased] = 0
    run.ordinals[erased] = VOID_OVER_OLDER_RUNS
    return NewRun(run.words, run.ordinals, run.row_indices, ranks, run.sort_values)


def _died(remembered: _Remembered, survivors: Survivors) -> npt.NDArray[np.bool_]:
    """Which remembered rows were live and are no more."""
    lives_on = np.zeros(len(remembered.rows), np.bool_)
    holders = survivors.holders[survivors.outcomes == LIVE]
    lives_on[holders[holders < len(remembered.rows)]] = True
    was_live: npt.NDArray[np.bool_] = remembered.rows.tombstone_positions == NOT_DELETED
    return was_live & ~lives_on


def _live_rows_in(plan: RoundPlan, segments: Sequence[IndexSegment]) -> Int64s:
    """How many live rows of each source file these parts of the index point at, as the round finds them."""
    counts = np.zeros(len(plan.sources), np.int64)
    live = live_rows(plan, {})
    for segment in segments:
        count_live(live, segment.file_numbers, segment.row_indices, counts)
    return counts


def live_rows(plan: RoundPlan, died: Mapping[int, Int64s]) -> LiveRows:
    """The live rows of the stream before the round, but for those that `died` (by ordinal)."""
    dead = {file.ordinal: _dead_rows(plan.location, file.vector) for file in plan.compacted if file.vector}
    for ordinal, rows in died.items():
        dead[ordinal] = np.concatenate([dead.get(ordinal, np.empty(0, np.int64)), rows])
    return LiveRows.of(ordinals_of_compacted(plan), np.array([file.rows for file in plan.sources], np.int64), dead)


@lru_cache(maxsize=128)
def _dead_rows(location: StoreLocation, vector: DeletionVector) -> Int64s:
    """Vectors never change, and every bucket needs them: a worker reads each once."""
    return read_dead_rows(location, vector)


def _count(
    hash_bucket: int,
    arrived: _Arrived,
    remembered: _Remembered,
    survivors: Survivors,
    rows_in_older: int,
    live_rows_of_sources: Int64s,
) -> BucketCounts:
    sources = np.flatnonzero(live_rows_of_sources)
    was = remembered.rows.tombstone_positions
    absorbed_live = int(((was == NOT_DELETED) & remembered.absorbed).sum())
    return BucketCounts(
        hash_bucket=hash_bucket,
        ordinals=sources.astype(np.int32),
        rows=live_rows_of_sources[sources],
        rows_in=absorbed_live + rows_in_older + len(arrived.rows.words),
        rows_deduplicated=survivors.rows_deduplicated,
        rows_deleted=survivors.rows_deleted,
        tombstones_added=int((survivors.outcomes == TOMBSTONE).sum()) - int((was > VOID).sum()),
        hash_seconds=arrived.hash_seconds,
        hash_peak_memory_bytes=arrived.hash_peak_memory_bytes,
        peak_memory_bytes=peak_memory_bytes(),
    )


def _files_numbered(plan: RoundPlan) -> int:
    """Above every number that a compacted file has, or has had."""
    return max([plan.output.next_file_number, *(file.file_number + 1 for file in plan.compacted)])


def ordinals_of_compacted(plan: RoundPlan) -> Int64s:
    """Ordinals of compacted files by file number; -1 for the number of no live file, and for number -1 (the last)."""
    ordinal_of = np.full(_files_numbered(plan) + 1, -1, np.int64)
    ordinal_of[[file.file_number for file in plan.compacted]] = [file.ordinal for file in plan.compacted]
    return ordinal_of
