"""The `SessionJournal` of a dispatcher: how a session goes, into the job-run log under the claim, and out as events."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from compactor.catalog.paths import SessionFolder
from compactor.clock import Clock
from compactor.errors import LithifyError
from compactor.events import EventSink, SessionRelay, SessionSubject, heartbeat_event
from compactor.session_log import Heartbeat
from compactor.spec import SessionPlan
from dispatcher.claims import Claim
from dispatcher.job_runs import (
    HolderAction,
    JobRunState,
    SessionEnded,
    SessionLaunched,
    SessionLaunching,
    SessionPlanned,
    SessionRetried,
    SessionStalled,
)
from launcher.outcomes import SessionEnd

_log = structlog.get_logger(__name__)


class ClaimJournal:
    """One session's. Writes raise `Fenced` once the claim is lost; events that cannot be published wait."""

    def __init__(
        self,
        claim: Claim,
        about: SessionSubject,
        relay: SessionRelay,
        sink: EventSink,
        heartbeat_event_seconds: float,
        clock: Clock,
    ) -> None:
        self._claim = claim
        self._about = about
        self._log_id = SessionFolder(about.of.job_run_id, about.session_id).log
        self._relay = relay
        self._sink = sink
        self._clock = clock
        self._heartbeat_event_seconds = heartbeat_event_seconds
        self._beat_at_seconds: float | None = None

    def planned(self, plan: SessionPlan) -> None:
        planned = SessionPlanned(
            epoch=self._claim.epoch,
            session_id=self._about.session_id,
            hash_bucket_count=plan.hash_bucket_count,
            max_rows_per_round=plan.max_rows_per_round,
            task_memory_bytes=plan.task_memory_bytes,
            tasks=plan.tasks,
            expected_sla=plan.expected_sla,
            arithmetic=plan.arithmetic,
        )

        def decide(state: JobRunState) -> Sequence[HolderAction]:
            # Whoever takes a session over finds the plan that stands, and need not repeat it.
            return [planned] if state.sessions[self._about.session_id].plan is None else []

        self._claim.write(decide)

    def launching(self, attempt: int) -> None:
        self._write(SessionLaunching(epoch=self._claim.epoch, session_id=self._about.session_id, attempt=attempt))

    def launched(self, attempt: int, cluster: str) -> None:
        _log.info("session_launched", attempt=attempt, cluster=cluster)
        self._write(
            SessionLaunched(
                epoch=self._claim.epoch, session_id=self._about.session_id, attempt=attempt, cluster=cluster
            )
        )

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

    def retried(self, attempt: int, error_kind: str, reasons: tuple[str, ...]) -> None:
        _log.warning("session_retried", attempt=attempt, error_kind=error_kind, reasons="; ".join(reasons))
        self._write(
            SessionRetried(
                epoch=self._claim.epoch,
                session_id=self._about.session_id,
                attempt=attempt,
                error_kind=error_kind,
                reasons=reasons,
            )
        )

    def ended(self, end: SessionEnd) -> None:
        _log.info("session_ended", end=end.end)
        self._write(SessionEnded(epoch=self._claim.epoch, session_id=self._about.session_id, end=end))

    def progressed(self, heartbeat: Heartbeat | None) -> None:
        self.publish()
        if heartbeat is not None and self._beat_is_due():
            try:
                self._sink.publish([heartbeat_event(self._about, self._log_id, heartbeat)])
            except LithifyError as error:  # the next heartbeat says more
                _log.warning("heartbeat_not_published", reason=str(error))

    def publish(self) -> bool:
        """Publish what the session log has to tell. False: it could not be now, and is to be tried again."""
        try:
            self._relay.publish()
        except LithifyError as error:
            _log.warning("events_not_published", log=self._log_id, reason=str(error))
            return False
        return True

    def _write(self, action: HolderAction) -> None:
        self._claim.write(lambda _: [action])

    def _beat_is_due(self) -> bool:
        now_seconds = self._clock.monotonic_seconds()
        if self._beat_at_seconds is not None and now_seconds - self._beat_at_seconds < self._heartbeat_event_seconds:
            return False
        self._beat_at_seconds = now_seconds
        return True
