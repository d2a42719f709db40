"""Point lookup: one key's row, by the primary key index. Reads a bounded number of ranges for tables of any size.

key values -> digest -> hash bucket -> pointer (`index/files.py`) -> one row group of one compacted file
"""

from collections.abc import Mapping
from typing import TypeAlias

import pyarrow as pa

from compactor.catalog.keys import is_open_file
from compactor.catalog.snapshot import CompactedStream
from compactor.catalog.stream import PartitionStream
from compactor.index.files import find_row
from compactor.kernels.canonical import canonical_column
from compactor.kernels.digest import digest_keys
from compactor.kernels.hash_bucket import hash_buckets
from compactor.model.arrow_types import decoded_type
from compactor.model.errors import Corrupt, Invalid
from compactor.model.files import ColumnStats, DataFile
from compactor.reading.scan import partition_constants, with_partition_columns
from compactor.schemas.cast import conform, python_rows
from compactor.schemas.unify import parse_schema
from compactor.tabular import TabularFile, begin_ends, read_row, written_here

LIKELY_FILES_MAX = 4
"""Footers on an object store that are asked for while the index is searched, at most."""

KeyValue: TypeAlias = object
"""A Python value that Arrow can convert to the key column's type: int, str, Decimal, datetime, bytes, None, ..."""


def lookup(
    stream: PartitionStream, key: Mapping[str, KeyValue], declared: pa.Schema | None = None
) -> dict[str, object] | None:
    """The compacted row of a key, as Python values by column; None if there is none.

    Partition keys are columns, as in a scan; `declared` is the table's schema, which may have their types. Deltas that
    are not compacted yet are ignored. Raises `Invalid` for a key with other columns than the index's, or values of
    another type, and for a stream that was never compacted.
    """
    snapshot = stream.load().state
    compacted = snapshot.compacted
    if snapshot.is_dropped:
        return None
    if compacted is None:
        raise Invalid(f"{stream} has no index yet: compact it first")
    schema = parse_schema(compacted.last_round.compacted_schema)
    digests = digest_keys(
        [canonical_column(name, _value(schema, name, key[name])) for name in _names(compacted, key)], 1
    )
    bucket = int(hash_buckets(digests, compacted.hash_bucket_count)[0])
    files = [file for file in compacted.index_files if file.hash_bucket == bucket]
    begin_ends(stream.location, [_source(stream, file) for file in _likely_files(compacted, key)])
    pointer = find_row(stream.location, files, digests)
    if pointer is None:
        return None
    file = compacted.files.get(pointer.file_number)
    if file is None or pointer.row_index >= file.rows:
        raise Corrupt(
            f"the index of {stream} points at row {pointer.row_index} of file {pointer.file_number}, "
            "which does not exist"
        )
    source = _source(stream, file)
    with written_here():
        row = read_row(stream.location, source, pointer.row_index, schema)
    if is_open_file(file.path):  # it has the partition's values as columns too
        row = row.select([name for name in row.schema.names if schema.get_field_index(name) >= 0])
    (found,) = python_rows(conform(row, schema))
    whole_schema = with_partition_columns(schema if declared is None else declared, stream.partition)
    constants = partition_constants(stream.partition, schema, whole_schema, stream)
    return found | {name: value.as_py() for name, value in constants.items()}


def _source(stream: PartitionStream, file: DataFile) -> TabularFile:
    return TabularFile.of(stream.uri_of(file.path), file)


def _likely_files(compacted: CompactedStream, key: Mapping[str, KeyValue]) -> list[DataFile]:
    """The files that may hold the key by their bounds, if they are few. Only a hint: the index says where it is."""
    likely = [
        file
        for file in compacted.files.values()
        if all(_is_within(value, file.columns.get(name)) for name, value in key.items())
    ]
    return likely if len(likely) <= LIKELY_FILES_MAX else []


def _is_within(value: KeyValue, stats: ColumnStats | None) -> bool:
    if stats is None or stats.min_value is None or stats.max_value is None:
        return True
    try:
        return bool(stats.min_value <= value <= stats.max_value)  # type: ignore[operator]
    except TypeError:  # the bound is stored as text or as a number
        return True


def _names(compacted: CompactedStream, key: Mapping[str, KeyValue]) -> tuple[str, ...]:
    if not compacted.primary_keys:
        raise Invalid("the table has no key (primary_keys is empty), so no row can be looked up: scan it with a filter")
    if set(key) != set(compacted.primary_keys):
        raise Invalid(f"the key has columns {sorted(key)}, but the index was built for {list(compacted.primary_keys)}")
    return compacted.primary_keys


def _value(schema: pa.Schema, name: str, value: KeyValue) -> pa.ChunkedArray:
    arrow_type = decoded_type(schema.field(name).type)
    try:
        return pa.chunked_array([pa.array([value], arrow_type)])
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise Invalid(
            f"{value!r} is not a value of key column {name!r}, which has type {arrow_type}: {error}"
        ) from error
