"""Finds the sessions of job runs that are pinned by time, while few of those found before are open.

    claimed --> a page of streams is read --> entry: sessions found --> started in their order, ended --> further pages
                                                 |
                                                 +--> the last page: entry with `is_last`; the job run can end

A dispatcher that takes the job run over begins again with the first stream. Partitions whose session is in the log are
passed over, and streams without work cost a read.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from compactor.catalog.tables import DeltaCatalog
from compactor.log_context import LOG
from compactor.model.clock import Clock
from compactor.model.errors import Invalid, reasons_of
from compactor.planning.session_planner import PinnedSession, SessionFinder, check_file_counts
from compactor.storage.location import StoreLocation
from dispatcher.records.job_run_log import HolderAction, JobRunAccepted, JobRunState, SessionsFound
from dispatcher.records.ranking import stream_digest
from dispatcher.records.sessions import SessionEnded, SessionPin
from dispatcher.running.claimed_job_run import ClaimedJobRun
from launcher.outcomes import Failed

OPEN_SESSIONS_MAX = 500
"""Open sessions of a job run at which no more are found: a bundle's worth, so that none waits for its streams."""

FINDING_SECONDS = 0.5
"""Time of a tick for finding sessions, after which the next page waits for the next tick."""

FileRefusals = Callable[[StoreLocation, Iterable[PinnedSession]], Iterable[str]]


class SessionFinding:
    """For the ticking thread."""

    def __init__(
        self, open_lake: Callable[[StoreLocation], DeltaCatalog], refusals: FileRefusals, clock: Clock
    ) -> None:
        """`refusals`: the reasons why a session may not read its files, as when a job run is accepted."""
        self._open_lake = open_lake
        self._refusals = refusals
        self._clock = clock

    def find(self, claimed: ClaimedJobRun) -> None:
        """Finds further sessions, and records them. Raises the errors of lake and state, and `Invalid` if the job run
        can no longer work: nothing is lost, the next call begins again."""
        until_seconds, until_ms = self._clock.monotonic_seconds() + FINDING_SECONDS, claimed.accepted.pinned_until_ms
        try:
            while (
                until_ms is not None
                and claimed.newest.is_finding
                and len(claimed.newest.open_sessions()) < OPEN_SESSIONS_MAX
            ):
                self._find_page(claimed, until_ms)
                if self._clock.monotonic_seconds() >= until_seconds:
                    break
        except Exception:
            claimed.finder = None
            raise
        if not claimed.newest.is_finding:
            claimed.finder = None

    def _find_page(self, claimed: ClaimedJobRun, until_ms: int) -> None:
        page = self._finder_of(claimed, until_ms).next()
        if page is not None and not page:
            return
        reasons = {id(pinned): tuple(self._reasons_against(pinned)) for pinned in page or ()}

        def decide(state: JobRunState) -> Sequence[HolderAction]:
            known = {frozenset(each.pin.partition.items()) for each in state.sessions.values()}
            new = [pinned for pinned in page or () if frozenset(pinned.spec.partition.items()) not in known]
            if not state.is_finding or not (new or page is None):
                return []
            pins = [
                SessionPin.from_facts(pinned.spec, session_id=_session_id(claimed.accepted, number))
                for number, pinned in enumerate(new, len(state.sessions) + 1)
            ]
            epoch = claimed.claim.epoch
            ends = [
                SessionEnded(epoch=epoch, session_id=pin.session_id, end=_refused(why), at_ms=self._clock.now_ms())
                for pin, why in zip(pins, (reasons[id(pinned)] for pinned in new), strict=True)
                if why
            ]
            return [SessionsFound(epoch=epoch, sessions=tuple(pins), is_last=page is None), *ends]

        state = claimed.claim.write(decide)
        LOG.info("sessions_found", sessions=len(state.sessions), is_last=not state.is_finding)

    def _finder_of(self, claimed: ClaimedJobRun, until_ms: int) -> SessionFinder:
        if claimed.finder is None:
            lake, work = self._open_lake(claimed.accepted.spec.lake), claimed.work
            takes = None if work.shard is None else lambda partition: work.may_have(stream_digest(partition))
            claimed.finder = SessionFinder(claimed.accepted.spec, lake, until_ms, takes)
        return claimed.finder

    def _reasons_against(self, pinned: PinnedSession) -> Iterator[str]:
        run = pinned.spec.job_run
        yield from self._refusals(run.lake, [pinned])
        yield from reasons_of(check_file_counts, run, pinned.compacted_rows + pinned.pending_rows)


def _session_id(accepted: JobRunAccepted, number: int) -> str:
    """Of the session that is found as number `number`, from 1 on: unique over all shards of a job run."""
    shard = accepted.shard
    of_all = number if shard is None else (number - 1) * shard.count + shard.number + 1
    return f"{accepted.spec.job_run_id}.{of_all}"


def _refused(reasons: tuple[str, ...]) -> Failed:
    return Failed(attempt=0, error_kind=Invalid.kind, reasons=reasons)
