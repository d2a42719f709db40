"""Divides a job run over many streams into shards, and opens them, a few at a time.

    claimed --streams counted--> entry: sharded, the first are opened --> each: marker, entry 1 of its log, marker again
                                                                            |
                  further ones are opened as shards end <-- entry: shard ended --> all ended: the job run ends

The entry comes before the logs that it announces, so a successor creates those that are missing. The holder of the job
run forwards a cancel to the open shards; the others are never opened then.
"""

from collections.abc import Callable, Iterator, Sequence

from compactor.catalog.tables import DeltaCatalog
from compactor.log.durable_log import LogState
from compactor.log_context import LOG
from compactor.model.clock import Clock
from compactor.planning.session_planner import listed_streams
from compactor.storage.location import StoreLocation
from dispatcher.records.claims import JobRunLog
from dispatcher.records.job_run_log import (
    CancelRequested,
    HolderAction,
    JobRunAccepted,
    JobRunAction,
    JobRunSharded,
    JobRunState,
    JobRunStatus,
    Shard,
)
from dispatcher.records.job_run_store import JobRunStore
from dispatcher.records.work_id import OPEN_SHARDS_MAX, WorkId, shard_count
from dispatcher.running.claimed_job_run import ClaimedJobRun

SHARDING_SECONDS = 0.5
"""Time of a tick for sharding, after which the rest waits for the next tick."""

COUNTED_AT_ONCE = 1_000
"""Streams between two looks at the clock: a page of a listing."""


class Sharding:
    """For the ticking thread."""

    def __init__(self, records: JobRunStore, open_lake: Callable[[StoreLocation], DeltaCatalog], clock: Clock) -> None:
        self._records = records
        self._open_lake = open_lake
        self._clock = clock

    def go_on(self, claimed: ClaimedJobRun) -> Iterator[tuple[WorkId, JobRunLog]]:
        """Does what is due for a claimed job run, and yields the shards that any dispatcher may claim now. Raises the
        errors of lake and state, and `Invalid` if the job run can no longer work: the next call continues."""
        until_seconds = self._clock.monotonic_seconds() + SHARDING_SECONDS
        if claimed.newest.cancel is not None:
            yield from self.cancel(claimed, claimed.newest.cancel.reason)
            return
        if claimed.newest.shards is None and not self._divide(claimed, until_seconds):
            return
        self._open_further(claimed)
        shards, opened = claimed.newest.shards, claimed.shards.opened
        for number in shards.open if shards is not None else ():
            if number not in opened and self._clock.monotonic_seconds() < until_seconds:
                accepted = self._accepted(claimed, number)
                yield accepted.work, self._open(accepted)
                opened.add(number)

    def cancel(self, claimed: ClaimedJobRun, reason: str) -> Sequence[tuple[WorkId, JobRunLog]]:
        """Forwards a cancel to the open shards, once. Returns them."""
        cancelled, found = claimed.shards.cancelled, []

        def decide(before: LogState[JobRunState]) -> Sequence[JobRunAction]:
            is_open = before.state.status.is_open and before.state.cancel is None
            return [CancelRequested(reason=reason)] if is_open else []

        for number in claimed.newest.shards.open if claimed.newest.shards is not None else ():
            if number not in cancelled:
                accepted = self._accepted(claimed, number)
                log = self._open(accepted)
                log.append(decide)
                cancelled.add(number)
                found.append((accepted.work, log))
        return found

    def _divide(self, claimed: ClaimedJobRun, until_seconds: float) -> bool:
        """Counts the streams, and records how many shards they make. False: the next tick goes on counting."""
        here, spec = claimed.shards, claimed.accepted.spec
        if here.counting is None:
            here.counting, here.counted = listed_streams(spec, self._open_lake(spec.lake)), 0
        try:
            for _ in here.counting:
                here.counted += 1
                if here.counted % COUNTED_AT_ONCE == 0 and self._clock.monotonic_seconds() >= until_seconds:
                    return False
        except Exception:
            here.counting = None
            raise
        here.counting = None
        count = shard_count(here.counted)
        self._write(claimed, count, min(count, OPEN_SHARDS_MAX))
        LOG.info("job_run_sharded", streams=here.counted, shards=count)
        return True

    def _open_further(self, claimed: ClaimedJobRun) -> None:
        shards = claimed.newest.shards
        if shards is not None:
            opened = min(shards.count, shards.opened + OPEN_SHARDS_MAX - len(shards.open))
            if opened > shards.opened:
                self._write(claimed, shards.count, opened)

    def _write(self, claimed: ClaimedJobRun, count: int, opened: int) -> None:
        def decide(state: JobRunState) -> Sequence[HolderAction]:
            before = state.shards.opened if state.shards is not None else 0
            if state.cancel is not None or state.ended is not None or before >= opened:
                return []
            return [JobRunSharded(epoch=claimed.claim.epoch, count=count, opened=opened)]

        claimed.claim.write(decide)

    def _accepted(self, claimed: ClaimedJobRun, number: int) -> JobRunAccepted:
        """The first entry of a shard: every dispatcher would write the same one."""
        count = claimed.newest.shards.count if claimed.newest.shards is not None else 1
        shard = Shard(number=number, count=count, accepted_at_ms=claimed.accepted_at_ms)
        own = {"sessions": (), "predecessor": None, "waiter": None, "shard": shard}
        return claimed.accepted.model_copy(update=own)

    def _open(self, accepted: JobRunAccepted) -> JobRunLog:
        """Creates the log of a shard, if it is missing. Others may give its marker up while its log is empty."""
        log = self._records.log(accepted.work.text)
        state = log.load().state
        if state.status is JobRunStatus.ABSENT or (state.status is JobRunStatus.WAITING and not state.epoch):
            mark = self._records.mark_open(accepted, accepted.accepted_at_ms(0))
            log.append(lambda before: [accepted] if before.state.status is JobRunStatus.ABSENT else [])
            self._records.mark(mark)
        return log
