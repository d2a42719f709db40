"""Point lookup: one key's row, by the primary key index. Reads a bounded number of ranges, whatever the table's size.

key values -> digest -> hash bucket -> pointer (index/lookup.py) -> one row group of one compacted file
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import pyarrow as pa

from compactor.catalog.snapshot import CompactedStream
from compactor.catalog.stream import PartitionStream
from compactor.errors import Corrupt, Invalid
from compactor.index.lookup import find_pointer
from compactor.kernels.canonical import canonical_column
from compactor.kernels.digest import digest_keys
from compactor.kernels.hash_bucket import hash_buckets
from compactor.object_store import ObjectStore
from compactor.schemas import conform, parse_schema
from compactor.tabular import TabularFile, read_row, written_here

KeyValue: TypeAlias = object
"""A Python value that Arrow can bring to the key column's type: int, str, Decimal, datetime, bytes, None, ..."""


def lookup(store: ObjectStore, stream: PartitionStream, key: Mapping[str, KeyValue]) -> dict[str, object] | None:
    """The compacted row of a key, as Python values by column; None where there is no such row.

    Deltas that are not compacted yet are not seen. Raises `Invalid` for a key that has other columns than the index's,
    or values of another type, and for a stream that was never compacted.
    """
    compacted = stream.load().state.compacted
    if compacted is None:
        raise Invalid(f"{stream} has no index yet: compact it first")
    schema = parse_schema(compacted.last_round.compacted_schema)
    words = digest_keys([canonical_column(name, _value(schema, name, key[name])) for name in _names(compacted, key)], 1)
    bucket = int(hash_buckets(words, compacted.hash_bucket_count)[0])
    files = [file for file in compacted.index_files if file.hash_bucket == bucket]
    pointer = find_pointer(store, files, words.byteswap().tobytes())
    if pointer is None:
        return None
    file = compacted.files.get(pointer.file_number)
    if file is None or pointer.row_index >= file.rows:
        raise Corrupt(
            f"the index of {stream} points at row {pointer.row_index} of file {pointer.file_number}, which is not there"
        )
    source = TabularFile(stream.uri_of(file.path), file.content_type)
    with written_here():
        row = read_row(stream.location, source, pointer.row_index, schema)
    found: dict[str, object] = conform(row, schema).to_pylist()[0]
    return found


def _names(compacted: CompactedStream, key: Mapping[str, KeyValue]) -> tuple[str, ...]:
    if set(key) != set(compacted.primary_keys):
        raise Invalid(f"the key has columns {sorted(key)}, but the index was built for {list(compacted.primary_keys)}")
    return compacted.primary_keys


def _value(schema: pa.Schema, name: str, value: KeyValue) -> pa.ChunkedArray:
    arrow_type = schema.field(name).type
    if pa.types.is_dictionary(arrow_type):
        arrow_type = arrow_type.value_type
    try:
        return pa.chunked_array([pa.array([value], arrow_type)])
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise Invalid(f"{value!r} is no value of key column {name!r}, which has type {arrow_type}: {error}") from error
