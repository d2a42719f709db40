"""Runs one session on a cluster: plans an attempt, launches it, watches it, and decides what follows.

    spec --stats, sizing--> plan of attempt n --> attempt n --> outcome
              ^                                     ^  |
              +--- after a pause, by its holder        | failed
                                                    |
    an attempt that another dispatcher launched ----+ attached

Every attempt has its own plan, made from the current stream and this cluster's resources; so it runs with the plan's
memory and cores under any dispatcher. Pauses are not slept here: `Postponed` releases the thread.

Each decision is recorded in a `LaunchJournal` before the next step, so that a dispatcher that takes a session over
knows its state, and attaches to the running Spark job (see `launcher/attempt.py`). The journal then raises `Fenced`:
the Spark job is left to the new owner, and nothing more is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import structlog

from compactor.log.durable_log import DurableLog
from compactor.model.clock import Clock, chance
from compactor.model.errors import Conflict, Corrupt, ErrorKind, Invalid, LithifyError, Unavailable
from compactor.planning.session_streams import Commit
from compactor.planning.spec import SessionPlan, SessionSpec
from compactor.sessions.session_journal import SessionJournal
from compactor.sessions.session_log import SESSION_LOG, SessionState, SessionSucceeded
from compactor.storage.object_store import ObjectStore
from compactor.storage.paths import SessionFolder
from launcher.attempt import (
    Attempt,
    AttemptFailed,
    AttemptUnreachable,
    JobOutOfReach,
    LaunchJournal,
    Orders,
    stopped_by,
    without_completions,
)
from launcher.clusters import Cluster, RunningSparkJob
from launcher.outcomes import Failed, Interrupted, NothingToDo, Postponed, SessionOutcome, Succeeded
from launcher.plan import LackOfMemory, Planner
from launcher.poller import Poller, PollerSettings
from launcher.retrying import GiveUp, RetryPolicy, Setbacks, TryAgain, what_follows
from launcher.spark_job import InFlight, JobVanished
from launcher.verdict import WatchTimers

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class SessionLauncherSettings:
    poller: PollerSettings = field(default_factory=PollerSettings)
    timers: WatchTimers = field(default_factory=WatchTimers)
    retry: RetryPolicy = field(default_factory=RetryPolicy)


@dataclass(frozen=True)
class SessionTask:
    """A session to run, with the state of its earlier attempts.

    attempt    the last one launched, 0: none
    setbacks   their failures
    in_flight  the last one, if its end is not recorded
    """

    spec: SessionSpec
    attempt: int = 0
    setbacks: Setbacks = field(default_factory=Setbacks)
    in_flight: InFlight | None = None


class SessionLauncher:
    """Runs sessions, each in the thread that calls `run`. One launcher serves many threads."""

    def __init__(
        self,
        store: ObjectStore,
        cluster: Cluster,
        plan: Planner,
        commits: Callable[[SessionSpec], Sequence[Commit]],
        settings: SessionLauncherSettings,
        clock: Clock,
    ) -> None:
        """`commits`: commits of a session so far."""
        self._store = store
        self._cluster = cluster
        self._plan = plan
        self._commits = commits
        self._settings = settings
        self._clock = clock
        self.poller = Poller(settings.poller, clock)

    def run(self, task: SessionTask, journal: LaunchJournal, orders: Orders) -> SessionOutcome:
        """Runs the session from its current state through its next attempt.

        Raises `Fenced` if another dispatcher has the session, and `Unavailable` if the state's store does not answer.
        """
        folder = SessionFolder(task.spec.job_run.job_run_id, task.spec.session_id)
        log = DurableLog(self._store, folder.log, SESSION_LOG, self._clock)
        log_state = log.load().state if task.attempt else log.newest.state  # the number is written before the launch
        task = replace(task, attempt=max(task.attempt, log_state.attempt))
        last = self._last_attempt(task, folder, log_state, journal, orders)
        if last is not None:
            outcome = self._watch(*last, task, folder, journal)
            if outcome is not None:
                return outcome
        return self._next_attempt(task, folder, log_state, journal, orders)

    def _next_attempt(
        self,
        task: SessionTask,
        folder: SessionFolder,
        log_state: SessionState,
        journal: LaunchJournal,
        orders: Orders,
    ) -> SessionOutcome:
        """For a session without a running attempt."""
        if isinstance(log_state.end, SessionSucceeded):  # after its dispatcher died
            journal.progressed(None)
            return Succeeded(result=without_completions(log_state.end.result))
        if task.setbacks.unwatched >= self._settings.retry.max_unwatched:
            reason = (
                f"it was launched {task.attempt} times, and {task.setbacks.unwatched} times in a row its end was "
                "not observed"
            )
            return Failed(attempt=task.attempt, error_kind=ErrorKind.CRASHED, reasons=(reason,))
        stopped = stopped_by(orders())
        if stopped is not None:
            return stopped
        plan = self._planned(task, folder)
        if isinstance(plan, AttemptFailed):
            return self._after(task, task.attempt, plan, journal)
        return self._launch(plan, task, folder, journal, orders) if isinstance(plan, SessionPlan) else plan

    def _launch(
        self, plan: SessionPlan, task: SessionTask, folder: SessionFolder, journal: LaunchJournal, orders: Orders
    ) -> SessionOutcome:
        number = self._write_plan(plan, folder, task.attempt + 1)
        wait_seconds = journal.wait_seconds(plan)
        if wait_seconds is not None:
            journal.planned(number, plan)
            return Postponed(wait_seconds)
        attempt = Attempt(number, plan, self._store, journal, orders, self._clock)
        job = attempt.launch(self._cluster)
        if isinstance(job, AttemptFailed):
            return self._after(task, number, job, journal)
        return self._watch(attempt, job, task, folder, journal) or Postponed(0)

    def _watch(
        self, attempt: Attempt, job: RunningSparkJob, task: SessionTask, folder: SessionFolder, journal: LaunchJournal
    ) -> SessionOutcome | None:
        """None: the attempt is out of reach and without progress, so another may be launched."""
        settings = self._settings
        outcome = attempt.watch(job, self.poller, settings.timers, is_free=self._cluster.status_is_free)
        if isinstance(outcome, Interrupted) and outcome.left_running:
            return outcome
        if not isinstance(outcome, Succeeded):
            self._journal_commits(task.spec, folder, attempt.number)
        match outcome:
            case AttemptUnreachable():
                return None
            case AttemptFailed():
                return self._after(task, attempt.number, outcome, journal)
            case _:
                return outcome

    def _last_attempt(
        self,
        task: SessionTask,
        folder: SessionFolder,
        log_state: SessionState,
        journal: LaunchJournal,
        orders: Orders,
    ) -> tuple[Attempt, RunningSparkJob] | None:
        """The last launched attempt, to be watched from here; None: none runs."""
        if task.in_flight is None:
            return None
        number = task.attempt
        plan = self._read_plan(folder, number)
        # A later one than in the job-run log: launched by a dispatcher that has lost the claim since.
        job = self._job_of(task.in_flight, journal) if number == task.in_flight.attempt else JobOutOfReach()
        if job is None or plan is None:
            return None
        has_ended = log_state.end is not None and log_state.attempt == number
        if isinstance(job.status(), JobVanished) and not has_ended:
            _log.warning("attempt_vanished", attempt=number, cluster=job.description)
            self._journal_commits(task.spec, folder, number)
            return None
        return Attempt(number, plan, self._store, journal, orders, self._clock), job

    def _job_of(self, in_flight: InFlight, journal: LaunchJournal) -> RunningSparkJob | None:
        """None: its cluster never launched it."""
        if in_flight.reference is not None:
            job = self._cluster.attach(in_flight.reference)
        elif in_flight.name is None or in_flight.place != self._cluster.place:
            job = None
        else:
            found = self._cluster.find(in_flight.name)
            if found is None:
                return None
            job = self._cluster.attach(found)
            if job is not None:
                journal.launched(in_flight.attempt, job.description, found)
        if job is None:
            _log.warning("attempt_out_of_reach", attempt=in_flight.attempt, place=in_flight.place)
            return JobOutOfReach()
        journal.attached(in_flight.attempt, job.description)
        return job

    def _planned(self, task: SessionTask, folder: SessionFolder) -> SessionPlan | NothingToDo | Failed | AttemptFailed:
        """`AttemptFailed`: the lake cannot be read now."""
        lack = self._lack_of_memory(task, folder)
        try:
            return self._plan(task.spec, lack)
        except (Unavailable, Conflict) as error:
            return AttemptFailed(error.kind, (str(error),))
        except (Invalid, Corrupt) as error:
            if lack is None:
                return Failed(attempt=task.attempt, error_kind=error.kind, reasons=error.reasons)
            why = f"{lack.attempts} attempts ran out of memory, and no smaller plan will do"
            return Failed(attempt=task.attempt, error_kind=ErrorKind.OUT_OF_MEMORY, reasons=(why, *error.reasons))

    def _lack_of_memory(self, task: SessionTask, folder: SessionFolder) -> LackOfMemory | None:
        if not task.setbacks.out_of_memory:
            return None
        first = self._read_plan(folder, 1)
        return LackOfMemory(task.setbacks.out_of_memory, first.hash_bucket_count if first is not None else 1)

    def _read_plan(self, folder: SessionFolder, attempt: int) -> SessionPlan | None:
        key = folder.plan(attempt).key
        body = self._store.read(key)
        return None if body is None else SessionPlan.parse_durable(body, key)

    def _write_plan(self, plan: SessionPlan, folder: SessionFolder, number: int) -> int:
        """The number of the attempt for the plan: from `number` on, the first one without a plan.

        The dispatcher that planned an attempt may still launch it, with its own plan.
        """
        body = plan.render()
        while not self._store.put_if_absent(folder.plan(number).key, body):
            if self._store.read(folder.plan(number).key) == body:
                break
            number += 1
        return number

    def _journal_commits(self, spec: SessionSpec, folder: SessionFolder, number: int) -> None:
        """Logs commits that the attempt may not have logged, because there may be no later attempt to do it.

        Its process has ended, or is about to be superseded, so its log has no other writer.
        """
        try:
            SessionJournal(self._store, folder, number, self._clock).found(self._commits(spec))
        except LithifyError as error:
            _log.warning("commits_not_logged", attempt=number, reason=str(error))

    def _after(
        self, task: SessionTask, number: int, failed: AttemptFailed, journal: LaunchJournal
    ) -> Failed | Postponed:
        at_ms = self._clock.now_ms()
        setbacks = task.setbacks.after(failed.error_kind, at_ms, progressed=failed.progressed)
        match what_follows(failed.error_kind, setbacks, at_ms, self._settings.retry, chance(self._clock)):
            case GiveUp(why):
                reasons = failed.reasons if why is None else (*failed.reasons, why)
                return Failed(attempt=number, error_kind=failed.error_kind, reasons=reasons)
            case TryAgain(seconds):
                journal.retried(number + 1, failed, at_ms)
                return Postponed(seconds)
