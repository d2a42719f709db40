"""The hash bucket step (seed 000): key and sort columns of delta files become row pointers, grouped by hash bucket."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from compactor.clock import SystemClock
from compactor.errors import Corrupt
from compactor.kernels.canonical import canonical_column
from compactor.kernels.digest import digest_keys
from compactor.kernels.hash_bucket import group_by_bucket, hash_buckets
from compactor.kernels.sha1 import Words
from compactor.kernels.sort_values import SortColumn, encode_sort_values, encoded_width
from compactor.names import PARTITION_STREAM_POSITION
from compactor.planning import DeltaSource, RoundPlan
from compactor.steps.memory import peak_memory_bytes
from compactor.tabular import read_batches

ROWS_PER_PIECE = 16 * 1024
"""Of a bucket's rows on their way through Spark's shuffle: half a megabyte, which the JVM copies within its caches."""

_ROWS_PER_UINT32 = 1 << 32


@dataclass(frozen=True)
class HashedRows:
    """Consecutive row pointers of one hash bucket from one task: 24 bytes a row, and the sort values.

    ordinals, row_counts  one per source file that has rows here, in ordinal order
    words                 (rows, 5), file after file
    row_indices           uint32 (rows,), or uint64 where a file has more rows: rows in their file, ascending
    sort_values           uint8 (rows, width), encoded
    seconds               what the task took, in equal parts over what it yields
    """

    ordinals: npt.NDArray[np.int32]
    row_counts: npt.NDArray[np.int64]
    words: Words
    row_indices: npt.NDArray[np.unsignedinteger]
    sort_values: npt.NDArray[np.uint8]
    seconds: float
    peak_memory_bytes: int


def hash_files(plan: RoundPlan, files: Sequence[DeltaSource]) -> Iterator[tuple[int, HashedRows]]:
    """One hash bucket task: yields (hash bucket, rows) for every bucket that has any, in pieces that keep their order.

    `files` are consecutive.
    """
    clock = SystemClock()
    started = clock.monotonic_seconds()
    starts = np.concatenate(([0], np.cumsum([file.rows for file in files])))
    words = np.empty((int(starts[-1]), 5), np.uint32)
    sort_values = np.empty((len(words), encoded_width(plan.sort_columns)), np.uint8)
    for file, start in zip(files, starts.tolist(), strict=False):
        _read_keys(plan, file, words[start : start + file.rows], sort_values[start : start + file.rows])
    index_type = np.uint32 if max(file.rows for file in files) < _ROWS_PER_UINT32 else np.uint64
    order, bounds = group_by_bucket(hash_buckets(words, plan.hash_bucket_count), plan.hash_bucket_count)
    pieces = [
        (bucket, slice(start, min(start + ROWS_PER_PIECE, int(bounds[bucket + 1]))))
        for bucket in np.flatnonzero(np.diff(bounds)).tolist()
        for start in range(int(bounds[bucket]), int(bounds[bucket + 1]), ROWS_PER_PIECE)
    ]
    seconds_each = (clock.monotonic_seconds() - started) / max(len(pieces), 1)
    peak = peak_memory_bytes()
    for bucket, places in pieces:
        rows = order[places]
        row_counts = np.diff(np.searchsorted(rows, starts))
        row_indices = rows - np.repeat(starts[:-1], row_counts)
        present = np.flatnonzero(row_counts)
        yield (
            bucket,
            HashedRows(
                ordinals=np.array([files[int(place)].ordinal for place in present], np.int32),
                row_counts=row_counts[present],
                words=words.take(rows, axis=0),
                row_indices=row_indices.astype(index_type),
                sort_values=sort_values.take(rows, axis=0),
                seconds=seconds_each,
                peak_memory_bytes=peak,
            ),
        )


def _read_keys(plan: RoundPlan, file: DeltaSource, words: Words, sort_values: npt.NDArray[np.uint8]) -> None:
    """Fills in digests and encoded sort values of a file's rows, in file order."""
    read = [*plan.key_columns, *(column.name for column in plan.sort_columns if column.name not in plan.key_columns)]
    start = 0
    for batch in read_batches(plan.location, file.file, read, plan.output.schema):
        rows = slice(start, start + batch.num_rows)
        start += batch.num_rows
        if start > file.rows:
            continue  # There is no room for them; once all are counted, the file is refused.
        keys = [canonical_column(name, pa.chunked_array([batch.column(name)])) for name in plan.key_columns]
        words[rows] = digest_keys(keys, batch.num_rows)
        values = [_sort_column(column, batch, file) for column in plan.sort_columns]
        sort_values[rows] = encode_sort_values(plan.sort_columns, values, batch.num_rows)
    if start != file.rows:
        raise Corrupt(f"{file.file.uri} holds {start} rows, but the log says {file.rows}")


def _sort_column(column: SortColumn, batch: pa.RecordBatch, file: DeltaSource) -> pa.Array:
    if column.name == PARTITION_STREAM_POSITION:
        return pa.array(np.full(batch.num_rows, file.position, np.int64))
    if column.name not in batch.schema.names:
        return pa.nulls(batch.num_rows, column.arrow_type)
    array = batch.column(column.name)
    return array.cast(column.arrow_type)
