"""How a compaction in this process tells how far it is: to a listener, and on a screen."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pytest
from rich.console import Console

from compactor import DeltaCatalog, compact
from compactor.log.durable_log import DurableLog
from compactor.model.errors import Unavailable
from compactor.planning.sizing import Resources
from compactor.planning.spec import JobRunResult, SessionPlan
from compactor.planning.time_model import SLA_BUFFER
from compactor.sessions.keys import JobRunFolder
from compactor.sessions.session_log import SESSION_LOG, ExpectedSlaChanged, Heartbeat, SessionProgress, SessionStarted
from dispatcher.cli.compact import ProgressScreen
from tests.builders import pinned_session
from tests.fakes.attempts import plan_session, run_attempt
from tests.fakes.manual_clock import ManualClock
from tests.fakes.unruly_engine import UnrulyEngine

TABLE = "ACME.ORDERS.V1"
ResultT = TypeVar("ResultT")


@pytest.fixture
def lake(tmp_path: Path) -> DeltaCatalog:
    """Two days of two deltas each."""
    catalog = DeltaCatalog.open(str(tmp_path))
    orders = catalog.create_table(TABLE, partition_keys=["day"])
    for day in ("1", "2"):
        for status in ("new", "sent"):
            orders.append({"day": day}, pa.table({"id": [1, 2], "status": [status] * 2}))
    return catalog


def test_a_listener_hears_of_every_session_and_round(lake: DeltaCatalog) -> None:
    steps: list[SessionProgress] = []
    compact(
        TABLE,
        {"id"},
        delta_catalog_client=lake,
        hash_bucket_count=1,
        max_rows_per_round=2,
        engine=UnrulyEngine(),
        progress=steps.append,
    )
    assert [each.partition for each in steps if each.heartbeat is None] == [{"day": "1"}, {"day": "2"}]
    assert {(each.number, each.sessions) for each in steps} == {(1, 2), (2, 2)}
    committed = {
        (each.number, beat.round_number, beat.rows_done)
        for each in steps
        if (beat := each.heartbeat) is not None and beat.step == "committed"
    }
    assert committed == {(1, 1, 2), (1, 2, 4), (2, 1, 2), (2, 2, 4)}


def test_a_listener_that_fails_stops_nothing(lake: DeltaCatalog) -> None:
    def fail(_: SessionProgress) -> None:
        raise ValueError("the screen is gone")

    result: JobRunResult = compact(
        TABLE, {"id"}, delta_catalog_client=lake, hash_bucket_count=1, engine=UnrulyEngine(), progress=fail
    )
    assert [session.rows_out for session in result.sessions] == [2, 2]


def test_the_screen_has_a_line_for_each_round_that_is_committed() -> None:
    out, clock = io.StringIO(), ManualClock()
    with ProgressScreen(Console(file=out), clock) as screen:
        for step, tasks_done, rows_done in (
            ("dedupe", 0, 0),
            ("dedupe", 1, 0),
            ("committed", 1, 7),
            ("committed", 1, 7),
        ):
            clock.sleep(1)
            beat = Heartbeat(
                attempt=1,
                at_ms=0,
                round_number=1,
                rounds=2,
                step=step,
                tasks_done=tasks_done,
                tasks=1,
                rows_done=rows_done,
                rows=9,
            )
            screen(SessionProgress(2, 3, {"day": "[/]"}, beat))
    assert out.getvalue() == "   3.0 s  day=[/] (2 of 3): round 1 of 2 committed, 7 delta rows done\n"


def two_rounds(lake: DeltaCatalog) -> SessionPlan:
    """A session of one day, with a delta a round."""
    spec = pinned_session(
        lake, TABLE, job_run_id="run", hash_bucket_count=1, max_rows_per_round=2, partitions=({"day": "1"},)
    )
    return plan_session(spec, lake, Resources(2**30, 1))


def test_the_refined_expected_sla_includes_the_time_before_the_session(lake: DeltaCatalog) -> None:
    """Two rounds of equal size: after the first, 10 s of start and 3 s of work, 3 s of work and 10 % are to come."""
    clock = ManualClock()
    engine = UnrulyEngine()
    plan = two_rounds(lake)

    def work(beat: Heartbeat) -> None:
        if beat.step == "dedupe":
            clock.sleep(3)

    result = run_attempt(plan, lake, lake.store, engine, 1, clock, on_heartbeat=work, before_seconds=10.0)
    assert result.seconds == 10 + 3 + 3
    folder = JobRunFolder("run").session(plan.spec.session_id)
    entries = DurableLog(lake.store, folder.log, SESSION_LOG, clock).entries(after=0)
    changes = [each.now for entry in entries for each in entry.actions if isinstance(each, ExpectedSlaChanged)]
    assert pytest.approx(10 + 3 + 3 * SLA_BUFFER) in changes
    assert result.expected_sla == plan.expected_sla, "what was planned, to be held against what it took"


class DiesOnDemand(UnrulyEngine):
    """`dies`: every task from then on finds its machine gone."""

    dies = False

    def run_task(self, task: Callable[[], ResultT]) -> ResultT:
        if self.dies:
            raise Unavailable("the machine is gone")
        return super().run_task(task)


def test_an_attempt_expects_of_the_rounds_that_are_left_what_earlier_attempts_took_for_theirs(
    lake: DeltaCatalog,
) -> None:
    clock = ManualClock()
    plan = two_rounds(lake)
    first = DiesOnDemand()

    def work(beat: Heartbeat) -> None:
        if beat.step == "dedupe" and beat.round_number == 1:
            clock.sleep(30)
        first.dies = beat.round_number == 2

    with pytest.raises(Unavailable, match="the machine is gone"):
        run_attempt(plan, lake, lake.store, first, 1, clock, on_heartbeat=work, before_seconds=10.0)
    run_attempt(plan, lake, lake.store, UnrulyEngine(), 2, clock, before_seconds=10.0)
    folder = JobRunFolder("run").session(plan.spec.session_id)
    entries = DurableLog(lake.store, folder.log, SESSION_LOG, clock).entries(after=0)
    second = [each for entry in entries for each in entry.actions if each.attempt == 2]
    change = next(each for each in second if isinstance(each, ExpectedSlaChanged))
    assert change.before == plan.expected_sla
    assert change.now == pytest.approx(10 + 30 * SLA_BUFFER)
    assert isinstance(second[0], SessionStarted)
