"""The Spark settings of a session's job. Pure: a session's resources in, settings out."""

from __future__ import annotations

from compactor.sizing import Resources
from compactor.spark_settings import JOB_SETTINGS, LOCAL_SETTINGS, MIB, driver_settings

GIB = 1024 * MIB

MACHINE_MEMORY_SHARE = 0.75
"""Of a machine's memory, for all of its sessions together; the rest is the operating system's and the file cache's."""

DRIVER_MEMORY_BYTES_MIN = 512 * MIB
DRIVER_MEMORY_SHARE = 0.1
"""Of a session's memory. The JVM schedules and moves shuffle files; rows are held by the Python workers."""

TASK_MEMORY_BYTES_MAX = 8 * GIB
"""Seed 000 recommends 8 GiB per CPU; more would only make hash buckets larger."""


def local_spark_conf(resources: Resources, driver_memory_bytes: int, scratch_folder: str) -> dict[str, str]:
    """For one machine: the driver's JVM, and Python workers beside it.

    Worked: 2 tasks of 4 GiB and a driver of 1 GiB take 9 GiB of the machine.
    """
    return {
        **JOB_SETTINGS,
        **LOCAL_SETTINGS,
        "spark.master": f"local[{resources.tasks}]",
        **driver_settings(driver_memory_bytes, f'-Djava.io.tmpdir="{scratch_folder}"'),
        "spark.local.dir": scratch_folder,
    }


def share_of_machine(memory_bytes: int, cores: int, sessions: int) -> tuple[Resources, int]:
    """What one of `sessions` sessions side by side gets of a machine, and its driver's memory in bytes.

    Worked: 32 GiB and 8 cores for 2 sessions are 16 GiB and 4 cores each: a driver of 1.6 GiB, and 4 tasks of 3.6 GiB.
    """
    session_bytes = memory_bytes // sessions
    driver_memory_bytes = max(int(session_bytes * DRIVER_MEMORY_SHARE), DRIVER_MEMORY_BYTES_MIN)
    tasks = max(cores // sessions, 1)
    task_memory_bytes = max((session_bytes - driver_memory_bytes) // tasks, MIB)
    return Resources(min(task_memory_bytes, TASK_MEMORY_BYTES_MAX), tasks), driver_memory_bytes
