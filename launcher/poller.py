"""Polls each running launch from the thread that waits for it, and decides the cost of launches that make no progress.

| observed                                             | how often      | requests to the state |
|------------------------------------------------------|----------------|-----------------------|
| commands; a job's status, where that costs nothing   | `poll_seconds` | none                  |
| session log and heartbeat; any job's status          | `look_seconds` | 2                     |

The log is read as soon as the job has ended.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from compactor.model.clock import Clock

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


class Poller:
    """Shared by all launches of a dispatcher. Thread-safe."""

    def __init__(self, settings: PollerSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._wakes = 0

    def until_done(self, poll: Poll, *, is_new: bool = False) -> None:
        """Calls `poll` until it returns True; raises its errors. `is_new`: its job was just launched, so there is no
        log to read for `look_seconds`, unless the job ends before."""
        due_seconds = self._clock.monotonic_seconds() + self._settings.look_seconds if is_new else float("-inf")
        while True:
            wakes, now_seconds = self._wakes, self._clock.monotonic_seconds()
            is_due = now_seconds >= due_seconds
            if is_due:
                due_seconds = now_seconds + self._settings.look_seconds
            if poll(is_due):
                return
            self._pause(wakes)

    def _pause(self, wakes: int) -> None:
        """`wakes`: their number before the last poll."""
        self._clock.sleep(self._settings.poll_seconds)


class WokenPoller(Poller):
    """For launches whose end wakes those who wait for it: they poll at once after `wake`."""

    def __init__(self, settings: PollerSettings, clock: Clock) -> None:
        super().__init__(settings, clock)
        self._changed = threading.Condition()

    def wake(self) -> None:
        """A job has ended. Thread-safe."""
        with self._changed:
            self._wakes += 1
            self._changed.notify_all()

    def _pause(self, wakes: int) -> None:
        with self._changed:
            if wakes == self._wakes:
                self._changed.wait(self._settings.poll_seconds)
