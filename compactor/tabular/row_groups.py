"""Row groups that pass from Parquet file to Parquet file without being decoded: where they come from and go to.

with open_rows(location, file, schema) as rows:      # None: Arrow has to read this file
    group = rows.take(row_indices)                   # None: the same
writer.write_row_group(group)
"""

from __future__ import annotations

import itertools
import mmap
import os
import struct
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from compactor.errors import Invalid
from compactor.names import ContentType
from compactor.object_store import StoreLocation
from compactor.tabular.column_chunks import (
    Column,
    ColumnChunk,
    ColumnType,
    UnknownPages,
    chunk_span,
    encode_rows,
    is_known,
    read_column,
)
from compactor.tabular.filesystems import open_filesystem, reading
from compactor.tabular.formats import Source, TabularFile
from compactor.tabular.parquet import arrow_schema_of, open_parquet, parquet_writer
from compactor.tabular.stored_types import stored_schema
from compactor.tabular.thrift import (
    Field,
    Kind,
    Struct,
    i64,
    items,
    read_struct,
    struct_in,
    structs_in,
    structure,
    write_struct,
)

PlacedChunk: TypeAlias = tuple[pq.ColumnChunkMetaData, int]
"""A column chunk, and where it starts."""

_MAGIC = b"PAR1"
_REMOTE_READS = 8
"""Column chunks of one remote file that are read at a time."""

_ROW_GROUPS, _NUM_ROWS = 4, 3
_COLUMNS, _TOTAL_BYTES, _GROUP_ROWS, _FILE_OFFSET, _COMPRESSED_BYTES, _ORDINAL = 1, 2, 3, 5, 6, 7
_METADATA = 3
_DATA_PAGE_OFFSET, _INDEX_PAGE_OFFSET, _DICTIONARY_PAGE_OFFSET = 9, 10, 11


@dataclass(frozen=True)
class RowGroup:
    """Rows as a Parquet file holds them, one column chunk a column."""

    rows: int
    chunks: tuple[ColumnChunk, ...]


class ParquetRows:
    """The rows of an open file, to be taken in any order.

    bytes_per_row  as they take in memory here, on average
    """

    def __init__(
        self, source: Source, opened: pa.NativeFile, mapped: mmap.mmap | None, metadata: pq.FileMetaData
    ) -> None:
        self.row_count = metadata.num_rows
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        self.bytes_per_row = max(1, sum(group.total_byte_size for group in groups) // max(1, self.row_count))
        self._source = source
        self._opened = opened
        self._mapped = mapped
        self._kinds = [ColumnType.of(metadata.schema.column(number)) for number in range(metadata.num_columns)]
        self._chunks = [[group.column(number) for group in groups] for number in range(metadata.num_columns)]
        self._columns: list[Column] = []

    def take(self, row_indices: npt.NDArray[np.int64], again: bool = False) -> RowGroup | None:
        """These rows, in this order; None where the file turns out to hold pages that only Arrow can read.

        again  keep what was read, since more of the file's rows will be taken
        Raises `Invalid` where the file is damaged.
        """
        if len(row_indices) and not 0 <= row_indices.min() <= row_indices.max() < self.row_count:
            raise Invalid(f"{self._source.file.uri} holds {self.row_count} rows, and not row {row_indices.max()}")
        with reading(self._source.file.uri, ContentType.PARQUET):
            try:
                if not again and not self._columns:
                    return RowGroup(len(row_indices), tuple(encode_rows(each, row_indices) for each in self._read()))
                self._columns = self._columns or list(self._read())
            except UnknownPages:
                return None
            return RowGroup(len(row_indices), tuple(encode_rows(each, row_indices) for each in self._columns))

    def _read(self) -> Iterator[Column]:
        """The columns, one after the other."""
        for kind, (data, chunks) in zip(self._kinds, self._bytes_of_columns(), strict=True):
            column = read_column(kind, data, chunks)
            if self.row_count != (len(column.valid) if column.valid is not None else _rows_of(column)):
                raise pa.ArrowInvalid(f"column {kind.name!r} does not have {self.row_count} rows")
            yield column

    def _bytes_of_columns(self) -> Iterator[tuple[npt.NDArray[np.uint8], list[PlacedChunk]]]:
        """Of each column bytes, and where in them its chunks start. Of a remote file all are asked for at once."""
        if self._mapped is not None:
            whole = np.frombuffer(self._mapped, np.uint8)
            for chunks in self._chunks:
                yield whole, [(chunk, chunk_span(chunk, len(whole))[0]) for chunk in chunks]
                # What was read of a column counts as this process's memory until it is let go of; it can be read again.
                self._mapped.madvise(mmap.MADV_DONTNEED)
            return
        with ThreadPoolExecutor(_REMOTE_READS) as pool:
            data = iter(pool.map(self._chunk_bytes, [chunk for chunks in self._chunks for chunk in chunks]))
            for chunks in self._chunks:
                pieces = list(itertools.islice(data, len(chunks)))
                starts = itertools.accumulate((len(piece) for piece in pieces[:-1]), initial=0)
                joined = np.frombuffer(pieces[0] if len(pieces) == 1 else b"".join(pieces), np.uint8)
                yield joined, list(zip(chunks, starts, strict=False))

    def _chunk_bytes(self, chunk: pq.ColumnChunkMetaData) -> bytes:
        start, length = chunk_span(chunk, self._opened.size())
        data: bytes = self._opened.read_at(length, start) if length else b""
        if len(data) != length:
            raise pa.ArrowInvalid("a column chunk ends early")
        return data


def _rows_of(column: Column) -> int:
    return len(column.values) if column.codes is None else len(column.codes)


@contextmanager
def open_rows(location: StoreLocation, file: TabularFile, schema: pa.Schema) -> Iterator[ParquetRows | None]:
    """The rows of a Parquet file, if a Parquet file of `schema` would hold them in the very same form."""
    if file.content_type is not ContentType.PARQUET:
        yield None
        return
    filesystem, path = open_filesystem(location, file.uri)
    source = Source(file, filesystem, path)
    with ExitStack() as files:
        with reading(file.uri, file.content_type):
            mapped = None if source.is_remote else _map(path)
            opened = files.enter_context(source.open() if mapped is None else pa.BufferReader(mapped))
            parquet = files.enter_context(open_parquet(source, opened))
            rows = ParquetRows(source, opened, mapped, parquet.metadata) if _is_alike(parquet, schema) else None
        yield rows


def _map(path: str) -> mmap.mmap | None:
    """A local file as memory; None for one without bytes, which cannot be. It stays for as long as anything refers to
    it."""
    with Path(path).open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if os.fstat(file.fileno()).st_size else None


def _is_alike(parquet: pq.ParquetFile, schema: pa.Schema) -> bool:
    metadata = parquet.metadata
    stored = stored_schema(schema, ContentType.PARQUET)
    template = pq.ParquetFile(pa.BufferReader(_file_of(stored.empty_table(), stored, None)))
    return (
        arrow_schema_of(parquet).equals(stored)
        and metadata.schema.equals(template.metadata.schema)
        and all(
            is_known(metadata.schema.column(column), metadata.row_group(group).column(column))
            for group in range(metadata.num_row_groups)
            for column in range(metadata.num_columns)
        )
    )


class RowGroupSink:
    """A file of row groups from elsewhere, and of tables, each a row group that Arrow encodes."""

    def __init__(self, stream: pa.NativeFile, schema: pa.Schema, dictionary_columns: Sequence[str] | None) -> None:
        self._stream = stream
        self._schema = schema
        self._dictionary_columns = dictionary_columns
        self._groups: list[Struct] = []
        self._rows = 0
        self._position = len(_MAGIC)
        stream.write(_MAGIC)

    def write(self, piece: pa.Table) -> None:
        """Append rows that Arrow encodes."""
        data = _file_of(piece, self._schema, self._dictionary_columns)
        footer, end = _footer_of(data)
        shift = self._position - len(_MAGIC)
        self._stream.write(data.slice(len(_MAGIC), end - len(_MAGIC)))
        self._position += end - len(_MAGIC)
        for group in structs_in(footer, _ROW_GROUPS):
            for chunk in structs_in(group, _COLUMNS):
                _shift(struct_in(chunk, _METADATA), shift)
            self._add(group, piece.num_rows)

    def write_row_group(self, group: RowGroup) -> None:
        """Append rows that are encoded already."""
        start, columns, plain_bytes = self._position, [], 0
        for chunk in group.chunks:
            for piece in chunk.pieces:
                self._stream.write(piece)
            metadata = dict(chunk.metadata)
            _shift(metadata, self._position)
            self._position += chunk.size
            plain_bytes += chunk.plain_size
            columns.append({2: i64(0), _METADATA: structure(metadata)})
        fields: Struct = {
            _COLUMNS: items(Kind.STRUCT, columns),
            _TOTAL_BYTES: i64(plain_bytes),
            _GROUP_ROWS: i64(group.rows),
            _COMPRESSED_BYTES: i64(self._position - start),
        }
        self._add(fields, group.rows)

    def close(self) -> pq.FileMetaData:
        """Write the footer: Arrow's for a file of this schema, with these row groups."""
        footer, _ = _footer_of(_file_of(self._schema.empty_table(), self._schema, None))
        footer[_NUM_ROWS] = i64(self._rows)
        footer[_ROW_GROUPS] = items(Kind.STRUCT, self._groups)
        data = write_struct(footer)
        tail = data + struct.pack("<I", len(data)) + _MAGIC
        self._stream.write(tail)
        return pq.read_metadata(pa.BufferReader(_MAGIC + tail))

    def _add(self, group: Struct, rows: int) -> None:
        first = struct_in(structs_in(group, _COLUMNS)[0], _METADATA)
        starts = [first[field].value for field in (_DICTIONARY_PAGE_OFFSET, _DATA_PAGE_OFFSET) if field in first]
        group[_FILE_OFFSET] = Field(Kind.I64, starts[0])
        group[_ORDINAL] = Field(Kind.I16, len(self._groups))
        self._groups.append(group)
        self._rows += rows


def _shift(metadata: Struct, distance: int) -> None:
    for field in (_DATA_PAGE_OFFSET, _INDEX_PAGE_OFFSET, _DICTIONARY_PAGE_OFFSET):
        value = metadata[field].value if field in metadata else None
        if isinstance(value, int):
            metadata[field] = i64(value + distance)


def _file_of(table: pa.Table, schema: pa.Schema, dictionary_columns: Sequence[str] | None) -> pa.Buffer:
    """A Parquet file in memory: the table in one row group, or none where it is empty."""
    stream = pa.BufferOutputStream()
    with parquet_writer(stream, schema, dictionary_columns) as writer:
        if table.num_rows:
            writer.write_table(table, row_group_size=table.num_rows)
    return stream.getvalue()


def _footer_of(data: pa.Buffer) -> tuple[Struct, int]:
    """The footer of a Parquet file, and where it starts."""
    view = memoryview(data).cast("B")
    start = data.size - 8 - int(struct.unpack("<I", view[-8:-4])[0])
    return read_struct(view[start:-8])[0], start
