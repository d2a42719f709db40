"""The log of leases: the sessions that run in the whole state, with their job runs, streams and cost.

    (nothing) -- taken --> RUNS -- charged: its cluster is known --> RUNS -- ended --> its cost is booked
                            |
                            +-- inherited: another dispatcher has claimed the job run, and watches it now

A *lease* is for the work of one Spark job: one session, or several sessions of one job run. Its first entry decides
between dispatchers: a lease is refused if another one runs on the stream, or if a limit is reached. This log says which
sessions run; a job run's own log says how they ended. If a dispatcher dies, its leases are ended by the dispatcher that
claims the job run, or by a dispatcher that waits for the lease and finds that the job run has ended.

A *reservation* is of a job run that waits for a slot because a limit is reached. Job runs of lower rank leave that slot
free. What stands in the log, and in its state, has the names `turn` and `want`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Annotated, Literal, Self, assert_never

from pydantic import Field, TypeAdapter

from compactor.log.durable_log import DurableLog, LogFormat
from compactor.log.small_states import small_checkpoint
from compactor.model.clock import Clock
from compactor.model.document import Document
from compactor.storage.object_store import ObjectStore
from dispatcher.records.keys import TurnsLog
from dispatcher.records.work_id import WorkId
from dispatcher.scheduling.limits import Limits, LimitScope

DAYS_KEPT = 2
"""Days whose spending is in the log's state: the limit of a day applies until the day ends."""

IN_ALL = "all"


class Lease(Document):
    """
    Attributes:
        table, streams: digests, as in markers
        began_at_ms: by its dispatcher's clock, for money only
        vcpus, usd: of the cluster that is launched for it, and its expected cost, with all nodes that it may grow to;
            0: no cluster is launched
        usd_hour: cost of that cluster per hour, likewise"""

    turn_id: str
    job_run_id: str
    epoch: int
    owner: str
    table: str
    streams: tuple[str, ...]
    session_ids: tuple[str, ...]
    began_at_ms: int
    vcpus: int = 0
    usd: float = 0.0
    usd_hour: float = 0.0

    @property
    def work(self) -> WorkId:
        return WorkId.parse(self.job_run_id)

    def usd_until(self, at_ms: int) -> float:
        """The most that its cluster may have cost until a time."""
        return self.usd_hour * max(at_ms - self.began_at_ms, 0) / 3_600_000


class Reservation(Document):
    """A job run that waits for a slot. `rank`: a `StreamRank`."""

    job_run_id: str
    epoch: int
    owner: str
    table: str
    rank: tuple[int, int, int, str]


# ------------------------------------------------------------------------------------------------------ actions


class LeaseTaken(Document):
    action: Literal["turn_taken"] = "turn_taken"
    turn: Lease


class LeaseCharged(Document):
    """The lease is planned, and a cluster is launched for it now."""

    action: Literal["turn_charged"] = "turn_charged"
    turn_id: str
    epoch: int
    vcpus: int
    usd: float
    usd_hour: float


class LeaseInherited(Document):
    action: Literal["turn_inherited"] = "turn_inherited"
    turn_id: str
    epoch: int
    owner: str


class LeaseEnded(Document):
    """`usd`: booked on `day` (UTC): what the nodes cost that were launched for it, or else what may have run."""

    action: Literal["turn_ended"] = "turn_ended"
    turn_id: str
    epoch: int
    day: str
    usd: float = 0.0


class SlotRequested(Document):
    action: Literal["place_wanted"] = "place_wanted"
    want: Reservation


class SlotReturned(Document):
    action: Literal["place_not_wanted"] = "place_not_wanted"
    job_run_id: str
    epoch: int


LeaseAction = Annotated[
    LeaseTaken | LeaseCharged | LeaseInherited | LeaseEnded | SlotRequested | SlotReturned,
    Field(discriminator="action"),
]


# --------------------------------------------------------------------------------------------------------- fold


@dataclass(frozen=True)
class LeaseState:
    """
    Attributes:
        turns: leases, by id
        wants: by job run
        spent: US dollars by day, then by share: `IN_ALL`, `of_table`, `of_owner`"""

    turns: Mapping[str, Lease] = field(default_factory=lambda: MappingProxyType({}))
    wants: Mapping[str, Reservation] = field(default_factory=lambda: MappingProxyType({}))
    spent: Mapping[str, Mapping[str, float]] = field(default_factory=lambda: MappingProxyType({}))

    def lease_of(self, work: WorkId, session_ids: Iterable[str]) -> Lease | None:
        """The newest lease that has one of these sessions; None if there is none. A session that is tried again apart
        has one of its own, while those that it shared a lease with still run under theirs."""
        wanted = frozenset(session_ids)
        found = [each for each in self.turns.values() if each.work == work and not wanted.isdisjoint(each.session_ids)]
        return found[-1] if found else None

    def running_of(self, table: str) -> int:
        return sum(each.table == table for each in self.turns.values())

    def with_spent(self, day: str, table: str, owner: str, usd: float) -> Self:
        spent = {each: dict(amounts) for each, amounts in self.spent.items()}
        of_day = spent.setdefault(day, {})
        for scope in (IN_ALL, of_table(table), of_owner(owner)):
            of_day[scope] = of_day.get(scope, 0.0) + usd
        kept = {each: MappingProxyType(spent[each]) for each in sorted(spent)[-DAYS_KEPT:]}
        return replace(self, spent=MappingProxyType(kept))


def of_table(table: str) -> str:
    return f"table {table}"


def of_owner(owner: str) -> str:
    return f"dispatcher {owner}"


def apply(state: LeaseState, action: LeaseAction) -> LeaseState:
    """The state after one more action. Ignores those on a lease that a later claim gave to another dispatcher."""
    match action:
        case LeaseTaken(turn=lease):
            wants = {key: want for key, want in state.wants.items() if key != lease.job_run_id}
            return replace(
                state,
                turns=MappingProxyType({**state.turns, lease.turn_id: lease}),
                wants=MappingProxyType(wants),
            )
        case LeaseCharged():
            figures = {"vcpus": action.vcpus, "usd": action.usd, "usd_hour": action.usd_hour}
            return _with_lease(state, action, figures)
        case LeaseInherited():
            return _with_lease(state, action, {"epoch": action.epoch, "owner": action.owner})
        case LeaseEnded():
            return _ended(state, action)
        case SlotRequested(want=want):
            return replace(state, wants=MappingProxyType({**state.wants, want.job_run_id: want}))
        case SlotReturned():
            existing = state.wants.get(action.job_run_id)
            if existing is None or existing.epoch > action.epoch:
                return state
            wants = {key: want for key, want in state.wants.items() if key != action.job_run_id}
            return replace(state, wants=MappingProxyType(wants))
        case _:
            assert_never(action)


def _with_lease(state: LeaseState, action: LeaseCharged | LeaseInherited, figures: Mapping[str, object]) -> LeaseState:
    lease = state.turns.get(action.turn_id)
    if lease is None or lease.epoch > action.epoch:
        return state
    return replace(
        state, turns=MappingProxyType({**state.turns, lease.turn_id: lease.model_copy(update=dict(figures))})
    )


def _ended(state: LeaseState, action: LeaseEnded) -> LeaseState:
    lease = state.turns.get(action.turn_id)
    if lease is None or lease.epoch > action.epoch:
        return state
    leases = {key: each for key, each in state.turns.items() if key != action.turn_id}
    ended = replace(state, turns=MappingProxyType(leases))
    return ended.with_spent(action.day, lease.table, lease.owner, action.usd) if action.usd else ended


LEASE_LOG: LogFormat[LeaseState, LeaseAction] = LogFormat(
    name="turns",
    action_type=TypeAdapter(LeaseAction),
    initial=LeaseState(),
    apply=apply,
    checkpoint=small_checkpoint(LeaseState),
)
LeaseLog = DurableLog[LeaseState, LeaseAction]


def lease_log(store: ObjectStore, clock: Clock) -> LeaseLog:
    """Of a dispatcher state."""
    return DurableLog(store, TurnsLog().key, LEASE_LOG, clock)


# ------------------------------------------------------------------------------------------------------- limits


@dataclass(frozen=True)
class Demand:
    """The demand of a lease, and the owner and table whose limits apply. `vcpus` 0: no cluster is launched for it."""

    owner: str
    table: str
    vcpus: int = 0
    usd: float = 0.0


@dataclass(frozen=True)
class QuotaExceeded:
    """Why there is no slot now. `is_money`: a limit on money is reached, and the wait may be long."""

    reason: str
    scope: LimitScope
    is_money: bool = False


def over_session_limit(
    state: LeaseState, demand: Demand, limits: Limits, wanted: Iterable[Reservation]
) -> QuotaExceeded | None:
    """A limit on sessions that is reached; None: there is a place. `wanted`: the wants of job runs of higher rank."""
    first = list(wanted)
    of_table_first = sum(want.table == demand.table for want in first)
    bounds = (
        (limits.all.sessions, len(state.turns) + len(first), LimitScope.ALL),
        (limits.table.sessions, state.running_of(demand.table) + of_table_first, LimitScope.TABLE),
    )
    for most, running, scope in bounds:
        if most is not None and running >= most:
            return QuotaExceeded(f"{running} sessions of {scope} run, or go first, and {most} may", scope)
    return None


def over_cluster_limit(state: LeaseState, demand: Demand, limits: Limits, turn_id: str | None) -> QuotaExceeded | None:
    """A limit on clusters or vCPUs that is reached, without the share of lease `turn_id`; None: there is room."""
    if not demand.vcpus:
        return None
    for scope, leases in _shares(state, demand, turn_id).items():
        running, limit = sum(each.vcpus > 0 for each in leases), limits.of(scope)
        if limit.clusters is not None and running >= limit.clusters:
            return QuotaExceeded(f"{running} clusters of {scope} run, and {limit.clusters} may", scope)
        used = sum(each.vcpus for each in leases)
        if limit.vcpus is not None and used + demand.vcpus > limit.vcpus:
            return QuotaExceeded(
                f"{used} vCPUs of {scope} are in use, it takes {demand.vcpus} more, and {limit.vcpus} may be in use",
                scope,
            )
    return None


def over_budget(
    state: LeaseState, demand: Demand, limits: Limits, day: str, turn_id: str | None = None
) -> QuotaExceeded | None:
    """A limit on money per day that is reached: by spent money and the expected cost of the other running leases."""
    spent = state.spent.get(day, {})
    names = (of_owner(demand.owner), of_table(demand.table), IN_ALL)
    for (scope, leases), name in zip(_shares(state, demand, turn_id).items(), names, strict=True):
        used, most = spent.get(name, 0.0) + sum(each.usd for each in leases), limits.of(scope).usd_per_day
        if most is not None and demand.usd and used + demand.usd > most:
            return QuotaExceeded(
                f"it is expected to cost ${demand.usd:,.2f}; of the ${most:,.2f} that {scope} may spend on {day}, "
                f"${used:,.2f} are spent or planned",
                scope,
                is_money=True,
            )
    return None


@dataclass(frozen=True)
class RunCost:
    """The cost of a job run's clusters so far.

    Attributes:
        ended_usd: of shards that have ended
        usd_of: of each session of the job run or of its open shards, expected for those in flight"""

    job_run_id: str
    ended_usd: float
    usd_of: Mapping[str, float]

    def usd_beside(self, turn_id: str, leases: Iterable[Lease]) -> float:
        """With the other leases that run now: a cluster may have been charged since the sessions were read."""
        running = [each for each in leases if each.work.job_run_id == self.job_run_id and each.turn_id != turn_id]
        in_leases = {session_id for each in running for session_id in each.session_ids}
        others = sum(usd for session_id, usd in self.usd_of.items() if session_id not in in_leases)
        known = (sum(self.usd_of.get(session_id, 0.0) for session_id in each.session_ids) for each in running)
        return self.ended_usd + others + sum(max(each.usd, usd) for each, usd in zip(running, known))


def over_run_budget(used: float, usd: float, limits: Limits) -> QuotaExceeded | None:
    """The limit on money of one job run, if it is reached. `used`: cost of its sessions, expected for running ones."""
    most = limits.job_run.usd
    if most is None or not usd or used + usd <= most:
        return None
    return QuotaExceeded(
        f"it is expected to cost ${usd:,.2f} more; of the ${most:,.2f} that a job run may spend, ${used:,.2f} are "
        "spent or planned",
        LimitScope.RUN,
        is_money=True,
    )


def _shares(state: LeaseState, demand: Demand, turn_id: str | None) -> dict[LimitScope, list[Lease]]:
    others = [each for each in state.turns.values() if each.turn_id != turn_id]
    return {
        LimitScope.DISPATCHER: [each for each in others if each.owner == demand.owner],
        LimitScope.TABLE: [each for each in others if each.table == demand.table],
        LimitScope.ALL: others,
    }
