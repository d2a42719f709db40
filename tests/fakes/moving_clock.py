"""The system's clock, which a test can move forward, so that waits of minutes take no time."""

from __future__ import annotations

import threading

from compactor.model.clock import SystemClock


class MovingClock(SystemClock):
    """Time limits of minutes end by `move_on`, and not because a machine is slow. Thread-safe."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._moved_seconds = 0.0

    def now_ms(self) -> int:
        return super().now_ms() + round(self._moved_seconds * 1000)

    def monotonic_seconds(self) -> float:
        return super().monotonic_seconds() + self._moved_seconds

    def move_on(self, seconds: float) -> None:
        with self._lock:
            self._moved_seconds += seconds
