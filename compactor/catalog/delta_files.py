"""Makes the files of a delta from a writer's source: Arrow data is written, existing files are measured in place.

Both return `DeltaFiles`, and nothing is visible yet: only the log entry adds the delta.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
from pyarrow import fs

from compactor.kernels.content_digest import ContentDigest
from compactor.model.errors import Corrupt, Invalid
from compactor.model.files import DataFile
from compactor.model.names import ContentType
from compactor.schemas.cast import plain_table
from compactor.schemas.nesting import refuse_deep_nesting
from compactor.schemas.text import fingerprint_schema
from compactor.schemas.unify import plain_schema, refuse_repeated_columns, unify_schemas
from compactor.storage.location import StoreLocation
from compactor.storage.opening import range_reader
from compactor.tabular import FileMeasure, TabularFile, TabularWriter, infer_content_type, measure
from compactor.tabular.filesystems import local_path, reading
from compactor.tabular.remote_file import open_tail
from compactor.tabular.same_file import checksum

ROWS_PER_DELTA_FILE = 4_000_000
"""The default of a compacted file: a hash task reads whole files."""

ROWS_AT_ONCE = 65_536
"""Rows of a streamed source that are collected before they are written: 64 MiB of 1 KiB rows."""

ArrowSource: TypeAlias = pa.Table | pa.RecordBatchReader
FileList: TypeAlias = list[str | Path]
DeltaSource: TypeAlias = ArrowSource | Sequence[str | Path]
"""The source of an append: Arrow data (also any object with `__arrow_c_stream__`), or files to register in place."""


@dataclass(frozen=True)
class DeltaFiles:
    """The files of one delta, numbered from 1, and the digest of the writer's source.

    schemas  (file name, columns): one for each file, or one for all
    """

    files: tuple[DataFile, ...]
    content_digest: str
    schemas: tuple[tuple[str, pa.Schema], ...]


@dataclass(frozen=True)
class DeltaTarget:
    """The location, format and names of the files to write.

    name_file  returns the key of file number n
    private_columns  columns whose bounds are not written to the log
    """

    location: StoreLocation
    content_type: ContentType
    rows_per_file: int
    name_file: Callable[[int], str]
    private_columns: Collection[str] = ()


def open_source(source: DeltaSource) -> ArrowSource | FileList:
    """The source as Arrow data or a list of files. Raises `Invalid` if it is neither, or Arrow data that is nested too
    deep."""
    if not isinstance(source, pa.Table | pa.RecordBatchReader) and hasattr(source, "__arrow_c_stream__"):
        source = pa.RecordBatchReader.from_stream(source)
    if isinstance(source, pa.Table | pa.RecordBatchReader):
        refuse_deep_nesting("the delta", source.schema)
        return source
    if isinstance(source, Sequence) and not isinstance(source, str) and all(isinstance(x, str | Path) for x in source):
        return list(source)
    raise Invalid(
        f"a delta cannot be made of a {type(source).__name__}: "
        "give a pyarrow.Table, a RecordBatchReader, or a list of file URIs or paths"
    )


def check_schema(schema: pa.Schema, source_name: str, declared: pa.Schema | None, table_id: str) -> None:
    """Raises `Invalid` if the table cannot have these columns. Called before anything is written."""
    if not schema.names:
        raise Invalid(f"{source_name} has no columns")
    refuse_repeated_columns(source_name, schema)
    if declared is not None:
        unify_schemas([(f"table {table_id}", declared), (source_name, schema)])


def digest_arrow(source: ArrowSource) -> str:
    """The content digest that `write_files` would return. Writes nothing."""
    content = ContentDigest(source.schema)
    for _ in _pieces(source, content):
        pass
    return _arrow_digest(content)


def write_files(source: ArrowSource, target: DeltaTarget) -> DeltaFiles:
    """Write Arrow data into files of at most `rows_per_file` rows; no rows make one empty file.

    A reader is streamed: at most one piece of it is in memory. An exception leaves unreferenced files.
    """
    content = ContentDigest(source.schema)
    files: list[DataFile] = []
    pieces = _pieces(source, content)
    schema = plain_schema(source.schema)
    ahead: pa.Table | None = next(pieces, schema.empty_table())
    while ahead is not None:
        number = len(files) + 1
        path = target.name_file(number)
        uri = f"{target.location.root_uri.rstrip('/')}/{path}"
        with TabularWriter.open(target.location, uri, target.content_type, schema) as writer:
            room = target.rows_per_file
            while ahead is not None and room > 0:
                writer.write(ahead.slice(0, room))
                taken = min(room, ahead.num_rows)
                room -= taken
                ahead = ahead.slice(taken) if taken < ahead.num_rows else next(pieces, None)
            files.append(data_file(number, path, target.content_type, writer.close(), target.private_columns))
    return DeltaFiles(tuple(files), _arrow_digest(content), (("the delta", schema),))


def register_files(
    location: StoreLocation,
    source: FileList,
    fallback: ContentType,
    declared: pa.Schema | None,
    table_id: str,
    private_columns: Collection[str] = (),
) -> DeltaFiles:
    """Measures files in place. Their content type follows from their name, or is `fallback` if the name has none.

    Raises `Invalid` for a file that is missing, broken (both with its name) or named twice.
    """
    uris = [absolute_uri(each) for each in source]
    if not uris:
        raise Invalid("there are no files to append: the list is empty")
    repeated = sorted({uri for uri in uris if uris.count(uri) > 1})
    if repeated:
        raise Invalid(f"{repeated[0]} is named twice in one delta")
    content = hashlib.sha256()
    files, schemas = [], []
    for number, uri in enumerate(uris, start=1):
        content_type = _content_type(uri, fallback)
        version = _version(location, uri)
        content.update(f"{uri}\0{content_type}\0{version.fingerprint}\0".encode())
        measured = measure(location, TabularFile(uri, content_type), declared)
        check_schema(measured.schema, uri, declared, table_id)
        file = data_file(number, uri, content_type, measured, private_columns)
        files.append(file.model_copy(update=_identity(location, uri, version)))
        schemas.append((uri, measured.schema))
    return DeltaFiles(tuple(files), f"files:sha256:{content.hexdigest()}", tuple(schemas))


def _pieces(source: ArrowSource, content: ContentDigest) -> Iterator[pa.Table]:
    """The source's rows in pieces of limited size, without view types. Each piece is added to the digest; no piece is
    empty."""
    if isinstance(source, pa.Table):
        held = source.schema
        if plain_schema(held) is held:
            content.add(source)
            if source.num_rows:
                yield source
            return
        source = source.to_reader(max_chunksize=ROWS_AT_ONCE)
    gathered: list[pa.RecordBatch] = []
    rows = 0
    for batch in source:
        if batch.num_rows == 0:
            continue
        gathered.append(batch)
        rows += batch.num_rows
        if rows >= ROWS_AT_ONCE:
            piece = plain_table(pa.Table.from_batches(gathered))
            gathered, rows = [], 0
            content.add(piece)
            yield piece
    if gathered:
        piece = plain_table(pa.Table.from_batches(gathered))
        content.add(piece)
        yield piece


def _arrow_digest(content: ContentDigest) -> str:
    return f"arrow:sha256:{content.hexdigest()}"


def data_file(
    number: int, path: str, content_type: ContentType, measured: FileMeasure, private_columns: Collection[str]
) -> DataFile:
    """The file's record in the log. It contains no values of private columns."""
    return DataFile(
        file_number=number,
        path=path,
        content_type=content_type,
        rows=measured.rows,
        size_bytes=measured.size_bytes,
        columns={name: stats for name, stats in measured.columns.items() if name not in private_columns},
        footer=measured.footer,
        row_groups=measured.row_groups,
        schema_fingerprint=None if content_type.is_text else fingerprint_schema(measured.schema),
        crc32=measured.crc32,
    )


def absolute_uri(source: str | Path) -> str:
    """A URI unchanged; a local path as a URI."""
    text = str(source)
    return text if "://" in text else f"file://{Path(text).resolve()}"


def _content_type(uri: str, fallback: ContentType) -> ContentType:
    try:
        return infer_content_type(uri)
    except Invalid:
        return fallback


@dataclass(frozen=True)
class _Version:
    """Which bytes a registered file has.

    fingerprint     its size and time, which change when it is written again
    etag            of an object, where its store has ETags
    modified_at_ns  of a file in a folder
    """

    fingerprint: str
    etag: str | None = None
    modified_at_ns: int | None = None


def _version(location: StoreLocation, uri: str) -> _Version:
    path = local_path(uri)
    if path is None:
        # Discard the cached size and time: the object may have been replaced.
        try:
            tail = open_tail(range_reader(location), uri, refresh=True)
        except Corrupt as error:
            raise Invalid(f"{uri} does not exist: give the URI or path of a data file") from error
        return _Version(f"{tail.size_bytes} {tail.modified_at_ms * 1_000_000}", tail.version)
    with reading(uri, "a data file"):
        found = fs.LocalFileSystem().get_file_info(path)
    if found.type != fs.FileType.File:
        reason = "is a folder" if found.type == fs.FileType.Directory else "does not exist"
        raise Invalid(f"{uri} {reason}: give the URI or path of a data file")
    return _Version(f"{found.size} {found.mtime_ns}", modified_at_ns=found.mtime_ns)


def _identity(location: StoreLocation, uri: str, version: _Version) -> dict[str, str | int | None]:
    """What shows later that a measured file is the one that was appended. Raises `Invalid` if it has changed since its
    version was taken."""
    path = local_path(uri)
    if path is None:
        return {"etag": version.etag}
    with reading(uri, "a data file"):
        crc32 = checksum(path)
    if _version(location, uri) != version:
        raise Invalid(f"{uri} was written to while it was appended: append it once its writer has finished")
    return {"modified_at_ns": version.modified_at_ns, "crc32": crc32}
