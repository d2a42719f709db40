"""One output file, written piece by piece, that nobody sees before it is whole.

`TabularWriter`  gathers rows into pieces of bounded size, and measures the file as it goes
`_Sink`          what a format does with a piece: a row group, a record batch, lines of text
`OutputFile`     where the bytes go: on a local filesystem a temporary name in the same folder, flushed to the disk and
                 renamed; on S3 an upload, which becomes an object when it is completed

After a failure nothing remains under the final name.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Protocol, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv, fs, ipc, orc

from compactor.errors import Invalid, Unavailable
from compactor.names import ContentType
from compactor.object_store import StoreLocation
from compactor.schemas import cast_column, conform
from compactor.tabular.bounds import RunningStats
from compactor.tabular.filesystems import open_filesystem, writing
from compactor.tabular.formats import FileMeasure
from compactor.tabular.growing_file import GrowingFile
from compactor.tabular.parquet import parquet_measure, parquet_writer
from compactor.tabular.row_groups import RowGroup, RowGroupSink
from compactor.tabular.stored_types import stored_schema

PIECE_ROWS_MAX = 1_000_000
PIECE_BYTES_MAX = 64 * 1024 * 1024
"""Of one row group or record batch, as Arrow holds it in memory. A point lookup reads one: 1 M rows of 64 bytes, or
64 Ki rows of 1 KiB."""

_temporary_numbers = itertools.count(1)


class _Sink(Protocol):
    def write(self, piece: pa.Table) -> None: ...

    def close(self) -> pq.FileMetaData | None:
        """Write what remains, without closing the stream; the footer, where it says more than the rows did."""


class TabularWriter:
    """`open`, then `write` any number of times, then `close`. As a context manager it aborts on an exception."""

    def __init__(
        self, uri: str, content_type: ContentType, schemas: tuple[pa.Schema, pa.Schema], target: OutputFile, sink: _Sink
    ) -> None:
        self._uri = uri
        self._content_type = content_type
        self._schema, self._stored = schemas
        self._target = target
        self._sink = sink
        self._pending: list[pa.Table] = []
        self._pending_rows = 0
        self._pending_bytes = 0
        self._rows = 0
        self._stats = None if content_type is ContentType.PARQUET else RunningStats(self._stored)
        self._measure: FileMeasure | None = None

    @classmethod
    def open(
        cls,
        location: StoreLocation,
        uri: str,
        content_type: ContentType,
        schema: pa.Schema,
        dictionary_columns: Sequence[str] | None = None,
        takes_row_groups: bool = False,
    ) -> Self:
        """Start the file.

        dictionary_columns  leaf columns (dotted paths) to encode with dictionaries in Parquet; None: PyArrow tries all
        takes_row_groups    whether `write_row_group` will be called; Parquet only

        Raises `Invalid` where the format cannot hold a column's type, or where PyArrow does not write the format. Text
        is gzipped where the URI ends in `.gz`.
        """
        stored = stored_schema(schema, content_type)
        filesystem, path = open_filesystem(location, uri)
        with writing(uri, content_type):
            target = OutputFile.open(filesystem, path)
            try:
                if takes_row_groups and content_type is ContentType.PARQUET:
                    sink: _Sink = RowGroupSink(target.stream, stored, dictionary_columns)
                else:
                    sink = _open_sink(content_type, target.stream, stored, dictionary_columns)
            except BaseException:
                target.discard()
                raise
        return cls(uri, content_type, (schema, stored), target, sink)

    def write(self, table: pa.Table) -> None:
        """Append rows, conformed to the schema that the file was opened with."""
        table = self._as_stored(conform(table, self._schema))
        if not table.num_rows:
            return
        bytes_per_row = max(1.0, _data_bytes(table) / table.num_rows)
        start = 0
        while start < table.num_rows:
            room = min(
                PIECE_ROWS_MAX - self._pending_rows, int((PIECE_BYTES_MAX - self._pending_bytes) / bytes_per_row)
            )
            if room < 1 and self._pending_rows:
                self._flush()
                continue
            piece = table.slice(start, max(1, room))
            self._pending.append(piece)
            self._pending_rows += piece.num_rows
            self._pending_bytes += int(piece.num_rows * bytes_per_row)
            start += piece.num_rows

    def write_row_group(self, group: RowGroup) -> None:
        """Append rows out of a Parquet file whose rows have the form that this file's have, as a row group."""
        if not isinstance(self._sink, RowGroupSink):
            raise TypeError(f"{self._uri} was not opened to take row groups")
        self._flush()
        with writing(self._uri, self._content_type):
            self._sink.write_row_group(group)
        self._rows += group.rows

    def close(self) -> FileMeasure:
        """Finish the file; it is whole, durable and visible when this returns."""
        if self._measure is not None:
            return self._measure
        try:
            self._flush()
            with writing(self._uri, self._content_type):
                footer = self._sink.close()
                size_bytes = self._target.finish()
        except Unavailable:
            self._target.discard_local()
            raise
        except BaseException:
            self.abort()
            raise
        if footer is not None:
            self._measure = parquet_measure(footer, self._stored, size_bytes)
        else:
            columns = self._stats.column_stats() if self._stats is not None else {}
            self._measure = FileMeasure(self._rows, size_bytes, self._stored, columns)
        return self._measure

    def abort(self) -> None:
        """Give the file up; nothing remains under its name. Closing comes too late after this."""
        self._pending.clear()
        with suppress(OSError, pa.ArrowException):
            # A writer that is not closed closes itself when it is collected, and complains of its closed stream.
            self._sink.close()
        self._target.discard()

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        elif isinstance(error, Unavailable):
            self._target.discard_local()
        elif self._measure is None:
            self.abort()


def _data_bytes(table: pa.Table) -> int:
    """What the rows weigh: a dictionary once, and of views only what they show; both are shared between slices."""
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


class _ParquetSink:
    """A row group a piece."""

    def __init__(self, stream: pa.NativeFile, schema: pa.Schema, dictionary_columns: Sequence[str] | None) -> None:
        self._footers: list[pq.FileMetaData] = []
        self._writer = parquet_writer(stream, schema, dictionary_columns, self._footers)

    def write(self, piece: pa.Table) -> None:
        self._writer.write_table(piece, row_group_size=piece.num_rows)

    def close(self) -> pq.FileMetaData | None:
        self._writer.close()
        return self._footers[0]


class _IpcSink:
    """A record batch a piece, LZ4-compressed as Feather is by default.

    The file form allows one dictionary a column, which may only grow: every piece's dictionaries are merged into
    those of the piece before.
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
            raise Invalid(f"{content_type} files are not written")


_DELIMITERS: Mapping[ContentType, str] = MappingProxyType({ContentType.CSV: ",", ContentType.TSV: "\t"})


# ------------------------------------------------------------------------------------------------------ target


_UNFINISHED = re.compile(r"(?:.*/)?\.[^/]+\.[0-9]+-[0-9]+\.partial")


def is_unfinished(path: str) -> bool:
    """Whether a path is the temporary name of a file that is being written, or was when its writer died."""
    return _UNFINISHED.fullmatch(path) is not None


class OutputFile:
    """Where the bytes go until the file is whole.

    local  the file under its temporary name, on a local filesystem
    """

    def __init__(
        self, filesystem: fs.FileSystem, path: str, stream: pa.NativeFile, local: tuple[str, GrowingFile] | None = None
    ) -> None:
        self.stream = stream
        self._filesystem = filesystem
        self._path = path
        self._local = local

    @classmethod
    def open(cls, filesystem: fs.FileSystem, path: str) -> OutputFile:
        compression = "gzip" if path.endswith(".gz") else None
        if not isinstance(filesystem, fs.LocalFileSystem):
            return cls(filesystem, path, filesystem.open_output_stream(path, compression=compression))
        folder, name = Path(path).parent, Path(path).name
        _make_folder(folder)
        temporary = str(folder / f".{name[:200]}.{os.getpid()}-{next(_temporary_numbers)}.partial")
        growing = GrowingFile(temporary)
        stream: pa.NativeFile = pa.PythonFile(growing, "w")
        if compression is not None:
            stream = pa.CompressedOutputStream(stream, compression)
        return cls(filesystem, path, stream, (temporary, growing))

    def finish(self) -> int:
        """Make the file visible under its name; its size in bytes."""
        self.stream.close()
        if self._local is not None:
            temporary, growing = self._local
            growing.flush_to_disk()
            Path(temporary).replace(self._path)
            _flush_to_disk(str(Path(self._path).parent))
        return int(self._filesystem.get_file_info(self._path).size)

    def discard(self) -> None:
        """Leave nothing behind, as well as can be done: the failure that led here is the one to report."""
        with suppress(OSError, pa.ArrowException):
            # PyArrow cannot abandon an upload; it has to be completed before it can be deleted.
            self.stream.close()
        if self._local is not None:
            self.discard_local()
            return
        with suppress(OSError, pa.ArrowException):
            self._filesystem.delete_file(self._path)

    def discard_local(self) -> None:
        """After a service failed, what it did is unknown, and nothing is deleted there."""
        if self._local is not None:
            temporary, growing = self._local
            growing.let_go()
            Path(temporary).unlink(missing_ok=True)


def _make_folder(folder: Path) -> None:
    """The folder and its parents, their names on the disk."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    _flush_to_disk(str(folder.parent))


def _flush_to_disk(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
