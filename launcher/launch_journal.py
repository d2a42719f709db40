"""What one Spark job runs, and who records it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from compactor.model.errors import ErrorKind
from compactor.planning.cluster_plan import ClusterPlan, ClusterUse
from compactor.planning.spec import SessionPlan
from compactor.sessions.session_log import Heartbeat, SessionLog
from launcher.outcomes import SessionEnd
from launcher.retrying import FailureCounts
from launcher.spark_job import ClusterReference


@dataclass(frozen=True)
class Member:
    """An attempt at a session. `failure_counts`: of its earlier attempts."""

    attempt: int
    plan: SessionPlan
    failure_counts: FailureCounts = field(default_factory=FailureCounts)

    @property
    def session_id(self) -> str:
        return self.plan.spec.session_id


@dataclass(frozen=True)
class Launch:
    """What one Spark job runs.

    Attributes:
        name: of the job on its cluster
        plan_key: of the plan that is the job's argument
        members: by their position in that plan; members of a bundle that have ended before are left out
        size: the number of members in that plan
        bundle_id: None: a session alone"""

    name: str
    plan_key: str
    members: Mapping[int, Member]
    size: int = 1
    bundle_id: str | None = None

    @property
    def any_plan(self) -> SessionPlan:
        return next(iter(self.members.values())).plan

    def subject(self, attempt: int) -> str:
        """The subject of a sentence about its failure."""
        return f"attempt {attempt}" if self.bundle_id is None else f"bundle {self.bundle_id}"


@dataclass(frozen=True)
class AttemptFailed:
    """An attempt that ended without success.

    Attributes:
        progressed: it committed at least one round"""

    error_kind: ErrorKind
    reasons: tuple[str, ...]
    progressed: bool = False


@dataclass(frozen=True)
class Retried:
    """A session whose attempt failed and is followed by another.

    Attributes:
        attempt: the next one
        alone: in a Spark job of its own
        was_launched: False: it failed before its number was taken"""

    session_id: str
    attempt: int
    failed: AttemptFailed
    alone: bool
    was_launched: bool


class LaunchJournal(Protocol):
    """Records the course of sessions of one job run: of all that a launch has together, in one entry. Every method that
    writes raises `Fenced` once another dispatcher has the job run."""

    def wait_seconds(self, cluster: ClusterPlan | None) -> float | None:
        """After which it may be asked again whether there may be a launch on this cluster; None: there may be now."""

    def planned(self, launch: Launch) -> None:
        """The plan waits for its launch."""

    def launching(self, launch: Launch, place: str) -> None:
        """Before the launch: the numbers of the attempts are used once, even if their dispatcher dies during the
        launch. With their plans, in the same entry."""

    def launched(self, launch: Launch, cluster: str, reference: ClusterReference) -> None: ...

    def is_in_flight(self, launch: Launch) -> bool:
        """Whether a dispatcher watches a member of it, or will. Does not raise `Fenced`."""

    def attached(self, launch: Launch, cluster: str) -> None:
        """This dispatcher watches what another one launched."""

    def progressed(self, members: Collection[Member], heartbeat: Heartbeat | None = None) -> None:
        """The launch makes progress; these members have not ended. `heartbeat`: a new one, of a session alone."""

    def session_read(self, member: Member, log: SessionLog) -> None:
        """There are new entries in the session log, as far as `log` was read."""

    def stalled(self, launch: Launch, members: Collection[Member], quiet_seconds: float) -> None:
        """These members made no progress, and will be stopped."""

    def charged(self, launch: Launch, use: ClusterUse) -> None:
        """What the nodes of the launch have run, until its job ended."""

    def settled(self, ends: Mapping[str, SessionEnd], retried: Sequence[Retried], at_ms: int) -> None:
        """Sessions that have ended, by their ids, and attempts that failed and are followed by others, at `at_ms`."""

    def attempts_ended(self, session_ids: Collection[str]) -> None:
        """No attempt at these sessions runs, and their logs were read to the end."""
