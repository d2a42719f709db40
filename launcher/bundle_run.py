"""One bundle, from its launch until each of its members is settled and nothing of it runs.

Only the bundle's heartbeat is watched. It names the members that have ended; only their session logs are read, and they
are settled together, in one entry of the job-run log.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import structlog

from compactor.log.durable_log import DurableLog
from compactor.model.clock import Clock, chance
from compactor.model.errors import AnotherTry, Corrupt, ErrorKind, Fenced, LithifyError, Outdated, Unavailable
from compactor.planning.bundle_plan import BundleMember, BundlePlan
from compactor.planning.cluster_plan import ClusterPlan
from compactor.planning.session_streams import Commit
from compactor.planning.spec import SessionSpec
from compactor.sessions.bundle import BundleHeartbeat, UnloggedEnd, has_ended
from compactor.sessions.session_journal import SessionJournal
from compactor.sessions.session_log import SESSION_LOG, SessionLog, SessionState, SessionSucceeded
from compactor.storage.object_store import ObjectStore
from compactor.storage.opening import with_region
from compactor.storage.paths import BundleFolder, SessionFolder
from compactor.storage.side_by_side import side_by_side
from launcher.attempt import (
    AttemptFailed,
    JobOutOfReach,
    Orders,
    end_job,
    ends_after_a_bug,
    launch_once,
    stopped_by,
    stops_if_fenced,
    without_completions,
)
from launcher.clusters import Cluster, RunningSparkJob
from launcher.outcomes import Cancelled, Failed, Interrupted, SessionEnd, Succeeded
from launcher.plan import BundleRoom
from launcher.poller import Poller
from launcher.retrying import GiveUp, RetryPolicy, Setbacks, TryAgain, what_follows
from launcher.spark_job import (
    ClusterReference,
    JobFailed,
    JobRunning,
    JobStatus,
    JobVanished,
    NoCapacity,
    OutOfReach,
    SparkJob,
    job_name,
)
from launcher.verdict import WatchTimers

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class RetriedMember:
    """`attempt` is the next one; `alone`: in a Spark job of its own."""

    session_id: str
    attempt: int
    failed: AttemptFailed
    alone: bool


class LeftOpen(Enum):
    """The state of members that have not ended and are not retried."""

    NONE = "none"
    """There are none."""
    RUNNING = "running"
    """Their Spark job continues."""
    STOPPED = "stopped"
    """Their Spark job was stopped; they may continue later."""


class BundleJournal(Protocol):
    """Records the course of the bundled sessions of a job run: of all of them together, in one entry. Every method
    raises `Fenced` once another dispatcher has the job run.
    """

    def wait_seconds(self, cluster: ClusterPlan | None) -> float | None:
        """After which it may be asked again whether a bundle may be launched on it; None: it may be now."""

    def launching(self, plan: BundlePlan, name: str, place: str) -> None:
        """Before the launch: the plans of the members' attempts; their numbers are taken."""

    def launched(self, plan: BundlePlan, cluster: str, reference: ClusterReference) -> None: ...

    def is_in_flight(self, plan: BundlePlan) -> bool:
        """Whether a dispatcher watches a member of it, or will. Does not raise `Fenced`."""

    def attached(self, bundle_id: str, cluster: str) -> None:
        """This dispatcher watches a bundle that another one launched."""

    def progressed(self, members: Collection[BundleMember]) -> None:
        """The bundle makes progress; these members have not ended."""

    def left(self, members: Collection[BundleMember]) -> None:
        """This dispatcher no longer watches them."""

    def stalled(self, members: Collection[BundleMember], quiet_seconds: float) -> None: ...

    def settled(self, ends: Mapping[str, SessionEnd], retried: Sequence[RetriedMember], at_ms: int) -> None:
        """Sessions that have ended, by their ids, and attempts that failed at `at_ms` and will be followed by
        others.
        """

    def ended(self, logs: Mapping[str, SessionLog]) -> None:
        """Attempts at these sessions have ended, with their logs."""


@dataclass(frozen=True)
class RunAgain:
    """A session that has not ended: it may run again after `seconds`."""

    session_id: str
    seconds: float = 0.0
    alone: bool = False


@dataclass(frozen=True)
class FailedMember:
    """`before`: its setbacks until then; `began`: it did."""

    session_id: str
    before: Setbacks
    failed: AttemptFailed
    began: bool


@dataclass(frozen=True)
class BundleDependencies:
    """The dependencies of bundle runs.

    commits  commits of a session so far
    poller  shared by all sessions of a dispatcher
    """

    store: ObjectStore
    cluster: Cluster
    commits: Callable[[SessionSpec], Sequence[Commit]]
    poller: Poller
    timers: WatchTimers
    retry: RetryPolicy
    clock: Clock

    def after_failure(self, member: FailedMember, at_ms: int) -> Failed | RunAgain:
        """What follows from a failed attempt of a bundled session.

        A failure that may be its own is kept from the others. A service that is unavailable is so for all of them.
        """
        failed = member.failed
        setbacks = member.before.after(failed.error_kind, at_ms, progressed=failed.progressed)
        match what_follows(failed.error_kind, setbacks, at_ms, self.retry, chance(self.clock)):
            case GiveUp(why):
                reasons = failed.reasons if why is None else (*failed.reasons, why)
                return Failed(attempt=0, error_kind=failed.error_kind, reasons=reasons)
            case TryAgain(seconds):
                alone = member.began and failed.error_kind.another_try is AnotherTry.A_FEW_TIMES
                return RunAgain(member.session_id, seconds, alone)


class BundleRun:
    """A bundle that this dispatcher watches."""

    def __init__(
        self,
        plan: BundlePlan,
        setbacks: Mapping[str, Setbacks],
        dependencies: BundleDependencies,
        journal: BundleJournal,
        orders: Orders,
    ) -> None:
        """`setbacks`: by session id, for the members to watch; the others have ended."""
        self._plan = plan
        self._setbacks = setbacks
        self._dependencies = dependencies
        self._store = dependencies.store
        self._journal = journal
        self._orders = orders
        self._clock = dependencies.clock
        of_any = plan.members[0].plan
        self._job_run_id = of_any.spec.job_run.job_run_id
        self._timers = dependencies.timers
        if of_any.cluster is not None:
            self._timers = dependencies.timers.after_cluster_start(of_any.cluster.start_seconds)
        self._folder = BundleFolder(self._job_run_id, plan.bundle_id)
        self._left = {
            member_number: member for member_number, member in enumerate(plan.members) if _id(member) in setbacks
        }
        self._logs: dict[int, SessionLog] = {}
        self._reruns: list[RunAgain] = []
        self._heartbeat: BundleHeartbeat | None = None
        self._launched_at_seconds: float | None = None
        self._news_at_seconds = self._clock.monotonic_seconds()

    @property
    def reruns(self) -> tuple[RunAgain, ...]:
        """Members that are to run again."""
        return tuple(self._reruns)

    def launch(self, room: BundleRoom) -> RunningSparkJob | None:
        """None: it was not launched, and its members are settled. The order of writes is that of `Attempt`."""
        location, cluster = with_region(self._store.location), self._dependencies.cluster
        self._store.put_if_absent(self._folder.plan.key, self._plan.render())
        name = job_name(location, self._job_run_id, f"{self._job_run_id}.bundle.{self._plan.bundle_id}", 1)
        self._journal.launching(self._plan, name, cluster.place)
        self._launched_at_seconds = self._news_at_seconds = self._clock.monotonic_seconds()
        job = SparkJob(name, location, self._folder.plan.key, 1, room.resources)
        launched = launch_once(cluster, job, room.cluster_plan)
        if isinstance(launched, AttemptFailed):
            self._settle(dict.fromkeys(self._left, launched), began=False)
            return None
        reference, running = launched
        with stops_if_fenced(running, lambda: self._journal.is_in_flight(self._plan)):
            self._journal.launched(self._plan, running.description, reference)
        return running

    # -- watching

    def watch(self, job: RunningSparkJob) -> LeftOpen:
        """Watches until no member is left, or until a command ends it.

        Raises `Fenced` if another dispatcher has the job run, and `Unavailable` if the state cannot be read for longer
        than a stall, or the job cannot be stopped: it keeps running then.
        """
        left_open: list[LeftOpen] = []
        is_free = self._dependencies.cluster.status_is_free

        def look(log_is_due: bool) -> bool:
            found = self._look_at_all(job, looks_at_job=is_free or log_is_due, log_is_due=log_is_due)
            left_open.extend(() if found is None else (found,))
            return found is not None

        try:
            with ends_after_a_bug(job, self._timers, self._clock):
                self._dependencies.poller.until_done(look, is_new=self._launched_at_seconds is not None)
        finally:
            self._journal.left(list(self._left.values()))
        return left_open[0]

    def never_launched(self) -> None:
        """The dispatcher that was about to launch it died before."""
        self._reruns += [RunAgain(_id(member)) for member in self._left.values()]

    def _end(self, job: RunningSparkJob) -> None:
        end_job(job, self._timers, self._clock)

    def _look_at_all(self, job: RunningSparkJob, *, looks_at_job: bool, log_is_due: bool) -> LeftOpen | None:
        stopped = stopped_by(self._orders())
        if stopped is not None:
            return self._stopped(stopped, job)
        # Read the job before its heartbeat: once it has ended, the logs are complete.
        status = self._status(job) if looks_at_job else JobRunning()
        if isinstance(status, JobRunning) and not log_is_due:
            return None
        timers, quiet_seconds = self._timers, self._look()
        is_gone = not isinstance(status, JobRunning | OutOfReach)
        if not self._left:
            if not is_gone and quiet_seconds <= timers.exit_seconds:
                return None
            self._end(job)
            return LeftOpen.NONE
        if is_gone:
            self._end(job)  # its children may have outlived it
            self._settle_the_rest(_crash(self._plan.bundle_id, status))
            return LeftOpen.NONE
        if quiet_seconds > (timers.start_seconds if self._heartbeat is None else timers.stall_seconds):
            self._end(job)
            self._stalled(quiet_seconds, is_seen=not isinstance(status, OutOfReach))
            return LeftOpen.NONE
        return None

    def _status(self, job: RunningSparkJob) -> JobStatus:
        try:
            return job.status()
        except Unavailable as error:
            _log.warning("spark_job_not_visible", bundle_id=self._plan.bundle_id, reason=str(error))
            return JobRunning()  # as its heartbeat says, then

    def _look(self) -> float:
        """Settles members that have ended since the last call. Returns the seconds without progress of the bundle."""
        try:
            heartbeat = self._read_heartbeat()
            if heartbeat is not None and heartbeat != self._heartbeat:
                self._news_at_seconds = self._clock.monotonic_seconds()
                unlogged = {each.member: each.untold for each in heartbeat.ended if each.member in self._left}
                self._settle_ended(unlogged, self._read_logs(unlogged))
                self._heartbeat = heartbeat
                self._journal.progressed(list(self._left.values()))
        except Unavailable as error:
            # The job may be well: no verdict without an observation, until the stall time has passed.
            if self._quiet_seconds() > self._timers.stall_seconds:
                raise
            _log.warning("bundle_not_visible", bundle_id=self._plan.bundle_id, reason=str(error))
        return self._quiet_seconds()

    def _quiet_seconds(self) -> float:
        return self._clock.monotonic_seconds() - self._news_at_seconds

    def _read_heartbeat(self) -> BundleHeartbeat | None:
        key = self._folder.heartbeat.key
        body = self._store.read(key)
        try:
            return None if body is None else BundleHeartbeat.parse_durable(body, key)
        except (Corrupt, Outdated) as error:
            _log.warning("heartbeat_unreadable", bundle_id=self._plan.bundle_id, reason=str(error))
            return None

    def _read_logs(self, member_numbers: Iterable[int]) -> dict[int, SessionState]:
        ids = list(member_numbers)

        def read(member_number: int) -> SessionState:
            member = self._plan.members[member_number]
            log = DurableLog(self._store, SessionFolder(self._job_run_id, _id(member)).log, SESSION_LOG, self._clock)
            self._logs[member_number] = log
            return log.load_until(lambda state: has_ended(state, member.attempt)).state

        return dict(zip(ids, side_by_side(self._store.location, read, ids), strict=True))

    # -- settling

    def _settle_ended(self, unlogged: Mapping[int, UnloggedEnd | None], logs: Mapping[int, SessionState]) -> None:
        """Members that have ended: by their session logs, or by the bundle's heartbeat."""
        outcomes = {}
        for member_number, log in logs.items():
            outcome = self._outcome(member_number, log)
            if outcome is None:
                end = unlogged.get(member_number)
                kind = ErrorKind.CRASHED if end is None else end.error_kind
                symptom = "left no end in its log" if end is None else end.reason
                outcome = self._failed(member_number, log, kind, f"{self._attempt(member_number)}: {symptom}")
            outcomes[member_number] = outcome
        self._settle(outcomes)

    def _outcome(self, member_number: int, log: SessionState) -> Succeeded | AttemptFailed | None:
        """The outcome of a member by its session log; None: it has not ended."""
        number, end = self._plan.members[member_number].attempt, log.end
        if isinstance(end, SessionSucceeded):  # of any attempt
            result = without_completions(end.result)
            if self._launched_at_seconds is not None:  # else as measured by the job, which can only estimate its launch
                seconds = self._clock.monotonic_seconds() - self._launched_at_seconds
                result = result.model_copy(update={"seconds": seconds})
            return Succeeded(result=result)
        if log.attempt > number:
            raise Fenced(
                f"{self._attempt(member_number)} was superseded by attempt {log.attempt}: somebody else launched it"
            )
        if end is not None and end.attempt == number:
            return self._failed(member_number, log, end.error_kind, *end.reasons)
        return None

    def _failed(self, member_number: int, log: SessionState, error_kind: ErrorKind, *reasons: str) -> AttemptFailed:
        number = self._plan.members[member_number].attempt
        return AttemptFailed(error_kind, reasons, any(each.attempt == number for each in log.rounds_done))

    def _attempt(self, member_number: int) -> str:
        return f"attempt {self._plan.members[member_number].attempt}"

    def _settle(self, outcomes: Mapping[int, Succeeded | AttemptFailed], *, began: bool = True) -> None:
        """Writes the outcomes of members in one entry. `began`: whether their attempts did."""
        if not outcomes:
            return
        ends: dict[str, SessionEnd] = {}
        retried: list[RetriedMember] = []
        reruns: list[RunAgain] = []
        at_ms = self._clock.now_ms()
        for member_number, outcome in outcomes.items():
            member = self._plan.members[member_number]
            if isinstance(outcome, Succeeded):
                ends[_id(member)] = outcome
                continue
            before = self._setbacks.get(_id(member), Setbacks())
            failed = FailedMember(_id(member), before, outcome, began)
            follows = self._dependencies.after_failure(failed, at_ms)
            if isinstance(follows, RunAgain):
                reruns.append(follows)
                retried.append(RetriedMember(_id(member), member.attempt + 1, outcome, follows.alone))
            else:
                ends[_id(member)] = follows.model_copy(update={"attempt": member.attempt})
        self._journal.settled(ends, retried, at_ms)
        read = {
            _id(self._plan.members[member_number]): self._logs.pop(member_number)
            for member_number in outcomes
            if member_number in self._logs
        }
        self._journal.ended(read)
        self._reruns += reruns
        for member_number in outcomes:
            del self._left[member_number]

    def _stopped(self, stopped: Cancelled | Interrupted, job: RunningSparkJob) -> LeftOpen:
        """Members that succeeded are settled. The others end if the job run was cancelled; else the next dispatcher
        continues.
        """
        if isinstance(stopped, Interrupted) and (stopped.left_running or isinstance(job, JobOutOfReach)):
            return LeftOpen.RUNNING
        self._end(job)
        logs = self._read_logs(self._left)
        ended = {member_number: log for member_number, log in logs.items() if isinstance(log.end, SessionSucceeded)}
        self._settle_ended({}, ended)
        if isinstance(stopped, Interrupted):
            return LeftOpen.STOPPED
        self._journal.settled({_id(member): Cancelled() for member in self._left.values()}, (), self._clock.now_ms())
        return LeftOpen.NONE

    def _stalled(self, quiet_seconds: float, *, is_seen: bool) -> None:
        symptom = "did not start" if self._heartbeat is None else "made no progress"
        reason = f"the Spark job of bundle {self._plan.bundle_id} {symptom} for {quiet_seconds:.0f} seconds"
        if is_seen:
            self._settle_the_rest(AttemptFailed(ErrorKind.STALLED, (reason,)), quiet_seconds)
        else:
            self._settle_the_rest(None)

    def _settle_the_rest(self, failed: AttemptFailed | None, quiet_seconds: float | None = None) -> None:
        """The Spark job has ended. A failure is attributed to running members, not to members that had not begun.

        failed  how it is reported of those that are; None: it was not observed, and none is
        """
        logs = self._read_logs(self._left)
        self._settle_ended(
            {},
            {
                member_number: log
                for member_number, log in logs.items()
                if self._outcome(member_number, log) is not None
            },
        )
        left = {member_number: log for member_number, log in logs.items() if member_number in self._left}
        if failed is not None:
            began = [
                member_number
                for member_number, log in left.items()
                if log.attempt == self._plan.members[member_number].attempt
            ]
            none_began = not began and len(left) == len(self._plan.members)
            blamed = list(left) if none_began else began
            if blamed and quiet_seconds is not None:
                self._journal.stalled([self._plan.members[member_number] for member_number in blamed], quiet_seconds)
            self._journal_commits(began)
            left |= self._read_logs(began)
            failures = {
                member_number: self._failed(member_number, left[member_number], failed.error_kind, *failed.reasons)
                for member_number in blamed
            }
            self._settle(failures, began=not none_began)
        self._reruns += [RunAgain(_id(member)) for member in self._left.values()]

    def _journal_commits(self, member_numbers: Collection[int]) -> None:
        """Logs commits that these attempts may not have logged. Their process has died."""
        for member_number in member_numbers:
            member = self._plan.members[member_number]
            folder = SessionFolder(self._job_run_id, _id(member))
            try:
                commits = self._dependencies.commits(member.plan.spec)
                SessionJournal(self._store, folder, member.attempt, self._clock).found(commits)
            except LithifyError as error:
                _log.warning("commits_not_logged", session_id=_id(member), reason=str(error))


def _crash(bundle_id: str, status: JobStatus) -> AttemptFailed:
    """The failure of a Spark job that ended before its members."""
    name = f"the Spark job of bundle {bundle_id}"
    match status:
        case JobFailed(error_kind, reason):
            return AttemptFailed(error_kind, (f"{name} {reason}",))
        case NoCapacity(reason):
            return AttemptFailed(ErrorKind.UNAVAILABLE, (f"{name} {reason}",))
        case JobVanished(reason):
            return AttemptFailed(ErrorKind.CRASHED, (f"{name} {reason}",))
        case _:
            return AttemptFailed(ErrorKind.CRASHED, (f"{name} exited before its sessions had ended",))


def _id(member: BundleMember) -> str:
    return member.plan.spec.session_id
