"""Polls every running launch from one thread, so that the cost of launches that make no progress is decided here.

| observed                                             | how often      | requests to the state |
|------------------------------------------------------|----------------|-----------------------|
| commands; a job's status, where that costs nothing   | `poll_seconds` | none                  |
| session log and heartbeat; any job's status          | `look_seconds` | 2                     |

Other threads only wait for it. The log is read as soon as the job has ended.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

from compactor.model.clock import Clock

POLLS_AT_ONCE = 8
"""Concurrent polls: each waits for answers of an object store."""


class AnyPoller(Protocol):
    def until_done(self, poll: Poll, *, is_new: bool = False) -> None:
        """Calls `poll` until it returns True; raises its errors. `is_new`: its job was just launched, so there is no
        log to read for `look_seconds`, unless the job ends before."""


Poll = Callable[[bool], bool]
"""One observation; the argument is whether to read the log. Returns whether to stop polling."""


@dataclass(frozen=True)
class PollerSettings:
    """
    Attributes:
        poll_seconds: short, because these polls need no request
        look_seconds: two requests per session: 100 sessions cost some $0.03 an hour on S3"""

    poll_seconds: float = 0.2
    look_seconds: float = 10.0


class WokenPoller:
    """For launches whose end wakes those who wait for it: each is polled by its own thread, at once after `wake`, so
    that none waits for requests of another. They are few: a worker each."""

    def __init__(self, settings: PollerSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._changed = threading.Condition()
        self._wakes = 0

    def wake(self) -> None:
        """A job has ended. Thread-safe."""
        with self._changed:
            self._wakes += 1
            self._changed.notify_all()

    def until_done(self, poll: Poll, *, is_new: bool = False) -> None:
        """As `Poller.until_done`."""
        due_seconds = self._clock.monotonic_seconds() + self._settings.look_seconds if is_new else float("-inf")
        while True:
            wakes, now_seconds = self._wakes, self._clock.monotonic_seconds()
            is_due = now_seconds >= due_seconds
            if is_due:
                due_seconds = now_seconds + self._settings.look_seconds
            if poll(is_due):
                return
            with self._changed:
                if wakes == self._wakes:
                    self._changed.wait(self._settings.poll_seconds)


@dataclass
class _Polled:
    poll: Poll
    log_due_seconds: float
    end: Future[None] = field(default_factory=Future)


class Poller:
    """Shared by all sessions of a dispatcher. Its thread runs while there is something to poll."""

    def __init__(self, settings: PollerSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self._polled: list[_Polled] = []
        self._thread: threading.Thread | None = None

    def until_done(self, poll: Poll, *, is_new: bool = False) -> None:
        """Calls `poll` until it returns True; raises its errors. `is_new`: its job was just launched, so there is no
        log to read for `look_seconds`, unless the job ends before."""
        context = contextvars.copy_context()  # log lines of a poll name their attempt
        due_seconds = self._clock.monotonic_seconds() + self._settings.look_seconds if is_new else float("-inf")
        polled = _Polled(lambda log_is_due: context.run(poll, log_is_due), due_seconds)
        with self._lock:
            self._polled.append(polled)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="poller", daemon=True)
                self._thread.start()
        polled.end.result()

    def _run(self) -> None:
        with ThreadPoolExecutor(POLLS_AT_ONCE, thread_name_prefix="poll") as threads:
            while self._poll_all(threads):
                self._clock.sleep(self._settings.poll_seconds)

    def _poll_all(self, threads: ThreadPoolExecutor) -> bool:
        """Whether anything is left to poll."""
        with self._lock:
            polled = list(self._polled)
        now_seconds = self._clock.monotonic_seconds()
        due = [each for each in polled if each.log_due_seconds <= now_seconds]
        for each in due:
            each.log_due_seconds = now_seconds + self._settings.look_seconds
        observed = threads.map(lambda each: self._poll(each, log_is_due=True), due)
        for each in polled:
            if each not in due:
                self._poll(each, log_is_due=False)
        list(observed)
        with self._lock:
            self._polled = [each for each in self._polled if not each.end.done()]
            if not self._polled:
                self._thread = None
            return bool(self._polled)

    def _poll(self, polled: _Polled, *, log_is_due: bool) -> None:
        try:
            if polled.poll(log_is_due):
                polled.end.set_result(None)
        except BaseException as error:  # noqa: BLE001  (it is raised where the launch is waited for)
            polled.end.set_exception(error)
