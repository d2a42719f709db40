"""One reading for all viewers: it is shared until it is too old, and all readings of a store stay within one rate of
requests.

A store that does not answer leaves the last reading in place, with the time since when it is the last one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from compactor.log.durable_log import DurableLog, Entry
from compactor.model.clock import Clock
from compactor.model.errors import Denied, Unavailable
from compactor.storage.object_store import ObjectStore
from dispatcher.web.counted_store import CountedStore

SECONDS_MIN = 2.0
"""A reading is as new as this, if it takes few requests."""

READINGS_KEPT = 256

LOGS_KEPT = 32
ENTRIES_MAX = 400
"""Of a log, the latest: a page of them can be read, and a server that runs for long does not grow."""

ActionT = TypeVar("ActionT")
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


@dataclass
class _Kept:
    """A reading that is shared. `until_seconds`: by the clock of this process."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    reading: Reading[Any] | None = None
    until_seconds: float = 0.0


class SharedReadings:
    """Readings of one store. Safe to share between threads.

    Worked, at 1.2 requests a second: a reading of 12 requests is followed by 10 s in which nothing that was read before
    is read again, whoever asks. What was never read is read at once.
    """

    def __init__(self, store: ObjectStore, requests_a_second: float, clock: Clock) -> None:
        """`requests_a_second`: on average, however many viewers there are."""
        self.store = CountedStore(store)
        self._requests_a_second = requests_a_second
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: dict[str, _Kept] = {}
        self._paid_until_seconds = 0.0

    def of(self, name: str, read: Callable[[], ValueT]) -> Reading[ValueT]:
        """Raises what `read` raises, if it was never read, or if what is read is gone."""
        kept = self._place(name)
        with kept.lock:
            now_seconds = self._clock.monotonic_seconds()
            before = kept.reading
            if before is not None and now_seconds < max(kept.until_seconds, self._paid_until_seconds):
                return before
            requests = self.store.requests
            try:
                reading = Reading(read(), self._clock.now_ms())
            except (Unavailable, Denied) as error:
                if before is None:
                    raise
                since_ms = before.since_ms if before.since_ms is not None else self._clock.now_ms()
                reading = Reading(before.value, before.at_ms, str(error), since_ms)
            finally:
                self._pay(self.store.requests - requests)
            kept.reading = reading
            kept.until_seconds = now_seconds + SECONDS_MIN
            return reading

    def _pay(self, requests: int) -> None:
        with self._lock:
            begins = max(self._clock.monotonic_seconds(), self._paid_until_seconds)
            self._paid_until_seconds = begins + requests / self._requests_a_second

    def _place(self, name: str) -> _Kept:
        with self._lock:
            kept = self._kept.pop(name, None) or _Kept()
            self._kept[name] = kept
            while len(self._kept) > READINGS_KEPT:
                self._kept.pop(next(iter(self._kept)))
            return kept


class KeptEntries:
    """Entries of logs, kept between readings: entries never change, so only those that a log has grown by are read.
    Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[str, tuple[Entry[Any], ...]] = {}

    def of(self, log: DurableLog[Any, ActionT]) -> tuple[Entry[ActionT], ...]:
        """The latest entries, the oldest of them first. Raises the log's errors."""
        with self._lock:
            known = self._kept.pop(log.folder, ())
        if known:
            found = (*known, *log.entries(known[-1].number))
        else:
            last = log.load().entry_number
            found = tuple(log.entries_between(max(last - ENTRIES_MAX + 1, 1), last))
        with self._lock:
            self._kept[log.folder] = found[-ENTRIES_MAX:]
            while len(self._kept) > LOGS_KEPT:
                self._kept.pop(next(iter(self._kept)))
        return found[-ENTRIES_MAX:]
