"""What a row of the primary key index is, in memory and in an index file.

    digest       20 bytes  SHA-1 of the framed key, most significant byte first
    file_number   4 bytes  the compacted file that holds the key's row; 0: the key is deleted (a tombstone);
                           -1: what older runs say of the key is void
    row_index     8 bytes  the row in that file, from 0; of a tombstone: the stream position of the delete
    sort:<name>   0 to 32  one column per custom sort key, in its own Arrow type

A bucket's index is one run or more. A run's rows are sorted by digest, each digest once, and cut into files at
`rows_per_primary_key_index_file`. Each file holds one record batch, uncompressed: its digests lie in one stretch of
bytes, so a key is found by range reads. The newest run that has a digest says what is true of its key.

Where many rows of a file have moved, its two pointer columns are written anew, into a file that replaces them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from compactor.catalog.actions import IndexFile
from compactor.errors import Corrupt
from compactor.kernels.digest import DIGEST_ENCODING
from compactor.kernels.sha1 import Words
from compactor.kernels.sort_values import SortColumn, decode_sort_values, encode_sort_values, encoded_width
from compactor.kernels.survivors import NOT_DELETED, VOID

INDEX_FORMAT = 1
DIGEST_BYTES = 20
TOMBSTONE_FILE_NUMBER = 0
VOID_FILE_NUMBER = -1
SORT_COLUMN_PREFIX = "sort:"


@dataclass(frozen=True)
class IndexRows:
    """Rows of the index, sorted by digest.

    words         (rows, 5)
    file_numbers  int32 (rows,)
    row_indices   int64 (rows,)
    sort_values   uint8 (rows, width), encoded
    """

    words: Words
    file_numbers: npt.NDArray[np.int32]
    row_indices: npt.NDArray[np.int64]
    sort_values: npt.NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.words)

    @property
    def tombstone_positions(self) -> npt.NDArray[np.int64]:
        """The stream position at which each key was deleted; NOT_DELETED where its row is live; VOID."""
        live_or_void = np.where(self.file_numbers == VOID_FILE_NUMBER, np.int64(VOID), np.int64(NOT_DELETED))
        return np.where(self.file_numbers == TOMBSTONE_FILE_NUMBER, self.row_indices, live_or_void)

    def slice(self, start: int, end: int) -> IndexRows:
        return IndexRows(
            self.words[start:end],
            self.file_numbers[start:end],
            self.row_indices[start:end],
            self.sort_values[start:end],
        )

    def take(self, order: npt.NDArray[np.int64]) -> IndexRows:
        return IndexRows(
            self.words.take(order, axis=0),
            self.file_numbers.take(order),
            self.row_indices.take(order),
            self.sort_values.take(order, axis=0),
        )

    @classmethod
    def concatenate(cls, pieces: Sequence[IndexRows]) -> IndexRows:
        """The rows of at least one piece, one piece after the other."""
        if len(pieces) == 1:
            return pieces[0]
        return cls(
            np.concatenate([piece.words for piece in pieces]),
            np.concatenate([piece.file_numbers for piece in pieces]),
            np.concatenate([piece.row_indices for piece in pieces]),
            np.concatenate([piece.sort_values for piece in pieces]),
        )


def no_rows(sort_columns: Sequence[SortColumn]) -> IndexRows:
    return IndexRows(
        np.empty((0, 5), np.uint32),
        np.empty(0, np.int32),
        np.empty(0, np.int64),
        np.empty((0, encoded_width(sort_columns)), np.uint8),
    )


_POINTER_FIELDS = (
    pa.field("file_number", pa.int32(), nullable=False),
    pa.field("row_index", pa.int64(), nullable=False),
)
POINTER_SCHEMA = pa.schema(_POINTER_FIELDS, metadata={"lithify.index_format": str(INDEX_FORMAT)})
"""The Arrow schema of pointers that replace those of an index file."""


def index_schema(sort_columns: Sequence[SortColumn]) -> pa.Schema:
    """The Arrow schema of an index file, with the numbers of its formats as metadata."""
    fields = [
        pa.field("digest", pa.binary(DIGEST_BYTES), nullable=False),
        *_POINTER_FIELDS,
        *(pa.field(SORT_COLUMN_PREFIX + column.name, column.arrow_type) for column in sort_columns),
    ]
    formats = {"lithify.index_format": str(INDEX_FORMAT), "lithify.digest_encoding": str(DIGEST_ENCODING)}
    return pa.schema(fields, metadata=formats)


def to_record_batch(rows: IndexRows, sort_columns: Sequence[SortColumn]) -> pa.RecordBatch:
    digests = pa.py_buffer(np.ascontiguousarray(rows.words.astype(">u4")))
    arrays = [
        pa.Array.from_buffers(pa.binary(DIGEST_BYTES), len(rows), [None, digests]),
        pa.array(rows.file_numbers, pa.int32()),
        pa.array(rows.row_indices, pa.int64()),
        *decode_sort_values(sort_columns, rows.sort_values),
    ]
    return pa.record_batch(arrays, schema=index_schema(sort_columns))


class IndexSegment:
    """One index file, opened: its columns as they lie there, read only where they are touched.

    pointers  what holds in place of the file's own pointers; None: they hold
    """

    def __init__(self, file: IndexFile, where: str, batch: pa.RecordBatch, pointers: pa.RecordBatch | None) -> None:
        written_with = (batch.schema.metadata or {}).get(b"lithify.digest_encoding", b"missing").decode()
        if written_with != str(DIGEST_ENCODING):
            raise Corrupt(f"{where} has digest encoding {written_with}; this release reads encoding {DIGEST_ENCODING}")
        digests = batch.column("digest")
        self.file = file
        self.raw_digests: Words = np.frombuffer(digests.buffers()[1], np.uint32, count=5 * batch.num_rows).reshape(
            -1, 5
        )
        placed = batch if pointers is None else pointers
        self.file_numbers: npt.NDArray[np.int32] = placed.column("file_number").to_numpy()
        self.row_indices: npt.NDArray[np.int64] = placed.column("row_index").to_numpy()
        self._batch = batch

    def rows(self, sort_columns: Sequence[SortColumn], positions: npt.NDArray[np.int64] | None = None) -> IndexRows:
        """All rows, or those at ascending positions. Sort values that were written narrower than now widen."""
        arrays = [self._batch.column(SORT_COLUMN_PREFIX + column.name) for column in sort_columns]
        raw, file_numbers, row_indices = self.raw_digests, self.file_numbers, self.row_indices
        if positions is not None:
            raw = raw.take(positions, axis=0)
            file_numbers, row_indices = file_numbers.take(positions), row_indices.take(positions)
            arrays = [array.take(pa.array(positions)) for array in arrays]
        values = [_widen(array, column.arrow_type) for array, column in zip(arrays, sort_columns, strict=True)]
        return IndexRows(
            raw.view(">u4").astype(np.uint32),
            file_numbers,
            row_indices,
            encode_sort_values(sort_columns, values, len(raw)),
        )


def _widen(array: pa.Array, arrow_type: pa.DataType) -> pa.Array:
    """A column that has held nothing but nulls so far was written with a type of its own: no value says which."""
    if array.null_count == len(array):
        return pa.nulls(len(array), arrow_type)
    return array.cast(arrow_type)
