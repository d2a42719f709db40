"""A launch under watch: what counts as its progress, and what its end means."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from compactor.log.durable_log import DurableLog
from compactor.model.counts import RowCounts
from compactor.model.errors import Denied, ErrorKind, Fenced, Unavailable
from compactor.planning.cluster_plan import ClusterPlan, ClusterUse
from compactor.planning.session_streams import READ_FOOTERS
from compactor.planning.sizing import Resources
from compactor.sessions.keys import SessionFolder
from compactor.sessions.session_journal import SessionJournal
from compactor.sessions.session_log import (
    SESSION_LOG,
    Heartbeat,
    RoundDone,
    SessionFailed,
    SessionLog,
    SessionStarted,
    SessionSucceeded,
)
from launcher.clusters import RunningSparkJob
from launcher.clusters.drivers import status_of_exit
from launcher.launch import (
    Control,
    JobOutOfReach,
    LaunchDependencies,
    LaunchRun,
    LeftOpen,
    SessionCommand,
    end_job,
)
from launcher.launch_journal import AttemptFailed, Launch, Member, Retried
from launcher.outcomes import Cancelled, SessionEnd, Succeeded
from launcher.poller import Poller, PollerSettings
from launcher.retrying import RetryPolicy
from launcher.spark_job import ClusterReference, JobRunning, JobStatus, JobSucceeded, SparkJob
from launcher.verdict import WatchTimers
from tests.fakes.faulty_store import FaultyStore
from tests.fakes.manual_clock import ManualClock
from tests.fakes.memory_store import MemoryStore
from tests.plans import a_plan, a_result
from tests.unit.launcher.test_emr_request import ON_DEMAND

Outcome = AttemptFailed | SessionEnd | LeftOpen

FOLDER = SessionFolder("run", "run.1")
REFERENCE = ClusterReference(kind="one", ids={"number": "7"})
STOPPED = 143
TIMERS = WatchTimers(start_seconds=100, stall_seconds=50, exit_seconds=5)
COUNTS = RowCounts(
    rows_before=0, rows_in=1, rows_out=1, rows_deduplicated=0, rows_deleted=0, rows_carried=0, tombstones=0
)
RESULT = a_result(seconds=3.0, expected_sla=9.0)
PLAN = a_plan()


@dataclass
class Journal:
    """Keeps what it is told."""

    beats: list[Heartbeat | None] = field(default_factory=list)
    stalls: list[float] = field(default_factory=list)
    written: list[str] = field(default_factory=list)
    ends: list[SessionEnd] = field(default_factory=list)
    failures: list[AttemptFailed] = field(default_factory=list)

    def planned(self, launch: Launch) -> None: ...

    def wait_seconds(self, cluster: ClusterPlan | None) -> float | None:
        """It may be launched now."""

    def launching(self, launch: Launch, place: str) -> None:
        self.written.append(f"launching {launch.members[0].attempt} at {place}")

    def launched(self, launch: Launch, cluster: str, reference: ClusterReference) -> None:
        self.written.append(f"launched {launch.members[0].attempt}")

    def is_in_flight(self, launch: Launch) -> bool:
        return True

    def attached(self, launch: Launch, cluster: str) -> None: ...

    def progressed(self, members: Collection[Member], heartbeat: Heartbeat | None = None) -> None:
        self.beats.append(heartbeat)

    def session_read(self, member: Member, log: SessionLog) -> None: ...

    def stalled(self, launch: Launch, members: Collection[Member], quiet_seconds: float) -> None:
        self.stalls.append(quiet_seconds)

    def charged(self, launch: Launch, use: ClusterUse) -> None:
        self.written.append(f"charged {launch.members[0].attempt}")

    def settled(self, ends: Mapping[str, SessionEnd], retried: Sequence[Retried], at_ms: int) -> None:
        self.ends += ends.values()
        self.failures += [each.failed for each in retried]

    def attempts_ended(self, session_ids: Collection[str]) -> None: ...


@dataclass
class Job:
    """A process that lives until a test gives it an exit code; `on_look` is called at every look."""

    on_look: Callable[[], int | None]
    reference: ClusterReference = REFERENCE
    description: str = "a process"
    stops: int = 0

    def status(self) -> JobStatus:
        exit_code = STOPPED if self.stops else self.on_look()
        return JobRunning() if exit_code is None else status_of_exit(exit_code, "the last words")

    def stop(self) -> None:
        self.stops += 1


@dataclass
class OneJob:
    """`fails`: what a launch raises, after it happened if there is a `job`."""

    job: Job | None
    fails: Exception | None = None
    place: str = "here"
    status_is_free: bool = True

    def resources(self) -> Resources:
        return Resources(1, 1)

    def launch(self, job: SparkJob, cluster_plan: ClusterPlan | None = None) -> ClusterReference:
        if self.fails is not None:
            raise self.fails
        return REFERENCE

    def attach(self, reference: ClusterReference) -> Job | None:
        return self.job

    def find(self, name: str) -> ClusterReference | None:
        return REFERENCE if self.job is not None else None


@dataclass
class Watched:
    """Attempt 2 of a session, of which attempt 1 may still be alive somewhere."""

    clock: ManualClock = field(default_factory=ManualClock)
    journal: Journal = field(default_factory=Journal)

    def __post_init__(self) -> None:
        self.store = MemoryStore(self.clock)
        self.log = DurableLog(self.store, FOLDER.log, SESSION_LOG, self.clock)
        self.append(SessionStarted(attempt=1, rounds=9, expected_sla=1.0))

    def append(self, action: SessionStarted | RoundDone | SessionSucceeded | SessionFailed) -> None:
        self.log.append(lambda _: [action])

    def beat(self, attempt: int, **changes: int | str) -> None:
        beat = Heartbeat(
            attempt=attempt,
            at_ms=self.clock.now_ms(),
            round_number=1,
            rounds=9,
            step="dedupe",
            tasks_done=0,
            tasks=1,
            rows_done=0,
            rows=1,
        )
        self.store.overwrite(FOLDER.heartbeat.key, beat.model_copy(update=changes).render())

    def round_done(self, attempt: int, number: int) -> None:
        self.append(
            RoundDone(attempt=attempt, round_number=number, rounds=9, entry_number=number, counts=COUNTS, seconds=1.0)
        )

    def run(
        self, exit_code: Callable[[], int | None], command: Callable[[], SessionCommand] = lambda: SessionCommand.RUN
    ) -> Outcome:
        """How an attempt that is launched here ends, once its job does `exit_code`."""
        self.job = Job(exit_code)
        cluster = OneJob(self.job)
        run = self.launch_run(command, cluster)
        job = run.launch(cluster.resources(), None)
        assert job is not None
        return self.watch(run, job)

    def watch(self, run: LaunchRun, job: RunningSparkJob) -> Outcome:
        left_open = run.watch(job)
        found: list[Outcome] = [*self.journal.failures, *self.journal.ends]
        return found[0] if found else left_open

    def launch_run(
        self,
        command: Callable[[], SessionCommand] = lambda: SessionCommand.RUN,
        cluster: OneJob | None = None,
        settings: PollerSettings = PollerSettings(1.0, 1.0),  # noqa: B008
        timers: WatchTimers = TIMERS,
        cluster_plan: ClusterPlan | None = None,
        bundle_id: str | None = None,
    ) -> LaunchRun:
        dependencies = LaunchDependencies(
            self.store,
            cluster or OneJob(None),
            lambda _: (),
            Poller(settings, self.clock),
            timers,
            RetryPolicy(),
            self.clock,
        )
        plan = PLAN.model_copy(update={"cluster": cluster_plan})
        launch = Launch("name", FOLDER.plan(2).key, {0: Member(2, plan)}, bundle_id=bundle_id)
        return LaunchRun(launch, dependencies, Control(self.journal, command, lambda _: None))


def test_the_heartbeat_and_the_rounds_of_another_attempt_are_not_this_ones_progress() -> None:
    watched = Watched()
    rounds = iter(range(1, 9))
    until_ms = watched.clock.now_ms() + 400_000

    def on_look() -> int | None:
        watched.beat(attempt=1)
        if watched.clock.now_ms() % 20_000 == 0:
            number = next(rounds, None)
            if number is not None:
                watched.round_done(1, number)
        return None if watched.clock.now_ms() < until_ms else 1

    outcome = watched.run(on_look)

    assert isinstance(outcome, AttemptFailed)
    assert outcome.error_kind == "stalled"
    assert outcome.reasons == ("attempt 2 did not start for 101 seconds",)
    assert [beat for beat in watched.journal.beats if beat is not None] == []


def test_a_job_whose_cluster_is_started_for_it_has_that_much_longer_to_begin() -> None:
    watched = Watched()
    began_ms = watched.clock.now_ms()
    run = watched.launch_run(cluster_plan=ON_DEMAND)
    outcome = watched.watch(run, Job(lambda: None))
    assert isinstance(outcome, AttemptFailed)
    assert outcome.error_kind == "stalled"
    waited_seconds = (watched.clock.now_ms() - began_ms) / 1000
    assert 0 <= waited_seconds - TIMERS.start_seconds - ON_DEMAND.start_seconds < 5


def test_a_cluster_that_takes_a_minute_to_end_is_not_asked_all_the_time() -> None:
    clock, looks = ManualClock(), 0

    class Slow(Job):
        def status(self) -> JobStatus:
            nonlocal looks
            looks += 1
            return JobRunning() if clock.monotonic_seconds() < 55 else JobSucceeded()

    end_job(Slow(lambda: None), WatchTimers(exit_seconds=60), clock)
    assert looks < 25


def test_its_own_heartbeat_is_its_progress() -> None:
    watched = Watched()
    watched.append(SessionStarted(attempt=2, rounds=9, expected_sla=1.0))
    began_ms = watched.clock.now_ms()

    def on_look() -> int | None:
        seconds = (watched.clock.now_ms() - began_ms) // 1000
        if seconds % 40 == 0 and seconds < 200:
            watched.beat(attempt=2)
        return None

    outcome = watched.run(on_look)

    assert isinstance(outcome, AttemptFailed)
    assert outcome.reasons == ("attempt 2 made no progress for 51 seconds",)
    assert len({beat.at_ms for beat in watched.journal.beats if beat is not None}) == 5
    assert watched.clock.now_ms() - began_ms == 211_000


def test_rows_within_a_task_and_footers_read_before_the_first_round_are_progress() -> None:
    watched = Watched()
    began_ms = watched.clock.now_ms()

    def on_look() -> int | None:
        seconds = (watched.clock.now_ms() - began_ms) // 1000
        if seconds == 160:
            watched.append(SessionStarted(attempt=2, rounds=1, expected_sla=1.0))
        if seconds % 40 == 0 and seconds < 400:
            starts = seconds < 160
            watched.beat(
                attempt=2,
                step=READ_FOOTERS if starts else "dedupe",
                tasks_done=seconds if starts else 0,
                rows_in_tasks=0 if starts else seconds,
            )
        return None

    outcome = watched.run(on_look)

    assert isinstance(outcome, AttemptFailed)
    assert outcome.reasons == ("attempt 2 made no progress for 51 seconds",)
    assert watched.clock.now_ms() - began_ms == 411_000


def test_a_sessions_seconds_are_from_its_launch_to_its_end_as_what_is_expected_of_it() -> None:
    watched = Watched()
    ends_at_ms = watched.clock.now_ms() + 8_000

    def on_look() -> int | None:
        if watched.clock.now_ms() < ends_at_ms:
            return None
        watched.append(SessionSucceeded(attempt=2, result=RESULT))
        return 0

    outcome = watched.run(on_look)

    assert isinstance(outcome, Succeeded)
    assert outcome.result.seconds == 8.0


def test_what_an_earlier_attempt_said_is_not_about_this_one_unless_it_succeeded_after_all() -> None:
    watched = Watched()
    watched.append(SessionFailed(attempt=1, error_kind=ErrorKind.BUG, reasons=("a bug",)))
    began_ms = watched.clock.now_ms()

    def on_look() -> int | None:
        if watched.clock.now_ms() - began_ms < 20_000:
            return None
        watched.append(SessionSucceeded(attempt=1, result=RESULT))
        return 1

    assert isinstance(watched.run(on_look), Succeeded)
    assert watched.clock.now_ms() - began_ms >= 20_000


# ---------------------------------------------------------------------------------------- stopped, or left running


@pytest.mark.parametrize(
    ("order", "stops", "outcome"),
    [
        (SessionCommand.CANCEL, 1, Cancelled()),
        (SessionCommand.STOP, 1, LeftOpen.STOPPED),
        (SessionCommand.LEAVE, 0, LeftOpen.RUNNING),
    ],
)
def test_a_cancelled_session_is_stopped_and_a_drained_one_is_left_running(
    order: SessionCommand, stops: int, outcome: Outcome
) -> None:
    watched = Watched()
    assert watched.run(lambda: None, lambda: order) == outcome
    assert watched.job.stops == stops


def test_a_stalled_session_is_stopped() -> None:
    watched = Watched()
    assert isinstance(watched.run(lambda: None), AttemptFailed)
    assert watched.job.stops == 1


@pytest.mark.parametrize("bundle_id", [None, "bundle"])
def test_who_has_lost_its_claim_does_not_stop_what_it_takes_for_stalled(bundle_id: str | None) -> None:
    class Lost(Journal):
        def stalled(self, launch: Launch, members: Collection[Member], quiet_seconds: float) -> None:
            raise Fenced("another dispatcher has the job run")

    watched = Watched(journal=Lost())
    job = Job(lambda: None)
    with pytest.raises(Fenced):
        watched.watch(watched.launch_run(bundle_id=bundle_id), job)
    assert job.stops == 0


def test_a_session_whose_log_cannot_be_read_is_left_running() -> None:
    watched = Watched()
    store = FaultyStore(watched.store)
    watched.store = store  # type: ignore[assignment]
    store.fail("read", FOLDER.log, times=10_000)
    with pytest.raises(Unavailable):
        watched.run(lambda: None)
    assert watched.job.stops == 0


def test_a_session_that_somebody_else_goes_on_with_is_stopped_here() -> None:
    watched = Watched()

    def on_look() -> None:
        watched.append(SessionStarted(attempt=3, rounds=9, expected_sla=1.0))

    with pytest.raises(Fenced, match="attempt 2 was superseded by attempt 3"):
        watched.run(on_look)
    assert watched.job.stops == 1


def test_a_job_out_of_reach_is_awaited_while_it_makes_progress() -> None:
    watched = Watched()
    watched.append(SessionStarted(attempt=2, rounds=9, expected_sla=1.0))
    began_ms = watched.clock.now_ms()

    def command() -> SessionCommand:
        seconds = (watched.clock.now_ms() - began_ms) // 1000
        if seconds % 40 == 0 and seconds < 200:
            watched.beat(attempt=2)
        return SessionCommand.RUN

    run = watched.launch_run(command)
    assert watched.watch(run, JobOutOfReach()) is LeftOpen.NONE
    assert run.not_settled == ("run.1",)
    assert watched.clock.now_ms() - began_ms == 211_000
    assert watched.journal.stalls == []


def test_a_drain_leaves_what_runs_out_of_reach_whatever_was_asked_for() -> None:
    watched = Watched()
    run = watched.launch_run(lambda: SessionCommand.STOP)
    assert watched.watch(run, JobOutOfReach()) is LeftOpen.RUNNING


# ------------------------------------------------------------------------------------------ the launch


def test_a_launch_whose_answer_was_lost_is_found_by_its_name() -> None:
    watched = Watched()
    job = Job(lambda: None)
    cluster = OneJob(job, fails=Unavailable("no answer"))
    assert watched.launch_run(cluster=cluster).launch(cluster.resources(), None) is job
    assert watched.journal.written == ["launching 2 at here", "launched 2"]


def test_a_launch_that_did_not_happen_is_a_failure_of_the_cluster() -> None:
    watched = Watched()
    cluster = OneJob(None, fails=Denied("no right to launch"))
    assert watched.launch_run(cluster=cluster).launch(cluster.resources(), None) is None
    assert watched.journal.failures == [AttemptFailed(ErrorKind.DENIED, ("no right to launch",))]
    assert watched.journal.written == ["launching 2 at here"]


# ------------------------------------------------------------------------------------------ requests


@pytest.mark.parametrize("is_free", [True, False])
def test_a_running_session_costs_at_most_twenty_requests_a_minute_its_heartbeats_included(is_free: bool) -> None:
    """With the default settings of the dispatcher's poller and of the job's journal."""
    clock = ManualClock()
    watched = Watched(clock)
    watched.append(SessionStarted(attempt=2, rounds=1, expected_sla=1.0))
    store = FaultyStore(watched.store)
    job_store = FaultyStore(watched.store)
    journal = SessionJournal(job_store, FOLDER, 2, clock)
    done = iter(range(1_000_000))
    journal.count_with(lambda: next(done), lambda: 0)
    journal.step_started(1, 1, "dedupe", 1_000_000)
    minutes = 10
    until = clock.monotonic_seconds() + 60 * minutes
    statuses = []

    def on_look() -> int | None:
        statuses.append(clock.monotonic_seconds())
        return None

    def command() -> SessionCommand:
        journal.beat()
        return SessionCommand.LEAVE if clock.monotonic_seconds() >= until else SessionCommand.RUN

    watched.store = store  # type: ignore[assignment]
    cluster = OneJob(None, status_is_free=is_free)
    run = watched.launch_run(command, cluster, PollerSettings(), WatchTimers())
    run.watch(Job(on_look))

    assert job_store.count("overwrite") >= 5 * minutes  # it did beat all the time
    assert len(watched.journal.beats) >= 5 * minutes  # and was heard
    assert len(store.requests) + len(job_store.requests) <= 20 * minutes
    polls_a_minute = 60 / (PollerSettings().poll_seconds if is_free else PollerSettings().look_seconds)
    assert len(statuses) <= (polls_a_minute + 1) * minutes  # a status that is not free is a request
