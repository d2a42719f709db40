"""The job-run log: the course of one instruction document, from its acceptance to its end. Actions, fold.

                 rejected
    (nothing) ------------> REJECTED -- dead-lettered
        |
        | accepted                claimed
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
| dead-lettered             | the dispatcher that put the copy on the dead-letter queue   |
| repeated                  | the dispatcher that received the document a second time     |
| claimed                   | any dispatcher, while no other holds the job run            |
| cancel requested          | any client, until the job run has ended; changes no state   |
| paused, resumed           | any dispatcher that would start a session of it; likewise   |
| waits for money           | the dispatcher that would launch a session of it; likewise  |
| sessions found            | the holder of the claim, of a job run that is pinned by time |
| sharded                   | the holder of the claim, of one over many streams (`work_id.py`) |
| shard ended               | any dispatcher, from the log of a shard that has ended; changes no status |
| all others                | the holder of the claim, with its epoch in the action       |

Within RUNNING, each session has its own state, always driven by the holder (`sessions.py`).

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

from compactor.log.durable_log import LogFormat
from compactor.log.small_states import small_checkpoint
from compactor.model.counts import RowTotals
from compactor.model.document import Document
from compactor.model.errors import Corrupt
from compactor.planning.spec import JobRunSpec, Partition
from dispatcher.records.sessions import (
    AboutSession,
    LaunchCharged,
    SessionEnded,
    SessionLaunched,
    SessionLaunching,
    SessionPin,
    SessionPlanned,
    SessionRetried,
    SessionStalled,
    SessionState,
    apply_to_session,
)
from dispatcher.records.work_id import ShardNumber, WorkId

# ------------------------------------------------------------------------------------------------------ actions


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
        """Whether a dispatcher has work left."""
        return self in (JobRunStatus.WAITING, JobRunStatus.RUNNING)


class Waiter(Document):
    """A workflow that waits for the job run. Its task token, a secret, came with the message and is stored elsewhere.

    Attributes:
        heartbeat_seconds: after which the workflow gives up without a heartbeat; None: it needs none"""

    heartbeat_seconds: int | None = None


class Shard(Document):
    """The part of a job run that a log is of (`dispatcher/records/work_id.py`). `accepted_at_ms`: the job run's."""

    number: int = Field(ge=0)
    count: int = Field(ge=1)
    accepted_at_ms: int


class JobRunAccepted(Document):
    """The first entry of a job run. From now on the message is not needed.

    Attributes:
        predecessor: the job run that this one runs again; its message is the predecessor's then
        waiter: the workflow that waits, if the message had a task token
        pinned_until_ms: it is pinned by time, and its sessions are found as it reaches them (`SessionsFound`): they
            read what was appended until then, by the writers' clocks. None: `sessions` are all that it has
        shard: None: the log is of the whole job run"""

    action: Literal["job_run_accepted"] = "job_run_accepted"
    spec: JobRunSpec
    content_digest: str
    message_id: str
    sessions: tuple[SessionPin, ...]
    predecessor: str | None = None
    waiter: Waiter | None = None
    pinned_until_ms: int | None = None
    shard: Shard | None = None

    @property
    def work(self) -> WorkId:
        """Names its log, marker, claim and leases."""
        if self.shard is None:
            return WorkId(self.spec.job_run_id)
        return WorkId(self.spec.job_run_id, ShardNumber(self.shard.number, self.shard.count))

    def accepted_at_ms(self, entry_at_ms: int) -> int:
        """When the job run was accepted; `entry_at_ms`: the time of this entry."""
        return entry_at_ms if self.shard is None else self.shard.accepted_at_ms

    @property
    def partitions(self) -> tuple[Partition, ...] | None:
        """The partitions of its sessions; None: they are not known yet."""
        return None if self.pinned_until_ms is not None else tuple(pin.partition for pin in self.sessions)


class JobRunRejected(Document):
    """The only entry about a message that can never work. `requested_job_run_id`: the id in its document, if any."""

    action: Literal["job_run_rejected"] = "job_run_rejected"
    message_id: str
    requested_job_run_id: str | None
    table: str | None
    reasons: tuple[str, ...]
    waiter: Waiter | None = None


class MessageDeadLettered(Document):
    """A copy of the rejected message is on the dead-letter queue; no second copy is sent."""

    action: Literal["message_dead_lettered"] = "message_dead_lettered"


class JobRunRepeated(Document):
    """Another message with the same request. It starts nothing and changes no state; an event informs its sender."""

    action: Literal["job_run_repeated"] = "job_run_repeated"
    message_id: str
    status: JobRunStatus
    answer: str
    waiter: Waiter | None = None


class JobRunClaimed(Document):
    """The owner holds the job run until it is gone (`liveness.py`). The fields with a default have no effect."""

    action: Literal["job_run_claimed"] = "job_run_claimed"
    owner: str
    epoch: int = Field(ge=1)
    expires_at_ms: int | None = None
    lasts_seconds: float | None = None


class JobRunReleased(Document):
    """The holder stops, the work does not: the next dispatcher continues.

    Attributes:
        left_running: sessions whose Spark job was left running, to be attached; all others do not run"""

    action: Literal["job_run_released"] = "job_run_released"
    epoch: int
    left_running: tuple[str, ...] = ()


class CancelRequested(Document):
    action: Literal["cancel_requested"] = "cancel_requested"
    reason: str


class JobRunPaused(Document):
    """A dispatcher does not start a session of it, because `scope` is paused (`dispatcher/records/pauses.py`).

    This entry is for display; the pause itself decides.

    Attributes:
        at_ms: when the dispatcher found it paused"""

    action: Literal["job_run_paused"] = "job_run_paused"
    scope: str
    reason: str
    at_ms: int


class JobRunResumed(Document):
    """`at_ms`: when the dispatcher found that the pause had ended."""

    action: Literal["job_run_resumed"] = "job_run_resumed"
    at_ms: int


class JobRunWaitsForMoney(Document):
    """A session of it is not launched now, because a limit on money would be exceeded. It changes no status.

    Attributes:
        again: it has waited before: no event is published"""

    action: Literal["job_run_waits_for_money"] = "job_run_waits_for_money"
    reason: str
    again: bool = False


class SessionsFound(Document):
    """Further sessions of a job run that is pinned by time. `is_last`: it has no others."""

    action: Literal["sessions_found"] = "sessions_found"
    epoch: int
    sessions: tuple[SessionPin, ...]
    is_last: bool = False


class JobRunSharded(Document):
    """Its streams are divided among `count` shards, of which the first `opened` have logs or get them now."""

    action: Literal["job_run_sharded"] = "job_run_sharded"
    epoch: int
    count: int = Field(ge=1)
    opened: int = Field(ge=1)


class JobRunEnded(Document):
    """The complete conclusion: this entry alone has the outcome of the job run.

    Attributes:
        seconds: from its acceptance
        expected_sla: the predicted seconds; None: nothing was planned, or it was not recorded
        paused_seconds: so many of both it was paused"""

    action: Literal["job_run_ended"] = "job_run_ended"
    epoch: int
    outcome: JobRunOutcome
    seconds: float
    expected_sla: float | None = None
    paused_seconds: float = 0.0


class JobRunOutcome(RowTotals):
    """Rows over all sessions that succeeded. `reasons`: of a cancel, and of each failure."""

    status: Literal["succeeded", "failed", "cancelled"]
    nothing_to_do: bool
    sessions: int
    rounds: int
    failed_sessions: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()


class ShardEnded(Document):
    """The end of a shard, as its own log has it; the lists of the outcome are cut.

    Attributes:
        expected_usd, usd: of the clusters of its sessions; None: it launched none"""

    action: Literal["shard_ended"] = "shard_ended"
    number: int = Field(ge=0)
    outcome: JobRunOutcome
    expected_sla: float | None = None
    expected_usd: float | None = None
    usd: float | None = None


JobRunEnded.model_rebuild()

JobRunAction = Annotated[
    JobRunAccepted
    | JobRunRejected
    | MessageDeadLettered
    | JobRunRepeated
    | JobRunClaimed
    | JobRunReleased
    | CancelRequested
    | JobRunPaused
    | JobRunResumed
    | JobRunWaitsForMoney
    | SessionsFound
    | JobRunSharded
    | ShardEnded
    | SessionPlanned
    | SessionLaunching
    | SessionLaunched
    | SessionStalled
    | SessionRetried
    | SessionEnded
    | LaunchCharged
    | JobRunEnded,
    Field(discriminator="action"),
]
HolderAction = JobRunReleased | SessionsFound | JobRunSharded | AboutSession | LaunchCharged | JobRunEnded


# --------------------------------------------------------------------------------------------------------- fold


@dataclass(frozen=True)
class ClaimState:
    owner: str
    epoch: int


@dataclass(frozen=True)
class ShardsState:
    """The shards of a job run. Sums and lists are over those that have ended.

    Attributes:
        opened: so many of the first have logs, or get them
        ended: their numbers"""

    count: int
    opened: int
    outcome: JobRunOutcome
    ended: frozenset[int] = frozenset()
    expected_sla: float | None = None
    expected_usd: float | None = None
    usd: float | None = None

    @property
    def open(self) -> tuple[int, ...]:
        return tuple(number for number in range(self.opened) if number not in self.ended)

    def open_work(self, job_run_id: str) -> list[WorkId]:
        return [WorkId(job_run_id, ShardNumber(number, self.count)) for number in self.open]


@dataclass(frozen=True)
class JobRunState:
    """The fold of a job-run log.

    Attributes:
        epoch: of the last claim, held or not
        repeated_by: message ids
        waiters: workflows that wait, answered ones too, by the id of the message that brought the token
        paused_ms: in pauses that have ended
        waits_for_money: the reason, until the next launch
        has_lacked_money: it has waited for money before
        has_found_all: a job run that is pinned by time has no further sessions
        shards: its sessions are those of its shards; None: it has sessions of its own"""

    accepted: JobRunAccepted | None = None
    rejected: JobRunRejected | None = None
    dead_lettered: bool = False
    repeated_by: frozenset[str] = frozenset()
    waiters: Mapping[str, Waiter] = field(default_factory=lambda: MappingProxyType({}))
    claim: ClaimState | None = None
    epoch: int = 0
    cancel: CancelRequested | None = None
    paused: JobRunPaused | None = None
    paused_ms: int = 0
    waits_for_money: JobRunWaitsForMoney | None = None
    has_lacked_money: bool = False
    sessions: Mapping[str, SessionState] = field(default_factory=lambda: MappingProxyType({}))
    ended: JobRunEnded | None = None
    has_found_all: bool = False
    shards: ShardsState | None = None

    @property
    def is_finding(self) -> bool:
        """Whether it may have sessions that are not found yet."""
        is_pinned_by_time = self.accepted is not None and self.accepted.pinned_until_ms is not None
        return is_pinned_by_time and not self.has_found_all and self.shards is None

    @property
    def is_for_shards(self) -> bool:
        """Whether it is divided into shards, or will be: one with sessions of its own is not."""
        is_whole = self.accepted is not None and self.accepted.shard is None
        return is_whole and (self.shards is not None or (self.is_finding and not self.sessions))

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
    """The state after one more action. Raises `Corrupt` if the action cannot follow: the log is damaged."""
    match action:
        case JobRunAccepted():
            _require(state.status is JobRunStatus.ABSENT, "a job run is accepted in a log that has begun")
            sessions = {pin.session_id: SessionState(pin) for pin in action.sessions}
            return _with_waiter(replace(state, accepted=action, sessions=MappingProxyType(sessions)), action)
        case JobRunRejected():
            _require(state.status is JobRunStatus.ABSENT, "a job run is rejected in a log that has begun")
            return _with_waiter(replace(state, rejected=action), action)
        case MessageDeadLettered():
            _require(state.rejected is not None, "a message is dead-lettered that was not rejected")
            return replace(state, dead_lettered=True)
        case JobRunRepeated():
            _require(state.accepted is not None, "a job run is repeated that was not accepted")
            return _with_waiter(replace(state, repeated_by=state.repeated_by | {action.message_id}), action)
        case JobRunClaimed():
            _require(state.status.is_open, f"a job run is claimed that is {state.status}")
            _require(action.epoch == state.epoch + 1, f"epoch {action.epoch} follows epoch {state.epoch}")
            claim = ClaimState(action.owner, action.epoch)
            return replace(state, claim=claim, epoch=action.epoch)
        case CancelRequested() | JobRunPaused() | JobRunResumed() | JobRunWaitsForMoney():
            _require(state.status.is_open, f"a job run {_WOULD_BE[action.action]} that is {state.status}")
            return _apply_unclaimed(state, action)
        case _:
            return _with_ended_shard(state, action) if isinstance(action, ShardEnded) else _apply_claimed(state, action)


_WOULD_BE = {
    "cancel_requested": "is to be cancelled",
    "job_run_paused": "is paused",
    "job_run_resumed": "is resumed",
    "job_run_waits_for_money": "waits for money",
}


def _apply_unclaimed(
    state: JobRunState, action: CancelRequested | JobRunPaused | JobRunResumed | JobRunWaitsForMoney
) -> JobRunState:
    match action:
        case CancelRequested():
            return replace(state, cancel=state.cancel or action)
        case JobRunPaused():
            return replace(state, paused=action)
        case JobRunResumed():
            return replace(state, paused=None, paused_ms=state.paused_ms + pause_ms(state.paused, action.at_ms))
        case JobRunWaitsForMoney():
            return replace(state, waits_for_money=action, has_lacked_money=True)
        case _:
            assert_never(action)


def pause_ms(paused: JobRunPaused | None, until_ms: int) -> int:
    return 0 if paused is None else max(until_ms - paused.at_ms, 0)


def _with_waiter(state: JobRunState, action: JobRunAccepted | JobRunRejected | JobRunRepeated) -> JobRunState:
    if action.waiter is None:
        return state
    return replace(state, waiters=MappingProxyType({**state.waiters, action.message_id: action.waiter}))


def _apply_claimed(state: JobRunState, action: HolderAction) -> JobRunState:
    claim = state.claim
    if claim is None or claim.epoch != action.epoch or state.ended is not None:
        raise Corrupt(f"{action.action} of epoch {action.epoch} stands where epoch {state.epoch} is {state.status}")
    match action:
        case JobRunReleased():
            # Its holder was stopped: that is no failure of its sessions.
            left = {
                key: replace(
                    session,
                    launched_epoch=None,
                    in_flight=session.in_flight if key in action.left_running else None,
                )
                for key, session in state.sessions.items()
            }
            return replace(state, claim=None, sessions=MappingProxyType(left))
        case JobRunEnded():
            return replace(state, claim=None, ended=action)
        case SessionsFound():
            return _with_sessions(state, action)
        case JobRunSharded():
            return _with_shards(state, action)
        case LaunchCharged():
            charged = {key: session.charged(action) for key, session in state.sessions.items()}
            return replace(state, sessions=MappingProxyType(charged))
        case _:
            session = state.sessions.get(action.session_id)
            if session is None or session.end is not None:
                raise Corrupt(f"{action.action} is about session {action.session_id!r}, which is not open")
            sessions = {**state.sessions, action.session_id: apply_to_session(session, action)}
            waits_for_money = None if isinstance(action, SessionLaunching) else state.waits_for_money
            return replace(state, sessions=MappingProxyType(sessions), waits_for_money=waits_for_money)


def _with_sessions(state: JobRunState, action: SessionsFound) -> JobRunState:
    found = {pin.session_id: SessionState(pin) for pin in action.sessions}
    _require(state.is_finding, "sessions are found of a job run that has all of its sessions")
    _require(state.sessions.keys().isdisjoint(found), "a session is found that was found before")
    sessions = MappingProxyType({**state.sessions, **found})
    return replace(state, sessions=sessions, has_found_all=action.is_last)


def _with_shards(state: JobRunState, action: JobRunSharded) -> JobRunState:
    _require(state.is_for_shards, "a job run is sharded that has sessions of its own")
    _require(action.opened <= action.count, f"{action.opened} of {action.count} shards are opened")
    before = state.shards or ShardsState(action.count, 0, NO_OUTCOME)
    _require(
        before.count == action.count and before.opened <= action.opened, "shards are divided otherwise than before"
    )
    return replace(state, shards=replace(before, opened=action.opened))


def _with_ended_shard(state: JobRunState, action: ShardEnded) -> JobRunState:
    """Two dispatchers may record one end, and it changes nothing after the end of the job run."""
    shards = state.shards
    if shards is None or action.number >= shards.opened:
        raise Corrupt(f"shard {action.number} ends, which was not opened")
    if action.number in shards.ended or state.ended is not None:
        return state
    ended = replace(
        shards,
        ended=shards.ended | {action.number},
        outcome=merged(shards.outcome, action.outcome) if shards.ended else action.outcome,
        expected_sla=max(
            (each for each in (shards.expected_sla, action.expected_sla) if each is not None), default=None
        ),
        expected_usd=_sum(shards.expected_usd, action.expected_usd),
        usd=_sum(shards.usd, action.usd),
    )
    return replace(state, shards=ended)


def _sum(one: float | None, other: float | None) -> float | None:
    known = [each for each in (one, other) if each is not None]
    return sum(known) if known else None


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Corrupt(otherwise)


JOB_RUN_LOG: LogFormat[JobRunState, JobRunAction] = LogFormat(
    name="job_run",
    action_type=TypeAdapter(JobRunAction),
    initial=JobRunState(),
    apply=apply,
    checkpoint=small_checkpoint(JobRunState),
)


NO_OUTCOME = JobRunOutcome(
    status="succeeded",
    nothing_to_do=False,
    sessions=0,
    rounds=0,
    rows_in=0,
    rows_out=0,
    rows_deduplicated=0,
    rows_deleted=0,
)

NAMES_MAX = 1_000
"""Failed sessions, and reasons, of all shards of a job run that are kept: its log and its state stay small."""


def merged(one: JobRunOutcome, other: JobRunOutcome) -> JobRunOutcome:
    """The outcome of two parts of a job run."""
    statuses = (one.status, other.status)
    return JobRunOutcome(
        status="cancelled" if "cancelled" in statuses else "failed" if "failed" in statuses else "succeeded",
        nothing_to_do=one.nothing_to_do and other.nothing_to_do,
        sessions=one.sessions + other.sessions,
        rounds=one.rounds + other.rounds,
        rows_in=one.rows_in + other.rows_in,
        rows_out=one.rows_out + other.rows_out,
        rows_deduplicated=one.rows_deduplicated + other.rows_deduplicated,
        rows_deleted=one.rows_deleted + other.rows_deleted,
        failed_sessions=(*one.failed_sessions, *other.failed_sessions)[:NAMES_MAX],
        reasons=tuple(dict.fromkeys((*one.reasons, *other.reasons)))[:NAMES_MAX],
    )
