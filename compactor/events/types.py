"""The types of events, their severity and their `data`.

The data of a type only gains fields, with a default; any other change is a v2 of the type.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from compactor.model.counts import RowCounts
from compactor.model.document import Document
from compactor.planning.cluster_plan import ClusterPlan, Cost
from compactor.planning.spec import Partition


class Severity(StrEnum):
    """What a person on call must do: nothing, look at it tomorrow, look at it now."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class EventData(Document):
    """Base of all data. `event_type` is `lithify.<what>.<past tense>.v1`."""

    event_type: ClassVar[str]
    severity: ClassVar[Severity] = Severity.INFO
    severities: ClassVar[tuple[Severity, ...]] = ()
    """All severities that the type may have, if several."""

    @property
    def grade(self) -> Severity:
        """The severity of this event."""
        return self.severity


class SessionData(EventData):
    """Base of the data of events about a session."""

    session_id: str
    partition: Partition


class JobRunAccepted(EventData):
    """`sessions`: partition streams to compact. `predecessor`: the job run that this one runs again. `finds_sessions`:
    it has many partition streams, and finds those to compact as it reaches them; `sessions` is 0 then.

    A second delivery of the same message causes no event.
    """

    event_type: ClassVar[str] = "lithify.job_run.accepted.v1"
    destination_compacted_table_id: str
    sessions: int
    priority: int
    desired_sla: int | None
    predecessor: str | None = None
    finds_sessions: bool = False


class JobRunRejected(EventData):
    """`message_id` is the message's id on its queue; its body is in the dead-letter queue."""

    event_type: ClassVar[str] = "lithify.job_run.rejected.v1"
    severity: ClassVar[Severity] = Severity.ERROR
    message_id: str
    reasons: tuple[str, ...]


class JobRunRepeated(EventData):
    """Another message had the same id and content, and started nothing. `status`: of the job run at that time;
    `answer`: its outcome, and what the sender can do."""

    event_type: ClassVar[str] = "lithify.job_run.repeated.v1"
    severity: ClassVar[Severity] = Severity.WARNING
    message_id: str
    status: str
    answer: str


class JobRunStarted(EventData):
    event_type: ClassVar[str] = "lithify.job_run.started.v1"
    owner: str


class JobRunSucceeded(EventData):
    """Rows over all sessions, as in `RowCounts`. `nothing_to_do`: no stream had a delta above its watermark.

    seconds, desired_sla, expected_sla  actual, desired and predicted time since its acceptance. The event's severity is
                                        "warning" if the actual time is more than the desired one
    paused_seconds                      of the actual and the predicted time in a pause, which is no lateness
    """

    event_type: ClassVar[str] = "lithify.job_run.succeeded.v1"
    severities: ClassVar[tuple[Severity, ...]] = (Severity.INFO, Severity.WARNING)
    nothing_to_do: bool
    sessions: int
    rounds: int
    rows_in: int
    rows_out: int
    rows_deduplicated: int
    rows_deleted: int
    seconds: float
    desired_sla: int | None = None
    expected_sla: float | None = None
    paused_seconds: float = 0.0

    @property
    def grade(self) -> Severity:
        late = self.desired_sla is not None and self.seconds - self.paused_seconds > self.desired_sla
        return Severity.WARNING if late else self.severity


class JobRunFailed(EventData):
    event_type: ClassVar[str] = "lithify.job_run.failed.v1"
    severity: ClassVar[Severity] = Severity.ERROR
    failed_sessions: tuple[str, ...]
    reasons: tuple[str, ...]
    seconds: float
    desired_sla: int | None = None
    expected_sla: float | None = None
    paused_seconds: float = 0.0


class JobRunCancelled(EventData):
    event_type: ClassVar[str] = "lithify.job_run.cancelled.v1"
    severity: ClassVar[Severity] = Severity.WARNING
    reason: str
    seconds: float


class JobRunPaused(EventData):
    """No new session of it is started until it is resumed; those that run go on to their end. `scope`: what was paused,
    everything, a table of it, or the job run itself."""

    event_type: ClassVar[str] = "lithify.job_run.paused.v1"
    severity: ClassVar[Severity] = Severity.WARNING
    scope: str
    reason: str


class JobRunResumed(EventData):
    event_type: ClassVar[str] = "lithify.job_run.resumed.v1"


class JobRunWaitsForMoney(EventData):
    """A session of it would cost more than is left of what a job run, or a day, may cost: it waits. Those that run go
    on. Told once of a job run."""

    event_type: ClassVar[str] = "lithify.job_run.waits_for_money.v1"
    severity: ClassVar[Severity] = Severity.WARNING
    reason: str


class JobRunSetAside(EventData):
    """A dispatcher cannot read its log, which is damaged, or from a newer release. The dispatcher runs nothing of it,
    and nothing is lost: it is tried again later, and by every other dispatcher."""

    event_type: ClassVar[str] = "lithify.job_run.set_aside.v1"
    severity: ClassVar[Severity] = Severity.ERROR
    reasons: tuple[str, ...]


class SessionPlanned(SessionData):
    """A session's first plan, and every later one that differs. `attempt` is the first with this plan; `changes` are
    the differences from the plan before. `cluster`: what is launched for it, with its expected cost; None: it runs on
    an existing machine. `bundle`: of the sessions that share its Spark job; None: it has its own. `desired_sla` is the
    job run's: from its acceptance to the end of its last session. `waited_seconds`: from its acceptance to this
    plan."""

    event_type: ClassVar[str] = "lithify.session.planned.v1"
    hash_bucket_count: int
    max_rows_per_round: int
    tasks: int
    task_memory_bytes: int
    expected_sla: float
    desired_sla: int | None
    waited_seconds: float = 0.0
    arithmetic: tuple[str, ...]
    attempt: int = 1
    changes: tuple[str, ...] = ()
    cluster: ClusterPlan | None = None
    bundle: str | None = None


class SessionLaunched(SessionData):
    """`cluster` identifies the Spark job for a person. `bundle`: as in `SessionPlanned`."""

    event_type: ClassVar[str] = "lithify.session.launched.v1"
    attempt: int
    cluster: str
    bundle: str | None = None


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
    """`attempt` is the next one, `reasons` why the one before it failed. `alone`: that one ran in a bundle, and this
    one will have its own Spark job."""

    event_type: ClassVar[str] = "lithify.session.retried.v1"
    severity: ClassVar[Severity] = Severity.WARNING
    attempt: int
    reasons: tuple[str, ...]
    alone: bool = False


class SessionSucceeded(SessionData):
    """Actual and predicted seconds; `expected_sla` is None if there was nothing to do. `expected_cost` is predicted
    before the session, `cost` computed after it; None if nothing was launched for it."""

    event_type: ClassVar[str] = "lithify.session.succeeded.v1"
    nothing_to_do: bool
    rounds: int
    rows_in: int
    rows_out: int
    rows_deduplicated: int
    rows_deleted: int
    seconds: float
    expected_sla: float | None
    expected_cost: Cost | None = None
    cost: Cost | None = None


class SessionFailed(SessionData):
    """`error_kind` is a value of `ErrorKind`; another release may have others."""

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
    """Progress of a session: at most one event every so many seconds, and none without progress."""

    event_type: ClassVar[str] = "lithify.heartbeat.emitted.v1"
    attempt: int
    round_number: int
    rounds: int
    step: str
    tasks_done: int
    tasks: int
    rows_done: int
    rows: int


class TablePublished(EventData):
    """A commit of a table in a table format that other engines read. `table` of the event is the job run's source.

    published_table_id  the table that is published
    version             of the published table; `snapshot`: its id, in formats that have one
    entries             the entry of each published stream's log that it has now, by encoded partition
    refused             partitions that are left as they were: every reason
    lag_seconds         from the oldest of these entries to the commit
    """

    event_type: ClassVar[str] = "lithify.table.published.v1"
    severities: ClassVar[tuple[Severity, ...]] = (Severity.INFO, Severity.WARNING)
    published_table_id: str
    format: str
    version: int
    snapshot: int | None = None
    entries: dict[str, int]
    files_added: int
    files_removed: int
    files_marked: int
    rows: int
    lag_seconds: float
    refused: tuple[str, ...] = ()

    @property
    def grade(self) -> Severity:
        return Severity.WARNING if self.refused else self.severity


class TablePublishFailed(EventData):
    """The rows are committed and not published. It is tried again, until it succeeds."""

    event_type: ClassVar[str] = "lithify.table.publish_failed.v1"
    severity: ClassVar[Severity] = Severity.WARNING
    published_table_id: str
    format: str
    reasons: tuple[str, ...]


EVENT_TYPES: dict[str, type[EventData]] = {
    data_type.event_type: data_type
    for data_type in (
        JobRunAccepted,
        JobRunRejected,
        JobRunRepeated,
        JobRunStarted,
        JobRunSucceeded,
        JobRunFailed,
        JobRunCancelled,
        JobRunPaused,
        JobRunResumed,
        JobRunWaitsForMoney,
        JobRunSetAside,
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
        TablePublished,
        TablePublishFailed,
    )
}
