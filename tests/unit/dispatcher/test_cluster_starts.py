"""The start of a cluster, learned from launches: by worked numbers, with a state that fails, and over dispatchers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from compactor.planning.bundle_plan import BundleBounds
from compactor.planning.own_errors import ENOUGH, FACTORS_KEPT, PlaceFactors
from compactor.planning.sizing import Resources, SessionSize, size_session
from compactor.planning.time_model import SLA_BUFFER
from compactor.session_job import _seconds_since
from dispatcher.records.cluster_starts import READ_AGAIN_SECONDS, STARTS_KEPT, LearnedStarts, ObservedStarts
from dispatcher.records.keys import ClusterStartsObject
from launcher.sizing.cluster_choice import ClusterLimits, ClusterRoom, choose_cluster
from launcher.spark_job import SparkJob
from launcher.submit import job_arguments
from tests.fakes.dispatch_desk import Desk
from tests.fakes.faulty_store import FaultyStore
from tests.fakes.manual_clock import ManualClock
from tests.fakes.memory_store import MemoryStore

PLACE = "emr eu-west-1"
ROOM = ClusterRoom(ClusterLimits(start_seconds=420))
SIZE = SessionSize(0, 10**8, 75 * 10**8, 0, None, delta_files=50, lake_is_remote=True)


def learned(room: ClusterRoom, starts: LearnedStarts) -> ClusterLimits:
    found = starts.applied(room)
    assert isinstance(found, ClusterRoom)
    return found.limits


def test_a_first_plan_counts_the_seconds_that_are_set_and_later_ones_those_that_were_observed() -> None:
    clock = ManualClock()
    starts = LearnedStarts(MemoryStore(clock), PLACE, clock)
    assert learned(ROOM, starts) == ROOM.limits
    starts.observed(300.0, PlaceFactors())
    assert learned(ROOM, starts).start_seconds == 300, "a guess gives way to the first launch"
    starts.observed(310.0, PlaceFactors())
    assert learned(ROOM, starts).start_seconds == 310, "of few the longest"
    for seconds in (290.0, 300.0, 310.0) * 3:
        starts.observed(seconds, PlaceFactors())
    limits = learned(ROOM, starts)
    assert limits.start_seconds == pytest.approx(300)
    assert limits.start_late_seconds == 0  # they differ by less than 10 %


def test_the_spread_of_starts_lengthens_the_expected_sla_and_the_plan_says_so() -> None:
    clock = ManualClock()
    starts = LearnedStarts(MemoryStore(clock), PLACE, clock)
    for seconds in (200.0, 300.0, 600.0) * 3:
        starts.observed(seconds, PlaceFactors())
    limits = learned(ROOM, starts)
    assert limits.start_seconds == pytest.approx(300)
    assert limits.start_seconds * SLA_BUFFER + limits.start_late_seconds > 600
    room = starts.applied(ROOM)
    assert isinstance(room, ClusterRoom)
    chosen = choose_cluster(SIZE, room, None)
    assert chosen.plan.start_seconds == pytest.approx(300)
    work = chosen.sizing.time.work_seconds
    assert chosen.plan.expected_sla == pytest.approx((300 + work) * SLA_BUFFER + limits.start_late_seconds)
    assert "9 launches took 200 to 600 s to start here: 300 s are counted" in chosen.sizing.arithmetic[-1]


def test_other_dispatchers_learn_it_after_a_while_and_places_are_apart() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    mine, theirs, elsewhere = (LearnedStarts(store, place, clock) for place in (PLACE, PLACE, "emr us-east-1"))
    assert learned(ROOM, theirs) == ROOM.limits
    for _ in range(STARTS_KEPT + 5):
        mine.observed(100.0, PlaceFactors((2.0,)))
    assert learned(ROOM, theirs) == ROOM.limits
    clock.sleep(READ_AGAIN_SECONDS + 1)
    assert learned(ROOM, theirs).start_seconds == pytest.approx(100)
    assert learned(ROOM, elsewhere) == ROOM.limits
    assert theirs.applied(ROOM).place_factors.plain == (2.0,) * FACTORS_KEPT


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_state_that_does_not_answer_costs_an_observation_and_fails_nothing(when: str) -> None:
    clock = ManualClock()
    store = FaultyStore(MemoryStore(clock))
    starts = LearnedStarts(store, PLACE, clock)
    key = ClusterStartsObject(PLACE).key
    store.fail("overwrite", key, when=when)  # type: ignore[arg-type]
    starts.observed(100.0, PlaceFactors())
    store.fail("read", key, times=None)
    clock.sleep(READ_AGAIN_SECONDS + 1)
    assert learned(ROOM, starts).start_seconds < 420
    assert learned(ROOM, LearnedStarts(store, PLACE, clock)) == ROOM.limits


def test_a_damaged_note_is_left_out_and_replaced() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    store.overwrite(ClusterStartsObject(PLACE).key, b"{")
    starts = LearnedStarts(store, PLACE, clock)
    assert learned(ROOM, starts) == ROOM.limits
    starts.observed(100.0, PlaceFactors())
    assert learned(ROOM, LearnedStarts(store, PLACE, clock)).start_seconds < 420


def test_launches_teach_the_plans_of_the_next_ones(tmp_path: Path) -> None:
    desk = Desk(tmp_path, bundles=BundleBounds(sessions=1))
    desk.cluster.has = ClusterRoom(ClusterLimits(nodes_max=2))
    starts = []
    for number in range(ENOUGH + 1):
        desk.append([{"id": number}])
        job_run_id = desk.accept(job_run_id=f"run {number}")
        desk.run()
        (session,) = desk.job_run(job_run_id).sessions.values()
        assert session.plan is not None
        assert session.plan.cluster is not None
        starts.append(session.plan.cluster.start_seconds)
    assert starts[0] == 420
    assert max(starts[1:]) < 60  # that of the fake cluster is a moment
    desk.close()


def test_a_job_counts_from_its_launch_unless_a_clock_is_wrong() -> None:
    assert _seconds_since(None, 900_000, 420.0) == 420
    assert _seconds_since(100_000, 900_000, 420.0) == 800
    assert _seconds_since(1_000_000, 900_000, 420.0) == 420
    assert _seconds_since(0, 900_000_000, 420.0) == 420


def test_a_job_is_told_when_it_was_launched() -> None:
    location = MemoryStore(ManualClock()).location
    known, unknown = (SparkJob("name", location, "plan", 1, Resources(1, 1), at_ms) for at_ms in (17, None))
    assert job_arguments(known)[-2:] == ("--launched-at-ms", "17")
    assert "--launched-at-ms" not in job_arguments(unknown)


MACHINES = Resources(task_memory_bytes=4 * 1024**3, tasks=2, start_seconds=20.0)


def on_machines(starts: LearnedStarts) -> Resources:
    found = starts.applied(MACHINES)
    assert isinstance(found, Resources)
    return found


def test_machines_that_run_anyway_start_as_their_own_sessions_did_and_a_first_plan_says_how_wide_it_is() -> None:
    clock = ManualClock()
    starts = LearnedStarts(MemoryStore(clock), "standalone", clock)
    first = on_machines(starts)
    assert (first.start_seconds, first.start_late_seconds) == (20, 0)
    assert first.start_note == "no start was observed here yet: it may take 10 to 40 s"
    for seconds in (30.0, 34.0, 38.0) * 3:
        starts.observed(seconds, PlaceFactors((1.5,)))
    later = on_machines(starts)
    assert later.start_seconds == pytest.approx(34)
    assert later.start_seconds * SLA_BUFFER + later.start_late_seconds > 38
    assert size_session(SIZE, later, None, None).time.start == pytest.approx(34)
    warm = starts.applied(replace(MACHINES, start_seconds=0.0))
    assert isinstance(warm, Resources)
    assert warm.start_seconds == 0


def test_a_tables_first_session_is_corrected_by_those_of_other_tables_there() -> None:
    clock = ManualClock()
    starts = LearnedStarts(MemoryStore(clock), "standalone", clock)
    alone = size_session(SIZE, on_machines(starts), None, None)
    for _ in range(ENOUGH):
        starts.observed(20.0, PlaceFactors((1.5,)))
    beside = size_session(SIZE, on_machines(starts), None, None)
    assert beside.time.work_seconds == pytest.approx(1.5 * alone.time.work_seconds)
    assert f"{ENOUGH} recent sessions there took 1.50 to 1.50 of the first prediction" in beside.arithmetic[-2]
    assert "with the buffer of the sessions there" in beside.arithmetic[-3]


def test_sessions_on_machines_that_run_anyway_teach_what_they_took_beside_their_work(tmp_path: Path) -> None:
    desk = Desk(tmp_path, bundles=BundleBounds(sessions=1))
    desk.cluster.has = MACHINES
    for number in range(ENOUGH):
        desk.append([{"id": number}])
        desk.accept(job_run_id=f"run {number}")
        desk.run()
    body = desk.state.read(ClusterStartsObject(desk.cluster.place).key)
    assert body is not None
    known = ObservedStarts.parse_durable(body, "starts")
    assert len(known.seconds) == len(known.factors) == ENOUGH
    desk.close()
