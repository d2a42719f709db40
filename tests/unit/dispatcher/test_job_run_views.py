"""What `lithify status` and `lithify watch` know of a job run: times from launch to end, rows, and what has changed."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from compactor.events.session_events import session_succeeded
from compactor.log.durable_log import DurableLog
from compactor.model.counts import RowCounts
from compactor.model.errors import ErrorKind
from compactor.planning.cluster_plan import ClusterPlan, ClusterUse, StoreUse
from compactor.planning.sizing import SessionSize
from compactor.planning.spec import SessionResult
from compactor.sessions.keys import SessionFolder
from compactor.sessions.session_log import SESSION_LOG, Heartbeat, RoundDone, SessionStarted
from dispatcher.cli.job_run_lines import Changes, job_run_lines
from dispatcher.cli.job_runs import JobRunWatch
from dispatcher.operations.status import JobRunView, SessionView, view_job_run
from dispatcher.records.job_run_log import (
    JobRunAccepted,
    JobRunAction,
    JobRunClaimed,
    JobRunEnded,
    JobRunOutcome,
    JobRunState,
)
from dispatcher.records.job_run_store import JobRunStore
from dispatcher.records.outcome import expected_sla, with_cost
from dispatcher.records.sessions import (
    LaunchCharged,
    SessionEnded,
    SessionLaunched,
    SessionLaunching,
    SessionPlanned,
    SessionRetried,
    SessionState,
)
from dispatcher.scheduling.leases import usd_at_most
from launcher.outcomes import Failed, Succeeded
from launcher.plan import makespan_seconds
from launcher.sizing.cluster_choice import ClusterRoom, choose_cluster
from launcher.sizing.money import cost_of
from launcher.spark_job import ClusterReference
from tests.fakes.manual_clock import ManualClock
from tests.fakes.memory_store import MemoryStore
from tests.plans import a_pin, a_run

RUN, SESSION = "run", "run.1"
DESIRED_SLA = 30


class State:
    """A dispatcher's state with one job run of one session, and a clock to move."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.records = JobRunStore(MemoryStore(self.clock), self.clock)
        self.log = self.records.log(RUN)

    def write(self, *actions: JobRunAction) -> None:
        self.log.append(lambda _: list(actions))

    def accept(self) -> None:
        spec, pin = a_run(desired_sla=DESIRED_SLA), a_pin(SESSION, {"day": "1"})
        self.write(JobRunAccepted(spec=spec, content_digest="d", message_id="m", sessions=(pin,)))
        self.write(JobRunClaimed(owner="me", epoch=1))

    def plan(
        self, expected_sla: float, cluster: ClusterPlan | None = None, predicted_seconds: float | None = None
    ) -> None:
        self.write(
            SessionPlanned(
                epoch=1,
                session_id=SESSION,
                hash_bucket_count=1,
                max_rows_per_round=1,
                task_memory_bytes=1,
                tasks=1,
                expected_sla=expected_sla,
                arithmetic=(),
                cluster=cluster,
                predicted_seconds=predicted_seconds,
            )
        )

    def launch(self, attempt: int) -> None:
        self.write(
            SessionLaunching(
                epoch=1,
                session_id=SESSION,
                attempt=attempt,
                at_ms=self.clock.now_ms(),
                name=f"x{attempt}",
                place="here",
            )
        )
        reference = ClusterReference(kind="emr", ids={})
        self.write(SessionLaunched(epoch=1, session_id=SESSION, attempt=attempt, cluster="here", reference=reference))

    def rounds(self, *counts: RowCounts, expected_sla: float = 10.0) -> None:
        log = DurableLog(self.records.store, SessionFolder(RUN, SESSION).log, SESSION_LOG, self.clock)
        log.append(lambda _: [SessionStarted(attempt=1, rounds=len(counts), expected_sla=expected_sla)])
        for number, each in enumerate(counts, 1):
            done = RoundDone(
                attempt=1, round_number=number, rounds=len(counts), entry_number=number, counts=each, seconds=1.0
            )
            log.append(lambda _, done=done: [done])  # type: ignore[misc]

    def session_state(self) -> SessionState:
        (session,) = self.log.load().state.sessions.values()
        return session

    def fail(self) -> None:
        end = Failed(attempt=2, error_kind=ErrorKind.CRASHED, reasons=("it crashed",))
        self.write(SessionEnded(epoch=1, session_id=SESSION, end=end, at_ms=self.clock.now_ms()))
        outcome = JobRunOutcome(
            status="failed",
            nothing_to_do=False,
            sessions=0,
            rounds=0,
            rows_in=0,
            rows_out=0,
            rows_deduplicated=0,
            rows_deleted=0,
            failed_sessions=(SESSION,),
            reasons=("day=1: it crashed",),
        )
        seconds = (self.clock.now_ms() - 1_760_000_000_000) / 1000
        self.write(JobRunEnded(epoch=1, outcome=outcome, seconds=seconds))

    def view(self) -> JobRunView:
        return view_job_run(self.records, RUN, self.clock)

    def session(self) -> SessionView:
        (session,) = self.view().sessions
        return session


@pytest.fixture
def state() -> State:
    return State()


def counts(rows_before: int, rows_in: int, rows_out: int) -> RowCounts:
    return RowCounts(
        rows_before=rows_before,
        rows_in=rows_in,
        rows_out=rows_out,
        rows_deduplicated=rows_in - rows_out,
        rows_deleted=0,
        rows_carried=0,
        tombstones=0,
    )


def text(view: JobRunView, width: int | None = None) -> str:
    return "\n".join("".join(part for part, _ in line) for line in job_run_lines(view, width))


def test_a_sessions_time_is_from_its_last_launch_to_its_end_as_what_is_expected_of_it(state: State) -> None:
    state.accept()
    state.plan(expected_sla=10.0)
    assert state.session().seconds is None
    state.clock.sleep(5)
    state.launch(attempt=1)
    state.clock.sleep(7)
    assert (state.session().seconds, state.session().eta_seconds) == (7.0, 3.0)
    state.launch(attempt=2)
    state.clock.sleep(1)
    assert (state.session().seconds, state.session().eta_seconds) == (1.0, 9.0)
    state.clock.sleep(3)
    state.fail()
    state.clock.sleep(100)
    assert (state.session().seconds, state.session().eta_seconds) == (4.0, None)


def test_the_band_of_what_is_left_is_as_wide_as_the_plans_own_buffer(state: State) -> None:
    state.accept()
    state.plan(expected_sla=110.0, predicted_seconds=88.0)
    state.launch(attempt=1)
    state.rounds(expected_sla=220.0)  # refined, since it takes longer: so does what may be missing
    state.clock.sleep(40)
    assert state.session().eta_band_seconds == pytest.approx((180 - 44, 180 + 44))


def test_a_running_session_has_a_bar_with_its_rows_its_round_and_what_is_left_with_its_band(state: State) -> None:
    state.accept()
    state.plan(expected_sla=110.0)
    state.launch(attempt=1)
    assert "[--------------------]   0% day=1: is starting" in text(state.view())
    state.rounds(expected_sla=110.0)
    state.clock.sleep(40)
    beat = Heartbeat(
        attempt=1,
        at_ms=state.clock.now_ms(),
        round_number=2,
        rounds=4,
        step="dedupe",
        tasks_done=5,
        tasks=8,
        rows_done=3_000,
        rows=10_000,
        share_done=0.3,
    )
    state.records.store.overwrite(SessionFolder(RUN, SESSION).heartbeat.key, beat.render())
    assert state.session().share == 0.3
    # The expected SLA has a buffer of a tenth: 100 s are predicted.
    assert state.session().eta_band_seconds == pytest.approx((60, 80))
    shown = text(state.view())
    assert "[######--------------]  30% day=1: round 2 of 4, dedupe, 5 of 8 tasks, 3,000 of 10,000 delta rows" in shown
    assert "; about 70 s left (60 to 80 s)" in shown
    on_screen = "\n".join(
        "".join(part for part, _ in line) for line in job_run_lines(state.view(), None, only_running=True)
    )
    assert "0 of 1 session done, 1 running, about 70 s left" in on_screen


def test_rows_of_the_delta_stand_apart_from_the_rows_before(state: State) -> None:
    state.accept()
    state.launch(attempt=1)
    assert state.session().delta_rows is None
    state.rounds(counts(1_000, 1_010, 1_004), counts(1_004, 1_024, 1_020))
    session = state.session()
    assert (session.rows_before, session.delta_rows, session.rows_out) == (1_000, 10 + 20, 1_020)


def test_a_job_run_is_expected_to_take_what_its_sessions_take_with_their_waiting(state: State) -> None:
    state.accept()
    assert state.view().expected_sla is None
    state.clock.sleep(4)
    state.plan(expected_sla=10.0)
    state.clock.sleep(2)
    assert state.view().expected_sla == 6 + 10
    state.launch(attempt=1)
    state.clock.sleep(100)
    assert state.view().expected_sla == 6 + 10


def test_the_refined_expected_sla_of_a_running_session_counts_for_its_job_run(state: State) -> None:
    state.accept()
    state.plan(expected_sla=10.0)
    state.clock.sleep(6)
    state.launch(attempt=1)
    state.rounds(expected_sla=45.0)
    assert state.session().expected_sla == 45.0
    assert state.view().expected_sla == 6 + 45


def session(number: int, expected: float | None, launched_at_ms: int | None, bundle: str | None = None) -> SessionState:
    pin = a_pin(str(number), {"day": str(number)})
    plan = None
    if expected is not None:
        plan = SessionPlanned(
            epoch=1,
            session_id=str(number),
            hash_bucket_count=1,
            max_rows_per_round=1,
            task_memory_bytes=1,
            tasks=1,
            expected_sla=expected,
            arithmetic=(),
        )
    return SessionState(pin, plan, launched_at_ms=launched_at_ms, bundle=bundle)


def job_run_of(*sessions: SessionState) -> JobRunState:
    return JobRunState(sessions={each.pin.session_id: each for each in sessions})


def test_sessions_that_wait_for_a_slot_are_expected_to_take_what_the_others_take() -> None:
    waiting = job_run_of(session(1, 10.0, 2_000), session(2, 20.0, 3_000), session(3, None, None))
    assert expected_sla(waiting, 0, 5_000) == 2 + 10 + (10 + 20) / 2, "it begins when the first one ends"
    assert expected_sla(waiting, 0, 15_000) == 15 + (10 + 20) / 2
    assert expected_sla(waiting, 0, 5_000, {"1": 100.0}) == 2 + 100
    assert expected_sla(job_run_of(session(3, None, None)), 0, 5_000) is None


@pytest.mark.parametrize("at_a_time", [1, 2, 3])
def test_a_job_run_is_expected_to_take_what_its_plan_says_after_its_wait(at_a_time: int) -> None:
    """Though its other sessions have not been planned yet."""
    launched = [session(number, 10.0, 2_000) for number in range(at_a_time)]
    waiting = [session(number, None, None) for number in range(at_a_time, 5)]
    as_planned = makespan_seconds([10.0] * 5, at_a_time)
    assert expected_sla(job_run_of(*launched, *waiting), 0, 2_000) == 2 + as_planned


def test_sessions_that_wait_for_a_shared_spark_job_begin_together() -> None:
    sharing = [session(number, 10.0, 2_000, "bundle") for number in range(3)]
    waiting = [session(number, None, None) for number in range(3, 9)]
    assert expected_sla(job_run_of(*sharing, *waiting), 0, 2_000) == 2 + 10 + 10


def test_a_session_that_has_ended_is_held_against_its_plan(state: State) -> None:
    state.accept()
    state.plan(expected_sla=10.0)
    state.launch(attempt=2)
    state.rounds(expected_sla=45.0)
    state.fail()
    assert state.session().expected_sla == 10.0
    assert state.view().expected_sla == 10.0


def test_the_desired_sla_is_compared_with_the_whole_job_run(state: State) -> None:
    state.accept()
    state.plan(expected_sla=DESIRED_SLA + 5.0)
    assert "35.0 s expected from there, 30 s desired: it will be about 5.0 s late" in text(state.view())
    state.launch(attempt=1)
    state.clock.sleep(DESIRED_SLA + 2)
    state.fail()
    assert "32.0 s from there to its end, 35.0 s expected from there, 30 s desired: 2.0 s late" in text(state.view())


def test_a_job_run_fits_a_terminal_of_80_columns(state: State) -> None:
    state.accept()
    state.plan(expected_sla=10.0)
    state.launch(attempt=1)
    state.rounds(counts(1_000_000, 1_100_000, 1_010_000))
    lines = text(state.view(), 80).splitlines()
    assert max(map(len, lines)) <= 80
    assert "day=1      running      0.0      10.0  1,000,000  100,000  1,010,000" in lines


def test_a_change_is_reported_once(state: State) -> None:
    state.accept()
    changes = Changes()
    assert list(changes.of(state.view())) == ["running by me", "day=1: waiting"]
    state.clock.sleep(1)
    assert list(changes.of(state.view())) == []
    state.launch(attempt=1)
    assert list(changes.of(state.view())) == ["day=1: is starting"]
    state.launch(attempt=2)
    state.fail()
    assert list(changes.of(state.view())) == ["failed", "day=1: failed: it crashed"]


# -- watching


def looks(state: State, timeout: float | None) -> Sequence[JobRunView | None]:
    return list(JobRunWatch(state.records, RUN, state.clock).until_it_ends(threading.Event(), timeout, 0.0))


def test_a_watcher_waits_for_a_job_run_that_no_dispatcher_has_taken_yet(state: State) -> None:
    views = JobRunWatch(state.records, RUN, state.clock).until_it_ends(threading.Event(), None, 0.0)
    assert next(views) is None
    assert next(views) is None
    state.accept()
    assert [view.status for view in (next(views), next(views)) if view is not None] == ["running", "running"]
    state.launch(attempt=1)
    state.fail()
    assert [view.status for view in views if view is not None] == ["failed"]


def test_a_watcher_gives_up_when_its_time_is_over_and_when_it_is_stopped(state: State) -> None:
    assert looks(state, timeout=0) == [None]
    state.accept()
    (view,) = looks(state, timeout=0)
    assert view is not None
    assert view.status == "running"
    stopped = threading.Event()
    stopped.set()
    assert len(list(JobRunWatch(state.records, RUN, state.clock).until_it_ends(stopped, None, 60.0))) == 1


# -- money


def a_cluster() -> ClusterPlan:
    return choose_cluster(SessionSize(0, 10**8, 75 * 10**8, 0, None), ClusterRoom(), None).plan


def retried(attempt: int, at_ms: int) -> SessionRetried:
    return SessionRetried(
        epoch=1,
        session_id=SESSION,
        attempt=attempt,
        error_kind=ErrorKind.CRASHED,
        reasons=("it crashed",),
        failed_at_ms=at_ms,
    )


def test_the_used_cost_grows_with_every_attempt_and_not_between_them(state: State) -> None:
    cluster = a_cluster()
    state.accept()
    state.plan(10.0, cluster)
    assert (state.view().expected_usd, state.view().usd) == (cluster.cost.total_usd, None)
    state.launch(attempt=1)
    state.clock.sleep(600)
    state.write(retried(2, state.clock.now_ms()))
    used = state.view().usd
    assert used == pytest.approx(cluster.rates.usd_hour / 6)
    state.clock.sleep(1_000)
    assert state.view().usd == used
    state.launch(attempt=2)
    state.clock.sleep(300)
    assert state.view().usd == pytest.approx(cluster.rates.usd_hour / 4)
    assert f"${state.view().usd:,.4f} used so far, ${cluster.cost.total_usd:,.4f} expected" in text(state.view())
    state.fail()
    state.clock.sleep(1_000)
    assert state.session().cost is not None
    assert state.view().usd == pytest.approx(cluster.rates.usd_hour / 4)


def test_an_attempt_costs_what_its_own_launch_did_whatever_is_planned_for_the_next(state: State) -> None:
    cheap, dear = a_cluster(), a_cluster()
    dear = dear.model_copy(update={"rates": dear.rates.model_copy(update={"instances_usd_hour": 100.0})})
    state.accept()
    state.plan(10.0, cheap)
    state.launch(attempt=1)
    state.clock.sleep(600)
    state.write(retried(2, state.clock.now_ms()))
    state.plan(10.0, dear)
    assert state.view().usd == pytest.approx(cheap.rates.usd_hour / 6)
    state.launch(attempt=2)
    state.clock.sleep(60)
    assert state.view().usd == pytest.approx(cheap.rates.usd_hour / 6 + dear.rates.usd_hour / 60)
    state.write(LaunchCharged(epoch=1, name="x1", sessions=1, use=ClusterUse(instances_usd=7.0)))
    assert state.view().usd == pytest.approx(7 + dear.rates.usd_hour / 60)


def test_an_attempt_whose_end_nobody_saw_costs_until_the_next_one_is_launched_unless_its_nodes_are_known(
    state: State,
) -> None:
    cluster = a_cluster()
    state.accept()
    state.plan(10.0, cluster)
    state.launch(attempt=1)
    state.clock.sleep(600)
    state.launch(attempt=2)
    state.clock.sleep(300)
    assert state.view().usd == pytest.approx(cluster.rates.usd_hour / 4)
    state.write(LaunchCharged(epoch=1, name="x1", sessions=2, use=ClusterUse(instances_usd=7.0)))
    assert state.view().usd == pytest.approx(3.5 + cluster.rates.usd_hour / 12)


def test_the_limit_of_a_job_run_counts_attempts_that_failed_beside_the_one_that_runs(state: State) -> None:
    cluster = a_cluster()
    state.accept()
    state.plan(10.0, cluster)
    state.launch(attempt=1)
    state.write(LaunchCharged(epoch=1, name="x1", sessions=1, use=ClusterUse(instances_usd=7.0)))
    state.write(retried(2, state.clock.now_ms()))
    assert usd_at_most(state.session_state(), state.clock.now_ms()) == 7
    state.launch(attempt=2)
    assert usd_at_most(state.session_state(), state.clock.now_ms()) == pytest.approx(7 + cluster.usd_charged)


def test_the_end_of_a_session_says_what_it_was_expected_to_cost_and_what_it_used(state: State) -> None:
    cluster = a_cluster()
    state.accept()
    state.plan(10.0, cluster)
    state.launch(attempt=1)
    state.clock.sleep(600)
    store = StoreUse(puts=1_000, gets=0, written_bytes=2**30)
    result = SessionResult(
        session_id=SESSION,
        partition={"day": "1"},
        rounds=1,
        rows_in=1,
        rows_out=1,
        rows_deduplicated=0,
        rows_deleted=0,
        seconds=600.0,
        expected_sla=10.0,
        store=store,
    )
    (session,) = state.records.log(RUN).load().state.sessions.values()
    end = with_cost(Succeeded(result=result), session, state.clock.now_ms())
    assert isinstance(end, Succeeded)
    assert end.result.cost == cost_of(cluster.rates, 600, cluster.start_seconds, store)
    assert end.result.expected_cost == cluster.cost
    event = session_succeeded(SESSION, {"day": "1"}, end.result)
    assert (event.cost, event.expected_cost) == (end.result.cost, cluster.cost)


def test_a_session_on_a_machine_that_is_there_has_no_cost(state: State) -> None:
    state.accept()
    state.plan(10.0)
    state.launch(attempt=1)
    assert (state.view().expected_usd, state.view().usd, state.session().cost) == (None, None, None)
