"""Small sessions run in the dispatcher's workers, the others on Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from compactor.model.errors import Denied, ErrorKind
from compactor.planning.bundle_plan import BundleBounds, BundleMember
from compactor.planning.where_to_run import WorkerPool
from compactor.sessions.keys import SessionObject
from compactor.storage.local import LocalStore
from compactor.storage.location import parse_location
from dispatcher.cli.job_run_lines import job_run_lines
from dispatcher.cli.output import as_text
from dispatcher.operations.status import view_job_run
from dispatcher.records.job_run_events import SessionPlannedEvent
from dispatcher.records.job_run_log import CancelRequested, JobRunStatus
from dispatcher.records.work_id import WorkId
from dispatcher.scheduling.session_pool import SchedulerSnapshot, Slots, WaitingSession, choose
from launcher.outcomes import NothingToDo
from launcher.spark_job import SparkJob
from tests.fakes.dispatch_desk import Desk
from tests.fakes.faulty_store import FaultyStore
from tests.fakes.manual_clock import ManualClock
from tests.fakes.memory_store import MemoryStore
from tests.fakes.small_cluster import Behaviour, Crashes, Hangs, HasNoRoom, MemberRuns, SmallCluster, Stalls, Succeeds

DAYS = "ACME.DAYS.V1"
MIB = 1024**2
POOL = WorkerPool(workers=2, memory_bytes=256 * MIB)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = desk_with(tmp_path)
    yield desk
    desk.close()


def desk_with(folder: Path, pool: WorkerPool | None = POOL) -> Desk:
    state = LocalStore(parse_location(str(folder / "state")))
    return Desk(folder, state=state, bundles=BundleBounds(), pool=pool)


def launches(cluster: SmallCluster) -> list[str]:
    """The number of each session that was launched alone, and `bundle` for the others."""
    return [session_of(job) for job in cluster.launched]


def session_of(job: SparkJob) -> str:
    path = SessionObject.parse_or_none(job.plan_key)
    return "bundle" if path is None else path.session.session_id.split(".")[-1]


def attempts(*behaviours: Behaviour) -> Callable[[SparkJob], Behaviour]:
    """What the first attempts do; later ones succeed."""
    return lambda job: behaviours[job.attempt - 1] if job.attempt <= len(behaviours) else Succeeds()


def only_day(day: str, behaviour: MemberRuns) -> Callable[[BundleMember], MemberRuns]:
    return lambda member: behaviour if member.plan.spec.partition == {"day": day} else Succeeds()


def succeeded(desk: Desk, job_run_id: str, sessions: int) -> None:
    state = desk.job_run(job_run_id)
    assert state.status is JobRunStatus.SUCCEEDED, state.ended
    assert state.ended is not None
    assert state.ended.outcome.sessions == sessions


def take_over(successor: Desk) -> None:
    """From dispatchers that give no sign of life any more."""
    for _ in range(6):
        successor.tick()
        successor.move_on(successor.settings.claim_seconds / 2)
    successor.run()


def test_a_small_session_runs_in_a_worker_and_starts_no_spark(desk: Desk) -> None:
    desk.append([{"id": 1, "v": "a"}, {"id": 1, "v": "b"}])
    job_run_id = desk.accept()
    desk.run()
    succeeded(desk, job_run_id, 1)
    assert (launches(desk.in_workers), launches(desk.cluster)) == (["1"], [])
    assert desk.rows() == [{"id": 1, "v": "b"}]


@pytest.mark.parametrize("sessions", [1, 2])
def test_what_is_expected_includes_the_start_of_a_worker_that_is_not_ready(desk: Desk, sessions: int) -> None:
    launcher = desk.controller._launchers.sessions
    assert launcher.workers is not None
    launcher.workers = replace(launcher.workers, start_seconds=lambda: 30.0)
    desk.append_days(DAYS, sessions)
    desk.accept(source_table_id=DAYS)
    desk.run()
    planned = [each.data for each in desk.sink.events if isinstance(each.data, SessionPlannedEvent)]
    assert len(planned) == sessions
    assert all(33.0 <= each.expected_sla < 34.0 for each in planned)


def test_its_plan_and_its_event_say_where_it_runs_and_why(desk: Desk) -> None:
    desk.append([{"id": 1}])
    desk.accept()
    desk.run()
    (planned,) = [each.data for each in desk.sink.events if isinstance(each.data, SessionPlannedEvent)]
    assert planned.arithmetic[-1].startswith("in a worker: 0.0")
    assert "of 30" in planned.arithmetic[-1]


def test_a_session_in_a_worker_says_how_far_off_the_next_ones_there_are_unless_it_is_too_short(desk: Desk) -> None:
    for table, deltas in (("ACME.SHORT.V1", 1), ("ACME.FIRST.V1", 60), ("ACME.SECOND.V1", 60)):
        for number in range(deltas):
            desk.append([{"id": number}], table=table)
        desk.accept(source_table_id=table)
        desk.run()
    planned = [each.data for each in desk.sink.events if isinstance(each.data, SessionPlannedEvent)]
    of_others = ["1 recent session there took" in " ".join(each.arithmetic) for each in planned]
    assert of_others == [False, False, True]


def test_small_sessions_of_a_job_run_share_the_workers(desk: Desk) -> None:
    desk.append_days(DAYS, 40)
    job_run_id = desk.accept(source_table_id=DAYS)
    desk.run()
    succeeded(desk, job_run_id, 40)
    assert launches(desk.in_workers) == ["bundle", "bundle"]
    assert desk.cluster.launched == []


def test_a_session_that_takes_too_long_for_a_worker_runs_on_spark_and_its_plan_says_so(tmp_path: Path) -> None:
    desk = desk_with(tmp_path, WorkerPool(2, 256 * MIB, seconds=0.001))
    desk.append([{"id": 1}])
    job_run_id = desk.accept()
    desk.run()
    succeeded(desk, job_run_id, 1)
    assert (launches(desk.in_workers), launches(desk.cluster)) == ([], ["1"])
    (planned,) = [each.data for each in desk.sink.events if isinstance(each.data, SessionPlannedEvent)]
    assert "s in a worker, and 0.001 s or more are for Spark" in planned.arithmetic[-1]
    desk.close()


def test_many_small_sessions_that_together_take_too_long_for_the_workers_share_a_spark_job(tmp_path: Path) -> None:
    desk = desk_with(tmp_path, WorkerPool(1, 256 * MIB, seconds=0.1))
    desk.append_days(DAYS, 12)
    job_run_id = desk.accept(source_table_id=DAYS)
    desk.run()
    succeeded(desk, job_run_id, 12)
    assert (launches(desk.in_workers), launches(desk.cluster)) == ([], ["bundle"])
    desk.close()


def test_a_session_that_fails_in_workers_is_tried_there_alone_and_then_on_spark(desk: Desk) -> None:
    desk.append_days(DAYS, 3)
    desk.in_workers.members = only_day("2", Crashes(1))
    desk.in_workers.behaves = lambda job: Crashes(1) if session_of(job) == "2" else Succeeds()
    job_run_id = desk.accept(source_table_id=DAYS)
    desk.run()
    succeeded(desk, job_run_id, 3)
    assert launches(desk.in_workers).count("2") == 1
    assert launches(desk.cluster) == ["2"]


def test_a_session_whose_input_is_bad_is_not_tried_on_spark(desk: Desk) -> None:
    desk.append([{"id": 1}])
    desk.in_workers.behaves = attempts(Crashes(2))
    job_run_id = desk.accept()
    desk.run()
    state = desk.job_run(job_run_id)
    assert state.status is JobRunStatus.FAILED
    assert desk.cluster.launched == []


def test_a_session_that_hangs_in_a_worker_is_stopped_and_tried_again(desk: Desk) -> None:
    desk.append([{"id": 1}])
    desk.in_workers.behaves = attempts(Stalls())
    job_run_id = desk.accept()
    desk.run()
    succeeded(desk, job_run_id, 1)
    assert launches(desk.in_workers) == ["1", "1"]
    assert "session.stalled" in desk.sink.names


def test_a_cancelled_session_in_a_worker_is_stopped(desk: Desk) -> None:
    desk.append([{"id": 1}])
    desk.in_workers.behaves = attempts(Hangs())
    job_run_id = desk.accept()
    desk.tick_until(lambda: desk.in_workers.running == 1)
    desk.records.log(job_run_id).append(lambda _: [CancelRequested(reason="enough")])
    desk.run()
    assert desk.job_run(job_run_id).status is JobRunStatus.CANCELLED
    assert desk.in_workers.running == 0


def test_sessions_on_spark_do_not_keep_small_ones_from_the_workers(desk: Desk) -> None:
    """Spark has two slots, which two job runs take for long."""
    held = threading.Event()
    desk.cluster.behaves = lambda job: Succeeds(held)
    large, small = [], []
    for number in range(2):
        table = f"ACME.LARGE{number}.V1"
        desk.append([{"id": 1}], table=table)
        desk.in_workers.behaves = lambda job: Crashes(1)
        large.append(desk.accept(source_table_id=table))
    desk.tick_until(lambda: desk.cluster.running == 2)
    desk.in_workers.behaves = lambda job: Succeeds()
    for number in range(3):
        table = f"ACME.SMALL{number}.V1"
        desk.append([{"id": 1}], table=table)
        small.append(desk.accept(source_table_id=table))
    desk.tick_until(lambda: all(desk.job_run(each).status is JobRunStatus.SUCCEEDED for each in small))
    assert desk.cluster.running == 2
    held.set()
    desk.run()
    assert {desk.job_run(each).status for each in large} == {JobRunStatus.SUCCEEDED}


def test_what_runs_in_a_worker_of_a_dead_dispatcher_is_launched_anew(desk: Desk) -> None:
    desk.append([{"id": 1}])
    desk.in_workers.behaves = attempts(Hangs())
    job_run_id = desk.accept()
    desk.tick_until(lambda: desk.job_run(job_run_id).sessions[f"{job_run_id}.1"].in_flight is not None)
    desk.tick_until(lambda: desk.in_workers.running == 1)
    successor = desk.second(jobs={})
    desk.leave()
    take_over(successor)
    succeeded(successor, job_run_id, 1)
    assert launches(successor.in_workers) == ["1"]
    assert successor.job_run(job_run_id).sessions[f"{job_run_id}.1"].attempt == 2
    successor.close()


def test_what_ended_in_a_worker_of_a_dead_dispatcher_is_settled_by_its_log(desk: Desk) -> None:
    desk.append([{"id": 1}])
    job_run_id = desk.accept()
    desk.tick_until(lambda: bool(desk.in_workers.launched))
    desk.tick_until(lambda: desk.in_workers.running == 0)
    desk.leave()
    successor = desk.second(jobs={}, pool=None)
    take_over(successor)
    succeeded(successor, job_run_id, 1)
    assert successor.cluster.launched == []
    successor.close()


def test_a_worker_is_free_again_when_another_dispatcher_has_claimed_the_job_run(desk: Desk) -> None:
    """Nobody else can watch what hangs in it."""
    desk.append([{"id": 1}])
    desk.in_workers.behaves = attempts(Hangs())
    job_run_id = desk.accept()
    desk.tick_until(lambda: desk.in_workers.running == 1)
    successor = desk.second(jobs={})
    successor.in_workers.behaves = lambda job: HasNoRoom()  # so it is not superseded
    for _ in range(6):
        successor.tick()
        successor.move_on(successor.settings.claim_seconds / 2)
    successor.tick_until(lambda: desk.job_run(job_run_id).sessions[f"{job_run_id}.1"].attempt > 1)
    desk.tick_until(lambda: desk.in_workers.running == 0)
    successor.in_workers.behaves = lambda job: Succeeds()
    successor.run()
    succeeded(successor, job_run_id, 1)
    successor.close()


def test_a_worker_is_free_again_when_the_launch_cannot_be_recorded(tmp_path: Path) -> None:
    clock = ManualClock(1_760_000_000_000)
    state = FaultyStore(MemoryStore(clock))
    desk = Desk(tmp_path, clock=clock, state=state, pool=POOL)
    desk.append([{"id": 1}])
    job_run_id = desk.accept()

    def state_goes_away(job: SparkJob) -> Behaviour:
        if job.attempt > 1:
            return Succeeds()
        state.fail("put_if_absent", f"job_runs/{job_run_id}/log/", times=None)
        return Hangs()

    desk.in_workers.behaves = state_goes_away
    desk.tick_until(lambda: bool(desk.in_workers.launched) and desk.in_workers.running == 0)
    state.heal()
    desk.run()
    succeeded(desk, job_run_id, 1)
    assert desk.in_workers.running == 0
    desk.close()


def waiting(number: int, *, on_spark: bool = False) -> WaitingSession:
    return WaitingSession(WorkId(str(number)), "s", "A", str(number), 0, number, on_spark=on_spark)


def test_workers_and_spark_have_slots_of_their_own() -> None:
    sessions = [*(waiting(number, on_spark=True) for number in range(3)), *map(waiting, range(3, 6))]
    units = choose(sessions, [], Slots(spark=1, workers=2), SchedulerSnapshot(0, 1_000))
    assert [(unit[0].work.job_run_id, unit[0].on_spark) for unit in units] == [("3", False), ("4", False), ("0", True)]


def test_a_session_waits_for_an_earlier_one_of_its_stream_in_any_place() -> None:
    first = waiting(1, on_spark=True)
    second = WaitingSession(WorkId("2"), "s", "A", "1", 0, 2)
    assert choose([first, second], [], Slots(spark=0, workers=1), SchedulerSnapshot(0, 1_000)) == ()


def test_more_failures_than_it_may_have_are_reported_with_their_reason(desk: Desk) -> None:
    desk.append([{"id": 1}])
    desk.in_workers.behaves = lambda job: Crashes(1)
    desk.cluster.behaves = lambda job: Crashes(137)
    job_run_id = desk.accept()
    desk.run()
    state = desk.job_run(job_run_id)
    assert state.status is JobRunStatus.FAILED
    (session,) = state.sessions.values()
    assert session.end is not None
    assert session.end.model_dump()["error_kind"] is ErrorKind.OUT_OF_MEMORY
    assert (launches(desk.in_workers), launches(desk.cluster)) == (["1", "1"], ["1"])


def test_status_says_why_a_session_waits_whose_lake_may_not_be_read(desk: Desk) -> None:
    def refuse(*_: object) -> NothingToDo:
        raise Denied("s3://lake/ may not be read: access denied")

    launcher = desk.controller._launchers.sessions
    assert launcher.workers is not None
    allowed, launcher.workers = launcher.workers, replace(launcher.workers, plan=refuse)
    desk.append([{"id": 1}])
    job_run_id = desk.accept()
    desk.tick_until(lambda: "session.retried" in desk.sink.names)
    view = view_job_run(desk.records, job_run_id, desk.clock)
    assert view.sessions[0].reasons == ("s3://lake/ may not be read: access denied",)
    text = as_text(job_run_lines(view, None), None)
    assert "waiting for its next attempt, since the last one failed: s3://lake/ may not be read: access denied" in text
    launcher.workers = allowed
    desk.move_on(3_600)
    desk.run()
    succeeded(desk, job_run_id, 1)
    assert view_job_run(desk.records, job_run_id, desk.clock).sessions[0].reasons == ()
