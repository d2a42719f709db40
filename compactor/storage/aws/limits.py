"""How long a request to S3 may take, and how often it is repeated.

A socket's timeout starts again with every byte that arrives, so an answer that trickles in would never end. So each
try has a limit of its own, by which its answer must be complete; it is then repeated on another connection.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

from botocore.exceptions import ReadTimeoutError

AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True)
class RequestLimits:
    """
    connect_seconds       for a connection
    answer_seconds        for an answer without its body, and between two pieces of a body
    bytes_per_second_min  a body gets so much longer as it has bytes
    tries_max             of a request that may be repeated, the first one included
    repeat_seconds_max    a request that began longer ago is not repeated
    """

    connect_seconds: float = 5.0
    answer_seconds: float = 20.0
    bytes_per_second_min: int = 256 * 1024
    tries_max: int = 9
    repeat_seconds_max: float = 100.0

    def seconds_for(self, size_bytes: int) -> float:
        """For a try with a body of this size."""
        return self.answer_seconds + size_bytes / self.bytes_per_second_min


LIMITS = RequestLimits()


IDLE_MAX = 64
"""Threads that wait for a next request: starting one costs more than handing a request to it."""

_Requests = SimpleQueue[tuple[Future[Any], Callable[[], Any]]]

_idle: deque[_Requests] = deque()
"""Of each thread that waits, its queue."""

os.register_at_fork(after_in_child=_idle.clear)  # threads do not survive a fork


def within(seconds: float, url: str, ask: Callable[[], AnswerT]) -> AnswerT:
    """The answer, or botocore's `ReadTimeoutError` if it is not complete by then.

    A thread that still waits is left behind: nothing can end its read. It does not keep the process from ending.
    """
    answer: Future[AnswerT] = Future()
    _thread_at_hand().put((answer, ask))
    wait([answer], seconds)
    if not answer.done():
        raise ReadTimeoutError(endpoint_url=url, error=f"no complete answer within {seconds:.0f} s")
    return answer.result()


def _thread_at_hand() -> _Requests:
    try:
        return _idle.pop()
    except IndexError:
        requests: _Requests = SimpleQueue()
        threading.Thread(target=_ask_one_by_one, args=(requests,), name="s3-request", daemon=True).start()
        return requests


def _ask_one_by_one(requests: _Requests) -> None:
    while _ask(*requests.get(), requests):
        pass


def _ask(answer: Future[Any], ask: Callable[[], Any], requests: _Requests) -> bool:
    """Whether the thread waits for another request. It does so before the answer is told: who gets it asks again."""
    try:
        found = ask()
    except BaseException as error:  # noqa: BLE001  (raised in the thread that waits)
        tell = partial(answer.set_exception, error)
    else:
        tell = partial(answer.set_result, found)
    stays = len(_idle) < IDLE_MAX
    if stays:
        _idle.append(requests)
    tell()
    return stays
