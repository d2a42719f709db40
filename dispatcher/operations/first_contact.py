"""At its start, a dispatcher waits for services that deny access or do not answer, and reports that."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from compactor.log_context import ProcessLog
from compactor.model.clock import Clock
from compactor.model.errors import Denied, Unavailable
from compactor.model.retries import Backoff
from dispatcher.operations.health import HealthFile

_log = ProcessLog()

BACKOFF = Backoff(first_seconds=1.0, longest_seconds=60.0)
"""Pauses between two tries to reach a service."""

ReachedT = TypeVar("ReachedT")


class FirstContact:
    """For the thread that starts the dispatcher."""

    def __init__(self, health: HealthFile, health_seconds: float, stops: threading.Event, clock: Clock) -> None:
        """`health_seconds`: between two reports, also during a pause: an old report means that the dispatcher hangs."""
        self._health = health
        self._health_seconds = health_seconds
        self._stops = stops
        self._clock = clock
        self.troubles: dict[str, Exception] = {}
        """Services that have not been reached yet, by name. Thread-safe."""

    def wait_for(self, place: str, reach: Callable[[], ReachedT]) -> ReachedT | None:
        """The result of `reach` once the service answers; None: stopped before. Raises everything but
        `Unavailable` that `reach` raises: `Invalid` is a setting that cannot work."""
        failures = 0
        while not self._stops.is_set():
            try:
                reached = reach()
                self.troubles = {}
                return reached
            except Unavailable as error:
                self.troubles = {place: error}
                emit = _log.error if isinstance(error, Denied) else _log.warning
                kind = type(error).__name__
                failures += 1
                pause_seconds = BACKOFF.seconds(failures)
                emit(f"{place}_not_reached", error_kind=kind, reason=str(error), again_in_seconds=pause_seconds)
                self._pause(place, error, pause_seconds)
        return None

    def _pause(self, place: str, error: Unavailable, seconds: float) -> None:
        until_seconds = self._clock.monotonic_seconds() + seconds
        while (left := until_seconds - self._clock.monotonic_seconds()) > 0 and not self._stops.is_set():
            try:
                self._health.write_when_due({place: error}, job_runs_held=0)
            except Unavailable as unwritten:
                _log.warning("health_not_written", reason=str(unwritten))
            self._stops.wait(min(left, self._health_seconds))
