"""The row layout of the primary key index, in memory and in an index file.

    digest       20 bytes  SHA-1 of the framed key, most significant byte first
    file_number   4 bytes  the compacted file that holds the key's row; 0: the key is deleted (a tombstone);
                           -1: what older runs say of the key is void
    row_index     8 bytes  the row in that file, from 0; of a tombstone: the stream position of the delete
                           (both take fewer bytes in a large file: `packed_pointers.py`)
    sort:<name>   0 to 32  one column per custom sort key, in its own Arrow type

A bucket's index is one run or more. A run's rows are sorted by digest, each digest once, and cut into files at
`rows_per_primary_key_index_file`. Each file holds one record batch, uncompressed: its digests are contiguous bytes, so
a key is found by range reads. The newest run that has a digest is valid for its key.

If many rows of a file have moved, its two pointer columns are replaced by those of a new file.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from compactor.index.packed_pointers import FILE_NUMBER, ROW_INDEX, PointerColumns, file_numbers_of, row_indices_of
from compactor.index.paged_file import PagedFile
from compactor.index.remote_search import RemoteSearch, RowsInRun, expected_rows
from compactor.kernels.digest import DIGEST_ENCODING
from compactor.kernels.search import find_digests
from compactor.kernels.sha1 import Digests
from compactor.kernels.sort_values import SortColumn, decode_sort_values, encode_sort_values, encoded_width
from compactor.kernels.survivors import ERASED, LIVE, TOMBSTONE
from compactor.model.errors import Corrupt
from compactor.model.files import IndexFile, PointerWidths
from compactor.storage.ranges import Span

DIGEST_BYTES = 20
TOMBSTONE_FILE_NUMBER = 0
VOID_FILE_NUMBER = -1
SORT_COLUMN_PREFIX = "sort:"


@dataclass(frozen=True)
class IndexRows:
    """Rows of the index, sorted by digest.

    Attributes:
        digests: (rows, 5)
        file_numbers: int32 (rows,)
        row_indices: int64 (rows,)
        sort_values: uint8 (rows, width), encoded"""

    digests: Digests
    file_numbers: npt.NDArray[np.int32]
    row_indices: npt.NDArray[np.int64]
    sort_values: npt.NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.digests)

    def outcomes(self) -> npt.NDArray[np.uint8]:
        """The outcome of each key: LIVE, TOMBSTONE or ERASED. Raises `Corrupt` for an invalid file number."""
        outcomes = np.full(len(self), LIVE, np.uint8)
        others = np.flatnonzero(self.file_numbers <= TOMBSTONE_FILE_NUMBER)
        numbers = self.file_numbers[others]
        if (numbers < VOID_FILE_NUMBER).any():
            raise Corrupt(f"the primary key index names compacted file {numbers.min()}")
        outcomes[others] = np.where(numbers == VOID_FILE_NUMBER, ERASED, TOMBSTONE)
        return outcomes

    def slice(self, start: int, end: int) -> IndexRows:
        return IndexRows(
            self.digests[start:end],
            self.file_numbers[start:end],
            self.row_indices[start:end],
            self.sort_values[start:end],
        )

    def take(self, order: npt.NDArray[np.int64]) -> IndexRows:
        return IndexRows(
            self.digests.take(order, axis=0),
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
            np.concatenate([piece.digests for piece in pieces]),
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


def pointer_batch(pointers: PointerColumns) -> pa.RecordBatch:
    """Pointers that replace those of an index file."""
    schema = pa.schema(pointers.fields, metadata={"lithify.index_format": str(pointers.index_format)})
    return pa.record_batch(list(pointers.arrays), schema=schema)


def _index_schema(pointers: PointerColumns, sort_columns: Sequence[SortColumn]) -> pa.Schema:
    """The Arrow schema of an index file, with the numbers of its formats as metadata."""
    fields = [
        pa.field("digest", pa.binary(DIGEST_BYTES), nullable=False),
        *pointers.fields,
        *(pa.field(SORT_COLUMN_PREFIX + column.name, column.arrow_type) for column in sort_columns),
    ]
    formats = {"lithify.index_format": str(pointers.index_format), "lithify.digest_encoding": str(DIGEST_ENCODING)}
    return pa.schema(fields, metadata=formats)


def to_record_batch(rows: IndexRows, pointers: PointerColumns, sort_columns: Sequence[SortColumn]) -> pa.RecordBatch:
    """`pointers`: those of the rows, as they will lie in the file. The rows' digests become those of the batch: their
    bytes are swapped where they lie."""
    digests = rows.digests.byteswap(inplace=True) if sys.byteorder == "little" else rows.digests
    arrays = [
        pa.Array.from_buffers(pa.binary(DIGEST_BYTES), len(rows), [None, pa.py_buffer(digests)]),
        *pointers.arrays,
        *decode_sort_values(sort_columns, rows.sort_values),
    ]
    return pa.record_batch(arrays, schema=_index_schema(pointers, sort_columns))


class IndexSegment:
    """One open index file: its mapped columns, of which only accessed parts are read.

    Args:
        pointers: replacements of the file's own pointers; None: its own are valid
        pages: of a remote file and of its pointers: they fetch what is read; None: all of it is there"""

    def __init__(
        self,
        file: IndexFile,
        where: str,
        batch: pa.RecordBatch,
        pointers: pa.RecordBatch | None,
        pages: tuple[PagedFile, PagedFile] | None = None,
        rows_in_run: RowsInRun | None = None,
    ) -> None:
        written_with = (batch.schema.metadata or {}).get(b"lithify.digest_encoding", b"missing").decode()
        if written_with != str(DIGEST_ENCODING):
            raise Corrupt(f"{where} has digest encoding {written_with}; this release reads encoding {DIGEST_ENCODING}")
        _refuse_other_widths(file.placed, batch if pointers is None else pointers, where)
        digests = batch.column("digest")
        self.file = file
        self._raw: Digests = np.frombuffer(digests.buffers()[1], np.uint32, count=5 * batch.num_rows).reshape(-1, 5)
        self._placed = batch if pointers is None else pointers
        self._batch = batch
        self._pages = pages
        self._rows_in_run = rows_in_run or RowsInRun(0, batch.num_rows)

    @property
    def raw_digests(self) -> Digests:
        """All digests, as they lie in the file."""
        self._need(0, self._batch.column("digest"))
        return self._raw

    @property
    def file_numbers(self) -> npt.NDArray[np.int32]:
        """Of all rows."""
        return file_numbers_of(self._pointers(FILE_NUMBER, None))

    @property
    def row_indices(self) -> npt.NDArray[np.int64]:
        """Of all rows."""
        return row_indices_of(self._pointers(ROW_INDEX, None))

    def row_indices_at(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Of the rows at ascending positions."""
        return row_indices_of(self._pointers(ROW_INDEX, positions), positions)

    def row_indices_where(self, find: Callable[[], npt.NDArray[np.bool_]]) -> npt.NDArray[np.int64]:
        """Of all rows; of a remote file where `find` does not say so, 0, which is a row of every file."""
        if self._pages is None:
            return self.row_indices
        positions = np.flatnonzero(find())
        indices = np.zeros(len(self._raw), np.int64)
        indices[positions] = self.row_indices_at(positions)
        return indices

    def find(self, digests: Digests) -> npt.NDArray[np.int64]:
        """Where each distinct digest of `digests`, which are in digest order, lies: positions, ascending."""
        if self._pages is None:
            return find_digests(self._raw, digests)
        search = RemoteSearch(self._raw, digests, self._rows_in_run, self._need_digests)
        return search.positions()

    def side_of(self, digest: Digests) -> int:
        """Where one digest, (1, 5), is: -1 before the first row, 1 after the last one, 0 between them."""
        sought = digest[0].tolist()
        for row, side in ((0, -1), (len(self._raw) - 1, 1)):
            self._need_digests([(row, row + 1)])
            bound = self._raw[row].view(">u4").tolist()
            if (sought < bound) if side < 0 else (sought > bound):
                return side
        return 0

    def first_digests(self, count: int, digests: Digests) -> Digests:
        """All digests; of a remote file, only the first ones that `find` will look at for these ones."""
        if self._pages is None:
            return self._raw
        expected = [
            (low, min(high, low + count)) for low, high in expected_rows(digests, self._rows_in_run, len(self._raw))
        ]
        self._need_digests(expected[:1])
        return self._raw[slice(*expected[0])] if expected else self._raw[:0]

    def _need_digests(self, rows: Sequence[tuple[int, int]]) -> None:
        if self._pages is not None:
            start = self._batch.column("digest").buffers()[1].address - self._pages[0].buffer.address
            self._pages[0].need([Span(start + DIGEST_BYTES * low, start + DIGEST_BYTES * high) for low, high in rows])

    def _pointers(self, name: str, positions: npt.NDArray[np.int64] | None) -> pa.Array:
        """A column of pointers, which can be touched at these positions."""
        column = self._placed.column(name)
        self._need(1, column, positions)
        return column

    def _need(self, which: int, column: pa.Array, positions: npt.NDArray[np.int64] | None = None) -> None:
        if self._pages is not None:
            self._pages[which].need(self._spans_of(self._pages[which], column, positions))

    @staticmethod
    def _spans_of(pages: PagedFile, column: pa.Array, positions: npt.NDArray[np.int64] | None) -> list[Span]:
        spans: list[Span] = []
        for number, buffer in enumerate(column.buffers()):
            if buffer is None:
                continue
            start = buffer.address - pages.buffer.address
            width = 1 if number == 0 else _bit_width(column.type)
            if positions is None or width is None:
                spans.append(Span(start, start + buffer.size))
            else:
                spans += _spans_at(start, width, positions)
        return spans

    def begin(self, sort_columns: Sequence[SortColumn], positions: npt.NDArray[np.int64] | None = None) -> None:
        """Requests what `rows` reads, if there is room."""
        for pages, spans in self._spans_of_rows(sort_columns, positions):
            pages.begin(spans)

    def fetch(self, sort_columns: Sequence[SortColumn], positions: npt.NDArray[np.int64] | None = None) -> None:
        """Returns when all that `rows` reads is there: it is requested at the same time."""
        wanted = self._spans_of_rows(sort_columns, positions)
        for pages, spans in wanted[1:]:
            pages.begin(spans)
        for pages, spans in wanted:
            pages.need(spans)

    def _spans_of_rows(
        self, sort_columns: Sequence[SortColumn], positions: npt.NDArray[np.int64] | None
    ) -> list[tuple[PagedFile, list[Span]]]:
        if self._pages is None:
            return []
        own, placed = self._pages
        of_own = [
            self._batch.column(name) for name in ("digest", *(SORT_COLUMN_PREFIX + one.name for one in sort_columns))
        ]
        of_placed = [self._placed.column(name) for name in (FILE_NUMBER, ROW_INDEX)]
        spans = [span for column in of_own for span in self._spans_of(own, column, positions)]
        spans_placed = [span for column in of_placed for span in self._spans_of(placed, column, positions)]
        return [(own, spans + spans_placed)] if placed is own else [(own, spans), (placed, spans_placed)]

    def rows(self, sort_columns: Sequence[SortColumn], positions: npt.NDArray[np.int64] | None = None) -> IndexRows:
        """All rows, or those at ascending positions. Sort values of narrower types are widened."""
        self.fetch(sort_columns, positions)
        return _rows_at(positions, self._raw, self._batch, self._placed, sort_columns)

    def rows_between(self, sort_columns: Sequence[SortColumn], start: int, end: int) -> IndexRows:
        """Some rows of those that were fetched."""
        count = end - start
        batch, placed = self._batch.slice(start, count), self._placed.slice(start, count)
        return _rows_at(None, self._raw[start:end], batch, placed, sort_columns)


def _rows_at(
    positions: npt.NDArray[np.int64] | None,
    raw: Digests,
    batch: pa.RecordBatch,
    placed: pa.RecordBatch,
    sort_columns: Sequence[SortColumn],
) -> IndexRows:
    arrays = [batch.column(SORT_COLUMN_PREFIX + column.name) for column in sort_columns]
    file_numbers = file_numbers_of(placed.column(FILE_NUMBER), positions)
    row_indices = row_indices_of(placed.column(ROW_INDEX), positions)
    if positions is not None:
        raw = raw.take(positions, axis=0)
        arrays = [array.take(pa.array(positions)) for array in arrays]
    values = [_widen(array, column.arrow_type) for array, column in zip(arrays, sort_columns, strict=True)]
    return IndexRows(
        raw.view(">u4").astype(np.uint32),
        file_numbers,
        row_indices,
        encode_sort_values(sort_columns, values, len(raw)),
    )


def _refuse_other_widths(stated: PointerWidths, batch: pa.RecordBatch, where: str) -> None:
    """Pointers lie as the log says: a reader of ranges goes by that."""
    names = FILE_NUMBER, ROW_INDEX
    if stated.are_packed:
        expected = [pa.binary(stated.file_number_bytes), pa.binary(stated.row_index_bytes)]
    else:
        expected = [pa.int32(), pa.int64()]
    types = {field.name: field.type for field in batch.schema}
    found = [types.get(name) for name in names]
    if found != expected:
        raise Corrupt(f"{where} has pointers of types {found}, but the log says {expected}")


def _widen(array: pa.Array, arrow_type: pa.DataType) -> pa.Array:
    """A column of nulls only was written with a placeholder type, because its type was unknown."""
    if array.null_count == len(array):
        return pa.nulls(len(array), arrow_type)
    return array.cast(arrow_type)


def _bit_width(arrow_type: pa.DataType) -> int | None:
    """Of a value; None where values have no one width."""
    try:
        return int(arrow_type.bit_width)
    except ValueError:
        return None


def _spans_at(start: int, bit_width: int, positions: npt.NDArray[np.int64]) -> list[Span]:
    """Where values lie in a column's buffer: of each stretch of `_STRETCH_BYTES` that has some, from first to last."""
    if not len(positions):
        return []
    firsts = start + positions * bit_width // 8
    ends = start + ((positions + 1) * bit_width + 7) // 8
    begins = np.flatnonzero(np.diff(firsts // _STRETCH_BYTES, prepend=-1))
    lasts = np.append(begins[1:], len(positions)) - 1
    return [Span(low, high) for low, high in zip(firsts[begins].tolist(), ends[lasts].tolist(), strict=True)]


_STRETCH_BYTES = 16 * 1024
