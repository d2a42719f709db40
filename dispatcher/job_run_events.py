"""What an entry of a job-run log has to tell. Pure: the same entry, the same events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import assert_never

from compactor import event_types as said
from compactor.catalog.log import Entry
from compactor.event_types import EventData
from compactor.events import Event, Subject, bounded, entry_event
from compactor.names import PartitionValues
from dispatcher.job_runs import (
    AboutSession,
    CancelRequested,
    ClaimRenewed,
    JobRunAccepted,
    JobRunAction,
    JobRunClaimed,
    JobRunEnded,
    JobRunRejected,
    JobRunReleased,
    JobRunState,
    SessionEnded,
    SessionLaunched,
    SessionLaunching,
    SessionPlanned,
    SessionRetried,
    SessionStalled,
)
from launcher.outcomes import Cancelled, Failed, NothingToDo, Succeeded


def subject_of(job_run_id: str, state: JobRunState) -> Subject:
    """Whose events they are. A rejected job run is called as its document called itself, as far as it did."""
    if state.rejected is not None:
        return Subject(state.rejected.requested_job_run_id or job_run_id, state.rejected.table)
    return Subject(job_run_id, state.accepted.spec.source_table_id if state.accepted is not None else None)


def job_run_events(subject: Subject, log_id: str, state: JobRunState) -> Callable[[Entry[JobRunAction]], list[Event]]:
    """The builder for a job run's entries. `state` is any fold after its first entry: it says which partition a session
    has, and what was desired."""
    partitions = {session_id: session.pin.partition for session_id, session in state.sessions.items()}
    desired_sla = state.accepted.spec.desired_sla if state.accepted is not None else None

    def build(entry: Entry[JobRunAction]) -> list[Event]:
        told = []
        for ordinal, action in enumerate(entry.actions):
            data = _data_of(action, partitions, desired_sla)
            if data is not None:
                told.append(entry_event(subject, log_id, entry, ordinal, data))
        return told

    return build


def _data_of(
    action: JobRunAction, partitions: Mapping[str, PartitionValues], desired_sla: int | None
) -> EventData | None:
    match action:
        case JobRunAccepted():
            return said.JobRunAccepted(
                destination_compacted_table_id=action.spec.destination_compacted_table_id,
                sessions=len(action.sessions),
                priority=action.spec.priority,
                desired_sla=action.spec.desired_sla,
            )
        case JobRunRejected():
            return said.JobRunRejected(message_id=action.message_id, reasons=bounded(action.reasons))
        case JobRunClaimed():
            return said.JobRunStarted(owner=action.owner) if action.epoch == 1 else None
        case ClaimRenewed() | JobRunReleased() | CancelRequested():
            return None
        case JobRunEnded():
            return _job_run_ended(action)
        case _:
            return _session_data(action, dict(partitions[action.session_id]), desired_sla)


def _job_run_ended(action: JobRunEnded) -> EventData:
    outcome = action.outcome
    match outcome.status:
        case "succeeded":
            return said.JobRunSucceeded(
                nothing_to_do=outcome.nothing_to_do,
                sessions=outcome.sessions,
                rounds=outcome.rounds,
                rows_in=outcome.rows_in,
                rows_out=outcome.rows_out,
                rows_deduplicated=outcome.rows_deduplicated,
                rows_deleted=outcome.rows_deleted,
                seconds=action.seconds,
            )
        case "failed":
            return said.JobRunFailed(
                failed_sessions=bounded(outcome.failed_sessions),
                reasons=bounded(outcome.reasons),
                seconds=action.seconds,
            )
        case "cancelled":
            return said.JobRunCancelled(reason="; ".join(outcome.reasons), seconds=action.seconds)
        case _:
            assert_never(outcome.status)


def _session_data(action: AboutSession, partition: dict[str, str], desired_sla: int | None) -> EventData | None:
    session_id = action.session_id
    match action:
        case SessionPlanned():
            return said.SessionPlanned(
                session_id=session_id,
                partition=partition,
                hash_bucket_count=action.hash_bucket_count,
                max_rows_per_round=action.max_rows_per_round,
                tasks=action.tasks,
                task_memory_bytes=action.task_memory_bytes,
                expected_sla=action.expected_sla,
                desired_sla=desired_sla,
                arithmetic=action.arithmetic,
            )
        case SessionLaunching():
            return None
        case SessionLaunched():
            return said.SessionLaunched(
                session_id=session_id, partition=partition, attempt=action.attempt, cluster=action.cluster
            )
        case SessionStalled():
            return said.SessionStalled(
                session_id=session_id, partition=partition, attempt=action.attempt, quiet_seconds=action.quiet_seconds
            )
        case SessionRetried():
            return said.SessionRetried(
                session_id=session_id, partition=partition, attempt=action.attempt, reasons=bounded(action.reasons)
            )
        case SessionEnded():
            return _session_ended(action, partition)
        case _:
            assert_never(action)


def _session_ended(action: SessionEnded, partition: dict[str, str]) -> EventData | None:
    session_id = action.session_id
    match action.end:
        case Succeeded(result=result):
            return said.SessionSucceeded(
                session_id=session_id,
                partition=partition,
                nothing_to_do=False,
                rounds=result.rounds,
                rows_in=result.rows_in,
                rows_out=result.rows_out,
                rows_deduplicated=result.rows_deduplicated,
                rows_deleted=result.rows_deleted,
                seconds=result.seconds,
                expected_sla=result.expected_sla,
            )
        case NothingToDo():
            return said.SessionSucceeded(
                session_id=session_id,
                partition=partition,
                nothing_to_do=True,
                rounds=0,
                rows_in=0,
                rows_out=0,
                rows_deduplicated=0,
                rows_deleted=0,
                seconds=0.0,
                expected_sla=None,
            )
        case Failed():
            return said.SessionFailed(
                session_id=session_id,
                partition=partition,
                attempt=action.end.attempt,
                error_kind=action.end.error_kind,
                reasons=bounded(action.end.reasons),
            )
        case Cancelled():
            return None  # the job run's own end says so
        case _:
            assert_never(action.end)
