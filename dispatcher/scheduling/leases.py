"""Leases of this dispatcher's sessions: taken before sessions start, ended when none of them runs any more.

Markers and leases decide the order on a stream. The markers of all open job runs give their ranks: a dispatcher lists
them before it takes a lease, and reads the logs of job runs ahead, whose sessions of that stream may have ended. The
log of leases says which sessions run; its entry decides between two dispatchers that take a lease at the same time.

    markers listed --none ahead--> lease taken --> session runs --> session's end in its log --> lease ended

A lease outlives its dispatcher, as its Spark job does: the dispatcher that claims the job run inherits the lease, or
ends it if none of its sessions runs. A forgotten lease is ended by a dispatcher that waits for it, once the logs say
that its sessions have ended.

`LaunchGate` is the last check before a cluster is requested, and the first one that knows its size. A session that may
not be launched gives its lease back and waits.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from compactor.log.durable_log import LogState
from compactor.log_context import LOG
from compactor.model.clock import Clock, date_of
from compactor.model.errors import Conflict, LithifyError, Outdated, Unavailable
from compactor.planning.cluster_plan import ClusterPlan
from compactor.storage.concurrently import run_concurrently
from dispatcher.records.claims import Claim, JobRunLog
from dispatcher.records.job_run_log import JobRunAction, JobRunState, JobRunStatus, JobRunWaitsForMoney
from dispatcher.records.job_run_store import JobRunStore
from dispatcher.records.keys import MarkedJobRun
from dispatcher.records.outcome import session_cost, total_usd
from dispatcher.records.ranking import ahead_of, rank_of, slot_rank, stream_digest, work_of
from dispatcher.records.sessions import SessionState
from dispatcher.records.work_id import WorkId
from dispatcher.scheduling.lease_log import (
    Demand,
    Lease,
    LeaseAction,
    LeaseCharged,
    LeaseEnded,
    LeaseInherited,
    LeaseState,
    LeaseTaken,
    QuotaExceeded,
    Reservation,
    RunCost,
    SlotRequested,
    SlotReturned,
    lease_log,
    over_budget,
    over_cluster_limit,
    over_run_budget,
    over_session_limit,
)
from dispatcher.scheduling.limits import Limits, LimitScope


@dataclass(frozen=True)
class LeaseRequest:
    """The sessions that would start.

    Attributes:
        mark: the marker of their job run while it is claimed
        streams: digests of their streams, by session id; these sessions share a Spark job
        cluster: of the last plan; None: no cluster, or not planned yet"""

    mark: MarkedJobRun
    streams: Mapping[str, str]
    cluster: ClusterPlan | None = None


@dataclass(frozen=True)
class LeaseAnswer:
    """
    Attributes:
        lease: of the sessions that may start; None: none may
        blocked: by session id: the job run that is ahead or runs on its stream
        exceeded: why none may start although a stream is free"""

    lease: Lease | None = None
    blocked: Mapping[str, str] = field(default_factory=dict)
    exceeded: QuotaExceeded | None = None


@dataclass
class _PolledJobRun:
    log: JobRunLog
    checked_at_seconds: float | None = None


def vcpus_of(cluster: ClusterPlan) -> int:
    """vCPUs of its worker nodes at their maximal number: at least 1, since 0 means no cluster."""
    return max(cluster.nodes_max * cluster.cores_per_node, 1)


class Leases:
    """`shards_of`, `charge` and `end` are thread-safe. All other methods are for the ticking thread."""

    def __init__(
        self,
        records: JobRunStore,
        owner: str,
        limits: Limits,
        poll_seconds: float,
        clock: Clock,
    ) -> None:
        """`poll_seconds`: between two reads of the leases, and of a job run that others hold, while sessions wait."""
        self.limits = limits
        self._records = records
        self._owner = owner
        self._poll_seconds = poll_seconds
        self._clock = clock
        self._log = lease_log(records.store, clock)
        self._polled: dict[WorkId, _PolledJobRun] = {}
        self._checked_at_seconds: float | None = None
        self._lock = threading.Lock()
        self._to_end: dict[str, tuple[Lease, float | None]] = {}

    @property
    def newest(self) -> LeaseState:
        """The fold as last read or written here."""
        return self._log.newest.state

    def now(self) -> LeaseState:
        """Reads the log of leases. Raises the store's errors."""
        return self._log.load().state

    def refresh(self) -> None:
        """Reads the log of leases if it is due. Raises the store's errors."""
        now_seconds = self._clock.monotonic_seconds()
        if self._checked_at_seconds is None or now_seconds - self._checked_at_seconds >= self._poll_seconds:
            self._log.load()
            self._checked_at_seconds = now_seconds

    # -- order

    def blocked(
        self,
        mark: MarkedJobRun,
        streams: Collection[str],
        markers: Iterable[MarkedJobRun],
        claimed: Mapping[WorkId, JobRunState],
    ) -> dict[str, str]:
        """The streams on which another job run is ahead or runs, each with a sentence about it.

        Args:
            claimed: the newest states of the job runs that are claimed here"""
        in_the_way = [each for each in self.newest.turns.values() if _streams_taken(each, mark, streams)]
        leases = [each for each in in_the_way if not self._was_forgotten(each, claimed)]
        return blocked_streams(
            mark, streams, leases, ahead_of(mark, streams, markers), lambda work: self._state_of(work, claimed)
        )

    def has_lease(self, work: WorkId) -> bool:
        """Whether a lease of this job run has not ended, by the last read."""
        return bool(self.of(work))

    def lacks_slot(self, mark: MarkedJobRun) -> bool:
        """Whether a limit on sessions stops this job run from starting one, by the last read."""
        demand = Demand(self._owner, mark.table or "")
        return over_session_limit(self.newest, demand, self.limits, self._first(self.newest, mark)) is not None

    def lacks_own_share(self, mark: MarkedJobRun, cluster: ClusterPlan | None) -> bool:
        """Whether this dispatcher's own limits stop a cluster that another dispatcher may launch, by the last read."""
        if cluster is None:
            return False
        exceeded = self._exceeded(self.newest, mark.table or "", cluster, None)
        return exceeded is not None and exceeded.scope is LimitScope.DISPATCHER

    def forget_all_but(self, open_work: Collection[WorkId]) -> None:
        """Drops cached states of job runs that are no longer open."""
        for gone in self._polled.keys() - set(open_work):
            del self._polled[gone]

    def _state_of(self, work: WorkId, claimed: Mapping[WorkId, JobRunState]) -> JobRunState | None:
        """The job run's state; None: it cannot be read, which must not delay others."""
        state = claimed.get(work)
        if state is not None:
            return state
        polled = self._polled.setdefault(work, _PolledJobRun(self._records.log(work.text)))
        now_seconds = self._clock.monotonic_seconds()
        is_due = polled.checked_at_seconds is None or now_seconds - polled.checked_at_seconds >= self._poll_seconds
        is_empty = polled.log.newest.state.status is JobRunStatus.ABSENT  # its marker comes before its acceptance
        try:
            if is_due or is_empty:
                polled.log.load()
                polled.checked_at_seconds = now_seconds
        except LithifyError as error:
            if isinstance(error, Unavailable | Conflict) and not isinstance(error, Outdated):
                raise
            LOG.warning("job_run_ahead_not_read", job_run_id=str(work), reason=str(error))
            return None
        return polled.log.newest.state

    def _was_forgotten(self, lease: Lease, claimed: Mapping[WorkId, JobRunState]) -> bool:
        """Whether all of its sessions have ended by their job run's log; then ends the lease."""
        state = self._state_of(lease.work, claimed)
        if state is None or state.accepted is None:
            return False
        sessions = [state.sessions.get(session_id) for session_id in lease.session_ids]
        if state.ended is None and any(session is None or session.end is None for session in sessions):
            return False
        self.end(lease, usd_of_launches(lease, state))
        return True

    # -- taking and ending

    def take(
        self,
        request: LeaseRequest,
        markers: Iterable[MarkedJobRun],
        claimed: Mapping[WorkId, JobRunState],
    ) -> LeaseAnswer:
        """Takes a lease for the sessions whose streams are free, if there is a slot. Raises the store's errors: then it
        is not known whether a lease was taken."""
        mark = request.mark
        ahead = self.blocked(mark, set(request.streams.values()), markers, claimed)
        turn_id = self._clock.new_id()
        answers: list[LeaseAnswer] = []

        def decide(before: LogState[LeaseState]) -> Sequence[LeaseAction]:
            answer, actions = self._decide(request, ahead, before.state, turn_id)
            answers[:] = [answer]
            return actions

        try:
            # The last entry read is the log's end, or the entry's number is taken. Only a refusal must be of the end.
            if self._log.append(decide, self._log.newest).entry is None:
                self._log.append(decide)
        except Unavailable:
            if answers and answers[0].lease is not None:  # it may have been written
                self._remember_to_end(answers[0].lease, 0.0)
            raise
        return answers[0]

    def adopt(self, request: LeaseRequest) -> Lease:
        """Takes a lease for sessions that run already, regardless of limits and order, unless they have one. One whose
        end could not be written is none: it is written yet, or it was, and the answer was lost."""
        work, session_ids = work_of(request.mark), tuple(request.streams)
        new = self._lease(request, session_ids, self._clock.new_id())

        def held(state: LeaseState) -> Lease | None:
            lease = state.lease_of(work, session_ids)
            return None if lease is None or lease.turn_id in self._to_end else lease

        def decide(before: LogState[LeaseState]) -> Sequence[LeaseAction]:
            return [LeaseTaken(turn=new)] if held(before.state) is None else []

        return held(self.newest) or held(self._log.append(decide).after.state) or new

    def inherit(self, mark: MarkedJobRun, in_flight: Collection[str]) -> None:
        """Called after a claim of a job run that was claimed before: inherits leases of earlier claims that have a
        session in flight, and ends the others."""

        def decide(before: LogState[LeaseState]) -> Sequence[LeaseAction]:
            actions: list[LeaseAction] = []
            for lease in before.state.turns.values():
                if lease.job_run_id == mark.job_run_id and lease.epoch < mark.epoch:
                    if set(lease.session_ids).isdisjoint(in_flight):
                        actions.append(self._ended(lease, mark.epoch, None))
                    else:
                        actions.append(LeaseInherited(turn_id=lease.turn_id, epoch=mark.epoch, owner=self._owner))
            want = before.state.wants.get(mark.job_run_id)
            if want is not None and want.epoch < mark.epoch:
                actions.append(SlotReturned(job_run_id=mark.job_run_id, epoch=mark.epoch))
            return actions

        self._log.append(decide)

    def shards_of(self, job_run_id: str) -> tuple[JobRunState, Sequence[JobRunState]]:
        """The states of a job run and of its open shards, read now. Raises the store's errors."""
        whole = self._records.state(job_run_id)
        open_work = whole.shards.open_work(job_run_id) if whole.shards is not None else []
        names = [work.text for work in open_work]
        return whole, list(run_concurrently(self._records.store.location, self._records.state, names))

    def charge(self, lease: Lease, cluster: ClusterPlan, so_far: RunCost | None = None) -> QuotaExceeded | None:
        """Counts the cluster that will be launched for a lease. Returns the reached limit if there is no room for it.
        `so_far`: the cost of its job run, if there is a limit on that."""
        exceeded: list[QuotaExceeded] = []

        def decide(before: LogState[LeaseState]) -> Sequence[LeaseAction]:
            exceeded.clear()
            state, usd = before.state, cluster.usd_charged
            used = so_far.usd_beside(lease.turn_id, state.turns.values()) if so_far is not None else 0.0
            found = over_run_budget(used, usd, self.limits) if so_far is not None else None
            found = found or self._exceeded(state, lease.table, cluster, lease.turn_id)
            if found is not None:
                exceeded.append(found)
                return []
            return [
                LeaseCharged(
                    turn_id=lease.turn_id,
                    epoch=lease.epoch,
                    vcpus=vcpus_of(cluster),
                    usd=usd,
                    usd_hour=cluster.usd_hour_charged,
                )
            ]

        self._log.append(decide)
        return exceeded[0] if exceeded else None

    def end_all_of(self, work: WorkId, state: JobRunState) -> None:
        """Ends the leases of a job run: none of its sessions runs any more."""
        for lease in self.of(work):
            self.end(lease, usd_of_launches(lease, state))

    def of(self, work: WorkId) -> list[Lease]:
        """The leases of a job run that have not ended, by the last read."""
        return [lease for lease in self.newest.turns.values() if lease.work == work]

    def end(self, lease: Lease, usd: float | None) -> None:
        """Ends a lease. If the entry cannot be written now, `catch_up` writes it later. `usd`: as in `LeaseEnded`;
        None: not known, and counts as what may have run until now."""
        newest = self._log.newest
        try:
            before = newest if lease.turn_id in newest.state.turns else None
            self._log.append(lambda at: self._end_once(at.state, lease, usd), before)
        except LithifyError as error:
            LOG.warning("lease_not_ended", job_run_id=str(lease.work), reason=str(error))
            self._remember_to_end(lease, usd)

    def catch_up(self) -> None:
        """Ends leases that could not be ended before."""
        with self._lock:
            pending, self._to_end = self._to_end, {}
        for lease, usd in pending.values():
            self.end(lease, usd)

    def leave_all_but(self, kept: Collection[WorkId]) -> None:
        """Removes the wants of this dispatcher's job runs, except these. Raises the store's errors."""
        stale = [
            want
            for want in self.newest.wants.values()
            if want.owner == self._owner and WorkId.parse(want.job_run_id) not in kept
        ]
        if stale:
            self._log.append(
                lambda before: [
                    SlotReturned(job_run_id=want.job_run_id, epoch=want.epoch)
                    for want in stale
                    if want.job_run_id in before.state.wants
                ]
            )

    def _decide(
        self, request: LeaseRequest, ahead: Mapping[str, str], state: LeaseState, turn_id: str
    ) -> tuple[LeaseAnswer, Sequence[LeaseAction]]:
        mark = request.mark
        in_the_way = {**blocked_streams(mark, set(request.streams.values()), state.turns.values()), **ahead}
        blocked = {each: in_the_way[stream] for each, stream in request.streams.items() if stream in in_the_way}
        free = tuple(each for each in request.streams if each not in blocked)
        if not free:
            return LeaseAnswer(blocked=blocked), ()
        table = mark.table or ""
        exceeded = over_session_limit(state, Demand(self._owner, table), self.limits, self._first(state, mark))
        if exceeded is None and request.cluster is not None:
            exceeded = self._exceeded(state, table, request.cluster, None)
        if exceeded is None:
            lease = self._lease(request, free, turn_id)
            return LeaseAnswer(lease, blocked), [LeaseTaken(turn=lease)]
        if exceeded.is_money or mark.job_run_id in state.wants:
            return LeaseAnswer(blocked=blocked, exceeded=exceeded), ()
        want = Reservation(
            job_run_id=mark.job_run_id, epoch=mark.epoch, owner=self._owner, table=table, rank=rank_of(mark)
        )
        return LeaseAnswer(blocked=blocked, exceeded=exceeded), [SlotRequested(want=want)]

    def _first(self, state: LeaseState, mark: MarkedJobRun) -> list[Reservation]:
        """Wants of job runs with a higher rank than this one."""
        now_ms = self._clock.now_ms()
        own = slot_rank(rank_of(mark), now_ms, state.running_of(mark.table or ""))
        return [
            want
            for want in state.wants.values()
            if want.job_run_id != mark.job_run_id and slot_rank(want.rank, now_ms, state.running_of(want.table)) < own
        ]

    def _exceeded(
        self, state: LeaseState, table: str, cluster: ClusterPlan, turn_id: str | None
    ) -> QuotaExceeded | None:
        demand = Demand(self._owner, table, vcpus_of(cluster), cluster.usd_charged)
        return over_cluster_limit(state, demand, self.limits, turn_id) or over_budget(
            state, demand, self.limits, self._day(), turn_id
        )

    def _lease(self, request: LeaseRequest, session_ids: tuple[str, ...], turn_id: str) -> Lease:
        return Lease(
            turn_id=turn_id,
            job_run_id=request.mark.job_run_id,
            epoch=request.mark.epoch,
            owner=self._owner,
            table=request.mark.table or "",
            streams=tuple(sorted({request.streams[each] for each in session_ids})),
            session_ids=session_ids,
            began_at_ms=self._clock.now_ms(),
        )

    def _end_once(self, state: LeaseState, lease: Lease, usd: float | None) -> Sequence[LeaseAction]:
        existing = state.turns.get(lease.turn_id)
        return [] if existing is None else [self._ended(existing, lease.epoch, usd)]

    def _ended(self, lease: Lease, epoch: int, usd: float | None) -> LeaseEnded:
        known = usd if usd is not None else lease.usd_until(self._clock.now_ms())
        return LeaseEnded(turn_id=lease.turn_id, epoch=epoch, day=self._day(), usd=known)

    def _remember_to_end(self, lease: Lease, usd: float | None) -> None:
        with self._lock:
            self._to_end[lease.turn_id] = lease, usd

    def _day(self) -> str:
        return date_of(self._clock.now_ms()).isoformat()


def blocked_streams(
    mark: MarkedJobRun,
    streams: Collection[str],
    leases: Iterable[Lease],
    ahead: Iterable[MarkedJobRun] = (),
    state_of: Callable[[WorkId], JobRunState | None] = lambda _: None,
) -> dict[str, str]:
    """The streams on which another job run runs or is ahead, each with a sentence about it. Raises as `state_of`.

    Args:
        ahead: as from `ahead_of`
        state_of: called while a stream is left; None: its log cannot be read, which must not delay others"""
    found: dict[str, str] = {}
    for lease in leases:
        taken = _streams_taken(lease, mark, streams)
        found |= dict.fromkeys(taken, f"job run {lease.work.job_run_id} runs on its stream")
    for work in map(work_of, ahead):
        left = set(streams) - found.keys()
        if not left:
            break
        state = state_of(work)
        if state is not None:
            waits_for = left.intersection(open_streams(state))
            found |= dict.fromkeys(waits_for, f"job run {work.job_run_id} is ahead on its stream")
    return found


def _streams_taken(lease: Lease, mark: MarkedJobRun, streams: Collection[str]) -> set[str]:
    is_other = lease.table == mark.table and lease.job_run_id != mark.job_run_id
    return set(lease.streams).intersection(streams) if is_other else set()


def open_streams(state: JobRunState) -> set[str]:
    """The streams that a job run blocks for lower ranks: none while it is paused or waits for money."""
    if state.ended is not None or state.paused is not None or state.waits_for_money is not None:
        return set()
    return {stream_digest(session.pin.partition) for session in state.open_sessions()}


MONEY_SECONDS = 600.0
"""Pause before limits on money are checked again: a cheaper session frees some, the next day frees all."""

ROOM_SECONDS = 30.0
"""Pause before the limits on clusters and vCPUs are checked again."""


class LaunchGate:
    def __init__(self, claim: Claim, leases: Leases, lease: Lease | None, clock: Clock) -> None:
        """`lease` None: nothing will be launched."""
        self._claim = claim
        self._leases = leases
        self._lease = lease
        self._clock = clock

    def wait_seconds(self, cluster: ClusterPlan | None) -> float | None:
        """None: it may be launched, and its cluster counts from now on. Raises the state's store's errors."""
        if cluster is None or self._lease is None:
            return None
        is_limited = self._leases.limits.job_run.usd is not None
        exceeded = self._leases.charge(self._lease, cluster, self._cost_so_far() if is_limited else None)
        if exceeded is None:
            return None
        LOG.info("session_waits", reason=exceeded.reason)
        return seconds_of(exceeded, self._claim.log)

    def _cost_so_far(self) -> RunCost | None:
        """Of the whole job run, though other dispatchers may hold shards of it."""
        state = self._claim.log.newest.state
        if state.accepted is None:
            return None
        job_run_id, states, ended_usd = state.accepted.spec.job_run_id, [state], 0.0
        if state.accepted.shard is not None:
            whole, open_shards = self._leases.shards_of(job_run_id)
            states, ended_usd = [*open_shards, state], (whole.shards.usd or 0.0) if whole.shards is not None else 0.0
        now_ms = self._clock.now_ms()
        usd_of = {key: usd_at_most(each, now_ms) for found in states for key, each in found.sessions.items()}
        return RunCost(job_run_id, ended_usd, usd_of)


def seconds_of(exceeded: QuotaExceeded, log: JobRunLog) -> float:
    """How long it waits. A wait for money is logged in the job-run log and published once."""
    if not exceeded.is_money:
        return ROOM_SECONDS
    note_over_budget(log, exceeded)
    return MONEY_SECONDS


def note_over_budget(log: JobRunLog, exceeded: QuotaExceeded) -> None:
    def decide(before: LogState[JobRunState]) -> Sequence[JobRunAction]:
        state = before.state
        if not state.status.is_open or state.waits_for_money is not None:
            return []
        return [JobRunWaitsForMoney(reason=exceeded.reason, again=state.has_lacked_money)]

    log.append(decide, log.newest)


def usd_at_most(session: SessionState, now_ms: int) -> float:
    """The cost of its clusters so far; while one runs what that is expected to cost at most, if that is more."""
    used = total_usd([session_cost(session, now_ms)]) or 0.0
    if session.in_flight is None or session.plan is None or session.plan.cluster is None:
        return used
    running = (each for each in session.paid if each.launch == session.in_flight.name)
    running_usd = sum(each.cost(now_ms).total_usd for each in running)
    return used - running_usd + max(running_usd, session.plan.cluster.usd_charged)


def usd_of_launches(lease: Lease, state: JobRunState) -> float | None:
    """What the nodes of the launch under a lease have cost its sessions; nothing, if it was refused. None: it is not
    known of each. A session may be launched again under a later lease while others of this one run."""
    sessions = [state.sessions[each] for each in lease.session_ids if each in state.sessions]
    usd = 0.0
    for session in sessions:
        launch = next((each for each in session.paid if each.launched_at_ms >= lease.began_at_ms), None)
        if launch is None and session.in_flight is None:
            continue
        if launch is None or launch.use is None:
            return None
        usd += launch.use.usd
    return usd
