"""The dedupe step (seed 000): folds a hash bucket's row pointers into its index, and finds the rows that survive.

A dedupe task knows only its own bucket. What it leaves are survivors with pointers into *source* files; once the counts
of all buckets are known (`layout.py`), `finish_bucket` turns them into pointers into compacted files, writes the
bucket's new index, and hands every materialize task the row indices it has to fetch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from compactor.catalog.actions import IndexFile
from compactor.errors import Corrupt
from compactor.index.files import read_bucket, write_bucket
from compactor.index.layout import TOMBSTONE_FILE_NUMBER, IndexRows
from compactor.kernels.digest import Words
from compactor.kernels.digest_order import digest_order
from compactor.kernels.pointers import compacted_pointers, ranks_within_files
from compactor.kernels.sort_values import encoded_width
from compactor.kernels.survivors import (
    DELETE,
    DELETE_WITHOUT_SORT_VALUES,
    LIVE,
    UPSERT,
    ArrivingRows,
    RememberedKeys,
    Survivors,
    find_survivors,
)
from compactor.names import Operation
from compactor.planning import DeltaSource, RoundPlan
from compactor.steps.hash_bucket import HashedRows
from compactor.steps.layout import BucketCounts, MaterializeLayout
from compactor.steps.memory import peak_memory_bytes

_NO_SOURCE = -1


@dataclass(frozen=True)
class DedupedBucket:
    """The keys that a bucket's index will hold, in digest order, with pointers into source files.

    ordinals     int32 (keys,): the source file that holds the row; -1: a tombstone
    row_indices  int64 (keys,): the row in that file; of a tombstone, the stream position of its delete
    ranks        int64 (keys,): of a delta row, its rank among this bucket's survivors in its file; of others nothing
    counts       what the layout needs to know, small
    """

    hash_bucket: int
    words: Words
    ordinals: npt.NDArray[np.int32]
    row_indices: npt.NDArray[np.int64]
    ranks: npt.NDArray[np.int64]
    sort_values: npt.NDArray[np.uint8]
    counts: BucketCounts


@dataclass(frozen=True)
class RowsToFetch:
    """What one bucket asks of one materialize task: rows of source files, ascending within each.

    ordinals, row_counts  one per source file, in ordinal order
    row_indices           int64 (rows,), file after file
    """

    hash_bucket: int
    ordinals: npt.NDArray[np.int32]
    row_counts: npt.NDArray[np.int64]
    row_indices: npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Arrived:
    """A bucket's pointer records in the order (stream position, file number, row index)."""

    rows: ArrivingRows
    row_indices: npt.NDArray[np.int64]
    ordinals: npt.NDArray[np.int32]
    file_bounds: npt.NDArray[np.int64]


def dedupe_bucket(plan: RoundPlan, hash_bucket: int, blocks: Sequence[HashedRows]) -> DedupedBucket:
    """One dedupe task: the survivors of one hash bucket."""
    arrived = _in_order(plan, blocks)
    index_files = [file for file in plan.index_files if file.hash_bucket == hash_bucket]
    remembered = read_bucket(plan.location, index_files, plan.sort_columns)
    tombstone_positions = remembered.tombstone_positions
    survivors = find_survivors(
        RememberedKeys(remembered.words, remembered.sort_values, tombstone_positions),
        arrived.rows,
        digest_order(arrived.rows.words),
        plan.horizon,
        plan.tombstone_retention,
    )
    return _point_to_sources(plan, hash_bucket, remembered, arrived, survivors)


def finish_bucket(
    plan: RoundPlan, layout: MaterializeLayout, bucket: DedupedBucket
) -> tuple[tuple[IndexFile, ...], Iterator[tuple[int, RowsToFetch]]]:
    """Writes the bucket's new index; returns its files, and (materialize task, rows to fetch) for every task."""
    is_row = bucket.ordinals != _NO_SOURCE
    tasks = np.where(is_row, layout.tasks[bucket.ordinals], _NO_SOURCE)
    moves = tasks != _NO_SOURCE
    ranks = _rank_compacted_rows(plan, bucket, moves)
    file_numbers = np.full(len(bucket.words), TOMBSTONE_FILE_NUMBER, np.int64)
    row_indices = bucket.row_indices.copy()
    stays = is_row & ~moves
    file_numbers[stays] = np.array([file.file_number for file in plan.compacted], np.int64)[bucket.ordinals[stays]]
    places = layout.places[bucket.ordinals[moves], bucket.hash_bucket] + ranks[moves]
    file_numbers[moves], row_indices[moves] = compacted_pointers(
        places, layout.first_file_numbers[tasks[moves]], plan.output.rows_per_compacted_file
    )
    index_rows = IndexRows(bucket.words, file_numbers.astype(np.int32), row_indices, bucket.sort_values)
    files = write_bucket(plan.location, plan.output.index, bucket.hash_bucket, index_rows, plan.sort_columns)
    return files, _rows_to_fetch(layout, bucket, moves, ranks)


def _in_order(plan: RoundPlan, blocks: Sequence[HashedRows]) -> _Arrived:
    blocks = sorted(blocks, key=lambda block: int(block.ordinals[0]))
    ordinals = np.concatenate([block.ordinals for block in blocks] or [np.empty(0, np.int32)])
    row_counts = np.concatenate([block.row_counts for block in blocks] or [np.empty(0, np.int64)])
    files: list[DeltaSource] = [plan.deltas[ordinal - len(plan.compacted)] for ordinal in ordinals]
    operations = np.array([_operation(file) for file in files], np.uint8)
    positions = np.array([file.position for file in files], np.int64)
    width = encoded_width(plan.sort_columns)
    rows = ArrivingRows(
        words=np.concatenate([block.words for block in blocks] or [np.empty((0, 5), np.uint32)]),
        sort_values=np.concatenate([block.sort_values for block in blocks] or [np.empty((0, width), np.uint8)]),
        operations=np.repeat(operations, row_counts),
        positions=np.repeat(positions, row_counts),
    )
    return _Arrived(
        rows=rows,
        row_indices=np.concatenate([block.row_indices.astype(np.int64) for block in blocks] or [np.empty(0, np.int64)]),
        ordinals=ordinals,
        file_bounds=np.concatenate(([0], np.cumsum(row_counts))).astype(np.int64),
    )


def _operation(file: DeltaSource) -> int:
    if file.operation is Operation.UPSERT:
        return UPSERT
    return DELETE if file.sorts else DELETE_WITHOUT_SORT_VALUES


def _point_to_sources(
    plan: RoundPlan, hash_bucket: int, remembered: IndexRows, arrived: _Arrived, survivors: Survivors
) -> DedupedBucket:
    """Gathers, for every surviving key, its digest, sort values and the place of its row in a source file."""
    known = len(remembered)
    arrives = survivors.holders >= known
    old, new = survivors.holders[~arrives], survivors.holders[arrives] - known
    lives = survivors.outcomes == LIVE
    file_of_row = np.repeat(arrived.ordinals, np.diff(arrived.file_bounds))
    surviving = np.zeros(len(arrived.rows.words), np.bool_)
    surviving[new[lives[arrives]]] = True
    ranks_of_rows, delta_counts = ranks_within_files(surviving, arrived.file_bounds)

    keys = len(survivors.holders)
    words = np.empty((keys, 5), np.uint32)
    words[~arrives], words[arrives] = remembered.words[old], arrived.rows.words[new]
    sort_values = np.empty((keys, encoded_width(plan.sort_columns)), np.uint8)
    sort_values[~arrives], sort_values[arrives] = remembered.sort_values[old], arrived.rows.sort_values[new]
    ordinals = np.full(keys, _NO_SOURCE, np.int32)
    ordinals[~arrives] = _compacted_ordinals(plan, remembered.file_numbers[old])
    ordinals[arrives] = np.where(lives[arrives], file_of_row[new], _NO_SOURCE)
    row_indices = np.empty(keys, np.int64)
    row_indices[~arrives] = remembered.row_indices[old]
    row_indices[arrives] = np.where(lives[arrives], arrived.row_indices[new], arrived.rows.positions[new])
    ranks = np.zeros(keys, np.int64)
    ranks[arrives] = ranks_of_rows[new]

    live_rows_per_source = np.bincount(ordinals[lives], minlength=len(plan.sources))
    sources = np.flatnonzero(live_rows_per_source)
    if int(delta_counts.sum()) != int(live_rows_per_source[len(plan.compacted) :].sum()):
        raise Corrupt(f"hash bucket {hash_bucket}: ranks and survivors disagree on the number of delta rows")
    counts = BucketCounts(
        hash_bucket=hash_bucket,
        ordinals=sources.astype(np.int32),
        rows=live_rows_per_source[sources],
        rows_in=int((remembered.tombstone_positions < 0).sum()) + len(arrived.rows.words),
        rows_deduplicated=survivors.rows_deduplicated,
        rows_deleted=survivors.rows_deleted,
        tombstones=int(keys - lives.sum()),
        peak_memory_bytes=peak_memory_bytes(),
    )
    return DedupedBucket(hash_bucket, words, ordinals, row_indices, ranks, sort_values, counts)


def _compacted_ordinals(plan: RoundPlan, file_numbers: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Ordinals of compacted files by number; -1 for a tombstone's. Raises `Corrupt` for a pointer to no live file."""
    numbers = np.array([TOMBSTONE_FILE_NUMBER, *(file.file_number for file in plan.compacted)], np.int64)
    found = np.searchsorted(numbers, file_numbers)
    if (found == len(numbers)).any() or (numbers[np.minimum(found, len(numbers) - 1)] != file_numbers).any():
        stray = set(file_numbers.tolist()) - set(numbers.tolist())
        raise Corrupt(
            f"the primary key index points at compacted files {sorted(stray)[:5]}, which are not in the stream"
        )
    return (found - 1).astype(np.int32)


def _rank_compacted_rows(plan: RoundPlan, bucket: DedupedBucket, moves: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """The bucket's ranks, with those of rows that move out of compacted files filled in: ranks by row index."""
    moving = np.flatnonzero(moves & (bucket.ordinals < len(plan.compacted)))
    ranks = bucket.ranks
    if len(moving):
        ranks = ranks.copy()
        in_order = moving[np.lexsort((bucket.row_indices[moving], bucket.ordinals[moving]))]
        _, first = np.unique(bucket.ordinals[in_order], return_index=True)
        counts = np.diff(np.append(first, len(in_order)))
        ranks[in_order] = np.arange(len(in_order)) - np.repeat(first, counts)
    return ranks


def _rows_to_fetch(
    layout: MaterializeLayout, bucket: DedupedBucket, moves: npt.NDArray[np.bool_], ranks: npt.NDArray[np.int64]
) -> Iterator[tuple[int, RowsToFetch]]:
    ordinals, rows = bucket.ordinals[moves], bucket.row_indices[moves]
    counts = np.bincount(ordinals, minlength=len(layout.tasks))
    starts = np.concatenate(([0], np.cumsum(counts)))
    ordered = np.empty(len(rows), np.int64)
    ordered[starts[ordinals] + ranks[moves]] = rows
    present = np.flatnonzero(counts)
    tasks = layout.tasks[present]
    for task in np.unique(tasks):
        files = present[tasks == task]
        pieces = [ordered[starts[file] : starts[file + 1]] for file in files]
        yield (
            int(task),
            RowsToFetch(bucket.hash_bucket, files.astype(np.int32), counts[files], np.concatenate(pieces)),
        )
