"""Parquet files as Arrow opens and writes them: the metadata, and what Lithify does not decode itself."""

from __future__ import annotations

import base64
import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from compactor.model.arrow_types import wide_dictionary
from compactor.storage.ranges import Span
from compactor.tabular.formats import Source
from compactor.tabular.remote_file import RemoteFile

SMALL_FILE_BYTES = 1024 * 1024
"""A smaller file is read by Arrow, in one thread: several would wait for one another for longer than they decode."""


def arrow_schema_of(parquet: pq.ParquetFile) -> pa.Schema:
    """The types that the file was written from.

    Arrow's reader follows the Arrow schema in the footer, but not for all types: it returns seconds as milliseconds,
    date64 as date32, and dictionaries of anything but text without their dictionary.
    """
    read = parquet.schema_arrow
    encoded = (parquet.metadata.metadata or {}).get(_ARROW_SCHEMA_KEY)
    if encoded is None:
        return read
    written = pa.ipc.read_schema(pa.BufferReader(base64.b64decode(encoded)))
    if written.names != read.names:
        return read
    fields = [read.field(position).with_type(wide_dictionary(field.type)) for position, field in enumerate(written)]
    return pa.schema(fields, metadata=read.metadata)


@dataclass(frozen=True)
class OpenParquet:
    """An open Parquet file.

    Attributes:
        remote: of a remote one, its file object: that behind `opened`, unless it is in memory whole
        known: what it was opened with"""

    parquet: pq.ParquetFile
    opened: pa.NativeFile
    remote: RemoteFile | None
    known: KnownFooter | None = None

    @property
    def is_small(self) -> bool:
        return bool(self.opened.size() < SMALL_FILE_BYTES)

    @property
    def schema(self) -> pa.Schema:
        """See `arrow_schema_of`."""
        return arrow_schema_of(self.parquet) if self.known is None else self.known.schema

    def hold(self, row_groups: Sequence[int], columns: Sequence[str] | None) -> None:
        """Fetches these columns of these row groups of a remote file, and releases those that were held before."""
        if self.remote is not None and self.remote.whole is None:
            self.remote.release()
            self.remote.hold(self._spans(self.remote, row_groups, columns))

    def begin(self, row_groups: Sequence[int], columns: Sequence[str] | None) -> None:
        """Prefetches the columns of a remote file that will be held next, if there is room."""
        if self.remote is not None and self.remote.whole is None:
            self.remote.begin(self._spans(self.remote, row_groups, columns))

    def _spans(self, remote: RemoteFile, row_groups: Sequence[int], columns: Sequence[str] | None) -> list[Span]:
        return spans_of_columns(self.parquet.metadata, remote.size_bytes, row_groups, columns)


def map_file(path: str) -> mmap.mmap | None:
    """A mapped local file; None for an empty one, which cannot be mapped. It stays mapped while it is referenced."""
    with Path(path).open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if os.fstat(file.fileno()).st_size else None


def release_mapped(mapped: mmap.mmap | None) -> None:
    """Pages of a mapping count as this process's memory until they are released; they can be read again."""
    if mapped is not None:
        mapped.madvise(mmap.MADV_DONTNEED)


@contextmanager
def open_mapped(source: Source) -> Iterator[tuple[OpenParquet, mmap.mmap | None]]:
    """As `open_parquet`, with a local file mapped: of others Arrow holds all bytes of the column chunk that it reads.
    The mapping is to be released in between."""
    mapped = None if source.is_remote else map_file(source.checked_path())
    in_memory = source if mapped is None else replace(source, body=pa.py_buffer(mapped))
    with open_parquet(in_memory) as file:
        yield file, mapped


@dataclass(frozen=True)
class KnownFooter:
    """The footer of a file that was opened before, and how it is opened now.

    Attributes:
        dictionaries: columns of text that Arrow returns as dictionaries, as they are stored"""

    metadata: pq.FileMetaData
    schema: pa.Schema
    dictionaries: Sequence[str] = ()


@contextmanager
def open_parquet(source: Source, known: KnownFooter | None = None) -> Iterator[OpenParquet]:
    """A file as Parquet, with its footer read. If it cannot be read, its footer is not kept for later readers."""
    remote = source.open_remote()
    if remote is None:
        opened = source.open()
    else:
        opened = pa.PythonFile(remote, mode="r") if remote.whole is None else pa.BufferReader(remote.whole)
    metadata, dictionaries = (None, None) if known is None else (known.metadata, known.dictionaries)
    try:
        with (
            opened,
            pq.ParquetFile(
                opened,
                metadata=metadata,
                read_dictionary=dictionaries,
                pre_buffer=False,
                page_checksum_verification=True,
            ) as parquet,
        ):
            yield OpenParquet(parquet, opened, remote, known)
    except (pa.ArrowException, OSError):
        if source.reader is not None:
            source.reader.forget_end(source.file.uri)
        raise


def spans_of_columns(
    metadata: pq.FileMetaData, file_bytes: int, row_groups: Sequence[int], columns: Sequence[str] | None
) -> list[Span]:
    """Where the column chunks of these top-level columns lie (None: of all), in some row groups.

    Raises `pa.ArrowInvalid` for a footer whose chunks are not within the file.
    """
    names = None if columns is None else set(columns)
    wanted = [
        number
        for number in range(metadata.num_columns)
        if names is None or {metadata.schema.column(number).path, _top_of(metadata, number)} & names
    ]
    chunks = (metadata.row_group(group).column(number) for group in row_groups for number in wanted)
    return [Span(start, start + length) for start, length in (chunk_span(chunk, file_bytes) for chunk in chunks)]


def _top_of(metadata: pq.FileMetaData, number: int) -> str:
    path: str = metadata.schema.column(number).path
    return path.split(".", 1)[0]


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
        write_page_checksum=True,
        store_schema=True,
        use_dictionary=True if dictionary_columns is None else list(dictionary_columns),
        metadata_collector=footers,
    )


_ARROW_SCHEMA_KEY = b"ARROW:schema"


def chunk_span(chunk: pq.ColumnChunkMetaData, file_bytes: int) -> tuple[int, int]:
    """A column chunk's start in its file, and its size. Raises `pa.ArrowInvalid` if it is not within the file."""
    offsets = [offset for offset in (chunk.data_page_offset, chunk.dictionary_page_offset) if offset]
    if not chunk.num_values or not offsets:
        return 0, 0
    if min(offsets) < 0 or chunk.total_compressed_size < 0:
        raise pa.ArrowInvalid("a column chunk has a negative offset or size")
    if min(offsets) + chunk.total_compressed_size > file_bytes:
        raise pa.ArrowInvalid("a column chunk reaches beyond the file")
    return min(offsets), chunk.total_compressed_size
