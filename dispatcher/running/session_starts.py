"""Starts sessions of held job runs, in their order, while there are free places.

    waits --candidate of the pool--> turn taken --> runs in a thread --> turn ended
      ^                                |
      +-- held back for a while -------+ another job run is ahead on its stream, or a limit is reached

A session that is held back is tried again when a session ends here, or after `look_seconds`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping

import structlog

from compactor.log_context import bound
from compactor.model.clock import Clock
from dispatcher.records.job_run_log import JobRunState
from dispatcher.records.keys import MarkedJobRun
from dispatcher.records.ranking import work_of
from dispatcher.records.work_id import WorkId
from dispatcher.running.claimed_job_run import ClaimedJobRun
from dispatcher.running.open_runs import OpenJobRun
from dispatcher.scheduling.budgets import seconds_of
from dispatcher.scheduling.lease_log import Lack, Turn
from dispatcher.scheduling.leases import TurnAnswer, TurnRequest, Turns
from dispatcher.scheduling.limits import LimitScope
from dispatcher.scheduling.session_pool import Moment, SessionPool, Unit, WaitingSession

_log = structlog.get_logger(__name__)

Claimed = Mapping[WorkId, ClaimedJobRun]
Run = Callable[[ClaimedJobRun, Unit, Turn], None]

LOOK_SECONDS_MIN = 0.001
"""What is held back is not tried again in the same tick."""


class SessionStarts:
    """For the one thread that ticks."""

    def __init__(self, pool: SessionPool, turns: Turns, claimed: Claimed, look_seconds: float, clock: Clock) -> None:
        self._pool = pool
        self._turns = turns
        self._claimed = claimed
        self.look_seconds = max(look_seconds, LOOK_SECONDS_MIN)
        self._clock = clock

    def moment(self) -> Moment:
        running_of = Counter(turn.table for turn in self._turns.newest.turns.values())
        return Moment(self._clock.monotonic_seconds(), self._clock.now_ms(), running_of)

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
        self._turns.forget_all_but(open_work)

    def retry_blocked(self) -> None:
        """A session has ended: sessions that were held back are tried again."""
        self._pool.let_go_on()
        self._want_nothing()

    def catch_up(self) -> None:
        """Writes what could not be written before: ends of turns, and that no job run here waits for a slot any more
        that it was kept free for. Raises the store's errors."""
        self._turns.catch_up()
        self._turns.leave_all_but([work for work, claimed in self._claimed.items() if claimed.wants_slot])

    def _want_nothing(self) -> None:
        for claimed in self._claimed.values():
            claimed.wants_slot = False

    def has_no_turn(self, mark: MarkedJobRun, markers: Iterable[MarkedJobRun]) -> bool:
        """Whether no dispatcher could start a session of this unclaimed job run now. Raises the store's errors.

        One that has a turn was claimed before, and is claimed again: its sessions may run, and who is ahead of it waits
        for their end.
        """
        if mark.table is None or not mark.streams:
            return False
        self._turns.refresh()
        if self._turns.has_turn(work_of(mark)):
            return False
        blocked = self._turns.blocked(mark, mark.streams, markers, self._state_of)
        return blocked.keys() >= set(mark.streams) or self._turns.lacks_place(mark)

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
        if self._pool.is_full:  # another dispatcher with a free thread goes first
            self._want_nothing()
        self.catch_up()

    def _start(self, unit: Unit, job_run: ClaimedJobRun, markers: Iterable[MarkedJobRun], run: Run) -> None:
        sessions = job_run.newest.sessions
        request = TurnRequest(job_run.mark, {each.session_id: each.stream for each in unit})
        if any(sessions[each.session_id].in_flight is not None for each in unit):
            return self._begin(unit, job_run, self._turns.adopt(request), run)
        if len(unit) == 1:
            plan = sessions[unit[0].session_id].plan
            request = TurnRequest(job_run.mark, request.streams, plan.cluster if plan is not None else None)
        self._turns.end_all_of(job_run.work, request.streams)  # none of these sessions runs
        answer = self._turns.take(request, markers, self._state_of)
        self._hold_back(unit, job_run, answer)
        if answer.turn is not None:
            granted = tuple(each for each in unit if each.session_id in answer.turn.session_ids)
            self._begin(granted, job_run, answer.turn, run)
        return None

    def _state_of(self, work: WorkId) -> JobRunState | None:
        claimed = self._claimed.get(work)
        return claimed.newest if claimed is not None else None

    def _begin(self, unit: Unit, job_run: ClaimedJobRun, turn: Turn, run: Run) -> None:
        job_run.starts(turn)
        job_run.wants_slot = False
        self._pool.start(unit, lambda begun: run(job_run, begun, turn))

    def _hold_back(self, unit: Unit, job_run: ClaimedJobRun, answer: TurnAnswer) -> None:
        until_seconds = self._clock.monotonic_seconds() + self.look_seconds
        blocked = [each for each in unit if each.session_id in answer.blocked]
        if blocked:
            _log.info("sessions_wait_for_their_turn", sessions=len(blocked), reason=next(iter(answer.blocked.values())))
            self._pool.hold_back((each.key for each in blocked), until_seconds)
        if answer.lack is not None:
            self._wait_for(answer.lack, unit, job_run, until_seconds)

    def _wait_for(self, lack: Lack, unit: Unit, job_run: ClaimedJobRun, until_seconds: float) -> None:
        """Holds the unit back, and all waiting sessions that the same limit stops."""
        _log.info("sessions_wait_for_a_place", sessions=len(unit), reason=lack.reason)
        if lack.is_money:
            until_seconds = self._clock.monotonic_seconds() + seconds_of(lack, job_run.claim.log)
            return self._pool.hold_back((each.key for each in unit), until_seconds)
        job_run.wants_slot = True
        alike = {each.key for each in (*unit, *self._pool.waiting) if _shares(each, unit[0], lack.scope)}
        return self._pool.hold_back(alike, until_seconds)


def _shares(each: WaitingSession, refused: WaitingSession, scope: LimitScope) -> bool:
    match scope:
        case LimitScope.RUN:
            return each.work == refused.work
        case LimitScope.TABLE:
            return each.table == refused.table
        case _:
            return each.rank >= refused.rank
