"""Runs the sessions of claimed job runs in the threads of the pool, from their state to their end in the job-run log.

| a session's thread ends                      | then                                                    |
|----------------------------------------------|---------------------------------------------------------|
| with the session's end in the log            | its turn ends                                           |
| since the session waits for its next attempt | its turn ends, the session waits in the pool            |
| and leaves its Spark job running             | its turn stays: whoever claims the job run inherits it  |
| since a service does not answer              | its turn stays, the session waits in the pool           |
| since the claim is lost                      | its turn stays, the job run leaves                      |
| with any other error, a bug too              | the session ends as failed, with the reason             |
"""

from __future__ import annotations

import queue
from collections.abc import Mapping, Sequence
from dataclasses import replace

import structlog

from compactor.log_context import bound
from compactor.model.clock import Clock
from compactor.model.errors import Conflict, Fenced, LithifyError, Unavailable, kind_of
from dispatcher.records.job_run_log import session_spec
from dispatcher.records.metrics_samples import Meter
from dispatcher.running.claimed_job_run import ClaimedJobRun
from dispatcher.running.claimed_job_runs import ClaimedJobRuns
from dispatcher.running.open_runs import reason_of
from dispatcher.scheduling.lease_log import Turn
from dispatcher.scheduling.session_pool import SessionPool, Unit, WaitingSession
from launcher.attempt import SessionCommand
from launcher.bundle_run import LeftOpen, RunAgain
from launcher.bundles import BundleLauncher
from launcher.outcomes import Failed, Interrupted, Postponed, SessionOutcome, Succeeded
from launcher.session_launcher import SessionLauncher, SessionTask

_log = structlog.get_logger(__name__)


class SessionRuns:
    """`run` is for the pool's threads, the rest for the ticking thread."""

    def __init__(
        self,
        sessions: SessionLauncher,
        bundles: BundleLauncher,
        claimed: ClaimedJobRuns,
        pool: SessionPool,
        meter: Meter,
        *,
        heartbeat_event_seconds: float,
        clock: Clock,
    ) -> None:
        self._sessions = sessions
        self._bundles = bundles
        self._claimed = claimed
        self._pool = pool
        self._meter = meter
        self._heartbeat_event_seconds = heartbeat_event_seconds
        self._clock = clock
        self._postponed: queue.SimpleQueue[WaitingSession] = queue.SimpleQueue()
        self.command = SessionCommand.RUN
        """For all sessions here; a job run may have another one for its own."""

    def run(self, claimed: ClaimedJobRun, unit: Unit, turn: Turn) -> None:
        left_running, failure = False, None
        try:
            unit = _still_open(claimed, unit)
            is_alone = len(unit) == 1 and unit[0].bundle is None
            if unit:
                left_running = self._run_session(claimed, unit[0]) if is_alone else self._run_bundle(claimed, unit)
        except BaseException as error:
            failure = error
            raise
        finally:
            if not left_running and not isinstance(failure, Fenced | Unavailable | Conflict):
                claimed.ends(turn)  # no session of it may run any more

    def _run_bundle(self, claimed: ClaimedJobRun, unit: Unit) -> bool:
        """Runs sessions of one job run: the small ones together; the others are queued again, to run alone. Returns
        whether their Spark job still runs."""
        bundle_id = unit[0].bundle
        journal = claimed.bundle_journal(unit[0].session_id)

        def requeue(reruns: Sequence[RunAgain]) -> None:
            self._requeue({each.session_id: each for each in unit}, reruns)

        def command() -> SessionCommand:
            return claimed.order(self.command)

        with bound(job_run_id=str(claimed.work)):
            tasks = [_task(claimed, each.session_id) for each in unit]
            if bundle_id is not None:
                left_open = self._bundles.attach(bundle_id, tasks, journal, command, requeue)
            else:
                left_open = self._bundles.run(tasks, journal, command, requeue)
            if left_open is LeftOpen.STOPPED:
                claimed.stopped.update(each.session_id for each in unit)
            return left_open is LeftOpen.RUNNING

    def _requeue(self, unit: Mapping[str, WaitingSession], reruns: Sequence[RunAgain]) -> None:
        """Queues members again together; otherwise each would become a bundle of its own."""
        now_seconds = self._clock.monotonic_seconds()
        pause_seconds = max((each.seconds for each in reruns if not each.alone), default=0.0)
        for each in reruns:
            found = unit[each.session_id]
            waiting = replace(
                found,
                not_before_seconds=now_seconds + (each.seconds if each.alone else pause_seconds),
                may_share=found.may_share and not each.alone,
                bundle=None,
            )
            self._postponed.put(waiting)

    def _run_session(self, claimed: ClaimedJobRun, waiting: WaitingSession) -> bool:
        """Returns whether its Spark job still runs."""
        name, session_id = waiting.work.text, waiting.session_id
        with bound(job_run_id=str(waiting.work), session_id=session_id):
            journal = claimed.journal(claimed.newest.sessions[session_id].pin, self._heartbeat_event_seconds)
            task = _task(claimed, session_id)
            self._meter.session_progressed(name, session_id)
            outcome: SessionOutcome | None = None
            try:
                outcome = self._sessions.run(task, journal, lambda: claimed.order(self.command))
            finally:
                journal.attempt_ended(was_read=isinstance(outcome, Succeeded))
                self._meter.session_left(name, session_id)
            match outcome:
                case Interrupted(left_running):
                    if not left_running:
                        claimed.stopped.add(session_id)
                    return left_running
                case Postponed(seconds):
                    not_before = self._clock.monotonic_seconds() + seconds
                    self._postponed.put(replace(waiting, not_before_seconds=not_before))
                case _:
                    self._meter.session_ended(journal.ended(outcome))
            return False

    def settle_finished(self, requeue_seconds: float) -> bool:
        """Settles the sessions whose threads have ended. Returns whether there were any.

        requeue_seconds  before a session is run again that ended because the state's store did not answer
        """
        finished = self._pool.finished()
        for waiting, error in finished:
            claimed = self._claimed.get(waiting.work)
            if claimed is not None:
                with bound(job_run_id=str(waiting.work), session_id=waiting.session_id):
                    self._settle(claimed, waiting, error, requeue_seconds)
        while not self._postponed.empty():
            waiting = self._postponed.get_nowait()
            claimed = self._claimed.get(waiting.work)
            if claimed is not None and not claimed.lost and claimed.broken is None:
                self._pool.add(waiting)
        return bool(finished)

    def _settle(
        self, claimed: ClaimedJobRun, waiting: WaitingSession, error: BaseException | None, requeue_seconds: float
    ) -> None:
        match error:
            case None:
                if claimed.lost:
                    self._claimed.lose(claimed, "its last session has stopped")
            case Fenced():
                self._claimed.lose(claimed, str(error))
            case Unavailable() | Conflict():
                if claimed.newest.sessions[waiting.session_id].end is not None:
                    return  # its bundle could not be watched to its end
                _log.warning("session_requeued", reason=str(error))
                not_before = self._clock.monotonic_seconds() + requeue_seconds
                self._pool.add(replace(waiting, not_before_seconds=not_before))
            case _:
                self._fail(claimed, waiting, error)

    def _fail(self, claimed: ClaimedJobRun, waiting: WaitingSession, error: BaseException) -> None:
        """A permanent failure. A bug keeps its traceback in the log."""
        kind, reason = kind_of(error), reason_of(error)
        _log.error("session_broke", error_kind=kind, exc_info=error)
        try:
            session = claimed.session(waiting.session_id)
            if session.end is None:
                claimed.end_session(session.pin, Failed(attempt=session.attempt, error_kind=kind, reasons=(reason,)))
        except LithifyError as lost:
            self._claimed.lose(claimed, str(lost))


def _task(claimed: ClaimedJobRun, session_id: str) -> SessionTask:
    session = claimed.newest.sessions[session_id]
    spec = session_spec(claimed.accepted.spec, session.pin)
    return SessionTask(spec, session.attempt, session.setbacks, session.in_flight)


def _still_open(claimed: ClaimedJobRun, unit: Unit) -> Unit:
    """Without sessions that were queued again though they have ended: the answer to that entry was lost. Raises the
    store's errors."""
    if any(each.not_before_seconds for each in unit):
        claimed.claim.log.load()
    return tuple(each for each in unit if claimed.newest.sessions[each.session_id].end is None)
