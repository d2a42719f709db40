"""A whole job run in this process: pins its sessions, plans each, runs one after the other on one Spark.

The dispatcher does the same over many machines (`dispatcher/job_runs.py`); both write the same session logs.
"""

from __future__ import annotations

from contextlib import ExitStack

import structlog
from pyspark import SparkContext

from compactor.attempt import run_attempt
from compactor.catalog.catalog import DeltaCatalog
from compactor.catalog.paths import JobRunFolder
from compactor.catalog.stream import PartitionStream
from compactor.clock import Clock
from compactor.errors import Invalid, LithifyError
from compactor.events import EventSink, NoSink
from compactor.local_spark import local_resources, local_spark
from compactor.machine import usable_cores
from compactor.session import SessionTools, run_rehash
from compactor.session_events import publish_session
from compactor.session_journal import SessionJournal
from compactor.session_planner import PinnedSession, pin_sessions, plan_session, spec_as_compacted
from compactor.spec import JobRunResult, JobRunSpec, SessionPlan, SessionResult, SessionSpec


def run_here(run: JobRunSpec, lake: DeltaCatalog, clock: Clock, spark: SparkContext | None) -> JobRunResult:
    """Runs every session. Spark is started only if one has something to do. See `compact` for what it raises.

    All sessions are planned before the first one runs: input that can never work is refused before anything is written.
    """
    sink = _sink(run, clock)
    resources = local_resources(usable_cores() if spark is None else spark.defaultParallelism)
    planned = [
        (session, plan_session(session.spec, lake, resources) if session.has_work else None)
        for session in pin_sessions(run, lake)
    ]
    lake.create_table_like(run.destination_compacted_table_id, lake.table(run.source_table_id))
    results = []
    with ExitStack() as stack:
        for session, plan in planned:
            if plan is None:
                results.append(_nothing_to_do(session))
                continue
            if spark is None:
                spark = stack.enter_context(local_spark(f"lithify {run.job_run_id}"))
            try:
                results.append(run_attempt(plan, lake, lake.store, spark, 1, clock))
            finally:
                _publish(session.spec, lake, sink, clock)
    return JobRunResult(job_run_id=run.job_run_id, sessions=tuple(results))


def _publish(spec: SessionSpec, lake: DeltaCatalog, sink: EventSink, clock: Clock) -> None:
    """A topic that takes nothing makes no failure of rows that are committed: what was to be told stays in the log."""
    try:
        publish_session(spec, lake.store, sink, clock)
    except LithifyError as error:
        structlog.get_logger().warning("events_not_published", session_id=spec.session_id, reason=str(error))


def _sink(run: JobRunSpec, clock: Clock) -> EventSink:
    if run.sns_event_topic_arn is None:
        return NoSink()
    from compactor.aws.sns import SnsSink  # boto3 is loaded only by who publishes

    return SnsSink.open(run.sns_event_topic_arn, clock)


def rehash_here(lake: DeltaCatalog, stream: PartitionStream, hash_bucket_count: int, clock: Clock) -> None:
    """Moves a compacted stream's index to another hash bucket count, on a Spark of its own. Reads no data file.

    Raises `Invalid` for a stream that was never compacted, `Fenced` where a compactor is at work on it.
    """
    compacted = stream.load().state.compacted
    if compacted is None:
        raise Invalid(f"{stream} has no index yet: compact it first")
    job_run_id = f"rehash-{clock.new_id()}"
    spec = spec_as_compacted(lake, stream, compacted, job_run_id)
    resources = local_resources(usable_cores())
    plan = SessionPlan(
        spec=spec,
        hash_bucket_count=hash_bucket_count,
        max_rows_per_round=1,
        task_memory_bytes=resources.task_memory_bytes,
        tasks=resources.tasks,
        expected_sla=0.0,
        arithmetic=(f"{hash_bucket_count} hash buckets: as asked for",),
    )
    folder = JobRunFolder(job_run_id).session(spec.session_id)
    with local_spark(f"lithify {job_run_id}") as spark, SessionJournal(lake.store, folder, 1, clock) as journal:
        run_rehash(plan, SessionTools(lake, spark, clock, journal))


def _nothing_to_do(session: PinnedSession) -> SessionResult:
    return SessionResult(
        session_id=session.spec.session_id,
        partition=session.spec.partition,
        rounds=0,
        rows_in=session.compacted_rows,
        rows_out=session.compacted_rows,
        rows_deduplicated=0,
        rows_deleted=0,
        seconds=0.0,
        expected_sla=0.0,
    )
