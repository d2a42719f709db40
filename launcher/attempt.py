"""One attempt of a session: launches its Spark job, watches it until there is a verdict, and leaves nothing running.

The session log and the heartbeat are the Spark job's; they are only read here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, assert_never

import structlog

from compactor.catalog.log import DurableLog
from compactor.catalog.paths import SessionFolder
from compactor.clock import Clock
from compactor.errors import Corrupt, Fenced, Invalid, Unavailable
from compactor.object_store import ObjectStore
from compactor.session_log import SESSION_LOG, Heartbeat, SessionSucceeded
from compactor.spec import SessionPlan, SessionResult
from launcher.clusters import Cluster, RunningSparkJob
from launcher.outcomes import Cancelled, Interrupted, Succeeded
from launcher.submit import SparkJob
from launcher.watch import Crashed, Ended, Observation, Stalled, Superseded, Verdict, Wait, WatchTimers, judge

_log = structlog.get_logger(__name__)

INVALID_EXIT_CODE = 2
OUTPUT_LINES_IN_REASON = 12


class Order(Enum):
    """What the session is to do now."""

    RUN = "run"
    CANCEL = "cancel"
    DRAIN = "drain"


Orders = Callable[[], Order]


class SessionJournal(Protocol):
    """Where a session's way is written down. Every method raises `Fenced` once somebody else has the session."""

    def planned(self, plan: SessionPlan) -> None: ...

    def launching(self, attempt: int) -> None:
        """Before the launch: an attempt's number is used once, also if whoever launches it dies doing so."""

    def launched(self, attempt: int, cluster: str) -> None: ...

    def stalled(self, attempt: int, quiet_seconds: float) -> None: ...

    def retried(self, attempt: int, error_kind: str, reasons: tuple[str, ...]) -> None:
        """`attempt` is the one to come."""

    def progressed(self, heartbeat: Heartbeat | None) -> None:
        """There is something new in the session log; or in the heartbeat, which is given then."""


@dataclass(frozen=True)
class AttemptFailed:
    """An attempt that is over and did not succeed."""

    error_kind: str
    reasons: tuple[str, ...]


@dataclass
class _Progress:
    """What was last seen, and when that was news."""

    news_at_seconds: float
    entry_number: int = 0
    heartbeat: Heartbeat | None = None


class Attempt:
    """Lives as long as the attempt does, in one thread."""

    def __init__(
        self, number: int, plan: SessionPlan, store: ObjectStore, journal: SessionJournal, orders: Orders, clock: Clock
    ) -> None:
        self._number = number
        self._plan = plan
        self._store = store
        self._journal = journal
        self._orders = orders
        self._clock = clock
        self._folder = SessionFolder(plan.spec.job_run.job_run_id, plan.spec.session_id)
        self._session_log = DurableLog(store, self._folder.log, SESSION_LOG, clock)

    def run(
        self, cluster: Cluster, timers: WatchTimers, poll_seconds: float
    ) -> Succeeded | AttemptFailed | Cancelled | Interrupted:
        """Raises `Fenced` where somebody else has the session, `Unavailable` where its log cannot be read for longer
        than a stall. Whatever happens, the Spark job is gone afterwards."""
        spec = self._plan.spec
        name = f"lithify {spec.job_run.job_run_id} {spec.session_id}"
        self._journal.launching(self._number)
        try:
            running = cluster.launch(SparkJob(name, self._store.location, self._folder.plan.key, self._number))
        except (Invalid, Unavailable) as error:
            return AttemptFailed(type(error).__name__, reasons_of(error))
        try:
            self._journal.launched(self._number, running.reference)
            return self._watch(running, timers, poll_seconds)
        finally:
            running.stop()

    def _watch(
        self, running: RunningSparkJob, timers: WatchTimers, poll_seconds: float
    ) -> Succeeded | AttemptFailed | Cancelled | Interrupted:
        progress = _Progress(self._clock.monotonic_seconds())
        while True:
            stopped = stopped_by(self._orders())
            if stopped is not None:
                return stopped
            verdict = self._look(running, timers, progress)
            if not isinstance(verdict, Wait):
                return self._conclude(verdict, running)
            self._clock.sleep(poll_seconds)

    def _look(self, running: RunningSparkJob, timers: WatchTimers, progress: _Progress) -> Verdict:
        """One look at the process, the session log and the heartbeat, in this order (see `Observation`)."""
        exit_code = running.poll()
        now_seconds = self._clock.monotonic_seconds()
        try:
            seen = self._session_log.load()
            heartbeat = self._heartbeat()
        except Unavailable as error:
            # The job may be fine: no verdict without a look, until this has lasted as long as a stall may.
            if now_seconds - progress.news_at_seconds > timers.stall_seconds:
                raise
            _log.warning("session_not_visible", session_id=self._folder.session_id, reason=str(error))
            return Wait()
        if (seen.entry_number, heartbeat) != (progress.entry_number, progress.heartbeat):
            news = heartbeat if heartbeat != progress.heartbeat else None
            progress.entry_number, progress.heartbeat = seen.entry_number, heartbeat
            progress.news_at_seconds = now_seconds
            self._journal.progressed(news)
        quiet_seconds = now_seconds - progress.news_at_seconds
        return judge(Observation(self._number, exit_code, seen.state, quiet_seconds), timers)

    def _heartbeat(self) -> Heartbeat | None:
        body = self._store.read(self._folder.heartbeat.key)
        if body is None:
            return None
        try:
            return Heartbeat.parse_durable(body, self._folder.heartbeat.key)
        except Corrupt as error:
            _log.warning("heartbeat_unreadable", session_id=self._folder.session_id, reason=str(error))
            return None

    def _conclude(
        self, verdict: Ended | Crashed | Stalled | Superseded, running: RunningSparkJob
    ) -> Succeeded | AttemptFailed:
        match verdict:
            case Ended(end):
                if isinstance(end, SessionSucceeded):
                    return Succeeded(result=without_completions(end.result))
                return AttemptFailed(end.error_kind, end.reasons)
            case Crashed(exit_code):
                kind = Invalid.__name__ if exit_code == INVALID_EXIT_CODE else "crashed"
                tail = _last_lines(running.output_tail())
                return AttemptFailed(
                    kind, (f"attempt {self._number} exited with code {exit_code} without a word; {tail}",)
                )
            case Stalled(quiet_seconds, started):
                self._journal.stalled(self._number, quiet_seconds)
                what = "made no progress" if started else "did not start"
                return AttemptFailed("stalled", (f"attempt {self._number} {what} for {quiet_seconds:.0f} seconds",))
            case Superseded(by_attempt):
                raise Fenced(
                    f"attempt {self._number} was superseded by attempt {by_attempt}: somebody else launched it"
                )
            case _:
                assert_never(verdict)


def stopped_by(order: Order) -> Cancelled | Interrupted | None:
    """How the session ends if that is the order; None: it goes on."""
    match order:
        case Order.RUN:
            return None
        case Order.CANCEL:
            return Cancelled()
        case Order.DRAIN:
            return Interrupted()
        case _:
            assert_never(order)


def without_completions(result: SessionResult) -> SessionResult:
    """Completions name every file; they stand in the session's and the table's own logs already."""
    return result.model_copy(update={"completions": ()})


def reasons_of(error: Invalid | Corrupt | Unavailable) -> tuple[str, ...]:
    return error.reasons if isinstance(error, Invalid) else (str(error),)


def _last_lines(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()][-OUTPUT_LINES_IN_REASON:]
    return "its last output: " + " | ".join(lines) if lines else "it wrote nothing"
