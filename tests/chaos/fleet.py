"""The dispatchers of a run as real processes, the Spark jobs that they started, and the signals that both are sent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

REPOSITORY = Path(__file__).resolve().parents[2]
EXIT_SECONDS_MAX = 60.0
EXIT_FAILED = 1
"""Of a dispatcher that cannot begin because something does not answer: whoever looks after it starts it again."""


@dataclass
class Dispatcher:
    """One of the processes.

    log_begins  where in its log it began to write
    is_wanted   nobody has ended it, so it has to run
    """

    number: int
    process: subprocess.Popen[bytes]
    log_begins: int
    is_wanted: bool = True
    is_paused: bool = False
    end_requested_at: float | None = None


@dataclass
class Fleet:
    """
    command_of  the command line of dispatcher n
    environment  of all of them
    mark        the state's URI: an argument of every Spark job of this run
    tell        is told what happened that nobody asked for
    """

    folder: Path
    command_of: Callable[[int], Sequence[str]]
    environment: Mapping[str, str]
    mark: str
    tell: Callable[[str], None]
    wrong: list[str] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    killed_jobs: Counter[str] = field(default_factory=Counter)
    memory_mib_max: float = 0.0

    def __post_init__(self) -> None:
        self._dispatchers: dict[int, Dispatcher] = {}
        self._wait_to_start: set[int] = set()
        self._stopped_jobs: list[psutil.Process] = []

    # -- dispatchers

    def start(self, number: int) -> None:
        """Now, or as soon as the one before it has ended."""
        if number in self._dispatchers:
            self._wait_to_start.add(number)
            return
        with self.log_of(number).open("ab") as log:
            begins = log.tell()
            process = subprocess.Popen(
                self.command_of(number), cwd=self.folder, env=self.environment, stdout=log, stderr=log
            )
        self._dispatchers[number] = Dispatcher(number, process, begins)
        self.done["starts"] += 1

    def numbers(self) -> set[int]:
        """Those that are there, or will be."""
        return {*self._dispatchers, *self._wait_to_start}

    def kill(self, number: int) -> bool:
        """Whether it was there to be killed."""
        found = self._dispatchers.get(number)
        if found is None:
            return False
        found.is_wanted = False
        found.process.kill()
        found.process.wait()
        del self._dispatchers[number]
        self.done["SIGKILL"] += 1
        return True

    def terminate(self, number: int, *, twice: bool = False) -> bool:
        found = self._dispatchers.get(number)
        if found is None or found.end_requested_at is not None:
            return False
        found.is_wanted = False
        found.end_requested_at = time.monotonic()
        found.process.send_signal(signal.SIGTERM)
        self.done["SIGTERM"] += 1
        if twice:
            time.sleep(0.3)
            found.process.send_signal(signal.SIGTERM)
        return True

    def pause(self, number: int) -> bool:
        return self._signal(number, signal.SIGSTOP, is_paused=True)

    def resume(self, number: int) -> bool:
        return self._signal(number, signal.SIGCONT, is_paused=False)

    def look(self) -> None:
        """Notice who has ended, start who waits for that, measure memory. To be called again and again."""
        for number, each in list(self._dispatchers.items()):
            code = each.process.poll()
            if code is None:
                self._measure(each)
                self._look_at_late(each)
            else:
                del self._dispatchers[number]
                self._judge_end(each, code)
        for number in [waiting for waiting in self._wait_to_start if waiting not in self._dispatchers]:
            self._wait_to_start.discard(number)
            self.start(number)

    def end(self) -> None:
        """SIGTERM to all of them, and their ends."""
        for number in list(self._dispatchers):
            self.resume(number)
            self.terminate(number)
        self._wait_to_start.clear()
        until = time.monotonic() + EXIT_SECONDS_MAX + 5
        while self._dispatchers and time.monotonic() < until:
            self.look()
            time.sleep(0.1)

    def close(self) -> None:
        """Nothing of the run is left, however it ended."""
        for number in list(self._dispatchers):
            self.kill(number)
        for process in self.jobs():
            with suppress(psutil.Error):
                process.kill()

    def log_of(self, number: int) -> Path:
        return self.folder / f"dispatcher-{number}.log"

    def _signal(self, number: int, sent: signal.Signals, *, is_paused: bool) -> bool:
        found = self._dispatchers.get(number)
        if found is None or found.is_paused == is_paused:
            return False
        found.process.send_signal(sent)
        found.is_paused = is_paused
        if is_paused:
            self.done[sent.name] += 1
        return True

    def _judge_end(self, each: Dispatcher, code: int) -> None:
        output = self.log_of(each.number).read_bytes()[each.log_begins :].decode(errors="replace")
        has_begun = "dispatcher_started" in output
        if each.is_wanted:
            if has_begun or code != EXIT_FAILED:
                self._find(
                    f"dispatcher {each.number} ended by itself with exit code {code}: ... {output[-400:].strip()}"
                )
            self.done["starts refused"] += not has_begun
            self.start(each.number)
        elif code not in (0, -signal.SIGKILL) and (has_begun or code != -signal.SIGTERM):
            self._find(f"dispatcher {each.number} was asked to end and did so with exit code {code}")

    def _look_at_late(self, each: Dispatcher) -> None:
        if each.end_requested_at is not None and time.monotonic() - each.end_requested_at > EXIT_SECONDS_MAX:
            self._find(f"dispatcher {each.number} did not end within {EXIT_SECONDS_MAX:.0f} s of SIGTERM")
            each.process.kill()
            each.process.wait()

    def _measure(self, each: Dispatcher) -> None:
        with suppress(psutil.Error):
            mib = psutil.Process(each.process.pid).memory_info().rss / 2**20
            self.memory_mib_max = max(self.memory_mib_max, mib)

    def _find(self, what: str) -> None:
        self.wrong.append(what)
        self.tell(f"WRONG: {what}")

    # -- Spark jobs

    def jobs(self) -> list[psutil.Process]:
        """Every process of a Spark job of this run whose command line says so, the oldest first."""
        found = []
        for process in psutil.process_iter(["cmdline", "create_time"]):
            command = process.info["cmdline"] or ()
            if "--plan" in command and self.mark in command:
                found.append(process)
        return sorted(found, key=lambda each: float(each.info["create_time"]))

    def harm_job(self, pick: int, *, stops: bool) -> bool:
        """SIGKILL to one process of a Spark job, or SIGSTOP to its whole group."""
        jobs = self.jobs()
        if not jobs:
            return False
        job = jobs[pick % len(jobs)]
        try:
            command = job.cmdline()
            plan = command[command.index("--plan") + 1]
            if stops:
                for process in [job, *job.children(recursive=True)]:
                    process.suspend()
                    self._stopped_jobs.append(process)
            else:
                job.kill()
        except (psutil.Error, ValueError):  # it has just gone
            return False
        self.killed_jobs[plan] += 1
        self.done["SIGSTOP to a Spark job" if stops else "SIGKILL to a Spark job"] += 1
        return True

    def resume_jobs(self) -> None:
        for process in self._stopped_jobs:
            with suppress(psutil.Error):
                process.resume()
        self._stopped_jobs.clear()

    def await_jobs(self, seconds: float) -> list[str]:
        """The command lines of those that are still there then; orphans end by themselves, once they meet a fence."""
        until = time.monotonic() + seconds
        while (left := self.jobs()) and time.monotonic() < until:
            time.sleep(0.2)
        found = []
        for process in left:
            with suppress(psutil.Error):
                found.append(f"process {process.pid}: {' '.join(process.cmdline())[-200:]}")
        return found


def environment() -> dict[str, str]:
    """Of the dispatchers: this process's own, with the repository to import from."""
    return {**os.environ, "PYTHONPATH": str(REPOSITORY), "LITHIFY_LOG_FORMAT": "json"}


def dispatch_command(options: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "tests.paced_dispatcher", "chaos", "dispatch", "--workers", "0", *options]
