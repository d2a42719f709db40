"""Parquet: read by row group, written with bounded row groups, measured by its footer."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType

import pyarrow as pa
import pyarrow.parquet as pq

from compactor.names import ContentType
from compactor.object_store import StoreLocation
from compactor.schemas import cast_column
from compactor.tabular.bounds import parquet_column_stats
from compactor.tabular.column_chunks import DICTIONARY_PAGE_BYTES, DICTIONARY_SHARE_MAX
from compactor.tabular.filesystems import open_filesystem, reading
from compactor.tabular.formats import FileMeasure, Source, TabularFile, wanted_columns
from compactor.tabular.number_columns import read_numbers

BATCH_BYTES = 16 * 1024 * 1024
"""What one batch should take in memory: 64 Ki rows of 256 bytes, or 16 Ki rows of 1 KiB."""

BATCH_ROWS_MAX = 128 * 1024
BATCH_ROWS_MIN = 256

_PLAIN_WIDTHS: Mapping[str, float] = MappingProxyType(
    {"BOOLEAN": 1 / 8, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
)

_ARROW_SCHEMA_KEY = b"ARROW:schema"


class Parquet:
    """See `TabularFormat`."""

    def read_schema(self, source: Source, schema: pa.Schema | None) -> pa.Schema:
        del schema
        with _open(source) as parquet:
            return arrow_schema_of(parquet)

    def read_table(self, source: Source, columns: Sequence[str] | None, schema: pa.Schema | None) -> pa.Table:
        with _open(source) as parquet:
            arrow_schema = arrow_schema_of(parquet)
            wanted = wanted_columns(source, arrow_schema, columns)
            return _as_written(parquet.read(columns=wanted).select(wanted), arrow_schema)

    def read_batches(
        self, source: Source, columns: Sequence[str] | None, schema: pa.Schema | None
    ) -> Iterator[pa.RecordBatch]:
        del schema
        with source.open() as opened, open_parquet(source, opened) as parquet:
            arrow_schema = arrow_schema_of(parquet)
            wanted = wanted_columns(source, arrow_schema, columns)
            # One row group at a time: asked for several, the reader holds the bytes of all of them until the end.
            for row_group in range(parquet.num_row_groups):
                for batch in _batches(source, parquet, opened, row_group, wanted):
                    yield from _as_written(pa.Table.from_batches([batch]).select(wanted), arrow_schema).to_batches()

    def read_row(self, source: Source, row_index: int) -> pa.Table:
        """One row, as a table; of the file only its footer and the row's row group are read."""
        with _open(source) as parquet:
            for row_group in range(parquet.num_row_groups):
                rows = parquet.metadata.row_group(row_group).num_rows
                if row_index < rows:
                    table = parquet.read_row_group(row_group).slice(row_index, 1)
                    return _as_written(table, arrow_schema_of(parquet))
                row_index -= rows
        return arrow_schema_of(parquet).empty_table()

    def measure(self, source: Source, schema: pa.Schema | None) -> FileMeasure:
        del schema
        with source.open() as opened, pq.ParquetFile(opened) as parquet:
            return parquet_measure(parquet.metadata, arrow_schema_of(parquet), opened.size())


def parquet_measure(metadata: pq.FileMetaData, schema: pa.Schema, size_bytes: int) -> FileMeasure:
    """A file's measure from its footer."""
    return FileMeasure(metadata.num_rows, size_bytes, schema, parquet_column_stats(metadata, schema))


def dictionary_columns_of(location: StoreLocation, file: TabularFile) -> tuple[str, ...] | None:
    """Leaf columns (dotted paths) that dictionaries made smaller in this file; None where the file is not Parquet.

    A writer that is told them does not build dictionaries only to drop them when they have outgrown their page.
    """
    if file.content_type is not ContentType.PARQUET:
        return None
    filesystem, path = open_filesystem(location, file.uri)
    with reading(file.uri, file.content_type), _open(Source(file, filesystem, path)) as parquet:
        metadata = parquet.metadata
    row_groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    return tuple(
        metadata.schema.column(position).path
        for position in range(metadata.num_columns)
        if _dictionary_pays(
            [row_group.column(position) for row_group in row_groups], metadata.schema.column(position).length
        )
    )


def _dictionary_pays(chunks: Sequence[pq.ColumnChunkMetaData], fixed_length: int) -> bool:
    """Whether one column's dictionary-encoded chunks are much smaller than plain ones would be.

    The metadata does not say that a writer gave a dictionary up: the encodings list PLAIN in either case, because the
    dictionary's own page is plain. Sizes tell, before compression. Where values have one width, or where the least and
    the greatest text tell their usual length, plain chunks can be computed. Where they cannot, it is known that a
    dictionary page holds 1 MiB and that an index into it has 18 bits at most; more than that are plain values.
    """
    encoded_bytes = plain_bytes = index_bytes_max = 0
    for chunk in chunks:
        if not chunk.has_dictionary_page:
            return False
        stats = chunk.statistics if chunk.is_stats_set else None
        nulls = stats.null_count if stats is not None and stats.has_null_count else 0
        values = chunk.num_values - nulls
        encoded_bytes += chunk.total_uncompressed_size
        plain_bytes += values * _plain_width(chunk, stats, fixed_length)
        index_bytes_max += DICTIONARY_PAGE_BYTES + values * 18 // 8 + chunk.num_values // 2
    return encoded_bytes <= index_bytes_max and encoded_bytes <= DICTIONARY_SHARE_MAX * plain_bytes


def _plain_width(chunk: pq.ColumnChunkMetaData, stats: pq.Statistics | None, fixed_length: int) -> float:
    """Bytes of one plain value; for text and bytes a guess from the two values that the statistics hold."""
    if chunk.physical_type != "BYTE_ARRAY":
        return _PLAIN_WIDTHS.get(chunk.physical_type, fixed_length)
    if stats is None or not stats.has_min_max:
        return math.inf
    return 4 + (len(stats.min_raw) + len(stats.max_raw)) / 2


def arrow_schema_of(parquet: pq.ParquetFile) -> pa.Schema:
    """The types that the file was written from.

    The Arrow schema beside Parquet's own is followed by the reader, but not for all types: seconds come back as
    milliseconds, date64 as date32, and dictionaries of anything but text without their dictionary.
    """
    read = parquet.schema_arrow
    encoded = (parquet.metadata.metadata or {}).get(_ARROW_SCHEMA_KEY)
    if encoded is None:
        return read
    written = pa.ipc.read_schema(pa.BufferReader(base64.b64decode(encoded)))
    if written.names != read.names:
        return read
    fields = [read.field(position).with_type(_wide(field.type)) for position, field in enumerate(written)]
    return pa.schema(fields, metadata=read.metadata)


def _wide(kind: pa.DataType) -> pa.DataType:
    """A dictionary's indices as wide as `stored_types` makes them: one file may have more values than 8 bits count."""
    if not pa.types.is_dictionary(kind) or kind.index_type.bit_width >= 32:
        return kind
    return pa.dictionary(pa.int32(), kind.value_type, ordered=kind.ordered)


def _as_written(table: pa.Table, arrow_schema: pa.Schema) -> pa.Table:
    for position, name in enumerate(table.schema.names):
        field = arrow_schema.field(name)
        if table.column(position).type != field.type:
            table = table.set_column(position, field, cast_column(table.column(position), field.type))
    return table


@contextmanager
def _open(source: Source) -> Iterator[pq.ParquetFile]:
    with source.open() as opened, open_parquet(source, opened) as parquet:
        yield parquet


def open_parquet(source: Source, opened: pa.NativeFile) -> pq.ParquetFile:
    """An open file as Parquet."""
    return pq.ParquetFile(opened, pre_buffer=source.is_remote)


def parquet_writer(
    stream: pa.NativeFile,
    schema: pa.Schema,
    dictionary_columns: Sequence[str] | None,
    footers: list[pq.FileMetaData] | None = None,
) -> pq.ParquetWriter:
    """Writes Parquet as all of Lithify's files are written. Its footer is added to `footers` when it is closed."""
    return pq.ParquetWriter(
        stream,
        schema,
        compression="snappy",
        write_statistics=True,
        store_schema=True,
        use_dictionary=True if dictionary_columns is None else list(dictionary_columns),
        metadata_collector=footers,
    )


def _batches(
    source: Source, parquet: pq.ParquetFile, opened: pa.NativeFile, row_group: int, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    rows = _batch_rows(parquet.metadata.row_group(row_group))
    # Of a remote file Arrow asks for all columns at once.
    numbers = None if source.is_remote else read_numbers(parquet, opened, row_group, columns)
    if numbers is None:
        yield from parquet.iter_batches(batch_size=rows, row_groups=[row_group], columns=columns)
    else:
        yield from (numbers.slice(start, rows) for start in range(0, numbers.num_rows, rows))


def _batch_rows(row_group: pq.RowGroupMetaData) -> int:
    bytes_per_row = max(1, row_group.total_byte_size // max(1, row_group.num_rows))
    return int(min(BATCH_ROWS_MAX, max(BATCH_ROWS_MIN, BATCH_BYTES // bytes_per_row)))
