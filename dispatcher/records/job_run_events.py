"""The events of an entry of a job-run log. Pure: the same entry, the same events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import assert_never

from compactor.events import types as event_types
from compactor.events.relay import Event, Subject, bounded, entry_event, entryless_event
from compactor.events.session_events import session_failed, session_succeeded
from compactor.events.types import EventData
from compactor.log.durable_log import Entry
from compactor.model.names import PartitionValues
from dispatcher.records.job_run_log import (
    AboutSession,
    CancelRequested,
    JobRunAccepted,
    JobRunAction,
    JobRunClaimed,
    JobRunEnded,
    JobRunPaused,
    JobRunRejected,
    JobRunReleased,
    JobRunRepeated,
    JobRunResumed,
    JobRunSharded,
    JobRunState,
    JobRunWaitsForMoney,
    MessageDeadLettered,
    SessionEnded,
    SessionLaunched,
    SessionLaunching,
    SessionPlanned,
    SessionRetried,
    SessionsFound,
    SessionStalled,
    ShardEnded,
)
from dispatcher.records.work_id import WorkId
from launcher.outcomes import Cancelled, Failed, NothingToDo, Succeeded

OF_THE_JOB_RUN = (JobRunAccepted, JobRunClaimed, JobRunPaused, JobRunResumed, JobRunEnded)
"""In the log of a shard these publish nothing: the job run's own log says the same of the whole."""


def subject_of(job_run_id: str, state: JobRunState) -> Subject:
    """The subject of the events. A rejected job run has the id in its document, if there is one."""
    if state.rejected is not None:
        return Subject(state.rejected.requested_job_run_id or job_run_id, state.rejected.table)
    table_id = state.accepted.spec.source_table_id if state.accepted is not None else None
    return Subject(WorkId.parse(job_run_id).job_run_id, table_id)


def set_aside_event(work: WorkId, log_id: str, accepted: JobRunAccepted | None, reason: str, at_ms: int) -> Event:
    """The event for an unreadable log. Its id is the same for every sender and repetition."""
    subject = Subject(work.job_run_id, accepted.spec.source_table_id if accepted is not None else None)
    return entryless_event(subject, log_id, at_ms, "set_aside", event_types.JobRunSetAside(reasons=bounded((reason,))))


def job_run_events(
    subject: Subject, log_id: str, state: JobRunState, accepted_at_ms: int
) -> Callable[[Entry[JobRunAction]], list[Event]]:
    """The builder for a job run's entries. `state` is any fold after its first entry: it has the partitions of
    sessions, and the desired SLA."""
    partitions = {session_id: session.pin.partition for session_id, session in state.sessions.items()}
    desired_sla = state.accepted.spec.desired_sla if state.accepted is not None else None
    is_shard = state.accepted is not None and state.accepted.shard is not None

    def build(entry: Entry[JobRunAction]) -> list[Event]:
        events = []
        for ordinal, action in enumerate(entry.actions):
            if isinstance(action, SessionsFound):
                partitions.update((pin.session_id, pin.partition) for pin in action.sessions)
            if is_shard and isinstance(action, OF_THE_JOB_RUN):
                continue
            data = _data_of(action, partitions, desired_sla)
            if isinstance(data, event_types.SessionPlanned):
                data = data.model_copy(update={"waited_seconds": (entry.at_ms - accepted_at_ms) / 1000})
            if data is not None:
                events.append(entry_event(subject, log_id, entry, ordinal, data))
        return events

    return build


def _data_of(
    action: JobRunAction, partitions: Mapping[str, PartitionValues], desired_sla: int | None
) -> EventData | None:
    match action:
        case JobRunAccepted():
            return event_types.JobRunAccepted(
                destination_compacted_table_id=action.spec.destination_compacted_table_id,
                sessions=len(action.sessions),
                priority=action.spec.priority,
                desired_sla=action.spec.desired_sla,
                predecessor=action.predecessor,
                finds_sessions=action.pinned_until_ms is not None,
            )
        case JobRunRejected():
            return event_types.JobRunRejected(message_id=action.message_id, reasons=bounded(action.reasons))
        case JobRunRepeated() | JobRunPaused() | JobRunResumed() | JobRunWaitsForMoney():
            return _data_without_status(action)
        case JobRunClaimed():
            return event_types.JobRunStarted(owner=action.owner) if action.epoch == 1 else None
        case (
            MessageDeadLettered()
            | JobRunReleased()
            | CancelRequested()
            | SessionsFound()
            | JobRunSharded()
            | ShardEnded()
        ):
            return None
        case JobRunEnded():
            return _job_run_ended(action, desired_sla)
        case _:
            return _session_data(action, dict(partitions[action.session_id]), desired_sla)


def _data_without_status(
    action: JobRunRepeated | JobRunPaused | JobRunResumed | JobRunWaitsForMoney,
) -> EventData | None:
    """Events without a change of status."""
    match action:
        case JobRunRepeated():
            return event_types.JobRunRepeated(message_id=action.message_id, status=action.status, answer=action.answer)
        case JobRunPaused():
            return event_types.JobRunPaused(scope=action.scope, reason=action.reason)
        case JobRunResumed():
            return event_types.JobRunResumed()
        case JobRunWaitsForMoney():
            return None if action.again else event_types.JobRunWaitsForMoney(reason=action.reason)
        case _:
            assert_never(action)


def _job_run_ended(action: JobRunEnded, desired_sla: int | None) -> EventData:
    outcome = action.outcome
    match outcome.status:
        case "succeeded":
            return event_types.JobRunSucceeded(
                nothing_to_do=outcome.nothing_to_do,
                sessions=outcome.sessions,
                rounds=outcome.rounds,
                rows_in=outcome.rows_in,
                rows_out=outcome.rows_out,
                rows_deduplicated=outcome.rows_deduplicated,
                rows_deleted=outcome.rows_deleted,
                seconds=action.seconds,
                desired_sla=desired_sla,
                expected_sla=action.expected_sla,
                paused_seconds=action.paused_seconds,
            )
        case "failed":
            return event_types.JobRunFailed(
                failed_sessions=bounded(outcome.failed_sessions),
                reasons=bounded(outcome.reasons),
                seconds=action.seconds,
                desired_sla=desired_sla,
                expected_sla=action.expected_sla,
                paused_seconds=action.paused_seconds,
            )
        case "cancelled":
            return event_types.JobRunCancelled(reason="; ".join(outcome.reasons), seconds=action.seconds)
        case _:
            assert_never(outcome.status)


def _session_data(action: AboutSession, partition: dict[str, str], desired_sla: int | None) -> EventData | None:
    session_id = action.session_id
    match action:
        case SessionPlanned():
            return event_types.SessionPlanned(
                session_id=session_id,
                partition=partition,
                hash_bucket_count=action.hash_bucket_count,
                max_rows_per_round=action.max_rows_per_round,
                tasks=action.tasks,
                task_memory_bytes=action.task_memory_bytes,
                expected_sla=action.expected_sla,
                desired_sla=desired_sla,
                arithmetic=action.arithmetic,
                attempt=action.attempt,
                changes=action.changes,
                cluster=action.cluster,
                bundle=action.bundle,
            )
        case SessionLaunching():
            return None
        case SessionLaunched():
            return event_types.SessionLaunched(
                session_id=session_id,
                partition=partition,
                attempt=action.attempt,
                cluster=action.cluster,
                bundle=action.bundle,
            )
        case SessionStalled():
            return event_types.SessionStalled(
                session_id=session_id, partition=partition, attempt=action.attempt, quiet_seconds=action.quiet_seconds
            )
        case SessionRetried():
            return event_types.SessionRetried(
                session_id=session_id,
                partition=partition,
                attempt=action.attempt,
                reasons=bounded(action.reasons),
                alone=action.alone,
            )
        case SessionEnded():
            return _session_ended(action, partition)
        case _:
            assert_never(action)


def _session_ended(action: SessionEnded, partition: dict[str, str]) -> EventData | None:
    match action.end:
        case Succeeded(result=result):
            return session_succeeded(action.session_id, partition, result)
        case NothingToDo():
            return session_succeeded(action.session_id, partition, None)
        case Failed():
            return session_failed(action.session_id, partition, action.end)
        case Cancelled():
            return None  # the job run's own end reports it
        case _:
            assert_never(action.end)
