"""Sessions of one destination stream, of any job run and dispatcher, run one by one, as they were accepted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from compactor.model.errors import Unavailable
from dispatcher.records.job_run_log import CancelRequested, JobRunStatus
from dispatcher.records.keys import PausedObject
from dispatcher.records.ranking import mark_of
from launcher.spark_job import SparkJob
from tests.fakes.dispatch_desk import Desk, instruction
from tests.fakes.faulty_store import FaultyStore
from tests.fakes.manual_clock import ManualClock
from tests.fakes.memory_store import MemoryStore
from tests.fakes.moving_clock import MovingClock
from tests.fakes.small_cluster import Crashes, Succeeds
from tests.unit.dispatcher.test_job_run_controller import DAYS, job_run_of


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    desk.append([{"id": 1, "v": "a"}])
    yield desk
    desk.close()


@pytest.fixture
def other(desk: Desk) -> Iterator[Desk]:
    other = desk.second()
    yield other
    other.close()


def accept(desk: Desk, job_run_id: str, **fields: object) -> str:
    """Accepted, and offered to no dispatcher."""
    desk.send(instruction(job_run_id=job_run_id, **fields))
    desk.take()
    desk.clock.sleep(0.01)
    return job_run_id


def tick_all(*desks: Desk, times: int = 10) -> None:
    for _ in range(times):
        for desk in desks:
            desk.tick()
            desk.clock.sleep(0.002)


def launched(*desks: Desk) -> list[str]:
    return [job_run_of(job) for desk in desks for job in desk.cluster.launched]


def tick_all_until(*desks: Desk, done: Callable[[], bool]) -> None:
    def done_after_the_others() -> bool:
        for desk in desks[1:]:
            desk.tick()
        return done()

    desks[0].tick_until(done_after_the_others)


def run_all(*desks: Desk, until: list[str]) -> None:
    tick_all_until(*desks, done=lambda: all(desks[0].job_run(each).ended is not None for each in until))


def test_two_dispatchers_never_run_two_sessions_of_a_stream_side_by_side(desk: Desk, other: Desk) -> None:
    hold = threading.Event()
    for each in (desk, other):
        each.cluster.behaves = lambda _: Succeeds(hold)
    desk.accept(job_run_id="first")
    desk.tick_until(lambda: desk.cluster.running == 1)
    desk.append([{"id": 1, "v": "b"}])
    other.accept(job_run_id="second")
    tick_all(desk, other)
    assert launched(other) == []
    assert desk.job_run("second").status is JobRunStatus.WAITING
    hold.set()
    run_all(desk, other, until=["first", "second"])
    assert {desk.job_run(each).status for each in ("first", "second")} == {JobRunStatus.SUCCEEDED}
    assert desk.rows() == [{"id": 1, "v": "b"}]
    assert "session.retried" not in desk.sink.names


def test_a_job_run_that_was_left_running_is_watched_though_one_with_a_higher_priority_waits_for_it(desk: Desk) -> None:
    """Each waited for the other: the later one for the turn, the one left running for the higher priority."""
    hold = threading.Event()
    desk.cluster.behaves = lambda _: Succeeds(hold)
    desk.accept(job_run_id="first")
    desk.tick_until(lambda: desk.cluster.running == 1)
    desk.controller.drain(0)
    desk.append([{"id": 1, "v": "b"}])
    successor = desk.second()
    accept(successor, "urgent", priority=1)
    hold.set()
    run_all(successor, until=["first", "urgent"])
    assert launched(successor) == ["urgent"]
    assert {desk.job_run(each).status for each in ("first", "urgent")} == {JobRunStatus.SUCCEEDED}
    assert desk.rows() == [{"id": 1, "v": "b"}]
    successor.close()


def test_a_dispatcher_that_does_not_know_an_earlier_job_run_yet_still_lets_it_go_first(tmp_path: Path) -> None:
    slow = Desk(tmp_path)
    slow.settings = replace(slow.settings, sweep_seconds=3_600.0, turn_look_seconds=0.01)
    desk = replace(slow)
    desk.append([{"id": 1}])
    other = desk.second()
    tick_all(desk, other, times=1)  # the only sweep for an hour
    accept(desk, "first")
    other.accept(job_run_id="second")
    tick_all(other)
    assert [job_run_of(job) for job in other.cluster.launched][:1] != ["second"]
    run_all(other, desk, until=["first", "second"])
    assert launched(other, desk)[:1] == ["first"]
    for each in (desk, other):
        each.close()


def test_a_waiting_job_run_whose_document_comes_again_keeps_its_place(desk: Desk) -> None:
    accept(desk, "first")
    (before,) = desk.records.open_markers()
    desk.move_on(60)
    accept(desk, "first")
    assert desk.job_run("first").repeated_by
    (after,) = desk.records.open_markers()
    assert len(after.keys) == 2
    assert after.valid == before.valid


def test_nothing_is_started_while_the_open_job_runs_cannot_be_listed(tmp_path: Path) -> None:
    """One that goes first may have been accepted since they were listed."""
    clock = MovingClock()
    store = FaultyStore(MemoryStore(clock))
    desk = Desk(tmp_path, clock=clock, state=store, plans_break=[Unavailable("the lake is away")])
    desk.append([{"id": 1}])
    desk.accept(job_run_id="second")
    desk.tick_until(lambda: not desk.plans_break)
    accept(desk, "first", priority=1)
    store.fail("list", "open_job_runs", times=None)
    tick_all(desk)
    assert launched(desk) == []
    desk.close()


def test_a_job_run_that_was_marked_before_it_was_accepted_goes_first_from_its_acceptance_on(desk: Desk) -> None:
    accept(desk, "model")
    model = desk.job_run("model").accepted
    assert model is not None
    first = model.model_copy(update={"spec": model.spec.model_copy(update={"job_run_id": "first"})})
    mark = mark_of(model.work, model.spec, model.partitions, desk.clock.now_ms() + 60_000)
    marks = [desk.records.mark_open(first)]
    assert desk.turns.blocked(mark, mark.streams or (), marks, {}) == {}
    desk.records.log("first").append(lambda _: [first])
    blocked = desk.turns.blocked(mark, mark.streams or (), marks, {})
    assert list(blocked.values()) == ["job run first is ahead on its stream"]


def test_of_those_that_wait_for_a_stream_the_one_of_higher_priority_goes_first(desk: Desk, other: Desk) -> None:
    hold = threading.Event()
    for each in (desk, other):
        each.cluster.behaves = lambda _: Succeeds(hold)
    desk.accept(job_run_id="running")
    desk.tick_until(lambda: desk.cluster.running == 1)
    for number, (job_run_id, priority) in enumerate((("low", 0), ("high", 5), ("next", 0))):
        desk.append([{"id": number}])
        accept(desk, job_run_id, priority=priority)
    hold.set()
    run_all(desk, other, until=["running", "low", "high", "next"])
    begun = {each: desk.records.log(each).entry(2).at_ms for each in ("low", "high", "next")}
    assert sorted(begun, key=lambda each: begun[each]) == ["high", "low", "next"]


def test_a_session_that_is_tried_again_keeps_its_turn(desk: Desk, other: Desk) -> None:
    def behaves(job: SparkJob) -> Crashes | Succeeds:
        return Crashes() if job_run_of(job) == "first" and job.attempt == 1 else Succeeds()

    for each in (desk, other):
        each.cluster.behaves = behaves
    accept(desk, "first")
    desk.append([{"id": 2}])
    accept(desk, "second")
    run_all(desk, other, until=["first", "second"])
    jobs = sorted(desk.jobs)
    assert len(jobs) == 3
    ends = {each: desk.records.log(each).load().at_ms for each in ("first", "second")}
    assert ends["first"] <= ends["second"]


def test_other_streams_of_the_table_run_side_by_side(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.append_days(DAYS, 3)
    other = desk.second()
    hold = threading.Event()
    for each in (desk, other):
        each.cluster.behaves = lambda _: Succeeds(hold)
    desk.accept(job_run_id="first", source_table_id=DAYS, partitions=[{"day": "1"}])
    other.accept(job_run_id="second", source_table_id=DAYS, partitions=[{"day": "2"}])
    desk.tick_until(lambda: desk.cluster.running + other.cluster.running == 2)
    hold.set()
    run_all(desk, other, until=["first", "second"])
    for each in (desk, other):
        each.close()


def test_what_a_wide_job_run_has_done_with_is_free_for_the_next(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.append_days(DAYS, 12)
    desk.settings = replace(desk.settings, max_sessions=1, turn_look_seconds=0.01)
    desk = replace(desk)
    other = desk.second()
    hold = threading.Event()
    desk.cluster.behaves = lambda job: Succeeds() if len(desk.cluster.launched) <= 2 else Succeeds(hold)
    desk.accept(job_run_id="wide", source_table_id=DAYS)
    desk.tick_until(lambda: len(desk.cluster.launched) == 3)
    state = desk.job_run("wide")
    done = next(each.pin.partition for each in state.sessions.values() if each.end is not None)
    waiting = next(each.pin.partition for each in state.sessions.values() if each.attempt == 0)
    accept(desk, "done", source_table_id=DAYS, partitions=[dict(done)])
    accept(desk, "waits", source_table_id=DAYS, partitions=[dict(waiting)])
    other.tick_until(lambda: desk.job_run("done").ended is not None)
    tick_all(other)
    assert desk.job_run("waits").ended is None
    hold.set()
    run_all(desk, other, until=["wide", "waits"])
    for each in (desk, other):
        each.close()


def test_a_job_run_that_is_paused_lets_those_behind_it_pass(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.settings = replace(desk.settings, pause_look_seconds=0.0, turn_look_seconds=0.01)
    desk = replace(desk)
    desk.append([{"id": 1}])
    desk.records.pauses.pause(PausedObject("job_runs", "first"), "look at it first")
    accept(desk, "first")
    accept(desk, "second")
    desk.tick_until(lambda: desk.job_run("second").ended is not None)
    assert desk.job_run("first").ended is None
    desk.close()


def test_a_stream_whose_session_was_cancelled_is_free(desk: Desk, other: Desk) -> None:
    hold = threading.Event()
    desk.cluster.behaves = lambda job: Succeeds(hold) if job_run_of(job) == "first" else Succeeds()
    desk.accept(job_run_id="first")
    desk.tick_until(lambda: desk.cluster.running == 1)
    accept(desk, "second")
    desk.records.log("first").append(lambda _: [CancelRequested(reason="not needed")])
    run_all(desk, other, until=["first", "second"])
    assert desk.job_run("first").status is JobRunStatus.CANCELLED
    assert desk.job_run("second").status is JobRunStatus.SUCCEEDED


def test_the_turns_of_a_dispatcher_that_is_gone_pass_to_who_takes_its_job_run_over(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.append([{"id": 1}])
    hold = threading.Event()
    desk.cluster.behaves = lambda _: Succeeds(hold)
    desk.accept(job_run_id="first")
    desk.tick_until(lambda: desk.cluster.running == 1)
    accept(desk, "second")
    other = desk.second()
    tick_all(other)
    desk.leave()
    desk.move_on(desk.settings.claim_seconds + 1)
    tick_all(other)
    desk.move_on(desk.settings.claim_seconds + 1)
    assert launched(other) == []
    hold.set()
    run_all(other, until=["first", "second"])
    assert len(desk.jobs) == 1  # it was attached to; the second had nothing left to do
    assert other.turns.now().turns == {}
    other.close()


def test_a_turn_that_was_left_by_a_job_run_that_has_ended_holds_nobody_up(tmp_path: Path) -> None:
    clock = ManualClock()
    store = FaultyStore(MemoryStore(clock))
    desk = Desk(tmp_path, clock=clock, state=store)
    desk.append([{"id": 1}])
    hold = threading.Event()
    desk.cluster.behaves = lambda _: Succeeds(hold)
    desk.accept(job_run_id="first")
    desk.tick_until(lambda: desk.cluster.running == 1)
    store.fail("put_if_absent", "turns/log", times=None)
    hold.set()
    desk.tick_until(lambda: desk.job_run("first").ended is not None)
    desk.leave()  # it never comes to end its turn
    store.heal()
    other = desk.second()
    assert len(other.turns.now().turns) == 1
    desk.append([{"id": 2}])
    other.accept(job_run_id="second")
    other.tick_until(lambda: desk.job_run("second").ended is not None)
    assert other.turns.now().turns == {}
    other.close()


def test_a_turn_that_could_not_be_ended_is_ended_once_the_state_answers(tmp_path: Path) -> None:
    clock = ManualClock()
    store = FaultyStore(MemoryStore(clock))
    desk = Desk(tmp_path, clock=clock, state=store)
    desk.append([{"id": 1}])
    hold = threading.Event()
    desk.cluster.behaves = lambda _: Succeeds(hold)
    desk.accept(job_run_id="run")
    desk.tick_until(lambda: desk.cluster.running == 1)
    store.fail("put_if_absent", "turns/log", times=6)
    hold.set()
    desk.run()
    desk.tick_until(lambda: desk.turns.now().turns == {})
    desk.close()
