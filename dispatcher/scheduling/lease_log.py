"""The log of turns: the sessions that run in the whole state, with their job runs, streams and cost.

    (nothing) -- taken --> RUNS -- charged: its cluster is known --> RUNS -- ended --> its cost is booked
                            |
                            +-- inherited: another dispatcher has claimed the job run, and watches it now

A *turn* is the work of one Spark job: one session, or several sessions of one job run. Its first entry decides between
dispatchers: a turn is refused if another one runs on the stream, or if a limit is reached. This log says which sessions
run; a job run's own log says how they ended. If a dispatcher dies, its turns are ended by the dispatcher that claims
the job run, or by a dispatcher that waits for the turn and finds that the job run has ended.

A *want* is a job run that waits for a place because a limit is reached. Job runs of lower rank leave that place free.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Annotated, Literal, assert_never

from pydantic import Field, TypeAdapter

from compactor.log.durable_log import LogFormat
from compactor.log.small_states import small_checkpoint
from compactor.model.document import Document
from dispatcher.records.work_id import WorkId
from dispatcher.scheduling.limits import Limits, LimitScope

DAYS_KEPT = 2
"""Days whose spending is in the log's state: the limit of a day applies until the day ends."""

IN_ALL = "all"


class Turn(Document):
    """
    table, streams  digests, as in markers
    began_at_ms     by its dispatcher's clock, for money only
    vcpus, usd      of the cluster that is launched for it, and its expected cost; 0: no cluster is launched
    usd_hour        cost of that cluster per hour
    """

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
        """The cost of its cluster until a time."""
        return self.usd_hour * max(at_ms - self.began_at_ms, 0) / 3_600_000


class Want(Document):
    """A job run that waits for a place. `rank`: a `StreamRank`."""

    job_run_id: str
    epoch: int
    owner: str
    table: str
    rank: tuple[int, int, int, str]


# ------------------------------------------------------------------------------------------------------ actions


class TurnTaken(Document):
    action: Literal["turn_taken"] = "turn_taken"
    turn: Turn


class TurnCharged(Document):
    """The turn is planned, and a cluster is launched for it now."""

    action: Literal["turn_charged"] = "turn_charged"
    turn_id: str
    epoch: int
    vcpus: int
    usd: float
    usd_hour: float


class TurnInherited(Document):
    action: Literal["turn_inherited"] = "turn_inherited"
    turn_id: str
    epoch: int
    owner: str


class TurnEnded(Document):
    """`usd`: its cost, booked on `day` (UTC)."""

    action: Literal["turn_ended"] = "turn_ended"
    turn_id: str
    epoch: int
    day: str
    usd: float = 0.0


class PlaceWanted(Document):
    action: Literal["place_wanted"] = "place_wanted"
    want: Want


class PlaceNotWanted(Document):
    action: Literal["place_not_wanted"] = "place_not_wanted"
    job_run_id: str
    epoch: int


TurnAction = Annotated[
    TurnTaken | TurnCharged | TurnInherited | TurnEnded | PlaceWanted | PlaceNotWanted, Field(discriminator="action")
]


# --------------------------------------------------------------------------------------------------------- fold


@dataclass(frozen=True)
class TurnState:
    """
    turns  by id
    wants  by job run
    spent  US dollars by day, then by share: `IN_ALL`, `of_table`, `of_owner`
    """

    turns: Mapping[str, Turn] = field(default_factory=lambda: MappingProxyType({}))
    wants: Mapping[str, Want] = field(default_factory=lambda: MappingProxyType({}))
    spent: Mapping[str, Mapping[str, float]] = field(default_factory=lambda: MappingProxyType({}))

    def turn_of(self, work: WorkId, session_ids: Iterable[str]) -> Turn | None:
        """The turn that has one of these sessions; None if there is none."""
        wanted = frozenset(session_ids)
        found = (each for each in self.turns.values() if each.work == work)
        return next((each for each in found if not wanted.isdisjoint(each.session_ids)), None)

    def running_of(self, table: str) -> int:
        return sum(each.table == table for each in self.turns.values())


def of_table(table: str) -> str:
    return f"table {table}"


def of_owner(owner: str) -> str:
    return f"dispatcher {owner}"


def apply(state: TurnState, action: TurnAction) -> TurnState:
    """The state after one more action. Ignores a dispatcher's actions on a turn that a later claim gave to another
    one."""
    match action:
        case TurnTaken(turn=turn):
            wants = {key: want for key, want in state.wants.items() if key != turn.job_run_id}
            return replace(
                state,
                turns=MappingProxyType({**state.turns, turn.turn_id: turn}),
                wants=MappingProxyType(wants),
            )
        case TurnCharged():
            figures = {"vcpus": action.vcpus, "usd": action.usd, "usd_hour": action.usd_hour}
            return _with_turn(state, action, figures)
        case TurnInherited():
            return _with_turn(state, action, {"epoch": action.epoch, "owner": action.owner})
        case TurnEnded():
            return _ended(state, action)
        case PlaceWanted(want=want):
            return replace(state, wants=MappingProxyType({**state.wants, want.job_run_id: want}))
        case PlaceNotWanted():
            existing = state.wants.get(action.job_run_id)
            if existing is None or existing.epoch > action.epoch:
                return state
            wants = {key: want for key, want in state.wants.items() if key != action.job_run_id}
            return replace(state, wants=MappingProxyType(wants))
        case _:
            assert_never(action)


def _with_turn(state: TurnState, action: TurnCharged | TurnInherited, figures: Mapping[str, object]) -> TurnState:
    turn = state.turns.get(action.turn_id)
    if turn is None or turn.epoch > action.epoch:
        return state
    return replace(state, turns=MappingProxyType({**state.turns, turn.turn_id: turn.model_copy(update=dict(figures))}))


def _ended(state: TurnState, action: TurnEnded) -> TurnState:
    turn = state.turns.get(action.turn_id)
    if turn is None or turn.epoch > action.epoch:
        return state
    turns = {key: each for key, each in state.turns.items() if key != action.turn_id}
    spent = {day: dict(amounts) for day, amounts in state.spent.items()}
    if action.usd:
        of_day = spent.setdefault(action.day, {})
        for scope in (IN_ALL, of_table(turn.table), of_owner(turn.owner)):
            of_day[scope] = of_day.get(scope, 0.0) + action.usd
    kept = {day: MappingProxyType(spent[day]) for day in sorted(spent)[-DAYS_KEPT:]}
    return replace(state, turns=MappingProxyType(turns), spent=MappingProxyType(kept))


TURN_LOG: LogFormat[TurnState, TurnAction] = LogFormat(
    name="turns",
    action_type=TypeAdapter(TurnAction),
    initial=TurnState(),
    apply=apply,
    checkpoint=small_checkpoint(TurnState),
)


# ------------------------------------------------------------------------------------------------------- limits


@dataclass(frozen=True)
class Demand:
    """The demand of a turn, and the owner and table whose limits apply. `vcpus` 0: no cluster is launched for it."""

    owner: str
    table: str
    vcpus: int = 0
    usd: float = 0.0


@dataclass(frozen=True)
class Lack:
    """Why there is no place now. `is_money`: a limit on money is reached, and the wait may be long."""

    reason: str
    scope: LimitScope
    is_money: bool = False


def lack_of_sessions(state: TurnState, demand: Demand, limits: Limits, wanted: Iterable[Want]) -> Lack | None:
    """A limit on sessions that is reached; None: there is a place. `wanted`: the wants of job runs of higher rank."""
    first = list(wanted)
    of_table_first = sum(want.table == demand.table for want in first)
    bounds = (
        (limits.all.sessions, len(state.turns) + len(first), LimitScope.ALL),
        (limits.table.sessions, state.running_of(demand.table) + of_table_first, LimitScope.TABLE),
    )
    for most, running, scope in bounds:
        if most is not None and running >= most:
            return Lack(f"{running} sessions of {scope} run, or go first, and {most} may", scope)
    return None


def lack_of_clusters(state: TurnState, demand: Demand, limits: Limits, turn_id: str | None = None) -> Lack | None:
    """A limit on clusters or vCPUs that is reached, without the share of turn `turn_id`; None: there is room."""
    if not demand.vcpus:
        return None
    for scope, turns in _shares(state, demand, turn_id).items():
        running, limit = sum(each.vcpus > 0 for each in turns), limits.of(scope)
        if limit.clusters is not None and running >= limit.clusters:
            return Lack(f"{running} clusters of {scope} run, and {limit.clusters} may", scope)
        used = sum(each.vcpus for each in turns)
        if limit.vcpus is not None and used + demand.vcpus > limit.vcpus:
            return Lack(
                f"{used} vCPUs of {scope} are in use, it takes {demand.vcpus} more, and {limit.vcpus} may be in use",
                scope,
            )
    return None


def lack_of_money(
    state: TurnState, demand: Demand, limits: Limits, day: str, turn_id: str | None = None
) -> Lack | None:
    """A limit on money per day that is reached: by spent money and the expected cost of the other running turns."""
    spent = state.spent.get(day, {})
    names = (of_owner(demand.owner), of_table(demand.table), IN_ALL)
    for (scope, turns), name in zip(_shares(state, demand, turn_id).items(), names, strict=True):
        used, most = spent.get(name, 0.0) + sum(each.usd for each in turns), limits.of(scope).usd_per_day
        if most is not None and demand.usd and used + demand.usd > most:
            return Lack(
                f"it is expected to cost ${demand.usd:,.2f}; of the ${most:,.2f} that {scope} may spend on {day}, "
                f"${used:,.2f} are spent or planned",
                scope,
                is_money=True,
            )
    return None


@dataclass(frozen=True)
class RunCost:
    """The cost of a job run's clusters so far.

    ended_usd    of shards that have ended
    usd_of       of each session of the job run or of its open shards, expected for those in flight
    """

    job_run_id: str
    ended_usd: float
    usd_of: Mapping[str, float]

    def usd_beside(self, turn_id: str, turns: Iterable[Turn]) -> float:
        """With the other turns that run now: a cluster may have been charged since the sessions were read."""
        running = [each for each in turns if each.work.job_run_id == self.job_run_id and each.turn_id != turn_id]
        in_turns = {session_id for each in running for session_id in each.session_ids}
        others = sum(usd for session_id, usd in self.usd_of.items() if session_id not in in_turns)
        return self.ended_usd + others + sum(max(each.usd, self._usd_of_all(each.session_ids)) for each in running)

    def _usd_of_all(self, session_ids: Iterable[str]) -> float:
        return sum(self.usd_of.get(each, 0.0) for each in session_ids)


def lack_of_run_money(used: float, usd: float, limits: Limits) -> Lack | None:
    """The limit on money of one job run, if it is reached. `used`: cost of its sessions, expected for running ones."""
    most = limits.job_run.usd
    if most is None or not usd or used + usd <= most:
        return None
    return Lack(
        f"it is expected to cost ${usd:,.2f} more; of the ${most:,.2f} that a job run may spend, ${used:,.2f} are "
        "spent or planned",
        LimitScope.RUN,
        is_money=True,
    )


def _shares(state: TurnState, demand: Demand, turn_id: str | None) -> dict[LimitScope, list[Turn]]:
    others = [each for each in state.turns.values() if each.turn_id != turn_id]
    return {
        LimitScope.DISPATCHER: [each for each in others if each.owner == demand.owner],
        LimitScope.TABLE: [each for each in others if each.table == demand.table],
        LimitScope.ALL: others,
    }
