"""The clusters of an account on EMR: their states, on a clock that a test drives, and their failures.

    STARTING --> BOOTSTRAPPING --> RUNNING <--> WAITING
        |              |              |            |
        +--------------+----> TERMINATING <--------+
                                   |
                    TERMINATED, or TERMINATED_WITH_ERRORS

Nothing runs in the background: every request first advances all clusters as far as the clock allows. Steps run when
their cluster runs, one at a time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from compactor.model.clock import Clock
from tests.fakes.emr_shapes import Refused, time_of
from tests.fakes.emr_steps import RunningStep, StepRunner

REGION, ACCOUNT = "us-east-1", "123456789012"
LIVE = ("STARTING", "BOOTSTRAPPING", "RUNNING", "WAITING", "TERMINATING")
ENDED = ("TERMINATED", "TERMINATED_WITH_ERRORS")
PAGE = 50
_RELEASE = re.compile(r"emr-(spark-)?\d+\.\d+\.\d+")
_INSTANCE_TYPE = re.compile(r"[a-z]+\d[a-z]*(-flex)?\.(\d+)?x?large|[a-z]+\d[a-z]*\.metal")


@dataclass(frozen=True)
class Mishap:
    """How a cluster fails.

    in_state  after which it ends
    code      of its StateChangeReason; `details` are its error codes
    """

    in_state: str
    code: str
    message: str
    details: tuple[str, ...] = ()


NO_CAPACITY = Mishap(
    "STARTING",
    "INTERNAL_ERROR",
    "EC2 has insufficient capacity for the instance type in this Availability Zone",
    ("INTERNAL_ERROR_EC2_INSUFFICIENT_CAPACITY_AZ",),
)
NO_FLEET = Mishap("STARTING", "INSTANCE_FLEET_TIMEOUT", "The instance fleet was not provisioned in time")
OVER_QUOTA = Mishap(
    "STARTING", "VALIDATION_ERROR", "You have requested more vCPU capacity than your current vCPU limit of 32 allows"
)
ROLE_WITHOUT_RIGHTS = Mishap(
    "STARTING", "VALIDATION_ERROR", "Service role emr-service has insufficient EC2 permissions"
)
NO_SUCH_SUBNET = Mishap("STARTING", "VALIDATION_ERROR", "The subnet subnet-0123456789abcdef0 does not exist")
BOOTSTRAP_FAILED = Mishap(
    "BOOTSTRAPPING",
    "BOOTSTRAP_FAILURE",
    "On the primary instance (i-0123456789abcdef0), bootstrap action 1 returned a non-zero return code",
    ("BOOTSTRAP_FAILURE_PRIMARY_WITH_NON_ZERO_CODE",),
)
SPOT_LOST = Mishap(
    "RUNNING",
    "INSTANCE_FAILURE",
    "The primary node was terminated: Spot instance interruption",
    ("INTERNAL_ERROR_SPOT_PRICE_INCREASE_PRIMARY",),
)
NODES_FAILED = Mishap("RUNNING", "INSTANCE_FAILURE", "The core instance group has no running instances")


@dataclass(frozen=True)
class Timings:
    """Seconds that a cluster spends in each state."""

    starting: float = 120.0
    bootstrapping: float = 60.0
    terminating: float = 30.0

    def of(self, state: str) -> float:
        return {"STARTING": self.starting, "BOOTSTRAPPING": self.bootstrapping, "TERMINATING": self.terminating}[state]


@dataclass
class FakeStep:
    step_id: str
    config: Mapping[str, Any]
    created_ms: int
    state: str = "PENDING"
    running: RunningStep | None = None
    started_ms: int | None = None
    ended_ms: int | None = None
    failure: dict[str, str] | None = None

    def end(self, state: str, at_ms: int) -> None:
        if self.running is not None:
            self.running.stop()
        self.state, self.ended_ms = state, at_ms

    @property
    def is_open(self) -> bool:
        return self.state in ("PENDING", "RUNNING", "CANCEL_PENDING")

    def described(self) -> dict[str, Any]:
        jar = self.config["HadoopJarStep"]
        timeline = {"CreationDateTime": time_of(self.created_ms)}
        if self.started_ms is not None:
            timeline["StartDateTime"] = time_of(self.started_ms)
        if self.ended_ms is not None:
            timeline["EndDateTime"] = time_of(self.ended_ms)
        status: dict[str, Any] = {"State": self.state, "StateChangeReason": {}, "Timeline": timeline}
        if self.failure is not None:
            status["FailureDetails"] = self.failure
        return {
            "Id": self.step_id,
            "Name": self.config["Name"],
            "Config": {"Jar": jar["Jar"], "Properties": {}, "Args": list(jar.get("Args", []))},
            "ActionOnFailure": self.config.get("ActionOnFailure", "TERMINATE_CLUSTER"),
            "Status": status,
        }


@dataclass
class FakeCluster:
    cluster_id: str
    request: Mapping[str, Any]
    created_ms: int
    mishap: Mishap | None
    state: str = "STARTING"
    since_ms: int = 0
    ready_ms: int | None = None
    ended_ms: int | None = None
    idle_ms: int | None = None
    reason: dict[str, str] = field(default_factory=dict)
    details: tuple[str, ...] = ()
    ends_as: str = "TERMINATED"
    steps: list[FakeStep] = field(default_factory=list)
    tags: dict[str, str] = field(default_factory=dict)
    scaling: Mapping[str, Any] | None = None
    protected: bool = False

    @property
    def arn(self) -> str:
        return f"arn:aws:elasticmapreduce:{REGION}:{ACCOUNT}:cluster/{self.cluster_id}"

    def enter(self, state: str, at_ms: int) -> None:
        self.state, self.since_ms = state, at_ms

    def begin_to_end(self, at_ms: int, code: str, message: str, *, well: bool, details: Iterable[str] = ()) -> None:
        """Begins to end the cluster. Running steps are killed with their machines."""
        if self.state == "TERMINATING" or self.state in ENDED:
            return
        for step in self.steps:
            if step.is_open:
                step.end("CANCELLED" if step.state == "PENDING" else "INTERRUPTED", at_ms)
        self.reason = {"Code": code, "Message": message}
        self.details = tuple(details)
        self.ends_as = "TERMINATED" if well else "TERMINATED_WITH_ERRORS"
        self.enter("TERMINATING", at_ms)

    def status(self) -> dict[str, Any]:
        timeline = {"CreationDateTime": time_of(self.created_ms)}
        if self.ready_ms is not None:
            timeline["ReadyDateTime"] = time_of(self.ready_ms)
        if self.ended_ms is not None:
            timeline["EndDateTime"] = time_of(self.ended_ms)
        status: dict[str, Any] = {"State": self.state, "StateChangeReason": dict(self.reason), "Timeline": timeline}
        if self.details:
            status["ErrorDetails"] = [
                {"ErrorCode": code, "ErrorData": [], "ErrorMessage": self.reason["Message"]} for code in self.details
            ]
        return status

    def summary(self) -> dict[str, Any]:
        """The cluster as in lists, which have no tags."""
        return {
            "Id": self.cluster_id,
            "Name": self.request["Name"],
            "Status": self.status(),
            "NormalizedInstanceHours": 0,
            "ClusterArn": self.arn,
        }

    def described(self) -> dict[str, Any]:
        instances = self.request["Instances"]
        return self.summary() | {
            "InstanceCollectionType": "INSTANCE_FLEET" if "InstanceFleets" in instances else "INSTANCE_GROUP",
            "ReleaseLabel": self.request["ReleaseLabel"],
            "AutoTerminate": not instances.get("KeepJobFlowAliveWhenNoSteps", False),
            "TerminationProtected": self.protected,
            "VisibleToAllUsers": True,
            "Tags": [{"Key": key, "Value": value} for key, value in self.tags.items()],
            "ServiceRole": self.request["ServiceRole"],
            "LogUri": self.request.get("LogUri", ""),
            "Applications": [dict(each) for each in self.request.get("Applications", [])],
        }


class EmrAccount:
    """
    mishaps            failures of the clusters that are launched from now on, one each, in order; None: no failure
    unlisted_seconds   for which a new cluster is missing from listings
    spot_is_short      EC2 grants no instance on Spot
    """

    def __init__(self, clock: Clock, steps: StepRunner, timings: Timings = Timings()) -> None:
        self.clock = clock
        self.steps = steps
        self.timings = timings
        self.mishaps: list[Mishap | None] = []
        self.unlisted_seconds = 0.0
        self.spot_is_short = False
        self.clusters: dict[str, FakeCluster] = {}
        self._numbers = 0

    # -- for tests

    def let_time_pass(self) -> None:
        """Advances every cluster as far as the clock allows."""
        for cluster in self.clusters.values():
            while self._go_on(cluster):
                pass

    def live(self) -> list[FakeCluster]:
        self.let_time_pass()
        return [cluster for cluster in self.clusters.values() if cluster.state in LIVE]

    def stop(self) -> None:
        """Ends all running steps."""
        for cluster in self.clusters.values():
            for step in cluster.steps:
                if step.running is not None:
                    step.running.stop()

    # -- the service's operations

    def run_job_flow(self, request: Mapping[str, Any]) -> dict[str, Any]:
        check_job_flow(request)
        now_ms = self.clock.now_ms()
        self._numbers += 1
        mishap = self.mishaps.pop(0) if self.mishaps else None
        cluster = FakeCluster(f"j-{self._numbers:013d}", request, now_ms, mishap, since_ms=now_ms)
        cluster.tags = {tag["Key"]: tag.get("Value", "") for tag in request.get("Tags", [])}
        cluster.scaling = request.get("ManagedScalingPolicy")
        cluster.protected = request["Instances"].get("TerminationProtected", False)
        self.clusters[cluster.cluster_id] = cluster
        self._add_steps(cluster, request.get("Steps", []))
        return {"JobFlowId": cluster.cluster_id, "ClusterArn": cluster.arn}

    def describe_cluster(self, request: Mapping[str, Any]) -> dict[str, Any]:
        return {"Cluster": self._cluster(request["ClusterId"]).described()}

    def list_clusters(self, request: Mapping[str, Any]) -> dict[str, Any]:
        states = request.get("ClusterStates") or (*LIVE, *ENDED)
        after, before = request.get("CreatedAfter", 0), request.get("CreatedBefore", 1 << 40)
        found = [
            each.summary()
            for each in reversed(self.clusters.values())
            if each.state in states
            and after <= each.created_ms / 1000 <= before
            and each.created_ms + self.unlisted_seconds * 1000 <= self.clock.now_ms()
        ]
        return _page("Clusters", found, request.get("Marker"))

    def terminate_job_flows(self, request: Mapping[str, Any]) -> dict[str, Any]:
        clusters = [self._cluster(cluster_id) for cluster_id in request["JobFlowIds"]]
        if any(cluster.protected for cluster in clusters):
            raise Refused("ValidationException", "Could not shut down one or more job flows: termination protected")
        for cluster in clusters:
            message = "Terminated by user request"
            cluster.begin_to_end(self.clock.now_ms(), "USER_REQUEST", message, well=True)
        return {}

    def add_job_flow_steps(self, request: Mapping[str, Any]) -> dict[str, Any]:
        cluster = self._live_cluster(request["JobFlowId"])
        return {"StepIds": self._add_steps(cluster, request["Steps"])}

    def list_steps(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The last one first, as the service has it."""
        states, ids = request.get("StepStates"), request.get("StepIds")
        steps = [
            step.described()
            for step in reversed(self._cluster(request["ClusterId"]).steps)
            if (not states or step.state in states) and (not ids or step.step_id in ids)
        ]
        return _page("Steps", steps, request.get("Marker"))

    def list_instances(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Of instance groups and fleets: each node is there from the beginning of the cluster to its end. Where there
        is none on Spot, EMR tells of what it asks EC2 for, until a fleet takes one on demand instead."""
        cluster = self._cluster(request["ClusterId"])
        found: list[dict[str, Any]] = []
        for each in _nodes_of(cluster.request["Instances"]):
            if each.market == "SPOT" and self.spot_is_short:
                until_ms = None if each.spot_minutes is None else cluster.created_ms + 60_000 * each.spot_minutes
                found.append(_listed(len(found), each, cluster, cluster.created_ms, until_ms, granted=False))
                if until_ms is not None and until_ms < self.clock.now_ms():
                    found.append(_listed(len(found), replace(each, market="ON_DEMAND"), cluster, until_ms))
            else:
                found.append(_listed(len(found), each, cluster, cluster.created_ms))
        return _page("Instances", found, request.get("Marker"))

    # -- state changes of clusters

    def _go_on(self, cluster: FakeCluster) -> bool:
        """Makes one state change of the cluster or a step; False: none is due."""
        match cluster.state:
            case "STARTING" | "BOOTSTRAPPING" | "TERMINATING":
                return self._leave_timed_state(cluster)
            case "RUNNING" | "WAITING":
                return self._go_on_running(cluster)
            case _:
                return False

    def _leave_timed_state(self, cluster: FakeCluster) -> bool:
        until_ms = cluster.since_ms + round(self.timings.of(cluster.state) * 1000)
        if until_ms > self.clock.now_ms():
            return False
        mishap = cluster.mishap
        if mishap is not None and mishap.in_state == cluster.state:
            cluster.begin_to_end(until_ms, mishap.code, mishap.message, well=False, details=mishap.details)
            return True
        following = {"STARTING": "BOOTSTRAPPING", "BOOTSTRAPPING": "RUNNING", "TERMINATING": cluster.ends_as}
        was_terminating = cluster.state == "TERMINATING"
        cluster.enter(following[cluster.state], until_ms)
        if was_terminating:
            cluster.ended_ms = until_ms
        elif cluster.state == "RUNNING":
            cluster.ready_ms = until_ms
        return True

    def _go_on_running(self, cluster: FakeCluster) -> bool:
        now_ms = self.clock.now_ms()
        step = next((each for each in cluster.steps if each.is_open), None)
        if step is None:
            return self._go_on_idle(cluster, now_ms)
        if step.state == "PENDING":
            cluster.enter("RUNNING", now_ms)
            cluster.idle_ms = None
            step.state, step.started_ms = "RUNNING", now_ms
            step.running = self.steps.start(step.step_id, step.config["HadoopJarStep"]["Args"])
            mishap = cluster.mishap
            if mishap is not None and mishap.in_state == "RUNNING":
                cluster.begin_to_end(now_ms, mishap.code, mishap.message, well=False, details=mishap.details)
            return True
        exit_code = step.running.poll() if step.running is not None else None
        if exit_code is None:
            return False
        if exit_code == 0:
            step.end("COMPLETED", now_ms)
            return True
        self._fail(cluster, step, exit_code, now_ms)
        return True

    def _fail(self, cluster: FakeCluster, step: FakeStep, exit_code: int, now_ms: int) -> None:
        assert step.running is not None
        tail = step.running.output_tail()
        step.failure = {
            "Reason": "Unknown Error.",
            "Message": f'Exception in thread "main": application finished with exit code {exit_code}; {tail[-500:]}',
            "LogFile": f"{cluster.request.get('LogUri', 's3://logs/')}{cluster.cluster_id}/steps/{step.step_id}/stderr.gz",
        }
        step.end("FAILED", now_ms)
        match step.config.get("ActionOnFailure", "TERMINATE_CLUSTER"):
            case "TERMINATE_CLUSTER" | "TERMINATE_JOB_FLOW":
                cluster.begin_to_end(now_ms, "STEP_FAILURE", "Shut down as step failed", well=False)
            case "CANCEL_AND_WAIT":
                for each in cluster.steps:
                    if each.state == "PENDING":
                        each.end("CANCELLED", now_ms)
            case _:
                pass

    def _go_on_idle(self, cluster: FakeCluster, now_ms: int) -> bool:
        if not cluster.request["Instances"].get("KeepJobFlowAliveWhenNoSteps", False):
            cluster.begin_to_end(now_ms, "ALL_STEPS_COMPLETED", "Steps completed", well=True)
            return True
        if cluster.state == "RUNNING":
            cluster.enter("WAITING", now_ms)
            cluster.idle_ms = now_ms
            cluster.reason = {"Message": "Cluster ready to run steps."}
            return True
        policy = cluster.request.get("AutoTerminationPolicy")
        if policy and cluster.idle_ms is not None and now_ms - cluster.idle_ms >= policy["IdleTimeout"] * 1000:
            cluster.begin_to_end(now_ms, "USER_REQUEST", "Terminated after the idle timeout", well=True)
            return True
        return False

    def _add_steps(self, cluster: FakeCluster, steps: Iterable[Mapping[str, Any]]) -> list[str]:
        added = []
        for config in steps:
            if config["HadoopJarStep"]["Jar"] != "command-runner.jar":
                raise Refused("ValidationException", f"{config['HadoopJarStep']['Jar']} cannot be found")
            self._numbers += 1
            step = FakeStep(f"s-{self._numbers:013d}", config, self.clock.now_ms())
            cluster.steps.append(step)
            added.append(step.step_id)
        return added

    def _cluster(self, cluster_id: str) -> FakeCluster:
        cluster = self.clusters.get(cluster_id)
        if cluster is None:
            raise Refused("InvalidRequestException", f"Cluster id '{cluster_id}' is not valid.")
        return cluster

    def _live_cluster(self, cluster_id: str) -> FakeCluster:
        cluster = self._cluster(cluster_id)
        if cluster.state in ENDED or cluster.state == "TERMINATING":
            raise Refused(
                "ValidationException", "A job flow that is shutting down, terminated, or finished may not be modified."
            )
        return cluster


def check_job_flow(request: Mapping[str, Any]) -> None:
    """Raises `Refused` for requests that fit the service's model but that the service itself refuses."""
    if not _RELEASE.fullmatch(request.get("ReleaseLabel", "")):
        raise Refused("ValidationException", f"The supplied release label is invalid: {request.get('ReleaseLabel')}.")
    for role in ("ServiceRole", "JobFlowRole"):
        if not request.get(role):
            raise Refused("ValidationException", f"{role} is required for clusters of this release")
    if "Spark" not in {each.get("Name") for each in request.get("Applications", [])}:
        raise Refused("ValidationException", "spark-submit needs the application Spark")
    if not request.get("LogUri", "s3://").startswith(("s3://", "s3n://")):
        raise Refused("ValidationException", "LogUri must be an Amazon S3 path")
    check_instances(request["Instances"])
    check_tags(request.get("Tags", []))
    if "ManagedScalingPolicy" in request:
        check_scaling(request["ManagedScalingPolicy"])
        uses_fleets = "InstanceFleets" in request["Instances"]
        unit = request["ManagedScalingPolicy"]["ComputeLimits"]["UnitType"]
        if uses_fleets != (unit == "InstanceFleetUnits"):
            raise Refused("ValidationException", f"The unit type {unit} does not fit the cluster's instance collection")
    timeout = request.get("AutoTerminationPolicy", {}).get("IdleTimeout", 3600)
    if not 60 <= timeout <= 604_800:
        raise Refused("ValidationException", f"IdleTimeout is {timeout}: from 60 to 604800")


def check_instances(instances: Mapping[str, Any]) -> None:
    groups, fleets = instances.get("InstanceGroups"), instances.get("InstanceFleets")
    if bool(groups) == bool(fleets):
        raise Refused("ValidationException", "Specify either instance groups or instance fleets")
    if fleets and "Ec2SubnetId" in instances:
        raise Refused("ValidationException", "Instance fleets take Ec2SubnetIds")
    if groups and len(instances.get("Ec2SubnetIds", [])) > 1:
        raise Refused("ValidationException", "Instance groups take one subnet")
    types = [each["InstanceType"] for each in groups or ()]
    types += [each["InstanceType"] for fleet in fleets or () for each in fleet.get("InstanceTypeConfigs", [])]
    for instance_type in types:
        if not _INSTANCE_TYPE.fullmatch(instance_type):
            raise Refused("ValidationException", f"Instance type '{instance_type}' is not supported")
    masters = [each for each in groups or () if each["InstanceRole"] == "MASTER"]
    if groups and [each["InstanceCount"] for each in masters] not in ([1], [3]):
        raise Refused("ValidationException", "There must be one master instance group, of 1 or 3 instances")


def check_tags(tags: Iterable[Mapping[str, str]]) -> None:
    keys = [tag.get("Key", "") for tag in tags]
    if len(set(keys)) != len(keys) or len(keys) > 50:
        raise Refused("ValidationException", "Tag keys must be unique, 50 at most")
    allowed = re.compile(r"[\w\s.:/=+\-@]*")
    for tag in tags:
        key, value = tag.get("Key", ""), tag.get("Value", "")
        if not 1 <= len(key) <= 128 or len(value) > 256 or key.lower().startswith("aws:"):
            raise Refused("ValidationException", f"The tag {key}={value} is too long, or reserved")
        if not allowed.fullmatch(key) or not allowed.fullmatch(value):
            raise Refused("ValidationException", f"The tag {key}={value} has characters that are not allowed")


def check_scaling(policy: Mapping[str, Any]) -> None:
    limits = policy["ComputeLimits"]
    minimum, maximum = limits["MinimumCapacityUnits"], limits["MaximumCapacityUnits"]
    if not 1 <= minimum <= maximum:
        raise Refused("ValidationException", f"The scaling limits {minimum} to {maximum} are invalid")
    for name in ("MaximumOnDemandCapacityUnits", "MaximumCoreCapacityUnits"):
        if not 0 <= limits.get(name, 0) <= maximum:
            raise Refused("ValidationException", f"{name} is {limits[name]}, and the maximum {maximum}")


@dataclass(frozen=True)
class _Node:
    """As it was asked for. `spot_minutes`: after which its fleet takes one on demand; None: never."""

    market: str
    instance_type: str
    spot_minutes: int | None = None


def _nodes_of(instances: Mapping[str, Any]) -> Iterator[_Node]:
    for group in instances.get("InstanceGroups", []):
        yield from [_Node(group.get("Market", "ON_DEMAND"), group["InstanceType"])] * group["InstanceCount"]
    for fleet in instances.get("InstanceFleets", []):
        instance_type = fleet["InstanceTypeConfigs"][0]["InstanceType"]
        yield from [_Node("ON_DEMAND", instance_type)] * fleet.get("TargetOnDemandCapacity", 0)
        on_spot = fleet.get("LaunchSpecifications", {}).get("SpotSpecification", {})
        switches = on_spot.get("TimeoutAction") == "SWITCH_TO_ON_DEMAND"
        minutes = on_spot["TimeoutDurationMinutes"] if switches else None
        yield from [_Node("SPOT", instance_type, minutes)] * fleet.get("TargetSpotCapacity", 0)


def _listed(
    number: int,
    node: _Node,
    cluster: FakeCluster,
    created_ms: int,
    until_ms: int | None = None,
    *,
    granted: bool = True,
) -> dict[str, Any]:
    ended_ms = until_ms if cluster.ended_ms is None else min(cluster.ended_ms, until_ms or cluster.ended_ms)
    timeline = {"CreationDateTime": time_of(created_ms)}
    if ended_ms is not None:
        timeline["EndDateTime"] = time_of(ended_ms)
    running = "RUNNING" if granted else "AWAITING_FULFILLMENT"
    instance = {
        "Id": f"ci-{number:013d}",
        "Status": {
            "State": running if ended_ms is None else "TERMINATED",
            "StateChangeReason": {},
            "Timeline": timeline,
        },
        "Market": node.market,
        "InstanceType": node.instance_type,
    }
    return instance | ({"Ec2InstanceId": f"i-{number:017d}"} if granted else {})


def _page(name: str, found: list[dict[str, Any]], marker: str | None) -> dict[str, Any]:
    begin = int(marker or 0)
    answer: dict[str, Any] = {name: found[begin : begin + PAGE]}
    if begin + PAGE < len(found):
        answer["Marker"] = str(begin + PAGE)
    return answer
