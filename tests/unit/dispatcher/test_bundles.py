"""Small sessions that share a Spark job, with everything going wrong that can: for one of them, or for all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from compactor.events.types import SessionSucceededEvent
from compactor.model.errors import Corrupt, Invalid, LithifyError, OutOfMemory, Unavailable
from compactor.planning.bundle_plan import BundleBounds, BundleMember
from compactor.planning.cluster_plan import ClusterUse
from compactor.sessions.keys import SessionObject
from compactor.storage.create_once import ATTEMPTS_MAX
from compactor.storage.local import LocalStore
from compactor.storage.location import parse_location
from compactor.storage.object_store import ObjectStore
from dispatcher.records.job_run_events import SessionPlannedEvent
from dispatcher.records.job_run_log import CancelRequested, JobRunClaimed, JobRunState, JobRunStatus
from dispatcher.records.metrics_samples import COST, EXPECTED_COST, SESSIONS_RUNNING
from dispatcher.records.outcome import used_usd
from dispatcher.records.sessions import SessionEnded
from dispatcher.scheduling.lease_log import IN_ALL, LeaseTaken, lease_log
from launcher.outcomes import Cancelled
from launcher.poller import PollerSettings
from launcher.sizing.cluster_choice import ClusterLimits, ClusterRoom
from launcher.spark_job import JobRunning, SparkJob
from tests.fakes.dispatch_desk import QUICK, STALL_SECONDS, Desk
from tests.fakes.faulty_store import FaultyStore
from tests.fakes.moving_clock import MovingClock
from tests.fakes.small_cluster import (
    Behaviour,
    Crashes,
    CrashesAfterwards,
    Dies,
    Fails,
    Hangs,
    HasNoRoom,
    MemberRuns,
    Stalls,
    Succeeds,
    session_log_of,
)

DAYS = "ACME.DAYS.V1"


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    state = LocalStore(parse_location(str(tmp_path / "state")))
    desk = Desk(tmp_path, state=state, bundles=BundleBounds())
    yield desk
    desk.close()


def only(day: str, behaviour: MemberRuns) -> Callable[[BundleMember], MemberRuns]:
    """What the session of one day does, and only in its first attempt."""

    def behaves(member: BundleMember) -> MemberRuns:
        is_meant = member.plan.spec.partition == {"day": day} and member.attempt == 1
        return behaviour if is_meant else Succeeds()

    return behaves


def launches(desk: Desk) -> list[str]:
    paths = [SessionObject.parse_or_none(job.plan_key) for job in desk.cluster.launched]
    return ["bundle" if path is None else path.session.session_id.split(".")[-1] for path in paths]


def logged_actions(desk: Desk, job_run_id: str, number: int) -> list[str]:
    """What a session's log says; not whether it took longer than was expected, as on a busy machine it may."""
    actions = session_log_of(desk.state, job_run_id, f"{job_run_id}.{number}", desk.clock)
    return [action for action in actions if action != "expected_sla_changed"]


def succeeded(desk: Desk, job_run_id: str, days: int) -> JobRunState:
    """Every session of the job run did, with the rows that it would have alone."""
    state = desk.job_run(job_run_id)
    assert state.status is JobRunStatus.SUCCEEDED
    assert state.ended is not None
    assert (state.ended.outcome.sessions, state.ended.outcome.rows_out) == (days, 2 * days)
    check_rows(desk, days)
    return state


def check_rows(desk: Desk, days: int) -> None:
    for day in range(1, days + 1):
        rows = desk.lake.table(DAYS).scan({"day": str(day)}).to_table().to_pylist()
        assert sorted((row["id"], row["v"]) for row in rows) == [(1, "c"), (2, "b")]


def test_small_sessions_of_a_job_run_share_one_spark_job(desk: Desk) -> None:
    desk.append_days(DAYS, 7)
    job_run_id = desk.accept(source_table_id=DAYS)
    desk.run()
    succeeded(desk, job_run_id, 7)
    assert launches(desk) == ["bundle"]
    assert desk.sink.names.count("session.succeeded") == 7
    assert desk.sink.names.count("session.round_completed") == 7


def test_the_plan_and_the_events_say_which_sessions_share_a_spark_job(desk: Desk) -> None:
    desk.append_days(DAYS, 3)
    job_run_id = desk.accept(source_table_id=DAYS)
    desk.run()
    sessions = desk.job_run(job_run_id).sessions.values()
    (bundle,) = {session.bundle for session in sessions}
    assert bundle is not None
    for session in sessions:
        assert session.plan is not None
        assert session.plan.bundle == bundle
        assert "of 3 sessions in one Spark job of 2 cores" in session.plan.arithmetic[-1]
        assert "and a Spark takes 5.0 s to start" in session.plan.arithmetic[-2]
    planned = [event.data for event in desk.sink.events if event.type == "lithify.session.planned.v1"]
    launched = [event.data for event in desk.sink.events if event.type == "lithify.session.launched.v1"]
    assert {data.model_dump()["bundle"] for data in (*planned, *launched)} == {bundle}
    assert (len(planned), len(launched)) == (3, 3)


def test_every_member_keeps_a_session_log_of_its_own(desk: Desk) -> None:
    desk.append_days(DAYS, 3)
    job_run_id = desk.accept(source_table_id=DAYS)
    desk.run()
    for number in (1, 2, 3):
        assert logged_actions(desk, job_run_id, number) == ["session_started", "round_done", "session_succeeded"]


def test_the_job_run_log_does_not_grow_by_entries_for_each_session(desk: Desk) -> None:
    # One entry has what has ended between two looks; here there is one look, when the bundle has ended.
    looks = PollerSettings(poll_seconds=0.01, look_seconds=STALL_SECONDS)
    desk = replace(desk, launcher_settings=replace(desk.launcher_settings, poller=looks))
    desk.append_days(DAYS, 30)
    job_run_id = desk.accept(source_table_id=DAYS)
    desk.run()
    succeeded(desk, job_run_id, 30)
    # accepted, claimed, planned, launching, launched, what has ended, the job run's end
    assert desk.records.log(job_run_id).load().entry_number <= 7
    desk.close()


class HurriedClock(MovingClock):
    def sleep(self, seconds: float) -> None:
        self.move_on(seconds)


class UnknownEnds(FaultyStore):
    """Sessions' ends are written, but nobody can know for as long as their writer tries to find out."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self.key: str | None = None
        self.writer = 0
        self.reads_failed = 0

    def put_if_absent(self, key: str, body: bytes) -> bool:
        if self.key is None and b'"session_ended"' in body:
            self.key, self.writer = key, threading.get_ident()
            if super().put_if_absent(key, body):
                raise Unavailable("the answer is lost")
            self.key = None  # another thread wrote this entry
            return False
        return super().put_if_absent(key, body)

    def read(self, key: str) -> bytes | None:
        if key == self.key and self.reads_failed < ATTEMPTS_MAX:
            self.reads_failed += threading.get_ident() == self.writer
            raise Unavailable("the entry cannot be read")
        return super().read(key)


@pytest.mark.parametrize("does", [Succeeds(), CrashesAfterwards(loses_log=False)])
def test_the_ends_of_a_bundle_are_published_though_the_answer_to_their_entry_was_lost(
    tmp_path: Path, does: MemberRuns
) -> None:
    state = UnknownEnds(LocalStore(parse_location(str(tmp_path / "state"))))
    desk = Desk(tmp_path, clock=HurriedClock(), state=state, bundles=BundleBounds())
    desk.append_days(DAYS, 2)
    desk.cluster.members = lambda member: does
    job_run_id = desk.accept(source_table_id=DAYS)
    desk.run()
    desk.close()
    assert state.reads_failed == ATTEMPTS_MAX
    succeeded(desk, job_run_id, 2)
    assert launches(desk)[0] == "bundle"
    assert launches(desk).count("bundle") == 1
    logged = [action for number in (1, 2) for action in logged_actions(desk, job_run_id, number)]
    assert logged.count("round_done") == 2
    assert desk.sink.names.count("session.started") == logged.count("session_started")
    for name in ("session.round_completed", "session.succeeded"):
        assert desk.sink.names.count(name) == 2


class RefusesStalls(FaultyStore):
    """The first entry that says that sessions stall is not written, as often as its writer tries."""

    refused = 0

    def put_if_absent(self, key: str, body: bytes) -> bool:
        if b'"session_stalled"' in body and self.refused < ATTEMPTS_MAX:
            self.refused += 1
            raise Unavailable("the state does not answer")
        return super().put_if_absent(key, body)


def test_a_bundle_whose_watch_ended_with_the_store_is_attached_to_again_and_its_job_is_not_left(tmp_path: Path) -> None:
    state = RefusesStalls(LocalStore(parse_location(str(tmp_path / "state"))))
    desk = Desk(tmp_path, clock=HurriedClock(), state=state, bundles=BundleBounds())
    desk.append_days(DAYS, 3)
    desk.cluster.members = only("1", Stalls())
    job_run_id = desk.accept(source_table_id=DAYS)
    desk.run()
    desk.close()
    assert state.refused == ATTEMPTS_MAX
    succeeded(desk, job_run_id, 3)
    assert [isinstance(job.status(), JobRunning) for job in desk.cluster.jobs.values()] == [False] * 3


def test_a_session_is_not_run_again_though_the_answer_to_the_entry_of_its_end_was_lost(tmp_path: Path) -> None:
    state = UnknownEnds(LocalStore(parse_location(str(tmp_path / "state"))))
    desk = Desk(tmp_path, clock=HurriedClock(), state=state)
    desk.append_days(DAYS, 2)
    job_run_id = desk.accept(source_table_id=DAYS)
    desk.run()
    desk.close()
    assert state.reads_failed == ATTEMPTS_MAX
    succeeded(desk, job_run_id, 2)
    assert sorted(launches(desk)) == ["1", "2"]
    assert desk.sink.names.count("session.round_completed") == 2


def test_a_single_small_session_has_a_spark_job_of_its_own(desk: Desk) -> None:
    desk.append_days(DAYS, 1)
    job_run_id = desk.accept(source_table_id=DAYS)
    desk.run()
    succeeded(desk, job_run_id, 1)
    assert launches(desk) == ["1"]


def test_a_bundle_has_at_most_as_many_sessions_as_are_allowed(tmp_path: Path, desk: Desk) -> None:
    small = replace(desk, bundles=BundleBounds(sessions=3), settings=replace(desk.settings, max_sessions=1))
    small.append_days(DAYS, 7)
    job_run_id = small.accept(source_table_id=DAYS)
    small.run()
    succeeded(small, job_run_id, 7)
    assert launches(small) == ["bundle", "bundle", "7"]
    small.close()


def test_a_bundle_lasts_at_most_as_long_as_is_allowed_by_prediction(desk: Desk) -> None:
    # 0.018 s each on two cores
    short = replace(desk, bundles=BundleBounds(seconds=0.04), settings=replace(desk.settings, max_sessions=1))
    short.append_days(DAYS, 8)
    job_run_id = short.accept(source_table_id=DAYS)
    short.run()
    succeeded(short, job_run_id, 8)
    assert launches(short) == ["bundle", "bundle"]
    short.close()


def test_bundles_can_be_switched_off(desk: Desk) -> None:
    alone = replace(desk, bundles=BundleBounds(sessions=1))
    alone.append_days(DAYS, 2)
    job_run_id = alone.accept(source_table_id=DAYS)
    alone.run()
    succeeded(alone, job_run_id, 2)
    assert sorted(launches(alone)) == ["1", "2"]
    alone.close()


def test_sessions_with_nothing_to_do_are_not_in_a_bundle(desk: Desk) -> None:
    one_at_a_time = replace(desk, settings=replace(desk.settings, max_sessions=1))
    one_at_a_time.append_days(DAYS, 4)
    one_at_a_time.accept(source_table_id=DAYS, partitions=[{"day": "1"}, {"day": "2"}])
    job_run_id = one_at_a_time.accept(source_table_id=DAYS)
    one_at_a_time.run()
    state = one_at_a_time.job_run(job_run_id)
    assert state.status is JobRunStatus.SUCCEEDED
    assert [session.bundle is not None for session in state.sessions.values()] == [False, False, True, True]
    assert launches(one_at_a_time) == ["bundle", "bundle"]
    one_at_a_time.close()


def test_a_session_that_is_too_large_runs_alone_and_the_small_ones_together(desk: Desk) -> None:
    desk.large.add("2")
    desk.append_days(DAYS, 4)
    job_run_id = desk.accept(source_table_id=DAYS)
    desk.run()
    succeeded(desk, job_run_id, 4)
    assert sorted(launches(desk)) == ["2", "bundle"]


# ------------------------------------------------------------------------------------------- one member goes wrong


@pytest.mark.parametrize("error", [Invalid("the schemas do not fit"), Corrupt("a file is gone")], ids=repr)
def test_a_member_that_can_only_fail_again_fails_and_harms_no_other(desk: Desk, error: LithifyError) -> None:
    desk.cluster.members = only("2", Fails(error))
    desk.append_days(DAYS, 3)
    job_run_id = desk.accept(source_table_id=DAYS)
    desk.run()
    state = desk.job_run(job_run_id)
    assert state.ended is not None
    assert state.ended.outcome.reasons == (f"day=2: {error}",)
    assert state.ended.outcome.sessions == 2
    assert launches(desk) == ["bundle"]


@pytest.mark.parametrize(
    "behaviour",
    [Fails(OutOfMemory("memory ran out")), Dies(), Crashes(1), Stalls()],
    ids=lambda each: type(each).__name__,
)
def test_a_member_that_fails_dies_crashes_or_stalls_is_run_again_alone(desk: Desk, behaviour: MemberRuns) -> None:
    desk.cluster.members = only("2", behaviour)
    desk.append_days(DAYS, 4)
    job_run_id = desk.accept(source_table_id=DAYS)
    desk.run()
    state = succeeded(desk, job_run_id, 4)
    failed = [session for session in state.sessions.values() if session.failure_counts.failures]
    assert [session.pin.partition for session in failed] == [{"day": "2"}]
    assert [session.alone for session in state.sessions.values()] == [False, True, False, False]
    assert state.sessions[f"{job_run_id}.2"].bundle is None
    assert "2" in launches(desk)
    (retried,) = [event.data for event in desk.sink.events if event.type == "lithify.session.retried.v1"]
    assert retried.model_dump()["alone"] is True
    assert desk.sink.names.count("session.stalled") == isinstance(behaviour, Stalls)


def test_members_that_had_not_begun_when_the_spark_job_crashed_run_in_the_next_bundle_without_a_setback(
    desk: Desk,
) -> None:
    desk.cluster.members = only("2", Crashes(1))
    desk.append_days(DAYS, 5)
    job_run_id = desk.accept(source_table_id=DAYS)
    desk.run()
    state = succeeded(desk, job_run_id, 5)
    assert sorted(launches(desk)) == ["2", "bundle", "bundle"]
    assert sum(session.failure_counts.failures for session in state.sessions.values()) == 1


def test_a_member_that_had_ended_when_the_spark_job_crashed_is_not_run_again(desk: Desk) -> None:
    desk.cluster.members = only("2", CrashesAfterwards(loses_log=False))
    desk.append_days(DAYS, 2)
    job_run_id = desk.accept(source_table_id=DAYS)
    desk.run()
    state = succeeded(desk, job_run_id, 2)
    assert launches(desk) == ["bundle"]
    assert [session.failure_counts.failures for session in state.sessions.values()] == [0, 0]


def test_a_round_that_a_dead_member_did_not_log_is_logged(desk: Desk) -> None:
    desk.cluster.members = only("2", CrashesAfterwards(loses_log=True))
    desk.append_days(DAYS, 2)
    job_run_id = desk.accept(source_table_id=DAYS)
    desk.run()
    succeeded(desk, job_run_id, 2)
    assert logged_actions(desk, job_run_id, 2) == [
        "session_started",
        "round_done",
        "session_started",
        "session_succeeded",
    ]
    assert desk.sink.names.count("session.round_completed") == 2


def test_a_session_that_is_tried_again_leaves_the_lease_of_those_that_still_run(desk: Desk) -> None:
    """It was to share a launch with them, and could not be planned."""
    held = threading.Event()
    desk.cluster.members = lambda member: Succeeds(held)
    desk.plans_break.append(Unavailable("the lake does not answer"))
    desk.append_days(DAYS, 3)
    job_run_id = desk.accept(source_table_id=DAYS)
    desk.tick_until(lambda: any(each.end for each in desk.job_run(job_run_id).sessions.values()))
    running = {key for key, each in desk.job_run(job_run_id).sessions.items() if each.end is None}
    leases = lease_log(desk.state, desk.clock).load().state.turns.values()
    held.set()
    assert len(running) == 2
    assert running <= {each for lease in leases for each in lease.session_ids}
    desk.run()
    succeeded(desk, job_run_id, 3)
    assert sorted(launches(desk), key=len)[-1] == "bundle"


def test_a_lease_of_a_lost_claim_stops_nobody_once_the_bundle_that_ran_its_sessions_has_crashed(desk: Desk) -> None:
    """A dispatcher took it when it had lost its claim already. Two of the sessions had not begun, so that the log has
    them in flight."""
    held = threading.Event()
    desk.cluster.members = lambda member: Stalls() if member.attempt == 1 else Succeeds(held)
    desk.append_days(DAYS, 3)
    job_run_id = desk.accept(source_table_id=DAYS)
    desk.tick_until(lambda: all(each.in_flight for each in desk.job_run(job_run_id).sessions.values()))
    (lease,) = lease_log(desk.state, desk.clock).load().state.turns.values()
    late = lease.model_copy(update={"turn_id": "late", "owner": "gone", "epoch": 0})
    lease_log(desk.state, desk.clock).append(lambda _: [LeaseTaken(turn=late)])
    ahead = desk.accept(source_table_id=DAYS, job_run_id="ahead", priority=1)
    held.set()
    desk.run()
    ends = [desk.job_run(each).ended for each in (job_run_id, ahead)]  # which goes first is a race
    outcomes = [each.outcome for each in ends if each is not None]
    assert [each.status for each in outcomes] == ["succeeded", "succeeded"]
    assert sum(each.rows_out for each in outcomes) == 6, "each stream is compacted once"
    check_rows(desk, 3)
    assert not lease_log(desk.state, desk.clock).load().state.turns


def test_members_that_find_a_service_away_are_tried_again_together(desk: Desk) -> None:
    desk.cluster.members = lambda member: Fails(Unavailable("S3 is away")) if member.attempt == 1 else Succeeds()
    desk.append_days(DAYS, 5)
    job_run_id = desk.accept(source_table_id=DAYS)
    desk.run()
    succeeded(desk, job_run_id, 5)
    assert launches(desk) == ["bundle", "bundle"]


# ------------------------------------------------------------------------------------------------ all of it goes wrong


@pytest.mark.parametrize("behaviour", [Crashes(1), Stalls(started=False), HasNoRoom()], ids=str)
def test_a_bundle_that_does_not_start_is_tried_again_as_a_bundle(desk: Desk, behaviour: Behaviour) -> None:
    tries = iter([behaviour])
    desk.cluster.behaves = lambda job: next(tries, Succeeds())
    desk.append_days(DAYS, 3)
    job_run_id = desk.accept(source_table_id=DAYS)
    desk.run()
    succeeded(desk, job_run_id, 3)
    assert set(launches(desk)) == {"bundle"}


def test_a_bundle_that_never_starts_ends_with_its_reason(desk: Desk) -> None:
    desk.cluster.behaves = lambda job: Crashes(1)
    desk.append_days(DAYS, 2)
    job_run_id = desk.accept(source_table_id=DAYS)
    desk.run()
    state = desk.job_run(job_run_id)
    assert state.ended is not None
    assert state.ended.outcome.status == "failed"
    assert launches(desk) == ["bundle"] * 3
    assert all("exited with code 1" in reason for reason in state.ended.outcome.reasons)


def test_a_cancelled_job_runs_bundle_is_stopped_and_its_sessions_end_in_one_entry(desk: Desk) -> None:
    held = threading.Event()
    desk.cluster.members = lambda member: Succeeds() if member.plan.spec.partition == {"day": "1"} else Succeeds(held)
    desk.append_days(DAYS, 6)
    job_run_id = desk.accept(source_table_id=DAYS)
    desk.tick_until(lambda: any(each.end for each in desk.job_run(job_run_id).sessions.values()))
    desk.records.log(job_run_id).append(lambda _: [CancelRequested(reason="enough")])
    before = desk.records.log(job_run_id).load().entry_number
    desk.run()
    state = desk.job_run(job_run_id)
    assert state.status is JobRunStatus.CANCELLED
    ends = [session.end.end for session in state.sessions.values() if session.end is not None]
    assert ends.count("succeeded") == 1
    assert ends.count("cancelled") == 5
    assert desk.records.log(job_run_id).load().entry_number <= before + 2
    assert desk.cluster.running == 0


@pytest.mark.parametrize("days", [1, 3])
@pytest.mark.parametrize("has_ended", [True, False])
def test_a_spark_job_that_a_dispatcher_launches_when_it_was_taken_over_is_stopped_unless_its_sessions_are_in_flight(
    desk: Desk, days: int, has_ended: bool
) -> None:
    def taken_over(_: SparkJob) -> Hangs:
        """Between the entry about the launch and the launch itself."""
        log = desk.records.log("run")
        epoch = log.load().state.epoch + 1
        log.append(lambda _: [JobRunClaimed(owner="second", epoch=epoch, expires_at_ms=0)])
        sessions = log.newest.state.open_sessions() if has_ended else ()
        log.append(
            lambda _: [SessionEnded(epoch=epoch, session_id=each.pin.session_id, end=Cancelled()) for each in sessions]
        )
        return Hangs()

    desk.cluster.behaves = taken_over
    desk.append_days(DAYS, days)
    desk.accept(source_table_id=DAYS, job_run_id="run")
    desk.tick_until(lambda: bool(desk.cluster.launched) and not desk.controller.job_runs_held)
    (job,) = desk.jobs.values()
    assert job.stops == (1 if has_ended else 0)
    job.stop()


def first_day_only(held: threading.Event) -> Callable[[BundleMember], MemberRuns]:
    return lambda member: Succeeds() if member.plan.spec.partition == {"day": "1"} else Succeeds(held)


def test_a_successor_attaches_to_a_bundle_that_was_left_running_and_launches_nothing(desk: Desk) -> None:
    held = threading.Event()
    desk.cluster.members = first_day_only(held)
    desk.append_days(DAYS, 4)
    job_run_id = desk.accept(source_table_id=DAYS)
    desk.tick_until(lambda: any(each.end for each in desk.job_run(job_run_id).sessions.values()))
    desk.controller.drain(0)
    assert desk.cluster.running == 1
    second = desk.second()
    second.controller.tick()
    held.set()
    second.run()
    state = succeeded(second, job_run_id, 4)
    assert [session.attempt for session in state.sessions.values()] == [1, 1, 1, 1]
    assert (launches(desk), launches(second)) == (["bundle"], [])
    second.close()


@pytest.mark.parametrize("days", [2, 3])
def test_a_successor_attaches_to_each_session_that_runs_alone(desk: Desk, days: int) -> None:
    desk.large |= {"1", "2"}
    desk.cluster.behaves = lambda job: Succeeds(held)
    held = threading.Event()
    desk.append_days(DAYS, days)
    job_run_id = desk.accept(source_table_id=DAYS)
    desk.tick_until(lambda: sum(job.attempt == 1 for job in desk.cluster.launched) == 2)
    desk.controller.drain(0)
    second = desk.second()
    second.large |= {"1", "2"}
    second.controller.tick()
    held.set()
    second.run()
    state = succeeded(second, job_run_id, days)
    assert {session.attempt for session in state.sessions.values()} == {1}
    assert len(launches(desk)) == 2
    assert len(launches(second)) == days - 2
    second.close()


def test_a_session_that_a_successor_watches_alone_keeps_its_lease_when_another_one_ends(desk: Desk) -> None:
    desk.large |= {"1", "2"}
    first, last = threading.Event(), threading.Event()
    held = iter([first, last])
    desk.cluster.behaves = lambda job: Succeeds(next(held))
    desk.append_days(DAYS, 2)
    job_run_id = desk.accept(source_table_id=DAYS)
    desk.tick_until(lambda: sum(job.attempt == 1 for job in desk.cluster.launched) == 2)
    desk.controller.drain(0)
    second = desk.second()
    second.controller.tick()
    first.set()
    second.tick_until(lambda: any(each.end for each in second.job_run(job_run_id).sessions.values()))
    second.tick_until(lambda: len(second.turns.now().turns) == 1)
    (running,) = [key for key, each in second.job_run(job_run_id).sessions.items() if each.end is None]
    leases = [each.session_ids for each in second.turns.now().turns.values()]
    last.set()
    second.run()
    assert leases == [(running,)]
    second.close()


def test_sessions_that_ran_alone_and_vanished_with_their_machine_are_launched_again_once_each(desk: Desk) -> None:
    desk.large |= {"1", "2"}
    desk.cluster.behaves = lambda job: Hangs()
    desk.append_days(DAYS, 3)
    job_run_id = desk.accept(source_table_id=DAYS)
    desk.tick_until(lambda: len(desk.cluster.launched) == 2)
    desk.controller.drain(0)
    second = desk.second(jobs={})
    second.large |= {"1", "2"}
    second.run()
    state = succeeded(second, job_run_id, 3)
    assert sorted(session.attempt for session in state.sessions.values()) == [1, 2, 2]
    assert len(launches(second)) == 3
    second.close()


def test_a_successor_runs_the_remaining_members_of_a_stopped_bundle(desk: Desk) -> None:
    desk.cluster.members = first_day_only(threading.Event())
    desk.append_days(DAYS, 4)
    job_run_id = desk.accept(source_table_id=DAYS)
    desk.tick_until(lambda: any(each.end for each in desk.job_run(job_run_id).sessions.values()))
    desk.controller.drain(0, stops_jobs=lambda: True)
    assert desk.cluster.running == 0
    second = desk.second()
    second.run()
    state = succeeded(second, job_run_id, 4)
    assert [session.attempt for session in state.sessions.values()] == [1, 2, 2, 2]
    assert [session.failure_counts.failures for session in state.sessions.values()] == [0, 0, 0, 0]
    second.close()


def test_a_bundle_out_of_reach_is_watched_by_its_heartbeat(desk: Desk) -> None:
    held = threading.Event()
    desk.cluster.members = first_day_only(held)
    desk.append_days(DAYS, 3)
    job_run_id = desk.accept(source_table_id=DAYS)
    desk.tick_until(lambda: any(each.end for each in desk.job_run(job_run_id).sessions.values()))
    desk.controller.drain(0)
    far = desk.second(place="elsewhere", jobs={})
    far.controller.tick()
    held.set()

    def is_idle() -> bool:
        far.move_on(1)  # nobody sees that its process has gone: it is given a minute for that
        return far.controller.is_idle and far.publisher.is_idle

    far.tick_until(is_idle)
    state = succeeded(far, job_run_id, 3)
    assert [session.attempt for session in state.sessions.values()] == [1, 1, 1]
    assert launches(far) == []
    far.close()


# --------------------------------------------------------------------------------- a cluster is launched for a bundle


def test_sessions_that_share_a_cluster_are_told_with_their_parts_of_its_cost_before_and_after(desk: Desk) -> None:
    desk.cluster.has = ClusterRoom(ClusterLimits(nodes_max=2))
    desk.append_days(DAYS, 3)
    job_run_id = desk.accept(source_table_id=DAYS)
    desk.run()
    state = succeeded(desk, job_run_id, 3)
    assert launches(desk) == ["bundle"]
    data = [event.data for event in desk.sink.events]
    planned = [each.cluster for each in data if isinstance(each, SessionPlannedEvent)]
    ended = [each for each in data if isinstance(each, SessionSucceededEvent)]
    assert len(ended) == 3
    parts = [each.cost for each in planned if each is not None]
    assert len({part.instances_usd for part in parts}) == 1
    assert len(parts) == 3
    assert sorted(each.expected_cost.total_usd for each in ended if each.expected_cost is not None) == pytest.approx(
        sorted(part.total_usd for part in parts)
    )
    assert all(each.cost is not None and each.cost.instances_usd > 0 for each in ended)
    assert used_usd(state, desk.clock.now_ms()) == pytest.approx(
        sum(each.cost.total_usd for each in ended if each.cost is not None)
    )
    for session in state.sessions.values():
        assert session.plan is not None
        assert "1/3 of a cluster, 1 x " in session.plan.arithmetic[-1]
    counted = {sample.metric: sample.value for sample in desk.metrics.samples()}
    assert counted[EXPECTED_COST] == pytest.approx(sum(part.total_usd for part in parts))
    assert counted[COST] == pytest.approx(used_usd(state, desk.clock.now_ms()))


RAN = ClusterUse(on_demand_seconds=3_600, spot_seconds=600, instances_usd=3.0, surcharge_usd=1.5, spot_usd=0.75)
REQUESTS = 0.001
"""Of S3 cost no more than this part of that."""


def paid_parts(desk: Desk, job_run_id: str) -> dict[str, list[float]]:
    """Of each day's session, by attempt: its part of what the nodes ran, in US dollars."""
    sessions = desk.job_run(job_run_id).sessions.values()
    return {
        str(each.pin.partition["day"]): [0.0 if paid.use is None else paid.use.usd for paid in each.paid]
        for each in sessions
    }


def test_sessions_that_share_a_cluster_pay_equal_parts_of_what_its_nodes_have_run(desk: Desk) -> None:
    desk.cluster.has, desk.cluster.ran = ClusterRoom(ClusterLimits(nodes_max=2)), RAN
    desk.append_days(DAYS, 3)
    job_run_id = desk.accept(source_table_id=DAYS)
    desk.run()
    state = succeeded(desk, job_run_id, 3)
    assert launches(desk) == ["bundle"]
    assert paid_parts(desk, job_run_id) == {day: [pytest.approx(RAN.usd / 3)] for day in "123"}
    assert used_usd(state, desk.clock.now_ms()) == pytest.approx(RAN.usd, rel=REQUESTS)
    counted = {sample.metric: sample.value for sample in desk.metrics.samples()}
    assert counted[COST] == pytest.approx(RAN.usd, rel=REQUESTS)
    assert sum(amounts[IN_ALL] for amounts in desk.turns.now().spent.values()) == pytest.approx(RAN.usd)


@pytest.mark.parametrize("behaviour", [Crashes(1), Fails(OutOfMemory("memory ran out"))], ids=str)
def test_a_member_that_failed_and_those_that_had_ended_pay_their_parts_and_it_pays_for_its_next_cluster_alone(
    desk: Desk, behaviour: MemberRuns
) -> None:
    desk.cluster.has, desk.cluster.ran = ClusterRoom(ClusterLimits(nodes_max=2)), RAN
    desk.cluster.members = only("2", behaviour)
    desk.append_days(DAYS, 3)
    job_run_id = desk.accept(source_table_id=DAYS)
    desk.run()
    state = succeeded(desk, job_run_id, 3)
    parts, third = paid_parts(desk, job_run_id), pytest.approx(RAN.usd / 3)
    assert parts["2"] == [third, pytest.approx(RAN.usd)]
    assert {each[0] for each in parts.values()} == {parts["1"][0]}
    assert used_usd(state, desk.clock.now_ms()) == pytest.approx(RAN.usd * len(launches(desk)), rel=REQUESTS)


def test_a_member_that_ended_while_others_ran_pays_its_part_though_another_dispatcher_saw_the_end_of_its_cluster(
    desk: Desk,
) -> None:
    held = threading.Event()
    desk.cluster.has, desk.cluster.ran = ClusterRoom(ClusterLimits(nodes_max=2)), RAN
    desk.cluster.members = first_day_only(held)
    desk.append_days(DAYS, 3)
    job_run_id = desk.accept(source_table_id=DAYS)
    desk.tick_until(lambda: any(each.end is not None for each in desk.job_run(job_run_id).sessions.values()))
    desk.controller.drain(0)
    held.set()
    second = desk.second()
    second.cluster.has, second.cluster.ran = desk.cluster.has, RAN
    second.run()
    state = succeeded(second, job_run_id, 3)
    assert paid_parts(second, job_run_id) == {day: [pytest.approx(RAN.usd / 3)] for day in "123"}
    assert used_usd(state, second.clock.now_ms()) == pytest.approx(RAN.usd, rel=REQUESTS)
    second.close()


# ------------------------------------------------------------------------------------- before anything is launched


def test_a_lake_that_cannot_be_read_for_planning_is_an_outage_of_each_session_that_has_an_end(tmp_path: Path) -> None:
    retry = replace(QUICK.retry, patience_seconds=0.1)
    desk = Desk(
        tmp_path,
        state=LocalStore(parse_location(str(tmp_path / "state"))),
        bundles=BundleBounds(),
        launcher_settings=replace(QUICK, retry=retry),
    )
    desk.plans_break.extend([Unavailable("the lake does not answer")] * 10_000)
    desk.append_days(DAYS, 2)
    job_run_id = desk.accept(source_table_id=DAYS)
    desk.run()
    desk.close()
    state = desk.job_run(job_run_id)
    assert desk.cluster.launched == []
    assert state.status is JobRunStatus.FAILED
    assert all("the lake does not answer" in reason for reason in state.ended.outcome.reasons[::2])  # type: ignore[union-attr]


@pytest.mark.parametrize("days", [1, 3])
def test_a_session_that_has_ended_does_not_count_as_running(desk: Desk, days: int) -> None:
    desk.append_days(DAYS, days)
    desk.accept(source_table_id=DAYS)
    desk.run()
    assert {sample.metric: sample.value for sample in desk.metrics.samples()}[SESSIONS_RUNNING] == 0
