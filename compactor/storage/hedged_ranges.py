"""Sends a slow request for a range a second time, on another connection, and takes the first answer.

Objects that are read by ranges never change, so both answers are the same. A store that is slow throughout must not get
twice the load: there is a budget of second requests.
"""

import threading
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from typing import TypeVar

from compactor.storage.ranges import CONNECTIONS_MAX, ObjectRanges, Span, Tail

HEDGE_SECONDS = 2.0
"""Time without an answer after which a request is slow."""

BYTES_PER_SECOND_MIN = 2 * 1024 * 1024
"""Slowest expected transfer: long ranges get more time by it."""

SECOND_SHARE = 0.05
"""Second requests per answered request, on average."""

SECOND_REQUESTS_SAVED_MAX = 8.0
"""Second requests that may be sent in a burst."""

AnswerT = TypeVar("AnswerT")


class HedgedRanges:
    """See `ObjectRanges`. Safe to share between threads."""

    def __init__(self, objects: ObjectRanges, hedge_seconds: float = HEDGE_SECONDS) -> None:
        self._objects = objects
        self._hedge_seconds = hedge_seconds
        self._threads = ThreadPoolExecutor(2 * CONNECTIONS_MAX, thread_name_prefix="hedged")
        self._lock = threading.Lock()
        self._budget = SECOND_REQUESTS_SAVED_MAX

    def read(self, uri: str, span: Span, version: str | None) -> memoryview:
        return self._ask(partial(self._objects.read, uri, span, version), span.length)

    def read_tail(self, uri: str, length: int) -> Tail:
        return self._ask(partial(self._objects.read_tail, uri, length), length)

    def _ask(self, ask: Callable[[], AnswerT], length: int) -> AnswerT:
        first = self._threads.submit(ask)
        with suppress(TimeoutError):
            first.exception(self._hedge_seconds + length / BYTES_PER_SECOND_MIN)
        if first.done() or not self._take_from_budget():
            answer = first.result()
            self._add_to_budget()
            return answer
        return _first_answer(first, self._threads.submit(ask))

    def _take_from_budget(self) -> bool:
        with self._lock:
            if self._budget < 1:
                return False
            self._budget -= 1
            return True

    def _add_to_budget(self) -> None:
        with self._lock:
            self._budget = min(self._budget + SECOND_SHARE, SECOND_REQUESTS_SAVED_MAX)


def _first_answer(first: Future[AnswerT], second: Future[AnswerT]) -> AnswerT:
    """Of the two requests. If both fail, raises the first one's error."""
    done, under_way = wait([first, second], return_when=FIRST_COMPLETED)
    answered = [each for each in (first, second) if each in done and each.exception() is None]
    if not answered and under_way:
        answered = [each for each in under_way if each.exception() is None]
    return answered[0].result() if answered else first.result()
