"""Reads the input of a session: the columns of its pending delta files, and one schema for all of their rows.

Reads logs and one footer of each distinct schema, never the data. Defects of the columns are found here, before a byte
is written: keys that do not fit, columns that cannot be reconciled. A file that cannot be read is found when its round
reads it: the session fails then, and the rounds before it stay.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import pyarrow as pa

from compactor.catalog.definition import TableDefinition, reasons_against_place
from compactor.catalog.key_columns import check_key_columns, sort_column
from compactor.catalog.keys import is_open_file
from compactor.catalog.snapshot import CompactedStream
from compactor.catalog.stream_schema import inferred_floats, times_out_of_range
from compactor.catalog.tables import DeltaCatalog
from compactor.kernels.sort_values import SortColumn
from compactor.model.counts import SortKey
from compactor.model.errors import Invalid, refuse_if
from compactor.model.names import PARTITION_STREAM_POSITION, ContentType, OpenFormat, Operation
from compactor.planning.round_plan import DeltaFileRef
from compactor.planning.rounds import split_into_rounds
from compactor.planning.session_streams import NO_READ_REPORT, READ_FOOTERS, ReadReport, SessionStreams
from compactor.planning.spec import KnownSchema, SessionPlan, SessionSpec
from compactor.schemas.open_types import OpenTable, open_schema, reasons_against
from compactor.schemas.unify import parse_schema, render_schema, unify_schemas
from compactor.storage.location import StoreLocation, is_remote
from compactor.tabular import TabularFile, read_schema, stored_schema
from compactor.tabular.parquet_pages.arrow_files import SMALL_FILE_BYTES
from compactor.tabular.remote_file import WHOLE_BYTES_MAX

_FILES_AT_ONCE = 16

KNOWN_SCHEMAS_MAX = 16
KNOWN_SCHEMAS_BYTES_MAX = 64 * 1024
"""A plan with longer schemas would take longer to read than their footers. A bundle has a thousand plans."""

Columns = tuple[ContentType, str]
"""Equal for files with the same columns."""


@dataclass(frozen=True)
class SessionInput:
    """The state and the input of a session at its start."""

    streams: SessionStreams

    schemas: tuple[pa.Schema, ...]
    """The schemas of the pending files, in their order."""

    schema: pa.Schema
    """The schema of compacted rows, extended by the pending files."""

    plan_id: str | None = None
    """The id of the session's plan in the stream's log; None: it has written none."""

    @property
    def key_columns(self) -> tuple[str, ...]:
        return self.streams.spec.job_run.key_columns

    @property
    def sort_keys(self) -> tuple[SortKey, ...]:
        return self.streams.spec.job_run.custom_sort_keys

    @cached_property
    def sort_columns(self) -> tuple[SortColumn, ...]:
        return tuple(sort_column(key, self.schema) for key in self.sort_keys)

    @cached_property
    def without_sort_values(self) -> frozenset[tuple[int, int]]:
        """(position, file number) of delete files that lack a custom sort key column."""
        needed = set(_real_columns(self.sort_keys))
        return frozenset(
            (ref.position, ref.file.file_number)
            for ref, found in zip(self.streams.pending, self.schemas, strict=True)
            if ref.operation is Operation.DELETE and not needed <= set(found.names)
        )

    @property
    def private_columns(self) -> frozenset[str]:
        """Of the source table and of the destination."""
        source, destination = self.streams.source_table, self.streams.destination_table
        return frozenset(source.properties.private_columns + destination.properties.private_columns)

    def rounds(self, plan: SessionPlan) -> tuple[tuple[DeltaFileRef, ...], ...]:
        """The delta files of each round; one round without files if only compacted files are to be rewritten."""
        pending = self.streams.pending
        rounds = tuple(split_into_rounds(pending, plan.max_rows_per_round, plan.max_files_per_round))
        return rounds or (((),) if self.streams.work().has_rounds else ())

    def files_to_rewrite(self, compacted: CompactedStream | None) -> frozenset[int]:
        """Numbers of compacted files that other engines could not read: they were written before the table was
        published, or a column is of a wider type by now, which some do not widen to.

        Args:
            compacted: the compacted stream before the round"""
        if compacted is None or not self.streams.is_open:
            return frozenset()
        held = parse_schema(compacted.last_round.compacted_schema)
        types = {field.name: field.type for field in self.schema}
        is_wider = any(types.get(field.name, field.type) != field.type for field in held)
        return frozenset(number for number, file in compacted.files.items() if is_wider or not is_open_file(file.path))

    def files_in_order(self, rewritten: Collection[int], compacted: CompactedStream | None) -> frozenset[int]:
        """Those files; without a key also all that follow one of them, so that rows keep their order."""
        if self.key_columns or compacted is None:
            return frozenset(rewritten)
        return frozenset(number for number in compacted.files if number >= min(rewritten, default=number + 1))

    def known_schemas(self) -> tuple[KnownSchema, ...]:
        """Of the pending files, those that the log gives a fingerprint; none if they are too long for a plan."""
        found: dict[Columns, pa.Schema] = {}
        for ref, schema in zip(self.streams.pending, self.schemas, strict=True):
            if ref.file.schema_fingerprint is not None:
                found.setdefault(_columns_of(ref), schema)
        texts = [
            KnownSchema(content_type=content_type, fingerprint=fingerprint, schema_text=render_schema(schema))
            for (content_type, fingerprint), schema in islice(found.items(), KNOWN_SCHEMAS_MAX)
        ]
        return tuple(texts) if sum(len(each.schema_text) for each in texts) <= KNOWN_SCHEMAS_BYTES_MAX else ()


SchemaReader = Callable[[StoreLocation, TabularFile, pa.Schema | None], pa.Schema]
"""Reads the schema of a file. `read_schema` reads text whole; a planner may use a sample."""


def read_session_input(
    spec: SessionSpec,
    lake: DeltaCatalog,
    report: ReadReport = NO_READ_REPORT,
    schema_of: SchemaReader = read_schema,
    *,
    known_schemas: Sequence[KnownSchema] = (),
    only_reads: bool = False,
    as_pinned: bool = False,
) -> SessionInput:
    """Raises `Invalid` with every reason for which the input can never be compacted.

    Args:
        known_schemas: of files that are not opened again
        only_reads: no file is written, so it does not matter whether other engines could read it
        as_pinned: the logs as they were when the session was pinned: for a plan that is made right after it"""
    streams = SessionStreams.load(spec, lake, as_pinned=as_pinned)
    known = {(each.content_type, each.fingerprint): parse_schema(each.schema_text) for each in known_schemas}
    of_run = {} if lake.schemas_of_run is None else lake.schemas_of_run
    if all(map(_is_compared_whole, streams.pending)):
        known |= {columns: of_run[columns] for columns in map(_columns_of, streams.pending) if columns in of_run}
    declared = streams.source_table.schema
    schemas = _schemas_of(lake.location, streams.pending, declared, known, report, schema_of)
    # Metadata of a schema are its file's own: they do not count for the fingerprint.
    of_run.update(
        (_columns_of(ref), schema)
        for ref, schema in zip(streams.pending, schemas, strict=True)
        if _is_compared_whole(ref) and schema.metadata is None
    )
    session = SessionInput(streams, schemas, _schema_of_rows(streams, schemas, writes=not only_reads))
    _check_keys(session)
    _refuse_inferred_floats(session)
    _refuse_times_out_of_range(session)
    stored_schema(session.schema, spec.job_run.compacted_file_content_type)
    return session


def _schema_of_rows(streams: SessionStreams, schemas: Sequence[pa.Schema], *, writes: bool) -> pa.Schema:
    """The schema of the compacted rows, extended by these schemas of the pending files."""
    before = streams.compacted_schema()
    declared = _declared_schema(streams.source_table, schemas if before is None else (before, *schemas))
    if not streams.is_open:
        return _grow_schema(streams, declared, before, schemas)
    if writes:
        _check_open(streams, (declared, before, *schemas))
    declared, before = (None if each is None else open_schema(each) for each in (declared, before))
    opened = {each: open_schema(each) for each in dict.fromkeys(schemas)}  # few, of many files
    return _grow_schema(streams, declared, before, [opened[each] for each in schemas])


def _check_open(streams: SessionStreams, schemas: Sequence[pa.Schema | None]) -> None:
    """Raises `Invalid`, with every reason, if the rows cannot be published exactly."""
    run, table = streams.spec.job_run, streams.destination_table
    publish = table.properties.publish
    sorted_by = _real_columns(run.custom_sort_keys)
    open_table = OpenTable(table.partition_keys, run.primary_keys, sorted_by, OpenFormat.DELTA in publish)
    distinct = [schema for schema in dict.fromkeys(schemas) if schema is not None]
    found = [reason for schema in distinct for reason in reasons_against(schema, open_table)]
    reasons = [*dict.fromkeys(found), *reasons_against_place(run.lake, table.table_id)]
    if run.compacted_file_content_type is not ContentType.PARQUET:
        reasons.append(f"compacted_file_content_type is {run.compacted_file_content_type}: published files are parquet")
    if reasons:
        publication = f"{table.table_id} is published ({', '.join(publish)})"
        raise Invalid(*(f"{publication}: {reason}" for reason in reasons))


def _real_columns(sort_keys: Sequence[SortKey]) -> tuple[str, ...]:
    return tuple(key.column for key in sort_keys if key.column != PARTITION_STREAM_POSITION)


def _schemas_of(
    location: StoreLocation,
    pending: Sequence[DeltaFileRef],
    declared: pa.Schema | None,
    known: Mapping[Columns, pa.Schema],
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


def _is_compared_whole(ref: DeltaFileRef) -> bool:
    """Whether a file's footer is compared by its checksum where it is read, if it has not been checked for the plan."""
    file, whole_bytes = ref.file, WHOLE_BYTES_MAX if is_remote(ref.uri) else SMALL_FILE_BYTES - 1
    is_small = file.content_type is ContentType.PARQUET and file.size_bytes <= whole_bytes
    return is_small and file.crc32 is not None and file.schema_fingerprint is not None


def _columns_of(ref: DeltaFileRef) -> Columns:
    """Equal for files with the same columns; without a fingerprint each file is its own."""
    return ref.file.content_type, ref.file.schema_fingerprint or ref.uri


def _declared_schema(table: TableDefinition, held: Sequence[pa.Schema]) -> pa.Schema | None:
    """The declared schema without partition keys that no file holds: readers take those from the partition."""
    if table.schema is None:
        return None
    absent = set(table.partition_keys).difference(*(schema.names for schema in held))
    return pa.schema([field for field in table.schema if field.name not in absent], metadata=table.schema.metadata)


def _grow_schema(
    streams: SessionStreams, declared: pa.Schema | None, before: pa.Schema | None, schemas: Sequence[pa.Schema]
) -> pa.Schema:
    """Only key and sort columns of a delete's file are used: its rows are never materialized."""
    run = streams.spec.job_run
    keys = tuple(dict.fromkeys((*run.key_columns, *_real_columns(run.custom_sort_keys))))
    named = [("the table's declared schema", declared), ("the compacted table", before)]
    rows_to_come = [(name, schema) for name, schema in named if schema is not None]
    deletes = []
    for ref, schema in zip(streams.pending, schemas, strict=True):
        if ref.operation is Operation.UPSERT:
            rows_to_come.append((ref.uri, schema))
        else:
            present = [name for name in keys if schema.get_field_index(name) >= 0]
            deletes.append((ref.uri, pa.schema([schema.field(name) for name in present])))
    return unify_schemas([*rows_to_come, *deletes]) if rows_to_come or deletes else pa.schema([])


def _refuse_inferred_floats(session: SessionInput) -> None:
    stated = (session.streams.source_table.schema, session.streams.compacted_schema())
    reasons = [
        f"{reason} (its delta {ref.delta_id!r} can be taken back: lithify table retract)"
        for ref, found in zip(session.streams.pending, session.schemas, strict=True)
        if ref.file.content_type.is_text and ref.file.rows
        for reason in inferred_floats(ref.uri, found, session.key_columns, stated)
    ]
    refuse_if(reasons)


def _refuse_times_out_of_range(session: SessionInput) -> None:
    """`append` has compared a delta with what it saw of its own stream."""
    compacted, held = session.streams.compacted, session.streams.compacted_schema()
    if compacted is None or held is None or session.streams.is_open:
        return
    first_of = dict(reversed(list(zip(session.schemas, session.streams.pending, strict=True))))
    reasons = [
        f"{ref.uri}: {times.in_delta()}"
        for schema, ref in first_of.items()
        for times in times_out_of_range(compacted.files.values(), [held], schema)
    ]
    refuse_if(reasons)


def _check_keys(session: SessionInput) -> None:
    pending, schema = session.streams.pending, session.schema
    has_rows = any(ref.operation is Operation.UPSERT for ref in pending)
    # If there are only deletes, sort key columns may be missing, and their types are not known yet.
    names = () if has_rows else _real_columns(session.sort_keys)
    for name in [name for name in names if schema.get_field_index(name) < 0]:
        schema = schema.append(pa.field(name, pa.null()))
    reasons = list(check_key_columns(schema, session.key_columns, session.sort_keys)) if pending else []
    if not session.key_columns:
        reasons += [
            f"delta {ref.delta_id!r} deletes rows by a key, and the table has none: lithify table retract takes it back"
            for ref in pending
            if ref.operation is Operation.DELETE
        ]
    for ref, found in zip(pending, session.schemas, strict=True):
        missing = [name for name in session.key_columns if found.get_field_index(name) < 0]
        if missing and ref.file.rows:
            reasons.append(f"{ref.uri} lacks primary key column {missing[0]!r}: it has {', '.join(found.names)}")
    refuse_if(reasons)
