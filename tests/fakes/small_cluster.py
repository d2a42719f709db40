"""A `Cluster` whose Spark jobs are threads: each runs its session in this process, or fails as a test says.

Several of them over the same `jobs` are the clusters of dispatchers that see each other's Spark jobs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from compactor.lake import DeltaCatalog
from compactor.log.durable_log import DurableLog
from compactor.model.clock import Clock
from compactor.model.errors import EXIT_FENCED, ErrorKind, Fenced, LithifyError, Unavailable
from compactor.planning.bundle_plan import BundleMember, BundlePlan
from compactor.planning.cluster_plan import ClusterPlan, ClusterUse
from compactor.planning.sizing import Resources
from compactor.planning.spec import SessionPlan
from compactor.sessions.bundle import MemberTask, UnloggedEnd, run_bundle
from compactor.sessions.keys import BundleObject, SessionFolder
from compactor.sessions.session_journal import SessionJournal
from compactor.sessions.session_log import SESSION_LOG
from compactor.storage.object_store import ObjectStore
from compactor.storage.opening import open_store
from launcher.clusters.drivers import status_of_exit
from launcher.sizing.cluster_choice import ClusterRoom
from launcher.spark_job import ClusterReference, JobFailed, JobRunning, JobStatus, JobVanished, NoCapacity, SparkJob
from tests.fakes.attempts import run_attempt
from tests.fakes.held_engine import HeldEngine
from tests.fakes.in_process_runner import InProcessTaskRunner, ProcessDied

STOPPED_EXIT_CODE = 143

LOOKS_EVERY_SECONDS = 0.02
"""At the progress of a bundle's members, so that tests need not wait a second for it."""


@dataclass(frozen=True)
class Succeeds:
    """Compacts, once `held` is set, if there is one."""

    held: threading.Event | None = None


@dataclass(frozen=True)
class Crashes:
    """Ends with this exit code and logs nothing."""

    exit_code: int = 137


@dataclass(frozen=True)
class Fails:
    """Logs its failure and exits with 1."""

    error: LithifyError


@dataclass(frozen=True)
class Hangs:
    """Starts, and makes no progress until it is stopped."""


@dataclass(frozen=True)
class Stalls:
    """Starts, or does not even start, and makes no progress while time passes, until it is stopped."""

    started: bool = True


@dataclass(frozen=True)
class HasNoRoom:
    """The cluster cannot launch it now."""


@dataclass(frozen=True)
class FindsNoRoom:
    """It is launched, and the cluster finds no machines for it."""


@dataclass(frozen=True)
class Vanishes:
    """It ends, and the cluster does not know it any more."""


@dataclass(frozen=True)
class Dies:
    """A member of a bundle that starts, and kills its process."""


@dataclass(frozen=True)
class CrashesAfterwards:
    """A member of a bundle that compacts, and then the whole Spark job crashes. `loses_log`: before the session log has
    more than the member's start."""

    loses_log: bool


Runs = Succeeds | Crashes | Fails | Hangs | Stalls | FindsNoRoom | Vanishes
Behaviour = Runs | HasNoRoom
MemberRuns = Succeeds | Crashes | CrashesAfterwards | Fails | Hangs | Stalls | Dies


@dataclass
class SmallCluster:
    """`behaves` says what each attempt does. `launched` is every job that was launched, in order.

    members        the behaviour of each member of a bundle that itself succeeds
    let_time_pass  called repeatedly by a job that stalls
    jobs           by name, of all clusters of this place
    place          only jobs that were launched there are found; `reaches`: whose jobs can be attached to
    answer_is_lost whether a launch succeeds while the launcher gets `Unavailable`
    ran            what the nodes of the clusters that were launched for its jobs have run, of each
    """

    state: ObjectStore
    clock: Clock
    behaves: Callable[[SparkJob], Behaviour] = lambda job: Succeeds()
    launched: list[SparkJob] = field(default_factory=list)
    let_time_pass: Callable[[], None] = lambda: None
    running: int = 0
    most_running: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    has: Resources | ClusterRoom = field(default_factory=lambda: Resources(task_memory_bytes=1 << 30, tasks=2))
    members: Callable[[BundleMember], MemberRuns] = lambda member: Succeeds()
    jobs: dict[str, SmallJob] = field(default_factory=dict)
    place: str = "small"
    kind: str = "small"
    status_is_free: bool = True
    answer_is_lost: bool = False
    ran: ClusterUse | None = None

    def resources(self) -> Resources | ClusterRoom:
        return self.has

    def launch(self, job: SparkJob, cluster_plan: ClusterPlan | None = None) -> ClusterReference:
        if job.name in self.jobs:
            return self.jobs[job.name].reference
        behaviour = self.behaves(job)
        if isinstance(behaviour, HasNoRoom):
            raise Unavailable("the cluster has no room")
        with self.lock:
            self.launched.append(job)
            self.running += 1
            self.most_running = max(self.running, self.most_running)
            self.jobs[job.name] = SmallJob(self, job, behaviour)
        if self.answer_is_lost:
            raise Unavailable("the answer to the launch was lost")
        return self.jobs[job.name].reference

    def attach(self, reference: ClusterReference) -> SmallJob | ForgottenJob | None:
        if reference.kind != self.kind or reference.ids["place"] != self.place:
            return None
        return self.jobs.get(reference.ids["name"]) or ForgottenJob(reference)

    def find(self, name: str) -> ClusterReference | None:
        job = self.jobs.get(name)
        return job.reference if job is not None and job.reference.ids["place"] == self.place else None

    def gone(self) -> None:
        with self.lock:
            self.running -= 1


@dataclass(frozen=True)
class ForgottenJob:
    """A job that the cluster does not know any more."""

    reference: ClusterReference
    description: str = "a forgotten job"

    def status(self) -> JobStatus:
        return JobVanished("vanished: the cluster knows nothing of it")

    def stop(self) -> None:
        """Does nothing: it does not run."""


class SmallJob:
    def __init__(self, cluster: SmallCluster, job: SparkJob, behaviour: Runs) -> None:
        self._behaviour = behaviour
        self._cluster = cluster
        self._job = job
        self._stopped = threading.Event()
        self._exit_code: int | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

        self.stops = 0

    @property
    def reference(self) -> ClusterReference:
        return ClusterReference(kind=self._cluster.kind, ids={"name": self._job.name, "place": self._cluster.place})

    @property
    def description(self) -> str:
        return f"small job {self._job.name}"

    def status(self) -> JobStatus:
        if self._thread.is_alive():
            return JobRunning()
        match self._behaviour:
            case FindsNoRoom():
                return NoCapacity("found no room on the cluster")
            case Vanishes():
                return JobVanished("vanished: the cluster knows nothing of it")
            case _ if self._exit_code == STOPPED_EXIT_CODE:
                return JobFailed(ErrorKind.UNAVAILABLE, "was ended from outside")
        assert self._exit_code is not None
        return status_of_exit(self._exit_code, "no space left\non device" if self._exit_code == 137 else "")

    def use(self, plan: ClusterPlan) -> ClusterUse | None:
        return self._cluster.ran

    def stop(self) -> None:
        self.stops += 1
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._exit_code = self._play()
        finally:
            self._cluster.gone()

    def _play(self) -> int:
        cluster, job = self._cluster, self._job
        body = cluster.state.read(job.plan_key)
        assert body is not None
        path = BundleObject.parse_or_none(job.plan_key)
        if path is not None:
            return self._play_bundle(BundlePlan.parse_durable(body, job.plan_key), path)
        return self._play_session(SessionPlan.parse_durable(body, job.plan_key))

    def _play_session(self, plan: SessionPlan) -> int:
        cluster = self._cluster
        match self._behaviour:
            case Succeeds(held):
                return self._compact(plan, held)
            case Crashes(exit_code):
                return exit_code
            case Fails(error):
                journal = self._journal(plan, self._job.attempt)
                journal.started(0, 1, 0, plan.expected_sla)
                journal.failed(error.kind, (str(error),))
                return 1
            case Hangs():
                self._journal(plan, self._job.attempt).started(0, 1, 0, plan.expected_sla)
                self._stopped.wait()
                return STOPPED_EXIT_CODE
            case Stalls(started):
                if started:
                    self._journal(plan, self._job.attempt).started(0, 1, 0, plan.expected_sla)
                while not self._stopped.wait(0.01):
                    cluster.let_time_pass()
                return STOPPED_EXIT_CODE
            case FindsNoRoom() | Vanishes():
                return STOPPED_EXIT_CODE

    def _play_bundle(self, plan: BundlePlan, path: BundleObject) -> int:
        """Runs a bundle. A bundle that fails does not start its members."""
        if isinstance(self._behaviour, Succeeds):
            return self._run_bundle(plan, path)
        if isinstance(self._behaviour, Crashes):
            return self._behaviour.exit_code
        while not self._stopped.wait(0.01):
            self._cluster.let_time_pass()
        return STOPPED_EXIT_CODE

    def _run_bundle(self, plan: BundlePlan, path: BundleObject) -> int:
        cluster = self._cluster
        runner = InProcessTaskRunner[MemberTask, "UnloggedEnd | None"](self._run_member)
        try:
            run_bundle(
                plan,
                path.bundle.job_run_id,
                cluster.state,
                runner,
                None,
                cluster.clock,
                poll_seconds=LOOKS_EVERY_SECONDS,
            )
        except _Stopped:
            return STOPPED_EXIT_CODE
        except _Crashed as crash:
            return crash.exit_code
        return 0

    def _run_member(
        self,
        run: Callable[[MemberTask, bool], UnloggedEnd | None],
        task: MemberTask,
        is_again: bool,
    ) -> UnloggedEnd | None:
        if self._stopped.is_set():
            raise _Stopped
        behaviour = self._cluster.members(task.member)
        if isinstance(behaviour, Succeeds):
            self._wait_for(behaviour.held)
            return run(task, is_again)
        if isinstance(behaviour, CrashesAfterwards):
            run(task, is_again)
            self._forget(task, 2 if behaviour.loses_log else None)
            raise _Crashed(1)
        journal = self._journal(task.member.plan, task.member.attempt)
        journal.started(0, 1, 0, task.member.plan.expected_sla)
        match behaviour:
            case Crashes(exit_code):
                raise _Crashed(exit_code)
            case Dies():
                raise ProcessDied
            case Fails(error):
                journal.failed(error.kind, (str(error),))
                return None
            case Hangs():
                self._stopped.wait()
            case Stalls():
                while not self._stopped.wait(0.01):
                    self._cluster.let_time_pass()
        raise _Stopped

    def _forget(self, task: MemberTask, first: int | None) -> None:
        """Deletes the entries of its session log from this one on, as if they were never written."""
        spec = task.member.plan.spec
        folder = SessionFolder(spec.job_run.job_run_id, spec.session_id)
        keys = sorted(entry.key for entry in self._cluster.state.list(f"{folder.log}/"))
        for key in keys[first - 1 :] if first is not None else ():
            self._cluster.state.delete(key)

    def _compact(self, plan: SessionPlan, held: threading.Event | None) -> int:
        cluster = self._cluster
        lake = DeltaCatalog(open_store(plan.spec.job_run.lake), cluster.clock)

        try:
            engine = HeldEngine(lambda: self._wait_for(held))
            run_attempt(plan, lake, cluster.state, engine, self._job.attempt, cluster.clock)
        except _Stopped:
            return STOPPED_EXIT_CODE
        except Fenced:
            return EXIT_FENCED
        return 0

    def _wait_for(self, held: threading.Event | None) -> None:
        while held is not None and not held.wait(0.01):
            if self._stopped.is_set():
                raise _Stopped

    def _journal(self, plan: SessionPlan, attempt: int) -> SessionJournal:
        folder = SessionFolder(plan.spec.job_run.job_run_id, plan.spec.session_id)
        return SessionJournal(self._cluster.state, folder, attempt, self._cluster.clock)


class _Stopped(BaseException):
    """The job was stopped. Not an `Exception`: a stopped process writes no end into its log."""


class _Crashed(BaseException):
    """The whole Spark job ends without logging anything."""

    def __init__(self, exit_code: int) -> None:
        super().__init__()
        self.exit_code = exit_code


def session_log_of(state: ObjectStore, job_run_id: str, session_id: str, clock: Clock) -> list[str]:
    """The actions of a session's log, by name."""
    log = DurableLog(state, SessionFolder(job_run_id, session_id).log, SESSION_LOG, clock)
    return [action.action for entry in log.entries() for action in entry.actions]
