"""An event's data in a few words. The screen shows the event's type beside them."""

from compactor.events.types import (
    EventData,
    HeartbeatEvent,
    RehashCompletedEvent,
    SessionData,
    SessionExpectedSlaChangedEvent,
    SessionFailedEvent,
    SessionRoundCompletedEvent,
    SessionStartedEvent,
    SessionSucceededEvent,
)
from compactor.model.names import counted
from compactor.sessions.session_log import describe_progress
from dispatcher.records.job_run_events import (
    JobRunAcceptedEvent,
    JobRunCancelledEvent,
    JobRunFailedEvent,
    JobRunPausedEvent,
    JobRunRejectedEvent,
    JobRunRepeatedEvent,
    JobRunStartedEvent,
    JobRunSucceededEvent,
    JobRunWaitsForMoneyEvent,
    SessionLaunchedEvent,
    SessionPlannedEvent,
    SessionRetriedEvent,
    SessionStalledEvent,
)


def event_text(data: EventData) -> str:
    return _of_session(data) if isinstance(data, SessionData) else _of_job_run(data)


def _of_job_run(data: EventData) -> str:
    match data:
        case JobRunAcceptedEvent():
            return f"{counted(data.sessions, 'session')} for {data.destination_compacted_table_id}"
        case JobRunStartedEvent():
            return f"by {data.owner}"
        case JobRunSucceededEvent():
            return f"{counted(data.rows_in, 'row')} in, {data.rows_out:,} out, {data.seconds:.1f} s"
        case JobRunRejectedEvent() | JobRunFailedEvent():
            return "; ".join(data.reasons)
        case JobRunCancelledEvent() | JobRunPausedEvent() | JobRunWaitsForMoneyEvent():
            return data.reason
        case JobRunRepeatedEvent():
            return data.answer
        case _:
            return ""


def _of_session(data: SessionData) -> str:
    match data:
        case SessionRetriedEvent() | SessionFailedEvent():
            return "; ".join(data.reasons)
        case SessionStalledEvent():
            return f"no progress for {data.quiet_seconds:.0f} s"
        case SessionExpectedSlaChangedEvent():
            return f"{data.before:.1f} s before, {data.now:.1f} s now"
        case SessionSucceededEvent():
            return f"{data.rows_deduplicated:,} deduplicated, {data.rows_deleted:,} deleted, {data.seconds:.1f} s"
        case _:
            return _of_progress(data)


def _of_progress(data: SessionData) -> str:
    match data:
        case SessionPlannedEvent():
            return f"{counted(data.hash_bucket_count, 'hash bucket')}, expected in {data.expected_sla:.1f} s"
        case SessionLaunchedEvent():
            return f"attempt {data.attempt}, {data.cluster.partition(',')[0]}"
        case SessionStartedEvent():
            return f"{counted(data.rounds, 'round')}, expected in {data.expected_sla:.1f} s"
        case HeartbeatEvent():
            return describe_progress(data)
        case SessionRoundCompletedEvent():
            counts, position = data.counts, f"round {data.round_number} of {data.rounds}"
            return f"{position}: {counted(counts.rows_in, 'row')} in, {counts.rows_out:,} out, {data.seconds:.1f} s"
        case RehashCompletedEvent():
            return counted(data.hash_bucket_count, "hash bucket")
        case _:
            return ""
