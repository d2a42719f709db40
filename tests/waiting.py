"""Waiting for something to become true, no longer than needed."""

from __future__ import annotations

import time
from collections.abc import Callable

WAIT_SECONDS_MAX = 120.0


def wait_until(done: Callable[[], bool], seconds: float = WAIT_SECONDS_MAX, every_seconds: float = 0.02) -> None:
    until = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < until, "waited too long"
        time.sleep(every_seconds)
