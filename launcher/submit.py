"""The command that starts a session's Spark job on this machine, and its Spark settings. Pure: values in, values out.

The arguments name only the dispatcher's state and the key of the plan in it.
"""

from collections.abc import Mapping

from compactor.engine.settings import JOB_SETTINGS, LOCAL_SETTINGS, MIB, driver_settings
from compactor.planning.sizing import Resources
from launcher.archive import ENVIRONMENT
from launcher.spark_job import SparkJob

EXECUTOR_HEAP_BYTES = 1024 * MIB
"""Heap of an executor's JVM: it passes small records, and keeps survivors between two passes. The Python workers
beside it hold the rows; Spark does not count their memory."""

EXECUTORS_SECONDS_MAX = 15
"""A session waits no longer for its first executors to register: a standalone Spark may have fewer cores free."""


def local_spark_conf(resources: Resources, driver_memory_bytes: int, scratch_folder: str) -> dict[str, str]:
    """Settings for one machine: the driver's JVM, and Python workers beside it.

    Worked: 2 tasks of 4 GiB and a driver of 1 GiB take 9 GiB of the machine.
    """
    return {
        **JOB_SETTINGS,
        **LOCAL_SETTINGS,
        "spark.master": f"local[{resources.tasks}]",
        **driver_settings(driver_memory_bytes, f'-Djava.io.tmpdir="{scratch_folder}"'),
        "spark.local.dir": scratch_folder,
    }


def standalone_spark_conf(
    master_url: str,
    archive: str,
    resources: Resources,
    driver_memory_bytes: int,
    scratch_folder: str,
    *,
    executor_cores: int | None,
    driver_host: str | None,
) -> dict[str, str]:
    """Settings for a standalone Spark, with the driver here. Executors use their workers' scratch folders."""
    conf = {
        **JOB_SETTINGS,
        "spark.ui.enabled": "false",
        "spark.master": master_url,
        "spark.submit.deployMode": "client",
        "spark.archives": f"{archive}#{ENVIRONMENT}",
        "spark.cores.max": str(resources.tasks),
        # Else the executor that comes first gets all first tasks, and the others unpack the archive in a round.
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{EXECUTORS_SECONDS_MAX}s",
        "spark.executor.memory": f"{EXECUTOR_HEAP_BYTES // MIB}m",
        # A killed executor leaves its copy of the archive: in its own folder it goes with the application's.
        "spark.executor.extraJavaOptions": "-Djava.io.tmpdir=.",
        "spark.dynamicAllocation.enabled": "false",
        **driver_settings(driver_memory_bytes, f'-Djava.io.tmpdir="{scratch_folder}"'),
        "spark.local.dir": scratch_folder,
    }
    if executor_cores is not None:
        conf["spark.executor.cores"] = str(executor_cores)
    if driver_host is not None:
        conf["spark.driver.host"] = driver_host
    return conf


def submit_arguments(spark_submit: str, program: str, job: SparkJob, conf: Mapping[str, str]) -> tuple[str, ...]:
    """The whole command line, settings in name order so that equal jobs have equal commands."""
    settings = (argument for name in sorted(conf) for argument in ("--conf", f"{name}={conf[name]}"))
    return (spark_submit, "--name", job.name, *settings, program, *job_arguments(job))


def job_arguments(job: SparkJob) -> tuple[str, ...]:
    """The arguments of `compactor/main.py`."""
    optional = []
    if job.state.endpoint_url is not None:
        optional += ["--state-endpoint-url", job.state.endpoint_url]
    if job.state.region is not None:
        optional += ["--state-region", job.state.region]
    launched = () if job.launched_at_ms is None else ("--launched-at-ms", str(job.launched_at_ms))
    plan = ("--plan", job.plan_key, "--attempt", str(job.attempt))
    return ("--state", job.state.root_uri, *optional, *plan, *launched)
