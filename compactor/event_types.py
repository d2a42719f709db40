"""What can be told: the types of event (contract 6), how grave each is, and what its `data` says.

A type's data only ever gains fields, with a default; anything else is a v2 of the type.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from compactor.catalog.actions import RowCounts
from compactor.document import Document
from compactor.spec import Partition


class Severity(StrEnum):
    """What somebody on call does about it: nothing, look at it tomorrow, look at it now."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class EventData(Document):
    """Base of all data. `event_type` is `lithify.<what>.<past tense>.v1`."""

    event_type: ClassVar[str]
    severity: ClassVar[Severity] = Severity.INFO


class SessionData(EventData):
    """Base of what is said about a session."""

    session_id: str
    partition: Partition


class JobRunAccepted(EventData):
    """`sessions`: partition streams to compact. A second delivery of the same document is no event."""

    event_type: ClassVar[str] = "lithify.job_run.accepted.v1"
    destination_compacted_table_id: str
    sessions: int
    priority: int
    desired_sla: int | None


class JobRunRejected(EventData):
    """`message_id` is the message's on its queue; its body lies in the dead-letter queue."""

    event_type: ClassVar[str] = "lithify.job_run.rejected.v1"
    severity: ClassVar[Severity] = Severity.ERROR
    message_id: str
    reasons: tuple[str, ...]


class JobRunStarted(EventData):
    event_type: ClassVar[str] = "lithify.job_run.started.v1"
    owner: str


class JobRunSucceeded(EventData):
    """Rows over all sessions, as in `RowCounts`. `nothing_to_do`: no stream had a delta above its watermark."""

    event_type: ClassVar[str] = "lithify.job_run.succeeded.v1"
    nothing_to_do: bool
    sessions: int
    rounds: int
    rows_in: int
    rows_out: int
    rows_deduplicated: int
    rows_deleted: int
    seconds: float


class JobRunFailed(EventData):
    event_type: ClassVar[str] = "lithify.job_run.failed.v1"
    severity: ClassVar[Severity] = Severity.ERROR
    failed_sessions: tuple[str, ...]
    reasons: tuple[str, ...]
    seconds: float


class JobRunCancelled(EventData):
    event_type: ClassVar[str] = "lithify.job_run.cancelled.v1"
    severity: ClassVar[Severity] = Severity.WARNING
    reason: str
    seconds: float


class SessionPlanned(SessionData):
    event_type: ClassVar[str] = "lithify.session.planned.v1"
    hash_bucket_count: int
    max_rows_per_round: int
    tasks: int
    task_memory_bytes: int
    expected_sla: float
    desired_sla: int | None
    arithmetic: tuple[str, ...]


class SessionLaunched(SessionData):
    """`cluster` says where: enough for a person to find it."""

    event_type: ClassVar[str] = "lithify.session.launched.v1"
    attempt: int
    cluster: str


class SessionStarted(SessionData):
    event_type: ClassVar[str] = "lithify.session.started.v1"
    attempt: int
    rounds: int
    expected_sla: float


class SessionRoundCompleted(SessionData):
    """`entry_number` is the commit's, in the compacted stream's log."""

    event_type: ClassVar[str] = "lithify.session.round_completed.v1"
    attempt: int
    round_number: int
    rounds: int
    entry_number: int
    counts: RowCounts
    seconds: float


class SessionExpectedSlaChanged(SessionData):
    event_type: ClassVar[str] = "lithify.session.expected_sla_changed.v1"
    attempt: int
    before: float
    now: float


class SessionStalled(SessionData):
    event_type: ClassVar[str] = "lithify.session.stalled.v1"
    severity: ClassVar[Severity] = Severity.WARNING
    attempt: int
    quiet_seconds: float


class SessionRetried(SessionData):
    """`attempt` is the one to come, `reasons` why the one before it ended."""

    event_type: ClassVar[str] = "lithify.session.retried.v1"
    severity: ClassVar[Severity] = Severity.WARNING
    attempt: int
    reasons: tuple[str, ...]


class SessionSucceeded(SessionData):
    """Predicted and actual seconds side by side; `expected_sla` is None where there was nothing to do."""

    event_type: ClassVar[str] = "lithify.session.succeeded.v1"
    nothing_to_do: bool
    rounds: int
    rows_in: int
    rows_out: int
    rows_deduplicated: int
    rows_deleted: int
    seconds: float
    expected_sla: float | None


class SessionFailed(SessionData):
    """`error_kind` is the class in errors.py, "stalled", "crashed" or "bug"."""

    event_type: ClassVar[str] = "lithify.session.failed.v1"
    severity: ClassVar[Severity] = Severity.ERROR
    attempt: int
    error_kind: str
    reasons: tuple[str, ...]


class RehashCompleted(SessionData):
    """`entry_number` is the commit's, in the compacted stream's log."""

    event_type: ClassVar[str] = "lithify.rehash.completed.v1"
    attempt: int
    entry_number: int
    hash_bucket_count: int


class HeartbeatEmitted(SessionData):
    """Progress of a session, at most one every so many seconds, and only if there was some."""

    event_type: ClassVar[str] = "lithify.heartbeat.emitted.v1"
    attempt: int
    round_number: int
    rounds: int
    step: str
    tasks_done: int
    tasks: int
    rows_done: int
    rows: int


EVENT_TYPES: dict[str, type[EventData]] = {
    data_type.event_type: data_type
    for data_type in (
        JobRunAccepted,
        JobRunRejected,
        JobRunStarted,
        JobRunSucceeded,
        JobRunFailed,
        JobRunCancelled,
        SessionPlanned,
        SessionLaunched,
        SessionStarted,
        SessionRoundCompleted,
        SessionExpectedSlaChanged,
        SessionStalled,
        SessionRetried,
        SessionSucceeded,
        SessionFailed,
        RehashCompleted,
        HeartbeatEmitted,
    )
}
