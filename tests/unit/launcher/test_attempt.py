"""One attempt under watch: what counts as its progress, and what its end means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from compactor.log.durable_log import DurableLog
from compactor.model.counts import RowCounts
from compactor.model.errors import Denied, ErrorKind, Fenced, Unavailable
from compactor.planning.cluster_plan import ClusterPlan
from compactor.planning.session_streams import READ_FOOTERS
from compactor.planning.sizing import Resources
from compactor.planning.spec import JobRunSpec, SessionPlan, SessionResult, SessionSpec
from compactor.sessions.session_journal import SessionJournal
from compactor.sessions.session_log import (
    SESSION_LOG,
    Heartbeat,
    RoundDone,
    SessionLog,
    SessionStarted,
    SessionSucceeded,
)
from compactor.storage.location import StoreLocation
from compactor.storage.paths import SessionFolder
from launcher.attempt import (
    Attempt,
    AttemptFailed,
    AttemptOutcome,
    AttemptUnreachable,
    JobOutOfReach,
    SessionCommand,
    end_job,
)
from launcher.clusters.drivers import status_of_exit
from launcher.outcomes import Cancelled, Interrupted, Succeeded
from launcher.poller import Poller, PollerSettings
from launcher.spark_job import ClusterReference, JobRunning, JobStatus, JobSucceeded, SparkJob
from launcher.verdict import WatchTimers
from tests.fakes.faulty_store import FaultyStore
from tests.fakes.manual_clock import ManualClock
from tests.fakes.memory_store import MemoryStore
from tests.unit.launcher.test_emr_request import ON_DEMAND

FOLDER = SessionFolder("run", "run.1")
REFERENCE = ClusterReference(kind="one", ids={"number": "7"})
STOPPED = 143
TIMERS = WatchTimers(start_seconds=100, stall_seconds=50, exit_seconds=5)
COUNTS = RowCounts(
    rows_before=0, rows_in=1, rows_out=1, rows_deduplicated=0, rows_deleted=0, rows_carried=0, tombstones=0
)
PLAN = SessionPlan(
    spec=SessionSpec(
        job_run=JobRunSpec(
            job_run_id="run",
            source_table_id="A.B.V1",
            primary_keys=("id",),
            lake=StoreLocation("file:///lake"),
            destination_compacted_table_id="A.B.V1",
        ),
        session_id="run.1",
        partition={},
        source_stream_version=1,
        source_entry_number=1,
        source_position=1,
        destination_entry_number=1,
    ),
    hash_bucket_count=1,
    max_rows_per_round=1,
    task_memory_bytes=1,
    tasks=1,
    expected_sla=1.0,
    arithmetic=(),
)


@dataclass
class Journal:
    """Keeps what it is told."""

    beats: list[Heartbeat | None] = field(default_factory=list)
    stalls: list[float] = field(default_factory=list)
    written: list[str] = field(default_factory=list)

    def planned(self, attempt: int, plan: SessionPlan) -> None: ...

    def wait_seconds(self, plan: SessionPlan) -> float | None:
        """It may be launched now."""

    def launching(self, attempt: int, plan: SessionPlan, name: str, place: str) -> None:
        self.written.append(f"launching {attempt} at {place}")

    def launched(self, attempt: int, cluster: str, reference: ClusterReference) -> None:
        self.written.append(f"launched {attempt}")

    def is_in_flight(self, attempt: int) -> bool:
        return True

    def attached(self, attempt: int, cluster: str) -> None: ...

    def stalled(self, attempt: int, quiet_seconds: float) -> None:
        self.stalls.append(quiet_seconds)

    def retried(self, attempt: int, failed: AttemptFailed, at_ms: int) -> None: ...

    def progressed(self, heartbeat: Heartbeat | None, log: SessionLog | None = None) -> None:
        self.beats.append(heartbeat)


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

    def append(self, action: SessionStarted | RoundDone | SessionSucceeded) -> None:
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
        self, exit_code: Callable[[], int | None], orders: Callable[[], SessionCommand] = lambda: SessionCommand.RUN
    ) -> AttemptOutcome:
        self.job = Job(exit_code)
        attempt = self.attempt(orders)
        job = attempt.launch(OneJob(self.job))
        assert not isinstance(job, AttemptFailed)
        return attempt.watch(job, Poller(PollerSettings(1.0, 1.0), self.clock), TIMERS, is_free=True)

    def attempt(self, orders: Callable[[], SessionCommand] = lambda: SessionCommand.RUN) -> Attempt:
        return Attempt(2, PLAN, self.store, self.journal, orders, self.clock)


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
    attempt = Attempt(
        2,
        PLAN.model_copy(update={"cluster": ON_DEMAND}),
        watched.store,
        watched.journal,
        lambda: SessionCommand.RUN,
        watched.clock,
    )
    outcome = attempt.watch(Job(lambda: None), Poller(PollerSettings(1.0, 1.0), watched.clock), TIMERS, is_free=True)
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
    result = SessionResult(
        session_id="run.1",
        partition={},
        rounds=1,
        rows_in=1,
        rows_out=1,
        rows_deduplicated=0,
        rows_deleted=0,
        seconds=3.0,
        expected_sla=9.0,
    )

    def on_look() -> int | None:
        if watched.clock.now_ms() < ends_at_ms:
            return None
        watched.append(SessionSucceeded(attempt=2, result=result))
        return 0

    outcome = watched.run(on_look)

    assert isinstance(outcome, Succeeded)
    assert outcome.result.seconds == 8.0


# ---------------------------------------------------------------------------------------- stopped, or left running


@pytest.mark.parametrize(
    ("order", "stops", "outcome"),
    [
        (SessionCommand.CANCEL, 1, Cancelled()),
        (SessionCommand.STOP, 1, Interrupted(left_running=False)),
        (SessionCommand.LEAVE, 0, Interrupted(left_running=True)),
    ],
)
def test_a_cancelled_session_is_stopped_and_a_drained_one_is_left_running(
    order: SessionCommand, stops: int, outcome: AttemptOutcome
) -> None:
    watched = Watched()
    assert watched.run(lambda: None, lambda: order) == outcome
    assert watched.job.stops == stops


def test_a_stalled_session_is_stopped() -> None:
    watched = Watched()
    assert isinstance(watched.run(lambda: None), AttemptFailed)
    assert watched.job.stops == 1


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

    def orders() -> SessionCommand:
        seconds = (watched.clock.now_ms() - began_ms) // 1000
        if seconds % 40 == 0 and seconds < 200:
            watched.beat(attempt=2)
        return SessionCommand.RUN

    poller = Poller(PollerSettings(1.0, 1.0), watched.clock)
    assert watched.attempt(orders).watch(JobOutOfReach(), poller, TIMERS, is_free=False) == AttemptUnreachable()
    assert watched.clock.now_ms() - began_ms == 211_000
    assert watched.journal.stalls == []


def test_a_drain_leaves_what_runs_out_of_reach_whatever_was_asked_for() -> None:
    watched = Watched()
    poller = Poller(PollerSettings(1.0, 1.0), watched.clock)
    outcome = watched.attempt(lambda: SessionCommand.STOP).watch(JobOutOfReach(), poller, TIMERS, is_free=False)
    assert outcome == Interrupted(left_running=True)


# ------------------------------------------------------------------------------------------ the launch


def test_a_launch_whose_answer_was_lost_is_found_by_its_name() -> None:
    watched = Watched()
    job = Job(lambda: None)
    assert watched.attempt().launch(OneJob(job, fails=Unavailable("no answer"))) is job
    assert watched.journal.written == ["launching 2 at here", "launched 2"]


def test_a_launch_that_did_not_happen_is_a_failure_of_the_cluster() -> None:
    watched = Watched()
    assert watched.attempt().launch(OneJob(None, fails=Denied("no right to launch"))) == AttemptFailed(
        ErrorKind.DENIED, ("no right to launch",)
    )
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

    def orders() -> SessionCommand:
        journal.beat()
        return SessionCommand.LEAVE if clock.monotonic_seconds() >= until else SessionCommand.RUN

    attempt = Attempt(2, PLAN, store, watched.journal, orders, clock)
    attempt.watch(Job(on_look), Poller(PollerSettings(), clock), WatchTimers(), is_free=is_free)

    assert job_store.count("overwrite") >= 5 * minutes  # it did beat all the time
    assert len(watched.journal.beats) >= 5 * minutes  # and was heard
    assert len(store.requests) + len(job_store.requests) <= 20 * minutes
    assert len(statuses) <= (61 if is_free else 6.1) * minutes
