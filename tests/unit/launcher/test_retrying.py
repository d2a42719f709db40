"""What follows from an attempt that failed."""

from __future__ import annotations

import pytest

from compactor.model.errors import ErrorKind
from launcher.retrying import FailureCounts, GiveUp, RetryPolicy, TryAgain, what_follows

POLICY = RetryPolicy(max_attempts=3, patience_seconds=3600, retry_seconds=4, retry_seconds_max=60)
HOUR_MS = 3_600_000


def ends(*kinds: str, apart_ms: int = 0, progressed: bool = False) -> tuple[FailureCounts, list[TryAgain | GiveUp]]:
    """Attempts that ended so one after the other, and what followed from each."""
    failure_counts, followed = FailureCounts(), []
    for place, kind in enumerate(kinds):
        at_ms = 1_000_000 + place * apart_ms
        failure_counts = failure_counts.after(ErrorKind(kind), at_ms, progressed=progressed)
        followed.append(what_follows(ErrorKind(kind), failure_counts, at_ms, POLICY, chance=0.5))
    return failure_counts, followed


def goes_on(followed: list[TryAgain | GiveUp]) -> list[bool]:
    return [isinstance(each, TryAgain) for each in followed]


@pytest.mark.parametrize("kind", ["Invalid", "Corrupt"])
def test_a_permanent_failure_is_given_up_at_once(kind: str) -> None:
    assert ends(kind)[1] == [GiveUp()]


@pytest.mark.parametrize("kind", ["crashed", "stalled", "bug", "OutOfMemory", "of another release"])
def test_other_failures_are_tried_three_times_in_all(kind: str) -> None:
    assert goes_on(ends(kind, kind, kind)[1]) == [True, True, False]


@pytest.mark.parametrize("kind", ["Unavailable", "Denied", "Outdated", "Conflict"])
def test_a_service_that_is_away_is_waited_for_as_long_as_patience_lasts(kind: str) -> None:
    followed = ends(*[kind] * 61, apart_ms=60_000)[1]
    assert goes_on(followed) == [True] * 60 + [False]
    last = followed[-1]
    assert isinstance(last, GiveUp)
    assert last.why is not None
    assert last.why.startswith("61 attempts in 1.0 hours found no service")


def test_a_clock_that_goes_back_ends_no_patience() -> None:
    assert goes_on(ends(*["Unavailable"] * 10, apart_ms=-HOUR_MS)[1]) == [True] * 10


def test_a_failure_between_two_outages_begins_the_second_anew() -> None:
    failure_counts, followed = ends("Unavailable", "crashed", "Unavailable", apart_ms=HOUR_MS)
    assert goes_on(followed) == [True, True, True]
    assert (failure_counts.failures, failure_counts.outages) == (1, 1)


def test_being_overtaken_is_no_failure_however_often() -> None:
    failure_counts, followed = ends(*["Fenced"] * 50)
    assert goes_on(followed) == [True] * 50
    assert failure_counts == FailureCounts(fenced=50)


def test_an_attempt_that_brought_the_session_forward_begins_new_counts_but_what_it_lacked_is_remembered() -> None:
    failure_counts, followed = ends(*["OutOfMemory"] * 9, progressed=True)
    assert goes_on(followed) == [True] * 9
    assert (failure_counts.failures, failure_counts.out_of_memory) == (1, 9)


def test_pauses_double_up_to_the_longest_and_differ() -> None:
    for in_a_row, whole in ((1, 4), (2, 8), (3, 16), (4, 32), (5, 60), (6, 60), (400, 60)):
        pauses = [POLICY.pause_seconds(in_a_row, chance) for chance in (0, 0.25, 0.5, 1)]
        assert pauses == [whole / 2, whole * 0.625, whole * 0.75, whole]


def test_the_pause_of_a_retry_is_chosen_by_the_chance_that_was_handed_in() -> None:
    failure_counts = FailureCounts().after(ErrorKind.CRASHED, 0, progressed=False)
    follows = [what_follows(ErrorKind.CRASHED, failure_counts, 0, POLICY, chance) for chance in (0, 1)]
    assert follows == [TryAgain(2.0), TryAgain(4.0)]
