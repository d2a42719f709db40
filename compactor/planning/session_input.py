"""Reads the input of a session: its pending delta files, and one schema for all of their rows.

Reads logs and one footer of each distinct schema, never the data. Defects of the columns are found here, before a byte
is written: keys that do not fit, columns that cannot be reconciled. A file that cannot be read is found when its round
reads it: the session fails then, and the rounds before it stay.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import pyarrow as pa

from compactor.catalog.actions import IndexRehashed, RoundCommitted
from compactor.catalog.key_columns import check_key_columns, sort_column
from compactor.catalog.snapshot import CompactedStream, StreamSnapshot
from compactor.catalog.stream import PartitionStream
from compactor.catalog.stream_schema import inferred_floats
from compactor.catalog.tables import DeltaCatalog, Table
from compactor.kernels.sort_values import SortColumn
from compactor.log.durable_log import LogState
from compactor.model.counts import SortKey
from compactor.model.errors import Corrupt, Invalid
from compactor.model.names import (
    PARTITION_STREAM_POSITION,
    ContentType,
    OpenFormat,
    Operation,
    render_partition,
)
from compactor.planning.destinations import check_destination_stream, check_keys
from compactor.planning.read_progress import READ_FOOTERS, READ_LOG_ENTRIES, Commit
from compactor.planning.round_plan import DeltaFileRef
from compactor.planning.spec import DEFAULT_SORT_KEYS, JobRunSpec, KnownSchema, SessionSpec
from compactor.schemas.open_types import OpenTable, open_schema, reasons_against
from compactor.schemas.text import parse_schema, render_schema
from compactor.schemas.unify import unify_schemas
from compactor.storage.location import StoreLocation, is_remote
from compactor.storage.paths import is_open_file, reasons_against_place
from compactor.tabular import TabularFile, read_schema, stored_schema

_FILES_AT_ONCE = 16

KNOWN_SCHEMAS_MAX = 16
KNOWN_SCHEMAS_BYTES_MAX = 64 * 1024
"""A plan with longer schemas would take longer to read than their footers. A bundle has a thousand plans."""

_Columns = tuple[ContentType, str]


@dataclass(frozen=True)
class SessionInput:
    """The state and the input of a session at its start.

    compacted                  output of earlier rounds of this source stream version; None: there is none
    compacted_stream_version   the version that the session's rounds write
    pending                    delta files above the watermark, up to the pinned position, in order
    schema                     of compacted rows, extended by the pending files
    without_sort_values        (position, file number) of delete files that lack a custom sort key column
    schemas                    of the pending files, in the order of reading
    private_columns            of the source table and of the destination
    is_open                    whether other engines read the compacted files
    plans_in_log               whether sessions of the destination write their plan into its log
    plan_id                    that of this session; None: it has written none
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
    schemas: tuple[pa.Schema, ...] = ()
    private_columns: frozenset[str] = frozenset()
    is_open: bool = False
    plans_in_log: bool = False
    plan_id: str | None = None


class ReadReport(Protocol):
    """Receives the progress of reading. Called from one thread."""

    def reading(self, step: str, of: int) -> None:
        """`step` reads `of` objects next."""

    def read_one(self) -> None:
        """One of them has been read."""


class NoReadReport:
    """Ignores progress."""

    def reading(self, step: str, of: int) -> None: ...

    def read_one(self) -> None: ...


_NO_READ_REPORT = NoReadReport()

SchemaReader = Callable[[StoreLocation, TabularFile, pa.Schema | None], pa.Schema]
"""Reads the schema of a file. `read_schema` reads text whole; a planner may use a sample."""


def read_session_input(
    spec: SessionSpec,
    lake: DeltaCatalog,
    report: ReadReport = _NO_READ_REPORT,
    schema_of: SchemaReader = read_schema,
    *,
    known_schemas: Sequence[KnownSchema] = (),
    only_reads: bool = False,
    as_pinned: bool = False,
) -> SessionInput:
    """Raises `Invalid` with every reason for which the input can never be compacted.

    known_schemas  of files that are not opened again
    only_reads  no file is written, so it does not matter whether other engines could read it
    as_pinned   the logs as they were when the session was pinned: for a plan that is made right after it
    """
    run = spec.job_run
    source_table = lake.table(run.source_table_id)
    source = source_table.stream(spec.partition)
    destination_table = lake.table_like(run.destination_compacted_table_id, source_table)
    destination = destination_table.stream(spec.partition)
    source.load(as_of=spec.source_entry_number)  # the next load continues from it
    snapshot = destination.load(spec.destination_entry_number if as_pinned else None).state
    compacted, compacted_stream_version = continued_stream(snapshot, spec)
    key_columns = tuple(sorted(run.primary_keys))
    sort_keys = () if run.sort_keys == DEFAULT_SORT_KEYS else run.sort_keys
    now = snapshot if source is destination else source.load(spec.source_entry_number if as_pinned else None).state
    is_gone = dropped_since(spec, destination, snapshot, now)
    pending = () if is_gone else pending_files(source, spec, snapshot, compacted, now)
    known = {(each.content_type, each.fingerprint): parse_schema(each.schema_text) for each in known_schemas}
    schemas = _schemas_of(lake.location, pending, source_table.schema, known, report, schema_of)
    before = None if compacted is None else parse_schema(compacted.last_round.compacted_schema)
    declared = _declared_schema(source_table, (*([before] if before is not None else []), *schemas))
    keys = tuple(dict.fromkeys((*key_columns, *_real_columns(sort_keys))))
    is_open = bool(destination_table.properties.publish)
    if is_open:
        if not only_reads:
            _check_open(destination_table, run, (declared, before, *schemas), _real_columns(sort_keys))
        declared, before = (None if each is None else open_schema(each) for each in (declared, before))
    opened = {each: open_schema(each) if is_open else each for each in dict.fromkeys(schemas)}  # few, of many files
    grown = tuple(opened[each] for each in schemas)
    schema = _grow_schema(declared, before, pending, grown, keys)
    _check_keys(schema, pending, schemas, key_columns, sort_keys)
    _refuse_inferred_floats(pending, schemas, key_columns, (source_table.schema, before))
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
        tuple(sort_column(key, schema) for key in sort_keys),
        schema,
        lacking,
        schemas,
        frozenset(source_table.properties.private_columns + destination_table.properties.private_columns),
        is_open,
        destination_table.properties.session_plans,
    )


def files_to_rewrite(session: SessionInput, compacted: CompactedStream | None) -> frozenset[int]:
    """Numbers of compacted files that other engines could not read: they were written before the table was published,
    or a column is of a wider type by now, which some do not widen to."""
    if compacted is None or not session.is_open:
        return frozenset()
    held = parse_schema(compacted.last_round.compacted_schema)
    types = {field.name: field.type for field in session.schema}
    is_wider = any(types.get(field.name, field.type) != field.type for field in held)
    return frozenset(number for number, file in compacted.files.items() if is_wider or not is_open_file(file.path))


def _check_open(table: Table, run: JobRunSpec, schemas: Sequence[pa.Schema | None], sorted_by: Collection[str]) -> None:
    """Raises `Invalid`, with every reason, if the rows cannot be published exactly."""
    publish = table.properties.publish
    open_table = OpenTable(table.partition_keys, run.primary_keys, sorted_by, OpenFormat.DELTA in publish)
    distinct = [schema for schema in dict.fromkeys(schemas) if schema is not None]
    found = [reason for schema in distinct for reason in reasons_against(schema, open_table)]
    reasons = [*dict.fromkeys(found), *reasons_against_place(run.lake, table.table_id)]
    if run.compacted_file_content_type is not ContentType.PARQUET:
        reasons.append(f"compacted_file_content_type is {run.compacted_file_content_type}: published files are parquet")
    if reasons:
        publication = f"{table.table_id} is published ({', '.join(publish)})"
        raise Invalid(*(f"{publication}: {reason}" for reason in reasons))


def continued_stream(snapshot: StreamSnapshot, spec: SessionSpec) -> tuple[CompactedStream | None, int]:
    """The compacted stream that the session continues, and its version; a new source stream version starts a new one.

    Raises `Invalid` if the destination holds other data, or an index for other keys.
    """
    run, before = spec.job_run, snapshot.compacted
    check_destination_stream(run.source_table_id, run.destination_compacted_table_id, spec.partition, snapshot)
    if before is None:
        return None, 1
    if before.source_stream_version > spec.source_stream_version:
        raise Invalid(
            f"{render_partition(spec.partition)} is compacted from source stream version "
            f"{before.source_stream_version}; version {spec.source_stream_version} is older: release a newer one"
        )
    if before.source_stream_version < spec.source_stream_version:
        return None, before.stream_version + 1
    check_keys(before, run)
    return before, before.stream_version


def dropped_since(
    spec: SessionSpec, destination: PartitionStream, snapshot: StreamSnapshot, now: StreamSnapshot
) -> bool:
    """Whether the partition was dropped after the session was pinned: the session then compacts nothing.

    snapshot, now  the current destination and source
    """
    if spec.source_stream_version <= now.dropped_version:
        return True
    return snapshot.is_dropped and destination.load(spec.destination_entry_number).state.reset != snapshot.reset


def pending_files(
    source: PartitionStream,
    spec: SessionSpec,
    snapshot: StreamSnapshot,
    compacted: CompactedStream | None,
    now: StreamSnapshot,
) -> tuple[DeltaFileRef, ...]:
    """Delta files that no round has compacted yet, in (position, file number) order, as of the pinned entry.

    snapshot, compacted  the destination, and the part of it that the session continues
    now                  the current source
    """
    stream = source.load(as_of=spec.source_entry_number).state.sources.get(spec.source_stream_version)
    if stream is None:
        raise Corrupt(
            f"stream version {spec.source_stream_version} is not in the log at entry {spec.source_entry_number}"
        )
    processed = None if compacted is None else compacted.processed
    retired = stream.retired
    if retired is not None and (processed is None or processed.position < retired.position):
        raise Invalid(
            f"{source} has retired its deltas up to position {retired.position}, since all compactions of it had taken "
            f"them; {spec.job_run.destination_compacted_table_id} has "
            f"{'none of them' if processed is None else f'those up to {processed.position}'}: compact into the table "
            "that has them, or append their rows again"
        )
    unprocessed = stream.deltas if processed is None else stream.deltas.above(processed.position - 1)
    # Deltas that were retracted after the pin are not compacted either. The commit checks later retractions.
    retracted = now.sources[spec.source_stream_version].retracted_positions
    return tuple(
        DeltaFileRef(delta.position, delta.operation, file, source.uri_of(file.path), delta.delta_id)
        for delta in unprocessed
        if delta.position not in retracted and not snapshot.skips(spec.source_stream_version, delta.position)
        for file in sorted(delta.files, key=lambda file: file.file_number)
        if processed is None or not processed.covers(delta.position, file.file_number)
    )


def commits_of(
    spec: SessionSpec,
    destination: PartitionStream,
    report: ReadReport = _NO_READ_REPORT,
    now: LogState[StreamSnapshot] | None = None,
) -> list[Commit]:
    """Commits of earlier attempts of this session, with their entry numbers. `now`: the destination, if it was just
    read.

    Writers may have appended thousands of entries since the session was pinned. If the compacted part has not changed
    since then, none is read; otherwise many are read at a time.
    """
    pinned, now = spec.destination_entry_number, destination.load() if now is None else now
    if now.entry_number <= pinned or _compacted_at(destination.load(pinned).state) == _compacted_at(now.state):
        return []
    report.reading(READ_LOG_ENTRIES, now.entry_number - pinned)
    found: list[Commit] = []
    for entry in destination.log.entries_between(pinned + 1, now.entry_number):
        report.read_one()
        found += [
            (entry.number, action)
            for action in entry.actions
            if isinstance(action, RoundCommitted | IndexRehashed) and action.session_id == spec.session_id
        ]
    return found


def _compacted_at(snapshot: StreamSnapshot) -> tuple[str, int] | None:
    """The state that every kind of commit changes."""
    compacted = snapshot.compacted
    return None if compacted is None else (compacted.last_round.commit_id, compacted.index_version)


def _real_columns(sort_keys: Sequence[SortKey]) -> tuple[str, ...]:
    return tuple(key.column for key in sort_keys if key.column != PARTITION_STREAM_POSITION)


def _schemas_of(
    location: StoreLocation,
    pending: Sequence[DeltaFileRef],
    declared: pa.Schema | None,
    known: Mapping[_Columns, pa.Schema],
    report: ReadReport,
    schema_of: SchemaReader,
) -> tuple[pa.Schema, ...]:
    """One footer is read of all files that the log says to have the same columns, unless these are known."""

    def read(ref: DeltaFileRef) -> pa.Schema:
        return schema_of(location, TabularFile.of(ref.uri, ref.file, ref.delta_id), declared)

    def report_read(schema: pa.Schema) -> pa.Schema:
        report.read_one()
        return schema

    first_of = {_columns_of(ref): ref for ref in reversed(pending)}
    unknown = {columns: ref for columns, ref in first_of.items() if columns not in known}
    report.reading(READ_FOOTERS, len(unknown))
    if not any(is_remote(ref.uri) or ref.file.content_type.is_text for ref in unknown.values()):
        # Reading a local footer takes a quarter of the time of starting a thread.
        found = [report_read(read(ref)) for ref in unknown.values()]
    else:
        with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
            found = [report_read(schema) for schema in pool.map(read, unknown.values())]
    schemas = {**known, **dict(zip(unknown, found, strict=True))}
    return tuple(schemas[_columns_of(ref)] for ref in pending)


def known_schemas(session: SessionInput) -> tuple[KnownSchema, ...]:
    """Of the pending files, those that the log gives a fingerprint; none if they are too long for a plan."""
    found: dict[_Columns, pa.Schema] = {}
    for ref, schema in zip(session.pending, session.schemas, strict=True):
        if ref.file.schema_fingerprint is not None:
            found.setdefault(_columns_of(ref), schema)
    texts = [
        KnownSchema(content_type=content_type, fingerprint=fingerprint, schema_text=render_schema(schema))
        for (content_type, fingerprint), schema in islice(found.items(), KNOWN_SCHEMAS_MAX)
    ]
    return tuple(texts) if sum(len(each.schema_text) for each in texts) <= KNOWN_SCHEMAS_BYTES_MAX else ()


def _columns_of(ref: DeltaFileRef) -> _Columns:
    """Equal for files with the same columns; without a fingerprint each file is its own."""
    return ref.file.content_type, ref.file.schema_fingerprint or ref.uri


def _declared_schema(table: Table, held: Sequence[pa.Schema]) -> pa.Schema | None:
    """The declared schema without partition keys that no file holds: readers take those from the partition."""
    if table.schema is None:
        return None
    absent = set(table.partition_keys).difference(*(schema.names for schema in held))
    return pa.schema([field for field in table.schema if field.name not in absent], metadata=table.schema.metadata)


def _grow_schema(
    declared: pa.Schema | None,
    before: pa.Schema | None,
    pending: Sequence[DeltaFileRef],
    schemas: Sequence[pa.Schema],
    keys: Sequence[str],
) -> pa.Schema:
    """Only key and sort columns of a delete's file are used: its rows are never materialized."""
    named = [("the table's declared schema", declared), ("the compacted table", before)]
    rows_to_come = [(name, schema) for name, schema in named if schema is not None]
    deletes = []
    for ref, schema in zip(pending, schemas, strict=True):
        if ref.operation is Operation.UPSERT:
            rows_to_come.append((ref.uri, schema))
        else:
            present = [name for name in keys if schema.get_field_index(name) >= 0]
            deletes.append((ref.uri, pa.schema([schema.field(name) for name in present])))
    return unify_schemas([*rows_to_come, *deletes]) if rows_to_come or deletes else pa.schema([])


def _refuse_inferred_floats(
    pending: Sequence[DeltaFileRef],
    schemas: Sequence[pa.Schema],
    key_columns: Sequence[str],
    stated: Sequence[pa.Schema | None],
) -> None:
    reasons = [
        f"{reason} (its delta {ref.delta_id!r} can be taken back: lithify table retract)"
        for ref, found in zip(pending, schemas, strict=True)
        if ref.file.content_type.is_text and ref.file.rows
        for reason in inferred_floats(ref.uri, found, key_columns, stated)
    ]
    if reasons:
        raise Invalid(*reasons)


def _check_keys(
    schema: pa.Schema,
    pending: Sequence[DeltaFileRef],
    schemas: Sequence[pa.Schema],
    key_columns: Sequence[str],
    sort_keys: Sequence[SortKey],
) -> None:
    has_rows = any(ref.operation is Operation.UPSERT for ref in pending)
    # If there are only deletes, sort key columns may be missing, and their types are not known yet.
    unknown = [] if has_rows else [name for name in _real_columns(sort_keys) if schema.get_field_index(name) < 0]
    for name in unknown:
        schema = schema.append(pa.field(name, pa.null()))
    reasons = list(check_key_columns(schema, key_columns, sort_keys)) if pending else []
    for ref, found in zip(pending, schemas, strict=True):
        missing = [name for name in key_columns if found.get_field_index(name) < 0]
        if missing and ref.file.rows:
            reasons.append(f"{ref.uri} lacks primary key column {missing[0]!r}: it has {', '.join(found.names)}")
    if reasons:
        raise Invalid(*reasons)
