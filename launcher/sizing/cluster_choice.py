"""Chooses a session's cluster: the cheapest that is expected within the desired SLA, else the fastest allowed. Pure.

    for each instance type, for each number of nodes within the limits
        cores, memory and scratch folders of that cluster -> hash buckets, rounds, time (`sizing`) -> money (`money`)

All clusters within the limits are compared, except those that certainly cannot be chosen. A session that cannot run
within the limits is refused before anything is launched, with both figures.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

from compactor.model.errors import Invalid, refuse_if
from compactor.model.names import counted
from compactor.planning.capacity import Scarce, Shortage, shortages
from compactor.planning.cluster_plan import ClusterPlan, Cost, PaidRates, StoreUse
from compactor.planning.own_errors import NONE_SEEN, PlaceFactors
from compactor.planning.sizing import (
    ROW_INDEX_BYTES,
    Resources,
    SessionSize,
    Sizing,
    scratch_bytes,
    size_session,
    work_of,
)
from launcher.sizing.desired_sla import DesiredSla
from launcher.sizing.instance_types import BUILT_IN, InstanceType, PriceList
from launcher.sizing.money import Nodes, cost_of, cost_sentences, expected_store_use, rates_of
from launcher.sizing.serverless import (
    DISK_GIB_MAX,
    DISK_GIB_MIN,
    TASK_MEMORY_BYTES,
    WORKER_GIB,
    WORKER_VCPUS,
    disk_gib_of,
    serverless_rates,
)
from launcher.sizing.serverless import executors_of as serverless_executors_of

__all__ = ["ChosenCluster", "ClusterLimits", "ClusterPlan", "ClusterRoom", "choose_cluster"]

_GIB = 1024**3

SYSTEM_MEMORY_SHARE = 0.1
"""Share of a node's memory for its system and the cluster's own services."""

EXECUTOR_CORES_MAX = 8
"""The most tasks whose shuffle files one JVM moves."""

HEAP_BYTES_PER_CORE = 512 * 1024**2
"""Heap of an executor's JVM per core: the Python workers hold the rows."""

DRIVER_HEAP_BYTES_MIN = 4 * _GIB
"""The driver's JVM: what tasks send to the driver's Python, and it to them, passes through it."""

DRIVER_OVERHEAD_BYTES_MIN = 4 * _GIB
"""The driver's Python: it holds the counts of a round (`Sizing.driver_bytes`)."""

PRIMARY_SYSTEM_BYTES = 8 * _GIB
"""Memory of the primary node for the services of the cluster that run beside the driver."""

SCRATCH_VOLUME_GIB_MIN = 32
SCRATCH_VOLUME_GIB_MAX = 1_024
SCRATCH_VOLUMES_MAX = 8
SCRATCH_SPARE = 1.5
"""Volumes hold this many times the predicted scratch bytes of a round."""

NODES_MAX_TIMES = 2
"""Managed scaling may grow a cluster to this many times its nodes, within the limits."""

CLUSTER_START_SECONDS = 420.0
"""Seconds from the request for an EMR cluster to its first Spark task, if none is measured."""


@dataclass(frozen=True)
class ClusterLimits:
    """The limits of one session.

    Attributes:
        nodes_min: worker nodes at least
        nodes_max: worker nodes at most, the cluster's growth included
        vcpus_max: of all worker nodes; None: as many as `nodes_max` nodes have
        usd_max: that a session may be expected to cost; None: any
        spot_share: share of worker nodes on Spot, which AWS may take away; at least one node is not
        start_seconds: from the request for a cluster to its first task
        start_late_seconds: beyond that and 10 %, that it may be late"""

    nodes_min: int = 1
    nodes_max: int = 100
    vcpus_max: int | None = None
    usd_max: float | None = None
    spot_share: float = 0.0
    start_seconds: float = CLUSTER_START_SECONDS
    start_late_seconds: float = 0.0

    def check(self) -> None:
        """Raises `Invalid` with every reason that the reader of options does not have (`Limits`)."""
        reasons = []
        if self.nodes_min > self.nodes_max:
            reasons.append(
                f"at least {self.nodes_min} nodes and at most {self.nodes_max}: the least is above the greatest"
            )
        if not 0 <= self.spot_share <= 1:
            reasons.append(f"the share of nodes on Spot is {self.spot_share:g}: it must be from 0 to 1")
        refuse_if(reasons)


@dataclass(frozen=True)
class ClusterRoom:
    """The settings from which a cluster is chosen.

    Attributes:
        warnings: of its prices, which plans repeat
        serverless: it is made of workers of EMR Serverless; an instance type says what a task has
        start_note, place_factors: as in `Resources`"""

    limits: ClusterLimits = field(default_factory=ClusterLimits)
    prices: PriceList = BUILT_IN
    warnings: tuple[str, ...] = ()
    serverless: bool = False
    start_note: str | None = None
    place_factors: PlaceFactors = NONE_SEEN

    def check(self) -> None:
        """Raises `Invalid` with every reason, for limits that no session can run within, too."""
        self.limits.check()
        if self.serverless:
            serverless_rates(self.prices, 1, DISK_GIB_MIN, 1)
        least, most = self.limits.nodes_min, self.limits.vcpus_max
        smallest = min(self.prices.instance_types, key=lambda each: each.vcpus)
        needed = least * smallest.vcpus
        if most is not None and needed > most:
            have = f"{smallest.name} {'has' if least == 1 else 'have'} {counted(needed, 'vCPU')}"
            raise Invalid(
                f"{counted(least, 'node')} of the smallest possible instance type {have}, and a session may take "
                f"{most:,}: allow more vCPUs, fewer nodes or smaller instance types"
            )


@dataclass(frozen=True)
class _Candidate:
    """A cluster within the limits, with its predicted time and cost. seconds: without the buffer of expected_sla."""

    instance: InstanceType
    nodes: int
    resources: Resources
    seconds: float
    expected_sla: float
    primary: InstanceType
    nodes_paid: Nodes
    cost: Cost

    @property
    def usd_on_demand(self) -> float:
        """If no node was on Spot: what limits on money count, if it does not grow."""
        dearer = self.instance.usd_hour() - self.instance.usd_hour(spot=True)
        return self.cost.total_usd + self.nodes_paid.spot * dearer * self.cost.seconds / 3600

    @property
    def rank(self) -> tuple[float, float, int, str]:
        """The cheapest first; among equals the fastest, then the smallest."""
        return (self.cost.total_usd, self.seconds, self.nodes, self.instance.name)

    @property
    def speed_rank(self) -> tuple[float, float, int, str]:
        """The fastest first; among equals the cheapest, then the smallest."""
        return (self.seconds, self.cost.total_usd, self.nodes, self.instance.name)


@dataclass(frozen=True)
class _TooSmall:
    """A cluster within the limits that cannot run the session. shortage: None: no instance type holds its driver."""

    instance: InstanceType
    nodes: int
    shortage: Shortage | None

    @property
    def scarce(self) -> Scarce:
        return Scarce.DRIVER if self.shortage is None else self.shortage.scarce


@dataclass(frozen=True)
class ChosenCluster:
    """The chosen cluster of a session.

    Attributes:
        resources: of the cluster, for the session's plan
        sizing: of the session on it
        arithmetic: of the choice, a sentence each"""

    plan: ClusterPlan
    resources: Resources
    sizing: Sizing
    arithmetic: tuple[str, ...]


@dataclass(frozen=True)
class _DriverMemory:
    """heap_bytes: of its JVM; overhead_bytes: of its Python beside it."""

    heap_bytes: int = DRIVER_HEAP_BYTES_MIN
    overhead_bytes: int = DRIVER_OVERHEAD_BYTES_MIN

    @classmethod
    def of(cls, sizing: Sizing) -> Self:
        """Both follow the counts of a round: as bytes they are half as much, and pass through the JVM."""
        overhead = -(-sizing.driver_memory_needed // _GIB) * _GIB
        return cls(max(DRIVER_HEAP_BYTES_MIN, overhead // 2), max(DRIVER_OVERHEAD_BYTES_MIN, overhead))


@dataclass(frozen=True)
class _Choice:
    """One choice: for a session of one size, within one set of limits. See `choose_cluster`."""

    size: SessionSize
    room: ClusterRoom
    desired_sla: DesiredSla | None
    hash_bucket_count: int | None
    rows_per_round: int | None
    share_of_memory: float

    @cached_property
    def _store_floor(self) -> StoreUse:
        return expected_store_use(work_of(self.size, 1), self.size, hash_bucket_count=1)

    def choose(self) -> ChosenCluster:
        room, usd_max = self._room_that_holds_the_index(), self.room.limits.usd_max
        room.check()
        best: _Candidate | None = None
        candidates: list[_Candidate] = []
        short: list[_TooSmall] = []
        for instance in room.prices.instance_types:
            for nodes in range(room.limits.nodes_min, self._nodes_max(instance) + 1):
                if best is not None and self._floor_usd(instance, nodes) > best.cost.total_usd:
                    break  # more nodes cost even more, at any speed
                each = self._candidate(instance, nodes)
                if isinstance(each, _TooSmall):
                    short.append(each)
                    if each.scarce is Scarce.SCRATCH:
                        continue
                    break  # more nodes do not help
                candidates.append(each)
                is_possible = self._is_affordable(each) and self._is_in_time(each.expected_sla)
                if is_possible and (best is None or each.rank < best.rank):
                    best = each
        if not candidates:
            raise self._fits_no_cluster(short)
        affordable = [each for each in candidates if self._is_affordable(each)]
        if not affordable:
            cheapest = min(candidates, key=lambda each: (each.usd_on_demand, each.rank))
            raise Invalid(
                f"the session is expected to cost ${cheapest.usd_on_demand:,.4f} at least, on "
                f"{cheapest.nodes} x {cheapest.instance.name}, and may cost ${usd_max or 0:,.4f} by the limits on "
                "money: allow more"
            )
        chosen = best or min(affordable, key=lambda each: each.speed_rank)
        sizing = size_session(
            self.size, chosen.resources, self.hash_bucket_count, self.rows_per_round, self.share_of_memory
        )
        plan = self._plan(chosen, sizing)
        return ChosenCluster(plan, chosen.resources, sizing, self._arithmetic(plan))

    def _room_that_holds_the_index(self) -> ClusterRoom:
        """With the instance types whose tasks do, in the requested bucket count. Raises `Invalid`, with the figures of
        the one with most memory, if none does."""
        prices = self.room.prices
        fitting: list[InstanceType] = []
        refused: list[tuple[int, Invalid]] = []
        for each in prices.instance_types:
            try:
                self._outline(self._resources_of(each, self.room.limits.nodes_min))
            except Invalid as error:
                refused.append((task_memory_bytes_of(each), error))
            else:
                fitting.append(each)
        if not fitting:
            raise max(refused, key=lambda found: found[0])[1]
        return replace(self.room, prices=prices.model_copy(update={"instance_types": tuple(fitting)}))

    def _fits_no_cluster(self, short: Sequence[_TooSmall]) -> Invalid:
        """With the figures of the largest cluster that is allowed, or of the tasks with most memory."""
        found = {each.instance.name: each for each in short if each.shortage is not None}.values()  # with most nodes
        if not found:
            return self._driver_does_not_fit()
        by_disk = [each for each in found if each.scarce is Scarce.SCRATCH]
        if by_disk:
            most = max(by_disk, key=lambda each: (each.nodes * each.instance.vcpus, each.nodes))
            cluster = f"{most.nodes} x {most.instance.name}, the largest cluster within the limits"
            return Invalid(f"on {cluster}, {most.shortage}; or allow more nodes, or instance types with more disk")
        most = max(found, key=lambda each: task_memory_bytes_of(each.instance))
        return Invalid(
            f"on {most.instance.name}, whose tasks have most memory, {most.shortage}; or allow instance types with "
            "more memory a vCPU"
        )

    def _driver_does_not_fit(self) -> Invalid:
        prices, size = self.room.prices, self.size
        most = max(prices.instance_types, key=lambda each: each.memory_bytes)
        outline = self._outline(self._resources_of(most, self.room.limits.nodes_min))
        driver = _DriverMemory.of(outline)
        needed = driver.heap_bytes + driver.overhead_bytes + PRIMARY_SYSTEM_BYTES
        return Invalid(
            f"{counted(size.compacted_files, 'compacted file')} in {counted(outline.hash_bucket_count, 'hash bucket')} "
            f"need {needed / _GIB:,.0f} GiB for the driver, and the largest instance type, {most.name}, has "
            f"{most.memory_bytes / _GIB:,.0f}: allow larger instance types, or ask for fewer hash buckets or larger "
            "compacted files (rows_per_compacted_file)"
        )

    def _resources_of(self, instance: InstanceType, nodes: int) -> Resources:
        limits = self.room.limits
        resources = replace(
            resources_of(instance, nodes, limits.start_seconds),
            start_late_seconds=limits.start_late_seconds,
            start_note=self.room.start_note,
            place_factors=self.room.place_factors,
        )
        if not self.room.serverless:
            return resources
        return replace(
            resources,
            task_memory_bytes=min(resources.task_memory_bytes, TASK_MEMORY_BYTES),
            scratch_bytes=serverless_executors_of(resources.tasks) * DISK_GIB_MAX * _GIB,
        )

    def _outline(self, resources: Resources) -> Sizing:
        shared = resources.with_memory_share(self.share_of_memory)
        return size_session(self.size, shared, self.hash_bucket_count, self.rows_per_round)

    def _nodes_max(self, instance: InstanceType) -> int:
        limits = self.room.limits
        return (
            limits.nodes_max if limits.vcpus_max is None else min(limits.nodes_max, limits.vcpus_max // instance.vcpus)
        )

    def _is_affordable(self, each: _Candidate) -> bool:
        usd_max = self.room.limits.usd_max
        return usd_max is None or each.usd_on_demand <= usd_max

    def _is_in_time(self, expected_sla: float) -> bool:
        return self.desired_sla is None or expected_sla <= self.desired_sla.left_seconds

    def _floor_usd(self, instance: InstanceType, nodes: int) -> float:
        """The least cost of this many nodes: that of their start alone, without the primary node's."""
        rates = self._rates(self._nodes(instance, nodes, None, volume_gib=0), _DriverMemory())
        start_seconds = self.room.limits.start_seconds
        return cost_of(rates, start_seconds, start_seconds, self._store_floor).total_usd

    def _nodes(self, instance: InstanceType, nodes: int, primary: InstanceType | None, volume_gib: int) -> Nodes:
        spot = 0 if self.room.serverless else min(int(nodes * self.room.limits.spot_share), nodes - 1)
        return Nodes(nodes - spot, spot, instance, primary, volume_gib)

    def _rates(self, paid: Nodes, driver: _DriverMemory) -> PaidRates:
        """Without a primary node if it has none yet."""
        if not self.room.serverless:
            return rates_of(paid, self.room.prices)
        executors, cores = executors_of(paid.worker)
        nodes = paid.on_demand + paid.spot
        workers = serverless_executors_of(nodes * executors * cores)
        scratch = (paid.volume_gib or nodes * paid.worker.local_disk_gib) * _GIB
        driver_gib = driver.heap_bytes // _GIB + driver.overhead_bytes // _GIB
        return serverless_rates(self.room.prices, workers, disk_gib_of(scratch, workers), driver_gib)

    def _candidate(self, instance: InstanceType, nodes: int) -> _Candidate | _TooSmall:
        resources = self._resources_of(instance, nodes)
        outline = self._outline(resources)
        driver = _DriverMemory.of(outline)
        primary = instance if self.room.serverless else _primary(self.room.prices, driver)
        if primary is None:
            return _TooSmall(instance, nodes, None)
        if driver.overhead_bytes > DRIVER_OVERHEAD_BYTES_MIN:
            resources = replace(resources, driver_memory_bytes=driver.overhead_bytes)
            outline = self._outline(resources)
        shortage = next(shortages(outline), None)
        if shortage is not None:
            return _TooSmall(instance, nodes, shortage)
        seconds = outline.time.seconds
        volumes, gib = scratch_volumes(instance, nodes, self._scratch_bytes(outline))
        paid = self._nodes(instance, nodes, primary, volumes * gib * nodes)
        work = work_of(self.size, outline.rounds, outline.hash_bucket_count)
        cost = cost_of(
            self._rates(paid, driver),
            seconds,
            self.room.limits.start_seconds,
            expected_store_use(work, self.size, outline.hash_bucket_count),
        )
        return _Candidate(instance, nodes, resources, seconds, outline.expected_sla, primary, paid, cost)

    def _scratch_bytes(self, sizing: Sizing) -> int:
        """The most scratch bytes of a round, or of the rehash before it, on all nodes."""
        size = self.size
        arriving = min(sizing.max_rows_per_round, size.delta_rows)
        absorbed = min(2 * arriving, size.index_rows)
        moved = ROW_INDEX_BYTES * (size.index_rows + size.delta_rows)
        of_a_round = scratch_bytes(arriving, absorbed, size.sort_values_bytes) + moved
        return max(of_a_round, sizing.rehash_scratch_bytes)

    def _plan(self, chosen: _Candidate, sizing: Sizing) -> ClusterPlan:
        instance, resources = chosen.instance, chosen.resources
        executors, cores = executors_of(instance)
        heap, driver = HEAP_BYTES_PER_CORE * cores, _DriverMemory.of(sizing)
        volumes, gib = scratch_volumes(instance, chosen.nodes, self._scratch_bytes(sizing))
        nodes_max, usd_hour_max = self._growth(chosen, volumes * gib, driver)
        return ClusterPlan(
            region=self.room.prices.region,
            instance_type=instance.name,
            nodes=chosen.nodes,
            nodes_max=nodes_max,
            spot_nodes=chosen.nodes_paid.spot,
            primary_instance_type=None if self.room.serverless else chosen.primary.name,
            executors_per_node=executors,
            executor_cores=cores,
            executor_heap_bytes=heap,
            executor_overhead_bytes=resources.task_memory_bytes * cores,
            task_memory_bytes=resources.task_memory_bytes,
            driver_heap_bytes=driver.heap_bytes,
            driver_overhead_bytes=driver.overhead_bytes,
            scratch_volumes_per_node=volumes,
            scratch_volume_gib=gib,
            local_disk_gib=instance.local_disk_gib,
            start_seconds=self.room.limits.start_seconds,
            expected_sla=sizing.expected_sla,
            within_desired_sla=None if self.desired_sla is None else self._is_in_time(sizing.expected_sla),
            rates=self._rates(chosen.nodes_paid, driver),
            usd_hour_max=usd_hour_max,
            cost=chosen.cost,
        )

    def _growth(self, chosen: _Candidate, volume_gib_per_node: int, driver: _DriverMemory) -> tuple[int, float]:
        """The most nodes that it may grow to, and their cost an hour: no more than what the session may cost pays for
        all of its expected time. All count as on demand: one on Spot may cost as much, and a fleet may replace it."""
        usd_max = self.room.limits.usd_max
        paid, cost = chosen.nodes_paid, chosen.cost
        start_usd_hour = self._rates(paid, driver).usd_hour
        nodes = max(min(chosen.nodes * NODES_MAX_TIMES, self._nodes_max(chosen.instance)), chosen.nodes)
        while True:
            further = nodes - chosen.nodes
            grown = replace(
                paid,
                on_demand=nodes,
                spot=0,
                volume_gib=paid.volume_gib + further * volume_gib_per_node,
            )
            usd_hour = self._rates(grown, driver).usd_hour
            usd = cost.total_usd + (usd_hour - start_usd_hour) * cost.seconds / 3600
            if further == 0 or usd_max is None or usd <= usd_max:
                return nodes, usd_hour
            nodes -= 1

    def _arithmetic(self, plan: ClusterPlan) -> tuple[str, ...]:
        nodes = described_nodes(plan)
        spot = f", {plan.spot_nodes} of them on Spot" if plan.spot_nodes else ""
        of = f"{counted(plan.tasks, 'core')}, {plan.task_memory_bytes / _GIB:.1f} GiB for a task{spot}"
        growth = _growth_phrase(plan)
        if plan.nodes_max > plan.nodes or plan.spot_nodes:
            growth += f", which limits on money count as ${plan.usd_charged:,.4f}"
        return (
            f"cluster: {nodes}, {of}: {self._why(plan)}",
            growth,
            cost_sentences(plan.cost, self.room.prices.region),
            *self.room.warnings,
        )

    def _why(self, plan: ClusterPlan) -> str:
        limits, desired = self.room.limits, self.desired_sla
        bounds = [f"at most {counted(limits.nodes_max, 'node')}"]
        bounds += [f"{limits.vcpus_max:,} vCPUs"] if limits.vcpus_max is not None else []
        bounds += [f"${limits.usd_max:,.2f}"] if limits.usd_max is not None else []
        within = ", ".join(bounds)
        if desired is None:
            return f"the cheapest within {within}"
        if plan.within_desired_sla:
            return f"the cheapest within {desired} and {within}"
        late = f"{plan.expected_sla - desired.left_seconds:,.0f} s more than {desired}"
        return f"the fastest within {within}: {plan.expected_sla:,.0f} s are expected, {late}"


def choose_cluster(
    size: SessionSize,
    room: ClusterRoom,
    desired_sla: DesiredSla | None,
    *,
    hash_bucket_count: int | None = None,
    rows_per_round: int | None = None,
    share_of_memory: float = 1.0,
) -> ChosenCluster:
    """Raises `Invalid`, with both figures, if it cannot run within the limits, or with the requested bucket count."""
    room.check()
    return _Choice(size, room, desired_sla, hash_bucket_count, rows_per_round, share_of_memory).choose()


def described_nodes(plan: ClusterPlan) -> str:
    """The machines that it starts with, for people."""
    if plan.primary_instance_type is None:
        return f"{counted(serverless_executors_of(plan.tasks), 'worker')} of EMR Serverless and one for the driver"
    return f"{plan.nodes} x {plan.instance_type} and 1 x {plan.primary_instance_type} for the driver"


def _growth_phrase(plan: ClusterPlan) -> str:
    """What its machines have, and how many they may become."""
    if plan.primary_instance_type is None:
        workers = serverless_executors_of(plan.tasks)
        most = serverless_executors_of(plan.nodes_max * plan.cores_per_node)
        disk = disk_gib_of(plan.nodes * plan.scratch_bytes_per_node, workers)
        has = f"{WORKER_VCPUS} vCPU, {WORKER_GIB} GiB of memory, and {disk} GiB of disk for scratch files"
        return f"each worker has {has}; Spark asks for {workers} to {counted(most, 'worker')}"
    executors = f"{counted(plan.executors_per_node, 'executor')} of {counted(plan.executor_cores, 'core')}"
    scratch = f"{plan.local_disk_gib} GiB of local disks"
    if plan.scratch_volumes_per_node:
        scratch = f"{counted(plan.scratch_volumes_per_node, 'volume')} of {plan.scratch_volume_gib} GiB"
    scaling = f"managed scaling from {plan.nodes} to {counted(plan.nodes_max, 'node')}"
    return f"each node has {executors}, and {scratch} for scratch files; {scaling}"


def executors_of(instance: InstanceType) -> tuple[int, int]:
    """Executors of a node, and the cores of each. Worked: 16 vCPUs are 2 executors of 8 cores."""
    executors = -(-instance.vcpus // EXECUTOR_CORES_MAX)
    return executors, instance.vcpus // executors


def task_memory_bytes_of(instance: InstanceType) -> int:
    """Worked: of r5.4xlarge's 128 GiB 115.2 remain beside its system, 8 are heap: 16 tasks have 6.7 GiB each."""
    executors, cores = executors_of(instance)
    usable = int(instance.memory_bytes * (1 - SYSTEM_MEMORY_SHARE))
    return (usable - executors * cores * HEAP_BYTES_PER_CORE) // (executors * cores)


def resources_of(instance: InstanceType, nodes: int, start_seconds: float) -> Resources:
    """The resources of a session on this many nodes."""
    executors, cores = executors_of(instance)
    local_bytes = instance.local_disk_gib * _GIB
    volume_bytes = SCRATCH_VOLUMES_MAX * SCRATCH_VOLUME_GIB_MAX * _GIB
    return Resources(
        task_memory_bytes=task_memory_bytes_of(instance),
        tasks=nodes * executors * cores,
        scratch_bytes=nodes * (local_bytes or volume_bytes),
        driver_memory_bytes=DRIVER_OVERHEAD_BYTES_MIN,
        start_seconds=start_seconds,
        machines=nodes,
        network_byte=executors * cores / (instance.network_gbps * 1e9 / 8),
    )


def scratch_volumes(instance: InstanceType, nodes: int, scratch: int) -> tuple[int, int]:
    """Volumes of each node and the GiB of each, for this many bytes in all; none if the node has disks of its own.

    Worked: 600 GB on 4 nodes, with half as much spare: 1 volume of 210 GiB each.
    """
    if instance.local_disk_gib:
        return 0, 0
    gib = max(-(-int(scratch * SCRATCH_SPARE / nodes) // _GIB), SCRATCH_VOLUME_GIB_MIN)
    volumes = min(-(-gib // SCRATCH_VOLUME_GIB_MAX), SCRATCH_VOLUMES_MAX)
    return volumes, min(-(-gib // volumes), SCRATCH_VOLUME_GIB_MAX)


def _primary(prices: PriceList, driver: _DriverMemory) -> InstanceType | None:
    """The cheapest that holds the driver and the cluster's services; for a driver of the least memory the largest,
    if none does."""
    needed = driver.heap_bytes + driver.overhead_bytes + PRIMARY_SYSTEM_BYTES
    roomy = [each for each in prices.instance_types if each.memory_bytes >= needed]
    if roomy:
        return min(roomy, key=lambda each: (each.usd_hour_max, each.name))
    if driver == _DriverMemory():
        return max(prices.instance_types, key=lambda each: (each.memory_bytes, each.name))
    return None
