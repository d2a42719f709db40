"""The verbs on one data file: what it holds, its rows, its measure.

Errors, for every verb: `Invalid` names a file whose bytes are not what its content type says, `Corrupt` one that is
not there, `Unavailable` one whose place does not answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import pyarrow as pa

from compactor.errors import Invalid
from compactor.names import ContentType
from compactor.object_store import StoreLocation
from compactor.schemas import refuse_repeated_columns
from compactor.tabular.filesystems import open_filesystem, reading
from compactor.tabular.formats import FileMeasure, Source, TabularFile, TabularFormat
from compactor.tabular.ipc import Ipc
from compactor.tabular.orc import Orc
from compactor.tabular.parquet import Parquet
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
    """The content type that a file's name promises; text may be gzipped (`.csv.gz`). Raises `Invalid` otherwise."""
    name = uri.rsplit("/", 1)[-1].lower()
    stem = name.removesuffix(".gz")
    content_type = _SUFFIXES.get(stem.rpartition(".")[2]) if "." in stem else None
    if content_type is None or (stem != name and not content_type.is_text):
        known = ", ".join(f".{suffix}" for suffix in _SUFFIXES)
        raise Invalid(f"the content type of {uri} cannot be told from its name ({known}; text also .gz): state it")
    return content_type


def read_schema(location: StoreLocation, file: TabularFile, schema: pa.Schema | None = None) -> pa.Schema:
    """The columns of a file, from its footer or header. Text is read once, whole, for the types of its values."""
    with reading(file.uri, file.content_type):
        return _checked(file, _format(file).read_schema(_source(location, file), schema))


def read_table(
    location: StoreLocation,
    file: TabularFile,
    columns: Sequence[str] | None = None,
    schema: pa.Schema | None = None,
) -> pa.Table:
    """All rows in file order. Columns that the file lacks are left out: the caller knows what they should be.

    schema  types for the columns of a text file (CSV, TSV, JSON), where those that it does not name are inferred, and
            of an ORC file, where a column may hold another type in the place of its own
    """
    with reading(file.uri, file.content_type):
        return _format(file).read_table(_source(location, file), columns, schema)


def read_batches(
    location: StoreLocation,
    file: TabularFile,
    columns: Sequence[str] | None = None,
    schema: pa.Schema | None = None,
) -> Iterator[pa.RecordBatch]:
    """All rows in file order, a bounded number of bytes at a time where the format allows it. See `read_table`."""
    with reading(file.uri, file.content_type):
        yield from _format(file).read_batches(_source(location, file), columns, schema)


def read_row(location: StoreLocation, file: TabularFile, row_index: int, schema: pa.Schema | None = None) -> pa.Table:
    """One row as a table of one row. Of Parquet only the footer and one row group are read, of others all before it."""
    if file.content_type is ContentType.PARQUET:
        with reading(file.uri, file.content_type):
            return Parquet().read_row(_source(location, file), row_index)
    for batch in read_batches(location, file, schema=schema):
        if row_index < batch.num_rows:
            return pa.Table.from_batches([batch.slice(row_index, 1)])
        row_index -= batch.num_rows
    return read_schema(location, file, schema).empty_table()


def measure(location: StoreLocation, file: TabularFile, schema: pa.Schema | None = None) -> FileMeasure:
    """Rows, bytes, schema and column bounds, from the footer where there is one; the rows of text are counted."""
    with reading(file.uri, file.content_type):
        measured = _format(file).measure(_source(location, file), schema)
    _checked(file, measured.schema)
    return measured


def _format(file: TabularFile) -> TabularFormat:
    return _FORMATS[file.content_type]


def _source(location: StoreLocation, file: TabularFile) -> Source:
    filesystem, path = open_filesystem(location, file.uri)
    return Source(file, filesystem, path)


def _checked(file: TabularFile, schema: pa.Schema) -> pa.Schema:
    refuse_repeated_columns(file.uri, schema)
    return schema
