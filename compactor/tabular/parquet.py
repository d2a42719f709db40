"""Parquet: read by row group, written with bounded row groups, measured by its footer."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq

from compactor.names import ContentType
from compactor.object_store import StoreLocation
from compactor.schemas import cast_column
from compactor.tabular.bounds import parquet_column_stats
from compactor.tabular.filesystems import open_filesystem, reading
from compactor.tabular.formats import FileMeasure, Source, TabularFile, wanted_columns

BATCH_BYTES = 16 * 1024 * 1024
"""What one batch should take in memory: 64 Ki rows of 256 bytes, or 16 Ki rows of 1 KiB."""

BATCH_ROWS_MAX = 128 * 1024
BATCH_ROWS_MIN = 256

_ARROW_SCHEMA_KEY = b"ARROW:schema"


class Parquet:
    """See `TabularFormat`."""

    def read_schema(self, source: Source, schema: pa.Schema | None) -> pa.Schema:
        del schema
        with _open(source) as parquet:
            return _arrow_schema(parquet)

    def read_table(self, source: Source, columns: Sequence[str] | None, schema: pa.Schema | None) -> pa.Table:
        with _open(source) as parquet:
            arrow_schema = _arrow_schema(parquet)
            wanted = wanted_columns(arrow_schema, columns)
            return _as_written(parquet.read(columns=wanted).select(wanted), arrow_schema)

    def read_batches(
        self, source: Source, columns: Sequence[str] | None, schema: pa.Schema | None
    ) -> Iterator[pa.RecordBatch]:
        del schema
        with _open(source) as parquet:
            arrow_schema = _arrow_schema(parquet)
            wanted = wanted_columns(arrow_schema, columns)
            # One row group at a time: asked for several, the reader holds the bytes of all of them until the end.
            for row_group in range(parquet.num_row_groups):
                rows = _batch_rows(parquet.metadata.row_group(row_group))
                for batch in parquet.iter_batches(batch_size=rows, row_groups=[row_group], columns=wanted):
                    yield from _as_written(pa.Table.from_batches([batch]).select(wanted), arrow_schema).to_batches()

    def measure(self, source: Source, schema: pa.Schema | None) -> FileMeasure:
        del schema
        with source.open() as opened, pq.ParquetFile(opened) as parquet:
            return parquet_measure(parquet.metadata, _arrow_schema(parquet), opened.size())


def parquet_measure(metadata: pq.FileMetaData, schema: pa.Schema, size_bytes: int) -> FileMeasure:
    """A file's measure from its footer."""
    return FileMeasure(metadata.num_rows, size_bytes, schema, parquet_column_stats(metadata, schema))


def dictionary_columns_of(location: StoreLocation, file: TabularFile) -> tuple[str, ...] | None:
    """Leaf columns (dotted paths) that deserve dictionary encoding; None where the file is not Parquet."""
    if file.content_type is not ContentType.PARQUET:
        return None
    filesystem, path = open_filesystem(location, file.uri)
    with reading(file.uri, file.content_type), _open(Source(file, filesystem, path)) as parquet:
        metadata = parquet.metadata
    leaves: dict[str, bool] = {}
    for row_group in range(metadata.num_row_groups):
        for position in range(metadata.num_columns):
            chunk = metadata.row_group(row_group).column(position)
            leaves[chunk.path_in_schema] = leaves.get(chunk.path_in_schema, True) and chunk.has_dictionary_page
    return tuple(path for path, encoded in leaves.items() if encoded)


def _arrow_schema(parquet: pq.ParquetFile) -> pa.Schema:
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
    with source.open() as opened, pq.ParquetFile(opened, pre_buffer=source.is_remote) as parquet:
        yield parquet


def _batch_rows(row_group: pq.RowGroupMetaData) -> int:
    bytes_per_row = max(1, row_group.total_byte_size // max(1, row_group.num_rows))
    return int(min(BATCH_ROWS_MAX, max(BATCH_ROWS_MIN, BATCH_BYTES // bytes_per_row)))
