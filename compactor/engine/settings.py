"""Spark settings that every session needs. The code that starts Spark adds the master and the memory."""

from collections.abc import Mapping
from types import MappingProxyType

JOB_SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        # Python workers are forked from a process that has imported our steps already.
        "spark.python.daemon.module": "compactor.worker_daemon",
        "spark.python.worker.reuse": "true",
        # Pointer records are digests: they do not compress.
        "spark.shuffle.compress": "false",
        "spark.shuffle.spill.compress": "false",
        "spark.rdd.compress": "false",
        "spark.broadcast.compress": "false",
        # Records are few and large: one file per reducer, concatenated afterwards, would write them twice. Checksums
        # only help with compression, because its reader is the one that finds a damaged block.
        "spark.shuffle.sort.bypassMergeThreshold": "1",
        "spark.shuffle.checksum.enabled": "false",
        "spark.shuffle.file.buffer": "256k",
        # Retrying a task is safe; a failure of four tries is not the machine's.
        "spark.task.maxFailures": "4",
        "spark.ui.showConsoleProgress": "false",
        # The job never uses DataFrames; results of tasks are small, but an index of many files is not.
        "spark.driver.maxResultSize": "0",
    }
)

LOCAL_SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }
)
"""Settings of a Spark on one machine: it has no web page and listens on the loopback interface only."""

MIB = 1024 * 1024

QUICK_JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
"""Options of a JVM on one machine that lives for seconds and holds no rows: no threads that collect or optimise in the
background, and no file in /tmp."""


def driver_settings(heap_bytes: int, *options: str) -> dict[str, str]:
    """Settings of the only JVM of a session on one machine: it schedules tasks and passes small records.

    Half of its heap is the young generation, where most objects die.
    """
    young = f"-Xmn{heap_bytes // 2 // MIB}m"
    return {
        "spark.driver.memory": f"{heap_bytes // MIB}m",
        "spark.driver.extraJavaOptions": " ".join((*QUICK_JVM, young, *options)),
    }
