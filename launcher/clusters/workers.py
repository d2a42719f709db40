"""Runs small sessions in warm worker processes of this dispatcher (`compactor/worker.py`): no Java, no Spark to start.

    launch --a line to an idle worker--> compactor/worker.py: the same job that Spark would run
    status <--its answer, or the end of its process--

A worker lives as long as its dispatcher: it ends when the pipe to it is closed. So no other dispatcher can attach to
its job, which has vanished (`GoneWorker`); if it still runs somewhere, the next attempt supersedes it.

| a worker                                     | then                                                             |
|----------------------------------------------|------------------------------------------------------------------|
| dies                                         | its job has failed; another one is started                       |
| holds more memory than it may                | is killed; its job has run out of memory                         |
| is stopped: cancelled, stalled               | is killed, at any write                                          |
| has run so many jobs, or held so much memory | is replaced once it is idle                                      |
| dies before its first job                    | the next one is started for a launch only, which has the reason  |
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO, cast

from compactor.log_context import LOG
from compactor.model.clock import Clock
from compactor.model.errors import EXIT_FENCED, EXIT_INVALID, ErrorKind
from compactor.model.machine import resident_bytes
from compactor.planning.cluster_plan import ClusterPlan
from compactor.planning.sizing import Resources
from compactor.planning.where_to_run import WorkerPool
from launcher.clusters.drivers import KILLED, find_program, last_lines, modified_ns, output_tail
from launcher.spark_job import (
    ClusterReference,
    InFlight,
    JobFailed,
    JobRunning,
    JobStatus,
    JobSucceeded,
    JobVanished,
    NotLaunched,
    SparkJob,
)
from launcher.submit import job_arguments

KIND = "worker"
ENDED_KEPT = 1_000
"""Ended jobs whose status a worker's dispatcher still knows."""

START_SECONDS = 1.2
"""Time from the start of a worker until it is ready, before this dispatcher has seen one start."""

START_LEFT_SECONDS = 0.1
"""Time that a worker which is not ready still takes, although others have taken less to start."""

_ARROW_BY_GLIBC: Mapping[str, str] = MappingProxyType({"ARROW_DEFAULT_MEMORY_POOL": "system"})
"""Arrow's own allocator keeps freed memory for each thread, and another thread cannot return it to the system; a worker
that is idle returns what glibc keeps, of all threads."""

OUTPUTS_KEPT = 50
"""Outputs that are kept, of the workers that were started last. Those that run are among them: there are fewer."""


@dataclass(frozen=True)
class WorkersSettings:
    """
    Attributes:
        pool: how many, and the memory of a session in each
        memory_bytes: that one worker may hold in all
        work_folder: where their output goes (workers/)
        environment: that they inherit
        jobs_max: of one worker, before it is replaced"""

    pool: WorkerPool
    memory_bytes: int
    work_folder: Path
    environment: Mapping[str, str]
    jobs_max: int = 1_000


class Workers:
    """A `Cluster`. Thread-safe."""

    status_is_free = True

    def __init__(self, settings: WorkersSettings, clock: Clock) -> None:
        self.notify_ended: Callable[[], None] = lambda: None
        """Called from any thread when a job has ended."""
        self.notify_compiling: Callable[[str], None] = lambda _: None
        """Likewise, with a sentence, while a worker compiles kernels: the first one on a machine."""
        self._settings = settings
        self._clock = clock
        self._last_start_seconds = START_SECONDS
        self.place = f"{KIND} {socket.gethostname()} {os.getpid()} {clock.new_id()}"
        self._lock = threading.Lock()
        self._workers: list[_Worker] = []
        self._jobs: OrderedDict[str, WorkerJob] = OrderedDict()
        self._uses = itertools.count(1)
        self._is_closed = False

    @property
    def pool(self) -> WorkerPool:
        return self._settings.pool

    def resources(self) -> Resources:
        return Resources(self._settings.pool.memory_bytes, tasks=1, start_seconds=0.0, in_process=True)

    def start_seconds(self) -> float:
        """From a launch that comes now to the beginning of its job."""
        now_seconds = self._clock.monotonic_seconds()
        with self._lock:
            idle = [worker for worker in self._workers if worker.is_idle]
            ages = [None if worker.is_ready else now_seconds - worker.started_at_seconds for worker in idle]
            return seconds_until_ready(ages, self._last_start_seconds)

    def start(self) -> None:
        """Starts all workers; they load their libraries in the background."""
        with self._lock:
            while len(self._workers) < self._settings.pool.workers:
                try:
                    self._start_worker()
                except OSError as error:
                    LOG.warning("worker_not_started", reason=str(error))
                    return

    def close(self) -> None:
        """Ends all workers, whatever they do. Idempotent."""
        with self._lock:
            self._is_closed = True
            workers, self._workers = self._workers, []
        for worker in workers:
            worker.kill()
        for worker in workers:
            worker.reader.join()

    @property
    def process_ids(self) -> tuple[int, ...]:
        with self._lock:
            return tuple(worker.process.pid for worker in self._workers)

    def launch(self, job: SparkJob, cluster_plan: ClusterPlan | None = None) -> ClusterReference:
        with self._lock:
            if job.name in self._jobs:
                return self._jobs[job.name].reference
            worker = self._idle_worker(job.name)
            launched = WorkerJob(job.name, self.place, worker, self._settings.memory_bytes)
            worker.job = launched
            try:
                worker.send(job)
            except OSError as error:
                worker.job = None
                worker.kill()
                raise NotLaunched(f"{job.name} cannot be launched in a worker now: {error.strerror}") from error
            self._jobs[job.name] = launched
            self._forget_ended()
        return launched.reference

    def attach(self, reference: ClusterReference) -> WorkerJob | GoneWorker | None:
        if reference.kind != KIND:
            return None
        with self._lock:
            is_ours = reference.ids["place"] == self.place
            return self._jobs.get(reference.ids["name"], GoneWorker(reference)) if is_ours else GoneWorker(reference)

    def find(self, name: str) -> ClusterReference | None:
        with self._lock:
            return self._jobs[name].reference if name in self._jobs else None

    # -- workers; with the lock

    def _idle_worker(self, name: str) -> _Worker:
        """The ready one that was used last: it knows most of the lakes. Raises `NotLaunched`."""
        idle = [worker for worker in self._workers if worker.is_idle]
        if idle:
            return max(idle, key=lambda worker: (worker.is_ready, worker.used))
        if self._is_closed or len(self._workers) >= self._settings.pool.workers:
            raise NotLaunched(f"{name} cannot be launched in a worker now: none is idle")
        try:
            return self._start_worker()
        except OSError as error:
            raise NotLaunched(f"{name} cannot be launched in a worker now: {error.strerror}") from error

    def _start_worker(self) -> _Worker:
        number = next(self._uses)
        worker = _Worker(self._settings, number, self._clock.monotonic_seconds())
        self._workers.append(worker)
        worker.reader = threading.Thread(target=self._read, args=(worker,), name=f"worker-{number}", daemon=True)
        worker.reader.start()
        return worker

    def _forget_ended(self) -> None:
        for name in [name for name, job in self._jobs.items() if not isinstance(job.status(), JobRunning)]:
            if len(self._jobs) <= ENDED_KEPT:
                return
            del self._jobs[name]

    # -- what a worker says; in a thread of its own

    def _read(self, worker: _Worker) -> None:
        for line in cast("IO[bytes]", worker.process.stdout):
            answer = json.loads(line)
            if "compiling" in answer:
                LOG.warning("worker_starts_slowly", pid=worker.process.pid, reason=answer["compiling"])
                self.notify_compiling(f"worker process {worker.process.pid}: {answer['compiling']}")
                continue
            if "ready" in answer:
                with self._lock:
                    worker.is_ready = True
                    self._last_start_seconds = self._clock.monotonic_seconds() - worker.started_at_seconds
                continue
            with self._lock:
                ended = worker.job
                if ended is not None:
                    ended.end(_status_of(answer["exit_code"], answer["reason"], worker.output))
                worker.jobs_done += 1
                worker.job, worker.used = None, next(self._uses)
                held = answer["peak_memory_bytes"] > self._settings.memory_bytes
                if held or worker.jobs_done >= self._settings.jobs_max:
                    worker.kill()
            self.notify_ended()
        exit_code = worker.wait()
        with self._lock:
            if worker in self._workers:
                self._workers.remove(worker)
            ended, worker.job = worker.job, None
            if ended is not None:
                ended.end(_status_of_death(exit_code, worker.output))
            if worker.is_ready and not self._is_closed:
                with suppress(OSError):
                    self._start_worker()
        if ended is not None:
            LOG.warning("worker_died", exit_code=exit_code, job=ended.name)
            self.notify_ended()


class _Worker:
    """A process. `job`: what it runs. `used`: the higher, the later."""

    def __init__(self, settings: WorkersSettings, number: int, started_at_seconds: float) -> None:
        """Raises `OSError`."""
        folder = settings.work_folder / "workers"
        folder.mkdir(parents=True, exist_ok=True)
        _remove_old(folder)
        self.output = folder / f"{os.getpid()}-{number}.log"
        self.job: WorkerJob | None = None
        self.reader = threading.current_thread()
        self.started_at_seconds = started_at_seconds
        self.is_ready = False
        self.is_killed = False
        self.jobs_done = 0
        self.used = number
        packages = str(find_program().parent.parent)
        inherited = settings.environment
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "compactor.worker", "--memory-bytes", str(settings.pool.memory_bytes)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env={
                    **_ARROW_BY_GLIBC,
                    **inherited,
                    "PYTHONPATH": os.pathsep.join(filter(None, (packages, inherited.get("PYTHONPATH")))),
                },
                start_new_session=True,
            )

    def send(self, job: SparkJob) -> None:
        """Raises `OSError` if it has died."""
        jobs = cast("IO[bytes]", self.process.stdin)
        jobs.write(json.dumps({"arguments": job_arguments(job)}).encode() + b"\n")
        jobs.flush()

    def wait(self) -> int:
        """Its exit code, once it has ended."""
        exit_code = self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with suppress(OSError):  # the rest of a line for the dead
                cast("IO[bytes]", pipe).close()
        return exit_code

    @property
    def is_idle(self) -> bool:
        return self.job is None and not self.is_killed and self.process.poll() is None

    def kill(self) -> None:
        self.is_killed = True
        self.process.kill()


class WorkerJob:
    """A `RunningSparkJob` in a worker of this dispatcher."""

    def __init__(self, name: str, place: str, worker: _Worker, memory_bytes: int) -> None:
        self.name = name
        self.pid = worker.process.pid
        self.reference = ClusterReference(kind=KIND, ids={"name": name, "place": place})
        self.description = f"worker process {self.pid}, output in {worker.output}"
        self._worker = worker
        self._memory_bytes = memory_bytes
        self._lock = threading.Lock()
        self._end: JobStatus | None = None
        self._why_killed: JobFailed | None = None

    def status(self) -> JobStatus:
        if self._end is not None:
            return self._end
        held_bytes = resident_bytes(self.pid)
        if held_bytes is not None and held_bytes > self._memory_bytes:
            reason = f"was killed: its worker held {held_bytes:,} bytes, of {self._memory_bytes:,}"
            self._kill(JobFailed(ErrorKind.OUT_OF_MEMORY, reason))
        return JobRunning()

    def stop(self) -> None:
        self._kill(JobFailed(ErrorKind.UNAVAILABLE, "was ended from outside"))

    def end(self, status: JobStatus) -> None:
        with self._lock:
            self._end = self._why_killed or status

    def _kill(self, why: JobFailed) -> None:
        """Its worker, unless it has ended and the worker has another job."""
        with self._lock:
            if self._end is None and self._why_killed is None:
                self._why_killed = why
                self._worker.kill()


@dataclass(frozen=True)
class GoneWorker:
    """A `RunningSparkJob` in a worker of a dispatcher that has ended, or has lost its claim."""

    reference: ClusterReference
    description: str = "a worker of another dispatcher"

    def status(self) -> JobStatus:
        return JobVanished("vanished with the dispatcher in whose worker it ran")

    def stop(self) -> None:
        """A later attempt supersedes it, if it still runs."""


def gone_worker(in_flight: InFlight) -> GoneWorker | None:
    """What was launched in a worker; None: it was not."""
    if in_flight.reference is not None:
        return GoneWorker(in_flight.reference) if in_flight.reference.kind == KIND else None
    if in_flight.place is None or in_flight.name is None or in_flight.place.split()[:1] != [KIND]:
        return None
    return GoneWorker(ClusterReference(kind=KIND, ids={"name": in_flight.name, "place": in_flight.place}))


def seconds_until_ready(idle_seconds: Iterable[float | None], start_seconds: float) -> float:
    """Seconds until a job begins that is launched now. Pure.

    Worked: of workers that start in 2 s, one that was started 1.5 s ago: 0.5 s, and 3 s ago: 0.1 s; none: 2
    s; one that is ready: 0 s.

    Args:
        idle_seconds: of each idle worker, the seconds since its start; None: it is ready
        start_seconds: what the start of a worker takes"""
    left = (0.0 if seconds is None else max(start_seconds - seconds, START_LEFT_SECONDS) for seconds in idle_seconds)
    return min(left, default=start_seconds)


def _remove_old(folder: Path) -> None:
    """Keeps the output of the workers that were started last."""
    for file in sorted(folder.glob("*.log"), key=modified_ns)[:-OUTPUTS_KEPT]:
        file.unlink(missing_ok=True)


def _status_of(exit_code: int, reason: str | None, output: Path) -> JobStatus:
    """Of a job that has ended while its worker goes on."""
    match exit_code:
        case 0:
            return JobSucceeded()
        case _ if exit_code == EXIT_FENCED:
            return JobFailed(ErrorKind.FENCED, "was overtaken by another compactor")
        case _ if exit_code == EXIT_INVALID:
            return JobFailed(ErrorKind.INVALID, f"exited with code 2; {last_lines(output_tail(output))}")
    kind = ErrorKind.OUT_OF_MEMORY if (reason or "").startswith("MemoryError") else ErrorKind.CRASHED
    return JobFailed(kind, f"failed in its worker: {reason or last_lines(output_tail(output))}")


def _status_of_death(exit_code: int, output: Path) -> JobFailed:
    if exit_code == -signal.SIGKILL:
        return JobFailed(ErrorKind.OUT_OF_MEMORY, f"lost its worker: it {KILLED}")
    how = signal.Signals(-exit_code).name if exit_code < 0 else f"code {exit_code}"
    return JobFailed(ErrorKind.CRASHED, f"lost its worker, which ended with {how}; {last_lines(output_tail(output))}")
