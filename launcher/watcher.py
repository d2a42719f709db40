"""Observes every running attempt from one thread, so that the cost of idle attempts is decided here.

| observed                                         | how often       | requests to the state |
|--------------------------------------------------|-----------------|-----------------------|
| orders; a job's status, where that costs nothing | `poll_seconds`  | none                  |
| session log and heartbeat; any job's status      | `look_seconds`  | 2                     |

Other threads only wait for it. The log is read as soon as the job has ended.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from compactor.model.clock import Clock

LOOKS_AT_ONCE = 8
"""Concurrent requests, because each one to an object store has a latency."""

Look = Callable[[bool], bool]
"""One observation; the argument is whether to read the log. Returns whether to stop observing."""


@dataclass(frozen=True)
class WatcherSettings:
    poll_seconds: float = 1.0
    look_seconds: float = 10.0


@dataclass
class _Watched:
    look: Look
    look_due_seconds: float
    end: Future[None] = field(default_factory=Future)


class Watcher:
    """Shared by all sessions of a dispatcher. Its thread runs while there is something to observe."""

    def __init__(self, settings: WatcherSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self._watched: list[_Watched] = []
        self._thread: threading.Thread | None = None

    def watch(self, look: Look, *, is_new: bool = False) -> None:
        """Calls `look` until it returns True; raises its errors. `is_new`: its job was just launched, so there is no
        log to read for `look_seconds`, unless the job ends before."""
        context = contextvars.copy_context()  # log lines of a look name their attempt
        due_seconds = self._clock.monotonic_seconds() + self._settings.look_seconds if is_new else float("-inf")
        watched = _Watched(lambda log_is_due: context.run(look, log_is_due), due_seconds)
        with self._lock:
            self._watched.append(watched)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)
                self._thread.start()
        watched.end.result()

    def _run(self) -> None:
        with ThreadPoolExecutor(LOOKS_AT_ONCE, thread_name_prefix="look") as threads:
            while self._look_at_all(threads):
                self._clock.sleep(self._settings.poll_seconds)

    def _look_at_all(self, threads: ThreadPoolExecutor) -> bool:
        """Whether anything is left to observe."""
        with self._lock:
            watched = list(self._watched)
        now_seconds = self._clock.monotonic_seconds()
        due = [each for each in watched if each.look_due_seconds <= now_seconds]
        for each in due:
            each.look_due_seconds = now_seconds + self._settings.look_seconds
        observed = threads.map(lambda each: self._look(each, log_is_due=True), due)
        for each in watched:
            if each not in due:
                self._look(each, log_is_due=False)
        list(observed)
        with self._lock:
            self._watched = [each for each in self._watched if not each.end.done()]
            if not self._watched:
                self._thread = None
            return bool(self._watched)

    def _look(self, watched: _Watched, *, log_is_due: bool) -> None:
        try:
            if watched.look(log_is_due):
                watched.end.set_result(None)
        except BaseException as error:  # noqa: BLE001  (it is raised where the attempt is waited for)
            watched.end.set_exception(error)
