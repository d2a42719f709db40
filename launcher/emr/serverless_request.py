"""The request of EMR Serverless' StartJobRun as a function of an attempt, its cluster plan and the settings. Pure.

launcher/sizing/serverless.py says what its workers have.
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
from launcher.sizing.serverless import WORKER_GIB, WORKER_VCPUS, disk_gib_of, driver_vcpus_of, executors_of
from launcher.submit import job_arguments

HEAP_GIB = 1
"""Heap of an executor's JVM per core: the Python workers hold the rows."""


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
        "spark.executor.memoryOverhead": f"{overhead_gib}g",
        "spark.emr-serverless.executor.disk": f"{disk_gib}g",
        **_driver_settings(plan.driver_heap_bytes // GIB or 1, plan.driver_overhead_bytes // GIB or 1),
    }


def _driver_settings(heap_gib: int, overhead_gib: int) -> dict[str, str]:
    return {
        "spark.driver.cores": str(driver_vcpus_of(heap_gib + overhead_gib)),
        "spark.driver.memory": f"{heap_gib}g",
        "spark.driver.memoryOverhead": f"{overhead_gib}g",
    }
