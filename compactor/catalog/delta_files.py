"""From what a writer gives to the files of a delta: Arrow data is written, existing files are measured where they lie.

Both end in the same value, `DeltaFiles`, and neither is visible to anybody: a delta is added by its log entry alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
from pyarrow import fs

from compactor.catalog.actions import DataFile
from compactor.errors import Invalid
from compactor.kernels.content_digest import ContentDigest
from compactor.names import ContentType
from compactor.object_store import StoreLocation
from compactor.schemas import unify_schemas
from compactor.tabular import FileMeasure, TabularFile, TabularWriter, infer_content_type, measure, open_filesystem
from compactor.tabular.filesystems import reading

ROWS_PER_DELTA_FILE = 4_000_000
"""As many as a compacted file has by default: a file is what a hash bucket task is given."""

ROWS_AT_ONCE = 65_536
"""Of a streamed source, gathered before they are written: 64 MiB of 1 KiB rows."""

ArrowSource: TypeAlias = pa.Table | pa.RecordBatchReader
FileList: TypeAlias = list[str | Path]
DeltaSource: TypeAlias = ArrowSource | Sequence[str | Path]
"""What `append` takes: Arrow data (also anything with `__arrow_c_stream__`), or files to register in place."""


@dataclass(frozen=True)
class DeltaFiles:
    """The files of one delta, numbered from 1, and the digest of what the writer gave."""

    files: tuple[DataFile, ...]
    content_digest: str


@dataclass(frozen=True)
class DeltaTarget:
    """Where and how Arrow data becomes files.

    name_file  the key of file number n
    """

    location: StoreLocation
    content_type: ContentType
    rows_per_file: int
    name_file: Callable[[int], str]


def open_source(source: DeltaSource) -> ArrowSource | FileList:
    """What the source is: Arrow data, or a list of files. Raises `Invalid` if it is neither."""
    if isinstance(source, pa.Table | pa.RecordBatchReader):
        return source
    if hasattr(source, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(source)
    if isinstance(source, Sequence) and not isinstance(source, str) and all(isinstance(x, str | Path) for x in source):
        return list(source)
    raise Invalid(
        f"a delta cannot be made of a {type(source).__name__}: "
        "give a pyarrow.Table, a RecordBatchReader, or a list of file URIs or paths"
    )


def check_schema(schema: pa.Schema, source_name: str, declared: pa.Schema | None, table_id: str) -> None:
    """Raises `Invalid` if the table could not hold these columns, before anything is written."""
    if not schema.names:
        raise Invalid(f"{source_name} has no columns")
    repeated = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if repeated:
        raise Invalid(f"{source_name} has more than one column named {repeated[0]!r}")
    if declared is not None:
        unify_schemas([(f"table {table_id}", declared), (source_name, schema)])


def digest_arrow(source: ArrowSource) -> str:
    """The content digest that `write_files` would find, without writing anything."""
    content = ContentDigest(source.schema)
    for _ in _pieces(source, content):
        pass
    return _arrow_digest(content)


def write_files(source: ArrowSource, target: DeltaTarget) -> DeltaFiles:
    """Write Arrow data into files of at most `rows_per_file` rows; no rows make one empty file.

    A reader is streamed: no more than one piece of it is in memory. An exception leaves files that nobody refers to.
    """
    content = ContentDigest(source.schema)
    files: list[DataFile] = []
    pieces = _pieces(source, content)
    ahead: pa.Table | None = next(pieces, source.schema.empty_table())
    while ahead is not None:
        number = len(files) + 1
        path = target.name_file(number)
        uri = f"{target.location.root_uri.rstrip('/')}/{path}"
        with TabularWriter.open(target.location, uri, target.content_type, source.schema) as writer:
            room = target.rows_per_file
            while ahead is not None and room > 0:
                writer.write(ahead.slice(0, room))
                taken = min(room, ahead.num_rows)
                room -= taken
                ahead = ahead.slice(taken) if taken < ahead.num_rows else next(pieces, None)
            files.append(_data_file(number, path, target.content_type, writer.close()))
    return DeltaFiles(tuple(files), _arrow_digest(content))


def register_files(
    location: StoreLocation, source: FileList, fallback: ContentType, declared: pa.Schema | None, table_id: str
) -> DeltaFiles:
    """Measure files where they lie. Their content type is what their name says, `fallback` where it says nothing.

    Raises `Invalid` for a file that is missing, broken (both by name) or named twice.
    """
    uris = [_absolute_uri(each) for each in source]
    if not uris:
        raise Invalid("there are no files to append: the list is empty")
    repeated = sorted({uri for uri in uris if uris.count(uri) > 1})
    if repeated:
        raise Invalid(f"{repeated[0]} is named twice in one delta")
    content = hashlib.sha256()
    files = []
    for number, uri in enumerate(uris, start=1):
        content_type = _content_type(uri, fallback)
        content.update(f"{uri}\0{content_type}\0{_fingerprint(location, uri)}\0".encode())
        measured = measure(location, TabularFile(uri, content_type), declared)
        check_schema(measured.schema, uri, declared, table_id)
        files.append(_data_file(number, uri, content_type, measured))
    return DeltaFiles(tuple(files), f"files:sha256:{content.hexdigest()}")


def _pieces(source: ArrowSource, content: ContentDigest) -> Iterator[pa.Table]:
    """The source's rows in pieces that are worth a write, digested on the way. None of them is empty."""
    if isinstance(source, pa.Table):
        content.add(source)
        if source.num_rows:
            yield source
        return
    gathered: list[pa.RecordBatch] = []
    rows = 0
    for batch in source:
        if batch.num_rows == 0:
            continue
        gathered.append(batch)
        rows += batch.num_rows
        if rows >= ROWS_AT_ONCE:
            piece = pa.Table.from_batches(gathered)
            gathered, rows = [], 0
            content.add(piece)
            yield piece
    if gathered:
        piece = pa.Table.from_batches(gathered)
        content.add(piece)
        yield piece


def _arrow_digest(content: ContentDigest) -> str:
    return f"arrow:sha256:{content.hexdigest()}"


def _data_file(number: int, path: str, content_type: ContentType, measured: FileMeasure) -> DataFile:
    return DataFile(
        file_number=number,
        path=path,
        content_type=content_type,
        rows=measured.rows,
        size_bytes=measured.size_bytes,
        columns=dict(measured.columns),
    )


def _absolute_uri(source: str | Path) -> str:
    text = str(source)
    return text if "://" in text else f"file://{Path(text).resolve()}"


def _content_type(uri: str, fallback: ContentType) -> ContentType:
    try:
        return infer_content_type(uri)
    except Invalid:
        return fallback


def _fingerprint(location: StoreLocation, uri: str) -> str:
    """What changes when somebody writes the file again: its size and time."""
    filesystem, path = open_filesystem(location, uri)
    with reading(uri, "a data file"):
        found = filesystem.get_file_info(path)
    if found.type != fs.FileType.File:
        reason = "is a folder" if found.type == fs.FileType.Directory else "is not there"
        raise Invalid(f"{uri} {reason}: give the URI or path of a data file")
    return f"{found.size} {found.mtime_ns}"
