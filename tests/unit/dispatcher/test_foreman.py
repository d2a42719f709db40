"""Job runs from their acceptance to their end, with everything going wrong that can."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from compactor.catalog.paths import SessionFolder
from compactor.errors import Conflict, Corrupt, Invalid, Unavailable
from compactor.spec import SessionPlan
from dispatcher.claims import Claim, claim_job_run
from dispatcher.job_runs import CancelRequested, JobRunStatus, SessionLaunching, session_spec
from launcher.submit import SparkJob
from tests.fakes.dispatch_desk import Desk
from tests.fakes.memory_sink import MemorySink
from tests.fakes.small_cluster import Behaviour, Crashes, Fails, Hangs, Succeeds
from tests.fakes.small_session import run_small_session

DAYS = "ACME.DAYS.V1"


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    desk.close()


def append_days(desk: Desk, days: int) -> None:
    table = desk.lake.create_table(DAYS, ["day"])
    for day in range(1, days + 1):
        table.append({"day": str(day)}, pa.table({"id": [1, 2, 1], "v": ["a", "b", "c"]}))


def first_attempt(behaviour: Behaviour) -> Callable[[SparkJob], Behaviour]:
    return lambda job: behaviour if job.attempt == 1 else Succeeds()


def reasons(desk: Desk, job_run_id: str) -> tuple[str, ...]:
    ended = desk.job_run(job_run_id).ended
    assert ended is not None
    return ended.outcome.reasons


def test_a_job_run_has_a_session_for_each_partition_stream(desk: Desk) -> None:
    append_days(desk, 3)
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
    append_days(desk, 3)
    job_run_id = desk.accept(source_table_id=DAYS, partitions=[{"day": "2"}])
    desk.run()
    assert [session.pin.partition for session in desk.job_run(job_run_id).sessions.values()] == [{"day": "2"}]


def test_never_more_sessions_at_a_time_than_allowed(desk: Desk) -> None:
    append_days(desk, 6)
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
        desk.foreman.tick()
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
    append_days(desk, 2)
    hold = threading.Event()
    desk.cluster.behaves = lambda job: Succeeds(hold)
    low = desk.accept(source_table_id=DAYS)
    desk.tick_until(lambda: desk.cluster.running == 1)
    desk.append([{"id": 1}])
    high = desk.accept(priority=10)
    desk.foreman.tick()
    hold.set()
    desk.run()
    launched = [job.name.split()[1] for job in desk.cluster.launched]
    assert launched == [low, high, low]
    desk.close()


# ------------------------------------------------------------------------------------------------ attempts that fail


@pytest.mark.parametrize(
    "behaviour", [Crashes(), Fails(Unavailable("S3 is away")), Hangs(), Hangs(started=False)], ids=str
)
def test_an_attempt_that_fails_is_tried_again(desk: Desk, behaviour: Behaviour) -> None:
    desk.cluster.behaves = first_attempt(behaviour)
    desk.append([{"id": 1, "v": "a"}])
    job_run_id = desk.accept()
    desk.run()
    assert desk.job_run(job_run_id).status is JobRunStatus.SUCCEEDED
    assert [job.attempt for job in desk.cluster.launched] == [1, 2]
    assert desk.sink.names.count("session.retried") == 1
    assert desk.sink.names.count("session.stalled") == isinstance(behaviour, Hangs)
    assert "session.failed" not in desk.sink.names
    assert desk.rows() == [{"id": 1, "v": "a"}]


def test_a_session_that_crashes_every_time_fails_with_its_last_words(desk: Desk) -> None:
    desk.cluster.behaves = lambda job: Crashes()
    desk.append([{"id": 1}])
    job_run_id = desk.accept()
    desk.run()
    assert len(desk.cluster.launched) == 3
    assert reasons(desk, job_run_id) == (
        "(unpartitioned): attempt 3 exited with code 137 without a word; its last output: no space left | on device",
    )
    assert desk.sink.names[-2:] == ["session.failed", "job_run.failed"]
    assert [event.severity.value for event in desk.sink.events[-2:]] == ["error", "error"]


@pytest.mark.parametrize("error", [Invalid("the schemas do not fit"), Corrupt("a file is gone")], ids=repr)
def test_what_can_only_fail_again_is_not_tried_again(desk: Desk, error: Invalid | Corrupt) -> None:
    desk.cluster.behaves = lambda job: Fails(error)
    desk.append([{"id": 1}])
    job_run_id = desk.accept()
    desk.run()
    assert len(desk.cluster.launched) == 1
    assert reasons(desk, job_run_id) == (f"(unpartitioned): {error}",)


def test_an_input_that_planning_finds_invalid_fails_its_session_and_no_other(desk: Desk) -> None:
    append_days(desk, 2)
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
    append_days(desk, 2)
    desk.plans_break.append(ZeroDivisionError("division by zero"))
    job_run_id = desk.accept(source_table_id=DAYS)
    desk.run()
    (reason,) = reasons(desk, job_run_id)
    assert reason.endswith("ZeroDivisionError: division by zero")
    assert desk.sink.names.count("session.succeeded") == 1
    assert desk.sink.names[-1] == "job_run.failed"


def test_nothing_of_a_stopped_attempt_goes_on(desk: Desk) -> None:
    desk.cluster.behaves = first_attempt(Hangs())
    desk.append([{"id": 1}])
    desk.accept()
    desk.run()
    assert desk.cluster.running == 0


# -------------------------------------------------------------------------------------------------------- takeovers


def quick_claims(tmp_path: Path) -> Desk:
    desk = Desk(tmp_path)
    return replace(desk, settings=replace(desk.settings, claim_seconds=0.2))


def test_a_job_run_that_nobody_offered_is_found_by_its_marker(desk: Desk) -> None:
    desk.append([{"id": 1}])
    job_run_id = desk.accept()
    second = desk.second()
    second.run()
    assert second.job_run(job_run_id).status is JobRunStatus.SUCCEEDED
    second.close()


def test_a_fenced_dispatcher_stops_its_spark_job_and_writes_nothing_more(tmp_path: Path) -> None:
    desk = quick_claims(tmp_path)
    desk.cluster.behaves = lambda job: Hangs()
    desk.append([{"id": 1}])
    job_run_id = desk.accept()
    desk.tick_until(lambda: desk.cluster.running == 1)
    threading.Event().wait(0.25)  # longer than the claim lasts, without a tick that would renew it
    taken = claim_job_run(desk.records.log(job_run_id), "second", 60.0, desk.clock)
    assert isinstance(taken, Claim)

    desk.tick_until(lambda: desk.cluster.running == 0)
    desk.tick_until(lambda: desk.foreman.is_idle)
    state = desk.job_run(job_run_id)
    assert state.claim is not None
    assert (state.claim.owner, state.status) == ("second", JobRunStatus.RUNNING)
    desk.close()


def test_a_successor_goes_on_from_the_log_with_the_same_plan_and_the_next_attempt(tmp_path: Path) -> None:
    desk = quick_claims(tmp_path)
    desk.cluster.behaves = lambda job: Hangs()
    desk.append([{"id": 1, "v": "a"}])
    job_run_id = desk.accept()
    desk.tick_until(lambda: desk.cluster.running == 1)
    desk.foreman.drain(0)
    assert desk.cluster.running == 0
    assert desk.job_run(job_run_id).status is JobRunStatus.WAITING

    second = desk.second()
    second.run()
    assert [job.attempt for job in second.cluster.launched] == [2]
    assert second.job_run(job_run_id).status is JobRunStatus.SUCCEEDED
    names = second.sink.names
    assert names.count("session.planned") == 1
    assert names.count("job_run.started") == 1
    assert names.count("session.retried") == 0  # a drain is no failure
    assert len({event.id for event in second.sink.events}) == len(second.sink.events)
    second.close()


def test_a_session_that_succeeded_while_nobody_watched_is_not_run_again(desk: Desk) -> None:
    desk.append([{"id": 1, "v": "a"}])
    job_run_id = desk.accept()
    claim = claim_job_run(desk.records.log(job_run_id), "gone", 0.0, desk.clock)
    assert isinstance(claim, Claim)
    accepted = desk.job_run(job_run_id).accepted
    assert accepted is not None
    (pin,) = accepted.sessions
    plan = desk.plan(session_spec(accepted.spec, pin))
    assert isinstance(plan, SessionPlan)
    desk.state.put_if_absent(SessionFolder(job_run_id, pin.session_id).plan.key, plan.render())
    claim.write(lambda _: [SessionLaunching(epoch=1, session_id=pin.session_id, attempt=1)])
    run_small_session(plan, desk.lake, desk.state, attempt=1, clock=desk.clock)

    desk.run()

    assert desk.cluster.launched == []
    assert desk.job_run(job_run_id).status is JobRunStatus.SUCCEEDED
    assert desk.rows() == [{"id": 1, "v": "a"}]
    assert "session.round_completed" in desk.sink.names


def test_a_session_that_was_launched_too_often_is_given_up(desk: Desk) -> None:
    policy = replace(desk.launcher_settings.retry, max_attempts=100, max_launches=4, retry_seconds=0.001)
    desk = desk.second(launcher_settings=replace(desk.launcher_settings, retry=policy))
    desk.cluster.behaves = lambda job: Crashes()
    desk.append([{"id": 1}])
    job_run_id = desk.accept()
    desk.run()
    assert [job.attempt for job in desk.cluster.launched] == [1, 2, 3, 4]
    assert desk.job_run(job_run_id).status is JobRunStatus.FAILED
    desk.close()


# ---------------------------------------------------------------------------------------------------------- cancel


def cancel(desk: Desk, job_run_id: str) -> None:
    desk.records.log(job_run_id).append(lambda _: [CancelRequested(reason="not now")])


def test_cancelling_stops_what_runs_and_what_waits(desk: Desk) -> None:
    append_days(desk, 4)
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
    told = [event for event in desk.sink.events if event.type != "lithify.heartbeat.emitted.v1"]
    ids = [event.id for event in told]
    assert len(ids) == len(set(ids)) == 8
    in_order = [
        event.type.removeprefix("lithify.").removesuffix(".v1")
        for event in sorted(told, key=lambda event: event.sequence)
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


def test_an_ended_job_run_whose_last_events_were_not_told_is_told_by_the_next_dispatcher(desk: Desk) -> None:
    mute = desk.second(sink=MemorySink([Unavailable("no topic")] * 10_000))
    mute.append([{"id": 1}])
    job_run_id = mute.accept()
    mute.foreman.tick()
    mute.tick_until(lambda: mute.job_run(job_run_id).status is JobRunStatus.SUCCEEDED)
    assert mute.sink.names == []
    assert mute.records.open_job_run_ids() == [job_run_id]
    mute.close()

    desk.foreman.tick()
    assert desk.sink.names[-1] == "job_run.succeeded"
    assert "session.round_completed" in desk.sink.names
    assert desk.records.open_job_run_ids() == []


def test_the_job_names_its_job_run_and_its_session(desk: Desk) -> None:
    desk.append([{"id": 1}])
    job_run_id = desk.accept()
    desk.run()
    (job,) = desk.cluster.launched
    assert isinstance(job, SparkJob)
    assert job.name == f"lithify {job_run_id} {job_run_id}.1"
    assert job.plan_key.endswith("/plan.json")
