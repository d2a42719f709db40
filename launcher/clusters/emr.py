"""Runs each session on an EMR cluster of its own, which ends with the session's one step.

A cluster is searched before it is launched: RunJobFlow takes no client token, so the name of the cluster, which follows
from the attempt, prevents a second one. Its status is read from the cluster and its step; `launcher/emr/reasons.py`
translates the reason of its end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from compactor.model.clock import Clock
from compactor.model.errors import Invalid, Unavailable
from compactor.planning.cluster_plan import ClusterPlan, ClusterUse
from launcher.clusters import LaunchedJob, unless_denied
from launcher.emr.reasons import of_cluster, of_program
from launcher.emr.request import ClusterLaunch, run_job_flow_request
from launcher.emr.service import ENDED_STATES, LIVE_STATES, PAID_STATES, ClusterSeen, EmrService, InstanceSeen
from launcher.emr.settings import STATE_TAG, EmrSettings, tags_of
from launcher.sizing.cluster_choice import ClusterRoom
from launcher.sizing.instance_types import InstanceType, PriceList
from launcher.sizing.money import SECONDS_MIN, Nodes, rates_of
from launcher.spark_job import JOB_NAMES_BEGIN, ClusterReference, JobRunning, JobStatus, JobVanished, SparkJob

KIND = "emr"
CLUSTER_ID = "cluster_id"
SEARCH_PAUSES_SECONDS = (5.0, 10.0, 20.0, 40.0)
"""Pauses between two searches for a cluster that may have been launched: a new one may be missing from listings for
some seconds. AWS states no bound; what is not listed after all of these counts as never launched."""

FOUND_AGAIN_SECONDS = 14 * 86_400.0
"""Time after the launch in which a cluster is found by its name, even if it has ended."""

LAUNCHED_AGAIN_SECONDS = 3_600.0
"""Such a time before a launch: the attempt's number was taken just now, so it cannot have been launched long ago.
An account may have thousands of clusters that have ended, and they are listed 50 at a time."""

_STEP_HAS_ENDED = frozenset({"ALL_STEPS_COMPLETED", "STEP_FAILURE"})


class EmrCluster:
    """A `Cluster`. Threads may share one."""

    status_is_free = False

    def __init__(self, service: EmrService, settings: EmrSettings, room: ClusterRoom, owner: str, clock: Clock) -> None:
        """
        Args:
            room: what a session's cluster is chosen from
            owner: name of the dispatcher, for the tag of the cluster's owner"""
        self._service = service
        self._settings = settings
        self._room = room
        self._owner = owner
        self._clock = clock

    @property
    def place(self) -> str:
        return " ".join(filter(None, (KIND, self._settings.region, self._settings.endpoint_url)))

    def resources(self) -> ClusterRoom:
        return self._room

    def launch(self, job: SparkJob, cluster_plan: ClusterPlan | None = None) -> ClusterReference:
        if cluster_plan is None:
            raise Invalid(f"{job.name} has no cluster in its plan, and needs one to run on EMR")
        found = self._find(job.name, LAUNCHED_AGAIN_SECONDS)
        if found is not None:
            return found
        launch = ClusterLaunch(job, tags_of(job, self._owner, self._settings.tags), cluster_plan)
        request = run_job_flow_request(launch, self._settings, self._equivalent_types(cluster_plan.instance_type))
        return self._reference(self._service.run_job_flow(request))

    def attach(self, reference: ClusterReference) -> EmrJob | None:
        if reference.kind != KIND or reference.region != self._settings.region:
            return None
        return EmrJob(self._service, reference, self._settings.log_uri, self._room.prices, self._clock)

    def find(self, name: str) -> ClusterReference | None:
        found = self._find(name, FOUND_AGAIN_SECONDS)
        for pause_seconds in SEARCH_PAUSES_SECONDS:
            if found is not None:
                break
            self._clock.sleep(pause_seconds)
            found = self._find(name, LAUNCHED_AGAIN_SECONDS)
        return found

    def launched(self) -> Iterator[LaunchedJob]:
        """All running jobs that Lithify launched here, of any state store, as far as they may be described."""
        for seen in self._service.clusters(sorted(LIVE_STATES)):
            if not seen.name.startswith(JOB_NAMES_BEGIN):
                continue
            whole = unless_denied(self._service.cluster, seen.cluster_id)
            if whole is not None and STATE_TAG in whole.tags and whole.state in LIVE_STATES:
                reference = self._reference(whole.cluster_id)
                yield LaunchedJob(reference, whole.name, whole.state, whole.tags, whole.created_at_ms)

    def _find(self, name: str, ended_within_seconds: float) -> ClusterReference | None:
        """Searches running clusters, and ended ones that were launched within this many seconds."""
        since_ms = self._clock.now_ms() - round(ended_within_seconds * 1000)
        for states, created_after_ms in ((PAID_STATES, None), (ENDED_STATES, since_ms)):
            found = [seen for seen in self._service.clusters(sorted(states), created_after_ms) if seen.name == name]
            for seen in sorted(found, key=lambda seen: (seen.created_at_ms, seen.cluster_id)):
                # Others may use the same name, but not our tags.
                whole = self._service.cluster(seen.cluster_id)
                if whole is not None and STATE_TAG in whole.tags:
                    return self._reference(seen.cluster_id)
        return None

    def _equivalent_types(self, instance_type: str) -> list[str]:
        """Instance types with as many vCPUs and as much memory and disk: a plan for one fits any of them. Where money
        is limited, only those that cost no more: the limits have counted the planned one."""
        prices, is_limited = self._room.prices, self._room.limits.usd_max is not None
        planned = prices.instance_type(instance_type)
        return [
            each.name
            for each in prices.instance_types
            if each.name != instance_type
            and not (is_limited and _costs_more(each, planned))
            and each.vcpus == planned.vcpus
            and each.memory_gib >= planned.memory_gib
            and each.local_disk_gib >= planned.local_disk_gib
        ]

    def _reference(self, cluster_id: str) -> ClusterReference:
        return ClusterReference(kind=KIND, region=self._settings.region, ids={CLUSTER_ID: cluster_id})


def _costs_more(instance: InstanceType, than: InstanceType) -> bool:
    on_spot = instance.usd_hour(spot=True) + instance.emr_usd_hour > than.usd_hour(spot=True) + than.emr_usd_hour
    return on_spot or instance.usd_hour_max > than.usd_hour_max


def use_of_instances(
    instances: Sequence[InstanceSeen], plan: ClusterPlan, prices: PriceList, now_ms: int
) -> ClusterUse | None:
    """What instances of a cluster ran, each a minute at least, by the price of its own type and market: a fleet may
    take other types than the planned one, and nodes on demand where there are none on Spot. None: there is none. Raises
    `Invalid` for a type that has no price.

    Worked: 2 nodes on demand at $0.50 an hour for 30 minutes, one on Spot at $0.20 for 15, and a primary node at $0.30
    for 30: $0.50 + 0.05 + 0.15."""
    if not instances:
        return None
    volume_gib = plan.scratch_volumes_per_node * plan.scratch_volume_gib
    paid = []
    for each in instances:
        instance = prices.instance_type(each.instance_type)
        node = Nodes(int(not each.is_spot), int(each.is_spot), instance, None, volume_gib)
        seconds = max(((each.ended_at_ms or now_ms) - each.created_at_ms) / 1000, SECONDS_MIN)
        paid.append((each, seconds, rates_of(node, prices)))
    on_demand = [(each, seconds) for each, seconds, _ in paid if not each.is_spot]
    # The primary node has no volumes. Nodes do not tell their role, but none of its type runs longer.
    of_its_type = [seconds for each, seconds in on_demand if each.instance_type == plan.primary_instance_type]
    with_volumes = sum(seconds for _, seconds, _ in paid) - max(of_its_type, default=0.0)
    return ClusterUse(
        on_demand_seconds=sum(seconds for _, seconds in on_demand),
        spot_seconds=sum(seconds for each, seconds, _ in paid if each.is_spot),
        instances_usd=sum(seconds * rates.instances_usd_hour for _, seconds, rates in paid) / 3600,
        surcharge_usd=sum(seconds * rates.surcharge_usd_hour for _, seconds, rates in paid) / 3600,
        volumes_usd=with_volumes * paid[0][2].volumes_usd_hour / 3600,
        spot_usd=sum(seconds * rates.instances_usd_hour for each, seconds, rates in paid if each.is_spot) / 3600,
    )


class EmrJob:
    """A `RunningSparkJob`: the one step of a cluster."""

    def __init__(
        self, service: EmrService, reference: ClusterReference, log_uri: str, prices: PriceList, clock: Clock
    ) -> None:
        self._prices = prices
        self._clock = clock
        self._service = service
        self.reference = reference
        self._cluster_id = reference.ids[CLUSTER_ID]
        self._log_uri = log_uri

    @property
    def description(self) -> str:
        logs = f"{self._log_uri.rstrip('/')}/{self._cluster_id}/"
        return f"EMR cluster {self._cluster_id} in {self.reference.region}, logs at {logs}"

    def status(self) -> JobStatus:
        seen = self._service.cluster(self._cluster_id)
        if seen is None:
            return JobVanished(f"vanished: EMR no longer knows cluster {self._cluster_id}")
        is_over = seen.state in ENDED_STATES or (seen.state not in LIVE_STATES and seen.code in _STEP_HAS_ENDED)
        return self._status_at_end(seen) if is_over else JobRunning()

    def stop(self) -> None:
        try:
            self._service.terminate([self._cluster_id])
        except Invalid as error:
            raise Unavailable(f"{self.description} cannot be ended: {error}") from error

    def use(self, plan: ClusterPlan) -> ClusterUse | None:
        instances = self._service.instances(self._cluster_id)
        return use_of_instances(instances, plan, self._prices, self._clock.now_ms())

    def _status_at_end(self, seen: ClusterSeen) -> JobStatus:
        if seen.code == "STEP_FAILURE":
            failed = [step for step in self._service.steps(self._cluster_id) if step.state == "FAILED"]
            if failed:
                logs = f"; its log is {failed[0].log_file}" if failed[0].log_file else ""
                return of_program(f"{failed[0].message}{logs}")
        return of_cluster(seen.code, seen.message, seen.error_codes)
