"""Requests of EMR's RunJobFlow and EMR Serverless' StartJobRun: functions of attempt, cluster plan, settings. Pure.

On EMR one cluster a session, with one step. The cluster ends with its step, whether that succeeds or fails; an idle
timeout is the fallback. Lithify makes all attempts: EMR and YARN retry nothing.

The step runs on the primary node: it unpacks the archive there, for the driver, and calls spark-submit in YARN's client
mode. So the driver has the primary node's memory, as planned, never runs on a Spot instance, and its exit code is that
of the step. Executors get the archive from YARN.
"""

import hashlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from compactor.engine.settings import JOB_SETTINGS, MIB
from compactor.planning.cluster_plan import ClusterPlan
from compactor.planning.machine_share import GIB
from launcher.emr.settings import EmrServerlessSettings, EmrSettings
from launcher.sizing.serverless import HEAP_GIB, WORKER_GIB, WORKER_VCPUS, disk_gib_of, driver_vcpus_of, executors_of
from launcher.spark_job import SparkJob
from launcher.submit import job_arguments, submit_arguments

JsonObject: TypeAlias = dict[str, object]

ENVIRONMENT = "environment"
"""The folder of the unpacked archive, beside the driver and in the containers of executors."""

PYTHON = f"./{ENVIRONMENT}/bin/python"
STEP_NAME = "compaction session"
STEP_SCRIPT = f"""\
set -eu
archive=$1; shift
aws s3 cp --only-show-errors "$archive" archive.tar.gz
mkdir -p {ENVIRONMENT}
tar -xzf archive.tar.gz -C {ENVIRONMENT}
rm archive.tar.gz
program=$({PYTHON} -c 'import compactor, os; print(os.path.dirname(compactor.__file__))')/main.py
options=()
while [ "$1" != -- ]; do options+=("$1"); shift; done
shift
exec spark-submit "${{options[@]}}" "$program" "$@"
"""
"""The script of the step, in a folder of its own on the primary node. Arguments: the archive, options of spark-submit,
`--`, the program's. The program is the archive's own, so that the two are always of one release."""

PRIMARY_ROLE, CORE_ROLE, TASK_ROLE = "MASTER", "CORE", "TASK"
SPOT_TIMEOUT_MINUTES = 10
"""Timeout after which a fleet replaces unavailable Spot instances by on-demand ones."""


@dataclass(frozen=True)
class ClusterLaunch:
    """One attempt in requests to AWS.

    Attributes:
        tags: by which a sweep identifies our clusters
        plan: of its cluster"""

    job: SparkJob
    tags: Mapping[str, str]
    plan: ClusterPlan


def run_job_flow_request(
    launch: ClusterLaunch, settings: EmrSettings, equivalent_types: Sequence[str] = ()
) -> JsonObject:
    """The whole request. Equal values, equal requests.

    Args:
        equivalent_types: instance types of as many vCPU and as much memory as the plan's, for fleets"""
    fleet_types = (launch.plan.instance_type, *equivalent_types) if settings.use_fleets else ()
    request: JsonObject = {
        "Name": launch.job.name,
        "ReleaseLabel": settings.release_label,
        "LogUri": settings.log_uri,
        "Applications": [{"Name": "Spark"}],
        "Instances": _instances(launch.plan, settings, fleet_types),
        "Steps": [_step(launch, settings)],
        "ManagedScalingPolicy": {"ComputeLimits": _limits(launch.plan, uses_fleets=settings.use_fleets)},
        "ScaleDownBehavior": "TERMINATE_AT_TASK_COMPLETION",
        "AutoTerminationPolicy": {"IdleTimeout": settings.idle_seconds},
        "ServiceRole": settings.service_role,
        "JobFlowRole": settings.instance_profile,
        "VisibleToAllUsers": True,
        "StepConcurrencyLevel": 1,
        "Tags": [{"Key": key, "Value": launch.tags[key]} for key in sorted(launch.tags)],
    }
    if settings.security_configuration is not None:
        request["SecurityConfiguration"] = settings.security_configuration
    return request


def step_command(launch: ClusterLaunch, settings: EmrSettings) -> Sequence[str]:
    conf = {
        **_spark_settings(launch.plan),
        "spark.master": "yarn",
        "spark.submit.deployMode": "client",
        "spark.archives": f"{settings.archive_uri}#{ENVIRONMENT}",
        "spark.pyspark.driver.python": PYTHON,
        "spark.pyspark.python": PYTHON,
        "spark.yarn.maxAppAttempts": "1",
        **dict(settings.spark_settings),
    }
    _, *options = submit_arguments("spark-submit", "--", launch.job, conf)
    return ("bash", "-c", STEP_SCRIPT, "lithify", settings.archive_uri, *options)


def _spark_settings(plan: ClusterPlan) -> dict[str, str]:
    """As many executors as planned, from the start to the end, and more if managed scaling adds nodes.

    Executors keep data between rounds, so none that holds data is released.
    """
    executors = plan.nodes * plan.executors_per_node
    return {
        **JOB_SETTINGS,
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.minExecutors": str(executors),
        "spark.dynamicAllocation.initialExecutors": str(executors),
        "spark.dynamicAllocation.maxExecutors": str(plan.nodes_max * plan.executors_per_node),
        "spark.executor.instances": str(executors),
        "spark.executor.cores": str(plan.executor_cores),
        "spark.executor.memory": _mib(plan.executor_heap_bytes),
        "spark.executor.memoryOverhead": _mib(plan.executor_overhead_bytes),
        "spark.driver.memory": _mib(plan.driver_heap_bytes),
    }


def _mib(size_bytes: int) -> str:
    return f"{size_bytes // MIB}m"


def _step(launch: ClusterLaunch, settings: EmrSettings) -> JsonObject:
    return {
        "Name": STEP_NAME,
        "ActionOnFailure": "TERMINATE_CLUSTER",
        "HadoopJarStep": {"Jar": "command-runner.jar", "Args": list(step_command(launch, settings))},
    }


def _limits(plan: ClusterPlan, *, uses_fleets: bool) -> JsonObject:
    """Core and task nodes; the primary node does not count. It grows on Spot only if it has Spot nodes."""
    return {
        "UnitType": "InstanceFleetUnits" if uses_fleets else "Instances",
        "MinimumCapacityUnits": plan.nodes,
        "MaximumCapacityUnits": plan.nodes_max,
        "MaximumOnDemandCapacityUnits": plan.core_nodes if plan.spot_nodes else plan.nodes_max,
        "MaximumCoreCapacityUnits": plan.core_nodes,
    }


def _instances(plan: ClusterPlan, settings: EmrSettings, fleet_types: Sequence[str]) -> JsonObject:
    instances: JsonObject = {"KeepJobFlowAliveWhenNoSteps": False, "TerminationProtected": False}
    if fleet_types:
        instances["InstanceFleets"] = _fleets(plan, fleet_types)
        instances["Ec2SubnetIds"] = list(settings.subnet_ids)
    else:
        instances["InstanceGroups"] = _groups(plan)
        instances["Ec2SubnetId"] = settings.subnet_ids[0]
    if settings.security_groups is not None:
        instances["EmrManagedMasterSecurityGroup"] = settings.security_groups.primary
        instances["EmrManagedSlaveSecurityGroup"] = settings.security_groups.nodes
        if settings.security_groups.service_access is not None:
            instances["ServiceAccessSecurityGroup"] = settings.security_groups.service_access
    return instances


def _groups(plan: ClusterPlan) -> list[JsonObject]:
    groups = [
        _group(PRIMARY_ROLE, plan.primary_instance_type or plan.instance_type, 1, "ON_DEMAND"),
        _group(CORE_ROLE, plan.instance_type, plan.core_nodes, "ON_DEMAND") | _volumes(plan),
    ]
    if plan.spot_nodes:
        groups.append(_group(TASK_ROLE, plan.instance_type, plan.spot_nodes, "SPOT") | _volumes(plan))
    return groups


def _group(role: str, instance_type: str, count: int, market: str) -> JsonObject:
    return {
        "Name": role.lower(),
        "InstanceRole": role,
        "InstanceType": instance_type,
        "InstanceCount": count,
        "Market": market,
    }


def _fleets(plan: ClusterPlan, instance_types: Sequence[str]) -> list[JsonObject]:
    primary = [{"InstanceType": plan.primary_instance_type or plan.instance_type, "WeightedCapacity": 1}]
    nodes = [{"InstanceType": each, "WeightedCapacity": 1} | _volumes(plan) for each in instance_types]
    on_demand: JsonObject = {"OnDemandSpecification": {"AllocationStrategy": "lowest-price"}}
    spot: JsonObject = {
        "SpotSpecification": {
            "TimeoutDurationMinutes": SPOT_TIMEOUT_MINUTES,
            "TimeoutAction": "SWITCH_TO_ON_DEMAND",
            "AllocationStrategy": "price-capacity-optimized",
        }
    }
    fleets = [
        _fleet(PRIMARY_ROLE, primary, on_demand) | {"TargetOnDemandCapacity": 1},
        _fleet(CORE_ROLE, nodes, on_demand) | {"TargetOnDemandCapacity": plan.core_nodes},
    ]
    if plan.spot_nodes:
        fleets.append(_fleet(TASK_ROLE, nodes, spot) | {"TargetSpotCapacity": plan.spot_nodes})
    return fleets


def _fleet(role: str, instance_types: Sequence[JsonObject], launched: JsonObject) -> JsonObject:
    return {
        "Name": role.lower(),
        "InstanceFleetType": role,
        "InstanceTypeConfigs": list(instance_types),
        "LaunchSpecifications": launched,
    }


def _volumes(plan: ClusterPlan) -> JsonObject:
    """Volumes for scratch files, if the instance type's own disks are too small."""
    if not plan.scratch_volumes_per_node:
        return {}
    volume = {"VolumeType": "gp3", "SizeInGB": plan.scratch_volume_gib}
    device = {"VolumeSpecification": volume, "VolumesPerInstance": plan.scratch_volumes_per_node}
    return {"EbsConfiguration": {"EbsBlockDeviceConfigs": [device], "EbsOptimized": True}}


def start_job_run_request(launch: ClusterLaunch, settings: EmrServerlessSettings) -> JsonObject:
    """The whole request, its client token included: the same attempt is the same job run for any number of requests.

    Raises `Invalid`, with both figures, for a plan whose driver exceeds the memory of one.
    """
    return {
        "applicationId": settings.application_id,
        "clientToken": client_token(launch.job.name),
        "executionRoleArn": settings.execution_role_arn,
        "name": launch.job.name,
        "executionTimeoutMinutes": settings.timeout_minutes,
        "jobDriver": {
            "sparkSubmit": {
                "entryPoint": settings.program_uri,
                "entryPointArguments": list(job_arguments(launch.job)),
                "sparkSubmitParameters": _parameters(launch.plan, settings),
            }
        },
        "configurationOverrides": {
            "monitoringConfiguration": {"s3MonitoringConfiguration": {"logUri": settings.log_uri}}
        },
        "tags": dict(sorted(launch.tags.items())),
    }


def client_token(name: str) -> str:
    """At most 64 characters. It follows from the attempt alone, so the next dispatcher has it too."""
    return hashlib.sha256(name.encode()).hexdigest()


def _parameters(plan: ClusterPlan, settings: EmrServerlessSettings) -> str:
    conf = {
        **_serverless_settings(plan),
        "spark.archives": f"{settings.archive_uri}#{ENVIRONMENT}",
        "spark.emr-serverless.driverEnv.PYSPARK_DRIVER_PYTHON": PYTHON,
        "spark.emr-serverless.driverEnv.PYSPARK_PYTHON": PYTHON,
        "spark.executorEnv.PYSPARK_PYTHON": PYTHON,
        **dict(settings.spark_settings),
    }
    return shlex.join(argument for name in sorted(conf) for argument in ("--conf", f"{name}={conf[name]}"))


def _serverless_settings(plan: ClusterPlan) -> dict[str, str]:
    """Worked: 3 nodes of 16 tasks are 24 workers of 2 vCPU, each with a heap of 1 GiB and 15 GiB for two Python
    workers; the driver's is one more."""
    executors = executors_of(plan.tasks)
    executors_max = executors_of(plan.nodes_max * plan.cores_per_node)
    disk_gib = disk_gib_of(plan.nodes * plan.scratch_bytes_per_node, executors)
    return {
        **JOB_SETTINGS,
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.minExecutors": str(executors),
        "spark.dynamicAllocation.initialExecutors": str(executors),
        "spark.dynamicAllocation.maxExecutors": str(executors_max),
        "spark.executor.cores": str(WORKER_VCPUS),
        "spark.executor.memory": f"{HEAP_GIB}g",
        "spark.executor.memoryOverhead": f"{WORKER_GIB - HEAP_GIB}g",
        "spark.emr-serverless.executor.disk": f"{disk_gib}g",
        **_driver_settings(plan.driver_heap_bytes // GIB or 1, plan.driver_overhead_bytes // GIB or 1),
    }


def _driver_settings(heap_gib: int, overhead_gib: int) -> dict[str, str]:
    return {
        "spark.driver.cores": str(driver_vcpus_of(heap_gib + overhead_gib)),
        "spark.driver.memory": f"{heap_gib}g",
        "spark.driver.memoryOverhead": f"{overhead_gib}g",
    }
