"""What an event says, in a few words. Its type stands beside them."""

from __future__ import annotations

from compactor import event_types as said
from compactor.event_types import EventData


def sentence(data: EventData) -> str:
    return _of_session(data) if isinstance(data, said.SessionData) else _of_job_run(data)


def _of_job_run(data: EventData) -> str:
    match data:
        case said.JobRunAccepted():
            return f"{_count(data.sessions, 'session')} for {data.destination_compacted_table_id}"
        case said.JobRunStarted():
            return f"by {data.owner}"
        case said.JobRunSucceeded():
            return f"{data.rows_in:,} rows in, {data.rows_out:,} out, {data.seconds:.1f} s"
        case said.JobRunRejected() | said.JobRunFailed():
            return "; ".join(data.reasons)
        case said.JobRunCancelled():
            return data.reason
        case _:
            return ""


def _of_session(data: said.SessionData) -> str:
    match data:
        case said.SessionRetried() | said.SessionFailed():
            return "; ".join(data.reasons)
        case said.SessionStalled():
            return f"no progress for {data.quiet_seconds:.0f} s"
        case said.SessionExpectedSlaChanged():
            return f"{data.before:.1f} s before, {data.now:.1f} s now"
        case said.SessionSucceeded():
            return f"{data.rows_deduplicated:,} deduplicated, {data.rows_deleted:,} deleted, {data.seconds:.1f} s"
        case _:
            return _of_progress(data)


def _of_progress(data: said.SessionData) -> str:
    match data:
        case said.SessionPlanned():
            return f"{_count(data.hash_bucket_count, 'hash bucket')}, expected in {data.expected_sla:.1f} s"
        case said.SessionLaunched():
            return f"attempt {data.attempt}, {data.cluster.partition(',')[0]}"
        case said.SessionStarted():
            return f"{_count(data.rounds, 'round')}, expected in {data.expected_sla:.1f} s"
        case said.HeartbeatEmitted():
            tasks = f", {data.tasks_done} of {data.tasks} tasks" if data.tasks else ""
            return f"round {data.round_number} of {data.rounds}, {data.step}{tasks}"
        case said.SessionRoundCompleted():
            counts, place = data.counts, f"round {data.round_number} of {data.rounds}"
            return f"{place}: {counts.rows_in:,} rows in, {counts.rows_out:,} out, {data.seconds:.1f} s"
        case said.RehashCompleted():
            return _count(data.hash_bucket_count, "hash bucket")
        case _:
            return ""


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
