"""How often a launch is observed, by the thread that waits for it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from compactor.model.clock import SystemClock
from launcher.poller import Poller, PollerSettings, WokenPoller
from tests.fakes.manual_clock import ManualClock

LOOKS = 40


def test_a_launch_is_observed_every_second_and_its_log_every_ten() -> None:
    clock = ManualClock()
    looks: list[tuple[float, bool]] = []

    def look(log_is_due: bool) -> bool:
        looks.append((clock.monotonic_seconds(), log_is_due))
        return len(looks) == LOOKS

    Poller(PollerSettings(poll_seconds=1.0), clock).until_done(look)
    assert looks[0][1]
    assert {round(after - before, 6) for (before, _), (after, _) in pairwise(looks)} == {1.0}
    of_logs = [at for at, log_is_due in looks if log_is_due]
    assert {round(after - before, 6) for before, after in pairwise(of_logs)} == {10.0}


def test_the_log_of_a_new_launch_is_not_read_at_once() -> None:
    looks: list[bool] = []

    def look(log_is_due: bool) -> bool:
        looks.append(log_is_due)
        return log_is_due

    Poller(PollerSettings(poll_seconds=1.0), ManualClock()).until_done(look, is_new=True)
    assert looks == [False] * 10 + [True]


def test_an_error_of_an_observation_is_raised_where_the_launch_is_waited_for() -> None:
    def fails(_: bool) -> bool:
        raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        Poller(PollerSettings(), ManualClock()).until_done(fails)


def test_who_is_woken_looks_at_once() -> None:
    poller = WokenPoller(PollerSettings(poll_seconds=60.0), SystemClock())
    has_looked, has_ended = threading.Event(), threading.Event()

    def look(_: bool) -> bool:
        has_looked.set()
        return has_ended.is_set()

    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(poller.until_done, look)
        has_looked.wait(5)
        has_ended.set()
        poller.wake()
        waiting.result(timeout=5)
