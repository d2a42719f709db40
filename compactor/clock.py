"""Time, sleep and fresh ids come in through this door, so that tests can hold them still.

Everything else takes a `Clock`; ruff's banned-api keeps `time.time`, `time.sleep` and `uuid.uuid4` out of other files.
"""

from __future__ import annotations

import time
import uuid
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall clock, milliseconds since the epoch (UTC)."""

    def monotonic_seconds(self) -> float:
        """Seconds from an arbitrary start; never goes back. For durations and timeouts."""

    def sleep(self, seconds: float) -> None: ...

    def new_id(self) -> str:
        """A fresh id, unique in the world: 32 hexadecimal digits."""


class SystemClock:
    """The machine's own clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_seconds(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def new_id(self) -> str:
        return uuid.uuid4().hex
