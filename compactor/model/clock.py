"""The only source of time, sleep, chance and fresh ids, so that tests can control them.

All other code takes a `Clock`; ruff's banned-api forbids `time.time`, `time.sleep` and `uuid.uuid4` in other files.
"""

import time
import uuid
from datetime import UTC, date, datetime
from math import inf
from typing import Protocol

CLOCKS_DIFFER_MS = 3_600_000
"""Time by which two clocks may differ. Generous: garbage collection reads the entries of so long once more."""


LAST_SECOND_MS = 253_402_300_799_000
"""9999-12-31 23:59:59 UTC: Python and ISO 8601 have no later dates."""


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall clock, milliseconds since the epoch (UTC)."""

    def monotonic_seconds(self) -> float:
        """Seconds from an arbitrary start; never goes back. For durations and timeouts."""

    def sleep(self, seconds: float) -> None: ...

    def new_id(self) -> str:
        """A fresh id, unique in the world: 32 hexadecimal digits."""


def utc_time(at_ms: int) -> datetime:
    """A time in UTC; the last second that has a date, for later ones: a retention may be longer than dates reach."""
    return datetime.fromtimestamp(min(at_ms, LAST_SECOND_MS) / 1000, UTC)


def date_of(at_ms: int) -> date:
    """The day of a time, in UTC."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).date()


def seconds_since(at_ms: int | None, now_ms: int) -> float:
    """Since a time by another clock, at least 0. Infinite if it is not recorded, or lies ahead by more than clocks
    differ: what a wrong clock has written counts as written long ago, so that nothing waits until its time comes."""
    return inf if at_ms is None or at_ms > now_ms + CLOCKS_DIFFER_MS else max(now_ms - at_ms, 0) / 1000


def chance(clock: Clock) -> float:
    """A random number from 0 to 1, as random as the clock's ids."""
    return int(clock.new_id()[:8], 16) / 0xFFFF_FFFF


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_seconds(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def new_id(self) -> str:
        return uuid.uuid4().hex
