"""One attempt of a session: launched or found again, watched until there is a verdict, then ended.

**The order of durable writes** around a launch. A dispatcher may die between any two of them:

    1  the attempt's plan, beside the session log
    2  `SessionPlanned` and `SessionLaunching` with number, name and place, in one entry of the job-run log
    3  the launch itself
    4  `SessionLaunched` with the reference, in the job-run log
    5  what the job writes: session log, heartbeat, commits
    6  the job is asked to stop, if it has not ended
    7  `SessionRetried` or `SessionEnded`, in the job-run log

| the last thing done | who takes over |
|---|---|
| 1 | plans anew; the number is left unused if the plan differs |
| 2 | looks for the name at the place: nothing is there, it was never launched, the next number is used |
| 3 | finds the job by its name, and writes 4 |
| 4, 5 | attaches by the reference, and watches |
| 6 | attaches, comes to the same verdict, asks again |
| 7 | has nothing to look for |

A number is used for one launch, and a name follows from the number: so no attempt is launched twice. A dispatcher that
stood still between 2 and 3 launches what its successor did not find: 4 is refused then, and the job is stopped, unless
the job-run log still has it in flight. Otherwise only cancelled, stalled and ended attempts are stopped. A drain, a
lost claim and a state that does not answer leave the job running; a job that the next dispatcher cannot attach to is
watched by the session log and the heartbeat, until it ends there or has made no progress for the stall time.

The session log and the heartbeat are the Spark job's; they are only read here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, assert_never

import structlog

from compactor.log.durable_log import DurableLog, LogState
from compactor.model.clock import Clock
from compactor.model.errors import Conflict, Corrupt, Denied, ErrorKind, Fenced, Invalid, Outdated, Unavailable
from compactor.planning.cluster_plan import ClusterPlan
from compactor.planning.sizing import Resources
from compactor.planning.spec import SessionPlan, SessionResult
from compactor.sessions.bundle import has_ended
from compactor.sessions.session_log import SESSION_LOG, Heartbeat, SessionLog, SessionState, SessionSucceeded
from compactor.storage.object_store import ObjectStore
from compactor.storage.opening import with_region
from compactor.storage.paths import SessionFolder
from launcher.clusters import Cluster, RunningSparkJob
from launcher.outcomes import Cancelled, Interrupted, Succeeded
from launcher.poller import Poller
from launcher.spark_job import (
    ClusterReference,
    JobFailed,
    JobRunning,
    JobStatus,
    JobSucceeded,
    JobVanished,
    NoCapacity,
    NotLaunched,
    OutOfReach,
    SparkJob,
    job_name,
)
from launcher.verdict import Ended, Gone, Observation, Stalled, Superseded, Wait, WatchTimers, judge

_log = structlog.get_logger(__name__)

STOP_POLL_SECONDS = 0.05
STOP_POLL_SECONDS_MAX = 5.0
"""A process ends within a moment; a cluster takes a minute, and each status is a request."""


class SessionCommand(Enum):
    """The command for a running session."""

    RUN = "run"
    CANCEL = "cancel"
    STOP = "stop"
    """Stop its Spark job; the session may continue later."""
    LEAVE = "leave"
    """Stop watching it; its Spark job continues."""


Orders = Callable[[], SessionCommand]


class LaunchJournal(Protocol):
    """Records the course of a session. Every method raises `Fenced` once another dispatcher has the session."""

    def planned(self, attempt: int, plan: SessionPlan) -> None:
        """The plan of this attempt, which waits for its launch."""

    def wait_seconds(self, plan: SessionPlan) -> float | None:
        """After which it may be asked again whether a planned attempt may be launched; None: it may be now."""

    def launching(self, attempt: int, plan: SessionPlan, name: str, place: str) -> None:
        """Before the launch: an attempt's number is used once, even if its dispatcher dies during the launch. With its
        plan, in the same entry."""

    def launched(self, attempt: int, cluster: str, reference: ClusterReference) -> None: ...

    def is_in_flight(self, attempt: int) -> bool:
        """Whether a dispatcher watches this attempt, or will. Does not raise `Fenced`."""

    def attached(self, attempt: int, cluster: str) -> None:
        """This dispatcher watches an attempt that another one launched."""

    def stalled(self, attempt: int, quiet_seconds: float) -> None: ...

    def retried(self, attempt: int, failed: AttemptFailed, at_ms: int) -> None:
        """`attempt` is the next one, `failed` the one before, which ended at `at_ms`."""

    def progressed(self, heartbeat: Heartbeat | None, log: SessionLog | None = None) -> None:
        """There is progress in the session log, as far as `log` was read, or in the given heartbeat."""


@dataclass(frozen=True)
class AttemptFailed:
    """An attempt that ended without success.

    progressed  it committed at least one round
    """

    error_kind: ErrorKind
    reasons: tuple[str, ...]
    progressed: bool = False


@dataclass(frozen=True)
class AttemptUnreachable:
    """An attempt out of reach has made no progress for the stall time, so another may be launched. Its end is
    unknown.
    """


AttemptOutcome = Succeeded | AttemptFailed | Cancelled | Interrupted | AttemptUnreachable


class JobOutOfReach:
    """A `RunningSparkJob` that cannot be observed or stopped from here."""

    description = "out of reach of this dispatcher"
    reference = ClusterReference(kind="out of reach", ids={})

    def status(self) -> JobStatus:
        return OutOfReach()

    def stop(self) -> None:
        """It stops when a later attempt has begun, which supersedes it."""


@dataclass
class _Progress:
    """The last observed progress, and its time."""

    news_at_seconds: float
    entry_number: int = 0
    heartbeat: Heartbeat | None = None


class Attempt:
    """An attempt that this dispatcher watches."""

    def __init__(
        self, number: int, plan: SessionPlan, store: ObjectStore, journal: LaunchJournal, orders: Orders, clock: Clock
    ) -> None:
        self.number = self._number = number
        self._plan = plan
        self._store = store
        self._journal = journal
        self._orders = orders
        self._clock = clock
        self._folder = SessionFolder(plan.spec.job_run.job_run_id, plan.spec.session_id)
        self._session_log = DurableLog(store, self._folder.log, SESSION_LOG, clock)
        self._launched_at_seconds: float | None = None

    def launch(self, cluster: Cluster) -> RunningSparkJob | AttemptFailed:
        """Writes 2 to 4 of the order above. Raises `Unavailable` if it is unknown whether it was launched."""
        job = self._spark_job()
        self._journal.launching(self._number, self._plan, job.name, cluster.place)
        self._launched_at_seconds = self._clock.monotonic_seconds()
        launched = launch_once(cluster, job, self._plan.cluster)
        if isinstance(launched, AttemptFailed):
            return launched
        reference, running = launched
        with stops_if_fenced(running, lambda: self._journal.is_in_flight(self._number)):
            self._journal.launched(self._number, running.description, reference)
        return running

    def watch(self, job: RunningSparkJob, poller: Poller, timers: WatchTimers, *, is_free: bool) -> AttemptOutcome:
        """Watches until there is a verdict. `is_free`: whether reading the job's status is free.

        Raises `Fenced` if another dispatcher has the session, `Unavailable` if its log cannot be read for longer than a
        stall, or its job cannot be stopped now: it keeps running then. In all other cases it has ended afterwards,
        unless it is out of reach.
        """
        if self._plan.cluster is not None:
            timers = timers.after_cluster_start(self._plan.cluster.start_seconds)
        progress = _Progress(self._clock.monotonic_seconds())

        outcomes: list[AttemptOutcome] = []

        def look(log_is_due: bool) -> bool:
            outcome = self._look(job, timers, progress, looks_at_job=is_free or log_is_due, log_is_due=log_is_due)
            outcomes.extend(() if outcome is None else (outcome,))
            return outcome is not None

        with ends_after_a_bug(job, timers, self._clock):
            poller.until_done(look, is_new=self._launched_at_seconds is not None)
        (outcome,) = outcomes
        if isinstance(outcome, Interrupted) and outcome.left_running:
            return outcome
        self._end(job, timers)
        if isinstance(outcome, Succeeded) and self._launched_at_seconds is not None:
            return _from_launch(outcome, self._clock.monotonic_seconds() - self._launched_at_seconds)
        return outcome

    def _spark_job(self) -> SparkJob:
        plan, location = self._plan, with_region(self._store.location)
        name = job_name(location, plan.spec.job_run.job_run_id, plan.spec.session_id, self._number)
        resources = Resources(plan.task_memory_bytes, plan.tasks)
        return SparkJob(name, location, self._folder.plan(self._number).key, self._number, resources)

    def _end(self, job: RunningSparkJob, timers: WatchTimers) -> None:
        end_job(job, timers, self._clock)

    def _look(
        self,
        job: RunningSparkJob,
        timers: WatchTimers,
        progress: _Progress,
        *,
        looks_at_job: bool,
        log_is_due: bool,
    ) -> AttemptOutcome | None:
        """Reads the job's status, the session log and the heartbeat, in this order (see `Observation`)."""
        stopped = stopped_by(self._orders())
        if stopped is not None:
            out_of_reach = isinstance(stopped, Interrupted) and isinstance(job, JobOutOfReach)
            return Interrupted(left_running=True) if out_of_reach else stopped
        status = self._status(job) if looks_at_job else JobRunning()
        if isinstance(status, JobRunning) and not log_is_due:
            return None
        now_seconds = self._clock.monotonic_seconds()
        try:
            seen = self._read_log()
            heartbeat = None if has_ended(seen.state, self._number) else self._heartbeat()
            self._note_news(seen.entry_number, heartbeat, progress)
        except Unavailable as error:
            # The job may be well: no verdict without an observation, until the stall time has passed.
            if now_seconds - progress.news_at_seconds > timers.stall_seconds:
                raise
            _log.warning("session_not_visible", session_id=self._folder.session_id, reason=str(error))
            return None
        quiet_seconds = now_seconds - progress.news_at_seconds
        verdict = judge(Observation(self._number, status, seen.state, quiet_seconds), timers)
        return None if isinstance(verdict, Wait) else self._conclude(verdict, status, job, timers)

    def _read_log(self) -> LogState[SessionState]:
        """Few entries at a time, if it was launched here: no request to learn that there are no more."""
        if self._launched_at_seconds is None:
            return self._session_log.load()
        return self._session_log.load_until(lambda state: has_ended(state, self._number))

    def _status(self, job: RunningSparkJob) -> JobStatus:
        try:
            return job.status()
        except Unavailable as error:
            _log.warning("spark_job_not_visible", attempt=self._number, reason=str(error))
            return JobRunning()  # as its log says, then

    def _note_news(self, entry_number: int, heartbeat: Heartbeat | None, progress: _Progress) -> None:
        """An earlier attempt may still run and write; that is not progress of this one."""
        changed = heartbeat if heartbeat is not None and heartbeat != progress.heartbeat else None
        entries = map(self._session_log.entry, range(progress.entry_number + 1, entry_number + 1))
        writers = {action.attempt for entry in entries for action in entry.actions}
        if changed is not None or self._number in writers:
            progress.news_at_seconds = self._clock.monotonic_seconds()
        if changed is not None or entry_number > progress.entry_number:
            progress.entry_number, progress.heartbeat = entry_number, heartbeat or progress.heartbeat
            self._journal.progressed(changed, self._session_log)

    def _heartbeat(self) -> Heartbeat | None:
        """The attempt's own heartbeat; None while there is no readable one."""
        body = self._store.read(self._folder.heartbeat.key)
        if body is None:
            return None
        try:
            heartbeat = Heartbeat.parse_durable(body, self._folder.heartbeat.key)
        except (Corrupt, Outdated) as error:
            _log.warning("heartbeat_unreadable", session_id=self._folder.session_id, reason=str(error))
            return None
        return heartbeat if heartbeat.attempt == self._number else None

    def _conclude(
        self,
        verdict: Ended | Gone | Stalled | Superseded,
        status: JobStatus,
        job: RunningSparkJob,
        timers: WatchTimers,
    ) -> Succeeded | AttemptFailed | AttemptUnreachable:
        match verdict:
            case Ended(end):
                if isinstance(end, SessionSucceeded):
                    return Succeeded(result=without_completions(end.result))
                return self._failed(end.error_kind, *end.reasons)
            case Gone(gone):
                return self._gone(gone)
            case Stalled() if isinstance(status, OutOfReach):
                return AttemptUnreachable()
            case Stalled(quiet_seconds, started):
                self._journal.stalled(self._number, quiet_seconds)
                symptom = "made no progress" if started else "did not start"
                return self._failed(
                    ErrorKind.STALLED, f"attempt {self._number} {symptom} for {quiet_seconds:.0f} seconds"
                )
            case Superseded(by_attempt):
                self._end(job, timers)
                raise Fenced(
                    f"attempt {self._number} was superseded by attempt {by_attempt}: somebody else launched it"
                )
            case _:
                assert_never(verdict)

    def _gone(self, status: JobSucceeded | JobFailed | NoCapacity | JobVanished) -> AttemptFailed:
        """A job without an end in the log: the reason is from its cluster."""
        name = f"attempt {self._number}"
        match status:
            case JobSucceeded():
                return self._failed(ErrorKind.CRASHED, f"{name} exited with code 0 without a word")
            case JobFailed(error_kind, reason):
                return self._failed(error_kind, f"{name} {reason}")
            case NoCapacity(reason):
                return self._failed(ErrorKind.UNAVAILABLE, f"{name} {reason}")
            case JobVanished(reason):
                return self._failed(ErrorKind.CRASHED, f"{name} {reason}")
            case _:
                assert_never(status)

    def _failed(self, error_kind: ErrorKind, *reasons: str) -> AttemptFailed:
        rounds = self._session_log.load().state.rounds_done
        return AttemptFailed(error_kind, reasons, any(each.attempt == self._number for each in rounds))


def end_job(job: RunningSparkJob, timers: WatchTimers, clock: Clock) -> None:
    """Requests the end of a job and waits for it; repeats the request if it takes too long."""
    until_seconds = clock.monotonic_seconds() + timers.exit_seconds
    pause_seconds = STOP_POLL_SECONDS
    job.stop()
    while isinstance(job.status(), JobRunning):
        if clock.monotonic_seconds() > until_seconds:
            _log.warning("spark_job_does_not_end", cluster=job.description)
            return job.stop()
        clock.sleep(pause_seconds)
        pause_seconds = min(2 * pause_seconds, STOP_POLL_SECONDS_MAX)
    return None


def launch_once(
    cluster: Cluster, job: SparkJob, cluster_plan: ClusterPlan | None
) -> tuple[ClusterReference, RunningSparkJob] | AttemptFailed:
    """Launches an observable job. Raises `Unavailable` if it is unknown whether it was launched."""
    try:
        reference = cluster.launch(job, cluster_plan)
    except (Invalid, Denied, NotLaunched) as error:
        return AttemptFailed(error.kind, error.reasons)
    except Unavailable as error:
        found = cluster.find(job.name)  # perhaps only the answer was lost
        if found is None:
            return AttemptFailed(error.kind, error.reasons)
        reference = found
    running = cluster.attach(reference)
    if running is None:
        raise Unavailable(f"what was just launched as {job.name} cannot be seen")
    return reference, running


@contextmanager
def stops_if_fenced(job: RunningSparkJob, is_in_flight: Callable[[], bool]) -> Iterator[None]:
    """Around the entry that logs a launch. If another dispatcher has fenced the entry, the job is stopped, unless that
    dispatcher has it in flight and so watches it."""
    try:
        yield
    except Fenced:
        if not is_in_flight():
            job.stop()
        raise


@contextmanager
def ends_after_a_bug(job: RunningSparkJob, timers: WatchTimers, clock: Clock) -> Iterator[None]:
    """Around the watching of a job. The job keeps running if another dispatcher may watch it, now or later; after any
    other error it would run unwatched, so it is ended."""
    try:
        yield
    except (Fenced, Unavailable, Conflict):
        raise
    except Exception:
        end_job(job, timers, clock)
        raise


def stopped_by(order: SessionCommand) -> Cancelled | Interrupted | None:
    """The end of the session for a command; None: it continues."""
    match order:
        case SessionCommand.RUN:
            return None
        case SessionCommand.CANCEL:
            return Cancelled()
        case SessionCommand.STOP:
            return Interrupted()
        case SessionCommand.LEAVE:
            return Interrupted(left_running=True)
        case _:
            assert_never(order)


def without_completions(result: SessionResult) -> SessionResult:
    """Completions name every file; they are in the session's and the table's own logs already."""
    return result.model_copy(update={"completions": ()})


def _from_launch(succeeded: Succeeded, seconds: float) -> Succeeded:
    """With the time measured here; the job itself can only estimate its launch."""
    return succeeded.model_copy(update={"result": succeeded.result.model_copy(update={"seconds": seconds})})
