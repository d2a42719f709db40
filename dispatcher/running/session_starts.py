"""Starts sessions of claimed job runs, in their order, while there are free slots.

    waits --candidate of the pool--> lease taken --> runs in a thread --> lease ended
      ^                                |
      +-- held back for a while -------+ another job run is ahead on its stream, or a limit is reached

A session that is held back is tried again when a lease or a session ends here, or after `poll_seconds`.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping

from compactor.log_context import LOG, bound
from compactor.model.clock import Clock
from dispatcher.records.job_run_log import JobRunState
from dispatcher.records.keys import MarkedJobRun
from dispatcher.records.ranking import work_of
from dispatcher.records.work_id import WorkId
from dispatcher.running.claimed_job_run import ClaimedJobRun
from dispatcher.running.open_runs import OpenJobRun
from dispatcher.scheduling.lease_log import Lease, QuotaExceeded
from dispatcher.scheduling.leases import LeaseAnswer, LeaseRequest, Leases, seconds_of, usd_of_launches
from dispatcher.scheduling.limits import LimitScope
from dispatcher.scheduling.session_pool import SchedulerSnapshot, SessionPool, Unit, WaitingSession

Claimed = Mapping[WorkId, ClaimedJobRun]
Run = Callable[[ClaimedJobRun, Unit, Lease], None]

POLL_SECONDS_MIN = 0.001
"""Least pause before a session that is held back is tried again, so that it is not in the same tick."""


class SessionStarts:
    """For the one thread that ticks."""

    def __init__(self, pool: SessionPool, leases: Leases, claimed: Claimed, poll_seconds: float, clock: Clock) -> None:
        self._pool = pool
        self._leases = leases
        self._claimed = claimed
        self.poll_seconds = max(poll_seconds, POLL_SECONDS_MIN)
        self._clock = clock
        self._begun: set[str] = set()

    def moment(self) -> SchedulerSnapshot:
        running_of = Counter(lease.table for lease in self._leases.newest.turns.values())
        return SchedulerSnapshot(self._clock.monotonic_seconds(), self._clock.now_ms(), running_of)

    def may_start(self) -> bool:
        """Whether a session could be started now, by the last known state."""
        return bool(self._pool.candidates(self.moment()))

    def have_room_for(self, found: OpenJobRun) -> bool:
        """Whether a session of this unclaimed job run would be started now, if its stream is free."""
        table = found.mark.table or ""
        session = WaitingSession(found.work, "", table, "", found.priority, found.accepted_at_ms)
        return self._pool.has_room_for(session, self.moment())

    def forget_all_but(self, open_work: Collection[WorkId]) -> None:
        """Job runs that are no longer open are in nobody's way."""
        self._leases.forget_all_but(open_work)

    def retry_blocked(self) -> None:
        """A lease or a session has ended: sessions that were held back are tried again."""
        self._pool.retry_blocked()
        self._want_nothing()

    def have_leases_ended(self) -> bool:
        """Whether leases of sessions that were started here have ended since the last call. A lease ends before its
        thread does, and its slot is free from then on."""
        ended = self._begun - self._leases.newest.turns.keys()
        self._begun -= ended
        return bool(ended)

    def catch_up(self) -> None:
        """Writes what could not be written before: ends of leases, and that no job run here waits for a slot any more
        that it was kept free for. Raises the store's errors."""
        self._leases.catch_up()
        self._leases.leave_all_but([work for work, claimed in self._claimed.items() if claimed.wants_slot])

    def _want_nothing(self) -> None:
        for claimed in self._claimed.values():
            claimed.wants_slot = False

    def is_blocked(self, mark: MarkedJobRun, markers: Iterable[MarkedJobRun]) -> bool:
        """Whether no dispatcher could start a session of this unclaimed job run now. Raises the store's errors.

        One with a lease was claimed before: its sessions may run, and who is ahead of it waits for their end.
        """
        if mark.table is None or not mark.streams:
            return False
        self._leases.refresh()
        if self._leases.has_lease(work_of(mark)):
            return False
        blocked = self._leases.blocked(mark, mark.streams, markers, self._states())
        return blocked.keys() >= set(mark.streams) or self._leases.lacks_slot(mark)

    def keeps_slot(self, work: WorkId) -> bool:
        """Whether a lease of this job run has not ended, or a slot is kept free for it. Raises the store's errors."""
        self._leases.refresh()
        return self._leases.has_lease(work) or work.text in self._leases.newest.wants

    def start(self, markers: Iterable[MarkedJobRun], run: Run) -> None:
        """Starts the next sessions. `markers`: all markers, just listed. Raises the store's errors."""
        known = list(markers)
        while units := self._pool.candidates(self.moment()):
            for unit in units:
                job_run = self._claimed.get(unit[0].work)
                if job_run is None:  # its claim was lost, and its session came back since
                    self._pool.forget(unit[0].work)
                    continue
                with bound(job_run_id=str(unit[0].work)):
                    self._start(unit, job_run, known, run)
        for work, claimed in self._claimed.items():  # another dispatcher with a free thread goes first
            claimed.wants_slot = claimed.wants_slot and self._pool.has_slot_for(work)
        self.catch_up()

    def _start(self, unit: Unit, job_run: ClaimedJobRun, markers: Iterable[MarkedJobRun], run: Run) -> None:
        sessions = job_run.newest.sessions
        watched = tuple(each for each in unit if job_run.in_flight(each) is not None)
        request = LeaseRequest(job_run.mark, {each.session_id: each.stream for each in watched or unit})
        if watched:  # the others are no reason to pass anybody: they are in the next unit
            return self._begin(watched, job_run, self._leases.adopt(request), run)
        if len(unit) == 1:
            plan = sessions[unit[0].session_id].plan
            request = LeaseRequest(job_run.mark, request.streams, plan.cluster if plan is not None else None)
        for lease in self._leases.of(job_run.work):
            if not request.streams.keys().isdisjoint(lease.session_ids) and not self._is_needed(lease, job_run):
                self._leases.end(lease, usd_of_launches(lease, job_run.newest))
        answer = self._leases.take(request, markers, self._states())
        self._hold_back(unit, job_run, answer)
        if answer.lease is not None:
            granted = tuple(each for each in unit if each.session_id in answer.lease.session_ids)
            self._begin(granted, job_run, answer.lease, run)
        return None

    def _is_needed(self, lease: Lease, job_run: ClaimedJobRun) -> bool:
        """Whether sessions run under it. One that is retried out of a shared launch leaves the lease's others
        running."""
        work = job_run.work
        waiting = [each for each in self._pool.waiting if each.work == work and each.session_id in lease.session_ids]
        is_watched = any(self._pool.runs(work, session_id) for session_id in lease.session_ids)
        return is_watched or any(job_run.in_flight(each) is not None for each in waiting)

    def _states(self) -> dict[WorkId, JobRunState]:
        return {work: claimed.newest for work, claimed in self._claimed.items()}

    def _begin(self, unit: Unit, job_run: ClaimedJobRun, lease: Lease, run: Run) -> None:
        job_run.starts(lease)
        self._begun.add(lease.turn_id)
        job_run.wants_slot = False
        self._pool.start(unit, lambda begun: run(job_run, begun, lease))

    def _hold_back(self, unit: Unit, job_run: ClaimedJobRun, answer: LeaseAnswer) -> None:
        until_seconds = self._clock.monotonic_seconds() + self.poll_seconds
        blocked = [each for each in unit if each.session_id in answer.blocked]
        if blocked:
            LOG.info("sessions_blocked", sessions=len(blocked), reason=next(iter(answer.blocked.values())))
            self._pool.hold_back((each.key for each in blocked), until_seconds)
        if answer.exceeded is not None:
            self._wait_for(answer.exceeded, unit, job_run, until_seconds)

    def _wait_for(self, exceeded: QuotaExceeded, unit: Unit, job_run: ClaimedJobRun, until_seconds: float) -> None:
        """Holds the unit back, and all waiting sessions that the same limit stops."""
        LOG.info("sessions_wait_for_a_slot", sessions=len(unit), reason=exceeded.reason)
        if exceeded.is_money:
            job_run.wants_slot = False  # it may wait for hours, and could not use a slot
            until_seconds = self._clock.monotonic_seconds() + seconds_of(exceeded, job_run.claim.log)
            return self._pool.hold_back((each.key for each in unit), until_seconds)
        job_run.wants_slot = True
        alike = {each.key for each in (*unit, *self._pool.waiting) if _shares(each, unit[0], exceeded.scope)}
        return self._pool.hold_back(alike, until_seconds)


def _shares(each: WaitingSession, refused: WaitingSession, scope: LimitScope) -> bool:
    match scope:
        case LimitScope.RUN:
            return each.work == refused.work
        case LimitScope.TABLE:
            return each.table == refused.table
        case _:
            return each.rank >= refused.rank
