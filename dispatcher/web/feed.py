"""Events say where to look again; what is shown is read from the state and the lake all the same.

So a message is a hint: one that is lost, late, sent twice or of another program makes no page wrong. Without a feed,
and while it is lost, the pages look by themselves.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace

from compactor.model.clock import Clock
from compactor.model.errors import LithifyError
from dispatcher.intake.queue import Queue
from dispatcher.records.job_run_events import (
    JobRunCancelledEvent,
    JobRunFailedEvent,
    JobRunRejectedEvent,
    JobRunSucceededEvent,
)

PAUSE_SECONDS = 1.0
"""Pause between two calls of `EventsFeed.listen`."""

_WAIT_SECONDS = 5
"""Time to wait for the first message. An end of the server waits for it, too."""

_MESSAGES_MAX, _ROUNDS_MAX = 10, 50
"""Messages of one receive; receives in a row, while each is full."""

_VISIBILITY_SECONDS = 30
_BACKOFF_SECONDS = 15.0

_ENDS = frozenset(
    each.event_type for each in (JobRunSucceededEvent, JobRunFailedEvent, JobRunCancelledEvent, JobRunRejectedEvent)
)


@dataclass(frozen=True)
class Changed:
    """What an event names. `has_ended`: the job run is in the history from now on."""

    job_run_id: str
    table_id: str | None
    has_ended: bool


@dataclass(frozen=True)
class FeedState:
    """
    Attributes:
        heard_at_ms: of the last event; None: none was heard yet
        failure: why the queue cannot be read; None: it can
        since_ms: of the first time that it could not"""

    heard_at_ms: int | None = None
    failure: str | None = None
    since_ms: int | None = None


class EventsFeed:
    """A queue that is subscribed to the events, whose messages are taken. `state` is for any thread, `listen` for
    one."""

    def __init__(self, queue: Queue, look_again: Callable[[Changed], None], clock: Clock) -> None:
        self.state = FeedState()
        self._queue = queue
        self._look_again = look_again
        self._clock = clock
        self._not_before_seconds = 0.0

    def listen(self) -> None:
        """Takes what is there, or waits some seconds for it. A queue that fails is asked again after a while."""
        if self._clock.monotonic_seconds() < self._not_before_seconds:
            return
        try:
            for _ in range(_ROUNDS_MAX):
                if self._take() < _MESSAGES_MAX:
                    break
        except LithifyError as error:
            since_ms = self._clock.now_ms() if self.state.since_ms is None else self.state.since_ms
            self.state = replace(self.state, failure=str(error), since_ms=since_ms)
            self._not_before_seconds = self._clock.monotonic_seconds() + _BACKOFF_SECONDS

    def _take(self) -> int:
        messages = self._queue.receive(_MESSAGES_MAX, _WAIT_SECONDS, _VISIBILITY_SECONDS)
        heard_at_ms = self.state.heard_at_ms
        for message in messages:
            changed = changed_by(message.body)
            if changed is not None:
                self._look_again(changed)
                heard_at_ms = self._clock.now_ms()
        self._queue.delete_all(messages)
        self.state = FeedState(heard_at_ms)
        return len(messages)


def changed_by(body: str) -> Changed | None:
    """Of an event, delivered raw or not, of this release or a later one; None: the message is no event. Pure."""
    try:
        message = json.loads(body)
        if isinstance(message, dict) and isinstance(message.get("Message"), str):
            message = json.loads(message["Message"])
    except (ValueError, RecursionError):
        return None
    if not isinstance(message, dict):
        return None
    job_run_id, table_id = message.get("jobrunid"), message.get("table")
    if not isinstance(job_run_id, str):
        return None
    return Changed(job_run_id, table_id if isinstance(table_id, str) else None, message.get("type") in _ENDS)
