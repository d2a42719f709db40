"""The values that say what a data file is and what was found in it, and what a format must be able to do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa
from pyarrow import fs

from compactor.catalog.actions import ColumnStats
from compactor.names import ContentType
from compactor.schemas import refuse_repeated_columns


@dataclass(frozen=True)
class TabularFile:
    """What to read: `s3://bucket/key` or `file:///path`, and the format of its bytes."""

    uri: str
    content_type: ContentType


@dataclass(frozen=True)
class FileMeasure:
    """What is known of a file without its rows.

    columns  by top-level column name; a column of which nothing is known may be absent
    """

    rows: int
    size_bytes: int
    schema: pa.Schema
    columns: Mapping[str, ColumnStats] = field(default_factory=dict)


@dataclass(frozen=True)
class Source:
    """An existing file, on the filesystem that holds it. Lives within one process."""

    file: TabularFile
    filesystem: fs.FileSystem
    path: str

    def open(self) -> pa.NativeFile:
        """The bytes, with random access."""
        return self.filesystem.open_input_file(self.path)

    @property
    def is_remote(self) -> bool:
        return not isinstance(self.filesystem, fs.LocalFileSystem)


class TabularFormat(Protocol):
    """One format. PyArrow's errors pass through; `files` translates them.

    columns  top-level columns wanted, in the order wanted; those that the file lacks are left out. None: all
    schema   for text, which has no types of its own: what its columns are; other formats do not look at it
    """

    def read_schema(self, source: Source, schema: pa.Schema | None) -> pa.Schema: ...

    def read_table(self, source: Source, columns: Sequence[str] | None, schema: pa.Schema | None) -> pa.Table: ...

    def read_batches(
        self, source: Source, columns: Sequence[str] | None, schema: pa.Schema | None
    ) -> Iterator[pa.RecordBatch]: ...

    def measure(self, source: Source, schema: pa.Schema | None) -> FileMeasure: ...


def wanted_columns(source: Source, schema: pa.Schema, columns: Sequence[str] | None) -> list[str]:
    """Which of the columns asked for the file has, in the order asked. Raises `Invalid` if names are not unique."""
    refuse_repeated_columns(source.file.uri, schema)
    if columns is None:
        return list(schema.names)
    present = set(schema.names)
    return [name for name in dict.fromkeys(columns) if name in present]
