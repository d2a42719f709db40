"""What failed is tried again after pauses that double; time and chance are those of a clock."""

from __future__ import annotations

import pytest

from compactor.model.clock import SystemClock, chance
from compactor.model.errors import Invalid, Unavailable
from compactor.model.retries import Backoff, Retry
from tests.fakes.manual_clock import ManualClock

BACKOFF = Backoff(first_seconds=4, longest_seconds=60, jitter=0.5)


class Service:
    """Raises `errors` one after the other, then answers; `asked` counts the calls, each of which takes `seconds`."""

    def __init__(self, clock: ManualClock, *errors: Exception, seconds: float = 0.0) -> None:
        self.asked = 0
        self._errors = list(errors)
        self._clock = clock
        self._seconds = seconds

    def __call__(self) -> str:
        self.asked += 1
        self._clock.sleep(self._seconds)
        if self._errors:
            raise self._errors.pop(0)
        return "answer"


def is_temporary(error: BaseException) -> bool:
    return isinstance(error, Unavailable)


def test_pauses_double_up_to_the_longest_and_chance_takes_at_most_the_jitter_away() -> None:
    for failures, whole in ((1, 4), (2, 8), (3, 16), (4, 32), (5, 60), (6, 60), (400, 60)):
        pauses = [BACKOFF.seconds(failures, chance) for chance in (0, 0.25, 0.5, 1)]
        assert pauses == [whole / 2, whole * 0.625, whole * 0.75, whole]


def test_a_pause_without_jitter_is_whole() -> None:
    assert {Backoff(4, 60).seconds(2, chance) for chance in (0, 0.5, 1)} == {8}


def test_a_call_is_repeated_with_pauses_until_it_is_answered() -> None:
    clock = ManualClock()
    service = Service(clock, *[Unavailable("503")] * 3)
    assert Retry(Backoff(1, 60), tries_max=4).call(service, clock, is_temporary) == "answer"
    assert (service.asked, clock.monotonic_seconds()) == (4, 1 + 2 + 4)


def test_after_its_last_try_a_call_raises_the_last_error_itself() -> None:
    service = Service(ManualClock(), *[Unavailable(f"try {number}") for number in range(1, 9)])
    with pytest.raises(Unavailable, match=r"^try 3$"):
        Retry(Backoff(1, 60), tries_max=3).call(service, ManualClock(), is_temporary)
    assert service.asked == 3


def test_an_error_that_is_not_temporary_ends_the_tries() -> None:
    service = Service(ManualClock(), Unavailable("503"), Invalid("no such queue"))
    with pytest.raises(Invalid, match="no such queue"):
        Retry(Backoff(1, 60), tries_max=9).call(service, ManualClock(), is_temporary)
    assert service.asked == 2


def test_a_call_that_began_too_long_ago_is_not_repeated() -> None:
    clock = ManualClock()
    service = Service(clock, *[Unavailable("503")] * 9, seconds=40)
    with pytest.raises(Unavailable):
        Retry(Backoff(1, 60), tries_max=9, seconds_max=60).call(service, clock, is_temporary)
    assert service.asked == 2


def test_the_pauses_of_two_runs_with_equal_clocks_are_equal() -> None:
    clocks = [ManualClock(), ManualClock()]
    for clock in clocks:
        Retry(BACKOFF, tries_max=9).call(Service(clock, *[Unavailable("503")] * 5), clock, is_temporary)
    assert clocks[0].monotonic_seconds() == clocks[1].monotonic_seconds()


def test_the_chance_of_a_clock_is_as_random_as_its_ids() -> None:
    found = [chance(SystemClock()) for _ in range(50)]
    assert all(0 <= each <= 1 for each in found)
    assert len(set(found)) > 40
