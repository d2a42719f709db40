"""Job runs from their acceptance to their end, with everything going wrong that can."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import repeat
from pathlib import Path

import pyarrow as pa
import pytest

from compactor.engine.in_process import InProcessEngine
from compactor.log.keys import EntryObject
from compactor.model.errors import Conflict, Corrupt, Invalid, Unavailable
from compactor.model.machine import this_release
from compactor.planning.spec import SessionPlan, SessionSpec
from compactor.sessions.keys import SessionFolder
from dispatcher.intake.intake import Accepted, Rejected
from dispatcher.records.claims import Claim, JobRunLog, claim_job_run
from dispatcher.records.job_run_log import CancelRequested, JobRunState, JobRunStatus
from dispatcher.records.keys import JobRunLogFolder, LiveDispatcher, PausedObject, ReleaseOfState
from dispatcher.records.liveness import Peers, SignOfLife
from dispatcher.records.sessions import SessionLaunching
from dispatcher.running.job_run_controller import JobRunControllerSettings
from launcher.retrying import FailureCounts
from launcher.spark_job import SparkJob, job_name
from tests.fakes.attempts import run_attempt
from tests.fakes.dispatch_desk import FOLLOWS_SPEED, TABLE, Desk, instruction
from tests.fakes.faulty_store import FaultyStore
from tests.fakes.manual_clock import ManualClock
from tests.fakes.memory_sink import MemorySink
from tests.fakes.small_cluster import Behaviour, Crashes, Fails, Hangs, Stalls, Succeeds

DAYS = "ACME.DAYS.V1"


def job_run_of(job: SparkJob) -> str:
    return job.plan_key.split("/")[1]


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    desk.close()


def first_attempt(behaviour: Behaviour) -> Callable[[SparkJob], Behaviour]:
    return lambda job: behaviour if job.attempt == 1 else Succeeds()


def reasons(desk: Desk, job_run_id: str) -> tuple[str, ...]:
    ended = desk.job_run(job_run_id).ended
    assert ended is not None
    return ended.outcome.reasons


def test_a_job_run_has_a_session_for_each_partition_stream(desk: Desk) -> None:
    desk.append_days(DAYS, 3)
    job_run_id = desk.accept(source_table_id=DAYS)
    desk.run()
    state = desk.job_run(job_run_id)
    assert state.status is JobRunStatus.SUCCEEDED
    assert [session.pin.partition for session in state.sessions.values()] == [{"day": "1"}, {"day": "2"}, {"day": "3"}]
    assert state.ended is not None
    assert (state.ended.outcome.rows_in, state.ended.outcome.rows_out) == (9, 6)
    assert desk.sink.names.count("session.succeeded") == 3
    assert desk.records.open_job_run_ids() == []


def test_only_the_partitions_asked_for_are_compacted(desk: Desk) -> None:
    desk.append_days(DAYS, 3)
    job_run_id = desk.accept(source_table_id=DAYS, partitions=[{"day": "2"}])
    desk.run()
    assert [session.pin.partition for session in desk.job_run(job_run_id).sessions.values()] == [{"day": "2"}]


def test_never_more_sessions_at_a_time_than_allowed(desk: Desk) -> None:
    desk.append_days(DAYS, 6)
    desk.accept(source_table_id=DAYS)
    desk.run()
    assert len(desk.cluster.launched) == 6
    assert desk.cluster.most_running == 2


def test_never_two_sessions_of_one_stream_at_the_same_time(desk: Desk) -> None:
    hold = threading.Event()
    desk.cluster.behaves = lambda job: Succeeds(hold)
    desk.append([{"id": 1, "v": "a"}])
    first = desk.accept()
    desk.append([{"id": 1, "v": "b"}])
    second = desk.accept()
    desk.tick_until(lambda: desk.cluster.running == 1)
    for _ in range(5):
        desk.controller.tick()
    assert desk.cluster.most_running == 1
    hold.set()
    desk.run()
    assert desk.cluster.most_running == 1
    assert desk.job_run(first).status is JobRunStatus.SUCCEEDED
    assert desk.job_run(second).status is JobRunStatus.SUCCEEDED
    assert desk.rows() == [{"id": 1, "v": "b"}]


def test_a_session_whose_deltas_another_job_run_has_compacted_has_nothing_to_do(desk: Desk) -> None:
    desk.append([{"id": 1, "v": "a"}])
    desk.accept()
    second = desk.accept()
    desk.run()
    assert len(desk.cluster.launched) == 1
    assert desk.job_run(second).ended is not None
    assert desk.job_run(second).ended.outcome.nothing_to_do  # type: ignore[union-attr]


def test_the_job_run_of_higher_priority_goes_first(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.settings = replace(desk.settings, max_sessions=1)
    desk = replace(desk)
    desk.append_days(DAYS, 2)
    hold = threading.Event()
    desk.cluster.behaves = lambda job: Succeeds(hold)
    low = desk.accept(source_table_id=DAYS)
    desk.tick_until(lambda: desk.cluster.running == 1)
    desk.append([{"id": 1}])
    high = desk.accept(priority=10)
    desk.controller.tick()
    hold.set()
    desk.run()
    launched = [job_run_of(job) for job in desk.cluster.launched]
    assert launched == [low, high, low]
    desk.close()


# ------------------------------------------------------------------------------------------------ attempts that fail


@pytest.mark.parametrize(
    "behaviour", [Crashes(), Fails(Unavailable("S3 is away")), Stalls(), Stalls(started=False)], ids=str
)
def test_an_attempt_that_fails_is_tried_again(desk: Desk, behaviour: Behaviour) -> None:
    desk.cluster.behaves = first_attempt(behaviour)
    desk.append([{"id": 1, "v": "a"}])
    job_run_id = desk.accept()
    desk.run()
    assert desk.job_run(job_run_id).status is JobRunStatus.SUCCEEDED
    assert [job.attempt for job in desk.cluster.launched] == [1, 2]
    assert desk.sink.names.count("session.retried") == 1
    assert desk.sink.names.count("session.stalled") == isinstance(behaviour, Stalls)
    assert "session.failed" not in desk.sink.names
    assert desk.rows() == [{"id": 1, "v": "a"}]


def test_a_session_whose_java_process_is_killed_every_time_fails_in_one_sentence(desk: Desk) -> None:
    desk.cluster.behaves = lambda job: Crashes(-signal.SIGKILL)
    desk.append([{"id": 1}])
    job_run_id = desk.accept()
    desk.run()
    assert len(desk.cluster.launched) == 3
    assert reasons(desk, job_run_id) == (
        (
            "(unpartitioned): attempt 3 lost Spark's Java process: it was killed (SIGKILL), "
            "as the system does where memory runs out"
        ),
    )


def test_a_session_that_crashes_every_time_fails_with_its_last_words(desk: Desk) -> None:
    desk.cluster.behaves = lambda job: Crashes()
    desk.append([{"id": 1}])
    job_run_id = desk.accept()
    desk.run()
    assert len(desk.cluster.launched) == 3
    assert reasons(desk, job_run_id) == (
        (
            "(unpartitioned): attempt 3 was killed (SIGKILL), as the system does where memory runs out; "
            "its last output: no space left | on device"
        ),
    )
    assert desk.sink.names[-2:] == ["session.failed", "job_run.failed"]
    assert [event.severity.value for event in desk.sink.events[-2:]] == ["error", "error"]


@pytest.mark.parametrize("error", [Invalid("the schemas do not fit"), Corrupt("a file is gone")], ids=repr)
def test_a_failure_that_can_only_repeat_is_not_retried(desk: Desk, error: Invalid | Corrupt) -> None:
    desk.cluster.behaves = lambda job: Fails(error)
    desk.append([{"id": 1}])
    job_run_id = desk.accept()
    desk.run()
    assert len(desk.cluster.launched) == 1
    assert reasons(desk, job_run_id) == (f"(unpartitioned): {error}",)


def test_an_input_that_planning_finds_invalid_fails_its_session_and_no_other(desk: Desk) -> None:
    desk.append_days(DAYS, 2)
    broken = desk.lake.table(DAYS).append({"day": "2"}, pa.table({"other": [1]}))
    job_run_id = None
    desk.lake.table(DAYS).append({"day": "2"}, pa.table({"id": [1], "v": ["x"]}))
    job_run_id = desk.accept(source_table_id=DAYS)
    desk.run()
    assert broken.rows == 1
    (reason,) = reasons(desk, job_run_id)
    assert reason.startswith("day=2: ")
    assert "lacks primary key column 'id'" in reason
    ends = [session.end.end for session in desk.job_run(job_run_id).sessions.values() if session.end is not None]
    assert ends == ["succeeded", "failed"]
    assert len(desk.cluster.launched) == 1


def test_a_session_that_a_service_kept_from_running_is_run_again_soon(desk: Desk) -> None:
    desk.plans_break.extend([Unavailable("the lake does not answer"), Conflict("others were faster")])
    desk.append([{"id": 1, "v": "a"}])
    job_run_id = desk.accept()
    desk.run()
    assert desk.job_run(job_run_id).status is JobRunStatus.SUCCEEDED
    assert desk.rows() == [{"id": 1, "v": "a"}]


def test_a_bug_fails_its_session_and_not_the_dispatcher(desk: Desk) -> None:
    desk.append_days(DAYS, 2)
    desk.plans_break.append(ZeroDivisionError("division by zero"))
    job_run_id = desk.accept(source_table_id=DAYS)
    desk.run()
    (reason,) = reasons(desk, job_run_id)
    assert reason.endswith("ZeroDivisionError: division by zero")
    assert desk.sink.names.count("session.succeeded") == 1
    assert desk.sink.names[-1] == "job_run.failed"


def test_nothing_of_a_stopped_attempt_goes_on(desk: Desk) -> None:
    desk.cluster.behaves = first_attempt(Stalls())
    desk.append([{"id": 1}])
    desk.accept()
    desk.run()
    assert desk.cluster.running == 0


# -------------------------------------------------------------------------------------------------------- takeovers


def test_a_job_run_that_nobody_offered_is_found_by_its_marker(desk: Desk) -> None:
    desk.append([{"id": 1}])
    job_run_id = desk.accept()
    second = desk.second()
    second.run()
    assert second.job_run(job_run_id).status is JobRunStatus.SUCCEEDED
    second.close()


@pytest.mark.parametrize(
    ("keys", "mark", "event"),
    [(["id"], "mark_open", "job_run.accepted"), (["nope"], "mark_to_be_published", "job_run.rejected")],
)
def test_a_document_whose_marker_a_sweep_finds_before_its_first_entry_waits_for_no_further_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: list[str], mark: str, event: str
) -> None:
    desk = Desk(tmp_path)
    desk.settings = replace(desk.settings, sweep_seconds=3_600.0)
    desk = replace(desk)
    desk.append([{"id": 1}])
    marks = getattr(desk.records, mark)

    def mark_and_sweep(*arguments: object) -> object:
        marked = marks(*arguments)
        desk.tick()
        return marked

    monkeypatch.setattr(desk.records, mark, mark_and_sweep)
    desk.send(instruction(primary_keys=keys))
    (taken,) = desk.take()
    assert isinstance(taken, Accepted | Rejected)
    desk.controller.offer(taken.job_run_id if isinstance(taken, Accepted) else taken.message_id)
    for _ in range(3):
        desk.tick()
    assert event in desk.sink.names
    desk.close()


def test_a_fenced_dispatcher_leaves_its_spark_job_to_who_took_over_and_writes_nothing_more(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    hold = threading.Event()
    desk.cluster.behaves = lambda job: Succeeds(hold)
    desk.append([{"id": 1, "v": "a"}])
    job_run_id = desk.accept()
    desk.tick_until(lambda: "session.launched" in desk.sink.names and desk.cluster.running == 1)
    second = desk.second()
    peers = Peers(desk.state, "second", 60.0, desk.clock)
    peers.poll(())
    desk.move_on(desk.settings.claim_seconds)  # without a tick that would show its life
    taken = claim_job_run(desk.records.log(job_run_id), "second", peers.is_gone)
    assert isinstance(taken, Claim)

    desk.tick_until(lambda: desk.controller.holds_nothing)
    state = desk.job_run(job_run_id)
    assert state.claim is not None
    assert (state.claim.owner, state.status) == ("second", JobRunStatus.RUNNING)
    assert desk.cluster.running == 1
    hold.set()
    taken.release()
    (marker,) = second.records.open_markers()
    second.records.mark_held(replace(marker.valid, owner=None, epoch=taken.epoch), marker.keys)
    second.run()
    assert second.job_run(job_run_id).status is JobRunStatus.SUCCEEDED
    assert second.cluster.launched == []
    second.close()


def drained_with_a_running_job(folder: Path) -> tuple[Desk, str, threading.Event]:
    """A dispatcher that was drained, its job run, and the event that ends the Spark job which it left running."""
    desk = Desk(folder)
    hold = threading.Event()
    desk.cluster.behaves = lambda job: Succeeds(hold)
    desk.append([{"id": 1, "v": "a"}])
    job_run_id = desk.accept()
    desk.tick_until(lambda: desk.cluster.running == 1)
    desk.controller.drain(0)
    return desk, job_run_id, hold


def test_a_successor_attaches_to_what_a_drain_left_running(tmp_path: Path) -> None:
    desk, job_run_id, hold = drained_with_a_running_job(tmp_path)
    assert desk.cluster.running == 1
    assert desk.controller.spark_jobs_left == 1
    assert desk.job_run(job_run_id).status is JobRunStatus.WAITING

    second = desk.second()
    hold.set()
    second.run()
    assert second.cluster.launched == []
    assert second.job_run(job_run_id).status is JobRunStatus.SUCCEEDED
    assert desk.rows() == [{"id": 1, "v": "a"}]
    names = second.sink.names
    assert names.count("session.planned") == 1
    assert names.count("session.launched") == 1
    assert names.count("job_run.started") == 1
    assert names.count("session.retried") == 0  # a drain is no failure
    assert len({event.id for event in second.sink.events}) == len(second.sink.events)
    second.close()


def test_after_a_drain_that_stopped_its_spark_jobs_a_successor_goes_on_with_the_next_attempt(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.cluster.behaves = lambda job: Hangs()
    desk.append([{"id": 1, "v": "a"}])
    job_run_id = desk.accept()
    desk.tick_until(lambda: desk.cluster.running == 1)
    desk.controller.drain(0, lambda: True)
    assert desk.cluster.running == 0
    assert desk.controller.spark_jobs_left == 0

    second = desk.second()
    second.run()
    assert [job.attempt for job in second.cluster.launched] == [2]
    assert second.job_run(job_run_id).status is JobRunStatus.SUCCEEDED
    names = second.sink.names
    assert names.count("session.planned") == 1
    assert names.count("session.retried") == 0  # a drain is no failure
    second.close()


def test_a_successor_waits_for_a_job_out_of_its_reach(tmp_path: Path) -> None:
    """As a driver on another machine: it may live, or not."""
    desk, job_run_id, hold = drained_with_a_running_job(tmp_path)
    second = desk.second(place="another machine")
    second.tick_until(lambda: second.job_run(job_run_id).status is JobRunStatus.RUNNING)
    second.tick()
    hold.set()
    second.run()
    assert second.cluster.launched == []
    assert second.job_run(job_run_id).status is JobRunStatus.SUCCEEDED
    second.close()


def test_an_attempt_out_of_reach_without_progress_for_the_stall_time_is_followed_by_another(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.cluster.behaves = lambda job: Hangs()
    desk.append([{"id": 1, "v": "a"}])
    job_run_id = desk.accept()
    desk.tick_until(lambda: "session.started" in desk.sink.names)
    desk.leave()
    desk.move_on(desk.settings.claim_seconds)
    second = desk.second(place="another machine")
    second.tick()
    second.tick()
    second.move_on(desk.settings.claim_seconds)
    second.tick_until(lambda: second.job_run(job_run_id).epoch == 2)
    for _ in range(20):
        second.tick()
        second.clock.sleep(0.005)
    assert second.cluster.launched == []

    def time_passes() -> bool:
        if not second.cluster.launched:
            second.move_on(100.0)
        return second.job_run(job_run_id).status is JobRunStatus.SUCCEEDED

    second.tick_until(time_passes)
    assert [job.attempt for job in second.cluster.launched] == [2]
    assert second.job_run(job_run_id).sessions[f"{job_run_id}.1"].failure_counts == FailureCounts(unwatched=1)
    second.close()


def test_a_cancelled_job_run_that_somebody_left_running_is_stopped_by_who_takes_it_over(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.cluster.behaves = lambda job: Hangs()
    desk.append([{"id": 1, "v": "a"}])
    job_run_id = desk.accept()
    desk.tick_until(lambda: desk.cluster.running == 1)
    desk.controller.drain(0)
    cancel(desk, job_run_id)
    second = desk.second()
    second.run()
    assert second.job_run(job_run_id).status is JobRunStatus.CANCELLED
    assert desk.cluster.running == 0
    second.close()


def test_a_session_that_succeeded_while_nobody_watched_is_not_run_again(desk: Desk) -> None:
    desk.append([{"id": 1, "v": "a"}])
    job_run_id = desk.accept()
    claim = claim_job_run(desk.records.log(job_run_id), "gone", lambda _: False)
    assert isinstance(claim, Claim)
    accepted = desk.job_run(job_run_id).accepted
    assert accepted is not None
    (pin,) = accepted.sessions
    plan = desk.plan(SessionSpec.from_facts(pin, job_run=accepted.spec))
    assert isinstance(plan, SessionPlan)
    desk.state.put_if_absent(SessionFolder(job_run_id, pin.session_id).plan(1).key, plan.render())
    launching = SessionLaunching(epoch=1, session_id=pin.session_id, attempt=1, at_ms=0, name="lost", place="elsewhere")
    claim.write(lambda _: [launching])
    run_attempt(plan, desk.lake, desk.state, InProcessEngine(), 1, desk.clock)

    desk.run()

    assert desk.cluster.launched == []
    assert desk.job_run(job_run_id).status is JobRunStatus.SUCCEEDED
    assert desk.rows() == [{"id": 1, "v": "a"}]
    assert "session.round_completed" in desk.sink.names


def test_job_runs_of_a_dead_dispatcher_precede_later_ones_of_lower_priority(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk = replace(desk, settings=replace(desk.settings, max_sessions=1, max_job_runs=2))
    desk.append_days(DAYS, 1)
    desk.cluster.behaves = lambda job: Hangs()
    urgent = desk.accept(source_table_id=DAYS, priority=1_000)
    desk.tick_until(lambda: desk.cluster.running == 1)
    desk.close()  # as if its machine had started anew: its Spark jobs are gone, its claims stay
    desk.jobs.clear()

    second = desk.second()
    hold = threading.Event()
    second.cluster.behaves = lambda job: Succeeds(hold)
    ordinary = []
    for number in range(6):
        second.append([{"id": number}])
        ordinary.append(second.accept())
        second.controller.tick()
    second.move_on(desk.settings.claim_seconds)
    second.controller.tick()
    hold.set()
    second.run()
    order = list(dict.fromkeys(job_run_of(job) for job in second.cluster.launched))
    # Two were held already when the claim ran out: those, and no other, may go first.
    assert urgent in order[:3]
    assert all(second.job_run(each).status is JobRunStatus.SUCCEEDED for each in [urgent, *ordinary])
    second.close()


def test_a_dead_holder_is_taken_over_on_time_by_a_dispatcher_whose_clock_is_an_hour_behind(tmp_path: Path) -> None:
    clock = ManualClock()
    desk = Desk(tmp_path, clock=clock, settings=JobRunControllerSettings(claim_seconds=60.0, sweep_seconds=5.0))
    desk.append([{"id": 1}])
    job_run_id = desk.accept()
    sign = SignOfLife(owner="gone", beat=7, at_ms=clock.now_ms(), silent_seconds=60.0)
    desk.state.overwrite(LiveDispatcher("gone").key, sign.render())
    claim_job_run(desk.records.log(job_run_id), "gone", lambda _: False)
    clock.set_ms(clock.now_ms() - 3_600_000)
    second = desk.second()
    second.controller.tick()
    for _ in range(11):
        clock.sleep(5.0)
        second.controller.tick()
        assert second.controller.holds_nothing
    clock.sleep(5.0)
    second.controller.tick()
    claim = second.job_run(job_run_id).claim
    assert claim is not None
    assert claim.owner == "second"
    second.close()
    desk.close()


# ---------------------------------------------------------------------------------------- one job run that is not well


def spoil(desk: Desk, job_run_id: str, action: str) -> str:
    """The next entry of a job run's log is what no release until now could write. Returns its key."""
    log = desk.records.log(job_run_id)
    number = log.load().entry_number + 1
    actions = f'[{{"action": "{action}", "epoch": 1}}]' if action else "no JSON"
    body = f'{{"format": 1, "entry_number": {number}, "entry_id": "x", "at_ms": 5, "actions": {actions}}}'
    key = EntryObject(log.folder, number).key
    assert desk.state.put_if_absent(key, body.encode())
    return key


@pytest.mark.parametrize("action", ["of_a_newer_release", ""])
def test_a_log_that_cannot_be_read_is_set_aside_with_an_event_and_stops_nothing_else(desk: Desk, action: str) -> None:
    desk.append([{"id": 1}])
    unreadable, good = desk.accept(job_run_id="bad"), desk.accept(job_run_id="good")
    spoil(desk, unreadable, action)
    second = desk.second()
    second.run()
    assert second.job_run(good).status is JobRunStatus.SUCCEEDED
    (published,) = [event for event in second.sink.events if event.type == "lithify.job_run.set_aside.v1"]
    assert (published.jobrunid, published.severity.value, published.table) == (unreadable, "error", TABLE)
    assert unreadable in second.records.open_job_run_ids()  # a release that can read it finds it
    second.close()


def test_a_job_run_that_another_dispatcher_has_ended_is_no_longer_set_aside(desk: Desk) -> None:
    desk.append([{"id": 1}])
    job_run_id = desk.accept()
    spoiled = spoil(desk, job_run_id, "of_a_newer_release")
    second = desk.second()
    second.run()
    assert second.controller.quarantined == (job_run_id,)
    desk.state.delete(spoiled)  # as if this one could read it
    desk.run()
    second.run()
    assert not second.controller.quarantined
    second.close()


def test_a_job_run_whose_log_is_read_is_no_longer_set_aside_and_may_be_so_again(desk: Desk) -> None:
    desk.append([{"id": 1}])
    job_run_id = desk.accept()
    second = desk.second()
    second.records.pauses.pause(PausedObject("everything"), "maintenance")  # it is not claimed when it is read
    for times in (1, 2):
        spoiled = spoil(second, job_run_id, "of_a_newer_release")
        second.move_on(second.settings.set_aside_seconds)
        second.run()
        assert second.controller.quarantined == (job_run_id,)
        assert second.sink.names.count("job_run.set_aside") == times
        second.state.delete(spoiled)
        second.move_on(second.settings.set_aside_seconds)
        second.run()
        assert not second.controller.quarantined
        assert second.controller.paused == (job_run_id,)
    second.close()


def test_of_a_log_that_a_newer_release_wrote_it_is_said_which_releases_work_on_the_state(desk: Desk) -> None:
    desk.append([{"id": 1}])
    job_run_id = desk.accept()
    spoil(desk, job_run_id, "of_a_newer_release")
    desk.records.note_release()
    desk.state.put_if_absent(ReleaseOfState("7.1.0").key, b"")
    second = desk.second()
    second.run()
    (published,) = [event for event in second.sink.events if event.type == "lithify.job_run.set_aside.v1"]
    (reason,) = json.loads(published.render())["data"]["reasons"]
    assert "written by a newer release of Lithify" in reason
    assert reason.endswith(f"; this is release {this_release()}, and dispatchers of 7.1.0 have worked on this state")
    second.close()


def test_a_log_that_cannot_be_read_is_not_tried_again_by_every_sweep(desk: Desk) -> None:
    desk.append([{"id": 1}])
    job_run_id = desk.accept()
    spoil(desk, job_run_id, "of_a_newer_release")
    store = FaultyStore(desk.state)
    second = desk.second(state=store)
    second.controller.tick()
    reads = store.count("read", f"job_runs/{job_run_id}/log")
    for _ in range(20):
        second.controller.tick()
    assert store.count("list", "open_job_runs") >= 20
    assert store.count("read", f"job_runs/{job_run_id}/log") == reads
    second.close()


def test_a_log_that_turns_unreadable_while_it_is_held_ends_no_spark_job_and_disturbs_nothing_else(desk: Desk) -> None:
    desk.append_days(DAYS, 1)
    desk.cluster.behaves = lambda job: Hangs() if "bad" in job.name else Succeeds()
    job_run_id = desk.accept(source_table_id=DAYS, job_run_id="bad")
    desk.tick_until(lambda: desk.cluster.running == 1)
    spoil(desk, job_run_id, "of_a_newer_release")
    desk.append([{"id": 1}])
    good = desk.accept()
    desk.tick_until(lambda: desk.job_run(good).status is JobRunStatus.SUCCEEDED)
    desk.tick_until(lambda: desk.controller.holds_nothing)
    assert desk.cluster.running == 1
    assert desk.sink.names.count("job_run.set_aside") == 1


def test_a_bug_while_a_job_run_is_taken_on_ends_it_as_failed_and_no_other(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.append([{"id": 1}])
    bad, good = desk.accept(job_run_id="bad"), desk.accept(job_run_id="good")
    second = desk.second()
    follow, failures = second.publisher.follow, [ZeroDivisionError("the first time")]

    def break_once(
        job_run_id: str, log: JobRunLog, state: JobRunState, *, is_ending: bool = False, is_new: bool = False
    ) -> None:
        if job_run_id == bad and failures:  # by then the job run is claimed, and not yet taken on
            raise failures.pop()
        follow(job_run_id, log, state, is_ending=is_ending)

    monkeypatch.setattr(second.publisher, "follow", break_once)
    second.run()
    assert second.job_run(good).status is JobRunStatus.SUCCEEDED
    assert second.job_run(bad).status is JobRunStatus.FAILED
    assert "ZeroDivisionError: the first time" in reasons(second, bad)[0]
    assert [event.jobrunid for event in second.sink.events if event.type == "lithify.job_run.failed.v1"] == [bad]
    second.close()


def test_a_bug_while_a_job_run_is_looked_after_ends_it_as_failed_and_no_other(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    store = FaultyStore(desk.state)
    desk = replace(desk, state=store)
    desk.append_days(DAYS, 1)
    desk.append([{"id": 1}])
    hold = threading.Event()
    desk.cluster.behaves = lambda job: Succeeds(hold)
    bad, good = desk.accept(source_table_id=DAYS, job_run_id="bad"), desk.accept(job_run_id="good")
    desk.tick_until(lambda: desk.cluster.running == 2)
    ends = EntryObject(JobRunLogFolder("bad").key, desk.records.log("bad").load().entry_number + 2)
    store.fail("put_if_absent", ends.key, error=ZeroDivisionError)  # after the entry of its session's end
    hold.set()
    desk.tick_until(lambda: desk.job_run(bad).status is JobRunStatus.FAILED)
    desk.run()
    assert desk.job_run(good).status is JobRunStatus.SUCCEEDED
    assert "ZeroDivisionError: the store failed" in reasons(desk, bad)[0]
    assert [event.jobrunid for event in desk.sink.events if event.type == "lithify.job_run.failed.v1"] == [bad]
    desk.close()


# ---------------------------------------------------------------------------------------------------------- cancel


def cancel(desk: Desk, job_run_id: str) -> None:
    desk.records.log(job_run_id).append(lambda _: [CancelRequested(reason="not now")])


def test_cancelling_stops_what_runs_and_what_waits(desk: Desk) -> None:
    desk.append_days(DAYS, 4)
    desk.cluster.behaves = lambda job: Hangs()
    job_run_id = desk.accept(source_table_id=DAYS)
    desk.tick_until(lambda: desk.cluster.running == 2)
    cancel(desk, job_run_id)
    desk.run()
    state = desk.job_run(job_run_id)
    assert state.status is JobRunStatus.CANCELLED
    assert reasons(desk, job_run_id) == ("not now",)
    assert desk.cluster.running == 0
    assert len(desk.cluster.launched) == 2
    assert desk.sink.names[-1] == "job_run.cancelled"


def test_a_job_run_cancelled_before_it_was_claimed_never_starts(desk: Desk) -> None:
    desk.append([{"id": 1}])
    job_run_id = desk.accept()
    cancel(desk, job_run_id)
    desk.run()
    assert desk.job_run(job_run_id).status is JobRunStatus.CANCELLED
    assert desk.cluster.launched == []


def test_a_cancel_that_comes_too_late_changes_nothing(desk: Desk) -> None:
    desk.append([{"id": 1}])
    job_run_id = desk.accept()
    desk.run()
    with pytest.raises(Corrupt, match="is to be cancelled that is succeeded"):
        cancel(desk, job_run_id)
    assert desk.job_run(job_run_id).status is JobRunStatus.SUCCEEDED


# ---------------------------------------------------------------------------------------------------------- events


def test_events_that_could_not_be_published_are_published_later_each_once_and_in_order(desk: Desk) -> None:
    desk = desk.second(sink=MemorySink([Unavailable("no topic now")] * 6))
    desk.append([{"id": 1}])
    desk.accept()
    desk.run()
    follows_speed = {f"lithify.{name}.v1" for name in FOLLOWS_SPEED}
    published = [event for event in desk.sink.events if event.type not in follows_speed]
    ids = [event.id for event in published]
    assert len(ids) == len(set(ids)) == 8
    in_order = [
        event.type.removeprefix("lithify.").removesuffix(".v1")
        for event in sorted(published, key=lambda event: event.sequence)
    ]
    # Who launched a session and the session itself write at the same moment, so each log has its own order.
    of_session = ["session.started", "session.round_completed", "session.succeeded"]
    assert [name for name in in_order if name in of_session] == of_session
    assert [name for name in in_order if name not in of_session] == [
        "job_run.accepted",
        "job_run.started",
        "session.planned",
        "session.launched",
        "job_run.succeeded",
    ]
    desk.close()


def test_a_topic_that_is_wrong_does_not_stop_a_compaction(desk: Desk) -> None:
    desk = desk.second(sink=MemorySink([Invalid("there is no such topic")] * 50))
    desk.append([{"id": 1}])
    job_run_id = desk.accept()
    desk.run()
    assert desk.job_run(job_run_id).status is JobRunStatus.SUCCEEDED
    desk.close()


def test_the_next_dispatcher_publishes_the_last_events_of_an_ended_job_run(desk: Desk) -> None:
    mute = desk.second(sink=MemorySink(repeat(Unavailable("no topic"))))
    mute.append([{"id": 1}])
    job_run_id = mute.accept()
    mute.tick()
    mute.tick_until(lambda: mute.job_run(job_run_id).status is JobRunStatus.SUCCEEDED)
    assert mute.sink.names == []
    assert mute.records.open_job_run_ids() == [job_run_id]
    mute.controller.drain(0)

    desk.tick()
    assert desk.sink.names[-1] == "job_run.succeeded"
    assert "session.round_completed" in desk.sink.names
    assert desk.records.open_job_run_ids() == []


def test_the_job_names_its_job_run_and_its_session(desk: Desk) -> None:
    desk.append([{"id": 1}])
    job_run_id = desk.accept()
    desk.run()
    (job,) = desk.cluster.launched
    assert isinstance(job, SparkJob)
    assert job.name == job_name(desk.state.location, job_run_id, f"{job_run_id}.1", 1)
    assert job.plan_key.endswith("/plan.json")


def test_the_next_tick_is_due_as_soon_as_a_session_has_ended(tmp_path: Path) -> None:
    """Else this test would wait for an hour."""
    desk = Desk(tmp_path, settings=JobRunControllerSettings(tick_seconds=3_600.0, sweep_seconds=0.0))
    desk.append([{"id": 1}])
    job_run_id = desk.accept()
    while desk.job_run(job_run_id).status.is_open:
        desk.tick()
        if desk.job_run(job_run_id).status.is_open:
            desk.controller.wait_for_tick(threading.Event())
    desk.close()
    assert desk.job_run(job_run_id).status is JobRunStatus.SUCCEEDED


def test_the_next_tick_is_due_as_soon_as_an_instruction_was_accepted(tmp_path: Path) -> None:
    """Else this test would wait for an hour."""
    desk = Desk(tmp_path, settings=JobRunControllerSettings(tick_seconds=3_600.0, sweep_seconds=0.0))
    desk.append([{"id": 1}])
    desk.tick()
    job_run_id = desk.accept()
    desk.controller.wait_for_tick(threading.Event())
    desk.run()
    desk.close()
    assert desk.job_run(job_run_id).status is JobRunStatus.SUCCEEDED


def test_a_dispatcher_that_is_told_to_stop_does_not_wait_for_the_next_tick(tmp_path: Path) -> None:
    desk = Desk(tmp_path, settings=JobRunControllerSettings(tick_seconds=3_600.0))
    stops = threading.Event()
    stops.set()
    desk.controller.wait_for_tick(stops)
    desk.close()
