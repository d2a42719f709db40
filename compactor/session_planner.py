"""From a job run to its sessions, and from a session to its plan. Reads logs, never data; `sizing.py` calculates."""

from __future__ import annotations

from dataclasses import dataclass

from compactor.catalog.catalog import DeltaCatalog, Table
from compactor.catalog.snapshot import CompactedStream
from compactor.catalog.stream import PartitionStream
from compactor.errors import Invalid
from compactor.kernels.sort_values import encoded_width
from compactor.names import render_partition
from compactor.session_input import SessionInput, continued_stream, pending_files, read_session_input
from compactor.sizing import Resources, SessionSize, size_session
from compactor.spec import DEFAULT_SORT_KEYS, JobRunSpec, SessionPlan, SessionSpec


@dataclass(frozen=True)
class PinnedSession:
    """A session with its source pinned, and whether it has anything to do."""

    spec: SessionSpec
    compacted_rows: int
    pending_rows: int
    pending_file_count: int
    has_too_many_dead_rows: bool

    @property
    def has_work(self) -> bool:
        """Whether there are deltas to compact, or compacted files to clean."""
        return self.pending_file_count > 0 or self.has_too_many_dead_rows


def pin_sessions(run: JobRunSpec, lake: DeltaCatalog) -> tuple[PinnedSession, ...]:
    """One session per partition stream that has an active stream version, in partition order.

    Nothing is written, nor is the destination table created. Raises `Invalid` for a table or partition that is missing.
    """
    source = lake.table(run.source_table_id)
    sessions = []
    for number, partition in enumerate(_partitions(run, source), 1):
        pinned = _pin(run, lake, source, partition, number)
        if pinned is not None:
            sessions.append(pinned)
    return tuple(sessions)


def spec_as_compacted(
    lake: DeltaCatalog, stream: PartitionStream, compacted: CompactedStream, job_run_id: str
) -> SessionSpec:
    """A session that goes on with a compacted stream as its last round did: same keys, same source, as of now."""
    run = JobRunSpec(
        job_run_id=job_run_id,
        source_table_id=compacted.source_table_id,
        primary_keys=compacted.primary_keys,
        sort_keys=compacted.sort_keys or DEFAULT_SORT_KEYS,
        lake=lake.location,
        destination_compacted_table_id=stream.table_id,
    )
    return SessionSpec(
        job_run=run,
        session_id=f"{job_run_id}.1",
        partition=stream.partition,
        source_stream_version=compacted.source_stream_version,
        source_entry_number=lake.table(compacted.source_table_id).stream(stream.partition).load().entry_number,
        source_position=None,
        destination_entry_number=stream.load().entry_number,
    )


def plan_session(spec: SessionSpec, lake: DeltaCatalog, resources: Resources) -> SessionPlan:
    """Sizes a session. Raises `Invalid` for input that can never be compacted as asked."""
    run = spec.job_run
    session = read_session_input(spec, lake)
    sizing = size_session(measure(session), resources, run.hash_bucket_count, run.max_rows_per_round)
    return SessionPlan(
        spec=spec,
        hash_bucket_count=sizing.hash_bucket_count,
        max_rows_per_round=sizing.max_rows_per_round,
        task_memory_bytes=resources.task_memory_bytes,
        tasks=resources.tasks,
        expected_sla=sizing.expected_sla,
        arithmetic=sizing.arithmetic,
    )


def measure(session: SessionInput) -> SessionSize:
    """The figures that sizing needs."""
    compacted = session.compacted
    return SessionSize(
        index_rows=sum(file.rows for file in compacted.index_files) if compacted else 0,
        delta_rows=sum(ref.file.rows for ref in session.pending),
        delta_bytes=sum(ref.file.size_bytes for ref in session.pending),
        sort_values_bytes=encoded_width(session.sort_columns),
        inherited_hash_bucket_count=compacted.hash_bucket_count if compacted else None,
    )


def _partitions(run: JobRunSpec, source: Table) -> tuple[dict[str, str], ...]:
    existing = source.partitions()
    if run.partitions is None:
        return tuple(existing)
    missing = [partition for partition in run.partitions if partition not in existing]
    if missing:
        raise Invalid(*(f"{run.source_table_id} has no partition {render_partition(each)}" for each in missing))
    return run.partitions


def _pin(
    run: JobRunSpec, lake: DeltaCatalog, source: Table, partition: dict[str, str], number: int
) -> PinnedSession | None:
    stream = source.stream(partition)
    at = stream.load()
    active = at.state.active
    if active is None:
        return None
    destination = lake.table_like(run.destination_compacted_table_id, source).stream(partition).load()
    spec = SessionSpec(
        job_run=run,
        session_id=f"{run.job_run_id}.{number}",
        partition=partition,
        source_stream_version=active.stream_version,
        source_entry_number=at.entry_number,
        source_position=active.last_position,
        destination_entry_number=destination.entry_number,
    )
    compacted, _ = continued_stream(destination.state, spec)
    pending = pending_files(stream, spec, compacted)
    return PinnedSession(
        spec,
        compacted_rows=compacted.rows if compacted else 0,
        pending_rows=sum(ref.file.rows for ref in pending),
        pending_file_count=len(pending),
        has_too_many_dead_rows=compacted is not None and compacted.has_more_dead_rows_than(run.max_dead_row_share),
    )
