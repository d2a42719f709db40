"""A clock that moves only by `sleep` or by a test, and whose ids count up."""

from __future__ import annotations

import itertools
import threading


class ManualClock:
    """`sleep` returns at once and moves the time forward. Thread-safe."""

    def __init__(self, now_ms: int = 1_760_000_000_000) -> None:
        self._lock = threading.Lock()
        self._now_ms = now_ms
        self._slept_seconds = 0.0
        self._ids = itertools.count(1)

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_seconds(self) -> float:
        return self._slept_seconds

    def sleep(self, seconds: float) -> None:
        with self._lock:
            self._slept_seconds += seconds
            self._now_ms += round(seconds * 1000)

    def new_id(self) -> str:
        return f"{next(self._ids):032x}"

    def set_ms(self, now_ms: int) -> None:
        """Sets the wall clock, also backwards, as on a machine with a wrong clock."""
        self._now_ms = now_ms
