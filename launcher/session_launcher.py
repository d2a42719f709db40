"""Runs one session on a cluster: plans it, launches it, launches it again where that can help.

    spec --stats, sizing--> plan.json --> attempt n --> outcome
                          (written once)     ^   |
                                             +---+ failed: n + 1, after a pause

What is decided is told to a `SessionJournal` before the next step is taken, so that whoever takes a session over knows
where it stands. The journal raises `Fenced` once somebody has: the Spark job is stopped then, and nothing more is said.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from compactor.catalog.log import DurableLog
from compactor.catalog.paths import SessionFolder
from compactor.clock import Clock
from compactor.errors import Corrupt, Invalid
from compactor.object_store import ObjectStore
from compactor.session_log import SESSION_LOG, SessionSucceeded
from compactor.spec import SessionPlan, SessionSpec
from launcher.attempt import (
    Attempt,
    AttemptFailed,
    Orders,
    SessionJournal,
    reasons_of,
    stopped_by,
    without_completions,
)
from launcher.clusters import Cluster
from launcher.outcomes import Cancelled, Failed, Interrupted, NothingToDo, SessionOutcome, Succeeded
from launcher.watch import WatchTimers

NEVER_RETRIED = (Invalid.__name__, Corrupt.__name__)
"""Another attempt at these can only fail the same way."""


@dataclass(frozen=True)
class RetryPolicy:
    """
    max_attempts       attempts that may fail
    max_launches       attempts in all: those cut short by a dispatcher that went away are no failures, but are bounded
    retry_seconds      pause before the second attempt, doubled before each further one
    retry_seconds_max  the longest pause
    """

    max_attempts: int = 3
    max_launches: int = 12
    retry_seconds: float = 5.0
    retry_seconds_max: float = 120.0

    def pause_seconds(self, failures: int) -> float:
        """Worked: 5, 10, 20, 40, 80, 120, 120 seconds."""
        return float(min(self.retry_seconds * 2 ** max(0, failures - 1), self.retry_seconds_max))


@dataclass(frozen=True)
class SessionLauncherSettings:
    poll_seconds: float = 1.0
    timers: WatchTimers = field(default_factory=WatchTimers)
    retry: RetryPolicy = field(default_factory=RetryPolicy)


@dataclass(frozen=True)
class SessionTask:
    """A session to run, and how far earlier holders of its job run got with it.

    attempt   the last one launched, 0: none
    failures  attempts that failed
    """

    spec: SessionSpec
    attempt: int = 0
    failures: int = 0


class SessionLauncher:
    """Runs sessions, each in the thread that calls `run`. One launcher serves many threads."""

    def __init__(
        self,
        store: ObjectStore,
        cluster: Cluster,
        plan: Callable[[SessionSpec], SessionPlan | NothingToDo],
        settings: SessionLauncherSettings,
        clock: Clock,
    ) -> None:
        self._store = store
        self._cluster = cluster
        self._plan = plan
        self._settings = settings
        self._clock = clock

    def run(self, task: SessionTask, journal: SessionJournal, orders: Orders) -> SessionOutcome:
        """From wherever the session stands to its outcome.

        Raises `Fenced` where somebody else has the session, and `Unavailable` where the state's store does not answer.
        """
        folder = SessionFolder(task.spec.job_run.job_run_id, task.spec.session_id)
        standing = DurableLog(self._store, folder.log, SESSION_LOG, self._clock).load().state
        if isinstance(standing.end, SessionSucceeded):  # after whoever launched it went away
            journal.progressed(None)
            return Succeeded(result=without_completions(standing.end.result))
        task = replace(task, attempt=max(task.attempt, standing.attempt))
        try:
            plan = self._planned(task.spec, folder)
        except (Invalid, Corrupt) as error:
            return Failed(attempt=task.attempt, error_kind=type(error).__name__, reasons=reasons_of(error))
        if isinstance(plan, NothingToDo):
            return plan
        journal.planned(plan)
        return self._attempts(task, plan, journal, orders)

    def _planned(self, spec: SessionSpec, folder: SessionFolder) -> SessionPlan | NothingToDo:
        """The plan that stands, or a new one. It is written once: all attempts of a session follow the same plan."""
        body = self._store.read(folder.plan.key)
        if body is None:
            plan = self._plan(spec)
            if isinstance(plan, NothingToDo) or self._store.put_if_absent(folder.plan.key, plan.render()):
                return plan
            body = self._store.read(folder.plan.key)
        if body is None:
            raise Corrupt(f"{folder.plan.key} was there and is gone")
        return SessionPlan.parse_durable(body, folder.plan.key)

    def _attempts(
        self, task: SessionTask, plan: SessionPlan, journal: SessionJournal, orders: Orders
    ) -> SessionOutcome:
        settings, retry = self._settings, self._settings.retry
        failures, number = task.failures, task.attempt
        failed = AttemptFailed("crashed", (f"it was launched {task.attempt} times and never came to an end",))
        while number < retry.max_launches:
            stopped = stopped_by(orders())
            if stopped is not None:
                return stopped
            number += 1
            attempt = Attempt(number, plan, self._store, journal, orders, self._clock)
            outcome = attempt.run(self._cluster, settings.timers, settings.poll_seconds)
            if not isinstance(outcome, AttemptFailed):
                return outcome
            failed, failures = outcome, failures + 1
            if failed.error_kind in NEVER_RETRIED or failures >= retry.max_attempts or number == retry.max_launches:
                break
            journal.retried(number + 1, failed.error_kind, failed.reasons)
            stopped = self._pause(retry.pause_seconds(failures), orders)
            if stopped is not None:
                return stopped
        return Failed(attempt=number, error_kind=failed.error_kind, reasons=failed.reasons)

    def _pause(self, seconds: float, orders: Orders) -> Cancelled | Interrupted | None:
        until_seconds = self._clock.monotonic_seconds() + seconds
        while self._clock.monotonic_seconds() < until_seconds:
            stopped = stopped_by(orders())
            if stopped is not None:
                return stopped
            self._clock.sleep(min(self._settings.poll_seconds, seconds))
        return None
