"""What the page shows, read for all viewers together: a reading is shared until it is too old, and all readings stay
within one rate of requests. Reads only.

A store that does not answer leaves the last reading in place, with the time since when it is the last one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from compactor.lake import DeltaCatalog
from compactor.model.clock import Clock
from compactor.model.errors import Denied, Invalid, LithifyError, Unavailable
from compactor.storage.object_store import ObjectStore
from dispatcher.operations.status import OPEN, UNREADABLE, JobRunView, view_all, view_job_run
from dispatcher.operations.table_lag import TableLag, most_behind_first, table_lag
from dispatcher.records.job_run_store import JobRunStore
from dispatcher.records.liveness import last_signals
from dispatcher.records.pauses import Pause
from dispatcher.records.sessions import SessionState
from dispatcher.web.counted_store import CountedStore

REQUESTS_A_SECOND = 2.0
"""To the store, on average, however many viewers there are."""

SECONDS_MIN = 2.0
"""A reading is as new as this, if it takes few requests."""

ENDED_SHOWN = 50
ENDED_OF_HISTORY = 500
READINGS_KEPT = 256

ValueT = TypeVar("ValueT")


@dataclass(frozen=True)
class Reading(Generic[ValueT]):
    """
    at_ms     when it was read
    failure   why it could not be read again; None: it could
    since_ms  of the first time that it could not
    """

    value: ValueT
    at_ms: int
    failure: str | None = None
    since_ms: int | None = None


@dataclass(frozen=True)
class Now:
    """
    signals  when each dispatcher last signalled, in ms
    """

    job_runs: tuple[JobRunView, ...]
    pauses: tuple[Pause, ...]
    signals: dict[str, int]


@dataclass(frozen=True)
class OneJobRun:
    view: JobRunView
    sessions: dict[str, SessionState]


@dataclass(frozen=True)
class UnreadTable:
    """A table that cannot be read; the others are shown."""

    table_id: str
    reason: str


@dataclass(frozen=True)
class Tables:
    lags: tuple[TableLag, ...]
    unread: tuple[UnreadTable, ...]


@dataclass
class _Kept:
    """A reading that is shared. `until_seconds`: by the clock of this process."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    reading: Reading[Any] | None = None
    until_seconds: float = 0.0


class Readings:
    """Safe to share between threads."""

    def __init__(self, state: ObjectStore, lake: DeltaCatalog, clock: Clock) -> None:
        self._state = CountedStore(state)
        self._tables_of = CountedStore(lake.store)
        self._records = JobRunStore(self._state, clock)
        self._lake = DeltaCatalog(self._tables_of, clock)
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: dict[str, _Kept] = {}
        self._paid_until_seconds = 0.0

    @property
    def lake(self) -> DeltaCatalog:
        return self._lake

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def now(self) -> Reading[Now]:
        return self._shared("now", self._state, self._now)

    def history(self) -> Reading[tuple[JobRunView, ...]]:
        """Job runs that have ended, the latest first."""

        def read() -> tuple[JobRunView, ...]:
            found = view_all(self._records, self._clock, ENDED_OF_HISTORY)
            return tuple(view for view in found if view.status not in (*OPEN, UNREADABLE))

        return self._shared("history", self._state, read)

    def job_run(self, job_run_id: str) -> Reading[OneJobRun]:
        """Raises `Invalid` if there is no such job run."""

        def read() -> OneJobRun:
            view = view_job_run(self._records, job_run_id, self._clock)
            return OneJobRun(view, dict(self._records.state(job_run_id).sessions))

        return self._shared(f"job run {job_run_id}", self._state, read)

    def tables(self) -> Reading[Tables]:
        return self._shared("tables", self._tables_of, self._tables)

    def table(self, table_id: str) -> Reading[TableLag]:
        """Raises `Invalid` if there is no such table."""

        def read() -> TableLag:
            return table_lag(self._lake.store, self._lake.table(table_id), self._clock)

        return self._shared(f"table {table_id}", self._tables_of, read)

    def _now(self) -> Now:
        views = view_all(self._records, self._clock, ENDED_SHOWN)
        return Now(views, tuple(self._records.pauses.all()), last_signals(self._state))

    def _tables(self) -> Tables:
        lags: list[TableLag] = []
        unread: list[UnreadTable] = []
        for table_id in self._lake.tables():
            try:
                lags.append(table_lag(self._lake.store, self._lake.table(table_id), self._clock))
            except Unavailable:
                raise
            except LithifyError as error:
                unread.append(UnreadTable(table_id, str(error)))
        return Tables(tuple(most_behind_first(lags)), tuple(unread))

    def _shared(self, name: str, store: CountedStore, read: Callable[[], ValueT]) -> Reading[ValueT]:
        kept = self._place(name)
        with kept.lock:
            now_seconds = self._clock.monotonic_seconds()
            before = kept.reading
            if before is not None and now_seconds < max(kept.until_seconds, self._paid_until_seconds):
                return before
            requests = store.requests
            try:
                reading = Reading(read(), self._clock.now_ms())
            except (Unavailable, Denied) as error:
                if before is None:
                    raise
                since_ms = before.since_ms if before.since_ms is not None else self._clock.now_ms()
                reading = Reading(before.value, before.at_ms, str(error), since_ms)
            kept.reading = reading
            kept.until_seconds = now_seconds + SECONDS_MIN
            self._pay(store.requests - requests)
            return reading

    def _pay(self, requests: int) -> None:
        """Nothing that was read before is read again until these requests are within the bound."""
        with self._lock:
            begins = max(self._clock.monotonic_seconds(), self._paid_until_seconds)
            self._paid_until_seconds = begins + requests / REQUESTS_A_SECOND

    def _place(self, name: str) -> _Kept:
        with self._lock:
            kept = self._kept.pop(name, None) or _Kept()
            self._kept[name] = kept
            while len(self._kept) > READINGS_KEPT:
                self._kept.pop(next(iter(self._kept)))
            return kept


def open_job_runs(views: Sequence[JobRunView]) -> Iterator[JobRunView]:
    """Troubles first: what waits, then what is late, then the others."""
    found = [view for view in views if view.status in (*OPEN, UNREADABLE)]
    yield from sorted(found, key=lambda view: (view.waits_for is None, -(view.seconds_late(view.seconds) or 0.0)))


def refused_as_missing(error: Invalid) -> bool:
    """Whether an id names nothing."""
    return str(error).startswith("there is no ")
