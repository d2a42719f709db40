"""Tables that fit into nothing: 64 million narrow rows on tasks of 256 MiB and 2 GiB of scratch, and 10 million of 1 KB
in files and row groups that are larger than a task of 512 MiB, launched as the dispatcher would. Measured is not the
time but what the job takes at its peak, beside what its plan allows.

And whether the time of a session is that of its rows: 16, 64 and 256 million on tasks of 512 MiB and 6 GiB of scratch,
which takes some 50 GB of disk."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from compactor import DeltaCatalog
from compactor.engine.java_home import find_java_home
from compactor.model.clock import SystemClock
from compactor.model.counts import SortKey
from compactor.planning.session_planner import pin_sessions
from compactor.planning.sizing import Resources
from compactor.planning.spec import JobRunSpec, SessionPlan
from compactor.sessions.keys import JobRunFolder
from compactor.storage.local import LocalStore
from compactor.storage.location import StoreLocation
from launcher.clusters.drivers import find_program, find_spark_home
from launcher.clusters.local import LocalCluster, LocalClusterSettings
from launcher.spark_job import JobRunning, JobSucceeded, SparkJob
from tests.benchmarks import data
from tests.benchmarks.checks import Referee
from tests.benchmarks.data import KEY, NARROW, SORT, WIDE, Files, Shape
from tests.fakes.attempts import plan_session

MIB = 2**20
TABLE = "BENCHMARK.ORDERS.V1"
FACTOR = 16
"""Of the narrow table of the main contest."""

RESOURCES = Resources(task_memory_bytes=256 * MIB, tasks=2, scratch_bytes=2_048 * MIB, driver_memory_bytes=512 * MIB)
"""A machine of 1 GiB for all of Spark. At a smaller scale there is less scratch."""

WIDE_FACTOR = 12.5
WIDE_ROWS_PER_FILE, WIDE_ROWS_PER_GROUP = 2_000_000, 500_000
"""Of the wide table of the main contest; its files are the same at any scale."""

WIDE_RESOURCES = replace(RESOURCES, task_memory_bytes=512 * MIB, scratch_bytes=1_024 * MIB)
"""At any scale: a round takes a whole file at least."""

LINEAR_FACTORS = (64, 16, 4)
LINEAR_RESOURCES = replace(RESOURCES, task_memory_bytes=512 * MIB, scratch_bytes=6_144 * MIB)
"""Of the narrow table of the main contest; of a table of any size."""

_SAMPLE_SECONDS = 0.1


@dataclass(frozen=True)
class Peaks:
    """In bytes.

    task     what one Python worker has for itself: libraries that it shares with the others, and files of the system's
             cache that it has mapped, are not its own
    task_in_all  the same with files that it alone has mapped
    driver   the same of the driver's Python process; its JVM has the heap that it was given
    scratch  of all files in scratch folders
    """

    task: int = 0
    task_in_all: int = 0
    driver: int = 0
    scratch: int = 0


@dataclass(frozen=True)
class Bounded:
    """What came of it."""

    shape: str
    rows: int
    files: int
    resources: Resources
    plan: SessionPlan
    rounds: int
    seconds: float
    idle_task: int
    peaks: Peaks


def measure_bounded(folder: Path, scale: float) -> list[Bounded]:
    """Compacts both tables in rounds of the session's own choosing. Raises `Wrong` where other rows survive."""
    narrow, wide = NARROW.scaled(scale).times(FACTOR), WIDE.times(WIDE_FACTOR * scale)
    here = folder / "bounded"
    resources = replace(RESOURCES, scratch_bytes=int((RESOURCES.scratch_bytes or 0) * scale))
    found = [_measure(here, narrow, data.write_table(here / "data", narrow), resources)]
    large = data.write_large_files(here / "data", wide, WIDE_ROWS_PER_FILE, WIDE_ROWS_PER_GROUP)
    return [*found, _measure(here, wide, large, WIDE_RESOURCES)]


def measure_linear(folder: Path, scale: float) -> list[Bounded]:
    """The largest table first, as its data needs most room. Raises `Wrong` where other rows survive."""
    found = []
    for factor in LINEAR_FACTORS:
        here, shape = folder / "linear", NARROW.times(factor * scale)
        found.append(_measure(here, shape, data.write_table(here / "data", shape), LINEAR_RESOURCES))
    return found


def _measure(here: Path, shape: Shape, files: Files, resources: Resources) -> Bounded:
    lake = DeltaCatalog.open(here / "lake")
    lake.create_table(TABLE).append({}, list(files.paths))
    plan = _plan(lake, resources)
    state = LocalStore(StoreLocation(f"file://{here / 'state'}"))
    session = JobRunFolder(plan.spec.job_run.job_run_id).session(plan.spec.session_id)
    plan_key = session.plan(1).key
    state.put_if_absent(plan_key, plan.render())
    seconds, peaks, idle_task = _run(here / "work", SparkJob("bounded", state.location, plan_key, 1, resources))
    stream = DeltaCatalog.open(here / "lake").table(TABLE).stream({})
    compacted = stream.load().state.compacted
    if compacted is None:
        raise RuntimeError("the job ended well, and nothing is compacted")
    paths = [stream.uri_of(file.path).removeprefix("file://") for file in compacted.files.values()]
    Referee(data.survivors(shape, None)).check("lithify, bounded", paths)
    rounds = compacted.last_round.round_number
    shutil.rmtree(here)
    return Bounded(shape.name, shape.rows, len(files.paths), resources, plan, rounds, seconds, idle_task, peaks)


def _plan(lake: DeltaCatalog, resources: Resources) -> SessionPlan:
    run = JobRunSpec(
        job_run_id="bounded",
        source_table_id=TABLE,
        primary_keys=(KEY,),
        sort_keys=(SortKey(column=SORT),),
        lake=lake.location,
        destination_compacted_table_id=TABLE,
    )
    lake.create_table_like(TABLE, lake.table(TABLE))
    return plan_session(pin_sessions(run, lake)[0].spec, lake, resources)


def _run(work: Path, job: SparkJob) -> tuple[float, Peaks, int]:
    """Seconds, peaks, and what the smallest worker had for itself before it had seen a row."""
    settings = LocalClusterSettings(
        resources=job.resources,
        driver_memory_bytes=job.resources.driver_memory_bytes or 0,
        spark_home=find_spark_home(os.environ),
        java_home=find_java_home(os.environ, Path.home() / ".cache" / "lithify"),
        work_folder=work,
        environment=dict(os.environ),
    )
    started = time.perf_counter()
    cluster = LocalCluster(settings, SystemClock())
    reference = cluster.launch(job)
    running = cluster.attach(reference)
    if running is None:
        raise RuntimeError("a job of this machine cannot be seen")
    try:
        with _watched(int(reference.ids["pid"]), work / "scratch") as watch:
            while isinstance(running.status(), JobRunning):
                time.sleep(_SAMPLE_SECONDS)
    finally:
        running.stop()
    if not isinstance(running.status(), JobSucceeded):
        raise RuntimeError(f"the job failed: {running.status()}:\n{running.output_tail()}")
    return time.perf_counter() - started, watch.peaks, watch.idle_task


class _Watch:
    def __init__(self, pid: int, scratch: Path) -> None:
        self.peaks = Peaks()
        self.idle_task = 0
        self._root = psutil.Process(pid)
        self._scratch = scratch

    def look(self) -> None:
        task = task_in_all = driver = 0
        try:
            processes = [self._root, *self._root.children(recursive=True)]
        except psutil.Error:
            return
        for process in processes:
            try:
                parent = process.parent()
                if _is_daemon(process) and parent is not None and _is_daemon(parent):
                    own = own_bytes(process.pid)
                    task = max(task, own)
                    task_in_all = max(task_in_all, own_bytes(process.pid, "Private_Dirty", "Private_Clean"))
                    self.idle_task = min(self.idle_task or own, own) if own else self.idle_task
                elif str(find_program()) in process.cmdline() and process.name() != "java":
                    driver = max(driver, own_bytes(process.pid))
            except (psutil.Error, OSError):
                continue
        scratch = bytes_in(self._scratch)
        self.peaks = Peaks(
            max(self.peaks.task, task),
            max(self.peaks.task_in_all, task_in_all),
            max(self.peaks.driver, driver),
            max(self.peaks.scratch, scratch),
        )


def _is_daemon(process: psutil.Process) -> bool:
    """Whether it is the process that Python workers are forked from, or one of them."""
    return "compactor.worker_daemon" in process.cmdline()


def own_bytes(pid: int, *kinds: str) -> int:
    """What a process has written to and nobody else sees; or what else nobody else sees."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    sizes = {name: int(size.split()[0]) for name, size in (line.split(":") for line in lines)}
    return sum(sizes[kind] for kind in kinds or ("Private_Dirty",)) * 1_024


def bytes_in(folder: Path) -> int:
    """What the files below a folder take on its disk."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(root) / name).stat().st_blocks * 512
            except OSError:  # it has just been removed
                continue
    return total


@contextmanager
def _watched(pid: int, scratch: Path) -> Iterator[_Watch]:
    watch, stop = _Watch(pid, scratch), threading.Event()

    def look_again() -> None:
        while not stop.wait(_SAMPLE_SECONDS):
            watch.look()

    thread = threading.Thread(target=look_again, daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        stop.set()
        thread.join()
