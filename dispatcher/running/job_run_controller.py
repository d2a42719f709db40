"""Runs job runs: claims them, passes their sessions to the pool, concludes them. One thread ticks repeatedly.

    offered, or found by its marker --> claimed --sessions--> all ended --> job run ended --> published --> closed
                                          |
                                          +-- claim lost: its Spark jobs are left running, nothing more is written

`claiming.py` says which job run is claimed, `claimed_job_runs.py` how it leaves, `session_starts.py` which session
starts, `session_runs.py` what a thread does. A job run that only the limits of this dispatcher stop is released:
another one may start it.

A tick processes every claimed job run once. An error of one does not affect the others:

| what went wrong with a job run | then |
|---|---|
| a service does not answer, or denies access | tried again at the next tick |
| another dispatcher has claimed it | that dispatcher watches its Spark jobs |
| its log cannot be read, or breaks the rules of this release | quarantined: an event says so, and it is skipped |
| anything else, a bug too | its sessions are stopped, and it ends as failed, with the reason |
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from compactor.log_context import LOG, bound
from compactor.model.clock import Clock
from compactor.model.errors import Conflict, Fenced, LithifyError, Outdated, Unavailable, kind_of, reason_of
from dispatcher.records.claims import JobRunLog
from dispatcher.records.job_run_log import JobRunState
from dispatcher.records.job_run_store import JobRunStore
from dispatcher.records.liveness import LivenessSignal, Peers
from dispatcher.records.pauses import Pauses, note_pause
from dispatcher.records.work_id import WorkId
from dispatcher.running.claimed_job_run import ClaimedJobRun, end_as_failed
from dispatcher.running.claimed_job_runs import ClaimedJobRuns, Departure
from dispatcher.running.claiming import Claiming
from dispatcher.running.journal import Listeners
from dispatcher.running.open_runs import OpenJobRuns, OpenRunsIntervals
from dispatcher.running.session_finding import SessionFinding
from dispatcher.running.session_runs import SessionRuns
from dispatcher.running.session_starts import SessionStarts
from dispatcher.running.sharding import Sharding
from dispatcher.scheduling.leases import MONEY_SECONDS, Leases
from dispatcher.scheduling.limits import Limits
from dispatcher.scheduling.session_pool import SessionPool, Slots, WaitingSession
from launcher.launch import SessionCommand
from launcher.outcomes import Cancelled
from launcher.session_launcher import SessionLauncher

TICK_SECONDS_MIN = 0.05
"""Least time between two ticks, also if sessions end one after the other: each tick may list the markers."""


@dataclass(frozen=True)
class JobRunControllerSettings:
    """
    Attributes:
        max_sessions: sessions on Spark at a time, over all job runs
        max_job_runs: claimed and waiting job runs at which no more messages are received; job runs of dead dispatchers
            are claimed beyond this limit
        claim_seconds: after which others take over from a silent dispatcher (the paper: 5 minutes)
        receiver_seconds: after which a receiving thread that does not turn counts as stuck, and this dispatcher goes
            silent
        stuck_seconds: the same for the ticking thread
        sweep_seconds: between two listings of the markers of open job runs
        pause_look_seconds: between two reads of the pauses, while sessions wait to be started
        turn_look_seconds: between two reads of the leases, while sessions wait for a lease or for a slot
        limits: on concurrent sessions, clusters and vCPUs, and on money
        look_seconds: between two reads of a claimed job run's log, for entries of others: a cancel, a claim
        requeue_seconds: before a session that ended because the state's store did not answer is run again
        set_aside_seconds: before an unreadable log is read again
        tick_seconds: between two ticks
        heartbeat_event_seconds: between two heartbeat events of a session, at least"""

    max_sessions: int = 1
    max_job_runs: int = 8
    claim_seconds: float = 300.0
    receiver_seconds: float = 975.0
    stuck_seconds: float = 120.0
    sweep_seconds: float = 60.0
    pause_look_seconds: float = 15.0
    turn_look_seconds: float = 30.0
    limits: Limits = field(default_factory=Limits)
    look_seconds: float = 30.0
    requeue_seconds: float = 30.0
    set_aside_seconds: float = 3_600.0
    tick_seconds: float = 1.0
    heartbeat_event_seconds: float = 30.0


@dataclass(frozen=True)
class Launchers:
    """`sessions`: launches sessions, alone or together. `finding`: of sessions of job runs that are pinned by time.
    `sharding`: divides those into shards."""

    sessions: SessionLauncher
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
        self._launchers = launchers
        self._listeners = listeners
        self._settings = settings
        self._clock = clock
        self._has_news = threading.Event()
        workers = launchers.sessions.workers
        slots = Slots(settings.max_sessions, workers.pool.workers if workers is not None else 0)
        self._pool = SessionPool(slots, launchers.sessions.bounds.sessions, self._has_news.set)
        self._pauses = Pauses(records.pauses, settings.pause_look_seconds, clock)
        running = workers.running if workers is not None else lambda: None
        self._liveness = LivenessSignal(records.store, owner, settings.claim_seconds, clock, running)
        peers = Peers(records.store, owner, settings.claim_seconds, clock)
        intervals = OpenRunsIntervals(settings.sweep_seconds, settings.set_aside_seconds)
        self._open = OpenJobRuns(records, peers, listeners.publisher, intervals, clock)
        self.leases = Leases(records, owner, settings.limits, settings.turn_look_seconds, clock)
        self._claimed = ClaimedJobRuns(
            records, listeners, self._open, self.leases, self._pool, pauses=self._pauses, clock=clock
        )
        self._starts = SessionStarts(self._pool, self.leases, self._claimed, settings.turn_look_seconds, clock)
        self._claiming = Claiming(
            owner, self._open, self._claimed, self._starts, self._pauses, listeners=listeners, clock=clock
        )
        self._runs = SessionRuns(
            launchers.sessions,
            self._claimed,
            self._pool,
            listeners.metrics,
            heartbeat_event_seconds=settings.heartbeat_event_seconds,
            clock=clock,
        )
        self._room = settings.max_job_runs
        self._room_lock = threading.Lock()
        self._is_draining = False
        self._receiver_turned_at_seconds: float | None = None
        self._ticked_at_seconds: float | None = None
        self.last_error: Exception | None = None
        """The error of the state's store in the last tick, if any."""

    def offer(self, job_run_id: str, log: JobRunLog | None = None) -> None:
        """A job run was accepted. `log`: its log with the cached fold, if available. Thread-safe."""
        with self._room_lock:
            self._claiming.offer(WorkId(job_run_id), log)
            self._room -= 1
        self._has_news.set()

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
        paused, quarantined = len(self._claiming.paused), len(self._open.quarantined)
        known = {"running": len(self._claimed), "paused": paused, "set_aside": quarantined}
        return {**known, "waiting": max(self._open.known_count - paused, 0)}

    def wait_for_tick(self, stops: threading.Event) -> None:
        """Until the next tick is due: at once if a job run was offered or a session has ended, but no sooner than
        `TICK_SECONDS_MIN` after the last tick began; or until `stops`."""
        least_seconds, left_seconds = TICK_SECONDS_MIN, self._settings.tick_seconds
        since_seconds = self._clock.monotonic_seconds() - (self._ticked_at_seconds or 0.0)
        stops.wait(max(min(left_seconds, least_seconds) - since_seconds, 0.0))
        while (left_seconds := left_seconds - least_seconds) > 0 and not stops.is_set():
            if self._has_news.wait(min(left_seconds, least_seconds)):
                return

    @property
    def is_idle(self) -> bool:
        """Whether nothing is claimed or offered, and no job run waits without a dispatcher."""
        is_offered = self._claiming.offered_count > 0
        return not is_offered and self._open.are_all_others and self._claimed.keys() <= self._claimed.paused

    @property
    def paused(self) -> tuple[str, ...]:
        """Job runs without running sessions here, because they are paused."""
        return tuple(sorted({work.job_run_id for work in self._claiming.paused | self._claimed.paused}))

    @property
    def quarantined(self) -> tuple[str, ...]:
        """Job runs whose log could not be read."""
        return tuple(sorted(map(str, self._open.quarantined)))

    @property
    def job_runs_held(self) -> int:
        return len(self._claimed)

    @property
    def holds_nothing(self) -> bool:
        return not self._claimed and not self._claiming.offered_count

    @property
    def spark_jobs_left(self) -> int:
        """Spark jobs that may still run, of job runs that this dispatcher released."""
        return self._claimed.spark_jobs_left

    def tick(self) -> None:
        """Processes everything once. Quick: long work is in the pool's threads."""
        self._ticked_at_seconds = self._clock.monotonic_seconds()
        self._has_news.clear()
        self.last_error = None
        self._beat()
        self._settle_finished()
        if not self._is_draining and self._liveness.has_signalled:
            self._claiming.work(self._settings.max_job_runs)
            self.last_error = self._claiming.last_error or self.last_error
        for claimed in self._claimed.values():
            with bound(job_run_id=str(claimed.work)):
                self._advance(claimed)
        if not self._is_draining:
            self._withhold_paused()
            self._start_sessions()
            self._leave_to_others()
        with self._room_lock:
            known_count = self._claimed.active_count + self._open.waiting_count + self._claiming.offered_count
            self._room = self._settings.max_job_runs - known_count

    def drain(self, drain_seconds: float, stops_jobs: Callable[[], bool] = lambda: False) -> None:
        """Starts nothing new, lets running sessions end for `drain_seconds`, then releases all claims. After that time
        `stops_jobs` says whether Spark jobs that still run are stopped or left running."""
        LOG.info("draining", sessions=self._pool.running_count, seconds=drain_seconds)
        self._is_draining = True
        until_seconds = self._clock.monotonic_seconds() + drain_seconds
        while self._pool.running_count and self._clock.monotonic_seconds() < until_seconds:
            self.tick()
            self._clock.sleep(min(self._settings.tick_seconds, 0.2))
        self.stop(stops_jobs=stops_jobs())
        self.tick()
        for claimed in self._claimed.values():
            with bound(job_run_id=str(claimed.work)):
                self._claimed.release(claimed, Departure.RELEASED)
        self._catch_up()
        try:
            if not self._claimed:  # others take over what could not be released once this object is silent
                self._liveness.stop()
        except LithifyError as error:
            LOG.warning("sign_of_life_not_removed", reason=str(error))  # it expires by itself
        LOG.info("drained")

    def stop(self, *, stops_jobs: bool) -> None:
        """Stops watching sessions, and waits for their threads. Idempotent."""
        self._is_draining = True
        self._runs.command = SessionCommand.STOP if stops_jobs else SessionCommand.LEAVE
        self._pool.close()

    def _beat(self) -> None:
        """Writes the sign of life, while the receiver works too; not while draining."""
        if "receiver" in self.stuck:
            LOG.error("receiver_does_not_turn")
            return
        try:
            self._liveness.signal_when_due()
        except LithifyError as error:
            self.last_error = error
            LOG.warning("sign_of_life_not_written", reason=str(error))

    def _settle_finished(self) -> None:
        self._catch_up()
        has_settled = self._runs.settle_finished(self._settings.requeue_seconds)
        if self._starts.have_leases_ended() or has_settled:
            self._starts.retry_blocked()
            self._claiming.retry_blocked()

    def _catch_up(self) -> None:
        try:
            self._starts.catch_up()
        except LithifyError as error:
            LOG.warning("slots_not_given_back", reason=str(error))  # the next tick tries again

    # -- one claimed job run

    def _advance(self, claimed: ClaimedJobRun) -> None:
        try:
            state = claimed.poll(self._settings.look_seconds)
        except Fenced as error:
            return self._claimed.lose(claimed, str(error))
        except Exception as error:  # noqa: BLE001  (its log; see above)
            if isinstance(error, Unavailable | Conflict) and not isinstance(error, Outdated):
                self.last_error = error
                LOG.warning("job_run_not_looked_after", reason=str(error))
                return None
            self._open.quarantine(claimed.work, claimed.claim.log, error)
            return self._claimed.lose(claimed, str(error))
        try:
            if state.ended is None:
                state = self._continue_open(claimed)
            if state.ended is not None:
                self._claimed.leave(claimed.work, state, Departure.ENDED)
                if claimed.work.shard is not None:
                    self._has_news.set()  # its job run may have ended with it
        except Fenced as error:
            self._claimed.lose(claimed, str(error))
        except (Unavailable, Conflict) as error:
            LOG.warning("job_run_not_looked_after", reason=str(error))
        except Exception as error:  # noqa: BLE001  (its own; see above)
            self._break(claimed, error)
        return None

    def _continue_open(self, claimed: ClaimedJobRun) -> JobRunState:
        is_running = self._pool.runs(claimed.work)
        if claimed.broken is not None:
            if is_running:
                return claimed.newest
            self._launchers.sharding.cancel(claimed, claimed.broken[1])
            return end_as_failed(claimed.claim, *claimed.broken, self._clock)
        if claimed.newest.is_for_shards and not self._is_draining:
            for work, log in self._launchers.sharding.go_on(claimed):
                if work not in self._claimed:  # a successor may have taken them first
                    self._open.offer(work, log)
                    self._has_news.set()
        self._find_sessions(claimed)
        if claimed.newest.cancel is not None:
            self._cancel(claimed)
        return claimed.newest if is_running else claimed.end_when_done(claimed.newest)

    def _find_sessions(self, claimed: ClaimedJobRun) -> None:
        """Finds sessions of a job run that is pinned by time, and lets them wait to be started."""
        goes_on = not self._is_draining and claimed.newest.cancel is None
        if goes_on and claimed.newest.is_finding and not claimed.newest.is_for_shards:
            self._launchers.finding.find(claimed)
        found = claimed.take_found()
        self._listeners.tables.add_sessions(claimed.work.text, (session.pin for session in found))
        for session in found:
            if session.end is None:
                self._pool.add(claimed.waiting(session))

    def _break(self, claimed: ClaimedJobRun, error: Exception) -> None:
        """Lets it end as failed once none of its sessions runs. If that fails too, its claim is given up."""
        LOG.error("job_run_broke", exc_info=error)
        if claimed.broken is not None:
            self._open.quarantine(claimed.work, claimed.claim.log, error)
            return self._claimed.lose(claimed, str(error))
        claimed.broken = (kind_of(error), reason_of(error))
        self._pool.forget(claimed.work)
        return None

    def _cancel(self, claimed: ClaimedJobRun) -> None:
        """Running sessions stop at their next poll, those in flight when they are watched again; others end here."""
        claimed.cancelled = True
        sessions = claimed.newest.open_sessions()
        in_flight = [each.pin.session_id for each in sessions if each.in_flight is not None]
        self._pool.forget(claimed.work, but=in_flight)
        idle = [
            session.pin.session_id
            for session in sessions
            if session.in_flight is None and not self._pool.runs(claimed.work, session.pin.session_id)
        ]
        claimed.end_sessions(idle, Cancelled())

    # -- which sessions start

    def _withhold_paused(self) -> None:
        """Called before sessions are started. Launched sessions are watched even if they are paused."""
        waiting = [each for each in self._pool.waiting if each.work in self._claimed and not self._is_launched(each)]
        named = {each.work for each in waiting}
        named |= {work for work, claimed in self._claimed.items() if claimed.newest.shards is not None}
        try:
            pauses = {work: self._pauses.of(self._claimed[work].accepted.spec) for work in named}
            self._pool.withhold(each.key for each in waiting if pauses[each.work] is not None)
            for work, pause in pauses.items():
                claimed = self._claimed[work]
                claimed.wants_slot = claimed.wants_slot and pause is None
                is_new = (pause is None) != (claimed.newest.paused is None)
                if work.shard is not None or not is_new:
                    continue  # of a shard, the job run's own log says it
                if note_pause(claimed.claim.log, pause, self._clock.now_ms()):
                    LOG.info("job_run_paused" if pause is not None else "job_run_resumed", job_run_id=work.job_run_id)
        except LithifyError as error:
            self.last_error = error
            LOG.warning("pauses_not_read", reason=str(error))
            self._pool.withhold(each.key for each in waiting)  # nothing is started until the pauses can be read

    def _is_launched(self, waiting: WaitingSession) -> bool:
        return self._claimed[waiting.work].in_flight(waiting) is not None

    def _start_sessions(self) -> None:
        if not self._claiming.has_listed:
            return
        try:
            self._starts.start(self._open.markers, self._runs.run)
        except LithifyError as error:
            self.last_error = error
            LOG.warning("leases_not_taken", reason=str(error))

    # -- what others could start

    def _leave_to_others(self) -> None:
        """Releases job runs of which nothing runs, and that only this dispatcher's own limits stop: those without a
        free thread after a sweep, in which a session here may end."""
        for claimed in self._claimed.values():
            seconds = self._seconds_without_room(claimed)
            if seconds is not None:
                with bound(job_run_id=str(claimed.work)):
                    if self._claimed.release(claimed, Departure.LEFT_TO_OTHERS):
                        LOG.info("job_run_left_to_others", seconds=seconds)
                        self._open.wait(claimed.work, seconds)

    def _seconds_without_room(self, claimed: ClaimedJobRun) -> float | None:
        """For how long this dispatcher does not try a job run again, unless a session ends here; None: it keeps it."""
        sessions = claimed.newest.open_sessions()
        is_ending = claimed.newest.cancel is not None or claimed.cancelled or claimed.broken is not None
        if not sessions or is_ending or claimed.lost:
            return None
        since_seconds, claimed.no_thread_since_seconds = claimed.no_thread_since_seconds, None
        if self._pool.runs(claimed.work) or any(each.in_flight is not None for each in sessions):
            return None
        now_seconds, settings = self._clock.monotonic_seconds(), self._settings
        if not self._pool.has_slot_for(claimed.work) and self._pool.has_due(claimed.work, now_seconds):
            since_seconds = now_seconds if since_seconds is None else since_seconds
            claimed.no_thread_since_seconds = since_seconds
            return settings.turn_look_seconds if now_seconds - since_seconds >= settings.sweep_seconds else None
        clusters = [each.plan.cluster if each.plan is not None else None for each in sessions]
        if all(self.leases.lacks_own_share(claimed.mark, cluster) for cluster in clusters):
            self._claiming.nothing_further(settings.turn_look_seconds)
            return MONEY_SECONDS
        return None
