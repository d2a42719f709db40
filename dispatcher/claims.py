"""Who works on a job run: a claim is an append to its log that checks the fold, and so is everything done under it.

A claim has an epoch, one higher than the claim before it, and a time at which it runs out unless it is renewed. Its
holder writes only through it. Once somebody else has claimed, the epoch in the fold is no longer the holder's and every
further write raises `Fenced`: clocks decide *when* a job run is taken over, never *whether* two write at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from compactor.catalog.log import DurableLog, LogState
from compactor.clock import Clock
from compactor.errors import Fenced
from dispatcher.job_runs import (
    ClaimRenewed,
    HolderAction,
    JobRunAction,
    JobRunClaimed,
    JobRunReleased,
    JobRunState,
)

JobRunLog = DurableLog[JobRunState, JobRunAction]


@dataclass(frozen=True)
class NotClaimed:
    """Why not: it is held, it has ended, or it never was accepted."""

    reason: str


class Claim:
    """Held from `claim_job_run` until it is released, the job run ends, or somebody else claims."""

    def __init__(self, log: JobRunLog, owner: str, epoch: int, clock: Clock) -> None:
        self.log = log
        self.owner = owner
        self.epoch = epoch
        self._clock = clock

    def write(self, decide: Callable[[JobRunState], Sequence[HolderAction]]) -> JobRunState:
        """Append what `decide` returns for the fold, and answer the fold after it. Raises `Fenced` if not ours."""

        def decide_as_holder(before: LogState[JobRunState]) -> Sequence[JobRunAction]:
            self.check(before.state)
            return decide(before.state)

        return self.log.append(decide_as_holder).after.state

    def check(self, state: JobRunState) -> None:
        """Raises `Fenced` if the claim is not ours in this fold."""
        held = state.claim
        if held is None or held.epoch != self.epoch:
            now = f"{held.owner} holds it in epoch {held.epoch}" if held is not None else f"it is {state.status}"
            raise Fenced(f"epoch {self.epoch} of {self.log.folder} is over: {now}")

    def renew(self, claim_seconds: float) -> None:
        """Put off the time at which the claim runs out. Renewing late is fine while nobody else has claimed."""
        expires_at_ms = self._clock.now_ms() + round(claim_seconds * 1000)
        self.write(lambda _: [ClaimRenewed(epoch=self.epoch, expires_at_ms=expires_at_ms)])

    def release(self) -> None:
        """Let the next dispatcher go on at once."""
        self.write(lambda _: [JobRunReleased(epoch=self.epoch)])


def claim_job_run(log: JobRunLog, owner: str, claim_seconds: float, clock: Clock) -> Claim | NotClaimed:
    """Claim a job run that nobody holds. An owner's own older claim counts as another's: that process is gone."""
    refused: list[str] = []

    def decide(before: LogState[JobRunState]) -> Sequence[JobRunAction]:
        state, now_ms = before.state, clock.now_ms()
        refused.clear()
        if not state.status.is_open:
            refused.append(f"it is {state.status}")
        elif state.claim is not None and state.claim.expires_at_ms > now_ms:
            refused.append(f"{state.claim.owner} holds it in epoch {state.claim.epoch}")
        if refused:
            return []
        expires_at_ms = now_ms + round(claim_seconds * 1000)
        return [JobRunClaimed(owner=owner, epoch=state.epoch + 1, expires_at_ms=expires_at_ms)]

    after = log.append(decide).after.state
    return NotClaimed(refused[0]) if refused else Claim(log, owner, after.epoch, clock)
