"""A job run whose claim this dispatcher holds: writes its log entries as a whole."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from compactor.events.relay import Subject
from compactor.model.clock import Clock
from compactor.model.errors import Corrupt, ErrorKind
from compactor.planning.session_planner import SessionFinder
from dispatcher.records.claims import Claim
from dispatcher.records.job_run_log import HolderAction, JobRunEnded, JobRunOutcome, JobRunState, apply
from dispatcher.records.outcome import conclude, expected_sla, outcome_of_sessions, paused_seconds
from dispatcher.records.ranking import mark_of, stream_digest
from dispatcher.records.sessions import SessionEnded, SessionState
from dispatcher.running.journal import ClaimJournal, Listeners
from dispatcher.scheduling.lease_log import Lease
from dispatcher.scheduling.leases import LaunchGate, Leases, usd_of_launches
from dispatcher.scheduling.session_pool import WaitingSession
from launcher.clusters.workers import gone_worker
from launcher.launch import SessionCommand
from launcher.outcomes import Failed, SessionEnd
from launcher.spark_job import InFlight


@dataclass
class ShardsHere:
    """
    Attributes:
        counting: the streams of the job run, while they are being counted
        counted: so many until now
        opened: numbers of the shards whose logs exist
        cancelled: numbers of those that a cancel was forwarded to"""

    counting: Iterator[object] | None = None
    counted: int = 0
    opened: set[int] = field(default_factory=set)
    cancelled: set[int] = field(default_factory=set)


class ClaimedJobRun:
    """Exists from the claim until the job run has ended, or the claim is lost. A shard is held as a job run is.

    Attributes:
        work: what is claimed
        mark: its marker, by which other dispatchers see that it is held
        cancelled: a cancel was requested: its sessions stop, and end as cancelled
        lost: another dispatcher has the claim and watches its Spark jobs; nothing more is written here
        broken: kind and reason of its error: its sessions stop, and it ends as failed
        stopped: sessions whose Spark job this dispatcher stopped, though they have not ended
        finder: of its further sessions, while they are being found (`session_finding.py`)
        shards: what was done here for its shards (`sharding.py`)
        wants_slot: a limit on what runs at a time stops it: a slot is kept free for it
        no_thread_since_seconds: by the monotonic clock: since when it could start if a thread were free"""

    def __init__(self, claim: Claim, state: JobRunState, listeners: Listeners, leases: Leases, clock: Clock) -> None:
        """`state` is the fold with the claim. Raises `Corrupt` if the job run was never accepted."""
        if state.accepted is None:
            raise Corrupt(f"{claim.log.folder} was claimed and never accepted")
        self.accepted = state.accepted
        self.accepted_at_ms = state.accepted.accepted_at_ms(claim.log.entry(1).at_ms)
        self.work = state.accepted.work
        spec = state.accepted.spec
        self.mark = mark_of(self.work, spec, state.accepted.partitions, self.accepted_at_ms, claim.owner, claim.epoch)
        self.claim = claim
        self.cancelled = False
        self.lost = False
        self.broken: tuple[ErrorKind, str] | None = None
        self.stopped: set[str] = set()
        self.finder: SessionFinder | None = None
        self.shards = ShardsHere()
        self.wants_slot = False
        self.no_thread_since_seconds: float | None = None
        self._listeners = listeners
        self._leases = leases
        self._lease_of: dict[str, Lease] = {}
        self._clock = clock
        self._sessions_taken = len(state.sessions)
        self._notified_entry_number = 0
        self._checked_at_seconds: float | None = clock.monotonic_seconds()  # the claim's entry follows the newest

    def poll(self, every_seconds: float) -> JobRunState:
        """The fold of its log, read again after `every_seconds`; own writes need no read. Raises `Fenced`."""
        now_seconds = self._clock.monotonic_seconds()
        is_due = self._checked_at_seconds is None or now_seconds - self._checked_at_seconds >= every_seconds
        if is_due:
            self.claim.log.load()
            self._checked_at_seconds = now_seconds
        newest = self.claim.log.newest
        if newest.entry_number > self._notified_entry_number:
            self._notified_entry_number = newest.entry_number
            self._listeners.publisher.notify(self.work.text)
            self._listeners.answers.notify(self.work.text, newest.state)
        if newest.state.ended is None:
            self.claim.check(newest.state)
        return newest.state

    @property
    def newest(self) -> JobRunState:
        """The fold after the last read or write here."""
        return self.claim.log.newest.state

    def seconds_since_acceptance(self) -> float:
        """Without pauses."""
        now_ms = self._clock.now_ms()
        return (now_ms - self.accepted_at_ms) / 1000 - paused_seconds(self.newest, now_ms)

    def take_found(self) -> tuple[SessionState, ...]:
        """The sessions that were found since the last call, or since the claim."""
        sessions = self.newest.sessions
        found = (
            tuple(islice(sessions.values(), self._sessions_taken, None)) if self._sessions_taken < len(sessions) else ()
        )
        self._sessions_taken += len(found)
        return found

    def waiting(self, session: SessionState) -> WaitingSession:
        """To start a session, or to watch it if it is in flight. One that was launched alone is watched alone, under a
        lease of its own."""
        launched_alone = session.in_flight is not None and session.bundle is None
        return WaitingSession(
            self.work,
            session.pin.session_id,
            self.mark.table or "",
            stream_digest(session.pin.partition),
            self.mark.priority,
            self.accepted_at_ms,
            may_share=not session.alone and not launched_alone,
            on_spark=session.in_flight is not None and gone_worker(session.in_flight) is None,
            bundle=session.bundle if session.in_flight is not None else None,
        )

    def session(self, session_id: str) -> SessionState:
        return self.poll(every_seconds=0).sessions[session_id]

    def command(self, of_all: SessionCommand) -> SessionCommand:
        """The command for its sessions; `of_all`: the command for all sessions of this dispatcher."""
        if self.lost:
            return SessionCommand.LEAVE
        if self.broken is not None:
            return SessionCommand.STOP
        return SessionCommand.CANCEL if self.cancelled else of_all

    def starts(self, lease: Lease) -> None:
        """The sessions of this lease start."""
        self._lease_of |= dict.fromkeys(lease.session_ids, lease)

    def lease_of(self, session_id: str) -> Lease | None:
        return self._lease_of.get(session_id)

    def in_flight(self, waiting: WaitingSession) -> InFlight | None:
        """The attempt to watch. What waits again after its bundle is not attached to that bundle again."""
        session = self.newest.sessions[waiting.session_id]
        return session.in_flight if session.bundle == waiting.bundle else None

    def ends(self, lease: Lease) -> None:
        """No session of this lease runs any more."""
        for session_id in lease.session_ids:
            if self._lease_of.get(session_id) == lease:
                del self._lease_of[session_id]
        self._leases.end(lease, usd_of_launches(lease, self.newest))

    def journal(self, session_ids: Sequence[str], heartbeat_event_seconds: float = 0) -> ClaimJournal:
        """Of sessions that have one lease, or none."""
        spec = self.accepted.spec
        return ClaimJournal(
            self.claim,
            self.work.text,
            Subject(spec.job_run_id, spec.source_table_id),
            self._listeners,
            LaunchGate(self.claim, self._leases, self._lease_of.get(session_ids[0]), self._clock),
            self._clock,
            heartbeat_event_seconds=heartbeat_event_seconds,
            logs_each=len(session_ids) == 1,
        )

    def end_sessions(self, session_ids: Sequence[str], end: SessionEnd) -> None:
        """Writes the ends of these sessions in one entry."""
        if session_ids:
            self.journal(session_ids).settled(dict.fromkeys(session_ids, end), (), self._clock.now_ms())

    def end_when_done(self, state: JobRunState) -> JobRunState:
        """Concludes the job run if all of its sessions have ended."""
        if state.ended is not None or conclude(state) is None:
            return state
        now_ms = self._clock.now_ms()

        def decide(now: JobRunState) -> list[JobRunEnded]:
            outcome = conclude(now)
            if outcome is None:
                return []
            return [_end(now, self.claim.epoch, outcome, self.accepted_at_ms, now_ms)]

        return self.claim.write(decide)


def end_as_failed(claim: Claim, error_kind: ErrorKind, reason: str, clock: Clock) -> JobRunState:
    """Ends the job run and all of its open sessions, in one entry. Raises `Fenced` if the claim is lost."""
    accepted, first_at_ms = claim.log.newest.state.accepted, claim.log.entry(1).at_ms
    accepted_at_ms = first_at_ms if accepted is None else accepted.accepted_at_ms(first_at_ms)
    now_ms = clock.now_ms()

    def decide(state: JobRunState) -> list[HolderAction]:
        if state.ended is not None:
            return []
        ends: list[HolderAction] = [
            SessionEnded(
                epoch=claim.epoch,
                session_id=session.pin.session_id,
                end=Failed(attempt=session.attempt, error_kind=error_kind, reasons=(reason,)),
            )
            for session in state.open_sessions()
        ]
        for end in ends:
            state = apply(state, end)
        outcome = outcome_of_sessions(state)
        if outcome is None:
            raise Corrupt(f"{claim.log.folder} has sessions that are neither open nor ended")
        if not ends:  # all had ended already: the job run itself failed
            outcome = outcome.model_copy(update={"status": "failed", "reasons": (*outcome.reasons, reason)})
        return [*ends, _end(state, claim.epoch, outcome, accepted_at_ms, now_ms)]

    return claim.write(decide)


def _end(state: JobRunState, epoch: int, outcome: JobRunOutcome, accepted_at_ms: int, now_ms: int) -> JobRunEnded:
    return JobRunEnded(
        epoch=epoch,
        outcome=outcome,
        seconds=(now_ms - accepted_at_ms) / 1000,
        expected_sla=expected_sla(state, accepted_at_ms, now_ms),
        paused_seconds=paused_seconds(state, now_ms),
    )
