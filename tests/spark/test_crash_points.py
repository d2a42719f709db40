"""Wherever a session is cut off, the next attempt goes on after the last committed round, and the rows are the same.

The order of durable writes of a session stands in round_commit.py. Every write of it is a crash point here, by name.
`make test` walks one way through each; `make sim` walks all ways.
"""

from __future__ import annotations

import pytest

from compactor.engine.protocol import Engine
from tests.crash_points import (
    HEARTBEAT,
    OPTIONS,
    POINTS,
    Crash,
    crash_and_go_on,
    key_of,
    writes_of_a_sound_run,
)
from tests.crashes import Lake

pytestmark = [
    pytest.mark.spark,
    # Where the process is killed, so is the thread of the heartbeat.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
]


def test_the_named_points_are_all_the_durable_writes_of_a_session(pending_lake: Lake, engine: Engine) -> None:
    plan = pending_lake.plan(OPTIONS)
    points = [key_of(plan, pending_lake, point) for point in POINTS]
    assert writes_of_a_sound_run(pending_lake, engine) == points


@pytest.mark.parametrize(
    "crash",
    [
        Crash("the start is told", "before", "the store is down from then on"),
        Crash("the rehash is committed", "before", "the process is killed", "another job run"),
        Crash("the rehash is committed", "after", "the store is down from then on"),
        Crash("the rehash is told", "before", "the process is killed"),
        Crash("round 1 is committed", "after", "the process is killed"),
        Crash("the checkpoint is written", "before", "the process is killed", "another job run"),
        Crash("the checkpoint is hinted at", "after", "the process is killed"),
        Crash("round 1 is told", "after", "the store is down from then on"),
        Crash("round 2 is committed", "before", "the store is down from then on"),
        Crash("round 2 is committed", "after", "one answer is lost"),
        Crash("round 2 is told", "before", "one answer is lost"),
        Crash("round 3 is committed", "after", "the process is killed", "another job run"),
        Crash("round 3 and the success are told", "before", "the store is down from then on"),
        Crash("round 3 and the success are told", "after", "the store is down from then on"),
        Crash(HEARTBEAT, "before", "the process is killed"),
    ],
    ids=str,
)
def test_a_session_that_is_cut_off_goes_on_after_its_last_committed_round(
    crash: Crash, pending_lake: Lake, engine: Engine
) -> None:
    crash_and_go_on(pending_lake, crash, engine)
