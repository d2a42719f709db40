"""Copies rows from Parquet file to Parquet file without decoding their values: the source and the target.

with open_rows(location, file, [schema]) as rows:    # None: only Arrow can read this file
    group = rows.take(row_indices)                   # None: the same
writer.write_row_group(group)
"""

import itertools
import mmap
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from compactor.model.errors import Invalid
from compactor.model.machine import this_release
from compactor.model.names import ContentType
from compactor.storage.location import StoreLocation
from compactor.storage.ranges import Span
from compactor.tabular.filesystems import reading
from compactor.tabular.formats import Source, TabularFile
from compactor.tabular.parquet_pages.arrow_files import (
    arrow_schema_of,
    chunk_span,
    map_file,
    open_parquet,
    parquet_writer,
    release_mapped,
)
from compactor.tabular.parquet_pages.chosen_rows import ChunkPages, RemoteWindow, read_rows
from compactor.tabular.parquet_pages.page_format import (
    MAGIC,
    ColumnChunkField,
    FileMetaDataField,
    RowGroupField,
)
from compactor.tabular.parquet_pages.page_format import ColumnMetaDataField as _Metadata
from compactor.tabular.parquet_pages.page_reader import (
    ColumnType,
    ReadColumn,
    UnsupportedPages,
    decoded_bytes,
    is_supported,
    read_column,
)
from compactor.tabular.parquet_pages.page_writer import ColumnChunk, encode_rows
from compactor.tabular.parquet_pages.thrift import (
    Field,
    Kind,
    Struct,
    binary,
    i64,
    items,
    read_struct,
    struct_in,
    structs_in,
    structure,
    write_struct,
)
from compactor.tabular.remote_file import RemoteFile
from compactor.tabular.stored_types import stored_schema

TOUCHED_BYTES_MAX = 16 * 1024 * 1024
"""Bytes of a mapped file that are read page by page before its pages are released."""

PlacedChunk: TypeAlias = tuple[pq.ColumnChunkMetaData, int]
"""A column chunk, and its start."""


def created_by() -> str:
    """The writer of the pages, for readers that have workarounds for certain writers: Lithify, not Arrow."""
    return f"lithify version {this_release()}"


@dataclass(frozen=True)
class RowGroup:
    """Rows encoded as Parquet, one column chunk per column."""

    rows: int
    chunks: tuple[ColumnChunk, ...]


class ParquetRows:
    """The rows of an open file, which can be taken in any order.

    Attributes:
        schema: which of the given schemas the file has
        bytes_per_row: average memory of a row, as encoded in the file
        decoded_bytes: memory of all columns decoded, as `take` keeps them, of the row groups that have a row of
            `bounds`"""

    def __init__(
        self,
        source: Source,
        remote: RemoteFile | None,
        mapped: mmap.mmap | None,
        metadata: pq.FileMetaData,
        schema: pa.Schema,
        bounds: tuple[int, int] | None,
    ) -> None:
        """`bounds`: the first and the last row that will be taken; None: any."""
        self.schema = schema
        self._metadata = metadata
        self.row_count = metadata.num_rows
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        self.bytes_per_row = max(1, sum(group.total_byte_size for group in groups) // max(1, self.row_count))
        self._column_types = [ColumnType.of(metadata.schema.column(number)) for number in range(metadata.num_columns)]
        self._chunks = [[group.column(number) for group in groups] for number in range(metadata.num_columns)]
        self._source = source
        self._remote = remote
        self._mapped = mapped
        self._columns: list[ReadColumn] = []
        self._group_starts = np.concatenate(([0], np.cumsum([group.num_rows for group in groups]))).astype(np.int64)
        self._bounds = bounds or (0, self.row_count - 1)
        self._decoded = self._groups_around(self._bounds)
        self._decoded_start = int(self._group_starts[self._decoded.start])
        self._decoded_rows = int(self._group_starts[self._decoded.stop]) - self._decoded_start
        self.decoded_bytes = sum(
            decoded_bytes(column_type, chunk)
            for column_type, chunks in zip(self._column_types, self._chunks, strict=True)
            for chunk in chunks[self._decoded]
        )
        self._window = None if remote is None else RemoteWindow(remote)
        self._file_bytes = len(mapped) if mapped is not None else 0 if remote is None else remote.size_bytes
        self._touched_bytes = 0
        self._pages: dict[tuple[int, int], ChunkPages] = {}

    @property
    def bounds_are_most(self) -> bool:
        """Whether most of the rows that `take` decodes are within the bounds."""
        return 2 * (self._bounds[1] + 1 - self._bounds[0]) >= self._decoded_rows

    def take(self, row_indices: npt.NDArray[np.int64], keep_decoded: bool = False) -> RowGroup | None:
        """These rows, within the bounds, in this order; None if the file has pages that only Arrow can read.

        `keep_decoded`: keep the decoded columns for the next call. Raises `Invalid` if the file is damaged."""
        self._check(row_indices)
        row_indices = row_indices - self._decoded_start
        with reading(self._source.file.uri, ContentType.PARQUET):
            try:
                if not keep_decoded and not self._columns:
                    return RowGroup(len(row_indices), tuple(encode_rows(each, row_indices) for each in self._read()))
                self._columns = self._columns or list(self._read())
            except UnsupportedPages:
                return None
            return RowGroup(len(row_indices), tuple(encode_rows(each, row_indices) for each in self._columns))

    def take_some(self, row_indices: npt.NDArray[np.int64]) -> RowGroup | None:
        """As `take`, but in memory for these rows alone, whatever the size of the file: page by page, of the pages that
        have some of them, one column at a time."""
        self._check(row_indices)
        order = np.argsort(row_indices, kind="stable")
        places = np.empty(len(order), np.int64)
        places[order] = np.arange(len(order))
        with reading(self._source.file.uri, ContentType.PARQUET):
            try:
                columns = self._read_some(row_indices[order])
                return RowGroup(len(row_indices), tuple(encode_rows(each, places) for each in columns))
            except UnsupportedPages:
                return None

    def whole_groups(self, row_indices: npt.NDArray[np.int64]) -> list[int]:
        """The numbers of the row groups that these rows are, whole and in order; none if they are anything else."""
        if not len(row_indices) or len(row_indices) != row_indices[-1] + 1 - row_indices[0]:
            return []
        first, last = np.searchsorted(self._group_starts, [row_indices[0], row_indices[-1] + 1]).tolist()
        bounds = self._group_starts[[first, last]].tolist()
        if bounds != [row_indices[0], row_indices[-1] + 1] or (np.diff(row_indices) != 1).any():
            return []
        return [group for group in range(first, last) if self._group_starts[group + 1] > self._group_starts[group]]

    def rows_of_group(self, group: int) -> npt.NDArray[np.int64]:
        return np.arange(self._group_starts[group], self._group_starts[group + 1], dtype=np.int64)

    def pass_on(self, group: int) -> RowGroup:
        """A row group as it is: the bytes of its column chunks. Raises `Invalid` if the file is damaged."""
        with reading(self._source.file.uri, ContentType.PARQUET):
            spans = []
            for number, chunks in enumerate(self._chunks):
                if chunks[group].num_values != self._group_starts[group + 1] - self._group_starts[group]:
                    name = self._column_types[number].name
                    raise pa.ArrowInvalid(f"column {name!r} does not have the rows of its row group")
                start, size = chunk_span(chunks[group], self._file_bytes)
                spans.append(Span(start, start + size))
            chunks_of_group = structs_in(self._groups_in_footer[group], RowGroupField.COLUMNS)
            metadata = [struct_in(chunk, ColumnChunkField.META_DATA) for chunk in chunks_of_group]
            chunks_read = zip(metadata, spans, self._bytes_of(spans), strict=True)
            return RowGroup(
                int(self._group_starts[group + 1] - self._group_starts[group]),
                tuple(_as_it_is(each, span, data) for each, span, data in chunks_read),
            )

    @cached_property
    def _groups_in_footer(self) -> list[Struct]:
        sink = pa.BufferOutputStream()
        self._metadata.write_metadata_file(sink)
        footer, _ = _footer_of(sink.getvalue())
        return structs_in(footer, FileMetaDataField.ROW_GROUPS)

    def _bytes_of(self, spans: Sequence[Span]) -> list[bytes]:
        if self._remote is not None:
            (pieces,) = self._remote.read_groups([spans])
            return [bytes(piece) for piece in pieces]
        if self._mapped is None:
            raise pa.ArrowInvalid("an empty file has no row groups")
        found = [self._mapped[span.start : span.end] for span in spans]
        release_mapped(self._mapped)
        return found

    def _groups_around(self, bounds: tuple[int, int]) -> slice:
        """The row groups that have a row from the first to the last."""
        first = int(np.searchsorted(self._group_starts[1:], bounds[0], side="right"))
        return slice(first, max(int(np.searchsorted(self._group_starts[:-1], bounds[1], side="right")), first))

    def _check(self, row_indices: npt.NDArray[np.int64]) -> None:
        if len(row_indices) and not 0 <= row_indices.min() <= row_indices.max() < self.row_count:
            raise Invalid(f"{self._source.file.uri} holds {self.row_count} rows, and not row {row_indices.max()}")

    def _read(self) -> Iterator[ReadColumn]:
        """The columns, one after the other."""
        for column_type, (data, chunks) in zip(self._column_types, self._bytes_of_columns(), strict=True):
            column = read_column(column_type, data, chunks)
            if self._decoded_rows != (len(column.valid) if column.valid is not None else _rows_of(column)):
                raise pa.ArrowInvalid(f"column {column_type.name!r} does not have {self._decoded_rows} rows")
            yield column

    def _bytes_of_columns(self) -> Iterator[tuple[npt.NDArray[np.uint8], list[PlacedChunk]]]:
        """For each column bytes that contain it, and the starts of its chunks in them."""
        if self._mapped is not None:
            whole = np.frombuffer(self._mapped, np.uint8)
            for chunks in self._chunks:
                yield whole, [(chunk, chunk_span(chunk, len(whole))[0]) for chunk in chunks[self._decoded]]
                release_mapped(self._mapped)
            return
        if self._remote is None:  # an empty file, which cannot be mapped, has no columns
            return
        decoded = [chunks[self._decoded] for chunks in self._chunks]
        spans = [[self._span_of(self._remote, chunk) for chunk in chunks] for chunks in decoded]
        for chunks, pieces in zip(decoded, self._remote.read_groups(spans), strict=True):
            starts = itertools.accumulate((len(piece) for piece in pieces[:-1]), initial=0)
            joined = np.frombuffer(pieces[0] if len(pieces) == 1 else b"".join(pieces), np.uint8)
            yield joined, list(zip(chunks, starts, strict=False))

    def _read_some(self, ascending: npt.NDArray[np.int64]) -> Iterator[ReadColumn]:
        """These rows of the columns, one after the other."""
        bounds = np.searchsorted(ascending, self._group_starts)
        groups = [int(each) for each in np.flatnonzero(np.diff(bounds))]
        rows = [ascending[bounds[each] : bounds[each + 1]] - self._group_starts[each] for each in groups]
        # Values that stay in the mapping are touched again when they are written: only where most of them are wanted.
        is_dense = len(ascending) > 0 and 2 * len(ascending) > ascending[-1] - ascending[0]
        in_place = np.frombuffer(self._mapped, np.uint8) if self._mapped is not None and is_dense else None
        for number, column_type in enumerate(self._column_types):
            pages = [self._pages_of(number, group) for group in groups]
            if self._window is not None:
                following = range(number + 1, len(self._chunks))[:1]
                self._window.hold(pages, [self._pages_of(each, group) for each in following for group in groups])
            yield read_rows(column_type, list(zip(pages, rows, strict=True)), in_place)
            release_mapped(self._mapped)

    def _pages_of(self, column: int, group: int) -> ChunkPages:
        known = self._pages.get((column, group))
        if known is None:
            chunk = self._chunks[column][group]
            if chunk.num_values != self._group_starts[group + 1] - self._group_starts[group]:
                name = self._column_types[column].name
                raise pa.ArrowInvalid(f"column {name!r} does not have the rows of its row group")
            start, size = chunk_span(chunk, self._file_bytes)
            known = self._pages[column, group] = ChunkPages(chunk, start, start + size, self._read_bytes)
        return known

    def _read_bytes(self, start: int, end: int, until: int) -> memoryview:
        if self._window is not None:
            return self._window.read(start, end, until)
        if self._mapped is None:
            raise pa.ArrowInvalid("an empty file has no pages")
        self._touched_bytes += end - start
        if self._touched_bytes > TOUCHED_BYTES_MAX:
            release_mapped(self._mapped)
            self._touched_bytes = 0
        return memoryview(self._mapped)[start:end]

    def _span_of(self, remote: RemoteFile, chunk: pq.ColumnChunkMetaData) -> Span:
        start, length = chunk_span(chunk, remote.size_bytes)
        return Span(start, start + length)


def _as_it_is(metadata: Struct, span: Span, data: bytes) -> ColumnChunk:
    """The chunk without what lies elsewhere in its file: fields of the format that are not known here."""
    kept: Struct = {field: metadata[field] for field in _Metadata if field in metadata}
    _shift(kept, -span.start)
    return ColumnChunk([data], len(data), _number(kept, _Metadata.TOTAL_UNCOMPRESSED_SIZE), kept)


def _rows_of(column: ReadColumn) -> int:
    return len(column.values) if column.codes is None else len(column.codes)


@contextmanager
def open_rows(
    location: StoreLocation, file: TabularFile, schemas: Sequence[pa.Schema], bounds: tuple[int, int] | None = None
) -> Iterator[ParquetRows | None]:
    """The rows of a Parquet file; None unless a Parquet file of one of the schemas would encode them in the same way.
    `bounds`: the first and the last row that will be taken; None: any."""
    if file.content_type is not ContentType.PARQUET:
        yield None
        return
    source = Source.of(location, file)
    with ExitStack() as files:
        with reading(file.uri, file.content_type):
            mapped = None if source.is_remote else map_file(source.checked_path())
            if mapped is None:
                opened = files.enter_context(open_parquet(source))
                parquet, remote = opened.parquet, opened.remote
            else:
                parquet, remote = files.enter_context(pq.ParquetFile(pa.BufferReader(mapped))), None
            schema = next((each for each in schemas if _is_alike(parquet, each)), None)
            rows = None if schema is None else ParquetRows(source, remote, mapped, parquet.metadata, schema, bounds)
        yield rows


def with_constants(group: RowGroup, values: Mapping[str, str]) -> RowGroup:
    """The row group with further columns, each with one text in every row."""
    return replace(group, chunks=(*group.chunks, *_constant_chunks(values, group.rows))) if values else group


def _constant_chunks(values: Mapping[str, str], rows: int) -> Iterator[ColumnChunk]:
    codes = pa.array(np.zeros(rows, np.int32))
    table = pa.table({name: pa.DictionaryArray.from_arrays(codes, [value]) for name, value in values.items()})
    data = _file_of(table, table.schema, None)
    footer, _ = _footer_of(data)
    (group,) = structs_in(footer, FileMetaDataField.ROW_GROUPS)
    for chunk in structs_in(group, RowGroupField.COLUMNS):
        metadata = struct_in(chunk, ColumnChunkField.META_DATA)
        start = min(_number(metadata, _Metadata.DICTIONARY_PAGE_OFFSET), _number(metadata, _Metadata.DATA_PAGE_OFFSET))
        size = _number(metadata, _Metadata.TOTAL_COMPRESSED_SIZE)
        _shift(metadata, -start)
        yield ColumnChunk(
            [data.slice(start, size)], size, _number(metadata, _Metadata.TOTAL_UNCOMPRESSED_SIZE), metadata
        )


def _number(metadata: Struct, field: _Metadata) -> int:
    value = metadata[field].value
    if not isinstance(value, int):
        raise TypeError(f"{field.name} is no number")
    return value


def _is_alike(parquet: pq.ParquetFile, schema: pa.Schema) -> bool:
    metadata = parquet.metadata
    stored = stored_schema(schema, ContentType.PARQUET)
    template = pq.ParquetFile(pa.BufferReader(_file_of(stored.empty_table(), stored, None)))
    return (
        arrow_schema_of(parquet).equals(stored)
        and metadata.schema.equals(template.metadata.schema)
        and all(
            is_supported(metadata.schema.column(column), metadata.row_group(group).column(column))
            for group in range(metadata.num_row_groups)
            for column in range(metadata.num_columns)
        )
    )


class RowGroupSink:
    """Writes a file of copied row groups, and of tables, each of which Arrow encodes as a row group."""

    def __init__(self, stream: pa.NativeFile, schema: pa.Schema, dictionary_columns: Sequence[str] | None) -> None:
        self._stream = stream
        self._schema = schema
        self._dictionary_columns = dictionary_columns
        self._groups: list[Struct] = []
        self._rows = 0
        self._position = len(MAGIC)
        stream.write(MAGIC)

    def write(self, piece: pa.Table) -> None:
        """Appends rows that Arrow encodes."""
        data = _file_of(piece, self._schema, self._dictionary_columns)
        footer, end = _footer_of(data)
        shift = self._position - len(MAGIC)
        self._stream.write(data.slice(len(MAGIC), end - len(MAGIC)))
        self._position += end - len(MAGIC)
        for group in structs_in(footer, FileMetaDataField.ROW_GROUPS):
            for chunk in structs_in(group, RowGroupField.COLUMNS):
                _shift(struct_in(chunk, ColumnChunkField.META_DATA), shift)
            self._add(group, piece.num_rows)

    def write_row_group(self, group: RowGroup) -> int:
        """Appends encoded rows; returns the row group's number."""
        start, plain_bytes = self._position, 0
        columns: list[Struct] = []
        for chunk in group.chunks:
            for piece in chunk.pieces:
                self._stream.write(piece)
            metadata = dict(chunk.metadata)
            _shift(metadata, self._position)
            self._position += chunk.size
            plain_bytes += chunk.plain_size
            columns.append({ColumnChunkField.FILE_OFFSET: i64(0), ColumnChunkField.META_DATA: structure(metadata)})
        fields: Struct = {
            RowGroupField.COLUMNS: items(Kind.STRUCT, columns),
            RowGroupField.TOTAL_BYTE_SIZE: i64(plain_bytes),
            RowGroupField.NUM_ROWS: i64(group.rows),
            RowGroupField.TOTAL_COMPRESSED_SIZE: i64(self._position - start),
        }
        self._add(fields, group.rows)
        return len(self._groups) - 1

    def close(self) -> pq.FileMetaData:
        """Writes the footer: Arrow's footer for this schema, with these row groups."""
        footer, _ = _footer_of(_file_of(self._schema.empty_table(), self._schema, None))
        footer[FileMetaDataField.NUM_ROWS] = i64(self._rows)
        footer[FileMetaDataField.ROW_GROUPS] = items(Kind.STRUCT, self._groups)
        footer[FileMetaDataField.CREATED_BY] = binary(created_by().encode())
        data = write_struct(footer)
        tail = data + struct.pack("<I", len(data)) + MAGIC
        self._stream.write(tail)
        return pq.read_metadata(pa.BufferReader(MAGIC + tail))

    def _add(self, group: Struct, rows: int) -> None:
        first = struct_in(structs_in(group, RowGroupField.COLUMNS)[0], ColumnChunkField.META_DATA)
        starts = [
            first[field].value
            for field in (_Metadata.DICTIONARY_PAGE_OFFSET, _Metadata.DATA_PAGE_OFFSET)
            if field in first
        ]
        group[RowGroupField.FILE_OFFSET] = Field(Kind.I64, starts[0])
        group[RowGroupField.ORDINAL] = Field(Kind.I16, len(self._groups))
        self._groups.append(group)
        self._rows += rows


def _shift(metadata: Struct, distance: int) -> None:
    for field in (
        _Metadata.DATA_PAGE_OFFSET,
        _Metadata.INDEX_PAGE_OFFSET,
        _Metadata.DICTIONARY_PAGE_OFFSET,
    ):
        value = metadata[field].value if field in metadata else None
        if isinstance(value, int):
            metadata[field] = i64(value + distance)


def _file_of(table: pa.Table, schema: pa.Schema, dictionary_columns: Sequence[str] | None) -> pa.Buffer:
    """A Parquet file in memory: the table in one row group, or without one if it is empty."""
    stream = pa.BufferOutputStream()
    with parquet_writer(stream, schema, dictionary_columns) as writer:
        if table.num_rows:
            writer.write_table(table, row_group_size=table.num_rows)
    return stream.getvalue()


def _footer_of(data: pa.Buffer) -> tuple[Struct, int]:
    """The footer of a Parquet file, and its start."""
    view = memoryview(data).cast("B")
    start = data.size - 8 - int(struct.unpack("<I", view[-8:-4])[0])
    return read_struct(view[start:-8])[0], start
