"""What an open job run waits for while nothing of it runs: money, its turn on a stream, or a slot. Reads only.

The log of leases and the markers are read once, and only if a job run is asked about that may wait for them.
"""

import threading
from dataclasses import dataclass

from compactor.model.clock import Clock
from compactor.model.errors import Denied, LithifyError, Outdated, Unavailable
from compactor.model.names import counted
from dispatcher.records.job_run_log import JobRunAccepted, JobRunState
from dispatcher.records.job_run_store import JobRunStore, OpenMarker
from dispatcher.records.keys import MarkedJobRun
from dispatcher.records.ranking import ahead_of, mark_of, stream_digest
from dispatcher.records.work_id import WorkId
from dispatcher.scheduling.lease_log import LeaseState, lease_log
from dispatcher.scheduling.leases import blocked_streams

AHEAD_READ_MAX = 5
"""Job runs ahead on a stream whose logs are read for one that waits: mostly the first is in the way."""


@dataclass(frozen=True)
class _Seen:
    leases: LeaseState
    markers: dict[WorkId, OpenMarker]


class Waits:
    """Threads may share one."""

    def __init__(self, records: JobRunStore, clock: Clock) -> None:
        self._records = records
        self._clock = clock
        self._seen: _Seen | None = None
        self._ahead: dict[WorkId, JobRunState | None] = {}
        self._lock = threading.Lock()

    def of(self, state: JobRunState, accepted_at_ms: int) -> str | None:
        """A phrase after "waits for"; None: it does not wait, or for no other job run. Raises `Unavailable` or `Denied`
        if the state's store does not answer; a log that cannot be read is passed over."""
        accepted = state.accepted
        if accepted is None or not state.status.is_open or state.paused is not None or state.cancel is not None:
            return None
        if state.waits_for_money is not None:
            return for_money(state)
        sessions = state.open_sessions()
        if not sessions or any(each.in_flight is not None for each in sessions):
            return None
        try:
            return self._for_others(accepted, state, self._look(), accepted_at_ms)
        except LithifyError as error:
            _pass_unreadable(error)
            return None

    def _for_others(self, accepted: JobRunAccepted, state: JobRunState, seen: _Seen, accepted_at_ms: int) -> str | None:
        work, sessions = accepted.work, state.open_sessions()
        if seen.leases.lease_of(work, [each.pin.session_id for each in sessions]) is not None:
            return None  # it is being planned
        streams = {stream_digest(each.pin.partition) for each in sessions}
        mark = _mark(seen, accepted, accepted_at_ms)
        leases = [each for each in seen.leases.turns.values() if each.work in seen.markers]
        marks = [each.valid for each in seen.markers.values()]
        ahead = ahead_of(mark, streams, marks)[:AHEAD_READ_MAX]
        reasons = blocked_streams(mark, streams, leases, ahead, self._state_of)
        if reasons:
            return f"its turn: {next(iter(reasons.values()))}"
        at_work = f"{counted(len(seen.leases.turns), 'Spark job')} at work"
        if work.text in seen.leases.wants:
            return f"a limit on what runs at a time ({at_work})"
        return f"a place: no dispatcher has had room for it yet ({at_work})" if state.claim is None else None

    def _look(self) -> _Seen:
        with self._lock:
            if self._seen is None:
                leases = lease_log(self._records.store, self._clock).load().state
                markers = {each.work: each for each in self._records.open_markers()}
                self._seen = _Seen(leases, markers)
            return self._seen

    def _state_of(self, work: WorkId) -> JobRunState | None:
        """None: its log cannot be read."""
        with self._lock:
            if work not in self._ahead:
                try:
                    self._ahead[work] = self._records.state(work.text)
                except LithifyError as error:
                    _pass_unreadable(error)
                    self._ahead[work] = None
            return self._ahead[work]


def _pass_unreadable(error: LithifyError) -> None:
    """Raises it again unless it is about one log alone."""
    if isinstance(error, Unavailable | Denied) and not isinstance(error, Outdated):
        raise error


def for_money(state: JobRunState) -> str | None:
    """As `Waits.of`, of what its own log says."""
    return f"money: {state.waits_for_money.reason}" if state.waits_for_money is not None else None


def _mark(seen: _Seen, accepted: JobRunAccepted, accepted_at_ms: int) -> MarkedJobRun:
    """As it is marked, by which dispatchers rank it."""
    marker = seen.markers.get(accepted.work)
    if marker is not None and marker.valid.table is not None:
        return marker.valid
    return mark_of(accepted.work, accepted.spec, accepted.partitions, accepted_at_ms)
