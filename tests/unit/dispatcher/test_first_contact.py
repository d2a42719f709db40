"""A dispatcher that starts while its queue denies access or does not answer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from compactor.model.errors import Denied, Invalid, LithifyError, Unavailable
from dispatcher.operations.health import BACKOFF, HEALTH_FILE, FirstContact, HealthFile, read_health
from tests.fakes.manual_clock import ManualClock

HEALTH_SECONDS = 5.0


class Stops(threading.Event):
    """Waiting moves the clock on; `looks` is called after each wait."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self.clock = clock
        self.looks: Callable[[], None] = lambda: None

    def wait(self, timeout: float | None = None) -> bool:
        self.clock.sleep(timeout or 0.0)
        self.looks()
        return self.is_set()


class Service:
    """Raises the errors, one at each try, then answers. `tried_at` is in seconds."""

    def __init__(self, clock: ManualClock, *errors: LithifyError) -> None:
        self.clock = clock
        self.errors = list(errors)
        self.tried_at: list[float] = []

    def __call__(self) -> str:
        self.tried_at.append(self.clock.monotonic_seconds())
        if self.errors:
            raise self.errors.pop(0)
        return "reached"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def stops(clock: ManualClock) -> Stops:
    return Stops(clock)


@pytest.fixture
def contact(clock: ManualClock, stops: Stops, tmp_path: Path) -> FirstContact:
    health = HealthFile(tmp_path / HEALTH_FILE, "me", HEALTH_SECONDS, clock)
    return FirstContact(health, HEALTH_SECONDS, stops, clock)


def test_a_queue_that_denies_access_and_then_does_not_answer_is_waited_for(
    contact: FirstContact, clock: ManualClock
) -> None:
    service = Service(clock, Denied("ExpiredToken"), Denied("AccessDenied"), Unavailable("503"))
    with capture_logs() as logs:
        assert contact.wait_for("queue", service) == "reached"
    assert service.tried_at == [0, 1, 3, 7]
    assert [(each["event"], each["log_level"], each["reason"], each["again_in_seconds"]) for each in logs] == [
        ("queue_not_reached", "error", "ExpiredToken", 1),
        ("queue_not_reached", "error", "AccessDenied", 2),
        ("queue_not_reached", "warning", "503", 4),
    ]


def test_pauses_grow_up_to_a_bound(contact: FirstContact, clock: ManualClock) -> None:
    service = Service(clock, *[Unavailable("503")] * 12)
    contact.wait_for("queue", service)
    pauses = [after - before for before, after in zip(service.tried_at, service.tried_at[1:], strict=False)]
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (BACKOFF.first_seconds, BACKOFF.longest_seconds)


def test_health_names_the_trouble_and_is_reported_within_long_pauses(
    contact: FirstContact, clock: ManualClock, stops: Stops, tmp_path: Path
) -> None:
    ages_seconds: list[float] = []

    def look() -> None:
        report = read_health(tmp_path / HEALTH_FILE)
        ages_seconds.append((clock.now_ms() - report.at_ms) / 1000)
        (found,) = report.troubles
        assert (found.place, found.error_kind, found.reason) == ("queue", "Denied", "AccessDenied")

    stops.looks = look
    contact.wait_for("queue", Service(clock, *[Denied("AccessDenied")] * 10))
    assert len(ages_seconds) > 10
    assert max(ages_seconds) <= 2 * HEALTH_SECONDS


def test_a_stop_ends_the_waiting(contact: FirstContact, clock: ManualClock, stops: Stops) -> None:
    stops.looks = stops.set
    assert contact.wait_for("queue", Service(clock, *[Denied("AccessDenied")] * 10)) is None
    assert clock.monotonic_seconds() == BACKOFF.first_seconds


def test_a_queue_that_does_not_exist_is_not_waited_for(contact: FirstContact, clock: ManualClock) -> None:
    with pytest.raises(Invalid, match="no such queue"):
        contact.wait_for("queue", Service(clock, Invalid("there is no such queue")))
    assert clock.monotonic_seconds() == 0
