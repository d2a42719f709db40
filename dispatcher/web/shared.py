"""One reading for all viewers, until it is too old; all readings of a store stay within one rate of requests.

A store that does not answer leaves the last reading in place, with the time since when it is the last one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Generic, TypeVar

from compactor.log.durable_log import DurableLog, Entry
from compactor.model.clock import Clock
from compactor.model.errors import Denied, Unavailable
from compactor.storage.object_store import ObjectStore
from dispatcher.web.counted_store import CountedStore

SECONDS_MIN = 2.0
"""A reading is as new as this, if it takes few requests."""

READINGS_KEPT = 256

ENTRIES_MAX = 400
"""Of a log, the latest: a page of them can be read."""

ActionT = TypeVar("ActionT")
ValueT = TypeVar("ValueT")


class Rank(IntEnum):
    """Each kind of reading has requests of its own; what it leaves is for the others, the first of them before."""

    OPEN_NOW = 0
    ONE_THING = 1
    OVERVIEW = 2


RATE_SHARES = {Rank.OPEN_NOW: 0.5, Rank.ONE_THING: 0.3, Rank.OVERVIEW: 0.2}
"""Of the rate of requests."""


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


@dataclass
class _Kept:
    """A reading that is shared. `until_seconds`: by the clock of this process. `has_changed`: an event says so."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    reading: Reading[Any] | None = None
    until_seconds: float = 0.0
    has_changed: bool = False


class SharedReadings:
    """Readings of one store. Safe to share between threads.

    Worked, at 1.2 requests a second: a reading of 12 requests is followed by 10 s in which none of its rank is read
    again, whoever asks; by 20 s where the others need theirs. What was never read is read at once, and the overviews
    pay for it.
    """

    def __init__(self, store: ObjectStore, requests_a_second: float, clock: Clock) -> None:
        """`requests_a_second`: on average, however many viewers there are."""
        self.store = CountedStore(store)
        self._requests_a_second = requests_a_second
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: dict[str, _Kept] = {}
        self._owed = dict.fromkeys(Rank, 0.0)
        self._settled_at_seconds = clock.monotonic_seconds()

    def of(self, name: str, read: Callable[[], ValueT], rank: Rank = Rank.OVERVIEW) -> Reading[ValueT]:
        """Raises what `read` raises, if it was never read, or if what is read is gone."""
        kept = self._place(name)
        with kept.lock:
            before = kept.reading
            paid_by = self._payer(kept, rank)
            if paid_by is None and before is not None:
                return before
            kept.has_changed = False  # before it is read: what changes from here on is read next time
            requests = self.store.requests
            try:
                reading = Reading(read(), self._clock.now_ms())
            except (Unavailable, Denied) as error:
                if before is None:
                    raise
                since_ms = before.since_ms if before.since_ms is not None else self._clock.now_ms()
                reading = Reading(before.value, before.at_ms, str(error), since_ms)
            finally:
                self._owe(self.store.requests - requests, Rank.OVERVIEW if paid_by is None else paid_by)
            kept.reading = reading
            kept.until_seconds = self._clock.monotonic_seconds() + SECONDS_MIN
            return reading

    def look_again(self, name: str) -> None:
        """The reading goes before the others when it is asked for next, as what is open now does."""
        with self._lock:
            kept = self._kept.get(name)
        if kept is not None:
            kept.has_changed = True

    def _payer(self, kept: _Kept, rank: Rank) -> Rank | None:
        """None: it is new enough, or requests are owed, or it was never read."""
        if kept.reading is None or not (kept.has_changed or self._clock.monotonic_seconds() >= kept.until_seconds):
            return None
        with self._lock:
            self._settle()
            ranks = (rank, Rank.OPEN_NOW) if kept.has_changed else (rank,)
            return next((each for each in ranks if self._owed[each] <= 0.0), None)

    def _owe(self, requests: int, rank: Rank) -> None:
        with self._lock:
            self._settle()
            self._owed[rank] += requests

    def _settle(self) -> None:
        """The time since the last call pays for requests, each rank's share first."""
        now_seconds = self._clock.monotonic_seconds()
        paid = (now_seconds - self._settled_at_seconds) * self._requests_a_second
        self._settled_at_seconds = now_seconds
        left = 0.0
        for rank, share in RATE_SHARES.items():
            left += max(paid * share - self._owed[rank], 0.0)
            self._owed[rank] = max(self._owed[rank] - paid * share, 0.0)
        for rank in Rank:
            used = min(left, self._owed[rank])
            self._owed[rank] -= used
            left -= used

    def _place(self, name: str) -> _Kept:
        with self._lock:
            kept = self._kept.pop(name, None) or _Kept()
            self._kept[name] = kept
            while len(self._kept) > READINGS_KEPT:
                self._kept.pop(next(iter(self._kept)))
            return kept


def latest_entries(log: DurableLog[Any, ActionT]) -> tuple[Entry[ActionT], ...]:
    """The oldest of them first. Raises the log's errors."""
    last = log.load().entry_number
    return tuple(log.entries_between(max(last - ENTRIES_MAX + 1, 1), last))
