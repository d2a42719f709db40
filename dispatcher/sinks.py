"""Which topic a job run's events go to: the one its instruction names, else the dispatcher's own, else nowhere."""

from __future__ import annotations

import threading
from collections.abc import Callable

from compactor.events import EventSink, NoSink


class TopicSinks:
    """One sink a topic, opened when it is first needed. Threads may share it."""

    def __init__(self, own_topic_arn: str | None, open_topic: Callable[[str], EventSink]) -> None:
        self._own_topic_arn = own_topic_arn
        self._open_topic = open_topic
        self._lock = threading.Lock()
        self._sinks: dict[str, EventSink] = {}

    def of(self, topic_arn: str | None) -> EventSink:
        """The sink for a job run that named this topic, or none. Raises `Invalid` for what is no topic."""
        wanted = topic_arn or self._own_topic_arn
        if wanted is None:
            return NoSink()
        with self._lock:
            if wanted not in self._sinks:
                self._sinks[wanted] = self._open_topic(wanted)
            return self._sinks[wanted]
