"""The values that describe a data file, and the protocol of a format."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self

import pyarrow as pa
from pyarrow import fs

from compactor.model.files import ColumnStats, DataFile, FooterRange, RowGroupSize
from compactor.model.names import ContentType
from compactor.schemas.unify import refuse_repeated_columns
from compactor.storage.location import StoreLocation
from compactor.storage.opening import range_reader
from compactor.storage.ranges import RangeReader
from compactor.tabular.filesystems import local_path
from compactor.tabular.remote_file import RemoteFile
from compactor.tabular.same_file import check_local_file


@dataclass(frozen=True)
class TabularFile:
    """A file to read: its URI, `s3://bucket/key` or `file:///path`, and its format.

    The rest is from the log, None: not known. A file with another size, ETag (of a remote one), or checksum (if it is
    read whole) is `Corrupt`, and so is a local one with another time and another checksum.

    Attributes:
        modified_at_ns: of a registered local file
        delta_id: of a delta file, for errors
        pieces: stripes of ORC, pieces of large text: see `DataFile.row_groups`"""

    uri: str
    content_type: ContentType
    size_bytes: int | None = None
    etag: str | None = None
    crc32: int | None = None
    modified_at_ns: int | None = None
    delta_id: str | None = None
    pieces: tuple[RowGroupSize, ...] = ()

    @classmethod
    def of(cls, uri: str, file: DataFile, delta_id: str | None = None) -> Self:
        """A file of the log."""
        pieces = () if file.content_type is ContentType.PARQUET else file.row_groups
        return cls(
            uri, file.content_type, file.size_bytes, file.etag, file.crc32, file.modified_at_ns, delta_id, pieces
        )


@dataclass(frozen=True)
class FileMeasure:
    """A file's size, schema and statistics.

    Attributes:
        columns: by top-level column name; a column without statistics may be absent
        footer: of Parquet
        row_groups: of Parquet, stripes of ORC, pieces of large text: see `DataFile`
        crc32: of a file that was written here
        unnamed: columns of the schema that JSON lines have by declaration only: no line names them"""

    rows: int
    size_bytes: int
    schema: pa.Schema
    columns: Mapping[str, ColumnStats] = field(default_factory=dict)
    footer: FooterRange | None = None
    row_groups: tuple[RowGroupSize, ...] = ()
    crc32: int | None = None
    unnamed: frozenset[str] = frozenset()

    @property
    def named(self) -> pa.Schema:
        """The columns that the file itself has."""
        return (
            pa.schema([each for each in self.schema if each.name not in self.unnamed]) if self.unnamed else self.schema
        )


@dataclass(frozen=True)
class FileOutline:
    """The schema of a file, from its footer or its first block.

    Attributes:
        whole: False: of text without declared types, the types are those of the first block, and later rows may differ
    """

    schema: pa.Schema
    whole: bool = True


@dataclass(frozen=True)
class Source:
    """An existing file: on this machine, at `path`, or remote, read by `reader`. Not sent to other processes.

    Attributes:
        body: its bytes, where these were read already"""

    file: TabularFile
    path: str
    reader: RangeReader | None = None
    body: pa.Buffer | None = None

    @classmethod
    def of(cls, location: StoreLocation, file: TabularFile) -> Self:
        """Raises `Invalid` for a URI of another scheme than `s3://` and `file://`."""
        path = local_path(file.uri)
        return cls(file, file.uri, range_reader(location)) if path is None else cls(file, path)

    def open(self) -> pa.NativeFile:
        """The bytes, with random access."""
        if self.body is not None:
            return pa.BufferReader(self.body)
        remote = self.open_remote()
        if remote is None:
            return fs.LocalFileSystem().open_input_file(self.checked_path())
        return pa.PythonFile(remote, mode="r")

    def checked_path(self) -> str:
        """The path of a local file. Raises `Corrupt` if it is not the file that the log means, and `OSError`."""
        file = self.file
        if file.size_bytes is not None:
            check_local_file(self.path, file.size_bytes, file.modified_at_ns, file.crc32, file.delta_id)
        return self.path

    def open_remote(self) -> RemoteFile | None:
        """The file object of a remote file, for readers that request ranges themselves; None: the file is local."""
        if self.reader is None:
            return None
        file = self.file
        return RemoteFile(
            self.reader, file.uri, file.size_bytes, etag=file.etag, crc32=file.crc32, delta_id=file.delta_id
        )

    @property
    def is_remote(self) -> bool:
        return self.reader is not None


class TabularFormat(Protocol):
    """One format. It raises PyArrow's errors; `files` translates them.

    `columns`: the top-level columns to read, in the order to return; those that the file lacks are left out. None: all.
    `schema`: the column types of text, which has none itself; other formats but ORC ignore it."""

    def read_schema(self, source: Source, schema: pa.Schema | None) -> pa.Schema: ...

    def read_table(self, source: Source, columns: Sequence[str] | None, schema: pa.Schema | None) -> pa.Table: ...

    def read_batches(
        self, source: Source, columns: Sequence[str] | None, schema: pa.Schema | None
    ) -> Iterator[pa.RecordBatch]: ...

    def measure(self, source: Source, schema: pa.Schema | None) -> FileMeasure: ...


def wanted_columns(source: Source, schema: pa.Schema, columns: Sequence[str] | None) -> list[str]:
    """The requested columns that the file has, in the requested order. Raises `Invalid` if names are not unique."""
    refuse_repeated_columns(source.file.uri, schema)
    if columns is None:
        return list(schema.names)
    present = set(schema.names)
    return [name for name in dict.fromkeys(columns) if name in present]
