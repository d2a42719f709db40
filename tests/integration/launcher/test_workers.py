"""Warm worker processes: what runs in them, and what becomes of it when they die or lose their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

from compactor.catalog.actions import SessionPlanAnnounced
from compactor.lake import DeltaCatalog
from compactor.log.durable_log import DurableLog
from compactor.model.clock import SystemClock
from compactor.model.errors import ErrorKind
from compactor.planning.bundle_plan import SmallSession
from compactor.planning.session_planner import pin_sessions
from compactor.planning.where_to_run import WorkerPool
from compactor.sessions.keys import SessionFolder
from compactor.sessions.session_log import SESSION_LOG, SessionSucceeded
from compactor.storage.opening import open_store
from launcher.clusters.workers import START_SECONDS, GoneWorker, WorkerJob, Workers, WorkersSettings, gone_worker
from launcher.plan import plan_in_worker
from launcher.spark_job import (
    ClusterReference,
    InFlight,
    JobFailed,
    JobRunning,
    JobSucceeded,
    JobVanished,
    NotLaunched,
    SparkJob,
)
from tests.builders import run_of
from tests.waiting import wait_until

MIB = 1024**2
TABLE = "ACME.ORDERS.V1"
POOL = WorkerPool(workers=1, memory_bytes=256 * MIB)


class Place:
    """A lake with one table, a state, and workers for it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lake = DeltaCatalog.open(str(folder / "lake"))
        self.table = self.lake.create_table(TABLE)
        self.state = open_store(DeltaCatalog.open(str(folder / "state")).location)
        self.workers = self.made()

    def made(self, memory_bytes: int = 1024 * MIB, jobs_max: int = 1_000, **variables: str) -> Workers:
        settings = WorkersSettings(POOL, memory_bytes, self.folder, {**os.environ, **variables}, jobs_max)
        return Workers(settings, SystemClock())

    def job(self, number: int, rows: int = 1_000) -> SparkJob:
        """Of a session with so many rows that no other session has compacted."""
        self.table.append({}, pa.table({"id": range(number * rows, (number + 1) * rows)}))
        job_run_id = f"run-{number}"
        run = run_of(self.lake, TABLE, job_run_id=job_run_id)
        (pinned,) = pin_sessions(run, self.lake)
        small = plan_in_worker(pinned.spec, self.lake, POOL, 0)
        assert isinstance(small, SmallSession)
        self.session = SessionFolder(job_run_id, small.plan.spec.session_id)
        key = self.session.plan(1).key
        self.state.put_if_absent(key, small.plan.render())
        return SparkJob(f"job-{number}", self.state.location, key, 1, self.workers.resources())

    def has_succeeded(self) -> bool:
        log = DurableLog(self.state, self.session.log, SESSION_LOG, SystemClock())
        return isinstance(log.load().state.end, SessionSucceeded)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    place.workers.close()


def running(workers: Workers, job: SparkJob) -> object:
    found = workers.attach(workers.launch(job))
    assert found is not None
    return found


def ended(workers: Workers, job: SparkJob) -> object:
    """Its status at its end."""
    found = workers.attach(workers.launch(job))
    assert found is not None
    wait_until(lambda: not isinstance(found.status(), JobRunning))
    return found.status()


def test_a_worker_runs_one_session_after_the_other_without_java_and_spark(place: Place) -> None:
    assert ended(place.workers, place.job(1)) == JobSucceeded()
    (pid,) = place.workers.process_ids
    assert ended(place.workers, place.job(2)) == JobSucceeded()
    assert place.workers.process_ids == (pid,)
    assert place.has_succeeded()
    assert place.table.scan().to_table().num_rows == 2_000
    mapped = " ".join(each.path for each in psutil.Process(pid).memory_maps())
    assert "numba" in mapped
    assert psutil.Process(pid).children() == []


def test_the_first_compilation_of_kernels_on_a_machine_is_announced(place: Place, tmp_path: Path) -> None:
    told: list[str] = []
    place.workers = place.made(NUMBA_CACHE_DIR=str(tmp_path / "of_another_machine"))
    place.workers.notify_compiling = told.append
    place.workers.start()
    wait_until(lambda: bool(told))
    what = "compiling kernels for this processor, once, for about half a minute"
    (pid,) = place.workers.process_ids
    assert told == [f"worker process {pid}: {what}; `lithify warm` does it beforehand"]


def test_its_end_is_told_at_once(place: Place) -> None:
    told = []
    place.workers.notify_ended = lambda: told.append(True)
    assert ended(place.workers, place.job(1)) == JobSucceeded()
    wait_until(lambda: told == [True])


def test_a_launch_goes_to_a_worker_that_is_ready_and_waits_for_no_start(tmp_path: Path) -> None:
    settings = WorkersSettings(WorkerPool(workers=2, memory_bytes=256 * MIB), 1024 * MIB, tmp_path, dict(os.environ))
    workers = Workers(settings, SystemClock())
    assert workers.start_seconds() == START_SECONDS
    workers.start()
    first, second = workers.process_ids
    os.kill(second, signal.SIGSTOP)
    wait_until(lambda: workers.start_seconds() == 0.0)
    place = Place(tmp_path)
    try:
        found = workers.attach(workers.launch(place.job(1)))
        assert isinstance(found, WorkerJob)
        assert found.pid == first
    finally:
        workers.close()


def test_a_changed_definition_of_a_table_is_seen_by_the_next_session(place: Place) -> None:
    assert ended(place.workers, place.job(1)) == JobSucceeded()
    place.table.set_properties({"session_plans": True})
    assert ended(place.workers, place.job(2)) == JobSucceeded()
    entries = place.table.stream({}).log.entries()
    assert any(isinstance(action, SessionPlanAnnounced) for entry in entries for action in entry.actions)


def test_a_job_whose_worker_is_killed_has_failed_and_another_worker_is_started(place: Place) -> None:
    assert ended(place.workers, place.job(1)) == JobSucceeded()
    (pid,) = place.workers.process_ids
    os.kill(pid, signal.SIGSTOP)
    job = running(place.workers, place.job(2))
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not isinstance(job.status(), JobRunning))  # type: ignore[attr-defined]
    failed = job.status()  # type: ignore[attr-defined]
    assert isinstance(failed, JobFailed)
    assert failed.error_kind is ErrorKind.OUT_OF_MEMORY
    wait_until(lambda: place.workers.process_ids not in ((), (pid,)))
    assert not place.has_succeeded()
    assert ended(place.workers, place.job(3)) == JobSucceeded()


def test_a_job_that_is_stopped_ends_and_so_does_its_worker(place: Place) -> None:
    assert ended(place.workers, place.job(1)) == JobSucceeded()
    (pid,) = place.workers.process_ids
    os.kill(pid, signal.SIGSTOP)  # it hangs
    job = running(place.workers, place.job(2))
    job.stop()  # type: ignore[attr-defined]
    wait_until(lambda: not isinstance(job.status(), JobRunning))  # type: ignore[attr-defined]
    assert job.status() == JobFailed(ErrorKind.UNAVAILABLE, "was ended from outside")  # type: ignore[attr-defined]
    assert not psutil.pid_exists(pid)


def test_a_worker_that_holds_more_than_it_may_is_killed_and_its_job_says_so(place: Place) -> None:
    workers = place.made(memory_bytes=64 * MIB)
    failed = ended(workers, place.job(1))
    workers.close()
    assert isinstance(failed, JobFailed)
    assert failed.error_kind is ErrorKind.OUT_OF_MEMORY
    assert "of 67,108,864" in failed.reason


def test_a_worker_is_replaced_after_so_many_jobs(place: Place) -> None:
    workers = place.made(jobs_max=1)
    workers.start()
    (pid,) = workers.process_ids
    assert ended(workers, place.job(1)) == JobSucceeded()
    wait_until(lambda: workers.process_ids not in ((), (pid,)))
    assert ended(workers, place.job(2)) == JobSucceeded()
    workers.close()


def test_no_more_jobs_run_at_a_time_than_there_are_workers(place: Place) -> None:
    place.workers.start()
    (pid,) = place.workers.process_ids
    os.kill(pid, signal.SIGSTOP)
    place.workers.launch(place.job(1))
    with pytest.raises(NotLaunched, match="none is idle"):
        place.workers.launch(place.job(2))


def test_a_worker_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    program = (
        "import os, sys, time\nfrom pathlib import Path\n"
        "from compactor.model.clock import SystemClock\nfrom compactor.planning.where_to_run import WorkerPool\n"
        "from launcher.clusters.workers import Workers, WorkersSettings\n"
        "settings = WorkersSettings(WorkerPool(1, 1 << 28), 1 << 30, Path(sys.argv[1]), dict(os.environ))\n"
        "workers = Workers(settings, SystemClock())\nworkers.start()\n"
        "print(*workers.process_ids, flush=True)\ntime.sleep(600)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
    wait_until(lambda: not psutil.pid_exists(pid))


def test_another_dispatcher_finds_that_a_workers_job_has_vanished(place: Place) -> None:
    reference = place.workers.launch(place.job(1))
    successor = place.made()
    found = successor.attach(reference)
    assert isinstance(found, GoneWorker)
    assert isinstance(found.status(), JobVanished)
    assert gone_worker(InFlight(1, "job-1", place.workers.place)) is not None, "its launch was not recorded"
    assert gone_worker(InFlight(1, "job-1", "local host run folder")) is None
    assert gone_worker(InFlight(1, reference=ClusterReference(kind="emr", ids={}))) is None
    assert place.workers.find("job-1") == reference
    assert successor.find("job-1") is None


def test_an_idle_worker_is_small(place: Place) -> None:
    """By its share of pages that processes have in common."""
    assert ended(place.workers, place.job(1)) == JobSucceeded()
    (pid,) = place.workers.process_ids
    assert psutil.Process(pid).memory_full_info().pss <= 230 * MIB


def test_the_peak_of_a_worker_is_its_own_and_not_that_of_the_process_that_started_it() -> None:
    held = b"x" * (400 * MIB)
    program = "from compactor.model.machine import peak_memory_bytes; print(peak_memory_bytes())"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(ended.stdout) < len(held)
