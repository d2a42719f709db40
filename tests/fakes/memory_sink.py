"""An `EventSink` that keeps what it is given."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from compactor.errors import LithifyError
from compactor.events import Event


class MemorySink:
    """`failures` are raised by the next publishings, one each, before anything is kept."""

    def __init__(self, failures: Sequence[LithifyError] = ()) -> None:
        self._lock = threading.Lock()
        self._events: list[Event] = []
        self._failures = list(failures)

    def publish(self, events: Sequence[Event]) -> None:
        with self._lock:
            if self._failures:
                raise self._failures.pop(0)
            self._events.extend(events)

    @property
    def events(self) -> list[Event]:
        with self._lock:
            return list(self._events)

    @property
    def names(self) -> list[str]:
        """Types without what all of them share, in order: `job_run.accepted`."""
        return [event.type.removeprefix("lithify.").removesuffix(".v1") for event in self.events]
