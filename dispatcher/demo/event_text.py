"""An event's data in a few words. The screen shows the event's type beside them."""

from __future__ import annotations

from compactor.events import types as event_types
from compactor.events.types import EventData
from compactor.model.names import counted
from compactor.sessions.session_log import describe_progress


def event_text(data: EventData) -> str:
    return _of_session(data) if isinstance(data, event_types.SessionData) else _of_job_run(data)


def _of_job_run(data: EventData) -> str:
    match data:
        case event_types.JobRunAccepted():
            return f"{counted(data.sessions, 'session')} for {data.destination_compacted_table_id}"
        case event_types.JobRunStarted():
            return f"by {data.owner}"
        case event_types.JobRunSucceeded():
            return f"{counted(data.rows_in, 'row')} in, {data.rows_out:,} out, {data.seconds:.1f} s"
        case event_types.JobRunRejected() | event_types.JobRunFailed():
            return "; ".join(data.reasons)
        case event_types.JobRunCancelled() | event_types.JobRunPaused() | event_types.JobRunWaitsForMoney():
            return data.reason
        case event_types.JobRunRepeated():
            return data.answer
        case _:
            return ""


def _of_session(data: event_types.SessionData) -> str:
    match data:
        case event_types.SessionRetried() | event_types.SessionFailed():
            return "; ".join(data.reasons)
        case event_types.SessionStalled():
            return f"no progress for {data.quiet_seconds:.0f} s"
        case event_types.SessionExpectedSlaChanged():
            return f"{data.before:.1f} s before, {data.now:.1f} s now"
        case event_types.SessionSucceeded():
            return f"{data.rows_deduplicated:,} deduplicated, {data.rows_deleted:,} deleted, {data.seconds:.1f} s"
        case _:
            return _of_progress(data)


def _of_progress(data: event_types.SessionData) -> str:
    match data:
        case event_types.SessionPlanned():
            return f"{counted(data.hash_bucket_count, 'hash bucket')}, expected in {data.expected_sla:.1f} s"
        case event_types.SessionLaunched():
            return f"attempt {data.attempt}, {data.cluster.partition(',')[0]}"
        case event_types.SessionStarted():
            return f"{counted(data.rounds, 'round')}, expected in {data.expected_sla:.1f} s"
        case event_types.HeartbeatEmitted():
            return describe_progress(data)
        case event_types.SessionRoundCompleted():
            counts, position = data.counts, f"round {data.round_number} of {data.rounds}"
            return f"{position}: {counted(counts.rows_in, 'row')} in, {counts.rows_out:,} out, {data.seconds:.1f} s"
        case event_types.RehashCompleted():
            return counted(data.hash_bucket_count, "hash bucket")
        case _:
            return ""
