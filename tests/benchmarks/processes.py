"""Runs a contestant in a process of its own, on so many cores, and watches how much memory it and its children take."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.benchmarks.checks import Referee
from tests.benchmarks.contestant import Answer, Call, Task
from tests.benchmarks.spark_events import Stage, read_stages

_SAMPLE_SECONDS = 0.1
_EVENT_LOG_SETTINGS = """\
spark.eventLog.enabled true
spark.eventLog.dir file://{folder}
spark.eventLog.compress false
spark.eventLog.rolling.enabled false
"""


@dataclass(frozen=True)
class Memory:
    """Peaks of one run, in bytes.

    tree     of all processes together, each page shared between processes counted once
    worker   of the largest Python worker, with what it shares with others; 0: it has none
    """

    tree: int = 0
    worker: int = 0


@dataclass(frozen=True)
class Timing:
    """What a contestant took. The first run, in a cold process and with its memory watched, is not among `runs`."""

    contestant: str
    task: Task
    start_seconds: float
    first: Answer
    runs: tuple[Answer, ...]
    memory: Memory
    written_bytes: int
    stages: tuple[Stage, ...]

    @property
    def seconds(self) -> float:
        """The median; where there is only the first run, its time."""
        return statistics.median(run.seconds for run in self.runs or (self.first,))

    @property
    def range_seconds(self) -> tuple[float, float]:
        """The least and the most of its runs."""
        seconds = [run.seconds for run in self.runs or (self.first,)]
        return min(seconds), max(seconds)

    @property
    def median_run(self) -> Answer:
        """The run whose time is the median, or next to it."""
        runs = sorted(self.runs or (self.first,), key=lambda run: run.seconds)
        return runs[len(runs) // 2]

    def stages_of(self, run: Answer) -> list[Stage]:
        return [stage for stage in self.stages if run.started_ms <= stage.submitted_ms <= run.ended_ms]


@dataclass(frozen=True)
class Lane:
    """What one contestant is to do.

    repeats  timed runs after its first
    folder   what it writes lies below; removed in the end
    keep     where the last run's folder is moved to, instead of being removed
    """

    contestant: str
    task: Task
    repeats: int
    folder: Path
    referee: Referee
    keep: Path | None = None


def measure(lanes: Sequence[Lane]) -> list[Timing]:
    """Starts each contestant and runs it once; then they run in turns, so that minutes in which the machine is slow are
    slow for all of them. Every run is into a fresh folder, and what it leaves is checked."""
    with ExitStack() as processes:
        running = []
        for lane in lanes:
            running.append(
                _Running(lane, processes.enter_context(_contestant(lane.contestant, lane.task, lane.folder)))
            )
            running[-1].run()
        for number in range(1, max(lane.repeats for lane in lanes) + 1):
            for each in (running[place] for place in turn(number, len(running))):
                if number <= each.lane.repeats:
                    each.run()
    return [each.timing() for each in running]


def turn(number: int, lanes: int) -> list[int]:
    """The order in which lanes run in their turn of that number, from 1: a row of a Williams square.

    So each comes right after every other one equally often: to write takes longer after one that used much memory.
    """
    there_and_back = [-(place // 2) if place % 2 == 0 else place // 2 + 1 for place in range(lanes)]
    order = [(step + number) % lanes for step in there_and_back]
    return order[::-1] if lanes % 2 and number % 2 == 0 else order


class _Running:
    """A contestant in its lane."""

    def __init__(self, lane: Lane, process: _Process) -> None:
        self.lane = lane
        self._process = process
        self._answers: list[Answer] = []
        self._memory, self._written_bytes = Memory(), 0

    def run(self) -> None:
        """Once more; the first time it is watched."""
        number = len(self._answers)
        here = self.lane.folder / f"run-{number}"
        self._process.call("prepare", here)
        # What others have written is not to be flushed on this one's time.
        os.sync()
        if number == 0:
            with _watched(self._process.pid) as watch:
                answer = self._process.call("run", here)
            self._memory = watch.peak
        else:
            answer = self._process.call("run", here)
        self.lane.referee.check(self.lane.contestant, answer.written)
        self._written_bytes = sum(Path(path).stat().st_size for path in answer.written)
        self._answers.append(answer)
        if self.lane.keep is not None and number == self.lane.repeats:
            here.rename(self.lane.keep)
        else:
            shutil.rmtree(here)

    def timing(self) -> Timing:
        """Once its process has ended."""
        stages = tuple(read_stages(self.lane.folder / "events"))
        shutil.rmtree(self.lane.folder)
        first, *runs = self._answers
        return Timing(
            self.lane.contestant,
            self.lane.task,
            self._process.start_seconds,
            first,
            tuple(runs),
            self._memory,
            self._written_bytes,
            stages,
        )


class _Process:
    def __init__(self, arguments: Sequence[str], cores: int, folder: Path, environment: dict[str, str]) -> None:
        self._complaints = folder / "stderr"
        usable = sorted(os.sched_getaffinity(0))[:cores]
        started = time.perf_counter()
        with self._complaints.open("wb") as sink:
            self._process = subprocess.Popen(
                arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=sink, env=environment
            )
        os.sched_setaffinity(self._process.pid, usable)
        self.pid = self._process.pid
        self._answer()
        self.start_seconds = time.perf_counter() - started

    def call(self, verb: str, folder: Path) -> Answer:
        pipe = self._process.stdin
        if pipe is None:
            raise RuntimeError("the contestant's input is closed")
        pipe.write(Call(verb=verb, folder=str(folder)).render() + b"\n")
        pipe.flush()
        return self._answer()

    def close(self) -> None:
        """Ends it, and waits for its JVM, which outlives it for as long as it clears up."""
        children = psutil.Process(self.pid).children(recursive=True) if self._process.poll() is None else []
        self._process.communicate()
        psutil.wait_procs(children, timeout=60)

    def _answer(self) -> Answer:
        pipe = self._process.stdout
        line = pipe.readline() if pipe is not None else b""
        if not line:
            error_text = self._complaints.read_text(errors="replace")[-4_000:]
            raise RuntimeError(f"the contestant ended with exit code {self._process.wait()}:\n{error_text}")
        return Answer.parse_durable(line, "the contestant's output")


@contextmanager
def _contestant(name: str, task: Task, folder: Path) -> Iterator[_Process]:
    events = folder / "events"
    conf = folder / "conf"
    for each in (events, conf):
        each.mkdir(parents=True)
    (conf / "spark-defaults.conf").write_text(_EVENT_LOG_SETTINGS.format(folder=events))
    task_file = folder / "task.json"
    task_file.write_bytes(task.render())
    arguments = [sys.executable, "-m", "tests.benchmarks.child", name, str(task_file)]
    scratch = folder / "scratch"
    scratch.mkdir()
    environment = {**os.environ, "SPARK_CONF_DIR": str(conf), "SPARK_LOCAL_DIRS": str(scratch)}
    process = _Process(arguments, task.cores, folder, environment)
    try:
        yield process
    finally:
        process.close()


class _Watch:
    def __init__(self, pid: int) -> None:
        self.peak = Memory()
        self._root = psutil.Process(pid)

    def look(self) -> None:
        tree = worker = 0
        for process in (self._root, *self._root.children(recursive=True)):
            try:
                tree += process.memory_full_info().pss
                if _is_python_worker(process):
                    worker = max(worker, process.memory_info().rss)
            except psutil.Error:
                continue
        self.peak = Memory(max(self.peak.tree, tree), max(self.peak.worker, worker))


def _is_python_worker(process: psutil.Process) -> bool:
    """PySpark's workers, and the daemon that forks them, are Python processes that Java started."""
    parents = [parent.name() for parent in process.parents()]
    return "java" in parents and process.name() != "java"


@contextmanager
def _watched(pid: int) -> Iterator[_Watch]:
    watch, stop = _Watch(pid), threading.Event()

    def look_again() -> None:
        watch.look()
        while not stop.wait(_SAMPLE_SECONDS):
            watch.look()

    thread = threading.Thread(target=look_again, daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        stop.set()
        thread.join()
