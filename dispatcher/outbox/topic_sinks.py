"""The topic of a job run's events: the one in its instruction, else the dispatcher's own, else none."""

from __future__ import annotations

import threading
from collections.abc import Callable

from compactor.events.relay import EventSink, NoSink


class TopicSinks:
    """One sink for each topic, opened at its first use. Thread-safe."""

    def __init__(self, own_topic_arn: str | None, open_topic: Callable[[str], EventSink]) -> None:
        self._own_topic_arn = own_topic_arn
        self._open_topic = open_topic
        self._lock = threading.Lock()
        self._sinks: dict[str, EventSink] = {}

    def of(self, topic_arn: str | None) -> EventSink:
        """The sink of job runs with this topic, or without one (None). Sends no request to the topic. Raises `Invalid`
        if the ARN is not a topic's."""
        wanted = topic_arn or self._own_topic_arn
        if wanted is None:
            return NoSink()
        with self._lock:
            if wanted not in self._sinks:
                self._sinks[wanted] = self._open_topic(wanted)
            return self._sinks[wanted]
