"""The sessions of a job run in its log: their actions, and the fold of these for each session.

    PINNED -- planned --> PLANNED -- launching, launched --> LAUNCHED -- ended --> ENDED (see SessionEnd)
                                      ^                |
                                      +----------------+ stalled, retried, or launched anew after a takeover

All of it is written by the holder of the claim on the job run (`job_run_log.py`).
"""

from dataclasses import dataclass, field, replace
from typing import Literal, Self, assert_never

from pydantic import Field

from compactor.model.document import Document
from compactor.model.errors import ErrorKind
from compactor.planning.cluster_plan import ClusterPlan, ClusterUse
from compactor.planning.spec import Partition
from launcher.outcomes import SessionEnd
from launcher.retrying import FailureCounts
from launcher.sizing.money import PaidAttempt
from launcher.spark_job import ClusterReference, InFlight


class SessionPin(Document):
    """A requested session: one partition stream, and the positions of its logs when the job run was accepted."""

    session_id: str
    partition: Partition
    source_stream_version: int
    source_entry_number: int
    source_position: int | None
    destination_entry_number: int


class SessionPlanned(Document):
    """The plan of attempts from number `attempt` on. `changes`: differences from the previous plan, one sentence each.

    Attributes:
        cluster: launched for them; None: they run on an existing machine
        bundle: id of the bundle, if the attempt shares a Spark job with other sessions; None: it has its own
        predicted_seconds: `expected_sla` without its buffer; None: not recorded"""

    action: Literal["session_planned"] = "session_planned"
    epoch: int
    session_id: str
    attempt: int = 1
    hash_bucket_count: int
    max_rows_per_round: int
    task_memory_bytes: int
    tasks: int
    expected_sla: float
    arithmetic: tuple[str, ...]
    changes: tuple[str, ...] = ()
    cluster: ClusterPlan | None = None
    bundle: str | None = None
    predicted_seconds: float | None = None


class SessionLaunching(Document):
    """Takes the attempt's number. It is written before the launch, so that no two attempts share a number.

    Attributes:
        at_ms: by the holder's wall clock, for display only
        name, place: of the attempt on its cluster, to find it again
        bundle: as in `SessionPlanned`"""

    action: Literal["session_launching"] = "session_launching"
    epoch: int
    session_id: str
    attempt: int = Field(ge=1)
    at_ms: int
    name: str
    place: str
    bundle: str | None = None


class SessionLaunched(Document):
    """`cluster`: where it runs, for display only; `reference`: to attach to it."""

    action: Literal["session_launched"] = "session_launched"
    epoch: int
    session_id: str
    attempt: int = Field(ge=1)
    cluster: str
    reference: ClusterReference
    bundle: str | None = None


class SessionStalled(Document):
    """No progress for `quiet_seconds`: the attempt was stopped."""

    action: Literal["session_stalled"] = "session_stalled"
    epoch: int
    session_id: str
    attempt: int
    quiet_seconds: float


class SessionRetried(Document):
    """An attempt has failed and another will follow; `attempt` is the one to come.

    Attributes:
        failed_at_ms: by the observer's wall clock
        progressed: the failed attempt had committed a round
        alone: it failed in a bundle, and the next attempt has a Spark job of its own"""

    action: Literal["session_retried"] = "session_retried"
    epoch: int
    session_id: str
    attempt: int
    error_kind: ErrorKind
    reasons: tuple[str, ...]
    failed_at_ms: int
    progressed: bool = False
    alone: bool = False


class SessionEnded(Document):
    """`at_ms`: by the holder's wall clock, for display only; None: not recorded."""

    action: Literal["session_ended"] = "session_ended"
    epoch: int
    session_id: str
    end: SessionEnd
    at_ms: int | None = None


class LaunchCharged(Document):
    """What the nodes of a launch have run, by the word of the service of its cluster; written when its job has ended,
    and again by a dispatcher that takes over before its sessions are settled.

    Attributes:
        name: of the launch, as in `SessionLaunching`
        sessions: that it was launched for, which pay equal parts"""

    action: Literal["launch_charged"] = "launch_charged"
    epoch: int
    name: str
    sessions: int = Field(ge=1)
    use: ClusterUse


AboutSession = SessionPlanned | SessionLaunching | SessionLaunched | SessionStalled | SessionRetried | SessionEnded


@dataclass(frozen=True)
class SessionState:
    """
    Attributes:
        attempt: the last number taken for a launch, 0 before the first
        failure_counts: failures of the attempts, under all holders
        launched_epoch: of the last launch, while its end is unknown
        in_flight: the last attempt, until its end is recorded
        launched_at_ms, ended_at_ms: of the last attempt, and of the session, if recorded
        paid: attempts for which a cluster was launched, in order; one whose end nobody saw ends as the next is launched
        bundle: in which the last attempt was launched; None: it had a Spark job of its own
        alone: it has failed in a bundle, and is not bundled again
        waits_after: reasons why its last attempt failed, until the next one is launched"""

    pin: SessionPin
    plan: SessionPlanned | None = None
    attempt: int = 0
    failure_counts: FailureCounts = field(default_factory=FailureCounts)
    launched_epoch: int | None = None
    cluster: str | None = None
    end: SessionEnd | None = None
    launched_at_ms: int | None = None
    ended_at_ms: int | None = None
    in_flight: InFlight | None = None
    paid: tuple[PaidAttempt, ...] = ()
    bundle: str | None = None
    alone: bool = False
    waits_after: tuple[str, ...] = ()

    def charged(self, action: LaunchCharged) -> Self:
        """Unchanged if the launch was not for this session."""
        if all(each.launch != action.name for each in self.paid):
            return self
        part = action.use.part(action.sessions)
        paid = tuple(replace(each, use=part) if each.launch == action.name else each for each in self.paid)
        return replace(self, paid=paid)


def apply_to_session(session: SessionState, action: AboutSession) -> SessionState:
    match action:
        case SessionPlanned():
            return replace(session, plan=action)
        case SessionLaunching():
            vanished = session.launched_epoch not in (None, action.epoch)
            return replace(
                session,
                attempt=action.attempt,
                cluster=None,
                failure_counts=replace(session.failure_counts, unwatched=session.failure_counts.unwatched + vanished),
                launched_epoch=action.epoch,
                launched_at_ms=action.at_ms,
                in_flight=InFlight(action.attempt, action.name, action.place),
                paid=_ended_at(session, action.at_ms),
                bundle=action.bundle,
                waits_after=(),
            )
        case SessionLaunched():
            before = session.in_flight or InFlight(action.attempt)
            in_flight = replace(before, attempt=action.attempt, reference=action.reference)
            return replace(session, cluster=action.cluster, in_flight=in_flight, paid=_with_launch(session, in_flight))
        case SessionStalled():
            return session
        case SessionRetried():
            after = session.failure_counts.after(action.error_kind, action.failed_at_ms, progressed=action.progressed)
            return replace(
                session,
                failure_counts=after,
                launched_epoch=None,
                in_flight=None,
                paid=_ended_at(session, action.failed_at_ms),
                alone=session.alone or action.alone,
                waits_after=action.reasons,
            )
        case SessionEnded():
            paid = _ended_at(session, action.at_ms)
            return replace(session, end=action.end, ended_at_ms=action.at_ms, in_flight=None, paid=paid)
        case _:
            assert_never(action)


def _with_launch(session: SessionState, launched: InFlight) -> tuple[PaidAttempt, ...]:
    """Only now: no node has run for a launch that was refused."""
    cluster = session.plan.cluster if session.plan is not None else None
    is_known = any(each.launch == launched.name for each in session.paid)
    if cluster is None or launched.name is None or session.launched_at_ms is None or is_known:
        return session.paid
    launch = PaidAttempt(launched.name, cluster.rates, cluster.start_seconds, session.launched_at_ms)
    return (*session.paid, launch)


def _ended_at(session: SessionState, at_ms: int | None) -> tuple[PaidAttempt, ...]:
    """The last one ends, if its end is not known."""
    return (*session.paid[:-1], session.paid[-1].ended(at_ms)) if session.paid else ()
