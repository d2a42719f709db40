"""The only source of time, sleep, chance and fresh ids, so that tests can control them.

All other code takes a `Clock`; ruff's banned-api forbids `time.time`, `time.sleep` and `uuid.uuid4` in other files.
"""

import time
import uuid
from datetime import UTC, date, datetime
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall clock, milliseconds since the epoch (UTC)."""

    def monotonic_seconds(self) -> float:
        """Seconds from an arbitrary start; never goes back. For durations and timeouts."""

    def sleep(self, seconds: float) -> None: ...

    def new_id(self) -> str:
        """A fresh id, unique in the world: 32 hexadecimal digits."""


def date_of(at_ms: int) -> date:
    """The day of a time, in UTC."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).date()


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
