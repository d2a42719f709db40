"""A warm worker: a process without Java and Spark that runs one small job after the other (`compactor/session_job.py`).

    stdin   a line of JSON for each job: the arguments that a Spark job would get
    stdout  a line of JSON while it compiles kernels, once it is ready, and for each job when it has ended
    stderr  its log

It ends when its stdin is closed, in the middle of a job too: its parent has died then, or wants it to end. What it has
written until then is as that of any job that was killed.
"""

import argparse
import gc
import json
import os
import queue
import sys
import threading
from collections.abc import Callable, Sequence
from typing import BinaryIO, TextIO

if __name__ == "__main__":
    # Imported objects stay: the collector would scan them repeatedly and find no garbage.
    gc.disable()

from compactor.engine.in_process import InProcessEngine
from compactor.engine.in_process_tasks import InProcessTasks
from compactor.engine.protocol import sentence_of
from compactor.index.files import let_index_pages_go
from compactor.kernels.compilation import announce_compilation
from compactor.kernels.warm import warm_kernels
from compactor.log_context import configure_logging
from compactor.model.errors import EXIT_FAILED
from compactor.model.freed_memory import collect_seldom, keep_few_arenas, return_freed_memory
from compactor.model.machine import peak_memory_bytes
from compactor.planning.sizing import Resources
from compactor.planning.spec import SessionPlan
from compactor.session_job import exit_code_of, run_job
from compactor.sessions.bundle import BundleTaskRunner, begin_job

TASKS_AT_ONCE = 4
"""Tasks at a time of a session alone, on an object store: while one waits for answers, another one computes."""

IDLE_SECONDS = 1.0
"""Time without a job after which a worker returns the memory that it keeps for the next one."""


class _InThisProcess:
    """The `JobPlace` of a worker."""

    def __init__(self, memory_bytes: int) -> None:
        self._resources = Resources(memory_bytes, tasks=1, start_seconds=0.0, in_process=True)

    def engine(self, plan: SessionPlan) -> InProcessEngine:
        return InProcessEngine(TASKS_AT_ONCE if plan.spec.job_run.lake.is_remote else 1)

    def resources(self) -> Resources:
        return self._resources

    def task_runner(self) -> BundleTaskRunner:
        return InProcessTasks()

    def hosts(self) -> None:
        return None

    def start_seconds(self, plan: SessionPlan) -> float:
        return 0.0


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Runs small sessions, each as a line of stdin says.")
    parser.add_argument("--memory-bytes", type=int, required=True, help="memory of a session")
    given = parser.parse_args(arguments)
    keep_few_arenas()  # sessions whose lake is on an object store have many short-lived threads
    # What libraries print belongs to the log.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    configure_logging(as_json=True, runs_session=True)
    jobs: queue.SimpleQueue[list[str]] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(sys.stdin.buffer, jobs), name="stdin", daemon=True).start()
    announce_compilation(lambda sentence: _answer(answers, {"compiling": sentence}))
    warm_kernels()
    collect_seldom()
    place = _InThisProcess(given.memory_bytes)
    _answer(answers, {"ready": True})
    while True:
        _answer(answers, _run(next_job(jobs, return_memory, IDLE_SECONDS), place))


def next_job(jobs: queue.SimpleQueue[list[str]], when_idle: Callable[[], None], idle_seconds: float) -> list[str]:
    """Waits for a job. `when_idle` is called once if none has come after `idle_seconds`."""
    try:
        return jobs.get(timeout=idle_seconds)
    except queue.Empty:
        when_idle()
        return jobs.get()


def return_memory() -> None:
    let_index_pages_go()
    gc.collect()
    return_freed_memory()


def _receive(lines: BinaryIO, jobs: queue.SimpleQueue[list[str]]) -> None:
    """Ends the process at the end of stdin, whatever it does."""
    for line in lines:
        jobs.put(json.loads(line)["arguments"])
    os._exit(EXIT_FAILED)


def _run(arguments: Sequence[str], place: _InThisProcess) -> dict[str, object]:
    begin_job()
    try:
        exit_code, reason = exit_code_of(lambda: run_job(arguments, place)), None
    except MemoryError as error:
        exit_code, reason = EXIT_FAILED, f"MemoryError: {sentence_of(error)}"
    except Exception as error:  # noqa: BLE001  (a bug; its session log has it too, and the next job may be well)
        exit_code, reason = EXIT_FAILED, f"{type(error).__name__}: {sentence_of(error)}"
    return {"exit_code": exit_code, "reason": reason, "peak_memory_bytes": peak_memory_bytes()}


def _answer(answers: TextIO, value: dict[str, object]) -> None:
    answers.write(json.dumps(value) + "\n")
    answers.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
