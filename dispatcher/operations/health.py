"""The health of a dispatcher, in a file in its work folder: the services that it reaches, or waits for at its start.

The file is rewritten every few seconds; an old one means that the dispatcher hangs or has ended.
"""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pydantic import Field

from compactor.log_context import LOG, Logged
from compactor.model.clock import Clock
from compactor.model.document import Document
from compactor.model.errors import Corrupt, Denied, Invalid, Unavailable, kind_of
from compactor.model.retries import Backoff

HEALTH_FILE = "health.json"
GONE_AFTER_SECONDS = 60.0
"""Age of a report that says that its dispatcher hangs or has ended; less where others take over sooner."""


class Trouble(Document):
    """`place`: queue, state, workflows, or a topic. `error_kind`: "Denied" needs other credentials or rights."""

    place: str
    error_kind: str
    reason: str
    since_ms: int


class HealthReport(Document):
    """Without troubles it reaches all services that it has tried.

    Attributes:
        job_runs_held: job runs that it works on
        gone_after_seconds: a report of this age says that it hangs or has ended
        warnings: of its settings: prices that are old or of another region; it is well nevertheless"""

    owner: str
    at_ms: int
    job_runs_held: int = Field(ge=0)
    gone_after_seconds: float
    troubles: tuple[Trouble, ...] = ()
    warnings: tuple[str, ...] = ()


class HealthFile:
    """Not thread-safe: for the controller's thread. `path` None: nothing is written."""

    def __init__(
        self,
        path: Path | None,
        owner: str,
        seconds: float,
        clock: Clock,
        gone_after_seconds: float = GONE_AFTER_SECONDS,
        warnings: tuple[str, ...] = (),
    ) -> None:
        """`seconds`: between two reports."""
        self._warnings = warnings
        self._gone_after_seconds = gone_after_seconds
        self._path = path
        self.owner = owner
        self._seconds = seconds
        self._clock = clock
        self._since_ms: dict[str, int] = {}
        self._written_at_seconds: float | None = None

    def write_when_due(self, troubles: dict[str, Exception], job_runs_held: int) -> None:
        """Raises `Unavailable` if the file cannot be written."""
        now_seconds, now_ms = self._clock.monotonic_seconds(), self._clock.now_ms()
        self._since_ms = {place: self._since_ms.get(place, now_ms) for place in troubles}
        due = self._written_at_seconds is None or now_seconds - self._written_at_seconds >= self._seconds
        if self._path is None or not due:
            return
        self._written_at_seconds = now_seconds
        report = HealthReport(
            owner=self.owner,
            at_ms=now_ms,
            job_runs_held=job_runs_held,
            gone_after_seconds=self._gone_after_seconds,
            troubles=tuple(
                Trouble(
                    place=place,
                    error_kind=kind_of(error),
                    reason=str(error),
                    since_ms=self._since_ms[place],
                )
                for place, error in sorted(troubles.items())
            ),
            warnings=self._warnings,
        )
        try:
            beside = self._path.with_name(f".{self._path.name}")
            beside.write_bytes(report.render())
            beside.replace(self._path)  # readers never see a partial report
        except OSError as error:
            raise Unavailable(f"{self._path} cannot be written: {error.strerror}") from error


def read_health(path: Path) -> HealthReport:
    """Raises `Unavailable` if no dispatcher has reported."""
    try:
        return HealthReport.parse_durable(path.read_bytes(), str(path))
    except FileNotFoundError as error:
        raise Unavailable(f"there is no {path}: does a dispatcher run with this work folder?") from error
    except (OSError, Corrupt) as error:
        raise Invalid(f"{path} cannot be read: {error}") from error


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
                emit = LOG.error if isinstance(error, Denied) else LOG.warning
                kind = type(error).__name__
                failures += 1
                pause_seconds = BACKOFF.seconds(failures)
                emit(f"{place}_not_reached", error_kind=kind, reason=str(error), again_in_seconds=pause_seconds)
                self._pause(place, error, pause_seconds)
        return None

    def _pause(self, place: str, error: Unavailable, seconds: float) -> None:
        until_seconds = self._clock.monotonic_seconds() + seconds
        while (left := until_seconds - self._clock.monotonic_seconds()) > 0 and not self._stops.is_set():
            with Logged("health_not_written", Unavailable):
                self._health.write_when_due({place: error}, job_runs_held=0)
            self._stops.wait(min(left, self._health_seconds))
