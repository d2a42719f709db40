"""One output file, written piece by piece, that nobody sees before it is whole.

On a local filesystem the bytes go to a temporary name in the same folder, are flushed to the disk, and the file is
renamed. On S3 an object appears when its upload is completed. After a failure nothing remains under the final name.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from compactor.errors import Invalid
from compactor.names import ContentType
from compactor.object_store import StoreLocation
from compactor.schemas import conform
from compactor.tabular.filesystems import open_filesystem, writing
from compactor.tabular.formats import FileMeasure
from compactor.tabular.parquet import parquet_measure

ROW_GROUP_ROWS_MAX = 1_000_000
ROW_GROUP_BYTES_MAX = 64 * 1024 * 1024

_temporary_numbers = itertools.count(1)


class TabularWriter:
    """`open`, `write` any number of times, `close`; or as a context manager, which aborts on an exception."""

    def __init__(
        self,
        uri: str,
        content_type: ContentType,
        schema: pa.Schema,
        target: _Target,
        dictionary_columns: Sequence[str] | None,
    ) -> None:
        self._uri = uri
        self._content_type = content_type
        self._schema = schema
        self._target = target
        self._footers: list[pq.FileMetaData] = []
        self._writer = pq.ParquetWriter(
            target.stream,
            schema,
            compression="snappy",
            write_statistics=True,
            store_schema=True,
            use_dictionary=True if dictionary_columns is None else list(dictionary_columns),
            metadata_collector=self._footers,
        )

    @classmethod
    def open(
        cls,
        location: StoreLocation,
        uri: str,
        content_type: ContentType,
        schema: pa.Schema,
        dictionary_columns: Sequence[str] | None = None,
    ) -> Self:
        """Start the file. Raises `Invalid` where the format cannot hold a column's type."""
        if content_type is not ContentType.PARQUET:
            raise Invalid(f"{content_type} cannot be written")
        filesystem, path = open_filesystem(location, uri)
        with writing(uri, content_type):
            return cls(uri, content_type, schema, _Target.open(filesystem, path), dictionary_columns)

    def write(self, table: pa.Table) -> None:
        """Append rows, conformed to the schema that the file was opened with."""
        with writing(self._uri, self._content_type):
            self._writer.write_table(conform(table, self._schema), row_group_size=ROW_GROUP_ROWS_MAX)

    def close(self) -> FileMeasure:
        """Finish the file; it is durable and visible when this returns."""
        with writing(self._uri, self._content_type):
            self._writer.close()
            size_bytes = self._target.finish()
        return parquet_measure(self._footers[0], self._schema, size_bytes)

    def abort(self) -> None:
        """Give the file up; nothing remains under its name."""
        self._target.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            self.abort()


class _Target:
    """Where the bytes go until the file is whole."""

    def __init__(self, filesystem: fs.FileSystem, path: str, temporary: str, stream: pa.NativeFile) -> None:
        self.stream = stream
        self._filesystem = filesystem
        self._path = path
        self._temporary = temporary

    @classmethod
    def open(cls, filesystem: fs.FileSystem, path: str) -> _Target:
        temporary = path
        if isinstance(filesystem, fs.LocalFileSystem):
            folder, name = os.path.split(path)
            Path(folder).mkdir(parents=True, exist_ok=True)
            temporary = f"{folder}/.{name}.{os.getpid()}-{next(_temporary_numbers)}.partial"
        return cls(filesystem, path, temporary, filesystem.open_output_stream(temporary))

    def finish(self) -> int:
        size_bytes = int(self.stream.tell())
        self.stream.close()
        if self._temporary != self._path:
            _sync(self._temporary)
            Path(self._temporary).replace(self._path)
            _sync(str(Path(self._path).parent))
        return size_bytes

    def discard(self) -> None:
        self.stream.close()
        self._filesystem.delete_file(self._temporary)


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
