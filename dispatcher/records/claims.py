"""Claims on job runs: a claim is an append to the log that checks the fold, and so is every write under it.

A claim names its owner and has an epoch, one higher than the claim before it. Its holder writes only through it. After
another claim, the epoch in the fold is no longer the holder's and every further write raises `Fenced`: clocks decide
*when* a job run is taken over, never *whether* two write at once.

A claim costs nothing while it is held: it lasts until it is released, or until its owner is gone (`liveness.py`).
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from compactor.log.durable_log import DurableLog, LogState
from compactor.model.errors import Fenced
from dispatcher.records.job_run_log import HolderAction, JobRunAction, JobRunClaimed, JobRunReleased, JobRunState

JobRunLog = DurableLog[JobRunState, JobRunAction]


@dataclass(frozen=True)
class NotClaimed:
    """Why the job run cannot be claimed: it is held, has ended, or was never accepted."""

    reason: str


class Claim:
    """Held from `claim_job_run` until it is released, the job run ends, or another dispatcher claims."""

    def __init__(self, log: JobRunLog, owner: str, epoch: int) -> None:
        self.log = log
        self.owner = owner
        self.epoch = epoch

    def write(self, decide: Callable[[JobRunState], Sequence[HolderAction]]) -> JobRunState:
        """Appends what `decide` returns for the fold, and returns the next fold. Raises `Fenced` if the claim is not
        ours."""

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
        flight without the `stopped` ones."""
        left_running: tuple[str, ...] = ()

        def decide(state: JobRunState) -> Sequence[HolderAction]:
            nonlocal left_running
            left = [each.pin.session_id for each in state.open_sessions() if each.in_flight is not None]
            left_running = tuple(session_id for session_id in left if session_id not in stopped)
            return [JobRunReleased(epoch=self.epoch, left_running=left_running)]

        self.write(decide)
        return left_running


def claim_job_run(
    log: JobRunLog, owner: str, is_gone: Callable[[str], bool], before: LogState[JobRunState] | None = None
) -> Claim | NotClaimed:
    """Claims a job run that is not held, or whose owner `is_gone`. `before`: the log's fold, if it was just read."""
    refused: list[str] = []

    def decide(before: LogState[JobRunState]) -> Sequence[JobRunAction]:
        state = before.state
        refused.clear()
        if not state.status.is_open:
            refused.append(f"it is {state.status}")
        elif state.claim is not None and not is_gone(state.claim.owner):
            refused.append(f"{state.claim.owner} holds it in epoch {state.claim.epoch}")
        return [] if refused else [JobRunClaimed(owner=owner, epoch=state.epoch + 1)]

    after = log.append(decide, before).after.state
    return NotClaimed(refused[0]) if refused else Claim(log, owner, after.epoch)
