"""Runs job runs: claims them, passes their sessions to the pool, concludes them. One thread ticks repeatedly.

    offered, or found by its marker --claim--> held --sessions--> all ended --> job run ended --> published --> closed
                                                |
                                                +-- claim lost: its Spark jobs are left running, nothing more is written

A waiting job run is claimed when one of its sessions could start here; those of a dead dispatcher are claimed at once,
because their sessions must be watched. One that only the limits of this dispatcher stop is released: another one may
start it.

A tick processes every held job run once. An error of one does not affect the others:

| what went wrong with a job run | then |
|---|---|
| a service does not answer, or denies access | tried again at the next tick |
| another dispatcher has claimed it | that dispatcher watches its Spark jobs |
| its log cannot be read, or breaks the rules of this release | set aside: an event says so, and it is skipped |
| anything else, a bug too | its sessions are stopped, and it ends as failed, with the reason |
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

import structlog

from compactor.events.relay import bounded
from compactor.log_context import bound
from compactor.model.clock import Clock
from compactor.model.errors import Conflict, Fenced, LithifyError, Outdated, Unavailable, kind_of
from compactor.model.release import this_release
from compactor.storage.paths import MarkedJobRun
from dispatcher.outbox.listeners import Listeners
from dispatcher.records.claims import UNSEEN_CLAIM_SECONDS, Claim, JobRunLog, NotClaimed, claim_job_run
from dispatcher.records.job_run_events import set_aside_event
from dispatcher.records.job_run_log import JobRunOutcome, JobRunState, SessionPin, SessionState, session_spec
from dispatcher.records.job_run_store import JobRunStore
from dispatcher.records.liveness import Fleet, Heart
from dispatcher.records.pauses import Pause, Pauses, note_pause
from dispatcher.records.ranking import stream_digest, work_of
from dispatcher.records.work_id import WorkId
from dispatcher.running.claimed_job_run import ClaimedJobRun, end_as_failed
from dispatcher.running.open_runs import OpenJobRun, OpenJobRuns
from dispatcher.running.session_finding import SessionFinding
from dispatcher.running.session_starts import LOOK_SECONDS_MIN, SessionStarts, ends_turn
from dispatcher.running.sharding import Sharding
from dispatcher.scheduling.budgets import MONEY_SECONDS
from dispatcher.scheduling.lease_log import FlowLimits, Turn
from dispatcher.scheduling.leases import Turns
from dispatcher.scheduling.session_pool import SessionPool, Unit, WaitingSession
from launcher.attempt import SessionCommand
from launcher.bundle_run import LeftOpen, RunAgain
from launcher.bundles import BundleLauncher
from launcher.outcomes import Cancelled, Failed, Interrupted, Postponed, SessionOutcome, Succeeded, level_of
from launcher.session_launcher import SessionLauncher, SessionTask

_log = structlog.get_logger(__name__)

CANCEL_LOOK_SECONDS = 300.0
"""Between two looks at the log of a job run that waits for its turn, unclaimed: it may have been cancelled by then."""

PAUSED_SECONDS = 300.0
"""Interval after which a paused job run is read again: it may have been cancelled meanwhile."""

ACCEPTANCE_ENTRY_NUMBER, CLAIM_ENTRY_NUMBER = 1, 2
"""Of a job run of which nothing is recorded between the two: no dispatcher can have published anything of it."""

TICK_SECONDS_MIN = 0.2
"""Between two ticks, also if sessions end one after the other: each tick may list the markers."""

TAKEN_OVER_MAX = 16
"""Limit per tick, so that it stays short even if a dead dispatcher held many: the next tick continues."""

RESUMED_MAX = 16
"""The same for job runs whose pause has ended."""


@dataclass(frozen=True)
class JobRunControllerSettings:
    """
    max_sessions             sessions at a time, over all job runs
    max_job_runs             held and waiting job runs at which no more messages are received; job runs of dead
                             dispatchers are claimed beyond this limit
    claim_seconds            after which others take over from a silent dispatcher (the paper: 5 minutes)
    receiver_seconds         after which a receiving thread that does not turn counts as stuck, and this dispatcher
                             goes silent
    stuck_seconds            the same for the ticking thread
    sweep_seconds            between two listings of the markers of open job runs
    pause_look_seconds       between two reads of the pauses, while sessions wait to be started
    turn_look_seconds        between two reads of the turns, while sessions wait for their turn or for a place
    limits                   on concurrent sessions, clusters and vCPUs, and on money
    look_seconds             between two reads of a held job run's log, for entries of others: a cancel, a claim
    requeue_seconds          before a session that ended because the state's store did not answer is run again
    set_aside_seconds        before an unreadable log is read again
    tick_seconds             between two ticks
    heartbeat_event_seconds  between two heartbeat events of a session, at least
    """

    max_sessions: int = 2
    max_job_runs: int = 8
    claim_seconds: float = 300.0
    receiver_seconds: float = 975.0
    stuck_seconds: float = 120.0
    sweep_seconds: float = 60.0
    pause_look_seconds: float = 15.0
    turn_look_seconds: float = 30.0
    limits: FlowLimits = field(default_factory=FlowLimits)
    look_seconds: float = 30.0
    requeue_seconds: float = 30.0
    set_aside_seconds: float = 3_600.0
    tick_seconds: float = 1.0
    heartbeat_event_seconds: float = 30.0


@dataclass(frozen=True)
class Launchers:
    """The launchers of sessions: each in its own Spark job, or small ones together. `finding`: of sessions of job runs
    that are pinned by time. `sharding`: divides those into shards."""

    sessions: SessionLauncher
    bundles: BundleLauncher
    finding: SessionFinding
    sharding: Sharding


class JobRunController:
    """For the ticking thread. Only methods that say so are thread-safe."""

    def __init__(
        self,
        owner: str,
        records: JobRunStore,
        launchers: Launchers,
        listeners: Listeners,
        settings: JobRunControllerSettings,
        clock: Clock,
    ) -> None:
        self._owner = owner
        self._records = records
        self._launchers = launchers
        self._listeners = listeners
        self._publisher = listeners.publisher
        self._answers = listeners.answers
        self._meter = listeners.meter
        self._settings = settings
        self._clock = clock
        self._has_news = threading.Event()
        self._pool = SessionPool(settings.max_sessions, launchers.bundles.bounds.sessions, self._has_news.set)
        self.turns = Turns(records, owner, settings.limits, settings.turn_look_seconds, clock)
        self._starts = SessionStarts(self._pool, self.turns, settings.turn_look_seconds, clock)
        self._held: dict[WorkId, ClaimedJobRun] = {}
        self._offered: queue.SimpleQueue[tuple[WorkId, JobRunLog | None]] = queue.SimpleQueue()
        self._postponed: queue.SimpleQueue[WaitingSession] = queue.SimpleQueue()
        self._room = settings.max_job_runs
        self._room_lock = threading.Lock()
        self._is_draining = False
        self._listed = False
        self._order = SessionCommand.RUN
        self._heart = Heart(records.store, owner, settings.claim_seconds, clock)
        fleet = Fleet(records.store, owner, settings.claim_seconds, clock)
        self._open = OpenJobRuns(records, fleet, settings.claim_seconds, settings.sweep_seconds, clock, self._set_aside)
        self._no_room_since_seconds: dict[WorkId, float] = {}
        self._no_share_until_seconds = 0.0
        """This dispatcher's own limits are reached: until then it claims nothing further, unless a session ends."""
        self._receiver_turned_at_seconds: float | None = None
        self._reported_set_aside: set[WorkId] = set()
        self._pauses = Pauses(records.pauses, settings.pause_look_seconds, clock)
        self._left_paused: dict[WorkId, tuple[OpenJobRun, Pause]] = {}
        self.spark_jobs_left = 0
        """Spark jobs that may still run, of job runs that this dispatcher released."""
        self._ticked_at_seconds: float | None = None
        self.last_error: Exception | None = None
        """The error of the state's store in the last tick, if any."""

    def offer(self, job_run_id: str, log: JobRunLog | None = None) -> None:
        """A job run was accepted. `log`: its log with the cached fold, if available. Thread-safe."""
        with self._room_lock:
            self._offered.put((WorkId(job_run_id), log))
            self._room -= 1

    @property
    def room(self) -> int:
        """How many more job runs may be accepted now. Thread-safe."""
        return max(self._room, 0)

    def receiver_turned(self) -> None:
        """A sign of life of the receiving thread. After the first call it must call regularly."""
        self._receiver_turned_at_seconds = self._clock.monotonic_seconds()

    @property
    def stuck(self) -> tuple[str, ...]:
        """Loops that have begun and hang, by name. A draining dispatcher does not receive. Thread-safe."""
        now_seconds, settings = self._clock.monotonic_seconds(), self._settings
        receiver_at = None if self._is_draining else self._receiver_turned_at_seconds
        turned = (
            ("tick", self._ticked_at_seconds, settings.stuck_seconds),
            ("receiver", receiver_at, settings.receiver_seconds),
        )
        return tuple(name for name, at, limit in turned if at is not None and now_seconds - at > limit)

    def job_runs_by_state(self) -> dict[str, int]:
        """Known open job runs. Thread-safe."""
        paused = len(self._left_paused)
        known = {"running": len(self._held), "paused": paused, "set_aside": len(self._reported_set_aside)}
        return {**known, "waiting": max(self._open.known_count - paused, 0)}

    def wait_for_tick(self, stops: threading.Event) -> None:
        """Until the next tick is due: at once if a session has ended, so that the next one starts; or until `stops`."""
        least_seconds, left_seconds = TICK_SECONDS_MIN, self._settings.tick_seconds
        stops.wait(min(left_seconds, least_seconds))
        while (left_seconds := left_seconds - least_seconds) > 0 and not stops.is_set():
            if self._has_news.wait(min(left_seconds, least_seconds)):
                return

    @property
    def is_idle(self) -> bool:
        """Whether nothing is held or offered, and no job run waits without a dispatcher."""
        held = set(self._held)
        return self._offered.empty() and self._open.are_all_others and held <= self._withheld_whole()

    @property
    def paused(self) -> tuple[str, ...]:
        """Job runs without running sessions here, because they are paused."""
        return tuple(sorted({work.job_run_id for work in (*self._left_paused, *self._withheld_whole())}))

    @property
    def set_aside(self) -> tuple[str, ...]:
        """Job runs whose log could not be read."""
        return tuple(sorted(map(str, self._reported_set_aside)))

    @property
    def job_runs_held(self) -> int:
        return len(self._held)

    @property
    def holds_nothing(self) -> bool:
        return not self._held and self._offered.empty()

    def tick(self) -> None:
        """Processes everything once. Quick: long work is in the pool's threads."""
        self._ticked_at_seconds = self._clock.monotonic_seconds()
        self._has_news.clear()
        self.last_error = None
        self._beat()
        self._settle_finished()
        if not self._is_draining and self._heart.has_beaten:
            self._wake_resumed()
            self._take_on_next()
            self.last_error = self._open.last_error or self.last_error
        for held in list(self._held.values()):
            with bound(job_run_id=str(held.work)):
                self._look_after(held)
        if not self._is_draining:
            self._withhold_paused()
            self._start_sessions()
            self._leave_to_others()
        with self._room_lock:
            known_count = self._active + self._open.waiting_count + self._offered.qsize()
            self._room = self._settings.max_job_runs - known_count

    def drain(self, drain_seconds: float, stops_jobs: Callable[[], bool] = lambda: False) -> None:
        """Starts nothing new, lets running sessions end for `drain_seconds`, then releases all claims. After that time
        `stops_jobs` says whether Spark jobs that still run are stopped or left running."""
        _log.info("draining", sessions=self._pool.running_count, seconds=drain_seconds)
        self._is_draining = True
        until_seconds = self._clock.monotonic_seconds() + drain_seconds
        while self._pool.running_count and self._clock.monotonic_seconds() < until_seconds:
            self.tick()
            self._clock.sleep(min(self._settings.tick_seconds, 0.2))
        self.stop(stops_jobs=stops_jobs())
        self.tick()
        for held in list(self._held.values()):
            with bound(job_run_id=str(held.work)):
                self._let_go(held)
        self.turns.catch_up()
        try:
            self._heart.stop()
        except LithifyError as error:
            _log.warning("sign_of_life_not_removed", reason=str(error))  # it expires by itself
        _log.info("drained")

    def stop(self, *, stops_jobs: bool) -> None:
        """Stops watching sessions, and waits for their threads. Idempotent."""
        self._is_draining = True
        self._order = SessionCommand.STOP if stops_jobs else SessionCommand.LEAVE
        self._pool.close()

    def _beat(self) -> None:
        """Writes the sign of life, while the receiver works too; not while draining."""
        if "receiver" in self.stuck:
            _log.error("receiver_does_not_turn")
            return
        try:
            self._heart.beat_when_due()
        except LithifyError as error:
            self.last_error = error
            _log.warning("sign_of_life_not_written", reason=str(error))

    def _let_go(self, held: ClaimedJobRun) -> None:
        try:
            self.spark_jobs_left += len(held.claim.release(held.stopped))
            self._records.mark_held(replace(held.mark, owner=None, epoch=0))
        except LithifyError as error:
            _log.warning("claim_not_released", reason=str(error))  # it is taken over once this dispatcher is gone
        self._listeners.leave(held.work.text)
        self._launchers.finding.forget(held.work)
        del self._held[held.work]

    # -- claiming job runs

    @property
    def _active(self) -> int:
        """Number of held job runs, without shards, and without those that wait only for the end of a pause."""
        now_seconds = self._clock.monotonic_seconds()
        whole = [work for work in self._held if work.shard is None]
        return sum(not self._pool.rests(work, now_seconds) for work in whole)

    def _next_to_take_on(self) -> OpenJobRun | None:
        """The next unclaimed job run that could start a session here now. Others stay unclaimed."""
        moment = self._starts.moment()
        found = self._open.next(moment)
        if found is None or self._active >= self._settings.max_job_runs:
            return None
        if self._clock.monotonic_seconds() < self._no_share_until_seconds:
            return None
        if found.work.shard is not None and any(map(self._has_found_nothing, self._held.values())):
            return None  # what it finds may fill this dispatcher
        table = found.mark.table or ""
        session = WaitingSession(found.work, "", table, "", found.priority, found.accepted_at_ms)
        return found if self._pool.has_room_for(session, moment) else None

    def _has_found_nothing(self, held: ClaimedJobRun) -> bool:
        return held.newest.is_finding and not held.newest.sessions

    def _list_before_a_start(self) -> None:
        """Lists the markers, so that no session passes an earlier job run that another dispatcher has just accepted."""
        self._listed = False  # also if the listing fails: then nothing is started in this tick
        if self._starts.may_start() or self._next_to_take_on() is not None:
            self._open.list_again(self._marks, self._publisher.followed)
            self._listed = True
            self.turns.forget_all_but([work_of(mark) for mark in self._open.markers])

    @property
    def _marks(self) -> dict[WorkId, MarkedJobRun]:
        return {work: held.mark for work, held in self._held.items()}

    def _take_on_next(self) -> None:
        """Claims offered and unclaimed job runs, in one order, while there is room; and those of dead dispatchers
        in any case.
        """
        while not self._offered.empty():
            work, log = self._offered.get_nowait()
            self._answers.look_again(work.job_run_id)
            if not self._publisher.sent_again(work.text):  # a followed job run is claimed already, or has ended
                self._open.offer(work, log)
        self._open.look(self._marks, self._publisher.followed)
        for found in self._open.left_behind()[:TAKEN_OVER_MAX]:
            with bound(job_run_id=str(found.work)):
                self._take_on(found)
        try:
            self._list_before_a_start()
            while (next_found := self._next_to_take_on()) is not None:
                with bound(job_run_id=str(next_found.work)):
                    self._take_on_or_wait(next_found)
        except LithifyError as error:
            self.last_error = error
            _log.warning("open_job_runs_not_listed", reason=str(error))

    def _take_on_or_wait(self, found: OpenJobRun) -> None:
        """Claims the job run, or lets it wait for its turn. A cancelled job run need not wait: its log is read from
        time to time."""
        if not self._starts.has_no_turn(found.mark, self._open.markers, self._held):
            return self._take_on(found)
        if self._open.is_cancelled(found, CANCEL_LOOK_SECONDS):
            return self._take_on(found)
        return self._open.wait(found.work, max(self._settings.turn_look_seconds, LOOK_SECONDS_MIN))

    def _take_on(self, found: OpenJobRun) -> None:
        try:
            self._claim(found)
        except Outdated as error:
            self._set_aside(found.work, found.log, error)
        except (Unavailable, Conflict, Fenced) as error:
            _log.warning("job_run_not_taken_on", reason=str(error))
            self._open.leave_alone(found.work, 0)  # its marker stays: the next sweep tries again
        except Exception as error:  # noqa: BLE001  (any error affects this job run only)
            self._set_aside(found.work, found.log, error)

    def _leave_paused(self, found: OpenJobRun, state: JobRunState) -> bool:
        """Whether a job run is left unclaimed: it is paused, nothing of it was launched, and it is not cancelled."""
        launched = any(session.in_flight is not None for session in state.open_sessions())
        if state.accepted is None or state.cancel is not None or launched:
            return False
        pause = self._pauses.of(state.accepted.spec)
        if pause is None:
            return False
        if state.accepted.shard is None and note_pause(found.log, pause, self._clock.now_ms()):
            _log.info("job_run_paused", scope=pause.scope, reason=pause.reason)
            self._publisher.follow(found.work.text, found.log, found.log.newest.state)
            self._publisher.leave(found.work.text)
        self._left_paused[found.work] = (found, pause)
        self._open.leave_alone(found.work, PAUSED_SECONDS)
        return True

    def _wake_resumed(self) -> None:
        """Job runs whose pause has ended may be claimed now. Their logs say so first: what they wait for from here on
        is no pause."""
        if not self._left_paused:
            return
        try:
            pauses = self._pauses.now()
        except LithifyError as error:
            _log.warning("pauses_not_read", reason=str(error))
            return
        resumed = [found for found, pause in self._left_paused.values() if pause not in pauses]
        for found in resumed[:RESUMED_MAX]:
            with bound(job_run_id=str(found.work)):
                self._note_resumed(found)
            del self._left_paused[found.work]
            self._open.wake(found.work)

    def _note_resumed(self, found: OpenJobRun) -> None:
        try:
            if found.work.shard is None and note_pause(found.log, None, self._clock.now_ms()):
                _log.info("job_run_resumed")
        except LithifyError as error:
            _log.warning("resume_not_noted", reason=str(error))  # whoever claims it does it

    def _claim(self, found: OpenJobRun) -> None:
        log = found.log
        # Of what was just accepted here only the acceptance is known: if there is more, the claim's entry is taken.
        at = log.newest if log.newest.entry_number == ACCEPTANCE_ENTRY_NUMBER else log.load()
        before = at.state
        if before.ended is not None or before.rejected is not None:
            # The dispatcher that ended it died before all events were published.
            self.turns.end_all_of(found.work)
            self._publisher.follow(found.work.text, log, before, is_ending=True)
            self._listeners.tables.follow(found.work.text, before)
            self._listeners.tables.leave(found.work.text)
            self._answers.seen(found.work.text, before, is_ending=True)
            self._open.taken(found.work)
            return
        if self._leave_paused(found, before):
            return
        claim = claim_job_run(log, self._owner, UNSEEN_CLAIM_SECONDS, self._clock, found.watch, at)
        if isinstance(claim, NotClaimed):
            _log.info("job_run_not_claimed", reason=claim.reason)
            self._open.held_by_another(found.work, log.newest.state)
            return
        try:
            self._mark(self._hold(claim, log.newest.state))
        except (Unavailable, Conflict):
            self._listeners.leave(found.work.text)
            claim.release()  # so that the next dispatcher need not wait until it expires
            raise
        except Exception as error:  # noqa: BLE001
            _log.error("job_run_broke", exc_info=error)
            end_as_failed(claim, kind_of(error), _reason_of(error), self._clock)
            self._open.leave_alone(found.work, 0)
            return
        self._open.taken(found.work)

    def _hold(self, claim: Claim, state: JobRunState) -> ClaimedJobRun:
        held = ClaimedJobRun(claim, state, self._listeners, self.turns, self._clock)
        if claim.epoch > 1:
            in_flight = [each.pin.session_id for each in state.open_sessions() if each.in_flight is not None]
            self.turns.inherit(held.mark, in_flight)
        waiting = [self._waiting(held, session) for session in state.open_sessions()]
        is_new = claim.log.newest.entry_number == CLAIM_ENTRY_NUMBER
        self._publisher.follow(held.work.text, claim.log, state, is_new=is_new)
        self._listeners.tables.follow(held.work.text, state)
        self._answers.seen(held.work.text, state)
        self._follow_waiters(held)
        self._held[held.work] = held
        for each in waiting:
            self._pool.add(each)
        _log.info("job_run_claimed", epoch=claim.epoch, sessions=len(waiting))
        return held

    def _follow_waiters(self, held: ClaimedJobRun) -> None:
        """Workflows that wait for a job run get heartbeats from each dispatcher where a shard of it progresses."""
        job_run_id = held.work.job_run_id
        if held.work.shard is not None and WorkId(job_run_id) not in self._held:
            self._answers.seen(job_run_id, self._records.state(job_run_id))

    def _leave_waiters(self, work: WorkId) -> None:
        """Called when a job run or a shard is not held any more."""
        job_run_id = work.job_run_id
        if (
            work.shard is not None
            and job_run_id not in self._publisher.followed
            and all(each.job_run_id != job_run_id for each in self._held)
        ):
            self._answers.leave(job_run_id)

    def _waiting(self, held: ClaimedJobRun, session: SessionState) -> WaitingSession:
        return replace(
            _waiting(held, session.pin),
            may_share=self._launchers.bundles.bounds.allow_bundles and not session.alone,
            bundle=session.bundle if session.in_flight is not None else None,
        )

    def _find_sessions(self, held: ClaimedJobRun) -> JobRunState:
        """Finds sessions of a job run that is pinned by time, and lets them wait to be started."""
        goes_on = not self._is_draining and held.newest.cancel is None
        if goes_on and held.newest.is_finding and not held.newest.is_for_shards:
            self._launchers.finding.find(held)
        found = held.take_found()
        self._listeners.tables.found(held.work.text, (session.pin for session in found))
        for session in found:
            if session.end is None:
                self._pool.add(self._waiting(held, session))
        return held.newest

    def _mark(self, held: ClaimedJobRun) -> None:
        try:
            self._records.mark_held(held.mark)
        except Unavailable as error:
            _log.warning("claim_not_marked", reason=str(error))  # the next sweep repairs the marker

    def _set_aside(self, work: WorkId, log: JobRunLog, error: Exception) -> None:
        """Skips a job run whose log is unreadable. Nothing is written to it: a newer release may have written it."""
        self._open.leave_alone(work, self._settings.set_aside_seconds)
        if work in self._reported_set_aside:
            return
        bug = None if isinstance(error, LithifyError) else error
        reason = _reason_of(error) + (self._what_to_install() if isinstance(error, Outdated) else "")
        _log.error("job_run_set_aside", job_run_id=str(work), reason=reason, exc_info=bug)
        self._reported_set_aside.add(work)
        accepted = self._records.accepted_in(log)
        topic_arn = accepted.spec.sns_event_topic_arn if accepted is not None else None
        event = set_aside_event(work, log.folder, accepted, reason, self._clock.now_ms())
        self._publisher.announce(topic_arn, event)

    def _what_to_install(self) -> str:
        """For a log that a newer release wrote: the other releases whose dispatchers work on this state."""
        try:
            others = [each for each in self._records.releases() if each != this_release()]
        except LithifyError:  # the reason without it is better than none
            return ""
        if not others:
            return ""
        return f"; this is release {this_release()}, and dispatchers of {', '.join(others)} have worked on this state"

    # -- watching them

    def _look_after(self, held: ClaimedJobRun) -> None:
        try:
            state = held.look(self._settings.look_seconds)
        except Fenced as error:
            return self._lose(held, str(error))
        except Exception as error:  # noqa: BLE001  (its log; see above)
            if isinstance(error, Unavailable | Conflict) and not isinstance(error, Outdated):
                self.last_error = error
                _log.warning("job_run_not_looked_after", reason=str(error))
                return None
            self._set_aside(held.work, held.claim.log, error)
            return self._lose(held, str(error))
        try:
            self._continue(held, state)
        except Fenced as error:
            self._lose(held, str(error))
        except (Unavailable, Conflict) as error:
            _log.warning("job_run_not_looked_after", reason=str(error))
        except Exception as error:  # noqa: BLE001  (its own; see above)
            self._break(held, error)
        return None

    def _continue(self, held: ClaimedJobRun, state: JobRunState) -> None:
        if state.ended is None:
            state = self._continue_open(held, state)
        if state.ended is not None:
            self._publisher.ending(held.work.text)
            self._listeners.tables.leave(held.work.text)
            self._answers.seen(held.work.text, state, is_ending=True)
            self._launchers.finding.forget(held.work)
            del self._held[held.work]
            self.turns.end_all_of(held.work)
            self._launchers.sharding.forget(held.work)
            self._leave_waiters(held.work)
            if held.work.shard is not None:
                self._record_shard_end(held, state)
                return _log_end("shard_ended", state.ended.outcome, **asdict(held.work.shard))
            self._meter.job_run_ended(state)
            self._pauses.forget(held.work.job_run_id)
            _log_end("job_run_ended", state.ended.outcome, seconds=round(state.ended.seconds, 3))
        return None

    def _record_shard_end(self, held: ClaimedJobRun, state: JobRunState) -> None:
        """Also done before its marker is removed, if it fails here: but then its events are published first."""
        whole = self._held.get(WorkId(held.work.job_run_id))
        try:
            self._records.record_shard_end(state, whole.claim.log if whole is not None else None)
        except LithifyError as error:
            _log.warning("shard_end_not_recorded", reason=str(error))
        self._has_news.set()  # the job run may have ended with it

    def _continue_open(self, held: ClaimedJobRun, state: JobRunState) -> JobRunState:
        if held.broken is not None:
            if self._pool.runs(held.work):
                return state
            self._launchers.sharding.cancel(held, held.broken[1])
            return end_as_failed(held.claim, *held.broken, self._clock)
        if state.is_for_shards and not self._is_draining:
            for name, log in self._launchers.sharding.go_on(held):
                self._open.offer(name, log)
        state = self._find_sessions(held)
        if state.cancel is not None:
            self._cancel(held, state)
        return state if self._pool.runs(held.work) else held.end_when_done(held.newest)

    def _break(self, held: ClaimedJobRun, error: Exception) -> None:
        """Lets it end as failed once none of its sessions runs. If that fails too, its claim is given up."""
        _log.error("job_run_broke", exc_info=error)
        if held.broken is not None:
            self._set_aside(held.work, held.claim.log, error)
            return self._lose(held, str(error))
        held.broken = (kind_of(error), _reason_of(error))
        self._pool.forget(held.work)
        return None

    def _cancel(self, held: ClaimedJobRun, state: JobRunState) -> None:
        """Running sessions stop at their next poll, those in flight when they are watched again; others end here."""
        held.cancelled = True
        in_flight = [each.pin.session_id for each in state.open_sessions() if each.in_flight is not None]
        self._pool.forget(held.work, but=in_flight)
        idle = [
            session.pin.session_id
            for session in state.open_sessions()
            if session.in_flight is None and not self._pool.runs(held.work, session.pin.session_id)
        ]
        held.end_sessions(idle, Cancelled())

    def _lose(self, held: ClaimedJobRun, reason: str) -> None:
        """Stops work on a job run whose claim is lost. Its running Spark jobs are not stopped."""
        if not held.lost:
            _log.warning("job_run_lost", reason=reason)
        held.lost = True
        self._pool.forget(held.work)
        self._launchers.finding.forget(held.work)
        if not self._pool.runs(held.work):
            self._held.pop(held.work, None)
            self._listeners.leave(held.work.text)
            self._leave_waiters(held.work)

    # -- what is paused

    def _withhold_paused(self) -> None:
        """Called before sessions are started. Launched sessions are watched even if they are paused."""
        waiting = [each for each in self._pool.waiting if each.work in self._held and not self._is_launched(each)]
        try:
            specs = {each.work: self._held[each.work].accepted.spec for each in waiting}
            specs |= {key: held.accepted.spec for key, held in self._held.items() if held.newest.shards is not None}
            pauses = {work: self._pauses.of(spec) for work, spec in specs.items()}
            self._pool.withhold(each.key for each in waiting if pauses[each.work] is not None)
            for work, pause in pauses.items():
                held = self._held[work]
                if held.accepted.shard is not None:
                    continue  # the job run's own log says it
                is_new = (pause is None) != (held.newest.paused is None)
                if is_new and note_pause(held.claim.log, pause, self._clock.now_ms()):
                    _log.info("job_run_paused" if pause is not None else "job_run_resumed", job_run_id=work.job_run_id)
        except LithifyError as error:
            self.last_error = error
            _log.warning("pauses_not_read", reason=str(error))
            self._pool.withhold(each.key for each in waiting)  # nothing is started until the pauses can be read

    def _is_launched(self, waiting: WaitingSession) -> bool:
        session = self._held[waiting.work].newest.sessions[waiting.session_id]
        return session.in_flight is not None

    def _withheld_whole(self) -> set[WorkId]:
        """Held job runs whose remaining sessions are all withheld."""
        return {work for work in self._held if self._pool.is_withheld(work)}

    # -- sessions

    def _start_sessions(self) -> None:
        if not self._listed:
            return
        try:
            self._starts.start(self._held, self._open.markers, self._run_unit)
        except LithifyError as error:
            self.last_error = error
            _log.warning("turns_not_taken", reason=str(error))

    # -- what others could start

    def _leave_to_others(self) -> None:
        """Releases job runs of which nothing runs, and that only this dispatcher's own limits stop: those without a
        free thread after a sweep, in which a session here may end."""
        for gone in self._no_room_since_seconds.keys() - self._held.keys():
            del self._no_room_since_seconds[gone]
        for held in list(self._held.values()):
            seconds = self._seconds_without_room(held)
            if seconds is not None:
                with bound(job_run_id=str(held.work)):
                    self._leave(held, seconds)

    def _seconds_without_room(self, held: ClaimedJobRun) -> float | None:
        """For how long this dispatcher does not try a job run again, unless a session ends here; None: it keeps it."""
        sessions = held.newest.open_sessions()
        if not sessions or held.newest.cancel is not None or held.lost or held.cancelled or held.broken is not None:
            return None
        if self._pool.runs(held.work) or any(each.in_flight is not None for each in sessions):
            self._no_room_since_seconds.pop(held.work, None)
            return None
        now_seconds = self._clock.monotonic_seconds()
        if self._pool.is_full and self._pool.has_due(held.work, now_seconds):
            since_seconds = self._no_room_since_seconds.setdefault(held.work, now_seconds)
            return (
                self._settings.turn_look_seconds
                if now_seconds - since_seconds >= self._settings.sweep_seconds
                else None
            )
        self._no_room_since_seconds.pop(held.work, None)
        clusters = [each.plan.cluster if each.plan is not None else None for each in sessions]
        if all(self.turns.lacks_own_share(held.mark, cluster) for cluster in clusters):
            self._no_share_until_seconds = self._clock.monotonic_seconds() + self._settings.turn_look_seconds
            return MONEY_SECONDS
        return None

    def _leave(self, held: ClaimedJobRun, seconds: float) -> None:
        """The marker goes first: it is repaired while the claim is held, and a job run that is marked as held by a live
        dispatcher is not read."""
        try:
            self.turns.end_all_of(held.work)
            self._starts.leave(held.work)
            self._records.mark_held(replace(held.mark, owner=None, epoch=0))
            held.claim.release(held.stopped)
        except Fenced as error:
            return self._lose(held, str(error))
        except LithifyError as error:
            _log.warning("claim_not_released", reason=str(error))  # it is kept
            return None
        _log.info("job_run_left_to_others", seconds=seconds)
        self._pool.forget(held.work)
        self._listeners.leave(held.work.text)
        self._launchers.finding.forget(held.work)
        del self._held[held.work]
        self._leave_waiters(held.work)
        self._open.offer(held.work, held.claim.log)
        self._open.wait(held.work, seconds)
        return None

    def _run_unit(self, held: ClaimedJobRun, unit: Unit, turn: Turn) -> None:
        """Runs in a thread of the pool."""
        left_running, failure = False, None
        try:
            unit = _still_open(held, unit)
            is_alone = len(unit) == 1 and unit[0].bundle is None
            if unit:
                left_running = self._run_session(held, unit[0]) if is_alone else self._run_bundle(held, unit)
        except BaseException as error:
            failure = error
            raise
        finally:
            if ends_turn(failure, left_running=left_running):
                held.ends(turn)

    def _run_bundle(self, held: ClaimedJobRun, unit: Unit) -> bool:
        """Runs sessions of one job run: the small ones together; the others are queued again, to run alone. Returns
        whether their Spark job still runs."""
        bundle_id = unit[0].bundle
        bundles, journal = self._launchers.bundles, held.bundle_journal(unit[0].session_id)

        def requeue(reruns: Sequence[RunAgain]) -> None:
            self._requeue({each.session_id: each for each in unit}, reruns)

        def order() -> SessionCommand:
            return held.order(self._order)

        with bound(job_run_id=str(held.work)):
            sessions = held.newest.sessions
            tasks = [
                SessionTask(
                    session_spec(held.accepted.spec, session.pin), session.attempt, session.setbacks, session.in_flight
                )
                for session in (sessions[each.session_id] for each in unit)
            ]
            if bundle_id is not None:
                left_open = bundles.attach(bundle_id, tasks, journal, order, requeue)
            else:
                left_open = bundles.run(tasks, journal, order, requeue)
            if left_open is LeftOpen.STOPPED:
                held.stopped.update(each.session_id for each in unit)
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

    def _run_session(self, held: ClaimedJobRun, waiting: WaitingSession) -> bool:
        """Runs in a thread of the pool: one session, from its current state to its end in the job-run log. Returns
        whether its Spark job still runs."""
        with bound(job_run_id=str(waiting.work), session_id=waiting.session_id):
            session = held.newest.sessions[waiting.session_id]
            journal = held.journal(session.pin, self._settings.heartbeat_event_seconds)
            spec = session_spec(held.accepted.spec, session.pin)
            task = SessionTask(spec, session.attempt, session.setbacks, session.in_flight)
            self._meter.session_progressed(waiting.work.text, waiting.session_id)
            outcome: SessionOutcome | None = None
            try:
                outcome = self._launchers.sessions.run(task, journal, lambda: held.order(self._order))
            finally:
                journal.attempt_ended(was_read=isinstance(outcome, Succeeded))
                self._meter.session_left(waiting.work.text, waiting.session_id)
            match outcome:
                case Interrupted(left_running):
                    if not left_running:
                        held.stopped.add(waiting.session_id)
                    return left_running
                case Postponed(seconds):
                    not_before = self._clock.monotonic_seconds() + seconds
                    self._postponed.put(replace(waiting, not_before_seconds=not_before))
                case _:
                    self._meter.session_ended(journal.ended(outcome))
            return False

    def _settle_finished(self) -> None:
        self.turns.catch_up()
        finished = self._pool.finished()
        if finished:
            self._starts.something_ended()
            self._open.let_go_on()
            self._no_share_until_seconds = 0.0
        for waiting, error in finished:
            held = self._held.get(waiting.work)
            if held is not None:
                with bound(job_run_id=str(waiting.work), session_id=waiting.session_id):
                    self._settle(held, waiting, error)
        while not self._postponed.empty():
            waiting = self._postponed.get_nowait()
            held = self._held.get(waiting.work)
            if held is not None and not held.lost and held.broken is None:
                self._pool.add(waiting)

    def _settle(self, held: ClaimedJobRun, waiting: WaitingSession, error: BaseException | None) -> None:
        match error:
            case None:
                if held.lost:
                    self._lose(held, "its last session has stopped")
            case Fenced():
                self._lose(held, str(error))
            case Unavailable() | Conflict():
                if held.newest.sessions[waiting.session_id].end is not None:
                    return  # its bundle could not be watched to its end
                _log.warning("session_requeued", reason=str(error))
                not_before = self._clock.monotonic_seconds() + self._settings.requeue_seconds
                self._pool.add(replace(waiting, not_before_seconds=not_before))
            case _:
                self._fail(held, waiting, error)

    def _fail(self, held: ClaimedJobRun, waiting: WaitingSession, error: BaseException) -> None:
        """A permanent failure. A bug keeps its traceback in the log."""
        kind, reason = kind_of(error), _reason_of(error)
        _log.error("session_broke", error_kind=kind, exc_info=error)
        try:
            session = held.session(waiting.session_id)
            if session.end is None:
                held.end_session(session.pin, Failed(attempt=session.attempt, error_kind=kind, reasons=(reason,)))
        except LithifyError as lost:
            self._lose(held, str(lost))


def _waiting(held: ClaimedJobRun, pin: SessionPin) -> WaitingSession:
    table, priority = held.mark.table or "", held.mark.priority
    stream = stream_digest(pin.partition)
    return WaitingSession(held.work, pin.session_id, table, stream, priority, held.accepted_at_ms)


def _still_open(held: ClaimedJobRun, unit: Unit) -> Unit:
    """Without sessions that were queued again though they have ended: the answer to that entry was lost. Raises the
    store's errors."""
    if any(each.not_before_seconds for each in unit):
        held.claim.log.load()
    return tuple(each for each in unit if held.newest.sessions[each.session_id].end is None)


def _log_end(event: str, outcome: JobRunOutcome, **figures: float) -> None:
    why = {"reasons": "; ".join(bounded(outcome.reasons))} if outcome.reasons else {}
    _log.log(level_of(outcome.status), event, status=outcome.status, **figures, **why)


def _reason_of(error: BaseException) -> str:
    return str(error) if isinstance(error, LithifyError) else f"{type(error).__name__}: {error}"
