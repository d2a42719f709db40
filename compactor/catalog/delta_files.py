"""Makes the files of a delta from a writer's source: Arrow data is written, existing files are measured in place.

Both return `DeltaFiles`, and nothing is visible yet: only the log entry adds the delta.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
from pyarrow import fs

from compactor.catalog.arriving_rows import ArrivingRowsCheck
from compactor.catalog.partition_split import NO_PARTITIONS, Partitioning
from compactor.kernels.content_digest import ContentDigest
from compactor.model.errors import Corrupt, Invalid, LithifyError, refuse_if
from compactor.model.files import DataFile
from compactor.model.names import ContentType, Operation, PartitionValues
from compactor.schemas.cast import joined, plain_table
from compactor.schemas.missing import missing_fields, named, near_name
from compactor.schemas.nesting import refuse_deep_nesting
from compactor.schemas.unify import fingerprint_schema, plain_schema, refuse_repeated_columns, unify_schemas
from compactor.storage.location import StoreLocation, is_remote, lies_below
from compactor.storage.opening import range_reader
from compactor.tabular import (
    FileMeasure,
    TabularFile,
    TabularWriter,
    columns_that_repeat,
    copy_file,
    digest_file,
    infer_content_type,
    measure,
    read_batches,
    read_table,
    without_value,
)
from compactor.tabular.filesystems import local_path, reading
from compactor.tabular.remote_file import open_tail
from compactor.tabular.same_file import checksum

ROWS_PER_DELTA_FILE = 4_000_000
"""Rows of a delta file, by default: those of a compacted file, since a hash task reads whole files."""

ROWS_AT_ONCE = 65_536
"""Rows of a streamed source that are collected before they are written: 64 MiB of 1 KiB rows."""

THE_DELTA = "the delta"
"""The name of Arrow data in messages."""

_PANDAS = b"pandas"
"""The key of what pandas says of a frame, in a schema's metadata."""

_NAMELESS_INDEX = re.compile(r"__index_level_\d+__")

ArrowSource: TypeAlias = pa.Table | pa.RecordBatchReader
FileList: TypeAlias = list[str | Path]
DeltaSource: TypeAlias = ArrowSource | Sequence[str | Path]
"""The source of an append: Arrow data (also any object with `__arrow_c_stream__`), or files to register in place."""


@dataclass(frozen=True)
class DeltaFiles:
    """The files of one delta, numbered from 1, and the digest of the writer's source.

    Attributes:
        schemas: (file name, columns): one for each file, or one for all
        warnings: what in the rows is probably not what their writer meant, a sentence each"""

    files: tuple[DataFile, ...]
    content_digest: str
    schemas: tuple[tuple[str, pa.Schema], ...]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class DeltaRules:
    """What a table demands of a delta.

    Attributes:
        declared: the table's schema
        takes_more: whether the delta may have columns that the schema lacks
        is_published: whether other engines read the table
        private_columns: columns whose bounds are not written to the log
        allow_files: folders outside of a lake on S3 whose files may be registered"""

    table_id: str
    partition: PartitionValues
    operation: Operation
    declared: pa.Schema | None = None
    takes_more: bool = True
    is_published: bool = False
    private_columns: Collection[str] = ()
    allow_files: Collection[str] = ()
    partitioning: Partitioning = NO_PARTITIONS

    def check_schema(self, schema: pa.Schema, source_name: str) -> None:
        """Raises `Invalid` if the table cannot have these columns. Called before anything is written."""
        if not schema.names:
            raise Invalid(f"{source_name} has no columns")
        refuse_repeated_columns(source_name, schema)
        if self.operation is Operation.UPSERT:
            reasons = self.partitioning.reasons_against(schema.names, self.partition)
            refuse_if([f"{source_name}: {reason}" for reason in reasons])
        if self.declared is None:
            return
        unify_schemas([(f"table {self.table_id}", self.declared), (source_name, schema)])
        if self.takes_more:
            return
        unknown = [name for name in missing_fields(self.declared, schema) if name not in self.partition]
        if unknown:
            near = near_name(unknown[0], self.declared.names)
            meant = "" if near is None else f" (did you mean {near!r}?)"
            raise Invalid(
                f"{source_name} has columns that the schema of {self.table_id} lacks, {named(unknown)}{meant}: "
                "correct them, or set schema_growth=allow on the table"
            )

    def arriving(self, schema: pa.Schema, source_name: str) -> ArrivingRowsCheck:
        return ArrivingRowsCheck(
            source_name,
            schema,
            self.partition,
            self.operation,
            is_published=self.is_published,
            partitioning=self.partitioning,
        )

    def check_place(self, location: StoreLocation, uri: str) -> None:
        """Raises `Invalid` for a file that sessions of a lake on S3 cannot read, or are not allowed to."""
        if not location.is_remote:
            return
        lake, what_to_do = location.root_uri, "append it with --copy (copy=True), which copies it into the lake"
        if local_path(uri) is not None:
            raise Invalid(f"{uri} is on this machine, where the sessions of {lake} cannot read it: {what_to_do}")
        if not lies_below(uri, (lake, *self.allow_files)):
            folder = uri.rpartition("/")[0]
            raise Invalid(
                f"{uri} lies outside of the lake {lake}, where sessions may not read it: {what_to_do}, or set "
                f"allow_files={folder} on {self.table_id}, and start dispatchers with --allow-files {folder}"
            )


@dataclass(frozen=True)
class DeltaTarget:
    """The location, format and names of the files to write.

    Attributes:
        name_file: returns the key of file number n in a format"""

    location: StoreLocation
    content_type: ContentType
    rows_per_file: int
    name_file: Callable[[int, ContentType], str]

    def uri_of(self, path: str) -> str:
        return f"{self.location.root_uri.rstrip('/')}/{path}"


def open_source(source: DeltaSource) -> ArrowSource | FileList:
    """As Arrow data or a list of files. Raises `Invalid` if it is neither, or nested too deep."""
    if not isinstance(source, pa.Table | pa.RecordBatchReader) and hasattr(source, "__arrow_c_stream__"):
        try:
            source = _without_index(pa.RecordBatchReader.from_stream(source))
        except pa.ArrowException as error:
            kind = type(source).__name__
            raise Invalid(f"a delta cannot be made of this {kind}: it exports no table of columns ({error})") from error
    if isinstance(source, pa.Table | pa.RecordBatchReader):
        refuse_deep_nesting(THE_DELTA, source.schema)
        return source
    if isinstance(source, Sequence) and not isinstance(source, str) and all(isinstance(x, str | Path) for x in source):
        return list(source)
    raise Invalid(
        f"a delta cannot be made of a {type(source).__name__}: "
        "give a pyarrow.Table, a RecordBatchReader, a frame that exports Arrow (of Polars or pandas), or a list of "
        "file URIs or paths"
    )


def read_rows(
    location: StoreLocation,
    source: DeltaSource,
    schema: pa.Schema | None = None,
    fallback: ContentType | None = None,
    needed: Sequence[str] = (),
) -> pa.Table:
    """All rows of a source, in memory.

    Args:
        schema: types for columns of text files
        fallback: the format of files whose names say none
        needed: columns that are left out where no line of a JSON file names them, so that the file is seen to lack
            them; others are null there"""
    opened = open_source(source)
    if isinstance(opened, pa.Table):
        return plain_table(opened)
    if isinstance(opened, pa.RecordBatchReader):
        return plain_table(opened.read_all())
    files = [TabularFile(uri, content_type_of(uri, fallback)) for uri in _absolute_uris(opened)]
    return joined([(file.uri, _read_file(location, file, schema, needed)) for file in files])


def _read_file(location: StoreLocation, file: TabularFile, schema: pa.Schema | None, needed: Sequence[str]) -> pa.Table:
    rows = read_table(location, file, schema=schema)
    doubtful = without_value(rows, needed) if file.content_type is ContentType.JSON else []
    lacking = measure(location, file, schema).unnamed.intersection(doubtful) if doubtful else ()
    return rows.drop_columns(list(lacking)) if lacking else rows


def refuse_absent(location: StoreLocation, source: DeltaSource) -> None:
    """Raises `Invalid` for a file that does not exist."""
    if isinstance(source, Sequence) and not isinstance(source, str):
        for uri in {absolute_uri(each) for each in source if isinstance(each, str | Path)}:
            version_of_file(location, uri)


def _without_index(rows: pa.RecordBatchReader) -> pa.RecordBatchReader:
    """Without the index of a pandas frame that has no name: it is exported once rows were filtered or sorted."""
    held = rows.schema
    if _PANDAS not in (held.metadata or {}):
        return rows
    columns = [field for field in held if _NAMELESS_INDEX.fullmatch(field.name) is None]
    metadata = {key: value for key, value in held.metadata.items() if key != _PANDAS}
    schema = pa.schema(columns, metadata=metadata or None)
    kept = [held.get_field_index(name) for name in schema.names]
    batches = (pa.RecordBatch.from_arrays([batch.column(at) for at in kept], schema=schema) for batch in rows)
    return pa.RecordBatchReader.from_batches(schema, batches)


def digest_source(
    location: StoreLocation, source: ArrowSource | FileList, fallback: ContentType, *, copies: bool
) -> str:
    """The content digest that the source's delta would have. Writes nothing."""
    if isinstance(source, list):
        uris = _absolute_uris(source)
        return _digest_copies(location, uris, fallback) if copies else _digest_files(location, uris, fallback)[0]
    return digest_rows(source)


def digest_rows(source: ArrowSource) -> str:
    """The content digest of a delta with these rows."""
    content = ContentDigest(source.schema)
    for _ in _pieces(source, content):
        pass
    return _arrow_digest(content)


def write_files(source: ArrowSource, target: DeltaTarget, rules: DeltaRules) -> DeltaFiles:
    """Write Arrow data into files of at most `rows_per_file` rows; no rows make one empty file.

    A reader is streamed: at most one piece of it is in memory. An exception leaves unreferenced files. Raises `Invalid`
    for rows that the table refuses: those of a table before anything is written.
    """
    rules.check_schema(source.schema, THE_DELTA)
    content = ContentDigest(source.schema)
    files: list[DataFile] = []
    schema = plain_schema(source.schema)
    arriving = rules.arriving(schema, THE_DELTA)
    pieces = _pieces(source, content, arriving)
    ahead: pa.Table | None = next(pieces, schema.empty_table())
    # Of a stream the first rows do not say how often its values come.
    dictionaries = columns_that_repeat(ahead) if ahead is not None and isinstance(source, pa.Table) else None
    while ahead is not None:
        number = len(files) + 1
        path = target.name_file(number, target.content_type)
        uri = target.uri_of(path)
        with TabularWriter.open(target.location, uri, target.content_type, schema, dictionaries) as writer:
            room = target.rows_per_file
            while ahead is not None and room > 0:
                writer.write(ahead.slice(0, room))
                taken = min(room, ahead.num_rows)
                room -= taken
                ahead = ahead.slice(taken) if taken < ahead.num_rows else next(pieces, None)
            files.append(data_file(number, path, target.content_type, writer.close(), rules.private_columns))
    return DeltaFiles(tuple(files), _arrow_digest(content), ((THE_DELTA, schema),), arriving.warnings)


def register_files(location: StoreLocation, source: FileList, fallback: ContentType, rules: DeltaRules) -> DeltaFiles:
    """Measures files in place. Their content type follows from their name, or is `fallback` if the name has none.

    Raises `Invalid` for a file that is missing, broken (both with its name) or named twice, that sessions cannot read,
    or whose columns or rows the table refuses.
    """
    uris = _absolute_uris(source)
    for uri in uris:
        rules.check_place(location, uri)
    content_digest, versions = _digest_files(location, uris, fallback)
    measured = [_measured(location, uri, fallback, rules) for uri in uris]
    files = tuple(
        data_file(number, file.uri, file.content_type, found, rules.private_columns).model_copy(
            update=_identity(location, file.uri, version)
        )
        for number, ((file, found, _), version) in enumerate(zip(measured, versions, strict=True), 1)
    )
    return _delta_files(files, content_digest, measured)


def copy_files(source: FileList, fallback: ContentType, target: DeltaTarget, rules: DeltaRules) -> DeltaFiles:
    """Copies files into the lake, from wherever this process can read them. Raises `Invalid` as `register_files`, and
    for a file that changes meanwhile; what was copied is then left unreferenced."""
    location, uris = target.location, _absolute_uris(source)
    _, versions = _digest_files(location, uris, fallback)
    measured = [_measured(location, uri, fallback, rules) for uri in uris]
    content, files = hashlib.sha256(), []
    for number, (file, found, _) in enumerate(measured, 1):
        path, digest = target.name_file(number, file.content_type), hashlib.sha256()
        size_bytes, crc32 = copy_file(location, file, target.uri_of(path), digest)
        content.update(f"{file.content_type}\0{digest.hexdigest()}\0".encode())
        copied = replace(found, size_bytes=size_bytes, crc32=crc32)
        files.append(data_file(number, path, file.content_type, copied, rules.private_columns))
    changed = [uri for uri, version in zip(uris, versions, strict=True) if version_of_file(location, uri) != version]
    if changed:
        raise Invalid(f"{changed[0]} was changed while it was copied: append it again")
    return _delta_files(tuple(files), f"bytes:sha256:{content.hexdigest()}", measured)


_Measured: TypeAlias = tuple[TabularFile, FileMeasure, tuple[str, ...]]
"""A file that is appended, its measure, and the warnings about its rows."""


def _delta_files(files: tuple[DataFile, ...], content_digest: str, measured: Sequence[_Measured]) -> DeltaFiles:
    schemas = tuple((file.uri, found.named) for file, found, _ in measured)
    return DeltaFiles(files, content_digest, schemas, tuple(each for _, _, warnings in measured for each in warnings))


def _measured(location: StoreLocation, uri: str, fallback: ContentType, rules: DeltaRules) -> _Measured:
    """Measures a file, and reads of its rows only the columns whose values must be checked."""
    file = TabularFile(uri, content_type_of(uri, fallback))
    measured = measure(location, file, rules.declared)
    rules.check_schema(measured.schema, uri)
    arriving = rules.arriving(measured.schema, uri)
    wanted = arriving.wanted(measured.columns)
    if wanted:
        for batch in read_batches(location, file, wanted, measured.schema):
            arriving.add(pa.Table.from_batches([batch]))
    return file, measured, arriving.warnings


def _absolute_uris(source: FileList) -> list[str]:
    uris = [absolute_uri(each) for each in source]
    if not uris:
        raise Invalid("there are no files to append: the list is empty")
    repeated = sorted(uri for uri, count in Counter(uris).items() if count > 1)
    if repeated:
        raise Invalid(f"{repeated[0]} is named twice in one delta")
    return uris


def _digest_files(location: StoreLocation, uris: Sequence[str], fallback: ContentType) -> tuple[str, list[FileVersion]]:
    """The content digest of registered files, and which bytes they have now."""
    content, versions = hashlib.sha256(), [version_of_file(location, uri) for uri in uris]
    for uri, version in zip(uris, versions, strict=True):
        content.update(f"{uri}\0{content_type_of(uri, fallback)}\0{version.fingerprint}\0".encode())
    return f"files:sha256:{content.hexdigest()}", versions


def _digest_copies(location: StoreLocation, uris: Sequence[str], fallback: ContentType) -> str:
    content = hashlib.sha256()
    for uri in uris:
        file, digest = TabularFile(uri, content_type_of(uri, fallback)), hashlib.sha256()
        digest_file(location, file, digest)
        content.update(f"{file.content_type}\0{digest.hexdigest()}\0".encode())
    return f"bytes:sha256:{content.hexdigest()}"


def _pieces(
    source: ArrowSource, content: ContentDigest, arriving: ArrivingRowsCheck | None = None
) -> Iterator[pa.Table]:
    """The source's rows in pieces of limited size, none empty, without view types, checked and in the digest."""
    for piece in _plain_pieces(source):
        if arriving is not None:
            arriving.add(piece)
        content.add(piece)
        yield piece


def _plain_pieces(source: ArrowSource) -> Iterator[pa.Table]:
    if isinstance(source, pa.Table):
        held = source.schema
        if plain_schema(held) is held:
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
            yield piece
    if gathered:
        yield plain_table(pa.Table.from_batches(gathered))


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


def content_type_of(uri: str, fallback: ContentType | None) -> ContentType:
    """By the file's name, or else the fallback. Raises `Invalid` without either."""
    try:
        return infer_content_type(uri)
    except Invalid:
        if fallback is None:
            raise
        return fallback


@dataclass(frozen=True)
class FileVersion:
    """Which bytes a registered file has.

    Attributes:
        fingerprint: its size and time, which change when it is written again
        etag: of an object, where its store has ETags
        modified_at_ns: of a file in a folder"""

    fingerprint: str
    etag: str | None = None
    modified_at_ns: int | None = None


def version_of_file(location: StoreLocation, uri: str, *, was_read: bool = False) -> FileVersion:
    """Of the file that is there now, or (`was_read`) of the object that was just read: every request for its bytes has
    named this version. Raises `Invalid` if there is none."""
    path = local_path(uri)
    if path is None:
        # Unless it was read, discard the cached size and time: the object may have been replaced.
        try:
            tail = open_tail(range_reader(location), uri, refresh=not was_read)
        except Corrupt as error:
            raise Invalid(f"{uri} does not exist: give the URI or path of a data file") from error
        return FileVersion(f"{tail.size_bytes} {tail.modified_at_ms * 1_000_000}", tail.version)
    with reading(uri, "a data file"):
        found = fs.LocalFileSystem().get_file_info(path)
    if found.type != fs.FileType.File:
        reason = "is a folder" if found.type == fs.FileType.Directory else "does not exist"
        raise Invalid(f"{uri} {reason}: give the URI or path of a data file")
    return FileVersion(f"{found.size} {found.mtime_ns}", modified_at_ns=found.mtime_ns)


def begin_files(location: StoreLocation, uris: Sequence[str]) -> None:
    """Requests the ends of remote files, whichever version is there now, so that `version_of_file` finds them read."""
    remote = [uri for uri in uris if is_remote(uri)]
    if remote:
        range_reader(location).begin_tails(remote)


def is_at_hand(location: StoreLocation, uri: str) -> bool:
    """Whether nothing is left to request of a file that was begun, or it is local, or cannot be read."""
    try:
        return not is_remote(uri) or open_tail(range_reader(location), uri).span.start == 0
    except LithifyError:
        return True


def _identity(location: StoreLocation, uri: str, version: FileVersion) -> dict[str, str | int | None]:
    """Shows later that a measured file is the one appended. Raises `Invalid` if it has changed since its version."""
    path = local_path(uri)
    if path is None:
        return {"etag": version.etag}
    with reading(uri, "a data file"):
        crc32 = checksum(path)
    if version_of_file(location, uri) != version:
        raise Invalid(f"{uri} was written to while it was appended: append it once its writer has finished")
    return {"modified_at_ns": version.modified_at_ns, "crc32": crc32}
