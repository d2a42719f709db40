"""Sessions whose plan is in the stream's log, cut off at their durable writes: another attempt goes on at once, another
job run when the plan's time is over. `make sim` walks all ways, `make test` some."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactor.engine.in_process import InProcessEngine
from tests.crash_points import (
    OPTIONS,
    PLAN,
    POINTS_WITH_PLAN,
    Crash,
    build_lake,
    copy_of,
    crash_and_go_on,
    key_of,
    writes_of_a_sound_run,
)
from tests.crashes import Lake

# Where the process is killed, so is the thread of the heartbeat.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return build_lake(tmp_path_factory.mktemp("lakes") / "prepared", InProcessEngine(), session_plans=True)


def test_the_plan_is_one_of_the_durable_writes_of_a_session(prepared: Lake, tmp_path: Path) -> None:
    lake = copy_of(prepared, tmp_path / "lake")
    plan = lake.plan(OPTIONS)
    points = [key_of(plan, lake, point) for point in POINTS_WITH_PLAN]
    assert writes_of_a_sound_run(lake, InProcessEngine()) == points


@pytest.mark.parametrize(
    "crash",
    [
        Crash(PLAN, "before", "the process is killed", "another job run"),
        Crash(PLAN, "before", "the store is down from then on"),
        Crash(PLAN, "after", "one answer is lost"),
        Crash(PLAN, "after", "the process is killed"),
        Crash(PLAN, "after", "the process is killed", "another job run"),
        Crash("the rehash is committed", "after", "the process is killed", "another job run"),
        Crash("round 1 is committed", "after", "the store is down from then on"),
        Crash("round 2 is told", "after", "the process is killed", "another job run"),
        Crash("round 3 is committed", "before", "the process is killed", "another job run"),
        Crash("round 3 is committed", "after", "the process is killed", "another job run"),
    ],
    ids=str,
)
def test_a_session_with_a_plan_that_is_cut_off_goes_on_after_its_last_committed_round(
    crash: Crash, prepared: Lake, tmp_path: Path
) -> None:
    crash_and_go_on(copy_of(prepared, tmp_path / "lake"), crash, InProcessEngine())
