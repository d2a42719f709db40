"""A slow request for a range is sent a second time, within a budget, and the first answer counts."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from compactor.model.errors import Unavailable
from compactor.storage.hedged_ranges import SECOND_REQUESTS_SAVED_MAX, HedgedRanges
from compactor.storage.ranges import Span
from tests.fakes.memory_ranges import MemoryRanges

URI = "s3://lake/x"
BODY = bytes(range(200))
SPAN = Span(10, 20)


class Requests:
    """`behave` is called with the number of each request, from 1, before its answer."""

    def __init__(self, behave: Callable[[int], None]) -> None:
        self.objects = MemoryRanges({URI: BODY})
        self.objects.fail = self._count
        self.sent = 0
        self._behave = behave
        self._lock = threading.Lock()

    def _count(self, _: str) -> None:
        with self._lock:
            self.sent += 1
            number = self.sent
        self._behave(number)


def test_a_request_without_an_answer_is_sent_again_and_the_second_answer_counts() -> None:
    may_end = threading.Event()

    def behave(number: int) -> None:
        if number == 1:
            assert may_end.wait(30)

    requests = Requests(behave)
    try:
        hedged = HedgedRanges(requests.objects, hedge_seconds=0.0)
        assert bytes(hedged.read(URI, SPAN, None)) == BODY[10:20]
        assert requests.sent == 2
        may_end.set()
        assert hedged.read_tail(URI, 50).size_bytes == len(BODY)
    finally:
        may_end.set()


def test_a_request_that_is_answered_in_time_is_sent_once() -> None:
    requests = Requests(lambda _: None)
    hedged = HedgedRanges(requests.objects, hedge_seconds=30.0)
    for _ in range(20):
        assert bytes(hedged.read(URI, SPAN, None)) == BODY[10:20]
    assert requests.sent == 20


@pytest.mark.parametrize("failing", [(1,), (2,)])
def test_of_two_requests_the_one_that_fails_does_not_count(failing: tuple[int, ...]) -> None:
    both_sent = threading.Event()

    def behave(number: int) -> None:
        if number == 2:
            both_sent.set()
        assert both_sent.wait(30)
        if number in failing:
            raise Unavailable("not now")

    requests = Requests(behave)
    hedged = HedgedRanges(requests.objects, hedge_seconds=0.0)
    assert bytes(hedged.read(URI, SPAN, None)) == BODY[10:20]


def test_where_both_requests_fail_the_first_error_is_raised() -> None:
    both_sent = threading.Event()

    def behave(number: int) -> None:
        if number == 2:
            both_sent.set()
        assert both_sent.wait(30)
        raise Unavailable(f"request {number}")

    with pytest.raises(Unavailable, match="request 1"):
        HedgedRanges(Requests(behave).objects, hedge_seconds=0.0).read(URI, SPAN, None)


def test_a_store_that_is_slow_throughout_gets_few_second_requests() -> None:
    count = 100
    room = threading.Semaphore(0)

    def behave(_: int) -> None:
        assert room.acquire(timeout=30)

    requests = Requests(behave)
    hedged = HedgedRanges(requests.objects, hedge_seconds=0.0)
    room.release(2 * count)
    all_begun = [threading.Thread(target=hedged.read, args=(URI, SPAN, None)) for _ in range(count)]
    for each in all_begun:
        each.start()
    for each in all_begun:
        each.join()
    assert requests.sent <= count + SECOND_REQUESTS_SAVED_MAX + count * 0.05
