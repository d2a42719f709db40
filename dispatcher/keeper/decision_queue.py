"""The queue as a keeper needs it: decisions go there now, or wait for it, as long as it is unavailable."""

import threading
from collections.abc import Callable
from typing import Protocol

from compactor.model.clock import Clock
from compactor.model.errors import Denied, LithifyError, Unavailable

AGAIN_SECONDS = 10.0
"""Pause after a failure: the tables of a look do not wait for an answer one after the other."""


class TakesInstructions(Protocol):
    def send(self, body: str) -> str:
        """Returns the message's id. Raises `Unavailable`, `Denied` or `Invalid`."""


class DecisionQueue:
    """Opened when it is needed, and again after each failure, with the credentials of that time. Thread-safe."""

    def __init__(self, open_queue: Callable[[], TakesInstructions], clock: Clock) -> None:
        self._open_queue = open_queue
        self._clock = clock
        self._lock = threading.Lock()
        self._queue: TakesInstructions | None = None
        self._failure: LithifyError | None = None
        self._failed_at_seconds = 0.0

    def try_to_open(self) -> str | None:
        """Why it is unavailable; None: it is there. Raises `Invalid` if there is no such queue."""
        try:
            self._opened()
        except (Unavailable, Denied) as error:
            return str(error)
        return None

    def send(self, body: str) -> str:
        queue = self._opened()
        try:
            return queue.send(body)
        except (Unavailable, Denied) as error:
            with self._lock:
                self._fails(error)
            raise

    def _opened(self) -> TakesInstructions:
        with self._lock:
            since_seconds = self._clock.monotonic_seconds() - self._failed_at_seconds
            if self._failure is not None and since_seconds < AGAIN_SECONDS:
                raise type(self._failure)(*self._failure.reasons)
            if self._queue is None:
                try:
                    self._queue = self._open_queue()
                except (Unavailable, Denied) as error:
                    self._fails(error)
                    raise
            return self._queue

    def _fails(self, error: LithifyError) -> None:
        self._queue, self._failure = None, error
        self._failed_at_seconds = self._clock.monotonic_seconds()
