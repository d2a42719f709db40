"""Claims on job runs: a claim is an append to the log that checks the fold, and so is every write under it.

A claim names its owner and has an epoch, one higher than the claim before it. Its holder writes only through it. After
another claim, the epoch in the fold is no longer the holder's and every further write raises `Fenced`: clocks decide
*when* a job run is taken over, never *whether* two write at once.

A claim costs nothing while it is held: its owner's liveness is tracked by `liveness.py`, and it expires once the owner
has been silent for too long. Claims of an earlier release state how many seconds they last without an entry by their
holder; a successor watches the log for that time, by its own monotonic clock (`ClaimWatch`). The wall clocks of both
machines have no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from compactor.log.durable_log import DurableLog, LogState
from compactor.model.clock import Clock
from compactor.model.errors import Fenced
from dispatcher.records.job_run_log import (
    ClaimState,
    HolderAction,
    JobRunAction,
    JobRunClaimed,
    JobRunReleased,
    JobRunState,
)
from dispatcher.records.liveness import Fleet

JobRunLog = DurableLog[JobRunState, JobRunAction]

UNSEEN_CLAIM_SECONDS = 86_400.0
"""How long a claim lasts for an earlier release, which knows no other sign of life than entries, and no entry renews
this claim: so it leaves the claim alone, and after a day without an entry takes over what no other dispatcher has."""


@dataclass(frozen=True)
class NotClaimed:
    """Why the job run cannot be claimed: it is held, has ended, or was never accepted."""

    reason: str


class ClaimWatch:
    """Whether the owner of the claim in one log is alive: by its own object, or, without one, by the log."""

    def __init__(self, claim_seconds: float, clock: Clock, fleet: Fleet | None = None) -> None:
        """`claim_seconds`: for a claim without a duration."""
        self._claim_seconds = claim_seconds
        self._clock = clock
        self._fleet = fleet
        self._seen: tuple[int, int] | None = None
        self._since_seconds = 0.0
        self._signs = 0

    def has_seen_life(self, claim: ClaimState) -> bool:
        """Whether its owner has given a sign of life since the claim was first seen."""
        if self._fleet is not None and self._fleet.knows(claim.owner):
            return self._fleet.has_seen_life(claim.owner)
        return self._signs > 1

    def has_run_out(self, claim: ClaimState) -> bool:
        """Whether the claim has expired. Call it with each newer fold: a claim's time begins when it is first seen."""
        if self._fleet is not None and self._fleet.knows(claim.owner):
            return self._fleet.is_silent(claim.owner)
        now_seconds = self._clock.monotonic_seconds()
        if (claim.epoch, claim.signs_of_life) != self._seen:
            self._seen = (claim.epoch, claim.signs_of_life)
            self._since_seconds = now_seconds
            self._signs += 1
        lasts_seconds = self._claim_seconds if claim.lasts_seconds is None else claim.lasts_seconds
        return now_seconds - self._since_seconds >= lasts_seconds


class Claim:
    """Held from `claim_job_run` until it is released, the job run ends, or another dispatcher claims."""

    def __init__(self, log: JobRunLog, owner: str, epoch: int) -> None:
        self.log = log
        self.owner = owner
        self.epoch = epoch

    def write(self, decide: Callable[[JobRunState], Sequence[HolderAction]]) -> JobRunState:
        """Appends what `decide` returns for the fold, and returns the fold after it. Raises `Fenced` if the claim is
        not ours."""

        def decide_as_holder(before: LogState[JobRunState]) -> Sequence[JobRunAction]:
            self.check(before.state)
            return decide(before.state)

        # Other writers are rare: the last entry read is the log's end, or the entry's number is taken.
        return self.log.append(decide_as_holder, self.log.newest).after.state

    def check(self, state: JobRunState) -> None:
        """Raises `Fenced` if the claim is not ours in this fold."""
        held = state.claim
        if held is None or held.epoch != self.epoch:
            now = f"{held.owner} holds it in epoch {held.epoch}" if held is not None else f"it is {state.status}"
            raise Fenced(f"epoch {self.epoch} of {self.log.folder} is over: {now}")

    def release(self, stopped: Collection[str] = ()) -> tuple[str, ...]:
        """Lets the next dispatcher continue at once. Returns the sessions whose Spark job may still run: those in
        flight without the `stopped` ones.
        """
        left_running: tuple[str, ...] = ()

        def decide(state: JobRunState) -> Sequence[HolderAction]:
            nonlocal left_running
            left = [each.pin.session_id for each in state.open_sessions() if each.in_flight is not None]
            left_running = tuple(session_id for session_id in left if session_id not in stopped)
            return [JobRunReleased(epoch=self.epoch, left_running=left_running)]

        self.write(decide)
        return left_running


def claim_job_run(
    log: JobRunLog,
    owner: str,
    lasts_seconds: float,
    clock: Clock,
    watch: ClaimWatch | None = None,
    before: LogState[JobRunState] | None = None,
) -> Claim | NotClaimed:
    """Claims a job run that is not held, or whose owner is dead according to `watch`. An older claim of the same owner
    counts as another's: that process has ended. `before`: the log's fold, if it was just read.

    lasts_seconds  without an entry, for watchers that know no other sign of life
    """
    watched = watch or ClaimWatch(lasts_seconds, clock)
    refused: list[str] = []

    def decide(before: LogState[JobRunState]) -> Sequence[JobRunAction]:
        state = before.state
        refused.clear()
        if not state.status.is_open:
            refused.append(f"it is {state.status}")
        elif state.claim is not None and not watched.has_run_out(state.claim):
            refused.append(f"{state.claim.owner} holds it in epoch {state.claim.epoch}")
        if refused:
            return []
        expires_at_ms = clock.now_ms() + round(lasts_seconds * 1000)
        epoch = state.epoch + 1
        return [JobRunClaimed(owner=owner, epoch=epoch, expires_at_ms=expires_at_ms, lasts_seconds=lasts_seconds)]

    after = log.append(decide, before).after.state
    return NotClaimed(refused[0]) if refused else Claim(log, owner, after.epoch)
