"""Claims job runs: those of dead dispatchers at once, and waiting ones, in their order, while they could start here.

    offered, or found by its marker --claimed--> one of the claimed job runs
                |       ^
                |       +-- the pause has ended
                +--> paused: left unclaimed, since nothing of it was launched, and it keeps no slot

A waiting job run is claimed when one of its sessions could start here; those of a dead dispatcher are claimed in any
case, because their sessions must be watched.
"""

import queue

from compactor.log_context import LOG, bound
from compactor.model.clock import Clock
from compactor.model.errors import Conflict, Fenced, LithifyError, Outdated, Unavailable
from dispatcher.records.claims import JobRunLog, NotClaimed, claim_job_run
from dispatcher.records.job_run_log import JobRunState
from dispatcher.records.keys import MarkedJobRun
from dispatcher.records.pauses import Pause, Pauses, note_pause
from dispatcher.records.ranking import work_of
from dispatcher.records.work_id import WorkId
from dispatcher.running.claimed_job_runs import ClaimedJobRuns
from dispatcher.running.journal import Listeners
from dispatcher.running.open_runs import OpenJobRun, OpenJobRuns
from dispatcher.running.session_starts import SessionStarts

CANCEL_POLL_SECONDS = 300.0
"""Interval between two reads of the log of a job run that waits unclaimed: it may have been cancelled meanwhile."""

PAUSED_SECONDS = 300.0
"""Interval after which a paused job run is read again: it may have been cancelled meanwhile."""

ACCEPTANCE_ENTRY_NUMBER = 1

TAKEN_OVER_MAX = 16
"""Most job runs that a tick takes over: it stays short even if a dead dispatcher held many, and the next continues."""

RESUMED_MAX = 16
"""Job runs whose pause has ended that a tick resumes, at most."""


class Claiming:
    """Only `offer` is thread-safe; the rest is for the ticking thread."""

    def __init__(
        self,
        owner: str,
        open_runs: OpenJobRuns,
        claimed: ClaimedJobRuns,
        starts: SessionStarts,
        pauses: Pauses,
        *,
        listeners: Listeners,
        clock: Clock,
    ) -> None:
        self._owner = owner
        self._open = open_runs
        self._claimed = claimed
        self._starts = starts
        self._pauses = pauses
        self._publisher = listeners.publisher
        self._answers = listeners.answers
        self._clock = clock
        self._offered: queue.SimpleQueue[tuple[WorkId, JobRunLog | None]] = queue.SimpleQueue()
        self._left_paused: dict[WorkId, tuple[OpenJobRun, Pause]] = {}
        self._no_share_until_seconds = 0.0
        self.has_listed = False
        """Whether the markers were listed in this tick, as they must be before a session starts."""
        self.last_error: Exception | None = None
        """The error of the state's store in the last `work`, if any."""

    def offer(self, work: WorkId, log: JobRunLog | None = None) -> None:
        """A job run was accepted. `log`: its log with the cached fold, if available."""
        self._offered.put((work, log))

    @property
    def offered_count(self) -> int:
        return self._offered.qsize()

    @property
    def paused(self) -> frozenset[WorkId]:
        """Job runs that are left unclaimed, because they are paused."""
        return frozenset(self._left_paused)

    def nothing_further(self, seconds: float) -> None:
        """This dispatcher's own limits are reached: it claims no waiting job run, unless a session ends."""
        self._no_share_until_seconds = self._clock.monotonic_seconds() + seconds

    def retry_blocked(self) -> None:
        """A session has ended: job runs that could not start before may start now."""
        self._no_share_until_seconds = 0.0
        self._open.retry_blocked()

    def work(self, capacity: int) -> None:
        """Claims offered and unclaimed job runs in order, up to `capacity`; and all of dead dispatchers."""
        self.last_error = None
        self._wake_resumed()
        while not self._offered.empty():
            work, log = self._offered.get_nowait()
            self._answers.reread_tokens(work.job_run_id)
            if not self._publisher.notify_repeated(work.text):  # a followed job run is claimed already, or has ended
                self._open.offer(work, log)
        self._open.poll(self._marks, self._publisher.followed)
        self.last_error = self._open.last_error
        for found in self._open.left_behind()[:TAKEN_OVER_MAX]:
            with bound(job_run_id=str(found.work)):
                self._take_on(found)
        try:
            self._list_before_a_start(capacity)
            while (next_found := self._next(capacity)) is not None:
                with bound(job_run_id=str(next_found.work)):
                    self._take_on_or_wait(next_found)
        except LithifyError as error:
            self.last_error = error
            LOG.warning("open_job_runs_not_listed", reason=str(error))
        for work in [work for work in self._left_paused if not self._open.is_left(work)]:
            del self._left_paused[work]  # it was cancelled in its pause

    @property
    def _marks(self) -> dict[WorkId, MarkedJobRun]:
        return {work: claimed.mark for work, claimed in self._claimed.items()}

    def _list_before_a_start(self, capacity: int) -> None:
        """Lists the markers, so that no session passes an earlier job run that another dispatcher has just accepted."""
        self.has_listed = False  # also if the listing fails: then nothing is started in this tick
        if self._starts.may_start() or self._next(capacity) is not None:
            self._open.list_again(self._marks, self._publisher.followed)
            self.has_listed = True
            self._starts.forget_all_but([work_of(mark) for mark in self._open.markers])

    def _next(self, capacity: int) -> OpenJobRun | None:
        """The next unclaimed job run that could start a session here now. Others stay unclaimed."""
        found = self._open.next(self._starts.moment())
        if found is None or self._claimed.active_count >= capacity:
            return None
        if self._clock.monotonic_seconds() < self._no_share_until_seconds:
            return None
        folds = (each.newest for each in self._claimed.values())
        if found.work.shard is not None and any(each.is_finding and not each.sessions for each in folds):
            return None  # what it finds may fill this dispatcher
        return found if self._starts.have_room_for(found) else None

    def _take_on_or_wait(self, found: OpenJobRun) -> None:
        """Claims the job run, or lets it wait for a lease, for which a cancelled one need not wait."""
        if not self._starts.is_blocked(found.mark, self._open.markers):
            return self._take_on(found)
        if self._open.is_cancelled(found, CANCEL_POLL_SECONDS):
            return self._take_on(found)
        return self._open.wait(found.work, self._starts.poll_seconds)

    def _take_on(self, found: OpenJobRun) -> None:
        try:
            self._claim(found)
        except Outdated as error:
            self._open.quarantine(found.work, found.log, error)
        except (Unavailable, Conflict, Fenced) as error:
            LOG.warning("job_run_not_taken_on", reason=str(error))
            self._open.leave_alone(found.work, 0)  # its marker stays: the next sweep tries again
        except Exception as error:  # noqa: BLE001  (any error affects this job run only)
            self._open.quarantine(found.work, found.log, error)

    def _claim(self, found: OpenJobRun) -> None:
        log = found.log
        # Of what was just accepted here only the acceptance is known: if there is more, the claim's entry is taken.
        at = log.newest if log.newest.entry_number == ACCEPTANCE_ENTRY_NUMBER else log.load()
        if at.state.ended is not None or at.state.rejected is not None:
            return self._claimed.found_ended(found, at.state)
        if self._leave_paused(found, at.state):
            return None
        claim = claim_job_run(log, self._owner, self._open.is_gone, at)
        if isinstance(claim, NotClaimed):
            LOG.info("job_run_not_claimed", reason=claim.reason)
            return self._open.held_by_another(found.work, log.newest.state)
        return self._claimed.adopt(found, claim, log.newest.state)

    # -- what is paused

    def _leave_paused(self, found: OpenJobRun, state: JobRunState) -> bool:
        """Whether a job run is left unclaimed: it is paused, not cancelled, nothing of it was launched, and no lease or
        slot is kept for it, which a claim ends."""
        launched = any(session.in_flight is not None for session in state.open_sessions())
        if state.accepted is None or state.cancel is not None or launched:
            return False
        pause = self._pauses.of(state.accepted.spec)
        if pause is None or self._starts.keeps_slot(found.work):
            return False
        if found.work.shard is None and note_pause(found.log, pause, self._clock.now_ms()):
            LOG.info("job_run_paused", scope=pause.scope, reason=pause.reason)
            self._publisher.follow(found.work.text, found.log, found.log.newest.state)
            self._publisher.leave(found.work.text)
        self._left_paused[found.work] = (found, pause)
        self._open.leave_alone(found.work, PAUSED_SECONDS)
        return True

    def _wake_resumed(self) -> None:
        """Job runs whose pause has ended may be claimed once their logs say so: from here on they wait for no pause."""
        if not self._left_paused:
            return
        try:
            pauses = self._pauses.now()
        except LithifyError as error:
            LOG.warning("pauses_not_read", reason=str(error))
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
                LOG.info("job_run_resumed")
        except LithifyError as error:
            LOG.warning("resume_not_noted", reason=str(error))  # whoever claims it does it
