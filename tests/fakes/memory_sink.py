"""An `EventSink` that keeps its events in memory."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from compactor.events.relay import Event
from compactor.model.errors import LithifyError


class MemorySink:
    """The next publishes raise `failures`, one each, before they keep anything. A topic that always refuses has
    `itertools.repeat(error)`."""

    def __init__(self, failures: Iterable[LithifyError] = (), name: str = "memory") -> None:
        self.name = name
        self._lock = threading.Lock()
        self._events: list[Event] = []
        self._failures = iter(failures)

    def publish(self, events: Sequence[Event]) -> None:
        with self._lock:
            for failure in self._failures:
                raise failure
            self._events.extend(events)

    @property
    def events(self) -> list[Event]:
        with self._lock:
            return list(self._events)

    @property
    def names(self) -> list[str]:
        """Types of the events in order, without their common prefix: `job_run.accepted`."""
        return [event.type.removeprefix("lithify.").removesuffix(".v1") for event in self.events]
