"""What a session reads: the delta files it still has to compact, and one schema for all of their rows.

Reads logs and file footers, never the data. Everything that can be wrong with the input is found here, before a byte
is written: keys that do not fit, columns that cannot be reconciled, files that cannot be opened.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa

from compactor.catalog.actions import SortKey
from compactor.catalog.catalog import DeltaCatalog
from compactor.catalog.snapshot import CompactedStream, StreamSnapshot
from compactor.catalog.stream import PartitionStream
from compactor.errors import Corrupt, Invalid
from compactor.kernels.sort_values import SortColumn
from compactor.key_columns import check_key_columns
from compactor.names import PARTITION_STREAM_POSITION, Operation, SortOrder, render_partition
from compactor.object_store import StoreLocation
from compactor.planning import DeltaFileRef
from compactor.schemas import parse_schema, unify_schemas
from compactor.spec import DEFAULT_SORT_KEYS, SessionSpec
from compactor.tabular import TabularFile, read_schema, stored_schema

_FILES_AT_ONCE = 16
_ALL_NULL_SORT_TYPE = pa.bool_()


@dataclass(frozen=True)
class SessionInput:
    """What a session starts from.

    compacted                  what earlier rounds left of this source stream version; None: nothing, start from scratch
    compacted_stream_version   the version that the session's rounds write
    pending                    delta files above the watermark, up to the pinned position, in order
    schema                     of compacted rows, grown by what the pending files bring
    without_sort_values        (position, file number) of delete files that lack a custom sort key column
    """

    source: PartitionStream
    destination: PartitionStream
    snapshot: StreamSnapshot
    compacted: CompactedStream | None
    compacted_stream_version: int
    pending: tuple[DeltaFileRef, ...]
    key_columns: tuple[str, ...]
    sort_keys: tuple[SortKey, ...]
    sort_columns: tuple[SortColumn, ...]
    schema: pa.Schema
    without_sort_values: frozenset[tuple[int, int]]


def read_session_input(spec: SessionSpec, lake: DeltaCatalog) -> SessionInput:
    """Raises `Invalid` for input that can never be compacted as asked, with every reason that was found."""
    run = spec.job_run
    source_table = lake.table(run.source_table_id)
    source = source_table.stream(spec.partition)
    destination = lake.table_like(run.destination_compacted_table_id, source_table).stream(spec.partition)
    snapshot = destination.load().state
    compacted, compacted_stream_version = continued_stream(snapshot, spec)
    key_columns = tuple(sorted(run.primary_keys))
    sort_keys = () if run.sort_keys == DEFAULT_SORT_KEYS else run.sort_keys
    if compacted is not None:
        _refuse_other_keys(compacted, key_columns, sort_keys)
    pending = pending_files(source, spec, compacted)
    schemas = _read_schemas(lake.location, pending, source_table.schema)
    before = None if compacted is None else parse_schema(compacted.last_round.compacted_schema)
    schema = _grow_schema(source_table.schema, before, pending, schemas, (*key_columns, *_real_columns(sort_keys)))
    _check_keys(schema, pending, schemas, key_columns, sort_keys)
    stored_schema(schema, run.compacted_file_content_type)
    lacking = frozenset(
        (ref.position, ref.file.file_number)
        for ref, found in zip(pending, schemas, strict=True)
        if ref.operation is Operation.DELETE and not set(_real_columns(sort_keys)) <= set(found.names)
    )
    return SessionInput(
        source,
        destination,
        snapshot,
        compacted,
        compacted_stream_version,
        pending,
        key_columns,
        sort_keys,
        tuple(_sort_column(key, schema) for key in sort_keys),
        schema,
        lacking,
    )


def continued_stream(snapshot: StreamSnapshot, spec: SessionSpec) -> tuple[CompactedStream | None, int]:
    """The compacted stream that the session goes on with, and its version; a new source stream version starts anew."""
    before = snapshot.compacted
    if before is None:
        return None, 1
    if before.source_table_id != spec.job_run.source_table_id:
        raise Invalid(
            f"{spec.job_run.destination_compacted_table_id} {render_partition(spec.partition)} holds the compaction of "
            f"{before.source_table_id}: choose another destination for {spec.job_run.source_table_id}"
        )
    if before.source_stream_version > spec.source_stream_version:
        raise Invalid(
            f"{render_partition(spec.partition)} is compacted from source stream version "
            f"{before.source_stream_version}; version {spec.source_stream_version} is older: release a newer one"
        )
    if before.source_stream_version < spec.source_stream_version:
        return None, before.stream_version + 1
    return before, before.stream_version


def pending_files(
    source: PartitionStream, spec: SessionSpec, compacted: CompactedStream | None
) -> tuple[DeltaFileRef, ...]:
    """Delta files that no round has taken yet, in (position, file number) order, as of the pinned entry."""
    stream = source.load(as_of=spec.source_entry_number).state.sources.get(spec.source_stream_version)
    if stream is None:
        raise Corrupt(
            f"stream version {spec.source_stream_version} is not in the log at entry {spec.source_entry_number}"
        )
    return tuple(
        DeltaFileRef(delta.position, delta.operation, file, source.uri_of(file.path))
        for delta in stream.deltas
        for file in sorted(delta.files, key=lambda file: file.file_number)
        if compacted is None or not compacted.processed.covers(delta.position, file.file_number)
    )


def _real_columns(sort_keys: Sequence[SortKey]) -> tuple[str, ...]:
    return tuple(key.column for key in sort_keys if key.column != PARTITION_STREAM_POSITION)


def _refuse_other_keys(
    compacted: CompactedStream, key_columns: tuple[str, ...], sort_keys: tuple[SortKey, ...]
) -> None:
    if compacted.primary_keys != key_columns:
        raise Invalid(
            f"the index was built for primary keys {list(compacted.primary_keys)}, not {list(key_columns)}: "
            "compact into another destination table"
        )
    if compacted.sort_keys != sort_keys:
        before, now = ([f"{key.column} {key.order}" for key in keys] for keys in (compacted.sort_keys, sort_keys))
        raise Invalid(f"the index was built for sort keys {before}, not {now}: compact into another destination table")


def _read_schemas(
    location: StoreLocation, pending: Sequence[DeltaFileRef], declared: pa.Schema | None
) -> tuple[pa.Schema, ...]:
    def read(ref: DeltaFileRef) -> pa.Schema:
        return read_schema(location, TabularFile(ref.uri, ref.file.content_type), declared)

    if not any(ref.uri.startswith("s3://") or ref.file.content_type.is_text for ref in pending):
        # A local footer is read in a quarter of the time that a thread takes to start.
        return tuple(map(read, pending))
    with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
        return tuple(pool.map(read, pending))


def _grow_schema(
    declared: pa.Schema | None,
    before: pa.Schema | None,
    pending: Sequence[DeltaFileRef],
    schemas: Sequence[pa.Schema],
    keys: Sequence[str],
) -> pa.Schema:
    """Of a delete's file only the key and sort columns count: its rows are never materialized."""
    named = [("the table's declared schema", declared), ("the compacted table", before)]
    rows_to_come = [(name, schema) for name, schema in named if schema is not None]
    deletes = []
    for ref, schema in zip(pending, schemas, strict=True):
        if ref.operation is Operation.UPSERT:
            rows_to_come.append((ref.uri, schema))
        else:
            deletes.append((ref.uri, pa.schema([schema.field(name) for name in keys if name in schema.names])))
    return unify_schemas([*rows_to_come, *deletes]) if rows_to_come or deletes else pa.schema([])


def _check_keys(
    schema: pa.Schema,
    pending: Sequence[DeltaFileRef],
    schemas: Sequence[pa.Schema],
    key_columns: Sequence[str],
    sort_keys: Sequence[SortKey],
) -> None:
    has_rows = any(ref.operation is Operation.UPSERT for ref in pending)
    # Deletes alone may lack the sort key columns, and then nobody knows their types yet.
    unknown = [] if has_rows else [name for name in _real_columns(sort_keys) if name not in schema.names]
    for name in unknown:
        schema = schema.append(pa.field(name, _ALL_NULL_SORT_TYPE))
    reasons = list(check_key_columns(schema, key_columns, sort_keys)) if pending else []
    for ref, found in zip(pending, schemas, strict=True):
        missing = [name for name in key_columns if name not in found.names]
        if missing and ref.file.rows:
            reasons.append(f"{ref.uri} lacks primary key column {missing[0]!r}: it has {', '.join(found.names)}")
    if reasons:
        raise Invalid(*reasons)


def _sort_column(key: SortKey, schema: pa.Schema) -> SortColumn:
    if key.column == PARTITION_STREAM_POSITION:
        arrow_type = pa.int64()
    else:
        arrow_type = schema.field(key.column).type if key.column in schema.names else _ALL_NULL_SORT_TYPE
    if isinstance(arrow_type, pa.BaseExtensionType):
        arrow_type = arrow_type.storage_type
    if pa.types.is_dictionary(arrow_type):
        arrow_type = arrow_type.value_type
    if pa.types.is_null(arrow_type):
        arrow_type = _ALL_NULL_SORT_TYPE
    return SortColumn(key.column, arrow_type, key.order is SortOrder.DESCENDING)
