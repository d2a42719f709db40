"""The hash bucket step (the paper): key and sort columns of delta files become row pointers, grouped by hash bucket."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from compactor.kernels.canonical import canonical_column
from compactor.kernels.digest import digest_keys
from compactor.kernels.hash_bucket import group_by_bucket, hash_buckets
from compactor.kernels.sha1 import Digests
from compactor.kernels.sort_values import SortColumn, encode_sort_values, encoded_width
from compactor.model.clock import SystemClock
from compactor.model.errors import Corrupt
from compactor.model.machine import peak_memory_bytes
from compactor.model.names import PARTITION_STREAM_POSITION, counted
from compactor.planning.round_plan import DeltaSource, RoundPlan, RowsToHash
from compactor.planning.task_memory import AHEAD, rows_per_hash_task
from compactor.storage.location import StoreLocation
from compactor.tabular import each_begun, read_batches, read_batches_around
from compactor.task_progress import ProgressAddress, RowCounter

FILES_AHEAD = 4
"""Files on an object store that are asked for before they are read, as far as there is room."""

ROWS_PER_PIECE = 16 * 1024
"""Rows of a bucket per record in Spark's shuffle: half a megabyte, which the JVM copies within its caches."""

ROWS_PER_UINT32 = 1 << 32


@dataclass(frozen=True)
class HashedRows:
    """Consecutive row pointers of one hash bucket from one task: 24 bytes a row, and the sort values.

    Attributes:
        ordinals, row_counts: one per source file that has rows here, in ordinal order
        digests: (rows, 5), file after file
        row_indices: uint32 (rows,), or uint64 where a file has more rows: rows in their file, ascending
        sort_values: uint8 (rows, width), encoded
        seconds: the time of the task, in equal parts over its records"""

    ordinals: npt.NDArray[np.int32]
    row_counts: npt.NDArray[np.int64]
    digests: Digests
    row_indices: npt.NDArray[np.unsignedinteger]
    sort_values: npt.NDArray[np.uint8]
    seconds: float
    peak_memory_bytes: int


@dataclass(frozen=True)
class HashStep:
    """The arguments that all hash bucket tasks of a round share.

    Attributes:
        schema: of the stream: types for the columns of text files"""

    location: StoreLocation
    key_columns: tuple[str, ...]
    sort_columns: tuple[SortColumn, ...]
    hash_bucket_count: int
    schema: pa.Schema
    own_parquet_pages: bool
    task_memory_bytes: int
    progress: ProgressAddress | None

    @classmethod
    def of(cls, plan: RoundPlan) -> Self:
        return cls(
            location=plan.location,
            key_columns=plan.key_columns,
            sort_columns=plan.sort_columns,
            hash_bucket_count=plan.hash_bucket_count,
            schema=plan.output.schema,
            own_parquet_pages=plan.output.own_parquet_pages,
            task_memory_bytes=plan.task_memory_bytes,
            progress=plan.progress,
        )


def hash_rows(step: HashStep, read: Sequence[RowsToHash]) -> Iterator[tuple[int, HashedRows]]:
    """One hash bucket task: yields (hash bucket, rows) for every bucket that has any, in pieces that keep their order.

    `read`: consecutive rows of consecutive files. At most as many rows as fit the memory are held at a time.
    """
    clock = SystemClock()
    started = clock.monotonic_seconds()
    for held in _read(step, read):
        order, bounds = group_by_bucket(hash_buckets(held.digests, step.hash_bucket_count), step.hash_bucket_count)
        pieces = [
            (bucket, slice(start, min(start + ROWS_PER_PIECE, int(bounds[bucket + 1]))))
            for bucket in np.flatnonzero(np.diff(bounds)).tolist()
            for start in range(int(bounds[bucket]), int(bounds[bucket + 1]), ROWS_PER_PIECE)
        ]
        seconds_each = (clock.monotonic_seconds() - started) / max(len(pieces), 1)
        peak = peak_memory_bytes()
        for bucket, of_bucket in pieces:
            yield bucket, held.take(order[of_bucket], seconds_each, peak)
        started = clock.monotonic_seconds()


@dataclass(frozen=True)
class _HeldRows:
    """Consecutive rows of consecutive files that are held in memory.

    Attributes:
        ordinals: int32 (files,)
        starts: int64 (files + 1,): file f's rows are [starts[f], starts[f + 1])
        first_rows: int64 (files,): the row index of the file's first row here
        index_type: of row indices"""

    digests: Digests
    sort_values: npt.NDArray[np.uint8]
    ordinals: npt.NDArray[np.int32]
    starts: npt.NDArray[np.int64]
    first_rows: npt.NDArray[np.int64]
    index_type: type[np.unsignedinteger]

    def take(self, rows: npt.NDArray[np.int64], seconds: float, peak: int) -> HashedRows:
        """Some of the rows; `rows` ascend."""
        row_counts = np.diff(np.searchsorted(rows, self.starts))
        row_indices = rows + np.repeat(self.first_rows - self.starts[:-1], row_counts)
        present = np.flatnonzero(row_counts)
        return HashedRows(
            ordinals=self.ordinals[present],
            row_counts=row_counts[present],
            digests=self.digests.take(rows, axis=0),
            row_indices=row_indices.astype(self.index_type),
            sort_values=self.sort_values.take(rows, axis=0),
            seconds=seconds,
            peak_memory_bytes=peak,
        )


class _Room:
    """Collects rows until its memory is full."""

    def __init__(self, rows: int, width: int, index_type: type[np.unsignedinteger]) -> None:
        self._digests = np.empty((rows, 5), np.uint32)
        self._sort_values = np.empty((rows, width), np.uint8)
        self._index_type = index_type
        self._parts: list[tuple[int, int, int]] = []
        self.filled = 0

    @property
    def left(self) -> int:
        return len(self._digests) - self.filled

    def begin(self, ordinal: int, first_row: int) -> None:
        """The next rows are of this file, starting at this row."""
        self._parts.append((ordinal, self.filled, first_row))

    def put(self, digests: Digests, sort_values: npt.NDArray[np.uint8]) -> None:
        rows = slice(self.filled, self.filled + len(digests))
        self._digests[rows], self._sort_values[rows] = digests, sort_values
        self.filled = rows.stop

    def take_out(self) -> _HeldRows:
        """The held rows; the next rows overwrite them."""
        ordinals, starts, first_rows = (np.array(numbers, np.int64) for numbers in zip(*self._parts, strict=True))
        held = _HeldRows(
            self._digests[: self.filled],
            self._sort_values[: self.filled],
            ordinals.astype(np.int32),
            np.append(starts, self.filled),
            first_rows,
            self._index_type,
        )
        self._parts, self.filled = [], 0
        return held


def _read(step: HashStep, read: Sequence[RowsToHash]) -> Iterator[_HeldRows]:
    """The rows' digests and encoded sort values, in file order, in portions that fit the memory."""
    width = encoded_width(step.sort_columns)
    rows = min(sum(piece.rows for piece in read), rows_per_hash_task(step.task_memory_bytes, width))
    index_type = np.uint32 if max(piece.source.rows for piece in read) < ROWS_PER_UINT32 else np.uint64
    room = _Room(rows, width, index_type)
    counter = RowCounter(step.progress)
    files, bounds = [piece.source.file for piece in read], [piece.bounds for piece in read]
    room_bytes = AHEAD.of(step.task_memory_bytes)
    ahead = each_begun(step.location, files, _columns_to_read(step), FILES_AHEAD, room_bytes, bounds)
    for piece, _ in zip(read, ahead, strict=True):
        first_row = piece.first_row
        room.begin(piece.source.ordinal, first_row)
        for digests, sort_values in _read_keys(step, piece):
            counter.add(len(digests))
            start = 0
            while start < len(digests):
                if not room.left:
                    yield room.take_out()
                    room.begin(piece.source.ordinal, first_row)
                end = min(start + room.left, len(digests))
                room.put(digests[start:end], sort_values[start:end])
                first_row += end - start
                start = end
    if room.filled:
        yield room.take_out()


def _read_keys(step: HashStep, piece: RowsToHash) -> Iterator[tuple[Digests, npt.NDArray[np.uint8]]]:
    """Digests and encoded sort values of the rows, in file order."""
    file, rows = piece.source, 0
    for batch in _batches(step, piece):
        rows += batch.num_rows
        if rows > piece.rows:
            continue  # More rows than the log states: they are only counted, and the file is refused.
        keys = [canonical_column(name, pa.chunked_array([batch.column(name)])) for name in step.key_columns]
        values = [_sort_column(column, batch, file) for column in step.sort_columns]
        yield digest_keys(keys, batch.num_rows), encode_sort_values(step.sort_columns, values, batch.num_rows)
    if rows == piece.rows:
        return
    if piece.bounds is None:
        raise Corrupt(f"{file.file.uri} holds {counted(rows, 'row')}, but the log says {file.rows}")
    raise Corrupt(f"{file.file.uri} has other row groups than the log says, at row {piece.first_row}")


def _batches(step: HashStep, piece: RowsToHash) -> Iterator[pa.RecordBatch]:
    file, columns = piece.source, _columns_to_read(step)
    if piece.bounds is None:
        yield from read_batches(step.location, file.file, columns, step.schema, step.own_parquet_pages)
        return
    around = read_batches_around(
        step.location,
        file.file,
        file.rows,
        piece.bounds,
        step.schema,
        columns=columns,
        own_pages=step.own_parquet_pages,
    )
    for _, batch in around:
        yield batch


def _columns_to_read(step: HashStep) -> list[str]:
    return [*step.key_columns, *(column.name for column in step.sort_columns if column.name not in step.key_columns)]


def _sort_column(column: SortColumn, batch: pa.RecordBatch, file: DeltaSource) -> pa.Array:
    if column.name == PARTITION_STREAM_POSITION:
        return pa.array(np.full(batch.num_rows, file.position, np.int64))
    if column.name not in batch.schema.names:
        return pa.nulls(batch.num_rows, column.arrow_type)
    array = batch.column(column.name)
    return array.cast(column.arrow_type)
