"""Repeats requests for ranges that failed, and sends fewer at a time while the service throttles them.

    each request --waits for a free connection--> service
                 <--answer: a little more room | `SlowDown`: half of the connections, a pause, again--

A service that throttles answers fewer requests if it gets more. So the number of connections is halved, once for all
requests that were under way then, and grows by one for each number of connections that were answered.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from compactor.model.clock import Clock
from compactor.model.errors import Denied, Unavailable
from compactor.model.retries import Backoff, Retry
from compactor.storage.ranges import CONNECTIONS_MAX, ObjectRanges, SlowDown, Span, Tail

BACKOFF = Backoff(first_seconds=0.1, longest_seconds=10.0, jitter=0.5)
"""Pauses before a request is repeated."""

AnswerT = TypeVar("AnswerT")


class Connections:
    """How many requests are answered at the same time. Safe to share between threads."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._allowed = float(most)
        self._busy = 0
        self._lowered = 0
        self._changed = threading.Condition()

    @property
    def allowed(self) -> int:
        return int(self._allowed)

    @contextmanager
    def one(self) -> Iterator[None]:
        """One of them, once it is free; raise `SlowDown` in it if the service throttles."""
        with self._changed:
            self._changed.wait_for(lambda: self._busy < self.allowed)
            self._busy += 1
            lowered_before = self._lowered
        try:
            yield
        except SlowDown:
            self._lower(lowered_before)
            raise
        else:
            self._raise()
        finally:
            with self._changed:
                self._busy -= 1
                self._changed.notify_all()

    def _lower(self, lowered_before: int) -> None:
        with self._changed:
            if self._lowered == lowered_before:
                self._lowered += 1
                self._allowed = max(self._allowed / 2, 1.0)

    def _raise(self) -> None:
        with self._changed:
            self._allowed = min(self._allowed + 1 / self._allowed, float(self._most))


class RepeatedRanges:
    """See `ObjectRanges`. Safe to share between threads.

    Args:
        objects: whose methods send one request each, and raise `Unavailable` if it may be repeated
        tries_max: of a request, the first one included
        repeat_seconds_max: a request that began longer ago is not repeated"""

    def __init__(
        self,
        objects: ObjectRanges,
        clock: Clock,
        *,
        tries_max: int,
        repeat_seconds_max: float,
        connections_max: int = CONNECTIONS_MAX,
    ) -> None:
        self.connections = Connections(connections_max)
        self._objects = objects
        self._clock = clock
        self._retry = Retry(BACKOFF, tries_max, repeat_seconds_max)

    def read(self, uri: str, span: Span, version: str | None) -> memoryview:
        return self._ask(partial(self._objects.read, uri, span, version))

    def read_tail(self, uri: str, length: int) -> Tail:
        return self._ask(partial(self._objects.read_tail, uri, length))

    def _ask(self, ask: Callable[[], AnswerT]) -> AnswerT:
        def ask_once() -> AnswerT:
            with self.connections.one():
                return ask()

        return self._retry.call(ask_once, self._clock, _is_temporary)


def _is_temporary(error: BaseException) -> bool:
    return isinstance(error, Unavailable) and not isinstance(error, Denied)
