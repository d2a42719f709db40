"""Virtual time, and threads that take turns: the same seed makes the same run.

A thread of a simulated process runs until it sleeps, or waits at its store; then the one that is due next goes on. No
two ever run at the same moment, so nothing depends on the machine. `install` puts executors of such threads in the
place of `ThreadPoolExecutor`: it is called before anything else is imported, in a process that only simulates.
"""

from __future__ import annotations

import concurrent.futures
import heapq
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
ResultT = TypeVar("ResultT")

REAL_SECONDS_MAX = 60
"""That a thread may run between two turns: it waits for something that no other thread can bring. Counted one by one,
so that a process may be stopped and continued."""


class Killed(BaseException):
    """The process was killed. Not an Exception, as a kill -9 is not: no handler in Lithify may catch it."""


@dataclass
class Process:
    """A simulated process, which can be killed or suspended as a whole."""

    name: str
    is_killed: bool = False
    stopped_until: float = 0.0


class Task:
    def __init__(self, scheduler: Scheduler, process: Process, run: Callable[[], None]) -> None:
        self.process = process
        self.is_done = False
        self.failure: BaseException | None = None
        self.turn = 0
        """The number of its next turn: an earlier one that is still due has been replaced."""
        self._go = threading.Lock()
        self._go.acquire()
        self._scheduler = scheduler
        self._run = run
        self._thread: threading.Thread | None = None

    def resume(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._main, daemon=True)
            self._thread.start()
        self._go.release()

    def wait(self) -> None:
        self._go.acquire()

    def _main(self) -> None:
        self._go.acquire()
        try:
            self._scheduler.check()
            self._run()
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001  (it ends the simulation, with its traceback)
            self.failure = error
        finally:
            self.is_done = True
            self._scheduler.give_back()


class Scheduler:
    def __init__(self) -> None:
        self.now = 0.0
        self.current: Task | None = None
        self._due: list[tuple[float, int, Task | Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._back = threading.Lock()
        self._back.acquire()
        self._tasks: list[Task] = []
        self._resting: list[Task] = []

    def spawn(self, process: Process, run: Callable[[], None]) -> Task:
        task = Task(self, process, run)
        self._tasks.append(task)
        self._put(self.now, task)
        return task

    def at(self, when: float, act: Callable[[], None]) -> None:
        """Runs `act` at this time. It must be quick and never sleep."""
        self._put(max(when, self.now), act)

    def sleep(self, seconds: float) -> None:
        """Suspends the running thread. Calls from the scheduler itself do not wait."""
        task = self.current
        if task is None:
            return
        self._put(self.now + max(seconds, 0.0), task)
        self._switch(task)
        self.check()

    def rest(self, seconds: float) -> None:
        """As `sleep`, until `wake`."""
        task = self.current
        assert task is not None
        self._resting.append(task)
        self.sleep(seconds)
        if task in self._resting:
            self._resting.remove(task)

    def wake(self, within: Callable[[], float]) -> None:
        """All threads that rest go on, each after so many seconds."""
        resting, self._resting = self._resting, []
        for task in resting:
            self._put(self.now + within(), task)

    def check(self) -> None:
        """Raises `Killed`, or waits, if the running thread's process was killed or suspended."""
        task = self.current
        if task is None:
            return
        while task.process.stopped_until > self.now and not task.process.is_killed:
            self._put(task.process.stopped_until, task)
            self._switch(task)
        if task.process.is_killed:
            raise Killed(task.process.name)

    def give_back(self) -> None:
        self.current = None
        self._back.release()

    def run(self, until: float, is_done: Callable[[], bool], every: float) -> None:
        """Runs until `is_done`, which is checked at each interval `every`, or until the time is over."""
        checked_at = self.now
        while self._due and self._due[0][0] <= until:
            when, number, due = heapq.heappop(self._due)
            if isinstance(due, Task) and due.turn != number:
                continue
            self.now = when
            if isinstance(due, Task):
                self._resume(due)
            else:
                due()
            if self.now - checked_at >= every:
                checked_at = self.now
                if is_done():
                    return

    def end(self) -> None:
        """Kills all processes, so that no thread is left."""
        for task in self._tasks:
            task.process.is_killed = True
        for task in self._tasks:
            while not task.is_done:
                self._resume(task)

    def _put(self, when: float, due: Task | Callable[[], None]) -> None:
        number = next(self._numbers)
        if isinstance(due, Task):
            due.turn = number
        heapq.heappush(self._due, (when, number, due))

    def _switch(self, task: Task) -> None:
        self.current = None
        self._back.release()
        task.wait()

    def _resume(self, task: Task) -> None:
        if task.is_done:
            return
        self.current = task
        task.resume()
        if not any(self._back.acquire(timeout=1) for _ in range(REAL_SECONDS_MAX)):
            raise AssertionError(f"a thread of {task.process.name} waits for something that never comes")
        self.current = None
        if task.failure is not None:
            raise task.failure


_running: list[Scheduler] = []


def use(scheduler: Scheduler) -> None:
    """Sets the scheduler of the executors that are created from now on."""
    _running[:] = [scheduler]


class VirtualExecutor(Executor):
    """As `ThreadPoolExecutor`, with threads that take turns. `map` takes one after the other."""

    def __init__(self, max_workers: int | None = None, thread_name_prefix: str = "", *_: object) -> None:
        self._tasks: list[Task] = []

    def submit(self, call: Callable[P, ResultT], /, *arguments: P.args, **named: P.kwargs) -> Future[ResultT]:
        (scheduler,) = _running
        assert scheduler.current is not None
        future: Future[ResultT] = Future()

        def run() -> None:
            try:
                result = call(*arguments, **named)
            except Exception as error:  # noqa: BLE001  (it is the future's)
                future.set_exception(error)
            else:
                future.set_result(result)

        self._tasks.append(scheduler.spawn(scheduler.current.process, run))
        return future

    def map(
        self,
        fn: Callable[..., ResultT],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
    ) -> Iterator[ResultT]:
        return iter([fn(*each) for each in zip(*iterables, strict=False)])

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        (scheduler,) = _running
        while wait and any(not task.is_done for task in self._tasks):
            scheduler.sleep(0.05)


def install() -> None:
    """Replaces `ThreadPoolExecutor`. Call it before Lithify is imported."""
    concurrent.futures.ThreadPoolExecutor = VirtualExecutor  # type: ignore[misc, assignment]
