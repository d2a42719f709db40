"""The request of EMR Serverless' StartJobRun as a function of an attempt, its cluster plan and the settings. Pure.

Its workers have 8 GB a vCPU only with 1 and 2 vCPU (7.5 with 4 and more), and sessions are planned with so much: so an
executor is a worker of 2 vCPU, and a session has as many as give the tasks that the plan counts on.
"""

from __future__ import annotations

import hashlib
import shlex

from compactor.engine.settings import JOB_SETTINGS
from compactor.model.errors import Invalid
from compactor.planning.cluster_plan import ClusterPlan
from compactor.planning.machine_share import GIB
from launcher.emr.request import ENVIRONMENT, PYTHON, ClusterLaunch, JsonObject
from launcher.emr.settings import EmrServerlessSettings
from launcher.submit import job_arguments

WORKER_VCPUS = 2
WORKER_GIB = 16
"""Memory of a worker, its JVM and its Python workers together."""

HEAP_GIB = 1
"""Heap of an executor's JVM per core: the Python workers hold the rows."""

DRIVER_GIB_MAX = {2: 16, 4: 30, 8: 60, 16: 120}
"""The most memory of a driver by its vCPUs."""

DISK_GIB_MIN, DISK_GIB_MAX = 20, 200
"""Disk of a worker for scratch files."""


def start_job_run_request(launch: ClusterLaunch, settings: EmrServerlessSettings) -> JsonObject:
    """The whole request, its client token included: the same attempt is the same job run for any number of requests.

    Raises `Invalid`, with both figures, for a plan whose tasks exceed the memory of a worker's.
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
        **_spark_settings(plan),
        "spark.archives": f"{settings.archive_uri}#{ENVIRONMENT}",
        "spark.emr-serverless.driverEnv.PYSPARK_DRIVER_PYTHON": PYTHON,
        "spark.emr-serverless.driverEnv.PYSPARK_PYTHON": PYTHON,
        "spark.executorEnv.PYSPARK_PYTHON": PYTHON,
        **dict(settings.spark_settings),
    }
    return shlex.join(argument for name in sorted(conf) for argument in ("--conf", f"{name}={conf[name]}"))


def _spark_settings(plan: ClusterPlan) -> dict[str, str]:
    """Worked: 3 nodes of 16 tasks are 24 workers of 2 vCPU, each with a heap of 1 GiB and 15 GiB for two Python
    workers; the driver's is one more."""
    overhead_gib = WORKER_GIB - HEAP_GIB
    task_bytes_max = overhead_gib * GIB // WORKER_VCPUS
    if plan.task_memory_bytes > task_bytes_max:
        raise Invalid(
            f"tasks are planned with {plan.task_memory_bytes:,} bytes each, and a worker of {WORKER_VCPUS} vCPU on EMR "
            f"Serverless has {task_bytes_max:,} for each: take instance types of 8 GiB a vCPU"
        )
    executors = -(-plan.tasks // WORKER_VCPUS)
    executors_max = -(-plan.nodes_max * plan.cores_per_node // WORKER_VCPUS)
    scratch_gib = -(-plan.nodes * plan.scratch_bytes_per_node // (executors * GIB))
    return {
        **JOB_SETTINGS,
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.minExecutors": str(executors),
        "spark.dynamicAllocation.initialExecutors": str(executors),
        "spark.dynamicAllocation.maxExecutors": str(executors_max),
        "spark.executor.cores": str(WORKER_VCPUS),
        "spark.executor.memory": f"{HEAP_GIB}g",
        "spark.executor.memoryOverhead": f"{overhead_gib}g",
        "spark.emr-serverless.executor.disk": f"{min(max(scratch_gib, DISK_GIB_MIN), DISK_GIB_MAX)}g",
        **_driver_settings(plan.driver_heap_bytes // GIB or 1, plan.driver_overhead_bytes // GIB or 1),
    }


def _driver_settings(heap_gib: int, overhead_gib: int) -> dict[str, str]:
    vcpus = next((vcpus for vcpus, gib in DRIVER_GIB_MAX.items() if heap_gib + overhead_gib <= gib), None)
    if vcpus is None:
        raise Invalid(
            f"the driver is planned with {heap_gib + overhead_gib} GiB, and one on EMR Serverless has at most "
            f"{max(DRIVER_GIB_MAX.values())}: ask for fewer hash buckets or larger compacted files, or use EMR on EC2"
        )
    return {
        "spark.driver.cores": str(vcpus),
        "spark.driver.memory": f"{heap_gib}g",
        "spark.driver.memoryOverhead": f"{overhead_gib}g",
    }
