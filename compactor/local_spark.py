"""A Spark of one's own for `compact()` where the caller has none: in this process, on this machine's cores."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark import SparkConf, SparkContext

from compactor.java_home import find_java_home
from compactor.machine import usable_cores, usable_memory_bytes
from compactor.sizing import Resources
from compactor.spark_settings import JOB_SETTINGS, LOCAL_SETTINGS, driver_settings
from compactor.spark_workers import wake_workers

_QUIET_LOGS = Path(__file__).with_name("log4j2.properties")
_TASK_MEMORY_SHARE = 0.5
_TASK_MEMORY_BYTES_MAX = 8 * 1024**3
_HEAP_SHARE = 0.125
_HEAP_BYTES_MIN, _HEAP_BYTES_MAX = 1024**3, 4 * 1024**3


@contextmanager
def local_spark(app_name: str) -> Iterator[SparkContext]:
    """Starts Spark in local mode and stops it at the end. Raises `Invalid` where there is no Java to run it.

    PySpark is told of its Java and of its workers' Python through the environment only, so this is the one place
    beside the mains that touches it.
    """
    environment = os.environ  # noqa: TID251
    environment["JAVA_HOME"] = str(find_java_home(environment, Path.home() / ".cache" / "lithify"))
    environment.setdefault("PYSPARK_PYTHON", sys.executable)
    conf = SparkConf().setAppName(app_name).setMaster(f"local[{usable_cores()}]")
    driver = driver_settings(local_heap_bytes(usable_memory_bytes()), f'-Dlog4j2.configurationFile="{_QUIET_LOGS}"')
    for name, value in {**JOB_SETTINGS, **LOCAL_SETTINGS, **driver}.items():
        conf.set(name, value)
    spark = SparkContext(conf=conf)
    spark.setLogLevel("ERROR")
    wake_workers(spark)
    try:
        yield spark
    finally:
        spark.stop()


def local_heap_bytes(memory_bytes: int) -> int:
    """The JVM's share of a machine's memory: an eighth, but what Spark takes by itself (1 GiB) at least, 4 GiB at most.

    It holds the survivors of a round of some millions of keys, which would else be written to the disk and read again.
    """
    return min(max(int(memory_bytes * _HEAP_SHARE), _HEAP_BYTES_MIN), _HEAP_BYTES_MAX)


def local_resources(cores: int) -> Resources:
    """What a task may hold on this machine: an even share of half of its memory, at most seed 000's 8 GiB per core."""
    share_bytes = int(usable_memory_bytes() * _TASK_MEMORY_SHARE / cores)
    return Resources(task_memory_bytes=min(share_bytes, _TASK_MEMORY_BYTES_MAX), tasks=cores)
