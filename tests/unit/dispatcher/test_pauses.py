"""What is paused starts nothing, loses nothing, and is told of once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from compactor.events.types import Severity
from compactor.planning.bundle_plan import BundleBounds, BundleMember
from dispatcher.operations.status import view_job_run
from dispatcher.records.claims import Claim, claim_job_run
from dispatcher.records.job_run_log import CancelRequested, JobRunStatus
from dispatcher.records.keys import PausedObject
from dispatcher.records.metrics_samples import JOB_RUNS_LATE
from dispatcher.records.pauses import Pauses
from dispatcher.running.job_run_controller import JobRunControllerSettings
from dispatcher.scheduling.lease_log import Lease, LeaseAction, LeaseTaken, Reservation, SlotRequested, lease_log
from dispatcher.scheduling.limits import Limits, SharedLimits
from tests.fakes.dispatch_desk import TABLE, Desk, instruction
from tests.fakes.faulty_store import FaultyStore
from tests.fakes.memory_store import MemoryStore
from tests.fakes.moving_clock import MovingClock
from tests.fakes.small_cluster import Crashes, Succeeds

ONE_SESSION = Limits(all=SharedLimits(sessions=1))
EVERYTHING = PausedObject("everything")
DAYS = "ACME.DAYS.V1"
OF_TABLE = PausedObject("tables", TABLE)
LOOKS_AT_ONCE = JobRunControllerSettings(
    tick_seconds=0.01, sweep_seconds=0.0, requeue_seconds=0.01, pause_look_seconds=0.0
)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path, settings=LOOKS_AT_ONCE)
    desk.append([{"id": 1}])
    yield desk
    desk.close()


def of_run(job_run_id: str) -> PausedObject:
    return PausedObject("job_runs", job_run_id)


def ticks(desk: Desk, times: int = 20) -> None:
    for _ in range(times):
        desk.tick()


@pytest.mark.parametrize("what", [EVERYTHING, OF_TABLE, of_run("run")], ids=lambda what: what.key)
def test_a_paused_job_run_waits_with_one_event_and_goes_on_when_it_is_resumed(desk: Desk, what: PausedObject) -> None:
    desk.records.pauses.pause(what, "the lake moves")
    desk.accept(job_run_id="run")
    ticks(desk)
    assert desk.cluster.launched == []
    assert desk.job_run("run").status is JobRunStatus.WAITING
    assert desk.sink.names == ["job_run.accepted", "job_run.paused"]
    assert desk.controller.paused == ("run",)
    desk.records.pauses.resume(what)
    desk.run()
    assert desk.rows() == [{"id": 1}]
    assert [name for name in desk.sink.names if name in ("job_run.paused", "job_run.resumed", "job_run.succeeded")] == [
        "job_run.paused",
        "job_run.resumed",
        "job_run.succeeded",
    ]


def test_a_resumed_job_run_starts_within_the_interval_at_which_pauses_are_read(tmp_path: Path) -> None:
    """And not with the next sweep."""
    desk = Desk(tmp_path, settings=replace(LOOKS_AT_ONCE, sweep_seconds=3_600.0, pause_look_seconds=15.0))
    desk.append([{"id": 1}])
    desk.records.pauses.pause(EVERYTHING, "maintenance")
    desk.accept(job_run_id="run")
    ticks(desk)
    desk.records.pauses.resume(EVERYTHING)
    ticks(desk)
    assert desk.cluster.launched == []
    desk.move_on(15)
    desk.tick_until(lambda: desk.job_run("run").ended is not None)
    desk.close()


def test_a_job_run_that_was_cancelled_in_a_pause_does_not_start_when_that_ends(tmp_path: Path) -> None:
    desk = Desk(tmp_path, settings=replace(LOOKS_AT_ONCE, sweep_seconds=3_600.0))
    desk.append([{"id": 1}])
    desk.records.pauses.pause(EVERYTHING, "maintenance")
    desk.accept(job_run_id="run")
    ticks(desk)
    desk.records.log("run").append(lambda _: [CancelRequested(reason="not needed")])
    desk.records.pauses.resume(EVERYTHING)
    desk.tick_until(lambda: desk.job_run("run").ended is not None)
    assert desk.job_run("run").status is JobRunStatus.CANCELLED
    assert desk.cluster.launched == []
    desk.close()


def test_time_in_a_pause_is_no_lateness(desk: Desk) -> None:
    desk.records.pauses.pause(EVERYTHING, "maintenance")
    desk.accept(job_run_id="run", desired_sla=60)
    ticks(desk)
    desk.move_on(3_600)
    assert view_job_run(desk.records, "run", desk.clock).paused_seconds >= 3_600
    desk.records.pauses.resume(EVERYTHING)
    desk.run()
    view = view_job_run(desk.records, "run", desk.clock)
    late = view.seconds_late(view.seconds)
    assert view.seconds > 3_600
    assert late is not None
    assert late < 0
    assert [each.severity for each in desk.sink.events if each.type.endswith("job_run.succeeded.v1")] == [Severity.INFO]
    assert [each.value for each in desk.metrics.samples() if each.metric is JOB_RUNS_LATE] == [0]


def test_time_after_the_end_of_a_pause_counts_though_the_job_run_waits_for_a_free_place(tmp_path: Path) -> None:
    desk = Desk(tmp_path, settings=replace(LOOKS_AT_ONCE, max_job_runs=1, max_sessions=1))
    desk.append([{"id": 1}])
    desk.append([{"id": 1}], table="ACME.OTHER.V1")
    desk.records.pauses.pause(OF_TABLE, "maintenance")
    desk.accept(job_run_id="run")
    ticks(desk)
    held = threading.Event()
    desk.cluster.behaves = lambda _: Succeeds(held)
    desk.accept(job_run_id="other", source_table_id="ACME.OTHER.V1")
    desk.tick_until(lambda: bool(desk.cluster.launched))
    desk.records.pauses.resume(OF_TABLE)
    ticks(desk)
    desk.move_on(3_600)
    ticks(desk)
    assert desk.job_run("run").claim is None
    assert view_job_run(desk.records, "run", desk.clock).paused_seconds < 60
    held.set()
    desk.run()
    desk.close()


def test_two_dispatchers_report_a_pause_once(desk: Desk) -> None:
    desk.records.pauses.pause(OF_TABLE, "maintenance")
    desk.accept(job_run_id="run")
    other = desk.second()
    for _ in range(10):
        desk.tick()
        other.tick()
    assert desk.sink.names.count("job_run.paused") == 1
    other.close()


def test_a_session_that_runs_goes_on_to_its_end(desk: Desk) -> None:
    held = threading.Event()
    desk.cluster.behaves = lambda _: Succeeds(held)
    desk.accept(job_run_id="run")
    desk.tick_until(lambda: bool(desk.cluster.launched))
    desk.records.pauses.pause(EVERYTHING, "maintenance")
    ticks(desk)
    held.set()
    desk.tick_until(lambda: desk.job_run("run").ended is not None)
    assert desk.job_run("run").status is JobRunStatus.SUCCEEDED
    assert "job_run.paused" not in desk.sink.names


def test_the_next_attempt_of_a_session_that_failed_waits(desk: Desk) -> None:
    fails = threading.Event()

    def behaves(_: object) -> Crashes | Succeeds:
        if len(desk.cluster.launched) > 1:
            return Succeeds()
        fails.wait()
        return Crashes()

    desk.cluster.behaves = behaves
    desk.accept(job_run_id="run")
    desk.tick_until(lambda: desk.job_run("run").status is JobRunStatus.RUNNING)
    desk.records.pauses.pause(of_run("run"), "look at it first")
    fails.set()
    desk.tick_until(lambda: desk.job_run("run").paused is not None)
    ticks(desk)
    assert len(desk.cluster.launched) == 1
    desk.records.pauses.resume(of_run("run"))
    desk.run()
    assert desk.job_run("run").status is JobRunStatus.SUCCEEDED


def test_sessions_that_shared_a_launch_and_had_not_begun_wait(tmp_path: Path) -> None:
    """The job-run log has them in flight until they are launched again."""
    desk = Desk(tmp_path, settings=LOOKS_AT_ONCE, bundles=BundleBounds())
    desk.append_days(DAYS, 3)
    held = threading.Event()

    def behaves(member: BundleMember) -> Crashes | Succeeds:
        if member.attempt > 1 or len(desk.cluster.launched) > 1:
            return Succeeds()
        held.wait()
        return Crashes()

    desk.cluster.members = behaves
    desk.accept(job_run_id="run", source_table_id=DAYS)
    desk.tick_until(lambda: desk.job_run("run").status is JobRunStatus.RUNNING)
    desk.records.pauses.pause(EVERYTHING, "look at it first")
    held.set()
    desk.tick_until(lambda: desk.job_run("run").paused is not None)
    ticks(desk)
    assert len(desk.cluster.launched) == 1
    desk.records.pauses.resume(EVERYTHING)
    desk.run()
    desk.close()
    assert desk.job_run("run").status is JobRunStatus.SUCCEEDED


def test_a_job_run_that_is_paused_gives_the_slot_back_that_it_had_reserved(tmp_path: Path) -> None:
    """And wants it again once it is resumed."""
    desk = Desk(tmp_path, settings=replace(LOOKS_AT_ONCE, max_sessions=4, limits=ONE_SESSION, turn_look_seconds=0.0))
    other = desk.second()
    desk.append_days(DAYS, 2)
    desk.append([{"id": 1}])
    held = threading.Event()
    desk.cluster.behaves = lambda _: Succeeds(held)
    desk.accept(job_run_id="run", source_table_id=DAYS)
    desk.tick_until(lambda: list(desk.turns.now().wants) == ["run"])
    desk.records.pauses.pause(of_run("run"), "look at it first")
    ticks(desk)
    wants = desk.turns.now().wants
    held.set()
    assert wants == {}
    desk.tick_until(lambda: desk.controller.paused == ("run",))
    other.accept(job_run_id="later")
    other.tick_until(lambda: desk.job_run("later").ended is not None)
    assert len(desk.cluster.launched) == 1
    desk.records.pauses.resume(of_run("run"))
    desk.tick_until(lambda: desk.job_run("run").ended is not None)
    assert desk.job_run("run").status is JobRunStatus.SUCCEEDED
    other.close()
    desk.close()


LEASE = Lease(
    turn_id="turn",
    job_run_id="run",
    epoch=1,
    owner="dead",
    table="table",
    streams=("stream",),
    session_ids=("run.1",),
    began_at_ms=0,
)
RESERVATION = Reservation(job_run_id="run", epoch=1, owner="dead", table="table", rank=(0, 0, 0, "run"))


@pytest.mark.parametrize("action", [LeaseTaken(turn=LEASE), SlotRequested(want=RESERVATION)], ids=["lease", "slot"])
def test_what_a_dead_dispatcher_held_for_a_job_run_of_which_it_launched_nothing_is_free_though_that_is_paused(
    tmp_path: Path, action: LeaseAction
) -> None:
    desk = Desk(tmp_path, settings=replace(LOOKS_AT_ONCE, limits=ONE_SESSION, turn_look_seconds=0.0))
    desk.append([{"id": 1}])
    desk.append([{"id": 1}], table="ACME.OTHER.V1")
    desk.send(instruction(job_run_id="run"))
    desk.take()
    assert isinstance(claim_job_run(desk.records.log("run"), "dead", lambda _: False), Claim)
    (marker,) = desk.records.open_markers()
    desk.records.mark_held(replace(marker.valid, owner="dead", epoch=1), marker.keys)
    lease_log(desk.state, desk.clock).append(lambda _: [action])
    desk.records.pauses.pause(of_run("run"), "look at it first")
    desk.accept(job_run_id="later", source_table_id="ACME.OTHER.V1")
    desk.tick_until(lambda: desk.job_run("later").ended is not None)
    assert desk.controller.paused == ("run",)
    assert desk.job_run("run").paused is not None
    desk.records.pauses.resume(of_run("run"))
    desk.tick_until(lambda: desk.job_run("run").ended is not None)
    assert desk.job_run("run").status is JobRunStatus.SUCCEEDED
    desk.close()


def test_a_pause_of_one_table_keeps_no_other_waiting(desk: Desk) -> None:
    desk.records.pauses.pause(OF_TABLE, "maintenance")
    desk.append([{"id": 7}], table="ACME.OTHER.V1")
    desk.accept(job_run_id="paused")
    other = desk.accept(job_run_id="other", source_table_id="ACME.OTHER.V1")
    desk.tick_until(lambda: desk.job_run(other).ended is not None)
    assert desk.job_run("paused").status is JobRunStatus.WAITING


def test_a_table_is_paused_as_a_destination_too(desk: Desk) -> None:
    desk.records.pauses.pause(PausedObject("tables", "ACME.COMPACTED.V1"), "maintenance")
    desk.accept(job_run_id="run", destination_compacted_table_id="ACME.COMPACTED.V1")
    ticks(desk)
    assert desk.job_run("run").paused is not None


def test_a_paused_job_run_can_be_cancelled(desk: Desk) -> None:
    desk.records.pauses.pause(OF_TABLE, "maintenance")
    desk.accept(job_run_id="run")
    ticks(desk)
    desk.records.log("run").append(lambda _: [CancelRequested(reason="not needed")])
    desk.move_on(600)
    desk.tick_until(lambda: desk.job_run("run").ended is not None)
    assert desk.job_run("run").status is JobRunStatus.CANCELLED


def test_a_job_run_that_was_cancelled_in_its_pause_is_no_longer_paused(desk: Desk) -> None:
    desk.records.pauses.pause(OF_TABLE, "maintenance")
    desk.accept(job_run_id="run")
    second = desk.second()
    for each in (desk, second):
        ticks(each)
        assert each.controller.paused == ("run",)
    desk.records.log("run").append(lambda _: [CancelRequested(reason="not needed")])
    desk.move_on(600)
    desk.tick_until(lambda: desk.job_run("run").ended is not None)
    for each in (desk, second):
        each.run()
        assert each.controller.paused == ()
    second.close()


def test_a_pause_of_a_job_run_goes_with_it(desk: Desk) -> None:
    desk.records.pauses.pause(of_run("run"), "look at it first")
    desk.accept(job_run_id="run")
    ticks(desk)
    desk.records.log("run").append(lambda _: [CancelRequested(reason="not needed")])
    desk.move_on(600)
    desk.tick_until(lambda: desk.job_run("run").ended is not None)
    ticks(desk, 2)
    assert desk.records.pauses.all() == ()


def test_a_state_that_does_not_say_what_is_paused_starts_nothing(tmp_path: Path) -> None:
    clock = MovingClock()
    store = FaultyStore(MemoryStore(clock))
    desk = Desk(tmp_path, clock=clock, state=store, settings=LOOKS_AT_ONCE)
    desk.append([{"id": 1}])
    desk.accept(job_run_id="run")
    store.fail("list", "paused/", times=None)
    ticks(desk)
    assert desk.cluster.launched == []
    assert desk.controller.last_error is not None or desk.job_run("run").status is JobRunStatus.WAITING
    store.heal()
    desk.run()
    assert desk.job_run("run").status is JobRunStatus.SUCCEEDED
    desk.close()


def test_a_dispatcher_that_has_nothing_to_start_does_not_ask_what_is_paused(tmp_path: Path) -> None:
    clock = MovingClock()
    store = FaultyStore(MemoryStore(clock))
    desk = Desk(tmp_path, clock=clock, state=store, settings=LOOKS_AT_ONCE)
    ticks(desk)
    assert store.count("list", "paused/") == 0
    desk.close()


def test_pauses_are_read_no_more_often_than_configured(desk: Desk) -> None:
    desk.records.pauses.pause(EVERYTHING, "maintenance")
    pauses = Pauses(desk.records.pauses, 15, desk.clock)
    assert [pause.scope for pause in pauses.now()] == ["everything"]
    desk.records.pauses.resume(EVERYTHING)
    assert pauses.now()
    desk.move_on(16)
    assert not pauses.now()


def test_a_pause_whose_note_is_odd_holds(desk: Desk) -> None:
    desk.state.overwrite(OF_TABLE.key, b"by hand")
    (pause,) = desk.records.pauses.all()
    assert (pause.scope, pause.reason) == (f"table {TABLE}", "its note cannot be read")


def test_an_instruction_is_accepted_while_everything_is_paused(desk: Desk) -> None:
    desk.records.pauses.pause(EVERYTHING, "maintenance")
    desk.send(instruction(job_run_id="run"))
    desk.take()
    assert desk.job_run("run").status is JobRunStatus.WAITING
