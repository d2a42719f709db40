"""The `LaunchJournal` of a dispatcher: records a session's course in the job-run log under the claim, and in events."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from compactor.events.relay import SessionSubject, heartbeat_event
from compactor.model.clock import Clock
from compactor.planning.spec import SessionPlan
from compactor.sessions.session_log import Heartbeat, SessionLog
from compactor.storage.paths import SessionFolder
from dispatcher.outbox.listeners import Listeners
from dispatcher.records.claims import Claim
from dispatcher.records.costs import with_cost
from dispatcher.records.job_run_log import (
    HolderAction,
    JobRunState,
    SessionEnded,
    SessionLaunched,
    SessionLaunching,
    SessionRetried,
    SessionStalled,
    planned_action,
)
from dispatcher.scheduling.budgets import LaunchGate
from launcher.attempt import AttemptFailed
from launcher.outcomes import Failed, SessionEnd, Succeeded, level_of
from launcher.plan import plan_changes
from launcher.spark_job import ClusterReference

_log = structlog.get_logger(__name__)


class ClaimJournal:
    """The journal of one session. Writes raise `Fenced` once the claim is lost. Notifies the listeners."""

    def __init__(
        self,
        claim: Claim,
        about: SessionSubject,
        listeners: Listeners,
        gate: LaunchGate,
        heartbeat_event_seconds: float,
        clock: Clock,
    ) -> None:
        self._claim = claim
        accepted = claim.log.newest.state.accepted
        self._held_as = about.of.job_run_id if accepted is None else accepted.work.text
        self._about = about
        self._log_id = SessionFolder(about.of.job_run_id, about.session_id).log
        self._listeners = listeners
        self._gate = gate
        self._clock = clock
        self._heartbeat_event_seconds = heartbeat_event_seconds
        self._beat_at_seconds: float | None = None
        self._session_log: SessionLog | None = None

    def planned(self, attempt: int, plan: SessionPlan) -> None:
        self._claim.write(lambda state: self._plan_of(attempt, plan, state))
        self._tell_progress()

    def wait_seconds(self, plan: SessionPlan) -> float | None:
        return self._gate.wait_seconds(plan.cluster)

    def launching(self, attempt: int, plan: SessionPlan, name: str, place: str) -> None:
        _log.info(
            "session_planned",
            attempt=attempt,
            hash_bucket_count=plan.hash_bucket_count,
            max_rows_per_round=plan.max_rows_per_round,
            tasks=plan.tasks,
            expected_sla=round(plan.expected_sla, 1),
        )
        launching = SessionLaunching(
            epoch=self._claim.epoch,
            session_id=self._about.session_id,
            attempt=attempt,
            at_ms=self._clock.now_ms(),
            name=name,
            place=place,
        )
        self._claim.write(lambda state: [*self._plan_of(attempt, plan, state), launching])
        self._tell_progress()

    def launched(self, attempt: int, cluster: str, reference: ClusterReference) -> None:
        _log.info("session_launched", attempt=attempt, cluster=cluster)
        self._write(
            SessionLaunched(
                epoch=self._claim.epoch,
                session_id=self._about.session_id,
                attempt=attempt,
                cluster=cluster,
                reference=reference,
            )
        )
        self._tell_progress()

    def is_in_flight(self, attempt: int) -> bool:
        in_flight = self._claim.log.load().state.sessions[self._about.session_id].in_flight
        return in_flight is not None and in_flight.attempt == attempt

    def attached(self, attempt: int, cluster: str) -> None:
        _log.info("session_attached", attempt=attempt, cluster=cluster)

    def stalled(self, attempt: int, quiet_seconds: float) -> None:
        _log.warning("session_stalled", attempt=attempt, quiet_seconds=quiet_seconds)
        self._write(
            SessionStalled(
                epoch=self._claim.epoch,
                session_id=self._about.session_id,
                attempt=attempt,
                quiet_seconds=quiet_seconds,
            )
        )

    def retried(self, attempt: int, failed: AttemptFailed, at_ms: int) -> None:
        reasons = "; ".join(failed.reasons)
        self._listeners.meter.session_retried(failed.error_kind)
        _log.warning("session_retried", attempt=attempt, error_kind=failed.error_kind, reasons=reasons)
        self._write(
            SessionRetried(
                epoch=self._claim.epoch,
                session_id=self._about.session_id,
                attempt=attempt,
                error_kind=failed.error_kind,
                reasons=failed.reasons,
                failed_at_ms=at_ms,
                progressed=failed.progressed,
            )
        )

    def ended(self, end: SessionEnd) -> SessionEnd:
        """Returns the end with its cost."""
        match end:
            case Failed():
                _log.error(
                    "session_ended",
                    end=end.end,
                    attempt=end.attempt,
                    error_kind=end.error_kind,
                    reasons="; ".join(end.reasons),
                )
            case Succeeded(result=result):
                _log.info("session_ended", end=end.end, rounds=result.rounds, seconds=round(result.seconds, 3))
            case _:
                _log.log(level_of(end.end), "session_ended", end=end.end)
        at_ms, session_id = self._clock.now_ms(), self._about.session_id
        priced: list[SessionEnd] = []

        def decide(state: JobRunState) -> Sequence[HolderAction]:
            priced[:] = [with_cost(end, state.sessions[session_id], at_ms)]
            return [SessionEnded(epoch=self._claim.epoch, session_id=session_id, end=priced[0], at_ms=at_ms)]

        self._claim.write(decide)
        self._tell_progress()
        return priced[0]

    def progressed(self, heartbeat: Heartbeat | None, log: SessionLog | None = None) -> None:
        job_run_id = self._held_as
        self._session_log = log
        self._listeners.publisher.news(job_run_id, self._about.session_id, log)
        self._tell_progress()
        if heartbeat is not None and self._beat_is_due():
            self._listeners.publisher.beat(job_run_id, heartbeat_event(self._about, self._log_id, heartbeat))

    def attempt_ended(self, *, was_read: bool) -> None:
        """No attempt runs any more. `was_read`: the session log, to its end."""
        has_news = self._session_log is None or not was_read
        self._listeners.publisher.attempt_ended(self._held_as, self._about.session_id, has_news=has_news)

    def _plan_of(self, attempt: int, plan: SessionPlan, state: JobRunState) -> list[HolderAction]:
        """The plan, if it differs from the previous one."""
        planned = planned_action(self._claim.epoch, attempt, plan)
        before = state.sessions[self._about.session_id].plan
        if before is None:
            return [planned]
        changes = plan_changes(before, planned)
        if before.bundle is not None:
            changes = (*changes, "in a Spark job of its own")
        return [planned.model_copy(update={"changes": changes})] if changes else []

    def _tell_progress(self) -> None:
        self._listeners.session_progressed(self._held_as, self._about.session_id)

    def _write(self, action: HolderAction) -> None:
        self._claim.write(lambda _: [action])

    def _beat_is_due(self) -> bool:
        now_seconds = self._clock.monotonic_seconds()
        if self._beat_at_seconds is not None and now_seconds - self._beat_at_seconds < self._heartbeat_event_seconds:
            return False
        self._beat_at_seconds = now_seconds
        return True
