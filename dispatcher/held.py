"""A job run that this dispatcher holds the claim of: what is written about it as a whole, and what is told of it."""

from __future__ import annotations

import structlog

from compactor.clock import Clock
from compactor.errors import Corrupt, Invalid, Unavailable
from compactor.events import EventSink, SessionSubject, Subject
from dispatcher.claims import Claim
from dispatcher.job_runs import JobRunEnded, JobRunState, SessionPin, SessionState, conclude
from dispatcher.journal import ClaimJournal
from dispatcher.records import JobRunRecords, JobRunRelay
from launcher.attempt import Order
from launcher.outcomes import SessionEnd

_log = structlog.get_logger(__name__)


class HeldJobRun:
    """Lives from the claim until the job run has ended and everything was told, or the claim is lost.

    cancelled  somebody asked for it: its sessions stop, and end as cancelled
    lost       somebody else has the claim: its sessions stop, and nothing more is written
    """

    def __init__(self, claim: Claim, state: JobRunState, records: JobRunRecords, sink: EventSink, clock: Clock) -> None:
        """`state` is the fold with the claim. Raises `Corrupt` if what is claimed was never accepted."""
        if state.accepted is None:
            raise Corrupt(f"{claim.log.folder} was claimed and never accepted")
        self.accepted = state.accepted
        self.accepted_at_ms = next(iter(claim.log.entries())).at_ms
        self.job_run_id = state.accepted.spec.job_run_id
        self.claim = claim
        self.cancelled = False
        self.lost = False
        self._records = records
        self._sink = sink
        self._clock = clock
        self._relay: JobRunRelay = records.relay(self.job_run_id, claim.log, state, sink)
        self._renewed_at_seconds = clock.monotonic_seconds()
        # Whoever held it before may have died between a session's end and the last word about it.
        self._untold = {session_id for session_id, session in state.sessions.items() if session.end is not None}

    def load(self) -> JobRunState:
        """The fold of its log. Raises `Fenced` if the claim is not ours in it."""
        state = self.claim.log.load().state
        if state.ended is None:
            self.claim.check(state)
        return state

    def session(self, session_id: str) -> SessionState:
        return self.load().sessions[session_id]

    def order(self, *, stops: bool) -> Order:
        """What its sessions are to do; `stops`: this dispatcher stops its Spark jobs."""
        if self.lost:
            return Order.DRAIN
        if self.cancelled:
            return Order.CANCEL
        return Order.DRAIN if stops else Order.RUN

    def journal(self, pin: SessionPin, heartbeat_event_seconds: float) -> ClaimJournal:
        about = self._about(pin)
        relay = self._records.session_relay(about, self._sink)
        return ClaimJournal(self.claim, about, relay, self._sink, heartbeat_event_seconds, self._clock)

    def end_session(self, pin: SessionPin, end: SessionEnd) -> None:
        self.journal(pin, heartbeat_event_seconds=0).ended(end)

    def renew_when_due(self, claim_seconds: float) -> None:
        """A third of the way to the time at which the claim runs out: two renewals may fail before others take over."""
        now_seconds = self._clock.monotonic_seconds()
        if now_seconds - self._renewed_at_seconds >= claim_seconds / 3:
            self.claim.renew(claim_seconds)
            self._renewed_at_seconds = now_seconds

    def end_when_done(self, state: JobRunState) -> JobRunState:
        """Conclude the job run if all of its sessions have ended."""
        if state.ended is not None or conclude(state) is None:
            return state
        seconds = (self._clock.now_ms() - self.accepted_at_ms) / 1000

        def decide(now: JobRunState) -> list[JobRunEnded]:
            outcome = conclude(now)
            if outcome is None:
                return []
            return [JobRunEnded(epoch=self.claim.epoch, outcome=outcome, seconds=seconds)]

        return self.claim.write(decide)

    def untold(self, session_id: str) -> None:
        """A session's log may have something to tell that could not be told."""
        self._untold.add(session_id)

    def tell(self) -> bool:
        """Publish what there is to tell. False: not all of it could be, and it is to be tried again."""
        try:
            for pin in self.accepted.sessions:
                if pin.session_id in self._untold:
                    self._records.session_relay(self._about(pin), self._sink).publish()
                    self._untold.discard(pin.session_id)
            self._relay.publish()
        except Unavailable as error:
            _log.warning("events_not_published", reason=str(error))
            return False
        except Invalid as error:
            # Trying again cannot help: the topic is wrong. The logs still say everything, so the job run goes on.
            _log.error("events_refused", reason=str(error))
        return True

    def _about(self, pin: SessionPin) -> SessionSubject:
        return SessionSubject(
            Subject(self.job_run_id, self.accepted.spec.source_table_id), pin.session_id, pin.partition
        )
