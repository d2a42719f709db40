"""Requests for ranges are repeated, and fewer are sent at a time while the service throttles them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from compactor.model.errors import Corrupt, Denied, Unavailable
from compactor.storage.ranges import SlowDown, Span
from compactor.storage.repeated_ranges import RepeatedRanges
from tests.fakes.manual_clock import ManualClock
from tests.fakes.memory_ranges import MemoryRanges

URI = "s3://lake/x"
BODY = bytes(range(200))
SPAN = Span(10, 20)


class Service(MemoryRanges):
    """Raises `errors` one after the other, then answers. `asked` counts its requests."""

    def __init__(self, *errors: Exception) -> None:
        super().__init__({URI: BODY})
        self.fail = self._fail
        self.asked = 0
        self._errors = list(errors)
        self._one = threading.Lock()

    def _fail(self, _: str) -> None:
        with self._one:
            self.asked += 1
            error = self._errors.pop(0) if self._errors else None
        if error is not None:
            raise error


def repeated(service: MemoryRanges, clock: ManualClock, *, connections_max: int = 8) -> RepeatedRanges:
    return RepeatedRanges(service, clock, tries_max=4, repeat_seconds_max=60.0, connections_max=connections_max)


def test_a_request_that_fails_is_repeated_after_pauses_that_double() -> None:
    clock = ManualClock()
    service = Service(*[Unavailable("not now")] * 3)
    assert bytes(repeated(service, clock).read(URI, SPAN, None)) == BODY[10:20]
    assert service.asked == 4
    assert 0.34 <= clock.monotonic_seconds() <= 0.71


def test_a_request_that_always_fails_fails_after_its_tries_with_the_last_error() -> None:
    service = Service(*[Unavailable(f"try {number}") for number in range(1, 9)])
    with pytest.raises(Unavailable, match="try 4"):
        repeated(service, ManualClock()).read_tail(URI, 50)
    assert service.asked == 4


def test_a_request_that_began_too_long_ago_is_not_repeated() -> None:
    clock = ManualClock()
    service = Service(*[Unavailable("not now")] * 8)
    slow = service.fail

    def fail(uri: str) -> None:
        clock.sleep(40.0)
        slow(uri)

    service.fail = fail
    with pytest.raises(Unavailable):
        repeated(service, clock).read(URI, SPAN, None)
    assert service.asked == 2


@pytest.mark.parametrize("error", [Corrupt("gone"), Denied("no")])
def test_an_answer_that_will_not_change_is_not_asked_for_again(error: Exception) -> None:
    service = Service(error)
    with pytest.raises(type(error)):
        repeated(service, ManualClock()).read(URI, SPAN, None)
    assert service.asked == 1


def test_throttling_halves_the_connections_and_answers_bring_them_back() -> None:
    ranges = repeated(Service(SlowDown("slow down"), SlowDown("slow down")), ManualClock())
    ranges.read(URI, SPAN, None)
    assert ranges.connections.allowed == 2
    for _ in range(40):
        ranges.read(URI, SPAN, None)
    assert ranges.connections.allowed == 8


def test_other_failures_leave_the_connections_as_they_are() -> None:
    ranges = repeated(Service(Unavailable("not now")), ManualClock())
    ranges.read(URI, SPAN, None)
    assert ranges.connections.allowed == 8


def test_at_least_one_connection_is_left() -> None:
    ranges = repeated(Service(*[SlowDown("slow down")] * 12), ManualClock())
    for _ in range(3):
        with pytest.raises(SlowDown):
            ranges.read(URI, SPAN, None)
    assert ranges.connections.allowed == 1
    assert bytes(ranges.read(URI, SPAN, None)) == BODY[10:20]


def test_requests_that_were_under_way_together_halve_the_connections_once() -> None:
    all_asked = threading.Barrier(4)
    service = MemoryRanges({URI: BODY})
    throttled = threading.Semaphore(4)

    def fail(_: str) -> None:
        if throttled.acquire(blocking=False):
            all_asked.wait(30)
            raise SlowDown("slow down")

    service.fail = fail
    ranges = repeated(service, ManualClock())
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: ranges.read(URI, SPAN, None), range(4)))
    assert ranges.connections.allowed == 4


def test_no_more_requests_are_under_way_than_are_allowed() -> None:
    service = MemoryRanges({URI: BODY})
    under_way: list[int] = []
    most = [0]
    lock = threading.Lock()
    second = threading.Semaphore(0)

    def fail(_: str) -> None:
        with lock:
            under_way.append(1)
            most[0] = max(most[0], len(under_way))
        second.release()
        with lock:
            under_way.pop()

    service.fail = fail
    ranges = repeated(service, ManualClock(), connections_max=2)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: ranges.read(URI, SPAN, None), range(200)))
    assert most[0] <= 2
    assert len(service.requests) == 200
