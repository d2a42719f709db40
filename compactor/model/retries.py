"""Retries: which pauses lie between two tries, and how often a call is repeated.

tenacity repeats the call. Its own waits, stops and sleeps ask the machine, so these are ours: time and chance come from
a `Clock`, and a simulation repeats exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from compactor.model.clock import Clock, chance

if TYPE_CHECKING:
    from tenacity import RetryCallState

DOUBLINGS_MAX = 30
"""Doublings of a pause, at most: a pause of a millisecond that doubles 30 times is twelve days."""

AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True)
class Backoff:
    """Pauses that double with each failure in a row."""

    first_seconds: float

    longest_seconds: float

    jitter: float = 0.0
    """Share of a pause that chance may take away, so that what failed together is not retried together."""

    def seconds(self, failures: int, chance: float = 1.0) -> float:
        """The pause after so many failures in a row, from 1. `chance`: from 0 to 1, which leaves the whole pause.

        Worked: a first pause of 5 s with a jitter of 0.5 is 2.5 to 5 s; the next ones are 5 to 10 s, 10 to 20 s.
        """
        doublings = min(max(failures - 1, 0), DOUBLINGS_MAX)
        whole = min(self.first_seconds * 2.0**doublings, self.longest_seconds)
        return whole * (1 - self.jitter * (1 - chance))

    def sleep(self, failures: int, clock: Clock) -> None:
        """Sleeps for the pause after so many failures in a row."""
        clock.sleep(self.seconds(failures, chance(clock)))


@dataclass(frozen=True)
class Retry:
    """How often a call is repeated that failed."""

    backoff: Backoff

    tries_max: int
    """Tries, the first one included."""

    seconds_max: float = float("inf")
    """A call whose first try began longer ago is not repeated."""

    def call(self, ask: Callable[[], AnswerT], clock: Clock, is_temporary: Callable[[BaseException], bool]) -> AnswerT:
        """The answer of the first try that succeeds. Raises the last error, or the first one that is not temporary."""
        from tenacity import Retrying, retry_if_exception  # loads asyncio

        began_seconds = clock.monotonic_seconds()

        def is_over(state: RetryCallState) -> bool:
            elapsed_seconds = clock.monotonic_seconds() - began_seconds
            return state.attempt_number >= self.tries_max or elapsed_seconds > self.seconds_max

        retrying = Retrying(
            sleep=clock.sleep,
            wait=lambda state: self.backoff.seconds(state.attempt_number, chance(clock)),
            stop=is_over,
            retry=retry_if_exception(is_temporary),
            reraise=True,
        )
        return retrying(ask)
