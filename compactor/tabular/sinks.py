"""Writes the bytes of each format: one sink per format."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv, ipc, orc

from compactor.model.errors import Invalid
from compactor.model.names import ContentType
from compactor.tabular.parquet_pages.arrow_files import parquet_writer

PIECE_ROWS_MAX = 1_000_000


PIECE_BYTES_MAX = 64 * 1024 * 1024
"""Bytes in memory of one row group or record batch, which a point lookup reads: 64 Ki rows of 1 KiB."""


class _Sink(Protocol):
    def write(self, piece: pa.Table) -> None: ...

    def close(self) -> pq.FileMetaData | None:
        """Writes the rest without closing the stream; returns the footer if it has statistics."""


class _ParquetSink:
    """One row group per piece."""

    def __init__(self, stream: pa.NativeFile, schema: pa.Schema, dictionary_columns: Sequence[str] | None) -> None:
        self._footers: list[pq.FileMetaData] = []
        self._writer = parquet_writer(stream, schema, dictionary_columns, self._footers)

    def write(self, piece: pa.Table) -> None:
        self._writer.write_table(piece, row_group_size=piece.num_rows)

    def close(self) -> pq.FileMetaData | None:
        self._writer.close()
        return self._footers[0]


class _IpcSink:
    """One record batch per piece, LZ4-compressed as Feather is by default.

    The file form allows one dictionary per column, which may only grow: those of a piece are merged into the last's.
    """

    def __init__(self, stream: pa.NativeFile, schema: pa.Schema) -> None:
        options = ipc.IpcWriteOptions(compression="lz4", emit_dictionary_deltas=True)
        self._writer = ipc.new_file(stream, schema, options=options)
        self._dictionaries = schema.empty_table()

    def write(self, piece: pa.Table) -> None:
        merged = pa.concat_tables([self._dictionaries, piece]).unify_dictionaries()
        self._dictionaries = merged.slice(0, 0)
        self._writer.write_table(merged.combine_chunks())

    def close(self) -> pq.FileMetaData | None:
        self._writer.close()
        return None


class _OrcSink:
    """Stripes of 64 MiB."""

    def __init__(self, stream: pa.NativeFile, schema: pa.Schema) -> None:
        if not schema.names:
            raise Invalid("an orc file cannot be written without any column of a known type")
        self._writer = orc.ORCWriter(stream, compression="snappy", stripe_size=PIECE_BYTES_MAX)
        self._empty = schema.empty_table()
        self._is_empty = True

    def write(self, piece: pa.Table) -> None:
        self._writer.write(piece)
        self._is_empty = False

    def close(self) -> pq.FileMetaData | None:
        if self._is_empty:
            # The writer learns its schema from the first table.
            self._writer.write(self._empty)
        self._writer.close()
        return None


class _CsvSink:
    """A header row, then the rows; text is quoted, so that empty text and null differ."""

    def __init__(self, stream: pa.NativeFile, schema: pa.Schema, delimiter: str) -> None:
        self._writer = csv.CSVWriter(stream, schema, write_options=csv.WriteOptions(delimiter=delimiter))

    def write(self, piece: pa.Table) -> None:
        self._writer.write_table(piece)

    def close(self) -> pq.FileMetaData | None:
        self._writer.close()
        return None


def _open_sink(
    content_type: ContentType, stream: pa.NativeFile, schema: pa.Schema, dictionary_columns: Sequence[str] | None
) -> _Sink:
    match content_type:
        case ContentType.PARQUET:
            return _ParquetSink(stream, schema, dictionary_columns)
        case ContentType.FEATHER:
            return _IpcSink(stream, schema)
        case ContentType.ORC:
            return _OrcSink(stream, schema)
        case ContentType.CSV | ContentType.TSV:
            return _CsvSink(stream, schema, _DELIMITERS[content_type])
        case _:
            raise Invalid(f"{content_type} files cannot be written")


_DELIMITERS: Mapping[ContentType, str] = MappingProxyType({ContentType.CSV: ",", ContentType.TSV: "\t"})
