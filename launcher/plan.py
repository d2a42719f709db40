"""Decides how a session will run on a cluster: a `SessionPlan`, or nothing to do.

`compactor/planning/session_planner.py`, which `compact()` uses too, reads the input and calculates. This module adds
the shares of concurrent sessions, and smaller plans after an attempt that ran out of memory.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heapreplace
from typing import Protocol

from compactor.catalog.tables import DeltaCatalog
from compactor.model.errors import Invalid
from compactor.model.names import counted
from compactor.planning.bundle_plan import (
    MEMBERS_OF_A_TASK_MAX,
    BundleBounds,
    BundleMember,
    BundlePlan,
    SmallSession,
    bundled,
    plan_bundle,
)
from compactor.planning.cluster_plan import ClusterPlan, StoreUse
from compactor.planning.own_errors import NONE_SEEN, PlaceFactors
from compactor.planning.session_planner import (
    MeasuredSession,
    is_idle,
    measure_session,
    plan_measured,
    plan_sized,
)
from compactor.planning.session_streams import Commit, commits_of
from compactor.planning.sizing import Resources, SessionSize, size_session
from compactor.planning.spec import SessionPlan, SessionSpec
from compactor.planning.time_model import SLA_BUFFER
from compactor.planning.where_to_run import (
    InOneProcess,
    WorkerPool,
    choose_place,
    in_one_process,
    why_together_on_spark,
)
from launcher.outcomes import NothingToDo
from launcher.sizing.cluster_choice import (
    ClusterRoom,
    choose_cluster,
    described_nodes,
)
from launcher.sizing.desired_sla import DesiredSla
from launcher.sizing.money import cost_of, cost_sentences, expected_store_use, shared_by


@dataclass(frozen=True)
class LackOfMemory:
    """The attempts of a session that ran out of memory.

    Attributes:
        attempts: their number
        hash_bucket_count: of the session's first plan"""

    attempts: int
    hash_bucket_count: int


Planner = Callable[[SessionSpec, LackOfMemory | None, DesiredSla | None], SessionPlan | NothingToDo]


Room = Resources | ClusterRoom
"""The resources of a session: a share of an existing machine, or a cluster to be chosen."""


def plan_for_cluster(
    spec: SessionSpec,
    lake: DeltaCatalog,
    room: Room,
    lack: LackOfMemory | None = None,
    pool: WorkerPool | None = None,
    desired: DesiredSla | None = None,
) -> SessionPlan | NothingToDo:
    """A plan from the current stream, perhaps after rounds of the session's earlier attempts. `pool`: the workers that
    it does not fit, if there are any. `desired`: what is left of the desired SLA, if there is one.

    Raises `Invalid`, with every reason, for a session that can never run, or not within the limits of `room`.
    """
    measured = _measured(spec, lake)
    if measured is None:
        return NothingToDo()
    plan = _plan(measured, room, desired)
    plan = plan if lack is None else _smaller(plan, lack, measured, room, desired)
    if is_idle(measured, plan) and not session_commits(spec, lake):
        return NothingToDo()
    place = None if pool is None else choose_place(_alone(measured, pool), pool)
    if place is None or place.in_worker:  # it has failed there, or there are too many like it
        return plan
    return plan.model_copy(update={"arithmetic": (*plan.arithmetic, place.why)})


def _plan(
    measured: MeasuredSession, room: Room, desired: DesiredSla | None, share_of_memory: float = 1.0
) -> SessionPlan:
    if isinstance(room, Resources):
        return plan_measured(measured, room, share_of_memory)
    run = measured.spec.job_run
    chosen = choose_cluster(
        measured.size,
        room,
        desired,
        hash_bucket_count=run.hash_bucket_count,
        rows_per_round=run.max_rows_per_round,
        share_of_memory=share_of_memory,
    )
    plan = plan_sized(measured, chosen.sizing)
    return plan.model_copy(update={"cluster": chosen.plan, "arithmetic": (*plan.arithmetic, *chosen.arithmetic)})


BUNDLED_HASH_BUCKETS_MIN = 8
"""Least hash buckets of a bundled session, if its cluster has the cores: few files, and enough for growth."""


@dataclass(frozen=True)
class LargeSession:
    """It needs a Spark job of its own. `why`: the reasons, a sentence each."""

    why: tuple[str, ...]


SmallPlanner = Callable[[SessionSpec, DeltaCatalog, Resources], SmallSession | LargeSession | NothingToDo]
WorkerPlanner = Callable[[SessionSpec, DeltaCatalog, WorkerPool, int], SmallSession | LargeSession | NothingToDo]
"""Plans a session in a worker. The last argument: the session's failures in a row."""


@dataclass(frozen=True)
class BundleRoom:
    """The resources of a bundle.

    Attributes:
        cluster_plan: None on an existing machine
        warnings: of its prices
        desired: what is left of the desired SLA; None: it was not looked at"""

    resources: Resources
    cluster_plan: ClusterPlan | None = None
    warnings: tuple[str, ...] = ()
    desired: DesiredSla | None = None


def room_for_bundles(room: Room) -> BundleRoom:
    """Where a cluster is launched, the cheapest within the limits: only time may ask for more (`room_in_time`).

    Raises `Invalid` where there is none.
    """
    if isinstance(room, Resources):
        return BundleRoom(room)
    one_row = SessionSize(
        index_rows=0, delta_rows=1, delta_bytes=1, sort_values_bytes=0, inherited_hash_bucket_count=None
    )
    chosen = choose_cluster(one_row, room, None)
    return BundleRoom(chosen.resources, chosen.plan, room.warnings)


def room_in_time(
    members: Sequence[SmallSession], found: BundleRoom, room: Room, desired: DesiredSla | None
) -> BundleRoom:
    """`found`, or the same with so many more nodes of the limits that the last member ends within what is left of the
    desired SLA. If none is in time, the one with the most nodes that have a member each.

    Worked: 100 members of 20 s, 420 s of start, 4 cores a node: they end after 920 s on one node, 560 on 4 (with the
    buffer 1,012 and 616).
    """
    if found.cluster_plan is None or desired is None or isinstance(room, Resources):
        return found
    best = found
    prices = room.prices.only((found.cluster_plan.instance_type,))
    while _seconds_together(members, best) > desired.left_seconds and best.resources.tasks < len(members):
        nodes = 2 * best.resources.machines
        nodes = min(nodes, room.limits.nodes_max)
        limits = replace(room.limits, nodes_min=nodes)
        try:
            larger = room_for_bundles(replace(room, limits=limits, prices=prices))
        except Invalid:  # the next step is beyond the limits on vCPUs or money
            break
        if larger.resources.machines <= best.resources.machines:
            break
        best = larger
    return replace(best, desired=desired)


def _seconds_together(members: Sequence[SmallSession], room: BundleRoom) -> float:
    plan = plan_bundle("dry-run", members, room.resources.tasks, room.resources.start_seconds)
    return max(member.plan.expected_sla for member in plan.members)


def plan_in_one_task(
    spec: SessionSpec, lake: DeltaCatalog, resources: Resources
) -> SmallSession | LargeSession | NothingToDo:
    """A plan for one task of a Spark job with these resources, if the session is small enough for that.

    Raises `Invalid`, with every reason, for a session that can never run as it was asked for.
    """
    measured = _measured(spec, lake)
    if measured is None:
        return NothingToDo()
    run = spec.job_run
    task = in_one_process(measured.size, run.max_rows_per_round, resources.task_memory_bytes, resources.start_seconds)
    if task.reasons_for_spark:
        return LargeSession(task.reasons_for_spark)
    small = _small(measured, task, min(resources.tasks, BUNDLED_HASH_BUCKETS_MIN), task.why)
    return NothingToDo() if is_idle(measured, small.plan) and not session_commits(spec, lake) else small


WORKER_HASH_BUCKETS_MIN = 2
"""Least hash buckets of a session in a worker: few files while it is small. A later session may rehash."""


def plan_in_worker(
    spec: SessionSpec, lake: DeltaCatalog, pool: WorkerPool, failures: int
) -> SmallSession | LargeSession | NothingToDo:
    """A plan for a warm worker, if the session runs there (`choose_place`). Raises `Invalid` as `plan_in_one_task`."""
    measured = _measured(spec, lake)
    if measured is None:
        return NothingToDo()
    alone = _alone(measured, pool)
    place = choose_place(alone, pool, failures)
    if not place.in_worker:
        return LargeSession((place.why,))
    small = _small(measured, alone, WORKER_HASH_BUCKETS_MIN, place.why, pool.place_factors)
    return NothingToDo() if is_idle(measured, small.plan) and not session_commits(spec, lake) else small


def _measured(spec: SessionSpec, lake: DeltaCatalog) -> MeasuredSession | None:
    """None: there is nothing to do."""
    lake = lake.for_one_run()
    measured = measure_session(spec, lake)
    return measured if measured.work or session_commits(spec, lake) else None


def _alone(measured: MeasuredSession, pool: WorkerPool) -> InOneProcess:
    return in_one_process(measured.size, measured.spec.job_run.max_rows_per_round, pool.memory_bytes)


def _small(
    measured: MeasuredSession,
    alone: InOneProcess,
    hash_buckets_min: int,
    why: str,
    place_factors: PlaceFactors = NONE_SEEN,
) -> SmallSession:
    """Its plan in a process of one core, which it shares with others if it fits."""
    part_bytes = alone.memory_bytes // MEMBERS_OF_A_TASK_MAX
    here = Resources(
        part_bytes if alone.fits(part_bytes) else alone.memory_bytes,
        tasks=1,
        hash_buckets_min=hash_buckets_min,
        start_seconds=0.0,
        in_process=True,
        place_factors=place_factors,
    )
    run = measured.spec.job_run
    sizing = size_session(measured.size, here, run.hash_bucket_count, run.max_rows_per_round)
    store = expected_store_use(sizing.work, measured.size, sizing.hash_bucket_count)
    return SmallSession(plan_sized(measured, sizing), 1, sizing.time.seconds, why, store)


@dataclass(frozen=True)
class SharedJob:
    """The Spark job of a bundle. `cluster_plan`: with the cost of all of it; None: no cluster is launched."""

    plan: BundlePlan
    cluster_plan: ClusterPlan | None


def plan_shared_job(bundle_id: str, sessions: Sequence[SmallSession], room: BundleRoom) -> SharedJob:
    """Where a cluster is launched for it, each session pays a part."""
    resources, cluster = room.resources, room.cluster_plan
    plan = plan_bundle(bundle_id, sessions, resources.tasks, resources.start_seconds)
    if cluster is None:
        return SharedJob(plan, None)
    ends = [member.before_seconds + session.seconds for member, session in zip(plan.members, sessions, strict=True)]
    parts = shared_by(cluster, ends, [session.store for session in sessions])
    members = tuple(_paying(member, part, room, len(parts)) for member, part in zip(plan.members, parts, strict=True))
    whole = cost_of(cluster.rates, max(ends), cluster.start_seconds, _sum([session.store for session in sessions]))
    return SharedJob(plan.model_copy(update={"members": members}), cluster.model_copy(update={"cost": whole}))


def _paying(member: BundleMember, part: ClusterPlan, room: BundleRoom, members: int) -> BundleMember:
    expected_sla, desired = member.plan.expected_sla, room.desired
    late_seconds = 0.0 if desired is None else expected_sla - desired.left_seconds
    in_time = None if desired is None else late_seconds <= 0
    cluster = part.model_copy(update={"expected_sla": expected_sla, "within_desired_sla": in_time})
    told = [
        f"1/{members} of a cluster, {described_nodes(cluster)}: {cost_sentences(cluster.cost, cluster.region)}",
        *([f"{late_seconds:,.0f} s more than {desired}"] if late_seconds > 0 else []),
        *room.warnings,
    ]
    plan = member.plan.model_copy(update={"cluster": cluster, "arithmetic": (*member.plan.arithmetic, *told)})
    return member.model_copy(update={"plan": plan})


def _sum(uses: Sequence[StoreUse]) -> StoreUse:
    return StoreUse(
        puts=sum(use.puts for use in uses),
        gets=sum(use.gets for use in uses),
        written_bytes=sum(use.written_bytes for use in uses),
    )


@dataclass(frozen=True)
class PlannedJobRun:
    """Sessions in the requested order.

    Attributes:
        spark_job_seconds: the expected seconds of each Spark job, in order
        worker_seconds: likewise of each launch in a worker"""

    plans: tuple[SessionPlan | NothingToDo, ...]
    spark_job_seconds: tuple[float, ...]
    worker_seconds: tuple[float, ...] = ()

    def seconds(self, max_sessions: int = 1, workers: int = 1) -> float:
        """From the first launch to the last end, with so many Spark jobs and workers at a time."""
        on_spark = makespan_seconds(self.spark_job_seconds, max_sessions)
        return max(on_spark, makespan_seconds(self.worker_seconds, workers))


def plan_as_dispatched(
    specs: Sequence[SessionSpec], lake: DeltaCatalog, room: Room, bounds: BundleBounds, pool: WorkerPool | None = None
) -> PlannedJobRun:
    """Plans sessions as a dispatcher would now. Raises `Invalid` for sessions that can never run."""
    in_workers = _plan_in_workers(specs, lake, bounds, pool) if pool is not None else ()
    plans: dict[str, SessionPlan | NothingToDo] = {plan.spec.session_id: plan for plans in in_workers for plan in plans}
    seconds: list[float] = []
    small: list[SmallSession] = []
    left = [spec for spec in specs if spec.session_id not in plans]
    if bounds.allow_bundles and len(left) > 1:
        shared_room = room_for_bundles(room)
        for spec in left:
            planned = plan_in_one_task(spec, lake, shared_room.resources)
            if isinstance(planned, SmallSession):
                small.append(planned)
            elif isinstance(planned, NothingToDo):
                plans[spec.session_id] = planned
        while len(small) > 1:
            members = bundled(small, shared_room.resources.tasks, bounds)
            if len(members) == 1:
                break
            in_time = room_in_time(members, shared_room, room, DesiredSla.of(left[0], 0.0))
            bundle = plan_shared_job("dry-run", members, in_time).plan
            plans |= {member.plan.spec.session_id: member.plan for member in bundle.members}
            seconds.append(max(member.plan.expected_sla for member in bundle.members))
            small = [each for each in small if each.plan.spec.session_id not in plans]
    for spec in left:
        if spec.session_id not in plans:
            alone = plan_for_cluster(spec, lake, room, pool=pool, desired=DesiredSla.of(spec, 0.0))
            plans[spec.session_id] = alone
            seconds += [] if isinstance(alone, NothingToDo) else [alone.expected_sla]
    return PlannedJobRun(
        tuple(plans[spec.session_id] for spec in specs),
        tuple(seconds),
        tuple(max(plan.expected_sla for plan in plans) for plans in in_workers),
    )


def _plan_in_workers(
    specs: Sequence[SessionSpec], lake: DeltaCatalog, bounds: BundleBounds, pool: WorkerPool
) -> tuple[tuple[SessionPlan, ...], ...]:
    """The plans of each launch in a worker: the sessions are divided among the workers."""
    found = [plan_in_worker(spec, lake, pool, 0) for spec in specs]
    small = [each for each in found if isinstance(each, SmallSession)]
    if not small or why_together_on_spark([each.seconds for each in small], len(small), pool) is not None:
        return ()
    share = min(-(-len(small) // pool.workers), bounds.sessions)
    shares = [small[first : first + share] for first in range(0, len(small), share)]
    return tuple(tuple(_plans_in_worker(members)) for members in shares)


def _plans_in_worker(members: Sequence[SmallSession]) -> Iterator[SessionPlan]:
    if len(members) == 1:
        yield plan_of(members[0], 0.0)
        return
    for member in plan_bundle("dry-run", members, 1, 0.0, in_worker=True).members:
        yield member.plan


def plan_of(alone: SmallSession, start_seconds: float) -> SessionPlan:
    """Of a session that runs in a worker without others, which is ready after `start_seconds`.

    Worked: a session of 0.1 s in a worker that is ready after 1.5 s: 1.65 s for its start and 0.6 for
    itself are expected, half a second of buffer included.
    """
    plan = alone.plan.model_copy(update={"arithmetic": (*alone.plan.arithmetic, alone.why)})
    if not start_seconds:
        return plan
    expected_sla = start_seconds * SLA_BUFFER + plan.expected_sla
    start = f"its worker is ready after {start_seconds:.1f} s: {expected_sla:.1f} s expected from its launch"
    predicted = None if plan.predicted_seconds is None else start_seconds + plan.predicted_seconds
    times = {"expected_sla": expected_sla, "predicted_seconds": predicted}
    return plan.model_copy(update={**times, "arithmetic": (*plan.arithmetic, start)})


def makespan_seconds(session_seconds: Sequence[float], at_a_time: int) -> float:
    """Seconds from the first launch to the last end: each begins, in this order, when another has ended.

    Worked: 5, 3 and 4 seconds, two at a time, are 7: the third begins after 3.
    """
    free_at = [0.0] * at_a_time
    for seconds in session_seconds:
        heapreplace(free_at, free_at[0] + seconds)
    return max(free_at)


class PlannedFigures(Protocol):
    """The figures of a plan in which attempts may differ."""

    @property
    def hash_bucket_count(self) -> int: ...
    @property
    def max_rows_per_round(self) -> int: ...
    @property
    def task_memory_bytes(self) -> int: ...
    @property
    def tasks(self) -> int: ...
    @property
    def cluster(self) -> ClusterPlan | None: ...


def plan_changes(before: PlannedFigures, now: PlannedFigures) -> tuple[str, ...]:
    """The changes of an attempt from the one before, a sentence each."""
    compared = {
        "hash buckets": (before.hash_bucket_count, now.hash_bucket_count),
        "delta rows in a round": (before.max_rows_per_round, now.max_rows_per_round),
        "bytes of memory for a task": (before.task_memory_bytes, now.task_memory_bytes),
        "tasks side by side": (before.tasks, now.tasks),
    }
    changes = [f"{after:,} {noun} instead of {was:,}" for noun, (was, after) in compared.items() if was != after]
    clusters = [_named(each.cluster) for each in (before, now)]
    changes += [f"{clusters[1]} instead of {clusters[0]}"] if clusters[0] != clusters[1] else []
    return tuple(changes)


def _named(cluster: ClusterPlan | None) -> str:
    return "no cluster" if cluster is None else f"{cluster.nodes} x {cluster.instance_type}"


def session_commits(spec: SessionSpec, lake: DeltaCatalog) -> list[Commit]:
    """Commits of all attempts so far. If nothing remains, the next attempt records the end of the session."""
    source = lake.table(spec.job_run.source_table_id)
    destination = lake.table_like(spec.job_run.destination_compacted_table_id, source).stream(spec.partition)
    return commits_of(spec, destination)


def _smaller(
    plan: SessionPlan, lack: LackOfMemory, measured: MeasuredSession, room: Room, desired: DesiredSla | None
) -> SessionPlan:
    """Each attempt without enough memory halves a task's memory and a round's rows, and doubles the hash buckets.

    Worked: 8 hash buckets and 10,000,000 rows in one round, after two attempts without enough memory: a quarter of the
    memory, 32 hash buckets, 4 rounds of 2,500,000 rows. A requested number of hash buckets is kept.
    """
    parts = 2**lack.attempts
    run = plan.spec.job_run
    limits = {
        "max_rows_per_round": min(plan.max_rows_per_round, -(-measured.size.delta_rows // parts) or 1),
        "hash_bucket_count": run.hash_bucket_count or max(plan.hash_bucket_count, lack.hash_bucket_count * parts),
    }
    spec = plan.spec.model_copy(update={"job_run": run.model_copy(update=limits)})
    smaller = _plan(replace(measured, spec=spec), room, desired, share_of_memory=1 / parts)
    why = f"{counted(lack.attempts, 'attempt')} ran out of memory: rounds are asked for of 1/{parts} of the rows"
    return smaller.model_copy(update={"spec": plan.spec, "arithmetic": (why, *smaller.arithmetic)})
