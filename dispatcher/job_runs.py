"""The job-run log: what became of one instruction document, from its acceptance to its end. Actions, fold, outcome.

                 rejected
    (nothing) ------------> REJECTED
        |
        | accepted                claimed, renewed
        v                          +---------+
     WAITING ------- claimed ----->| RUNNING |<--+ claimed by another, once the claim has run out
        ^                          +---------+   |
        +--------- released -----------|  +------+
                                       | ended
                                       v
                       SUCCEEDED | FAILED | CANCELLED

| arrow                     | written by                                                  |
|---------------------------|-------------------------------------------------------------|
| accepted, rejected        | the dispatcher that received the message, as first entry    |
| claimed                   | any dispatcher, while nobody holds the job run              |
| cancel requested          | anybody, until the job run has ended; it changes no state   |
| all others                | the holder of the claim, with its epoch in the action       |

Within RUNNING, each session goes its own way, always driven by the holder:

    PINNED -- planned --> PLANNED -- launching, launched --> LAUNCHED -- ended --> ENDED (see SessionEnd)
                                      ^                |
                                      +----------------+ stalled, retried, or launched anew by who took the job run over

The fold refuses (`Corrupt`) an action of an epoch that is not the current one, so a dispatcher that was taken over
cannot have written anything: `claims.py` sees to it before every append.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Literal, assert_never

from pydantic import Field, TypeAdapter

from compactor.catalog.log import LogFormat
from compactor.document import Document
from compactor.errors import Corrupt
from compactor.names import render_partition
from compactor.spec import JobRunSpec, Partition, SessionSpec
from launcher.outcomes import Cancelled, Failed, NothingToDo, SessionEnd, Succeeded


class SessionPin(Document):
    """A session as it was asked for: one partition stream, and where the logs stood when the job run was accepted."""

    session_id: str
    partition: Partition
    source_stream_version: int
    source_entry_number: int
    source_position: int | None
    destination_entry_number: int


def session_spec(job_run: JobRunSpec, pin: SessionPin) -> SessionSpec:
    return SessionSpec(
        job_run=job_run,
        session_id=pin.session_id,
        partition=pin.partition,
        source_stream_version=pin.source_stream_version,
        source_entry_number=pin.source_entry_number,
        source_position=pin.source_position,
        destination_entry_number=pin.destination_entry_number,
    )


# ------------------------------------------------------------------------------------------------------ actions


class JobRunAccepted(Document):
    """The first entry of a job run. From here on the message is not needed any more."""

    action: Literal["job_run_accepted"] = "job_run_accepted"
    spec: JobRunSpec
    content_digest: str
    message_id: str
    sessions: tuple[SessionPin, ...]


class JobRunRejected(Document):
    """The first and only entry about a message that can never work. `requested_job_run_id`: as far as it said one."""

    action: Literal["job_run_rejected"] = "job_run_rejected"
    message_id: str
    requested_job_run_id: str | None
    table: str | None
    reasons: tuple[str, ...]


class JobRunClaimed(Document):
    action: Literal["job_run_claimed"] = "job_run_claimed"
    owner: str
    epoch: int = Field(ge=1)
    expires_at_ms: int


class ClaimRenewed(Document):
    action: Literal["claim_renewed"] = "claim_renewed"
    epoch: int
    expires_at_ms: int


class JobRunReleased(Document):
    """The holder stops, the work does not: whoever comes next goes on."""

    action: Literal["job_run_released"] = "job_run_released"
    epoch: int


class CancelRequested(Document):
    action: Literal["cancel_requested"] = "cancel_requested"
    reason: str


class SessionPlanned(Document):
    action: Literal["session_planned"] = "session_planned"
    epoch: int
    session_id: str
    hash_bucket_count: int
    max_rows_per_round: int
    task_memory_bytes: int
    tasks: int
    expected_sla: float
    arithmetic: tuple[str, ...]


class SessionLaunching(Document):
    """The attempt's number is taken: written before the launch, so that no two attempts ever share one."""

    action: Literal["session_launching"] = "session_launching"
    epoch: int
    session_id: str
    attempt: int = Field(ge=1)


class SessionLaunched(Document):
    action: Literal["session_launched"] = "session_launched"
    epoch: int
    session_id: str
    attempt: int = Field(ge=1)
    cluster: str


class SessionStalled(Document):
    """No progress for `quiet_seconds`: the attempt was stopped."""

    action: Literal["session_stalled"] = "session_stalled"
    epoch: int
    session_id: str
    attempt: int
    quiet_seconds: float


class SessionRetried(Document):
    """An attempt has failed and another will follow; `attempt` is the one to come."""

    action: Literal["session_retried"] = "session_retried"
    epoch: int
    session_id: str
    attempt: int
    error_kind: str
    reasons: tuple[str, ...]


class SessionEnded(Document):
    action: Literal["session_ended"] = "session_ended"
    epoch: int
    session_id: str
    end: SessionEnd


class JobRunEnded(Document):
    """The conclusion, whole: whoever reads only this entry knows what came of the job run."""

    action: Literal["job_run_ended"] = "job_run_ended"
    epoch: int
    outcome: JobRunOutcome
    seconds: float


class JobRunOutcome(Document):
    """Rows over all sessions that succeeded, as in `RowCounts`. `reasons`: why cancelled, and what failed where."""

    status: Literal["succeeded", "failed", "cancelled"]
    nothing_to_do: bool
    sessions: int
    rounds: int
    rows_in: int
    rows_out: int
    rows_deduplicated: int
    rows_deleted: int
    failed_sessions: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()


JobRunEnded.model_rebuild()

JobRunAction = Annotated[
    JobRunAccepted
    | JobRunRejected
    | JobRunClaimed
    | ClaimRenewed
    | JobRunReleased
    | CancelRequested
    | SessionPlanned
    | SessionLaunching
    | SessionLaunched
    | SessionStalled
    | SessionRetried
    | SessionEnded
    | JobRunEnded,
    Field(discriminator="action"),
]
AboutSession = SessionPlanned | SessionLaunching | SessionLaunched | SessionStalled | SessionRetried | SessionEnded
HolderAction = ClaimRenewed | JobRunReleased | AboutSession | JobRunEnded


# --------------------------------------------------------------------------------------------------------- fold


class JobRunStatus(StrEnum):
    ABSENT = "absent"
    REJECTED = "rejected"
    WAITING = "waiting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_open(self) -> bool:
        """Whether there is work left for a dispatcher."""
        return self in (JobRunStatus.WAITING, JobRunStatus.RUNNING)


@dataclass(frozen=True)
class ClaimState:
    owner: str
    epoch: int
    expires_at_ms: int


@dataclass(frozen=True)
class SessionState:
    """attempt   the last number taken for a launch, 0 before the first
    failures  attempts that failed, whoever held the job run then
    """

    pin: SessionPin
    plan: SessionPlanned | None = None
    attempt: int = 0
    failures: int = 0
    cluster: str | None = None
    end: SessionEnd | None = None


@dataclass(frozen=True)
class JobRunState:
    """The fold of a job-run log. `epoch` is that of the last claim, held or not."""

    accepted: JobRunAccepted | None = None
    rejected: JobRunRejected | None = None
    claim: ClaimState | None = None
    epoch: int = 0
    cancel: CancelRequested | None = None
    sessions: Mapping[str, SessionState] = field(default_factory=lambda: MappingProxyType({}))
    ended: JobRunEnded | None = None

    @property
    def status(self) -> JobRunStatus:
        if self.ended is not None:
            return JobRunStatus(self.ended.outcome.status)
        if self.rejected is not None:
            return JobRunStatus.REJECTED
        if self.accepted is None:
            return JobRunStatus.ABSENT
        return JobRunStatus.RUNNING if self.claim is not None else JobRunStatus.WAITING

    def open_sessions(self) -> tuple[SessionState, ...]:
        return tuple(session for session in self.sessions.values() if session.end is None)


def apply(state: JobRunState, action: JobRunAction) -> JobRunState:
    """The state after one more action. Raises `Corrupt` where the action cannot follow: the log was not ours."""
    match action:
        case JobRunAccepted():
            _require(state.status is JobRunStatus.ABSENT, "a job run is accepted in a log that has begun")
            sessions = {pin.session_id: SessionState(pin) for pin in action.sessions}
            return replace(state, accepted=action, sessions=MappingProxyType(sessions))
        case JobRunRejected():
            _require(state.status is JobRunStatus.ABSENT, "a job run is rejected in a log that has begun")
            return replace(state, rejected=action)
        case JobRunClaimed():
            _require(state.status.is_open, f"a job run is claimed that is {state.status}")
            _require(action.epoch == state.epoch + 1, f"epoch {action.epoch} follows epoch {state.epoch}")
            claim = ClaimState(action.owner, action.epoch, action.expires_at_ms)
            return replace(state, claim=claim, epoch=action.epoch)
        case CancelRequested():
            _require(state.status.is_open, f"a job run is to be cancelled that is {state.status}")
            return replace(state, cancel=state.cancel or action)
        case _:
            return _apply_of_holder(state, action)


def _apply_of_holder(state: JobRunState, action: HolderAction) -> JobRunState:
    claim = state.claim
    if claim is None or claim.epoch != action.epoch or state.ended is not None:
        raise Corrupt(f"{action.action} of epoch {action.epoch} stands where epoch {state.epoch} is {state.status}")
    match action:
        case ClaimRenewed():
            return replace(state, claim=replace(claim, expires_at_ms=action.expires_at_ms))
        case JobRunReleased():
            return replace(state, claim=None)
        case JobRunEnded():
            return replace(state, claim=None, ended=action)
        case _:
            session = state.sessions.get(action.session_id)
            if session is None or session.end is not None:
                raise Corrupt(f"{action.action} is about session {action.session_id!r}, which is not open")
            sessions = {**state.sessions, action.session_id: _apply_to_session(session, action)}
            return replace(state, sessions=MappingProxyType(sessions))


def _apply_to_session(session: SessionState, action: AboutSession) -> SessionState:
    match action:
        case SessionPlanned():
            return replace(session, plan=action)
        case SessionLaunching():
            return replace(session, attempt=action.attempt, cluster=None)
        case SessionLaunched():
            return replace(session, cluster=action.cluster)
        case SessionStalled():
            return session
        case SessionRetried():
            return replace(session, failures=session.failures + 1)
        case SessionEnded():
            return replace(session, end=action.end)
        case _:
            assert_never(action)


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Corrupt(otherwise)


JOB_RUN_LOG: LogFormat[JobRunState, JobRunAction] = LogFormat(
    name="job_run", action_type=TypeAdapter(JobRunAction), initial=JobRunState(), apply=apply
)


# ------------------------------------------------------------------------------------------------------ outcome


def conclude(state: JobRunState) -> JobRunOutcome | None:
    """What came of the job run; None while a session is open. Pure: the same sessions, the same outcome."""
    ends = {session.pin.session_id: session.end for session in state.sessions.values()}
    if any(end is None for end in ends.values()):
        return None
    results = [end.result for end in ends.values() if isinstance(end, Succeeded)]
    failed = {session_id: end for session_id, end in ends.items() if isinstance(end, Failed)}
    cancelled = any(isinstance(end, Cancelled) for end in ends.values())
    why_cancelled = (state.cancel.reason,) if cancelled and state.cancel is not None else ()
    return JobRunOutcome(
        status="cancelled" if cancelled else "failed" if failed else "succeeded",
        nothing_to_do=all(isinstance(end, NothingToDo) for end in ends.values()),
        sessions=len(results),
        rounds=sum(result.rounds for result in results),
        rows_in=sum(result.rows_in for result in results),
        rows_out=sum(result.rows_out for result in results),
        rows_deduplicated=sum(result.rows_deduplicated for result in results),
        rows_deleted=sum(result.rows_deleted for result in results),
        failed_sessions=tuple(failed),
        reasons=why_cancelled
        + tuple(
            f"{render_partition(state.sessions[session_id].pin.partition)}: {reason}"
            for session_id, end in failed.items()
            for reason in end.reasons
        ),
    )
