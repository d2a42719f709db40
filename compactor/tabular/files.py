"""The functions on one data file: its schema, its rows, its measure. String and binary views are read as plain types.

Errors of every function: `Invalid` for a file whose bytes do not match its content type, `Corrupt` for a missing one,
`Unavailable` for one whose service or disk does not answer.
"""

import gzip
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from types import MappingProxyType

import pyarrow as pa
import pyarrow.parquet as pq
from isal import isal_zlib

from compactor.model.errors import Corrupt, Invalid
from compactor.model.names import ContentType
from compactor.schemas.cast import plain_table
from compactor.schemas.nesting import refuse_deep_nesting
from compactor.schemas.unify import plain_schema, refuse_repeated_columns
from compactor.storage.location import StoreLocation
from compactor.storage.ranges import AHEAD_BYTES_MAX, REQUEST_BYTES_MAX, TAIL_BYTES, RangeReader, Span
from compactor.tabular.filesystems import reading, written_here
from compactor.tabular.formats import FileMeasure, FileOutline, Source, TabularFile, TabularFormat
from compactor.tabular.ipc import Ipc
from compactor.tabular.orc import Orc
from compactor.tabular.parquet import Parquet, begin_parquet, check_row_count, dictionary_columns_in
from compactor.tabular.parquet_pages.arrow_files import open_parquet
from compactor.tabular.remote_file import WHOLE_BYTES_MAX, open_tail
from compactor.tabular.same_file import check_crc32
from compactor.tabular.text import Csv, JsonLines

_SUFFIXES: Mapping[str, ContentType] = MappingProxyType(
    {
        "parquet": ContentType.PARQUET,
        "pq": ContentType.PARQUET,
        "arrow": ContentType.FEATHER,
        "feather": ContentType.FEATHER,
        "ipc": ContentType.FEATHER,
        "arrows": ContentType.FEATHER,
        "orc": ContentType.ORC,
        "csv": ContentType.CSV,
        "tsv": ContentType.TSV,
        "json": ContentType.JSON,
        "jsonl": ContentType.JSON,
        "ndjson": ContentType.JSON,
    }
)

_FORMATS: Mapping[ContentType, TabularFormat] = MappingProxyType(
    {
        ContentType.PARQUET: Parquet(),
        ContentType.FEATHER: Ipc(),
        ContentType.ORC: Orc(),
        ContentType.CSV: Csv(","),
        ContentType.TSV: Csv("\t"),
        ContentType.JSON: JsonLines(),
    }
)


def infer_content_type(uri: str) -> ContentType:
    """The content type by a file's suffix; text may be gzipped (`.csv.gz`). Raises `Invalid` for an unknown suffix."""
    name = uri.rsplit("/", 1)[-1].lower()
    stem = name.removesuffix(".gz")
    content_type = _SUFFIXES.get(stem.rpartition(".")[2]) if "." in stem else None
    if content_type is None or (stem != name and not content_type.is_text):
        known = ", ".join(f".{suffix}" for suffix in _SUFFIXES)
        raise Invalid(f"the content type of {uri} cannot be inferred from its name ({known}; text also .gz): state it")
    return content_type


def read_schema(location: StoreLocation, file: TabularFile, schema: pa.Schema | None = None) -> pa.Schema:
    """The columns of a file, from its footer or header. Text is read whole once, to infer the types of its values."""
    with reading(file.uri, file.content_type):
        return plain_schema(_checked(file, _FORMATS[file.content_type].read_schema(Source.of(location, file), schema)))


def check_written(location: StoreLocation, file: TabularFile, footer: pq.FileMetaData | None) -> None:
    """Reads what readers need first of a file that was just written. Raises `Corrupt` if it cannot be read, or if its
    footer is not the one that was written. None: it has none, and no text is read."""
    with written_here(), reading(file.uri, file.content_type):
        if footer is not None:
            with open_parquet(Source.of(location, file)) as opened:
                if not opened.parquet.metadata.equals(footer):
                    raise Corrupt(f"{file.uri} has another footer than was written")
        elif not file.content_type.is_text:
            read_schema(location, file)


def read_outline(location: StoreLocation, file: TabularFile, schema: pa.Schema | None = None) -> FileOutline:
    """The columns of a file, from its footer; of text only the first block is read."""
    reader = _FORMATS[file.content_type]
    if not isinstance(reader, Csv | JsonLines):
        return FileOutline(read_schema(location, file, schema))
    with reading(file.uri, file.content_type):
        outline = reader.outline(Source.of(location, file), schema)
        _checked(file, outline.schema)
        return replace(outline, schema=plain_schema(outline.schema))


def read_table(
    location: StoreLocation,
    file: TabularFile,
    columns: Sequence[str] | None = None,
    schema: pa.Schema | None = None,
) -> pa.Table:
    """All rows in file order. Columns that the file lacks are left out; the caller adds them.

    Args:
        schema: types for the columns of a text file (CSV, TSV, JSON); columns without one are inferred; and types for
            an ORC file, which may store a column with another type"""
    with reading(file.uri, file.content_type):
        source = Source.of(location, file)
        if _is_read_whole(file, columns):
            source = replace(source, body=_whole(source))
        return plain_table(_FORMATS[file.content_type].read_table(source, columns, schema))


def read_parquet_with_dictionaries(location: StoreLocation, file: TabularFile) -> tuple[pa.Table, tuple[str, ...]]:
    """As `read_table` of a small Parquet file, with its `dictionary_columns_of`: it is opened once for both."""
    with reading(file.uri, file.content_type):
        source = Source.of(location, file)
        if not source.is_remote:
            with source.open() as opened:
                source = replace(source, body=opened.read_buffer())
            if file.crc32 is not None:
                check_crc32(file.uri, source.body, file.crc32)
        with open_parquet(source) as parquet:
            rows = plain_table(Parquet().table_of(source, parquet, None))
            return rows, dictionary_columns_in(parquet.parquet.metadata)


def read_batches(
    location: StoreLocation,
    file: TabularFile,
    columns: Sequence[str] | None = None,
    schema: pa.Schema | None = None,
    own_pages: bool = True,
) -> Iterator[pa.RecordBatch]:
    """All rows in file order, a bounded number of bytes at a time if the format allows it. See `read_table`.

    Args:
        own_pages: False: Arrow reads all pages of Parquet"""
    is_for_arrow = file.content_type is ContentType.PARQUET and not own_pages
    reader: TabularFormat = Parquet(own_pages=False) if is_for_arrow else _FORMATS[file.content_type]
    with reading(file.uri, file.content_type):
        source = Source.of(location, file)
        if _is_read_whole(file, columns) and not source.is_remote:
            source = replace(source, body=_whole(source))
        for batch in reader.read_batches(source, columns, schema):
            held = batch.schema
            if plain_schema(held) is held:
                yield batch
            else:
                yield from plain_table(pa.Table.from_batches([batch])).to_batches()


def read_batches_around(
    location: StoreLocation,
    file: TabularFile,
    rows: int,
    bounds: tuple[int, int],
    schema: pa.Schema,
    *,
    columns: Sequence[str] | None = None,
    own_pages: bool = False,
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """At least the rows from the first to the last of `bounds`, in batches, each with its first row: without the row
    groups of Parquet, the stripes of ORC and the pieces of text that have none of them. See `read_batches`. Raises
    `Corrupt` unless the file has so many `rows`."""
    if file.pieces:
        yield from _pieces_around(location, file, bounds, schema, columns)
        return
    if file.content_type is not ContentType.PARQUET:
        row = 0
        for batch in read_batches(location, file, columns, schema):
            yield row, batch
            row += batch.num_rows
        check_row_count(file.uri, row, rows)
        return
    with reading(file.uri, file.content_type):
        for row, batch in Parquet(own_pages).batches_around(Source.of(location, file), rows, *bounds, columns):
            for plain in plain_table(pa.Table.from_batches([batch])).to_batches():
                yield row, plain
                row += plain.num_rows


def _pieces_around(
    location: StoreLocation,
    file: TabularFile,
    bounds: tuple[int, int],
    schema: pa.Schema,
    columns: Sequence[str] | None,
) -> Iterator[tuple[int, pa.RecordBatch]]:
    reader, source = _FORMATS[file.content_type], Source.of(location, file)
    row = start = 0
    for number, piece in enumerate(file.pieces):
        end = row + piece.rows
        if row <= bounds[1] and bounds[0] < end:
            with reading(file.uri, file.content_type):
                if isinstance(reader, Orc):
                    batches = reader.read_batches(source, columns, schema, number)
                elif isinstance(reader, Csv | JsonLines):
                    batches = reader.read_batches(source, columns, schema, Span(start, start + piece.size_bytes))
                else:
                    raise TypeError(f"{file.content_type} has no pieces")
                for batch in batches:
                    for plain in plain_table(pa.Table.from_batches([batch])).to_batches():
                        yield row, plain
                        row += plain.num_rows
            if row != end:
                raise Corrupt(f"{file.uri} has other rows than the log says, before row {end}")
        row, start = end, start + piece.size_bytes


def check_bytes(location: StoreLocation, file: TabularFile) -> None:
    """Reads all bytes of a file whose checksum the log has, in pieces, and of others the end. Raises `Corrupt` if it is
    not the file that the log means."""
    found = 0
    with reading(file.uri, file.content_type), Source.of(location, file).open() as opened:
        while file.crc32 is not None and (piece := opened.read(REQUEST_BYTES_MAX)):
            found = isal_zlib.crc32(piece, found)
    if file.crc32 is not None and found != file.crc32:
        raise Corrupt(f"{file.uri} is damaged: its CRC-32 is {found:08x}, but the log says {file.crc32:08x}")


def _is_read_whole(file: TabularFile, columns: Sequence[str] | None) -> bool:
    """Whether all bytes will be read, and are compared with the log. Pages of Parquet have checksums of their own."""
    is_whole = columns is None or file.content_type.is_text
    return is_whole and file.crc32 is not None and file.content_type is not ContentType.PARQUET


def _whole(source: Source) -> pa.Buffer:
    """All bytes, which are those that the log means."""
    with source.open() if source.is_remote else pa.memory_map(source.checked_path()) as opened:
        body = opened.read_buffer()
    if source.file.crc32 is not None:
        check_crc32(source.file.uri, body, source.file.crc32)
    return body


def read_bytes(location: StoreLocation, uri: str) -> bytes:
    """All bytes of a file that no log knows; a gzipped one's are unpacked."""
    with reading(uri, "a file"):
        body = _whole(Source.of(location, TabularFile(uri, ContentType.JSON)))
    if not uri.endswith(".gz"):
        return bytes(body.to_pybytes())
    try:
        return gzip.decompress(body)
    except (OSError, EOFError, zlib.error) as error:
        raise Invalid(f"{uri} cannot be unpacked: {error}") from error


def read_json_lines(body: bytes, name: str, schema: pa.Schema | None = None) -> pa.Table:
    """The rows of JSON lines that are in no file. `name`: theirs in messages. `schema`: as for `read_table`."""
    file = TabularFile(name, ContentType.JSON)
    with reading(name, file.content_type):
        source = Source(file, name, body=pa.py_buffer(body))
        return plain_table(_FORMATS[file.content_type].read_table(source, None, schema))


def each_begun(
    location: StoreLocation,
    files: Sequence[TabularFile],
    columns: Sequence[str] | None,
    ahead: int,
    room_bytes: int = AHEAD_BYTES_MAX,
    bounds: Sequence[tuple[int, int] | None] | None = None,
) -> Iterator[TabularFile]:
    """Yields the files in order. While a remote file is read, the next `ahead` files are prefetched: their ends, and of
    the columns (None: all) as much as there is room for. The first ones are begun at once, before they are asked for.

    Args:
        bounds: the first and the last row that will be read of each file, if it is Parquet; None: all"""
    begun: list[Future[None] | None] = []

    def begin(count: int) -> None:
        while len(files) > 1 and len(begun) < min(count, len(files)):
            rows = None if bounds is None else bounds[len(begun)]
            begun.append(begin_soon(location, files[len(begun)], columns, room_bytes, rows))

    def each() -> Iterator[TabularFile]:
        for number, file in enumerate(files):
            begin(number + 1 + ahead)
            under_way = begun[number] if begun else None
            if under_way is not None:
                under_way.exception()  # the read will raise the error, if there was one
            yield file

    begin(1 + ahead)
    return each()


def begin_ends(location: StoreLocation, files: Sequence[TabularFile]) -> None:
    """Prefetches the ends of remote files, which have their footers, without waiting."""
    for file in files:
        begin_soon(location, file, [])


def begin_soon(
    location: StoreLocation,
    file: TabularFile,
    columns: Sequence[str] | None,
    room_bytes: int = AHEAD_BYTES_MAX,
    bounds: tuple[int, int] | None = None,
) -> Future[None] | None:
    """Prefetches the end of a remote file and, if there is room, these columns (None: all) around these rows (None:
    all); None: it is local. An error is for the one who reads the file."""
    source = Source.of(location, file)
    if source.reader is None:
        return None
    source.reader.give_room(room_bytes)
    return source.reader.soon(partial(_begin, source, source.reader, columns, bounds))


def _begin(source: Source, reader: RangeReader, columns: Sequence[str] | None, bounds: tuple[int, int] | None) -> None:
    file = source.file
    if bounds is None and _is_all_of_a_file_of_ours(file, columns):
        reader.begin(file.uri, [Span(0, (file.size_bytes or 0) - TAIL_BYTES)])
    tail = open_tail(reader, file.uri, file.size_bytes, etag=file.etag, crc32=file.crc32)
    if tail.size_bytes == len(tail.data):
        return
    if file.content_type is ContentType.PARQUET:
        begin_parquet(source, columns, bounds)
    else:
        reader.begin(file.uri, [Span(0, min(tail.size_bytes, REQUEST_BYTES_MAX))])


def _is_all_of_a_file_of_ours(file: TabularFile, columns: Sequence[str] | None) -> bool:
    """Whether every byte of a large file will be needed that Lithify has written, so that it never changes: then its
    end need not be there before the rest is asked for."""
    is_ours = file.crc32 is not None and file.content_type is ContentType.PARQUET
    return is_ours and columns is None and (file.size_bytes or 0) > WHOLE_BYTES_MAX


def read_row(location: StoreLocation, file: TabularFile, row_index: int, schema: pa.Schema | None = None) -> pa.Table:
    """A table of one row. In Parquet only the footer and one row group are read, in other formats all earlier rows."""
    if file.content_type is ContentType.PARQUET:
        with reading(file.uri, file.content_type):
            return plain_table(Parquet().read_row(Source.of(location, file), row_index))
    for batch in read_batches(location, file, schema=schema):
        if row_index < batch.num_rows:
            return pa.Table.from_batches([batch.slice(row_index, 1)])
        row_index -= batch.num_rows
    return read_schema(location, file, schema).empty_table()


def measure(location: StoreLocation, file: TabularFile, schema: pa.Schema | None = None) -> FileMeasure:
    """Rows, bytes, schema and column bounds, from the footer if there is one; the rows of text are counted. Raises
    `Invalid` for columns that are nested too deep."""
    with reading(file.uri, file.content_type):
        measured = _FORMATS[file.content_type].measure(Source.of(location, file), schema)
    refuse_deep_nesting(file.uri, measured.schema)
    _checked(file, measured.schema)
    return replace(measured, schema=plain_schema(measured.schema))


def _checked(file: TabularFile, schema: pa.Schema) -> pa.Schema:
    refuse_repeated_columns(file.uri, schema)
    return schema
