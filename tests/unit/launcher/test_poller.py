"""One poller observes all sessions of a dispatcher."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from compactor.model.clock import Clock
from launcher.poller import Poller, PollerSettings
from tests.fakes.manual_clock import ManualClock

LOOKS_MIN = 40


class Observed:
    """An attempt that is observed until `is_over`: the time of each look, and whether the log was due."""

    def __init__(self, clock: Clock, is_over: Callable[[], bool]) -> None:
        self.looks: list[tuple[float, bool]] = []
        self.watchers: set[int] = set()
        self._clock = clock
        self._is_over = is_over

    def look(self, log_is_due: bool) -> bool:
        self.looks.append((self._clock.monotonic_seconds(), log_is_due))
        if not log_is_due:  # logs are read side by side, since each read has a latency
            self.watchers.add(threading.get_ident())
        return self._is_over()

    def seconds_between(self, *, log_is_due: bool | None = None) -> set[float]:
        times = [at for at, is_due in self.looks if log_is_due in (None, is_due)]
        return {round(after - before, 6) for before, after in pairwise(times)}


def test_one_thread_observes_all_sessions_their_logs_every_ten_seconds() -> None:
    clock = ManualClock()
    poller = Poller(PollerSettings(poll_seconds=1.0), clock)
    sessions: list[Observed] = []

    def all_were_seen() -> bool:
        return len(sessions) == 3 and all(len(each.looks) >= LOOKS_MIN for each in sessions)

    sessions += [Observed(clock, all_were_seen) for _ in range(3)]
    with ThreadPoolExecutor(len(sessions)) as threads:
        for ended in [threads.submit(poller.until_done, each.look) for each in sessions]:
            ended.result()
    for each in sessions:
        assert each.looks[0][1]
        assert each.seconds_between() == {1.0}
        assert each.seconds_between(log_is_due=True) == {10.0}
    assert len(set.union(*(each.watchers for each in sessions))) == 1


def test_an_error_of_one_observation_is_raised_where_that_session_is_waited_for_and_the_others_go_on() -> None:
    clock = ManualClock()
    poller = Poller(PollerSettings(), clock)
    has_failed = threading.Event()
    other = Observed(clock, has_failed.is_set)

    def fails(_: bool) -> bool:
        raise ValueError("a bug")

    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(poller.until_done, other.look)
        with pytest.raises(ValueError, match="a bug"):
            poller.until_done(fails)
        has_failed.set()
        running.result()
    assert other.looks


def test_its_thread_ends_with_the_last_session_and_another_begins_with_the_next() -> None:
    clock = ManualClock()
    poller = Poller(PollerSettings(), clock)
    for _ in range(2):
        looks = iter([False, True])
        poller.until_done(lambda _, looks=looks: next(looks))  # type: ignore[misc]
    assert clock.monotonic_seconds() > 0
