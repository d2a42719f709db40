"""Splits a job run into sessions, and plans each session. Reads logs, never data; `sizing.py` calculates."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Self

import pyarrow as pa

from compactor.catalog.keys import StreamFolder
from compactor.catalog.snapshot import CompactedStream, StreamSnapshot
from compactor.catalog.stream import PartitionStream
from compactor.catalog.tables import DeltaCatalog, Table
from compactor.kernels.sort_values import encoded_width
from compactor.log.durable_log import LogState
from compactor.model.errors import Invalid, refuse_if
from compactor.model.names import ContentType, by_values, counted
from compactor.planning.capacity import check_capacity
from compactor.planning.destinations import check_destination
from compactor.planning.input_statistics import InputStatistics, statistics_of
from compactor.planning.named_deltas import naming_deltas
from compactor.planning.session_input import SessionInput, read_session_input
from compactor.planning.session_streams import PendingWork, SessionStreams
from compactor.planning.sizing import Resources, SessionSize, Sizing, predicted_time, scratch_of_a_round, size_session
from compactor.planning.spec import DEFAULT_SORT_KEYS, FILES_MAX, JobRunSpec, KnownSchema, SessionPlan, SessionSpec
from compactor.planning.table_terms import check_online
from compactor.storage.concurrently import run_concurrently
from compactor.storage.location import StoreLocation, is_remote
from compactor.tabular import TabularFile, read_outline

STREAMS_PER_PAGE = 64
"""Streams that are looked at in one go: at 30 ms a request, less than a second on an object store."""


@dataclass(frozen=True)
class PinnedSession:
    """A session with its pinned source and the amount of its work."""

    spec: SessionSpec
    work: PendingWork
    compacted_rows: int
    pending_rows: int

    uris_outside_lake: tuple[str, ...] = ()
    """Pending files that were registered in place."""

    @classmethod
    def of(cls, streams: SessionStreams) -> Self:
        return cls(
            spec=streams.spec,
            work=streams.work(),
            compacted_rows=streams.compacted.rows if streams.compacted else 0,
            pending_rows=sum(ref.file.rows for ref in streams.pending),
            uris_outside_lake=tuple(ref.uri for ref in streams.pending if "://" in ref.file.path),
        )


StreamsRead = dict[StreamFolder, LogState[StreamSnapshot]]
"""Streams as they were read a moment ago."""


def pin_sessions(
    run: JobRunSpec,
    lake: DeltaCatalog,
    source: Table | None = None,
    partitions: Iterable[dict[str, str]] | None = None,
    *,
    read: StreamsRead | None = None,
) -> tuple[PinnedSession, ...]:
    """One session per partition stream that has an active stream version, in partition order.

    Nothing is written, and the destination table is not created. Raises `Invalid` for a missing table or partition, an
    offline table, a destination with other data, and an excessive number of files.

    Args:
        source: the job run's table, if it was just opened
        partitions: those to compact, if they were just listed
        read: of its source, those that were just read"""
    source = lake.table(run.source_table_id) if source is None else source
    destination = check_tables(run, lake, source)

    def pin(number_and_partition: tuple[int, dict[str, str]]) -> PinnedSession | None:
        number, partition = number_and_partition
        return pin_stream(run, source, destination, partition, number, read=read)

    wanted = partitions_to_compact(run, source) if partitions is None else partitions
    found = run_concurrently(lake.location, pin, list(enumerate(wanted, 1)))
    sessions = tuple(pinned for pinned in found if pinned is not None)
    check_file_counts(run, sum(pinned.compacted_rows + pinned.pending_rows for pinned in sessions))
    return sessions


def listed_streams(run: JobRunSpec, lake: DeltaCatalog) -> Iterator[dict[str, str]]:
    """The streams of a job run that names none, as `SessionFinder` looks at them. Raises `Invalid` as that does."""
    source = lake.table(run.source_table_id)
    check_tables(run, lake, source)
    return streams_to_compact(run, source)


def check_tables(run: JobRunSpec, lake: DeltaCatalog, source: Table) -> Table:
    """A job run's destination, which need not exist. Raises `Invalid` for an offline table, or one with other data."""
    destination = lake.table_like(run.destination_compacted_table_id, source)
    check_online((source, destination))
    check_destination(source.table_id, destination)
    return destination


class SessionFinder:
    """Finds the sessions of a job run that is pinned by time, as it reaches them: memory holds one page of its streams.

    A stream is read as it was at that time, or later: its source is pinned to the last entry written until then.
    """

    def __init__(
        self,
        run: JobRunSpec,
        lake: DeltaCatalog,
        until_ms: int,
        takes: Callable[[dict[str, str]], bool] | None = None,
    ) -> None:
        """Raises `Invalid` for a missing or offline table, and for a destination with other data.

        Args:
            takes: whether a stream, by its partition, is looked at; None: all are"""
        self._run = run
        self._lake = lake
        self._until_ms = until_ms
        self._source = lake.table(run.source_table_id)
        self._destination = check_tables(run, lake, self._source)
        streams = streams_to_compact(run, self._source)
        self._streams = streams if takes is None else filter(takes, streams)

    def next(self) -> tuple[PinnedSession, ...] | None:
        """The sessions with work on the next streams, without numbers in their ids; None: there are no more streams."""
        page = list(islice(self._streams, STREAMS_PER_PAGE))
        if not page:
            return None
        found = run_concurrently(self._lake.location, self._pin, page)
        return tuple(pinned for pinned in found if pinned is not None and pinned.work)

    def _pin(self, partition: dict[str, str]) -> PinnedSession | None:
        return pin_stream(self._run, self._source, self._destination, partition, 0, self._until_ms)


def rehash_of(
    lake: DeltaCatalog, stream: PartitionStream, compacted: CompactedStream, job_run_id: str, buckets: int | None
) -> JobRunSpec:
    """The job run that rehashes the index of a compacted stream, with the keys and the source of its last round. No
    number of hash buckets: as many as take half of a task's memory."""
    return JobRunSpec(
        operation="rehash",
        job_run_id=job_run_id,
        source_table_id=compacted.source_table_id,
        primary_keys=compacted.primary_keys,
        sort_keys=compacted.sort_keys or DEFAULT_SORT_KEYS,
        lake=lake.location,
        destination_compacted_table_id=stream.table_id,
        hash_bucket_count=buckets,
        partitions=(stream.partition,),
    )


@dataclass(frozen=True)
class MeasuredSession:
    """A session with the figures from which it is planned. It is small, since a job run may have thousands."""

    spec: SessionSpec
    work: PendingWork
    size: SessionSize

    why: tuple[str, ...]
    """A description of the input, and the reason to run if no delta is pending."""

    known_schemas: tuple[KnownSchema, ...] = ()
    """What the plan says of the input's columns."""


def measure_session(spec: SessionSpec, lake: DeltaCatalog, *, as_pinned: bool = False) -> MeasuredSession:
    """Raises `Invalid` for input that can never be compacted as asked.

    Args:
        as_pinned: the session was pinned just now: its logs are not read again"""
    with naming_deltas(spec, lake):
        session, sampled_files = read_for_plan(spec, lake, as_pinned=as_pinned)
        statistics = measure(session, lake, sampled_files)
    work = session.streams.work()
    return MeasuredSession(
        spec=spec,
        work=work,
        size=statistics.size,
        why=(*work.reasons(), *statistics.arithmetic()),
        known_schemas=session.known_schemas(),
    )


def plan_measured(measured: MeasuredSession, resources: Resources, share_of_memory: float = 1.0) -> SessionPlan:
    """Sizes a session that was measured. Raises `Invalid` if it cannot work with these resources.

    Args:
        share_of_memory: of a task's memory that the plan takes: less after an attempt that ran out of memory"""
    run = measured.spec.job_run
    sizing = size_session(measured.size, resources, run.hash_bucket_count, run.max_rows_per_round, share_of_memory)
    return plan_sized(measured, sizing)


def is_idle(measured: MeasuredSession, plan: SessionPlan) -> bool:
    """Whether it would only rehash the index, which has as many hash buckets as planned."""
    return measured.size.only_rehash and plan.hash_bucket_count == measured.size.inherited_hash_bucket_count


def plan_sized(measured: MeasuredSession, sizing: Sizing) -> SessionPlan:
    """The plan of a session that was sized. Raises `Invalid` if it cannot fit these resources."""
    check_capacity(sizing)
    return SessionPlan.from_facts(
        measured,
        sizing,
        sizing.resources,
        expected_sla=sizing.expected_sla,
        predicted_seconds=sizing.time.seconds,
        arithmetic=(*measured.why, *sizing.arithmetic),
        expected_rows_written=sizing.work.rows_written,
        first_pass_share=sizing.time.first_pass_share,
        work_seconds=sizing.prediction.model.work_seconds,
        plain_work_seconds=_plain_work_seconds(sizing),
        scratch_bytes_per_round=scratch_of_a_round(sizing.size, sizing.resources),
        place=sizing.resources.place,
    )


def _plain_work_seconds(sizing: Sizing) -> float:
    """Predicted without what the table's own rounds say."""
    if not sizing.size.corrections:
        return sizing.prediction.model.work_seconds
    size = replace(sizing.size, corrections=())
    return predicted_time(size, sizing.resources, sizing.rounds, sizing.hash_bucket_count).work_seconds


def read_for_plan(spec: SessionSpec, lake: DeltaCatalog, *, as_pinned: bool = False) -> tuple[SessionInput, int]:
    """The input, and the number of text files without declared types of which only a sample was read. If a sample is
    refused, the text is read whole, which may be valid."""
    sampled: list[str] = []

    def schema_of(location: StoreLocation, file: TabularFile, declared: pa.Schema | None) -> pa.Schema:
        outline = read_outline(location, file, declared)
        if not outline.whole:
            sampled.append(file.uri)
        return outline.schema

    try:
        session = read_session_input(spec, lake, schema_of=schema_of, as_pinned=as_pinned)
        return session, len(sampled)
    except Invalid:
        if not sampled:
            raise
    return read_session_input(spec, lake, as_pinned=as_pinned), 0


def measure(session: SessionInput, lake: DeltaCatalog, sampled_files: int = 0) -> InputStatistics:
    """Statistics of a session's input. `sampled_files`: as `read_for_plan` returns it."""
    streams, compacted = session.streams, session.streams.compacted
    statistics = statistics_of(
        list(zip(streams.pending, session.schemas, strict=True)),
        compacted,
        session.key_columns,
        encoded_width(session.sort_columns),
        max_dead_row_share=streams.spec.job_run.max_dead_row_share,
        lake_is_remote=lake.location.is_remote,
        sampled_files=sampled_files,
    )
    merged = [] if compacted is None else [compacted.files[each] for group in streams.merges for each in group]
    size = replace(
        statistics.size,
        held_row_group_bytes=_held_row_group_bytes(session),
        merged_files=len(merged),
        merged_rows=sum(file.rows for file in merged),
        only_rehash=streams.spec.job_run.operation == "rehash",
    )
    if not session.key_columns:
        size = replace(size, has_key=False, touched_rows=0, touched_rows_per_file=0.0, overlap_share=0.0)
    return replace(statistics, size=size)


def _held_row_group_bytes(session: SessionInput) -> int:
    """See `SessionSize`. Arrow holds the row group of a file on an object store whole; of others it reads pages, and so
    does Lithify of flat columns."""
    run = session.streams.spec.job_run
    by_arrow = not run.own_parquet_pages or run.compacted_file_content_type is not ContentType.PARQUET
    groups = (
        group.size_bytes
        for ref, schema in zip(session.streams.pending, session.schemas, strict=True)
        if is_remote(ref.uri) and (by_arrow or any(pa.types.is_nested(field.type) for field in schema))
        for group in ref.file.row_groups
    )
    return max(groups, default=0)


def streams_to_compact(run: JobRunSpec, source: Table) -> Iterator[dict[str, str]]:
    """The partitions of a job run that names none, in the order of the store, listed as the caller takes them. Of a
    table that lists the streams with deltas only these, unless files or indexes of others may have to be rewritten: it
    is published, or a hash bucket count is asked for."""
    into_itself = run.destination_compacted_table_id == source.table_id and not source.properties.publish
    with_news = into_itself and run.hash_bucket_count is None and run.operation == "compact"
    if not source.partition_keys and not (with_news and source.properties.news_hints):
        return iter([{}])  # its one stream; a log without entries has nothing to pin
    return source.each_partition(with_news=with_news)


def partitions_to_compact(run: JobRunSpec, source: Table) -> tuple[dict[str, str], ...]:
    """The partitions of a job run, in the order of their values: those that it names, or `streams_to_compact`."""
    if run.partitions is None:
        return tuple(sorted(streams_to_compact(run, source), key=by_values))
    _, reasons = source.look_up(run.partitions)
    refuse_if(reasons)
    return run.partitions


def check_file_counts(run: JobRunSpec, rows: int) -> None:
    """An upper estimate from the logs: rows that lose are counted too."""
    rows_per_file = {
        "rows_per_compacted_file": run.rows_per_compacted_file,
        "rows_per_primary_key_index_file": run.rows_per_primary_key_index_file,
    }
    reasons = [
        f"{name} is {each:,}: {counted(rows, 'row')} would make up to {counted(-(-rows // each), 'file')}, and at most "
        f"{FILES_MAX:,} are allowed: give {-(-rows // FILES_MAX):,} or more"
        for name, each in rows_per_file.items()
        if rows > FILES_MAX * each
    ]
    refuse_if(reasons)


def pin_stream(
    run: JobRunSpec,
    source: Table,
    destination: Table,
    partition: dict[str, str],
    number: int,
    until_ms: int | None = None,
    *,
    read: StreamsRead | None = None,
) -> PinnedSession | None:
    """The session of one partition; None: no stream version is active, so there is nothing to compact.

    Args:
        until_ms: the source is pinned to the last entry written until then; None: to its last entry
        read: streams of the source that were just read"""
    stream, written = source.stream(partition), destination.stream(partition)
    now = at = (read or {}).get(stream.folder) or stream.load()
    if until_ms is not None and now.at_ms > until_ms:
        at = stream.load(as_of=stream.log.entry_number_at(until_ms))
    active = at.state.active
    if active is None:
        return None
    current = now if written is stream else written.load()
    spec = SessionSpec(
        job_run=run,
        session_id=f"{run.job_run_id}.{number}",
        partition=partition,
        source_stream_version=active.stream_version,
        source_entry_number=at.entry_number,
        source_position=active.last_position,
        destination_entry_number=current.entry_number,
    )
    return PinnedSession.of(SessionStreams.of(spec, source, destination, now.state, current.state))


def pinned_session(spec: SessionSpec, lake: DeltaCatalog) -> PinnedSession:
    """The work of a session if it began now. Reads the logs of its source and its destination."""
    return PinnedSession.of(SessionStreams.load(spec, lake))
