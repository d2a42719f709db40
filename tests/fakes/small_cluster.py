"""A `Cluster` whose Spark jobs are threads that run small sessions, and go wrong as a test says."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from compactor.catalog.catalog import DeltaCatalog
from compactor.catalog.log import DurableLog
from compactor.catalog.paths import SessionFolder
from compactor.clock import Clock
from compactor.errors import LithifyError
from compactor.object_store import ObjectStore, open_store
from compactor.session_journal import SessionJournal
from compactor.session_log import SESSION_LOG
from compactor.sizing import Resources
from compactor.spec import SessionPlan
from launcher.submit import SparkJob
from tests.fakes.small_session import run_small_session

STOPPED_EXIT_CODE = 143


@dataclass(frozen=True)
class Succeeds:
    """Compacts, once `held` is set, if there is one."""

    held: threading.Event | None = None


@dataclass(frozen=True)
class Crashes:
    """Ends with this exit code and says nothing."""

    exit_code: int = 137


@dataclass(frozen=True)
class Fails:
    """Says so in its log, and exits with 1."""

    error: LithifyError


@dataclass(frozen=True)
class Hangs:
    """Starts, or not even that, and makes no progress until it is stopped."""

    started: bool = True


Behaviour = Succeeds | Crashes | Fails | Hangs


@dataclass
class SmallCluster:
    """`behaves` says what each attempt does. `launched` is every job that was launched, in order."""

    state: ObjectStore
    clock: Clock
    behaves: Callable[[SparkJob], Behaviour] = lambda job: Succeeds()
    launched: list[SparkJob] = field(default_factory=list)
    running: int = 0
    most_running: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def resources(self) -> Resources:
        return Resources(task_memory_bytes=1 << 30, tasks=2)

    def launch(self, job: SparkJob) -> SmallJob:
        with self.lock:
            self.launched.append(job)
            self.running += 1
            self.most_running = max(self.running, self.most_running)
        return SmallJob(self, job)

    def gone(self) -> None:
        with self.lock:
            self.running -= 1


class SmallJob:
    def __init__(self, cluster: SmallCluster, job: SparkJob) -> None:
        self._cluster = cluster
        self._job = job
        self._stopped = threading.Event()
        self._exit_code: int | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def reference(self) -> str:
        return f"small job {self._job.name} attempt {self._job.attempt}"

    def poll(self) -> int | None:
        return None if self._thread.is_alive() else self._exit_code

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def output_tail(self) -> str:
        return "no space left\non device" if self._exit_code == 137 else ""

    def _run(self) -> None:
        try:
            self._exit_code = self._play()
        finally:
            self._cluster.gone()

    def _play(self) -> int:
        cluster, job = self._cluster, self._job
        body = cluster.state.read(job.plan_key)
        assert body is not None
        plan = SessionPlan.parse_durable(body, job.plan_key)
        match cluster.behaves(job):
            case Succeeds(held):
                return self._compact(plan, held)
            case Crashes(exit_code):
                return exit_code
            case Fails(error):
                journal = self._journal(plan)
                journal.started(0, 1, 0, plan.expected_sla)
                journal.failed(type(error).__name__, (str(error),))
                return 1
            case Hangs(started):
                if started:
                    self._journal(plan).started(0, 1, 0, plan.expected_sla)
                self._stopped.wait()
                return STOPPED_EXIT_CODE

    def _compact(self, plan: SessionPlan, held: threading.Event | None) -> int:
        cluster = self._cluster
        lake = DeltaCatalog(open_store(plan.spec.job_run.lake), cluster.clock)

        def wait() -> None:
            while held is not None and not held.wait(0.01):
                if self._stopped.is_set():
                    raise _Stopped

        try:
            run_small_session(plan, lake, cluster.state, self._job.attempt, cluster.clock, wait)
        except _Stopped:
            return STOPPED_EXIT_CODE
        return 0

    def _journal(self, plan: SessionPlan) -> SessionJournal:
        folder = SessionFolder(plan.spec.job_run.job_run_id, plan.spec.session_id)
        return SessionJournal(self._cluster.state, folder, self._job.attempt, self._cluster.clock)


class _Stopped(Exception):
    """The job was told to end."""


def session_log_of(state: ObjectStore, job_run_id: str, session_id: str, clock: Clock) -> list[str]:
    """The actions of a session's log, by name."""
    log = DurableLog(state, SessionFolder(job_run_id, session_id).log, SESSION_LOG, clock)
    return [action.action for entry in log.entries() for action in entry.actions]
