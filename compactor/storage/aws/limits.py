"""How long a request to S3 may take, and how often it is repeated.

A socket's timeout starts again with every byte that arrives, so an answer that trickles in would never end. So each
try has a limit of its own, by which its answer must be complete; it is then repeated on another connection.
"""

from collections.abc import Callable
from concurrent.futures import wait
from dataclasses import dataclass
from typing import TypeVar

from botocore.exceptions import ReadTimeoutError

from compactor.model.background import soon

AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True)
class RequestLimits:
    """
    Attributes:
        connect_seconds: for a connection
        answer_seconds: for an answer without its body, and between two pieces of a body
        bytes_per_second_min: a body gets so much longer as it has bytes
        tries_max: of a request that may be repeated, the first one included
        repeat_seconds_max: a request that began longer ago is not repeated"""

    connect_seconds: float = 5.0
    answer_seconds: float = 20.0
    bytes_per_second_min: int = 256 * 1024
    tries_max: int = 9
    repeat_seconds_max: float = 100.0

    def seconds_for(self, size_bytes: int) -> float:
        """For a try with a body of this size."""
        return self.answer_seconds + size_bytes / self.bytes_per_second_min


LIMITS = RequestLimits()


def within(seconds: float, url: str, ask: Callable[[], AnswerT]) -> AnswerT:
    """The answer, or botocore's `ReadTimeoutError` if it is not complete by then.

    A thread that still waits is left behind: nothing can end its read.
    """
    answer = soon(ask)
    wait([answer], seconds)
    if not answer.done():
        raise ReadTimeoutError(endpoint_url=url, error=f"no complete answer within {seconds:.0f} s")
    return answer.result()
