"""Attempts that fail, one way or another, and what the next one does."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs

from compactor.engine.in_process import InProcessEngine
from compactor.events.types import RehashCompletedEvent, SessionRoundCompletedEvent, SessionSucceededEvent
from compactor.model.errors import Denied, ErrorKind, OutOfMemory, Unavailable
from compactor.planning.cluster_plan import ClusterUse
from compactor.planning.sizing import Resources
from compactor.planning.spec import SessionPlan
from compactor.sessions.keys import SessionFolder
from dispatcher.operations.status import view_job_run
from dispatcher.records.claims import Claim, claim_job_run
from dispatcher.records.job_run_events import SessionPlannedEvent, SessionRetriedEvent
from dispatcher.records.job_run_log import CancelRequested, JobRunStatus
from dispatcher.records.metrics_samples import COST
from dispatcher.records.outcome import session_cost, used_usd
from dispatcher.records.sessions import SessionLaunching
from dispatcher.scheduling.lease_log import IN_ALL
from launcher.launch import SessionCommand
from launcher.outcomes import Failed
from launcher.retrying import FailureCounts, RetryPolicy
from launcher.sizing.cluster_choice import ClusterLimits, ClusterRoom
from launcher.spark_job import SparkJob
from launcher.verdict import WatchTimers
from tests.builders import pinned_session
from tests.fakes.attempts import run_attempt
from tests.fakes.dispatch_desk import QUICK, TABLE, Desk
from tests.fakes.manual_clock import ManualClock
from tests.fakes.memory_store import MemoryStore
from tests.fakes.small_cluster import Behaviour, Crashes, Fails, Hangs, HasNoRoom, Succeeds

RAN = ClusterUse(
    on_demand_seconds=3_600, spot_seconds=600, instances_usd=2.0, surcharge_usd=0.5, volumes_usd=0.25, spot_usd=0.125
)

OVERTAKEN = 3
"""The exit code of a Spark job that another compactor was faster than."""


def desk_with(folder: Path, **policy: float) -> Desk:
    retry = replace(QUICK.retry, **policy)  # type: ignore[arg-type]
    return Desk(folder, launcher_settings=replace(QUICK, retry=retry))


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    """One failure is one too many."""
    desk = desk_with(tmp_path, max_attempts=1)
    yield desk
    desk.close()


def rival(desk: Desk, job_run_id: str = "rival") -> Callable[[], object]:
    """Another compaction of the table, over what is there now; it runs when it is called."""
    plan = desk.plan(pinned_session(desk.lake, TABLE, job_run_id=job_run_id))
    assert isinstance(plan, SessionPlan)
    return lambda: run_attempt(plan, desk.lake, MemoryStore(desk.clock), InProcessEngine(), 1, desk.clock)


def in_turn(*behaviours: Behaviour | Callable[[], object]) -> Callable[[SparkJob], Behaviour]:
    """What attempt 1, 2, ... does; after the last one they succeed. A callable happens first, and is overtaken."""

    def behave(job: SparkJob) -> Behaviour:
        if job.attempt > len(behaviours):
            return Succeeds()
        behaviour = behaviours[job.attempt - 1]
        if callable(behaviour):
            behaviour()
            return Crashes(OVERTAKEN)
        return behaviour

    return behave


def failure_counts(desk: Desk, job_run_id: str) -> FailureCounts:
    (session,) = desk.job_run(job_run_id).sessions.values()
    return session.failure_counts


def plan_of(desk: Desk, job_run_id: str, attempt: int) -> SessionPlan:
    key = SessionFolder(job_run_id, f"{job_run_id}.1").plan(attempt).key
    body = desk.state.read(key)
    assert body is not None
    return SessionPlan.parse_durable(body, key)


def failed(desk: Desk, job_run_id: str) -> Failed:
    (session,) = desk.job_run(job_run_id).sessions.values()
    assert isinstance(session.end, Failed)
    return session.end


# -------------------------------------------------------------------------------------------------------- overtaken


def test_an_attempt_that_was_overtaken_counts_as_no_failure_and_the_rest_is_planned_anew(desk: Desk) -> None:
    desk.append([{"id": 1, "v": "a"}, {"id": 2, "v": "b"}])
    overtake = rival(desk)
    desk.append([{"id": 1, "v": "c"}])
    desk.cluster.behaves = in_turn(overtake)
    job_run_id = desk.accept()
    desk.run()
    assert desk.job_run(job_run_id).status is JobRunStatus.SUCCEEDED
    assert desk.rows() == [{"id": 1, "v": "c"}, {"id": 2, "v": "b"}]
    assert failure_counts(desk, job_run_id) == FailureCounts(fenced=1)
    assert "3 delta rows" in plan_of(desk, job_run_id, 1).arithmetic[0]
    assert "1 delta row" in plan_of(desk, job_run_id, 2).arithmetic[0]
    (data,) = [event.data for event in desk.sink.events if isinstance(event.data, SessionRetriedEvent)]
    assert data.reasons == ("attempt 1 was overtaken by another compactor; it wrote nothing",)


def test_a_session_of_which_a_rival_has_done_everything_has_nothing_to_do(desk: Desk) -> None:
    desk.append([{"id": 1, "v": "a"}])
    desk.cluster.behaves = in_turn(rival(desk))
    job_run_id = desk.accept()
    desk.run()
    ended = desk.job_run(job_run_id).ended
    assert ended is not None
    assert (ended.outcome.status, ended.outcome.nothing_to_do) == ("succeeded", True)
    assert len(desk.cluster.launched) == 1


def test_a_session_that_committed_everything_and_died_before_it_said_so_is_left_to_its_next_attempt(
    tmp_path: Path,
) -> None:
    desk = desk_with(tmp_path, max_attempts=2)
    desk.append([{"id": 1, "v": "a"}])
    commit = rival(desk, job_run_id="mine")
    desk.cluster.behaves = lambda job: (commit(), Crashes(1))[1] if job.attempt == 1 else Succeeds()
    job_run_id = desk.accept(job_run_id="mine")
    desk.run()
    ended = desk.job_run(job_run_id).ended
    assert ended is not None
    assert (ended.outcome.status, ended.outcome.nothing_to_do) == ("succeeded", False)
    assert [job.attempt for job in desk.cluster.launched] == [1, 2]
    desk.close()


@pytest.mark.parametrize("ends", ["failed", "cancelled", "retried"])
def test_a_round_that_a_dead_attempt_did_not_log_is_always_logged(tmp_path: Path, ends: str) -> None:
    desk = desk_with(tmp_path, max_attempts=2 if ends == "retried" else 1)
    desk.append([{"id": 1, "v": "a"}])
    commit = rival(desk, job_run_id="mine")
    behaviour = Hangs() if ends == "cancelled" else Crashes(1)
    desk.cluster.behaves = lambda job: (commit(), behaviour)[1] if job.attempt == 1 else Succeeds()
    job_run_id = desk.accept(job_run_id="mine")
    if ends == "cancelled":
        desk.tick_until(lambda: desk.cluster.running == 1)
        desk.records.log(job_run_id).append(lambda _: [CancelRequested(reason="not now")])
    desk.run()
    assert desk.job_run(job_run_id).status == ("succeeded" if ends == "retried" else ends)
    (data,) = [event.data for event in desk.sink.events if isinstance(event.data, SessionRoundCompletedEvent)]
    assert (data.attempt, data.round_number, data.counts.rows_out) == (1, 1, 1)
    desk.close()


def test_a_lake_that_cannot_be_read_for_planning_is_an_outage_like_any_other(tmp_path: Path) -> None:
    desk = desk_with(tmp_path, patience_seconds=0.1)
    desk.plans_break.extend([Unavailable("the lake does not answer")] * 10_000)
    desk.append([{"id": 1}])
    job_run_id = desk.accept()
    desk.run()
    assert desk.cluster.launched == []
    end = failed(desk, job_run_id)
    assert (end.attempt, end.error_kind, end.reasons[0]) == (0, "Unavailable", "the lake does not answer")
    desk.close()


# ---------------------------------------------------------------------------------------------------------- outages


@pytest.mark.parametrize(
    "away",
    [Fails(Unavailable("the lake cannot be written")), Fails(Denied("the token has expired")), HasNoRoom()],
    ids=["service", "rights", "capacity"],
)
def test_a_session_waits_for_a_service_longer_than_it_would_for_a_crash(desk: Desk, away: Behaviour) -> None:
    desk.cluster.behaves = in_turn(*[away] * 7)
    desk.append([{"id": 1, "v": "a"}])
    job_run_id = desk.accept()
    desk.run()
    assert desk.job_run(job_run_id).status is JobRunStatus.SUCCEEDED
    assert desk.sink.names.count("session.retried") == 7
    assert desk.rows() == [{"id": 1, "v": "a"}]


def test_patience_has_an_end_that_can_be_set(tmp_path: Path) -> None:
    desk = desk_with(tmp_path, patience_seconds=0.1)
    desk.cluster.behaves = lambda job: Fails(Unavailable("the lake cannot be written"))
    desk.append([{"id": 1}])
    job_run_id = desk.accept()
    desk.run()
    end = failed(desk, job_run_id)
    assert end.error_kind == "Unavailable"
    assert end.reasons[0] == "the lake cannot be written"
    assert "found no service: `lithify retry` runs the job run again" in end.reasons[1]
    desk.close()


def test_a_session_that_waits_for_its_next_attempt_keeps_no_other_from_running(tmp_path: Path) -> None:
    desk = desk_with(tmp_path, retry_seconds=1e6, retry_seconds_max=1e6)
    desk = replace(desk, settings=replace(desk.settings, max_sessions=1, max_job_runs=1))
    desk.append([{"id": 1}], table="ACME.OTHER.V1")
    desk.append([{"id": 1}])
    desk.cluster.behaves = lambda job: Fails(Unavailable("away")) if "waits" in job.name else Succeeds()
    waits = desk.accept(job_run_id="waits")
    desk.tick_until(lambda: failure_counts(desk, waits).outages == 1)
    desk.tick_until(lambda: desk.controller.room > 0)
    runs = desk.accept(source_table_id="ACME.OTHER.V1")
    desk.tick_until(lambda: desk.job_run(runs).status is JobRunStatus.SUCCEEDED)
    assert desk.job_run(waits).status is JobRunStatus.RUNNING
    desk.close()


def test_between_two_attempts_a_session_waits_and_the_next_one_begins_its_own_time(tmp_path: Path) -> None:
    desk = Desk(tmp_path, clock=ManualClock(), launcher_settings=replace(QUICK, timers=WatchTimers()))
    desk.append([{"id": 1}])
    job_run_id = desk.accept()
    desk.cluster.behaves = lambda job: HasNoRoom()
    desk.tick_until(lambda: failure_counts(desk, job_run_id).outages == 1)
    desk.clock.sleep(1_000)
    (waits,) = view_job_run(desk.records, job_run_id, desk.clock).sessions
    assert (waits.status, waits.seconds, waits.eta_seconds) == ("waiting", None, None)

    desk.cluster.behaves = lambda job: Hangs()
    desk.tick_until(lambda: desk.cluster.running == 1)
    (runs,) = view_job_run(desk.records, job_run_id, desk.clock).sessions
    assert runs.status == "running"
    assert runs.seconds is not None
    assert runs.seconds < 1_000
    desk.close()


# ---------------------------------------------------------------------------------------------------- out of memory


@pytest.mark.parametrize("behaviour", [Fails(OutOfMemory("a worker died")), Crashes(137), Crashes(-9)], ids=str)
def test_an_attempt_without_enough_memory_is_followed_by_one_with_more_buckets_and_smaller_rounds(
    tmp_path: Path, behaviour: Behaviour
) -> None:
    desk = desk_with(tmp_path, max_attempts=3)
    desk.cluster.behaves = in_turn(behaviour, behaviour)
    for number in range(8):
        desk.append([{"id": number}])
    job_run_id = desk.accept()
    desk.run()
    assert desk.job_run(job_run_id).status is JobRunStatus.SUCCEEDED
    plans = [plan_of(desk, job_run_id, attempt) for attempt in (1, 2, 3)]
    assert [plan.hash_bucket_count for plan in plans] == [1, 2, 4]
    assert [plan.max_rows_per_round for plan in plans][1:] == [4, 2]
    assert [plan.task_memory_bytes for plan in plans] == [1 << 30, 1 << 29, 1 << 28]
    planned = [event.data for event in desk.sink.events if isinstance(event.data, SessionPlannedEvent)]
    assert [data.attempt for data in planned] == [1, 2, 3]
    assert planned[2].changes == (
        "4 hash buckets instead of 2",
        "2 delta rows in a round instead of 4",
        "268,435,456 bytes of memory for a task instead of 536,870,912",
    )
    assert planned[1].arithmetic[0].startswith("1 attempt ran out of memory: ")


def test_an_attempt_that_failed_otherwise_in_between_makes_no_plan_smaller(tmp_path: Path) -> None:
    desk = desk_with(tmp_path, max_attempts=2)
    away = Fails(Unavailable("away"))
    desk.cluster.behaves = in_turn(Fails(OutOfMemory("a worker died")), away, away)
    desk.append([{"id": 1}, {"id": 2}])
    job_run_id = desk.accept()
    desk.run()
    assert [plan_of(desk, job_run_id, attempt).hash_bucket_count for attempt in (1, 2, 3, 4)] == [1, 2, 2, 2]
    desk.close()


def test_hash_buckets_that_were_asked_for_are_kept_and_what_then_cannot_fit_fails_for_lack_of_memory(
    tmp_path: Path,
) -> None:
    desk = desk_with(tmp_path, max_attempts=9)
    desk.cluster.behaves = lambda job: Fails(OutOfMemory("a worker died"))
    desk.append([{"id": 1}, {"id": 2}])
    job_run_id = desk.accept(hash_bucket_count=3)
    desk.run()
    assert {plan_of(desk, job_run_id, attempt).hash_bucket_count for attempt in range(1, 10)} == {3}
    assert failed(desk, job_run_id).error_kind == "OutOfMemory"
    desk.close()


# ------------------------------------------------------------------------------------------ deployments and takeovers


def test_launches_cut_short_by_a_deployment_count_for_nothing(tmp_path: Path) -> None:
    desk = desk_with(tmp_path, max_attempts=1, max_unwatched=1)
    desk.append([{"id": 1, "v": "a"}])
    job_run_id = desk.accept()
    for _ in range(5):
        desk.cluster.behaves = lambda job: Hangs()
        desk.tick_until(lambda cluster=desk.cluster: cluster.running == 1)  # type: ignore[misc]
        desk.controller.drain(0, lambda: True)
        desk = desk.second()
    desk.run()
    assert desk.job_run(job_run_id).status is JobRunStatus.SUCCEEDED
    assert [job.attempt for job in desk.cluster.launched] == [6]
    assert failure_counts(desk, job_run_id) == FailureCounts()
    desk.close()


def test_a_session_whose_dispatchers_vanish_one_after_the_other_is_given_up(tmp_path: Path) -> None:
    desk = desk_with(tmp_path, max_unwatched=3)
    desk.append([{"id": 1}])
    job_run_id = desk.accept()
    for number in range(1, 5):
        claim = claim_job_run(desk.records.log(job_run_id), f"gone {number}", lambda _: True)
        assert isinstance(claim, Claim)
        launching = SessionLaunching(
            epoch=claim.epoch, session_id=f"{job_run_id}.1", attempt=number, at_ms=0, name="lost", place="elsewhere"
        )
        claim.write(lambda _, launching=launching: [launching])  # type: ignore[misc]
    assert failure_counts(desk, job_run_id) == FailureCounts(unwatched=3)
    desk.run()
    assert desk.cluster.launched == []
    assert failed(desk, job_run_id).reasons == (
        "it was launched 4 times, and 3 times in a row its end was not observed",
    )
    desk.close()


def test_who_takes_over_plans_with_the_cores_and_the_memory_that_it_has(tmp_path: Path) -> None:
    desk = desk_with(tmp_path)
    desk.cluster.behaves = lambda job: Hangs()
    desk.append([{"id": 1, "v": "a"}])
    job_run_id = desk.accept()
    desk.tick_until(lambda: desk.cluster.running == 1)
    desk.controller.drain(0, lambda: True)
    second = desk.second()
    second.cluster.has = Resources(task_memory_bytes=1 << 28, tasks=8)
    second.run()
    assert second.job_run(job_run_id).status is JobRunStatus.SUCCEEDED
    plan = plan_of(second, job_run_id, 2)
    assert (plan.task_memory_bytes, plan.tasks) == (1 << 28, 8)
    assert [job.resources for job in second.cluster.launched] == [Resources(1 << 28, 8)]
    (_, planned) = [event.data for event in second.sink.events if isinstance(event.data, SessionPlannedEvent)]
    assert "8 tasks side by side instead of 2" in planned.changes
    second.close()


def test_a_session_beyond_its_limits_fails_with_both_figures_and_nothing_is_launched(desk: Desk) -> None:
    desk.cluster.has = ClusterRoom(ClusterLimits(usd_max=0.001))
    desk.append([{"id": 1}])
    job_run_id = desk.accept()
    desk.run()
    end = failed(desk, job_run_id)
    assert (end.error_kind, desk.cluster.launched) == (ErrorKind.INVALID, [])
    assert re.search(r"expected to cost \$0\.0[1-9]\d\d at least, on 1 x .*, and may cost \$0\.0010", end.reasons[0])


def test_a_session_whose_records_fit_no_scratch_folder_fails_with_both_figures_and_nothing_is_launched(
    desk: Desk,
) -> None:
    desk.cluster.has = Resources(task_memory_bytes=1 << 28, tasks=2, scratch_bytes=100)
    desk.append([{"id": 1}, {"id": 2}])
    job_run_id = desk.accept()
    desk.run()
    end = failed(desk, job_run_id)
    assert (end.error_kind, desk.cluster.launched) == (ErrorKind.INVALID, [])
    assert "has 2 rows, whose round takes 136 bytes of scratch folders, which have 100" in end.reasons[0]


def test_a_rehash_whose_first_attempt_crashes_is_tried_again_and_told(tmp_path: Path) -> None:
    desk = desk_with(tmp_path)
    desk.append([{"id": number} for number in range(20)])
    desk.accept()
    desk.run()
    before = desk.lake.table(TABLE).scan({}).to_table()
    desk.append([{"id": 100}])
    desk.cluster.behaves = in_turn(Crashes(), Succeeds())
    job_run_id = desk.accept(job_run_id="moved", operation="rehash", hash_bucket_count=9)
    desk.run()
    assert desk.job_run(job_run_id).status is JobRunStatus.SUCCEEDED
    about = [event.data for event in desk.sink.events if event.jobrunid == job_run_id]
    (rehashed,) = [data for data in about if isinstance(data, RehashCompletedEvent)]
    (succeeded,) = [data for data in about if isinstance(data, SessionSucceededEvent)]
    assert (rehashed.attempt, rehashed.hash_bucket_count) == (2, 9)
    assert (succeeded.nothing_to_do, succeeded.rounds) == (False, 0)
    planned = next(data for data in about if isinstance(data, SessionPlannedEvent))
    assert (planned.hash_bucket_count, planned.arithmetic[0][:26]) == (9, "the index is rehashed from")
    assert desk.lake.table(TABLE).scan({}).to_table().equals(before)


def test_a_session_on_a_cluster_of_its_own_is_told_with_its_cost_before_and_after(desk: Desk) -> None:
    desk.cluster.has = ClusterRoom()
    desk.append([{"id": 1}])
    job_run_id = desk.accept()
    desk.run()
    assert desk.job_run(job_run_id).status is JobRunStatus.SUCCEEDED
    data = [event.data for event in desk.sink.events]
    (planned,) = [each for each in data if isinstance(each, SessionPlannedEvent)]
    (succeeded,) = [each for each in data if isinstance(each, SessionSucceededEvent)]
    assert planned.cluster is not None
    assert succeeded.expected_cost == planned.cluster.cost
    assert succeeded.cost is not None
    assert succeeded.cost.instances_usd == pytest.approx(
        planned.cluster.rates.instances_usd_hour * succeeded.cost.seconds / 3600
    )
    assert planned.cluster == plan_of(desk, job_run_id, 1).cluster
    counted = {sample.metric: sample.value for sample in desk.metrics.samples()}
    assert counted[COST] == pytest.approx(succeeded.cost.total_usd)


def test_a_session_has_cost_what_the_nodes_of_each_of_its_attempts_have_run(desk: Desk) -> None:
    desk.launcher_settings = replace(QUICK, retry=replace(QUICK.retry, max_attempts=3))
    desk = replace(desk)
    desk.cluster.has, desk.cluster.ran = ClusterRoom(), RAN
    desk.cluster.behaves = in_turn(Crashes(), HasNoRoom())
    desk.append([{"id": 1}])
    job_run_id = desk.accept()
    desk.run()
    (succeeded,) = [event.data for event in desk.sink.events if isinstance(event.data, SessionSucceededEvent)]
    assert succeeded.cost is not None
    assert (succeeded.cost.instances_usd, succeeded.cost.spot_usd) == (2 * RAN.instances_usd, 2 * RAN.spot_usd)
    assert succeeded.cost.surcharge_usd + succeeded.cost.volumes_usd == 2 * (RAN.surcharge_usd + RAN.volumes_usd)
    (session,) = desk.job_run(job_run_id).sessions.values()
    assert session_cost(session, desk.clock.now_ms()) == succeeded.cost
    assert booked(desk) == pytest.approx(2 * RAN.usd), "the limits of a day have spent that, and not what may have run"
    desk.close()


def test_a_session_that_failed_has_cost_what_its_nodes_have_run(desk: Desk) -> None:
    desk.cluster.has, desk.cluster.ran = ClusterRoom(), RAN
    desk.cluster.behaves = in_turn(Crashes())
    desk.append([{"id": 1}])
    job_run_id = desk.accept()
    desk.run()
    state = desk.job_run(job_run_id)
    assert state.status is JobRunStatus.FAILED
    assert used_usd(state, desk.clock.now_ms()) == pytest.approx(RAN.usd)
    assert view_job_run(desk.records, job_run_id, desk.clock).usd == pytest.approx(RAN.usd)
    assert {sample.metric: sample.value for sample in desk.metrics.samples()}[COST] == pytest.approx(RAN.usd)
    assert booked(desk) == pytest.approx(RAN.usd)


@pytest.mark.parametrize("leaves", [SessionCommand.STOP, SessionCommand.LEAVE])
def test_an_attempt_that_a_dispatcher_stopped_or_left_to_the_next_one_is_paid_for_once(
    desk: Desk, leaves: SessionCommand
) -> None:
    held = threading.Event()
    desk.cluster.has, desk.cluster.ran = ClusterRoom(), RAN
    desk.cluster.behaves = lambda _: Succeeds(held)
    desk.append([{"id": 1}])
    job_run_id = desk.accept()
    desk.tick_until(lambda: desk.cluster.running == 1)
    desk.controller.drain(0, lambda: leaves is SessionCommand.STOP)
    held.set()
    second = desk.second()
    second.cluster.has, second.cluster.ran = ClusterRoom(), RAN
    second.run()
    state = second.job_run(job_run_id)
    assert state.status is JobRunStatus.SUCCEEDED
    launches = 2 if leaves is SessionCommand.STOP else 1
    (session,) = state.sessions.values()
    assert [each.use for each in session.paid] == [RAN] * launches
    second.close()


def test_a_session_whose_nodes_cannot_be_read_has_cost_what_was_planned(desk: Desk) -> None:
    desk.cluster.has = ClusterRoom()
    desk.append([{"id": 1}])
    job_run_id = desk.accept()
    desk.run()
    (session,) = desk.job_run(job_run_id).sessions.values()
    (attempt,) = session.paid
    cost = session_cost(session, desk.clock.now_ms())
    assert cost is not None
    assert attempt.use is None
    assert cost.instances_usd == pytest.approx(attempt.rates.instances_usd_hour * cost.seconds / 3600)


def booked(desk: Desk) -> float:
    """On all days, by leases that have ended."""
    return sum(amounts[IN_ALL] for amounts in desk.turns.now().spent.values())


def test_launches_that_were_refused_cost_nothing(desk: Desk) -> None:
    desk.cluster.has = ClusterRoom()
    desk.cluster.behaves = in_turn(HasNoRoom(), HasNoRoom(), Succeeds())
    desk.append([{"id": 1}])
    desk.accept()
    desk.run()
    (succeeded,) = [event.data for event in desk.sink.events if isinstance(event.data, SessionSucceededEvent)]
    assert succeeded.cost is not None
    assert succeeded.cost.seconds == 60, "of the one attempt that was launched"


def test_an_attempt_that_somebody_planned_and_never_launched_leaves_its_number_unused(desk: Desk) -> None:
    desk.append([{"id": 1}])
    job_run_id = desk.accept()
    (session,) = desk.job_run(job_run_id).sessions.values()
    desk.state.put_if_absent(SessionFolder(job_run_id, session.pin.session_id).plan(1).key, b"{}")
    desk.run()
    assert [job.attempt for job in desk.cluster.launched] == [2]
    assert desk.job_run(job_run_id).status is JobRunStatus.SUCCEEDED


def test_the_default_patience_is_hours() -> None:
    assert RetryPolicy().patience_seconds >= 3_600


# -------------------------------------------------------------------------------------------------------- the log


def test_a_dispatchers_log_tells_of_plans_launches_retries_and_ends_with_whose_they_are(tmp_path: Path) -> None:
    desk = desk_with(tmp_path, max_attempts=2)
    desk.append([{"id": 1, "v": "a"}])
    desk.cluster.behaves = in_turn(Crashes(1), Crashes(1))
    job_run_id = desk.accept()
    with capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines:
        desk.run()
    desk.close()
    logged = [each for each in lines if each["event"].startswith("session_")]
    assert [(each["event"].removeprefix("session_"), each["attempt"]) for each in logged] == [
        *(("planned", 1), ("launched", 1), ("retried", 2)),
        *(("planned", 2), ("launched", 2), ("ended", 2)),
    ]
    assert {(each["job_run_id"], each["session_id"]) for each in logged} == {(job_run_id, f"{job_run_id}.1")}
    assert (logged[-1]["end"], logged[-1]["error_kind"], logged[-1]["log_level"]) == ("failed", "crashed", "error")
    assert logged[-1]["reasons"].startswith("attempt 2 exited with code 1")
