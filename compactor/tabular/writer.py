"""One output file, written piece by piece, which is invisible until it is whole.

`TabularWriter`  collects rows into pieces of bounded size, and measures the file
`_Sink`          writes a piece in a format: a row group, a record batch, lines of text
`OutputFile`     stores the bytes (output_file.py)

A failed write changes nothing under the final name.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from compactor.model.errors import Invalid
from compactor.model.names import ContentType
from compactor.schemas.cast import cast_column, conform
from compactor.storage.location import StoreLocation
from compactor.tabular.bounds import RunningStats
from compactor.tabular.filesystems import writing
from compactor.tabular.formats import FileMeasure
from compactor.tabular.output_file import OutputFile
from compactor.tabular.parquet import parquet_measure
from compactor.tabular.sinks import PIECE_BYTES_MAX, PIECE_ROWS_MAX, _open_sink, _Sink
from compactor.tabular.stored_types import stored_schema

if TYPE_CHECKING:
    from compactor.tabular.parquet_pages.row_groups import RowGroup


class TabularWriter:
    """`open`, then `write` any number of times, then `close`. As a context manager it aborts on an exception.

    Attributes:
        footer: of closed Parquet"""

    def __init__(
        self,
        uri: str,
        content_type: ContentType,
        schemas: tuple[pa.Schema, pa.Schema],
        target: OutputFile,
        sink: _Sink,
        piece_bytes_max: int,
    ) -> None:
        self._uri = uri
        self._content_type = content_type
        self._schema, self._stored = schemas
        self._target = target
        self._sink = sink
        self._piece_bytes_max = piece_bytes_max
        self._pending: list[pa.Table] = []
        self._pending_rows = 0
        self._pending_bytes = 0
        self._rows = 0
        self._stats = None if content_type is ContentType.PARQUET else RunningStats(self._stored)
        self._measure: FileMeasure | None = None
        self.footer: pq.FileMetaData | None = None

    @classmethod
    def open(
        cls,
        location: StoreLocation,
        uri: str,
        content_type: ContentType,
        schema: pa.Schema,
        dictionary_columns: Sequence[str] | None = None,
        takes_row_groups: bool = False,
        *,
        piece_bytes_max: int = PIECE_BYTES_MAX,
    ) -> Self:
        """Start the file.

        Args:
            dictionary_columns: leaf columns (dotted paths) to encode with dictionaries in Parquet; None: PyArrow tries
                all
            takes_row_groups: whether `write_row_group` will be called; Parquet only
            piece_bytes_max: of rows that are collected for a row group or record batch

        Raises `Invalid` if the format cannot store a column's type, or if PyArrow does not write the format. Text is
        gzipped if the URI ends in `.gz`."""
        stored = stored_schema(schema, content_type)
        with writing(uri, content_type):
            target = OutputFile.open(location, uri)
            try:
                if takes_row_groups and content_type is ContentType.PARQUET:
                    from compactor.tabular.parquet_pages.row_groups import RowGroupSink  # loads the kernels

                    sink: _Sink = RowGroupSink(target.stream, stored, dictionary_columns)
                else:
                    sink = _open_sink(content_type, target.stream, stored, dictionary_columns)
            except BaseException:  # an interrupt too: no upload and no temporary file may stay
                target.discard()
                raise
        return cls(uri, content_type, (schema, stored), target, sink, piece_bytes_max)

    def write(self, table: pa.Table) -> None:
        """Appends rows, cast to the schema of the file."""
        table = self._as_stored(conform(table, self._schema))
        if not table.num_rows:
            return
        bytes_per_row = max(1.0, _data_bytes(table) / table.num_rows)
        start = 0
        while start < table.num_rows:
            room = min(
                PIECE_ROWS_MAX - self._pending_rows, int((self._piece_bytes_max - self._pending_bytes) / bytes_per_row)
            )
            if room < 1 and self._pending_rows:
                self._flush()
                continue
            piece = table.slice(start, max(1, room))
            self._pending.append(piece)
            self._pending_rows += piece.num_rows
            self._pending_bytes += int(piece.num_rows * bytes_per_row)
            start += piece.num_rows

    def write_row_group(self, group: RowGroup) -> int:
        """Appends rows from a Parquet file of the same schema and encodings, as a row group; returns its number."""
        from compactor.tabular.parquet_pages.row_groups import RowGroupSink

        if not isinstance(self._sink, RowGroupSink):
            raise TypeError(f"{self._uri} was not opened to take row groups")
        self._flush()
        with writing(self._uri, self._content_type):
            number = self._sink.write_row_group(group)
        self._rows += group.rows
        return number

    def close(self) -> FileMeasure:
        """Finishes the file: it is whole, durable and visible when this returns."""
        if self._measure is not None:
            return self._measure
        try:
            self._flush()
            with writing(self._uri, self._content_type):
                self.footer = footer = self._sink.close()
                size_bytes = self._target.finish()
        except BaseException:  # an interrupt too
            self.abort()
            raise
        if footer is not None:
            measure = parquet_measure(footer, self._stored, size_bytes)
        else:
            columns = self._stats.column_stats() if self._stats is not None else {}
            measure = FileMeasure(self._rows, size_bytes, self._stored, columns)
        self._measure = replace(measure, crc32=self._target.crc32)
        return self._measure

    def abort(self) -> None:
        """Discards the file; nothing remains under its name. It cannot be closed after this."""
        self._pending.clear()
        self._target.discard()
        # An open writer would be closed by the garbage collector, and then warn about its closed stream. A writer whose
        # closing failed before may fail again with any error of its library.
        with suppress(Exception):
            self._sink.close()

    def _as_stored(self, table: pa.Table) -> pa.Table:
        columns = []
        for field in self._stored:
            try:
                columns.append(cast_column(table.column(field.name), field.type))
            except pa.ArrowException as error:
                raise Invalid(
                    f"{self._uri} cannot hold column {field.name!r} in {self._content_type} as {field.type}: {error}"
                ) from error
        return pa.Table.from_arrays(columns, schema=self._stored) if columns else table.select([])

    def _flush(self) -> None:
        if not self._pending:
            return
        piece = pa.concat_tables(self._pending)
        self._pending.clear()
        self._pending_rows = self._pending_bytes = 0
        with writing(self._uri, self._content_type):
            self._sink.write(piece)
        self._rows += piece.num_rows
        if self._stats is not None:
            self._stats.add(piece)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if error is None:
            self.close()
        elif self._measure is None:
            self.abort()


def _data_bytes(table: pa.Table) -> int:
    """Bytes of the rows: a dictionary counts once and a view only with its own bytes, since slices share both."""
    total = 0
    for column in table.columns:
        if pa.types.is_dictionary(column.type):
            total += sum(chunk.indices.nbytes for chunk in column.chunks)
            total += max((chunk.dictionary.nbytes for chunk in column.chunks), default=0)
        elif column.type in (pa.string_view(), pa.binary_view()):
            total += 16 * len(column) + (pc.sum(pc.binary_length(column.cast(pa.large_binary()))).as_py() or 0)
        else:
            total += column.nbytes
    return total


# ------------------------------------------------------------------------------------------------------- sinks
