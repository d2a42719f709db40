"""Decides what follows a failed attempt: another one or none, and after which pause. Pure.

| the attempt ended because                          | counts as               | then                                  |
|----------------------------------------------------|-------------------------|---------------------------------------|
| the input is invalid, durable data is corrupt      | final                   | the session fails                     |
| another compactor moved the stream on (`Fenced`)   | nothing                 | planned anew from where the stream is |
| a service was away, denied access, had no capacity | an outage               | again, for `patience_seconds`         |
| a newer release wrote what it read (`Outdated`)    | an outage               | again: it may be upgraded meanwhile   |
| memory ran out                                     | a failure, and a lack   | again, with a smaller plan            |
| it crashed, stalled, or met a bug                  | a failure               | again, `max_attempts` in all          |
| its dispatcher was stopped                         | nothing                 | the next dispatcher launches another  |
| its dispatcher vanished                            | an unobserved launch    | the same, `max_unwatched` in a row    |

An attempt that committed a round resets the counts of failures and outages: the session made progress.
"""

from dataclasses import dataclass, replace
from typing import Self

from compactor.model.errors import AnotherTry, ErrorKind
from compactor.model.retries import Backoff


@dataclass(frozen=True)
class RetryPolicy:
    """
    Attributes:
        max_attempts: attempts that may fail without progress of the session
        max_unwatched: launches in a row whose end was not observed: they may be what kills their dispatchers
        patience_seconds: that services may be unavailable in a row, or have no capacity
        retry_seconds: pause before the second attempt, doubled before each further one
        retry_seconds_max: the longest pause"""

    max_attempts: int = 3
    max_unwatched: int = 12
    patience_seconds: float = 6 * 3600.0
    retry_seconds: float = 5.0
    retry_seconds_max: float = 300.0

    def pause_seconds(self, in_a_row: int, chance: float) -> float:
        """Between half of the doubled pause and all of it, so that sessions that failed together are not retried
        together. Worked: 2.5 to 5 seconds, 5 to 10, 10 to 20, ..., 150 to 300.

        Args:
            chance: from 0 to 1"""
        return Backoff(self.retry_seconds, self.retry_seconds_max, jitter=0.5).seconds(in_a_row, chance)


@dataclass(frozen=True)
class FailureCounts:
    """The failures of a session so far, under all dispatchers.

    Attributes:
        failures: attempts in a row that failed and committed nothing
        out_of_memory: attempts that ran out of memory: each makes the next plan smaller
        outages: attempts in a row that a service or a cluster refused
        outage_since_ms: when the first of these failed
        fenced: attempts in a row that another compactor overtook
        unwatched: launches in a row whose end was not observed"""

    failures: int = 0
    out_of_memory: int = 0
    outages: int = 0
    outage_since_ms: int | None = None
    fenced: int = 0
    unwatched: int = 0

    def after(self, error_kind: ErrorKind, at_ms: int | None, *, progressed: bool) -> Self:
        """Adds one more attempt with this end. `at_ms` None: unknown."""
        before = replace(self, failures=0, outages=0, outage_since_ms=None, fenced=0) if progressed else self
        before = replace(before, unwatched=0)
        if error_kind.another_try is AnotherTry.WITH_A_NEW_PLAN:
            return replace(before, fenced=before.fenced + 1)
        if error_kind.another_try is AnotherTry.LATER:
            since_ms = at_ms if before.outage_since_ms is None else before.outage_since_ms
            return replace(before, outages=before.outages + 1, outage_since_ms=since_ms, fenced=0)
        lacked_memory = error_kind is ErrorKind.OUT_OF_MEMORY
        return replace(
            before,
            failures=before.failures + 1,
            out_of_memory=before.out_of_memory + lacked_memory,
            outages=0,
            outage_since_ms=None,
            fenced=0,
        )


@dataclass(frozen=True)
class GiveUp:
    """No further attempt. `why`: an additional reason, if any."""

    why: str | None = None


@dataclass(frozen=True)
class TryAgain:
    pause_seconds: float


def what_follows(
    error_kind: ErrorKind, failure_counts: FailureCounts, at_ms: int, policy: RetryPolicy, chance: float
) -> TryAgain | GiveUp:
    """`failure_counts` include the attempt that has just failed; `chance`, from 0 to 1, chooses the pause."""
    if error_kind.another_try is AnotherTry.NEVER:
        return GiveUp()
    if error_kind.another_try is AnotherTry.WITH_A_NEW_PLAN:
        return TryAgain(policy.pause_seconds(failure_counts.fenced, chance))
    if error_kind.another_try is AnotherTry.LATER:
        since_ms = at_ms if failure_counts.outage_since_ms is None else failure_counts.outage_since_ms
        seconds = (at_ms - since_ms) / 1000
        if seconds >= policy.patience_seconds:
            return GiveUp(
                f"{failure_counts.outages} attempts in {seconds / 3600:.1f} hours found no service: "
                "`lithify retry` runs the job run again once it answers"
            )
        return TryAgain(policy.pause_seconds(failure_counts.outages, chance))
    if failure_counts.failures >= policy.max_attempts:
        return GiveUp()
    return TryAgain(policy.pause_seconds(failure_counts.failures, chance))
