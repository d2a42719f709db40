"""Runs the sessions of claimed job runs in the threads of the pool, from their state to their end in the job-run log.

| a session's thread ends                      | then                                                    |
|----------------------------------------------|---------------------------------------------------------|
| with the session's end in the log            | its lease ends                                           |
| since the session waits for its next attempt | its lease ends, the session waits in the pool            |
| and leaves its Spark job running             | its lease stays: whoever claims the job run inherits it  |
| since a service does not answer              | its lease stays, the session waits in the pool           |
| since the claim is lost                      | its lease stays, the job run leaves                      |
| with any other error, a bug too              | the session ends as failed, with the reason             |
"""

import queue
from collections.abc import Mapping, Sequence
from dataclasses import replace

from compactor.log_context import LOG, bound
from compactor.model.clock import Clock
from compactor.model.errors import Conflict, Fenced, LithifyError, Unavailable, kind_of, reason_of
from compactor.planning.spec import SessionSpec
from dispatcher.records.metrics_samples import Metrics
from dispatcher.running.claimed_job_run import ClaimedJobRun
from dispatcher.running.claimed_job_runs import ClaimedJobRuns
from dispatcher.scheduling.lease_log import Lease
from dispatcher.scheduling.session_pool import SessionPool, Unit, WaitingSession
from launcher.launch import Control, LeftOpen, RunAgain, SessionCommand
from launcher.outcomes import Failed
from launcher.session_launcher import SessionLauncher, SessionTask
from launcher.sizing.desired_sla import DesiredSla


class SessionRuns:
    """`run` is for the pool's threads, the rest for the ticking thread."""

    def __init__(
        self,
        sessions: SessionLauncher,
        claimed: ClaimedJobRuns,
        pool: SessionPool,
        metrics: Metrics,
        *,
        heartbeat_event_seconds: float,
        clock: Clock,
    ) -> None:
        self._sessions = sessions
        self._claimed = claimed
        self._pool = pool
        self._metrics = metrics
        self._heartbeat_event_seconds = heartbeat_event_seconds
        self._clock = clock
        self._postponed: queue.SimpleQueue[WaitingSession] = queue.SimpleQueue()
        self.command = SessionCommand.RUN
        """The command to all sessions here; a job run may have another one for its own."""

    def run(self, claimed: ClaimedJobRun, unit: Unit, lease: Lease) -> None:
        left_running, failure = False, None
        try:
            unit = _still_open(claimed, unit)
            if unit:
                left_running = self._run(claimed, unit) is LeftOpen.RUNNING
        except BaseException as error:
            failure = error
            raise
        finally:
            for each in unit:
                self._metrics.session_left(each.work.text, each.session_id)
            if not left_running and not isinstance(failure, Fenced | Unavailable | Conflict):
                claimed.ends(lease)  # no session of it may run any more

    def _run(self, claimed: ClaimedJobRun, unit: Unit) -> LeftOpen:
        """Runs sessions of one job run, each through its next attempt; what is to run again waits in the pool again."""
        waiting = {each.session_id: each for each in unit}
        session_id = {"session_id": unit[0].session_id} if len(unit) == 1 else {}
        with bound(job_run_id=str(claimed.work), **session_id):
            control = Control(
                claimed.journal(list(waiting), self._heartbeat_event_seconds),
                lambda: claimed.command(self.command),
                lambda reruns: self._requeue(waiting, reruns),
                lambda: len(claimed.newest.open_sessions()),
            )
            left_open = self._sessions.run([self._task(claimed, each) for each in unit], control)
            if left_open is LeftOpen.STOPPED:
                claimed.stopped.update(waiting)
            return left_open

    def _task(self, claimed: ClaimedJobRun, waiting: WaitingSession) -> SessionTask:
        session, in_flight = claimed.newest.sessions[waiting.session_id], claimed.in_flight(waiting)
        spec = SessionSpec.from_facts(session.pin, job_run=claimed.accepted.spec)
        desired = DesiredSla.of(spec, claimed.seconds_since_acceptance())
        return SessionTask(
            spec, session.attempt, session.failure_counts, in_flight, waiting.bundle, waiting.on_spark, desired
        )

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
                on_spark=found.on_spark or each.on_spark,
                bundle=None,
            )
            self._postponed.put(waiting)

    def settle_finished(self, requeue_seconds: float) -> bool:
        """Settles the sessions whose threads have ended. Returns whether there were any.

        Args:
            requeue_seconds: before a session is run again that ended because the state's store did not answer"""
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
                session = claimed.newest.sessions[waiting.session_id]
                if session.end is not None:
                    return  # its bundle could not be watched to its end
                LOG.warning("session_requeued", reason=str(error))
                again = waiting if session.in_flight is None else claimed.waiting(session)
                not_before = self._clock.monotonic_seconds() + requeue_seconds
                self._pool.add(replace(again, not_before_seconds=not_before))
            case _:
                self._fail(claimed, waiting, error)

    def _fail(self, claimed: ClaimedJobRun, waiting: WaitingSession, error: BaseException) -> None:
        """A permanent failure. A bug keeps its traceback in the log."""
        kind, reason = kind_of(error), reason_of(error)
        LOG.error("session_broke", error_kind=kind, exc_info=error)
        try:
            session = claimed.session(waiting.session_id)
            if session.end is None:
                failed = Failed(attempt=session.attempt, error_kind=kind, reasons=(reason,))
                claimed.end_sessions([waiting.session_id], failed)
        except LithifyError as lost:
            self._claimed.lose(claimed, str(lost))


def _still_open(claimed: ClaimedJobRun, unit: Unit) -> Unit:
    """Without sessions that have ended, by an entry whose answer was lost. Raises the store's errors."""
    if any(each.not_before_seconds for each in unit):
        claimed.claim.log.load()
    return tuple(each for each in unit if claimed.newest.sessions[each.session_id].end is None)
