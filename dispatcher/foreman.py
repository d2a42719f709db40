"""Runs job runs: claims them, hands their sessions to the pool, concludes them. One thread ticks, again and again.

    offered, or found by its marker --claim--> held --sessions--> all ended --> job run ended --> told --> closed
                                                |
                                                +-- claim lost: its sessions are stopped, nothing more is written

A tick looks at every held job run once. What fails for one of them is logged and tried again at the next tick; it does
not touch the others.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

import structlog

from compactor.clock import Clock
from compactor.errors import Conflict, Corrupt, Fenced, Invalid, LithifyError, Unavailable
from compactor.events import EventSink, SessionSubject
from compactor.log_context import bound
from dispatcher.claims import NotClaimed, claim_job_run
from dispatcher.held import HeldJobRun
from dispatcher.job_run_events import subject_of
from dispatcher.job_runs import JobRunState, SessionPin, session_spec
from dispatcher.records import JobRunRecords
from dispatcher.session_pool import SessionPool, WaitingSession, stream_name
from launcher.outcomes import Cancelled, Failed, Interrupted
from launcher.session_launcher import SessionLauncher, SessionTask

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class ForemanSettings:
    """
    max_sessions             sessions at a time, over all job runs
    max_job_runs             job runs held at a time; more of them means that priorities count among more sessions, and
                             that more of them wait here while another dispatcher might have room
    claim_seconds            after which others take over from a dispatcher that went silent (seed 000: 5 minutes)
    sweep_seconds            between two looks at the markers of open job runs
    requeue_seconds          before a session is run again that ended because the state's store did not answer
    tick_seconds             between two ticks
    heartbeat_event_seconds  between two heartbeat events of a session, at least
    """

    max_sessions: int = 2
    max_job_runs: int = 8
    claim_seconds: float = 300.0
    sweep_seconds: float = 60.0
    requeue_seconds: float = 30.0
    tick_seconds: float = 1.0
    heartbeat_event_seconds: float = 30.0


class Foreman:
    """All methods but `offer` and `has_room` are for the one thread that ticks."""

    def __init__(
        self,
        owner: str,
        records: JobRunRecords,
        launcher: SessionLauncher,
        sink_for: Callable[[str | None], EventSink],
        settings: ForemanSettings,
        clock: Clock,
    ) -> None:
        """`sink_for` gives the sink of a job run that named its own topic, or none."""
        self._owner = owner
        self._records = records
        self._launcher = launcher
        self._sink_for = sink_for
        self._settings = settings
        self._clock = clock
        self._pool = SessionPool(settings.max_sessions)
        self._held: dict[str, HeldJobRun] = {}
        self._offered: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._full = threading.Event()
        self._begins_nothing = False
        self._stops_sessions = False
        self._swept_at_seconds: float | None = None

    def offer(self, job_run_id: str) -> None:
        """A job run was accepted. Any thread may call."""
        self._offered.put(job_run_id)

    @property
    def has_room(self) -> bool:
        """Whether another job run would be taken on soon. Any thread may ask."""
        return not self._full.is_set() and self._offered.empty()

    @property
    def tick_seconds(self) -> float:
        return self._settings.tick_seconds

    @property
    def is_idle(self) -> bool:
        """Whether nothing is held, and nothing offered."""
        return not self._held and self._offered.empty()

    def tick(self) -> None:
        """Look at everything once. Quick: what takes long is in the pool's threads."""
        self._settle_finished()
        if not self._begins_nothing:
            self._take_offered()
            self._take_over_open()
        for held in list(self._held.values()):
            with bound(job_run_id=held.job_run_id):
                self._look_after(held)
        if not self._begins_nothing:
            self._pool.start(self._run_session, self._clock.monotonic_seconds())
        if self._may_take_on():
            self._full.clear()
        else:
            self._full.set()

    def drain(self, drain_seconds: float) -> None:
        """Begin nothing, let running sessions end for so long, then stop their Spark jobs and let go of all claims."""
        _log.info("draining", sessions=self._pool.running_count, seconds=drain_seconds)
        self._begins_nothing = True
        until_seconds = self._clock.monotonic_seconds() + drain_seconds
        while self._pool.running_count and self._clock.monotonic_seconds() < until_seconds:
            self.tick()
            self._clock.sleep(min(self._settings.tick_seconds, 0.2))
        self.stop()
        self.tick()
        for held in list(self._held.values()):
            with bound(job_run_id=held.job_run_id):
                self._let_go(held)
        _log.info("drained")

    def stop(self) -> None:
        """Stop all Spark jobs now, and wait for the threads that watch them."""
        self._begins_nothing = True
        self._stops_sessions = True
        self._pool.close()

    def _let_go(self, held: HeldJobRun) -> None:
        try:
            held.claim.release()
            held.tell()
        except LithifyError as error:
            _log.warning("claim_not_released", reason=str(error))  # it runs out by itself
        del self._held[held.job_run_id]

    # -- taking job runs on

    def _may_take_on(self) -> bool:
        return self._pool.has_room() or len(self._held) < self._settings.max_job_runs

    def _take_offered(self) -> None:
        while self._may_take_on() and not self._offered.empty():
            self._take_on(self._offered.get_nowait())

    def _take_over_open(self) -> None:
        """Job runs that nobody works on: their dispatcher drained or died, or had no room."""
        now_seconds = self._clock.monotonic_seconds()
        due = self._swept_at_seconds is None or now_seconds - self._swept_at_seconds >= self._settings.sweep_seconds
        if not due or not self._pool.has_room():
            return
        self._swept_at_seconds = now_seconds
        try:
            open_ids = self._records.open_job_run_ids()
        except LithifyError as error:
            _log.warning("open_job_runs_not_listed", reason=str(error))
            return
        for job_run_id in open_ids:
            if self._pool.has_room() and job_run_id not in self._held:
                self._take_on(job_run_id)

    def _take_on(self, job_run_id: str) -> None:
        if job_run_id in self._held:
            return
        with bound(job_run_id=job_run_id):
            try:
                self._claim(job_run_id)
            except LithifyError as error:
                _log.warning("job_run_not_taken_on", reason=str(error))  # its marker stays: the next sweep tries again

    def _claim(self, job_run_id: str) -> None:
        log = self._records.log(job_run_id)
        before = log.load().state
        if before.ended is not None:  # whoever ended it went away before everything was told
            self._tell_rest(job_run_id, before)
            return
        claim = claim_job_run(log, self._owner, self._settings.claim_seconds, self._clock)
        if isinstance(claim, NotClaimed):
            _log.info("job_run_not_claimed", reason=claim.reason)
            return
        state = log.load().state
        sink = self._sink_for(before.accepted.spec.sns_event_topic_arn if before.accepted is not None else None)
        held = HeldJobRun(claim, state, self._records, sink, self._clock)
        self._held[job_run_id] = held
        for session in state.open_sessions():
            self._pool.add(_waiting(held, session.pin))
        _log.info("job_run_claimed", epoch=claim.epoch, sessions=len(state.open_sessions()))

    def _tell_rest(self, job_run_id: str, state: JobRunState) -> None:
        sink = self._sink_for(state.accepted.spec.sns_event_topic_arn if state.accepted is not None else None)
        subject = subject_of(job_run_id, state)
        try:
            for session in state.sessions.values():
                about = SessionSubject(subject, session.pin.session_id, session.pin.partition)
                self._records.session_relay(about, sink).publish()
            self._records.relay(job_run_id, self._records.log(job_run_id), state, sink).publish()
        except Invalid as error:
            _log.error("events_refused", reason=str(error))  # the topic is wrong, for good
        self._records.mark_closed(job_run_id)

    # -- looking after them

    def _look_after(self, held: HeldJobRun) -> None:
        try:
            state = held.load()
            if state.ended is None:
                held.renew_when_due(self._settings.claim_seconds)
                if state.cancel is not None:
                    self._cancel(held, state)
                if not self._pool.runs(held.job_run_id):
                    state = held.end_when_done(held.load())
            told = held.tell()
            if state.ended is not None and told:
                self._records.mark_closed(held.job_run_id)
                del self._held[held.job_run_id]
                _log.info("job_run_ended", status=state.ended.outcome.status, seconds=round(state.ended.seconds, 3))
        except Fenced as error:
            self._lose(held, str(error))
        except (Unavailable, Conflict) as error:
            _log.warning("job_run_not_looked_after", reason=str(error))
        except (Corrupt, Invalid) as error:
            _log.error("job_run_given_up", reason=str(error))
            self._lose(held, str(error))

    def _cancel(self, held: HeldJobRun, state: JobRunState) -> None:
        """Running sessions see it at their next look; the others end here."""
        held.cancelled = True
        self._pool.forget(held.job_run_id)
        for session in state.open_sessions():
            if not self._pool.runs(held.job_run_id, session.pin.session_id):
                held.end_session(session.pin, Cancelled())

    def _lose(self, held: HeldJobRun, reason: str) -> None:
        """Somebody else has it, or nobody can have it: stop what runs of it."""
        if not held.lost:
            _log.warning("job_run_lost", reason=reason)
        held.lost = True
        self._pool.forget(held.job_run_id)
        if not self._pool.runs(held.job_run_id):
            self._held.pop(held.job_run_id, None)

    # -- sessions

    def _run_session(self, waiting: WaitingSession) -> None:
        """In a thread of the pool: one session, from wherever it stands to its end in the job-run log."""
        held = self._held[waiting.job_run_id]
        with bound(job_run_id=waiting.job_run_id, session_id=waiting.session_id):
            session = held.session(waiting.session_id)
            journal = held.journal(session.pin, self._settings.heartbeat_event_seconds)
            task = SessionTask(session_spec(held.accepted.spec, session.pin), session.attempt, session.failures)
            outcome = self._launcher.run(task, journal, lambda: held.order(stops=self._stops_sessions))
            if not journal.publish():
                held.untold(waiting.session_id)
            if not isinstance(outcome, Interrupted):
                journal.ended(outcome)

    def _settle_finished(self) -> None:
        for waiting, error in self._pool.finished():
            held = self._held.get(waiting.job_run_id)
            if held is not None:
                with bound(job_run_id=waiting.job_run_id, session_id=waiting.session_id):
                    self._settle(held, waiting, error)

    def _settle(self, held: HeldJobRun, waiting: WaitingSession, error: BaseException | None) -> None:
        match error:
            case None:
                if held.lost:
                    self._lose(held, "its last session has stopped")
            case Fenced():
                self._lose(held, str(error))
            case Unavailable() | Conflict():
                _log.warning("session_requeued", reason=str(error))
                not_before = self._clock.monotonic_seconds() + self._settings.requeue_seconds
                self._pool.add(replace(waiting, not_before_seconds=not_before))
            case _:
                self._fail(held, waiting, error)

    def _fail(self, held: HeldJobRun, waiting: WaitingSession, error: BaseException) -> None:
        """What nobody can try again. A bug keeps its traceback, in the log."""
        kind = type(error).__name__ if isinstance(error, LithifyError) else "bug"
        _log.error("session_broke", error_kind=kind, exc_info=error)
        reason = str(error) if isinstance(error, LithifyError) else f"{type(error).__name__}: {error}"
        try:
            session = held.session(waiting.session_id)
            if session.end is None:
                held.end_session(session.pin, Failed(attempt=session.attempt, error_kind=kind, reasons=(reason,)))
        except LithifyError as again:
            self._lose(held, str(again))


def _waiting(held: HeldJobRun, pin: SessionPin) -> WaitingSession:
    spec = held.accepted.spec
    destination = stream_name(spec.lake, spec.destination_compacted_table_id, pin.partition)
    return WaitingSession(held.job_run_id, pin.session_id, destination, spec.priority, held.accepted_at_ms)
