"""The events of a job-run log: projections of its actions. Pure: the same entry, the same events."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, assert_never

from compactor.events.relay import Event, Subject, entry_event, entryless_event
from compactor.events.session_events import session_failed, session_succeeded
from compactor.events.types import EVENT_TYPES, EventData, Reasons, SessionData, Severity
from compactor.log.durable_log import Entry
from compactor.model.counts import RowTotals
from compactor.model.names import PartitionValues
from compactor.planning.cluster_plan import ClusterPlan
from dispatcher.records.job_run_log import (
    JobRunAccepted,
    JobRunAction,
    JobRunClaimed,
    JobRunEnded,
    JobRunPaused,
    JobRunRejected,
    JobRunRepeated,
    JobRunResumed,
    JobRunState,
    JobRunWaitsForMoney,
    SessionsFound,
)
from dispatcher.records.sessions import (
    AboutSession,
    SessionEnded,
    SessionLaunched,
    SessionPlanned,
    SessionRetried,
    SessionStalled,
)
from dispatcher.records.work_id import WorkId
from launcher.outcomes import Cancelled, Failed, NothingToDo, Succeeded

ALL_EVENT_TYPES = EVENT_TYPES
"""The events of this module and of `compactor/events/types.py`."""


class JobRunAcceptedEvent(EventData):
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


class JobRunRejectedEvent(EventData):
    """`message_id` is the message's id on its queue; its body is in the dead-letter queue."""

    event_type: ClassVar[str] = "lithify.job_run.rejected.v1"
    severity: ClassVar[Severity] = Severity.ERROR
    message_id: str
    reasons: Reasons


class JobRunRepeatedEvent(EventData):
    """Another message had the same id and content, and started nothing. `status`: of the job run at that time;
    `answer`: its outcome, and what the sender can do."""

    event_type: ClassVar[str] = "lithify.job_run.repeated.v1"
    severity: ClassVar[Severity] = Severity.WARNING
    message_id: str
    status: str
    answer: str


class JobRunStartedEvent(EventData):
    event_type: ClassVar[str] = "lithify.job_run.started.v1"
    owner: str


class JobRunSucceededEvent(RowTotals, EventData):
    """Rows over all sessions. `nothing_to_do`: no stream had a delta above its watermark.

    Attributes:
        seconds, desired_sla, expected_sla: actual, desired and predicted time since its acceptance. The event's
            severity is "warning" if the actual time is more than the desired one
        paused_seconds: of the actual and the predicted time in a pause, which is no lateness"""

    event_type: ClassVar[str] = "lithify.job_run.succeeded.v1"
    severities: ClassVar[tuple[Severity, ...]] = (Severity.INFO, Severity.WARNING)
    nothing_to_do: bool
    sessions: int
    rounds: int
    seconds: float
    desired_sla: int | None = None
    expected_sla: float | None = None
    paused_seconds: float = 0.0

    @property
    def grade(self) -> Severity:
        late = self.desired_sla is not None and self.seconds - self.paused_seconds > self.desired_sla
        return Severity.WARNING if late else self.severity


class JobRunFailedEvent(EventData):
    event_type: ClassVar[str] = "lithify.job_run.failed.v1"
    severity: ClassVar[Severity] = Severity.ERROR
    failed_sessions: Reasons
    reasons: Reasons
    seconds: float
    desired_sla: int | None = None
    expected_sla: float | None = None
    paused_seconds: float = 0.0


class JobRunCancelledEvent(EventData):
    event_type: ClassVar[str] = "lithify.job_run.cancelled.v1"
    severity: ClassVar[Severity] = Severity.WARNING
    reason: str
    seconds: float


class JobRunPausedEvent(EventData):
    """No new session of it is started until it is resumed; those that run go on to their end. `scope`: what was paused,
    everything, a table of it, or the job run itself."""

    event_type: ClassVar[str] = "lithify.job_run.paused.v1"
    severity: ClassVar[Severity] = Severity.WARNING
    scope: str
    reason: str


class JobRunResumedEvent(EventData):
    event_type: ClassVar[str] = "lithify.job_run.resumed.v1"


class JobRunWaitsForMoneyEvent(EventData):
    """A session of it would cost more than is left of what a job run, or a day, may cost: it waits. Those that run go
    on. Published once per job run."""

    event_type: ClassVar[str] = "lithify.job_run.waits_for_money.v1"
    severity: ClassVar[Severity] = Severity.WARNING
    reason: str


class JobRunSetAsideEvent(EventData):
    """A dispatcher cannot read its log, which is damaged, or from a newer release. The dispatcher runs nothing of it,
    and nothing is lost: it is tried again later, and by every other dispatcher."""

    event_type: ClassVar[str] = "lithify.job_run.set_aside.v1"
    severity: ClassVar[Severity] = Severity.ERROR
    reasons: Reasons


class SessionPlannedEvent(SessionData):
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


class SessionLaunchedEvent(SessionData):
    """`cluster` identifies the Spark job for a person. `bundle`: as in `SessionPlannedEvent`."""

    event_type: ClassVar[str] = "lithify.session.launched.v1"
    attempt: int
    cluster: str
    bundle: str | None = None


class SessionStalledEvent(SessionData):
    event_type: ClassVar[str] = "lithify.session.stalled.v1"
    severity: ClassVar[Severity] = Severity.WARNING
    attempt: int
    quiet_seconds: float


class SessionRetriedEvent(SessionData):
    """`attempt` is the next one, `reasons` why the one before it failed. `alone`: that one ran in a bundle, and this
    one will have its own Spark job."""

    event_type: ClassVar[str] = "lithify.session.retried.v1"
    severity: ClassVar[Severity] = Severity.WARNING
    attempt: int
    reasons: Reasons
    alone: bool = False


OF_THE_JOB_RUN = (JobRunAccepted, JobRunClaimed, JobRunPaused, JobRunResumed, JobRunEnded)
"""Actions that publish nothing from the log of a shard: the job run's own log reports them for the whole."""


@dataclass(frozen=True)
class _Beside:
    """What an event says that its action does not.

    Attributes:
        partition: of the session, if the action is about one
        desired_sla: the job run's
        waited_seconds: from the acceptance of the job run to the action"""

    partition: PartitionValues
    desired_sla: int | None
    waited_seconds: float


EVENT_OF: Mapping[type[JobRunAction], type[EventData]] = {
    JobRunRejected: JobRunRejectedEvent,
    JobRunRepeated: JobRunRepeatedEvent,
    JobRunPaused: JobRunPausedEvent,
    JobRunResumed: JobRunResumedEvent,
    SessionPlanned: SessionPlannedEvent,
    SessionLaunched: SessionLaunchedEvent,
    SessionStalled: SessionStalledEvent,
    SessionRetried: SessionRetriedEvent,
}
"""The event of each action that is always published, with fields of the same names."""


def subject_of(job_run_id: str, state: JobRunState) -> Subject:
    """The subject of the events. A rejected job run has the id in its document, if there is one."""
    if state.rejected is not None:
        return Subject(state.rejected.requested_job_run_id or job_run_id, state.rejected.table)
    table_id = state.accepted.spec.source_table_id if state.accepted is not None else None
    return Subject(WorkId.parse(job_run_id).job_run_id, table_id)


def set_aside_event(work: WorkId, log_id: str, accepted: JobRunAccepted | None, reason: str, at_ms: int) -> Event:
    """The event for an unreadable log. Its id is the same for every sender and repetition."""
    subject = Subject(work.job_run_id, accepted.spec.source_table_id if accepted is not None else None)
    return entryless_event(subject, log_id, at_ms, "set_aside", JobRunSetAsideEvent(reasons=(reason,)))


def job_run_events(
    subject: Subject, log_id: str, state: JobRunState, accepted_at_ms: int
) -> Callable[[Entry[JobRunAction]], list[Event]]:
    """The builder for a job run's entries. `state`, any fold after its first, has partitions and the desired SLA."""
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
            partition = partitions[action.session_id] if isinstance(action, AboutSession) else {}
            data = _data_of(action, _Beside(partition, desired_sla, (entry.at_ms - accepted_at_ms) / 1000))
            if data is not None:
                events.append(entry_event(subject, log_id, entry, ordinal, data))
        return events

    return build


def _data_of(action: JobRunAction, beside: _Beside) -> EventData | None:
    projection = EVENT_OF.get(type(action))
    if projection is not None:
        return projection.from_facts(action, beside)
    match action:
        case JobRunAccepted():
            found, finds = len(action.sessions), action.pinned_until_ms is not None
            return JobRunAcceptedEvent.from_facts(action.spec, action, sessions=found, finds_sessions=finds)
        case JobRunWaitsForMoney():
            return None if action.again else JobRunWaitsForMoneyEvent.from_facts(action)
        case JobRunClaimed():
            return JobRunStartedEvent.from_facts(action) if action.epoch == 1 else None
        case JobRunEnded():
            return _job_run_ended(action, beside)
        case SessionEnded():
            return _session_ended(action, beside.partition)
        case _:
            return None


def _job_run_ended(action: JobRunEnded, beside: _Beside) -> EventData:
    outcome = action.outcome
    match outcome.status:
        case "succeeded":
            return JobRunSucceededEvent.from_facts(action, outcome, beside)
        case "failed":
            return JobRunFailedEvent.from_facts(action, outcome, beside)
        case "cancelled":
            return JobRunCancelledEvent(reason="; ".join(outcome.reasons), seconds=action.seconds)
        case _:
            assert_never(outcome.status)


def _session_ended(action: SessionEnded, partition: PartitionValues) -> EventData | None:
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
