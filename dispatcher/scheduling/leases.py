"""Turns of this dispatcher's sessions: taken before sessions start, ended when none of them runs any more.

Markers and turns decide the order on a stream. The markers of all open job runs give their ranks: a dispatcher lists
them before it takes a turn, and reads the logs of job runs ahead, whose sessions of that stream may have ended. The log
of turns says which sessions run; its entry decides between two dispatchers that take a turn at the same time.

    markers listed --none ahead--> turn taken --> session runs --> session's end in its log --> turn ended

A turn outlives its dispatcher, as its Spark job does: the dispatcher that claims the job run inherits the turn, or ends
it if none of its sessions runs. A forgotten turn is ended by a dispatcher that waits for it, once the logs say that its
sessions have ended.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import structlog

from compactor.log.durable_log import DurableLog, LogState
from compactor.model.clock import Clock
from compactor.model.errors import Conflict, LithifyError, Outdated, Unavailable
from compactor.planning.cluster_plan import ClusterPlan
from compactor.storage.concurrently import run_concurrently
from dispatcher.records.claims import JobRunLog
from dispatcher.records.job_run_log import JobRunState, JobRunStatus
from dispatcher.records.job_run_store import JobRunStore
from dispatcher.records.keys import MarkedJobRun, TurnsLog
from dispatcher.records.ranking import ahead_of, place_rank, rank_of, stream_digest, work_of
from dispatcher.records.work_id import WorkId
from dispatcher.scheduling.lease_log import (
    TURN_LOG,
    Demand,
    Lack,
    PlaceNotWanted,
    PlaceWanted,
    RunCost,
    Turn,
    TurnAction,
    TurnCharged,
    TurnEnded,
    TurnInherited,
    TurnState,
    TurnTaken,
    Want,
    lack_of_clusters,
    lack_of_money,
    lack_of_run_money,
    lack_of_sessions,
)
from dispatcher.scheduling.limits import Limits, LimitScope

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class TurnRequest:
    """The sessions that would start.

    mark     the marker of their job run while it is held
    streams  digests of their streams, by session id; these sessions share a Spark job
    cluster  of the last plan; None: no cluster, or not planned yet
    """

    mark: MarkedJobRun
    streams: Mapping[str, str]
    cluster: ClusterPlan | None = None


@dataclass(frozen=True)
class TurnAnswer:
    """
    turn     of the sessions that may start; None: none may
    blocked  by session id: the job run that is ahead or runs on its stream
    lack     why none may start although a stream is free
    """

    turn: Turn | None = None
    blocked: Mapping[str, str] = field(default_factory=dict)
    lack: Lack | None = None


@dataclass
class _SeenJobRun:
    log: JobRunLog
    checked_at_seconds: float | None = None


def vcpus_of(cluster: ClusterPlan) -> int:
    """vCPUs of its worker nodes at their maximal number: at least 1, since 0 means no cluster."""
    return max(cluster.nodes_max * cluster.cores_per_node, 1)


class Turns:
    """`shards_of`, `charge` and `end` are thread-safe. All other methods are for the ticking thread."""

    def __init__(
        self,
        records: JobRunStore,
        owner: str,
        limits: Limits,
        look_seconds: float,
        clock: Clock,
    ) -> None:
        """`look_seconds`: between two reads of the turns, and of a job run that others hold, while sessions wait."""
        self.limits = limits
        self._records = records
        self._owner = owner
        self._look_seconds = look_seconds
        self._clock = clock
        self._log: DurableLog[TurnState, TurnAction] = DurableLog(records.store, TurnsLog().key, TURN_LOG, clock)
        self._seen: dict[WorkId, _SeenJobRun] = {}
        self._checked_at_seconds: float | None = None
        self._lock = threading.Lock()
        self._to_end: dict[str, Turn] = {}

    @property
    def newest(self) -> TurnState:
        """The fold as last read or written here."""
        return self._log.newest.state

    def now(self) -> TurnState:
        """Reads the log of turns. Raises the store's errors."""
        return self._log.load().state

    def refresh(self) -> None:
        """Reads the log of turns if it is due. Raises the store's errors."""
        now_seconds = self._clock.monotonic_seconds()
        if self._checked_at_seconds is None or now_seconds - self._checked_at_seconds >= self._look_seconds:
            self._log.load()
            self._checked_at_seconds = now_seconds

    # -- order

    def blocked(
        self,
        mark: MarkedJobRun,
        streams: Collection[str],
        markers: Iterable[MarkedJobRun],
        held: Callable[[WorkId], JobRunState | None],
    ) -> dict[str, str]:
        """The streams on which another job run is ahead or runs, each with a sentence about it.

        held  the newest state of a job run that is held here
        """
        found: dict[str, str] = {}
        for turn in self.newest.turns.values():
            if turn.table == mark.table and turn.job_run_id != mark.job_run_id:
                in_the_way = set(turn.streams).intersection(streams)
                if in_the_way and not self._was_forgotten(turn, held):
                    found |= dict.fromkeys(in_the_way, f"job run {turn.work.job_run_id} runs on its stream")
        for ahead in ahead_of(mark, streams, markers):
            left = set(streams) - found.keys()
            if not left:
                break
            state = self._state_of(work_of(ahead), held)
            if state is not None:
                waits_for = left.intersection(open_streams(state))
                found |= dict.fromkeys(waits_for, f"job run {work_of(ahead).job_run_id} is ahead on its stream")
        return found

    def has_turn(self, work: WorkId) -> bool:
        """Whether a turn of this job run has not ended, by the last read."""
        return any(turn.work == work for turn in self.newest.turns.values())

    def lacks_place(self, mark: MarkedJobRun) -> bool:
        """Whether a limit on sessions stops this job run from starting one, by the last read."""
        demand = Demand(self._owner, mark.table or "")
        return lack_of_sessions(self.newest, demand, self.limits, self._first(self.newest, mark)) is not None

    def lacks_own_share(self, mark: MarkedJobRun, cluster: ClusterPlan | None) -> bool:
        """Whether this dispatcher's own limits stop a cluster that another dispatcher may launch, by the last read."""
        if cluster is None:
            return False
        lack = self._lack(self.newest, mark.table or "", cluster, None)
        return lack is not None and lack.scope is LimitScope.DISPATCHER

    def forget_all_but(self, open_work: Collection[WorkId]) -> None:
        """Drops cached states of job runs that are no longer open."""
        for gone in self._seen.keys() - set(open_work):
            del self._seen[gone]

    def _state_of(self, work: WorkId, held: Callable[[WorkId], JobRunState | None]) -> JobRunState | None:
        """The job run's state; None: it cannot be read, which must not delay others."""
        state = held(work)
        if state is not None:
            return state
        seen = self._seen.setdefault(work, _SeenJobRun(self._records.log(work.text)))
        now_seconds = self._clock.monotonic_seconds()
        is_due = seen.checked_at_seconds is None or now_seconds - seen.checked_at_seconds >= self._look_seconds
        is_empty = seen.log.newest.state.status is JobRunStatus.ABSENT  # its marker comes before its acceptance
        try:
            if is_due or is_empty:
                seen.log.load()
                seen.checked_at_seconds = now_seconds
        except LithifyError as error:
            if isinstance(error, Unavailable | Conflict) and not isinstance(error, Outdated):
                raise
            _log.warning("job_run_ahead_not_read", job_run_id=str(work), reason=str(error))
            return None
        return seen.log.newest.state

    def _was_forgotten(self, turn: Turn, held: Callable[[WorkId], JobRunState | None]) -> bool:
        """Whether all of its sessions have ended by their job run's log; then ends the turn."""
        state = self._state_of(turn.work, held)
        if state is None or state.accepted is None:
            return False
        sessions = [state.sessions.get(session_id) for session_id in turn.session_ids]
        if state.ended is None and any(session is None or session.end is None for session in sessions):
            return False
        self.end(turn)
        return True

    # -- taking and ending

    def take(
        self,
        request: TurnRequest,
        markers: Iterable[MarkedJobRun],
        held: Callable[[WorkId], JobRunState | None],
    ) -> TurnAnswer:
        """Takes a turn for the sessions whose streams are free, if there is a place. Raises the store's errors: then it
        is not known whether a turn was taken."""
        mark = request.mark
        ahead = self.blocked(mark, set(request.streams.values()), markers, held)
        turn_id = self._clock.new_id()
        answers: list[TurnAnswer] = []

        def decide(before: LogState[TurnState]) -> Sequence[TurnAction]:
            answer, actions = self._decide(request, ahead, before.state, turn_id)
            answers[:] = [answer]
            return actions

        try:
            # The last entry read is the log's end, or the entry's number is taken. Only a refusal must be of the end.
            if self._log.append(decide, self._log.newest).entry is None:
                self._log.append(decide)
        except Unavailable:
            if answers and answers[0].turn is not None:  # it may have been written
                self._remember_to_end(answers[0].turn)
            raise
        return answers[0]

    def adopt(self, request: TurnRequest) -> Turn:
        """Takes a turn for sessions that run already, regardless of limits and order."""
        work, session_ids = work_of(request.mark), tuple(request.streams)
        new = self._turn(request, session_ids, self._clock.new_id())

        def decide(before: LogState[TurnState]) -> Sequence[TurnAction]:
            return [TurnTaken(turn=new)] if before.state.turn_of(work, session_ids) is None else []

        existing = self.newest.turn_of(work, session_ids)
        return existing or self._log.append(decide).after.state.turn_of(work, session_ids) or new

    def inherit(self, mark: MarkedJobRun, in_flight: Collection[str]) -> None:
        """Called after a claim of a job run that was claimed before: inherits turns of earlier claims that have a
        session in flight, and ends the others."""

        def decide(before: LogState[TurnState]) -> Sequence[TurnAction]:
            actions: list[TurnAction] = []
            for turn in before.state.turns.values():
                if turn.job_run_id == mark.job_run_id and turn.epoch < mark.epoch:
                    if set(turn.session_ids).isdisjoint(in_flight):
                        actions.append(self._ended(turn, mark.epoch))
                    else:
                        actions.append(TurnInherited(turn_id=turn.turn_id, epoch=mark.epoch, owner=self._owner))
            want = before.state.wants.get(mark.job_run_id)
            if want is not None and want.epoch < mark.epoch:
                actions.append(PlaceNotWanted(job_run_id=mark.job_run_id, epoch=mark.epoch))
            return actions

        self._log.append(decide)

    def shards_of(self, job_run_id: str) -> tuple[JobRunState, Sequence[JobRunState]]:
        """The states of a job run and of its open shards, read now. Raises the store's errors."""
        whole = self._records.state(job_run_id)
        open_work = whole.shards.open_work(job_run_id) if whole.shards is not None else []
        names = [work.text for work in open_work]
        return whole, list(run_concurrently(self._records.store.location, self._records.state, names))

    def charge(self, turn: Turn, cluster: ClusterPlan, so_far: RunCost | None = None) -> Lack | None:
        """Counts the cluster that will be launched for a turn. Returns the reached limit if there is no room for it.
        `so_far`: the cost of its job run, if there is a limit on that."""
        lack: list[Lack] = []

        def decide(before: LogState[TurnState]) -> Sequence[TurnAction]:
            lack.clear()
            state, usd = before.state, cluster.cost.total_usd
            used = so_far.usd_beside(turn.turn_id, state.turns.values()) if so_far is not None else 0.0
            found = lack_of_run_money(used, usd, self.limits) if so_far is not None else None
            found = found or self._lack(state, turn.table, cluster, turn.turn_id)
            if found is not None:
                lack.append(found)
                return []
            return [
                TurnCharged(
                    turn_id=turn.turn_id,
                    epoch=turn.epoch,
                    vcpus=vcpus_of(cluster),
                    usd=usd,
                    usd_hour=cluster.rates.usd_hour,
                )
            ]

        self._log.append(decide)
        return lack[0] if lack else None

    def end_all_of(self, work: WorkId, session_ids: Collection[str] | None = None) -> None:
        """Ends the turns of a job run, or of these sessions of it: none of them runs any more."""
        for turn in list(self.newest.turns.values()):
            if turn.work == work and (session_ids is None or not set(session_ids).isdisjoint(turn.session_ids)):
                self.end(turn)

    def end(self, turn: Turn) -> None:
        """Ends a turn. If the entry cannot be written now, `catch_up` writes it later."""
        newest = self._log.newest
        try:
            before = newest if turn.turn_id in newest.state.turns else None
            self._log.append(lambda at: self._end_once(at.state, turn), before)
        except LithifyError as error:
            _log.warning("turn_not_ended", job_run_id=str(turn.work), reason=str(error))
            self._remember_to_end(turn)

    def catch_up(self) -> None:
        """Ends turns that could not be ended before."""
        with self._lock:
            pending, self._to_end = self._to_end, {}
        for turn in pending.values():
            self.end(turn)

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
                    PlaceNotWanted(job_run_id=want.job_run_id, epoch=want.epoch)
                    for want in stale
                    if want.job_run_id in before.state.wants
                ]
            )

    def _decide(
        self, request: TurnRequest, ahead: Mapping[str, str], state: TurnState, turn_id: str
    ) -> tuple[TurnAnswer, Sequence[TurnAction]]:
        mark = request.mark
        busy = {
            stream: f"job run {turn.work.job_run_id} runs on its stream"
            for turn in state.turns.values()
            if turn.table == mark.table and turn.job_run_id != mark.job_run_id
            for stream in turn.streams
        }
        in_the_way = {**busy, **ahead}
        blocked = {each: in_the_way[stream] for each, stream in request.streams.items() if stream in in_the_way}
        free = tuple(each for each in request.streams if each not in blocked)
        if not free:
            return TurnAnswer(blocked=blocked), ()
        table = mark.table or ""
        lack = lack_of_sessions(state, Demand(self._owner, table), self.limits, self._first(state, mark))
        if lack is None and request.cluster is not None:
            lack = self._lack(state, table, request.cluster, None)
        if lack is None:
            turn = self._turn(request, free, turn_id)
            return TurnAnswer(turn, blocked), [TurnTaken(turn=turn)]
        if lack.is_money or mark.job_run_id in state.wants:
            return TurnAnswer(blocked=blocked, lack=lack), ()
        want = Want(job_run_id=mark.job_run_id, epoch=mark.epoch, owner=self._owner, table=table, rank=rank_of(mark))
        return TurnAnswer(blocked=blocked, lack=lack), [PlaceWanted(want=want)]

    def _first(self, state: TurnState, mark: MarkedJobRun) -> list[Want]:
        """Wants of job runs with a higher rank than this one."""
        now_ms = self._clock.now_ms()
        own = place_rank(rank_of(mark), now_ms, state.running_of(mark.table or ""))
        return [
            want
            for want in state.wants.values()
            if want.job_run_id != mark.job_run_id and place_rank(want.rank, now_ms, state.running_of(want.table)) < own
        ]

    def _lack(self, state: TurnState, table: str, cluster: ClusterPlan, turn_id: str | None) -> Lack | None:
        demand = Demand(self._owner, table, vcpus_of(cluster), cluster.cost.total_usd)
        return lack_of_clusters(state, demand, self.limits, turn_id) or lack_of_money(
            state, demand, self.limits, self._day(), turn_id
        )

    def _turn(self, request: TurnRequest, session_ids: tuple[str, ...], turn_id: str) -> Turn:
        return Turn(
            turn_id=turn_id,
            job_run_id=request.mark.job_run_id,
            epoch=request.mark.epoch,
            owner=self._owner,
            table=request.mark.table or "",
            streams=tuple(sorted({request.streams[each] for each in session_ids})),
            session_ids=session_ids,
            began_at_ms=self._clock.now_ms(),
        )

    def _end_once(self, state: TurnState, turn: Turn) -> Sequence[TurnAction]:
        existing = state.turns.get(turn.turn_id)
        return [] if existing is None else [self._ended(existing, turn.epoch)]

    def _ended(self, turn: Turn, epoch: int) -> TurnEnded:
        usd = turn.usd_until(self._clock.now_ms())
        return TurnEnded(turn_id=turn.turn_id, epoch=epoch, day=self._day(), usd=usd)

    def _remember_to_end(self, turn: Turn) -> None:
        with self._lock:
            self._to_end[turn.turn_id] = turn

    def _day(self) -> str:
        return datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC).strftime("%Y-%m-%d")


def open_streams(state: JobRunState) -> set[str]:
    """The streams that a job run blocks for lower ranks: none while it is paused or waits for money."""
    if state.ended is not None or state.paused is not None or state.waits_for_money is not None:
        return set()
    return {stream_digest(session.pin.partition) for session in state.open_sessions()}
