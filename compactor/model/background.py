"""Work in threads that keep no process from ending.

soon            one call, of which a `Future` tells what came
BackgroundLoop  the same call again and again
SharedLoop      one thread for several of these
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any, Self, TypeVar

ValueT = TypeVar("ValueT")

IDLE_MAX = 64
"""Threads that wait for a next call: starting one costs more than handing a call to it."""

_Calls = SimpleQueue[tuple[Future[Any], Callable[[], Any]]]

_idle: deque[_Calls] = deque()
"""The queues of the threads that wait, one each."""

os.register_at_fork(after_in_child=_idle.clear)  # threads do not survive a fork


def soon(call: Callable[[], ValueT]) -> Future[ValueT]:
    """Calls it in a thread, at once. A thread is kept for the next call. A process that ends waits for none of them."""
    outcome: Future[ValueT] = Future()
    try:
        calls = _idle.pop()
    except IndexError:
        calls = SimpleQueue()
        threading.Thread(target=_call_one_by_one, args=(calls,), name="soon", daemon=True).start()
    calls.put((outcome, call))
    return outcome


def _call_one_by_one(calls: _Calls) -> None:
    while _call(*calls.get(), calls):
        pass


def _call(outcome: Future[Any], call: Callable[[], Any], calls: _Calls) -> bool:
    """Whether the thread waits for another call. It does so before the outcome is told: who gets it calls again."""
    try:
        found = call()
    except BaseException as error:  # noqa: BLE001  (raised in the thread that waits)
        tell = partial(outcome.set_exception, error)
    else:
        tell = partial(outcome.set_result, found)
    stays = len(_idle) < IDLE_MAX
    if stays:
        _idle.append(calls)
    tell()
    return stays


class BackgroundLoop:
    """Calls `work` after each interval, in a thread of its own, until it ends. A context manager.

    An error of `work` ends the loop, and is raised where the loop is ended.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[], object],
        interval_seconds: float,
        *,
        at_once: bool = False,
        ends: threading.Event | None = None,
    ) -> None:
        """
        Args:
            name: of the thread
            interval_seconds: between the end of one call and the beginning of the next
            at_once: whether the first call comes before the first interval
            ends: set when several loops are to end together; None: the loop has an event of its own"""
        self._work = work
        self._interval_seconds = interval_seconds
        self._at_once = at_once
        self._ends = threading.Event() if ends is None else ends
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self._ends.set()
        self._thread.join()
        if error is None and self._error is not None:
            raise self._error

    def end(self) -> None:
        """Returns when the last call of `work` has returned. May be repeated."""
        self.__exit__(None, None, None)

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            if self._at_once and not self._ends.is_set():
                self._work()
            while not self._ends.wait(self._interval_seconds):
                self._work()
        except BaseException as error:  # noqa: BLE001  (it is raised where the loop is ended)
            self._error = error


class SharedLoop:
    """One thread for works that come and go, each called after each whole interval. A context manager, as they are.

    A work must not raise, and while it waits the others wait too.
    """

    def __init__(self, name: str, interval_seconds: float) -> None:
        self._works: dict[SharedWork, bool] = {}
        self._lock = threading.Lock()
        self._loop = BackgroundLoop(name, self.call_all, interval_seconds)

    def __enter__(self) -> Self:
        self._loop.__enter__()
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self._loop.__exit__(kind, error, traceback)

    def begin(self, work: SharedWork) -> None:
        with self._lock:
            self._works[work] = False

    def end(self, work: SharedWork) -> None:
        """Returns when the last call of `work` has returned. May be repeated."""
        with self._lock:
            self._works.pop(work, None)

    def call_all(self) -> None:
        """What the thread does after each interval."""
        with self._lock:
            for work, is_due in self._works.items():
                if is_due:
                    work.call()
                self._works[work] = True


class SharedWork:
    """One work of a shared loop, used as a loop of its own would be."""

    def __init__(self, loop: SharedLoop, call: Callable[[], object]) -> None:
        self.call = call
        self.is_running = False
        self._loop = loop

    def __enter__(self) -> Self:
        self.is_running = True
        self._loop.begin(self)
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self.end()

    def end(self) -> None:
        self.is_running = False
        self._loop.end(self)
