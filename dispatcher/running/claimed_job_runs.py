"""The job runs that this dispatcher has claimed: how one comes in, and the one way out."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from enum import StrEnum

from compactor.events.types import bounded
from compactor.log_context import LOG
from compactor.model.clock import Clock
from compactor.model.errors import Conflict, Fenced, LithifyError, Unavailable, kind_of, reason_of
from dispatcher.records.claims import Claim
from dispatcher.records.job_run_log import JobRunOutcome, JobRunState
from dispatcher.records.job_run_store import JobRunStore
from dispatcher.records.pauses import Pauses
from dispatcher.records.work_id import WorkId
from dispatcher.running.claimed_job_run import ClaimedJobRun, end_as_failed
from dispatcher.running.journal import Listeners
from dispatcher.running.open_runs import OpenJobRun, OpenJobRuns
from dispatcher.scheduling.leases import Leases
from dispatcher.scheduling.session_pool import SessionPool
from launcher.clusters.workers import gone_worker
from launcher.outcomes import level_of

CLAIM_ENTRY_NUMBER = 2
"""Entry of the claim in the log of a job run of which no dispatcher can have published anything."""


class Departure(StrEnum):
    """How a job run leaves this dispatcher."""

    ENDED = "ended"
    FOUND_ENDED = "found ended"
    """It was never claimed here: the dispatcher that ended it died before all events were published."""
    LOST = "lost"
    """Another dispatcher has claimed it and watches its Spark jobs. Nothing more is written here."""
    RELEASED = "released"
    """This dispatcher stops."""
    LEFT_TO_OTHERS = "left to others"
    """Only limits of this dispatcher stop it."""


class ClaimedJobRuns(Mapping[WorkId, ClaimedJobRun]):
    """For the ticking thread."""

    def __init__(
        self,
        records: JobRunStore,
        listeners: Listeners,
        open_runs: OpenJobRuns,
        leases: Leases,
        pool: SessionPool,
        *,
        pauses: Pauses,
        clock: Clock,
    ) -> None:
        self._records = records
        self._listeners = listeners
        self._open = open_runs
        self._leases = leases
        self._pool = pool
        self._pauses = pauses
        self._clock = clock
        self._claimed: dict[WorkId, ClaimedJobRun] = {}
        self.spark_jobs_left = 0
        """Spark jobs that may still run, of job runs that this dispatcher released."""

    def __getitem__(self, work: WorkId) -> ClaimedJobRun:
        return self._claimed[work]

    def __iter__(self) -> Iterator[WorkId]:
        """Over a copy: a job run may leave meanwhile."""
        return iter(list(self._claimed))

    def __len__(self) -> int:
        return len(self._claimed)

    @property
    def active_count(self) -> int:
        """Number of claimed job runs, without shards, and without those that wait only for the end of a pause."""
        now_seconds = self._clock.monotonic_seconds()
        return sum(work.shard is None and not self._pool.rests(work, now_seconds) for work in self)

    @property
    def paused(self) -> frozenset[WorkId]:
        """Job runs whose remaining sessions are all withheld, because they are paused."""
        return frozenset(work for work in self if self._pool.is_withheld(work))

    # -- in

    def adopt(self, found: OpenJobRun, claim: Claim, state: JobRunState) -> None:
        """A job run was claimed here; `state` is the fold with the claim. Raises the store's errors: then it has left
        again. After any other error, a bug too, the job run has ended as failed."""
        claimed = None
        try:
            claimed = ClaimedJobRun(claim, state, self._listeners, self._leases, self._clock)
            self._claimed[found.work] = claimed
            self._follow(claimed, state)
        except (Unavailable, Conflict):
            # The next dispatcher need not wait until the claim expires.
            if claimed is None:
                self._give_back(claim)
            elif not self.release(claimed, Departure.RELEASED):
                self.leave(found.work, state, Departure.LOST)
            raise
        except Exception as error:  # noqa: BLE001  (its own: no other job run is affected)
            LOG.error("job_run_broke", exc_info=error)
            self._claimed.pop(found.work, None)
            ended = end_as_failed(claim, kind_of(error), reason_of(error), self._clock)
            self.leave(found.work, ended, Departure.ENDED)
            return
        try:
            self._records.mark_held(claimed.mark)
        except Unavailable as error:
            LOG.warning("claim_not_marked", reason=str(error))  # the next sweep repairs the marker
        for session in state.open_sessions():
            self._pool.add(claimed.waiting(session))
        self._open.taken(found.work)
        LOG.info("job_run_claimed", epoch=claim.epoch, sessions=len(state.open_sessions()))

    def _follow(self, claimed: ClaimedJobRun, state: JobRunState) -> None:
        log, name = claimed.claim.log, claimed.work.text
        if claimed.claim.epoch > 1:
            in_flight = [each.pin.session_id for each in state.open_sessions() if each.in_flight is not None]
            self._leases.inherit(claimed.mark, in_flight)
        is_new = log.newest.entry_number == CLAIM_ENTRY_NUMBER
        self._listeners.publisher.follow(name, log, state, is_new=is_new)
        self._listeners.tables.follow(name, state)
        self._listeners.answers.notify(name, state)
        if claimed.work.shard is not None and WorkId(claimed.work.job_run_id) not in self:
            # Its workflows get heartbeats from each dispatcher where a shard of it progresses.
            self._listeners.answers.notify(claimed.work.job_run_id, self._records.state(claimed.work.job_run_id))

    def found_ended(self, found: OpenJobRun, state: JobRunState) -> None:
        """The end of a job run that no dispatcher holds stands in its log: its last events are published here."""
        self._listeners.publisher.follow(found.work.text, found.log, state, is_ending=True)
        self._listeners.tables.follow(found.work.text, state)
        self.leave(found.work, state, Departure.FOUND_ENDED)

    # -- out

    def lose(self, claimed: ClaimedJobRun, reason: str) -> None:
        """The claim is lost: the job run leaves once none of its sessions runs here. Its Spark jobs are not stopped."""
        if not claimed.lost:
            LOG.warning("job_run_lost", reason=reason)
        claimed.lost = True
        self._pool.forget(claimed.work)
        if not self._pool.runs(claimed.work):
            self.leave(claimed.work, claimed.newest, Departure.LOST)

    def release(self, claimed: ClaimedJobRun, departure: Departure) -> bool:
        """Frees marker and claim, in this order: the marker is repaired while the claim is held, and a job run that is
        marked as held by a live dispatcher is not read. False: the store does not answer, and it stays claimed."""
        try:
            self._records.mark_held(replace(claimed.mark, owner=None))
            left, sessions = claimed.claim.release(claimed.stopped), claimed.newest.sessions
            left_in_flight = [sessions[session_id].in_flight for session_id in left]
            self.spark_jobs_left += sum(each is not None and gone_worker(each) is None for each in left_in_flight)
        except Fenced as error:
            self.lose(claimed, str(error))
            return True
        except LithifyError as error:
            LOG.warning("claim_not_released", reason=str(error))
            return False
        self.leave(claimed.work, claimed.newest, departure)
        return True

    def _give_back(self, claim: Claim) -> None:
        """Of what was not read after its claim, nobody here knows: its marker says still that nobody holds it."""
        try:
            claim.release()
        except LithifyError as error:
            LOG.warning("claim_not_released", reason=str(error))

    def leave(self, work: WorkId, newest: JobRunState, departure: Departure) -> None:
        """The one door. Afterwards only who has something left to send knows the job run.

        | who                         | ended, found ended | lost         | released     | left to others |
        |-----------------------------|--------------------|--------------|--------------|----------------|
        | marker, claim               | by the publisher   | another's    | freed before | freed before   |
        | pool of sessions            | forgets            | forgets      | forgets      | forgets        |
        | publications of tables      | leaves             | leaves       | leaves       | leaves         |
        | publisher of events         | up to the end      | leaves       | leaves       | leaves         |
        | workflow callbacks          | answers            | leaves       | leaves       | leaves         |
        | those of a shard's job run  | leaves, unless another part of that job run is claimed here; in all cases |
        | leases                      | end                | inherited    | inherited    | end            |
        | open job runs               | forget             | by a sweep   | by a sweep   | offered again  |

        Of a job run that ended here, also: the metrics and its pause, which is removed; of a shard that ended here: the
        log of its job run. What only a claimed job run needs is kept by `ClaimedJobRun`, and goes with it. A slot that
        it waited for is given back by the next tick (`SessionStarts.catch_up`).
        """
        claimed = self._claimed.pop(work, None)
        self._pool.forget(work)
        self._listeners.tables.leave(work.text)
        is_over = departure in (Departure.ENDED, Departure.FOUND_ENDED)
        if is_over:
            self._listeners.publisher.ending(work.text)
            self._listeners.answers.notify(work.text, newest, is_ending=True)
        else:
            self._listeners.publisher.leave(work.text)
            self._listeners.answers.leave(work.text)
        if work.shard is not None:
            self._leave_callbacks_of(work.job_run_id)
        if is_over or departure is Departure.LEFT_TO_OTHERS:
            self._leases.end_all_of(work, newest)
        if departure is Departure.LEFT_TO_OTHERS and claimed is not None:
            self._open.offer(work, claimed.claim.log)
        else:
            self._open.taken(work)
        if departure is Departure.ENDED:
            self._conclude(work, newest)

    def _leave_callbacks_of(self, job_run_id: str) -> None:
        is_published_here = job_run_id in self._listeners.publisher.followed
        if not is_published_here and all(each.job_run_id != job_run_id for each in self):
            self._listeners.answers.leave(job_run_id)

    def _conclude(self, work: WorkId, newest: JobRunState) -> None:
        if newest.ended is None:
            return
        try:
            if work.shard is None:
                self._listeners.metrics.job_run_ended(newest)
                self._pauses.forget(work.job_run_id)
            else:  # its publisher does it too, before the marker is removed, but later
                whole = self.get(WorkId(work.job_run_id))
                self._records.record_shard_end(newest, whole.claim.log if whole is not None else None)
        except LithifyError as error:
            LOG.warning("pause_not_removed" if work.shard is None else "shard_end_not_recorded", reason=str(error))
        if work.shard is None:
            _log_end("job_run_ended", newest.ended.outcome, seconds=round(newest.ended.seconds, 3))
        else:
            _log_end("shard_ended", newest.ended.outcome, **asdict(work.shard))


def _log_end(event: str, outcome: JobRunOutcome, **figures: float) -> None:
    why = {"reasons": "; ".join(bounded(outcome.reasons))} if outcome.reasons else {}
    LOG.log(level_of(outcome.status), event, status=outcome.status, **figures, **why)
