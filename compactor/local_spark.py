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
_HEAP_BYTES = 1024**3


@contextmanager
def local_spark(app_name: str, master: str | None = None) -> Iterator[SparkContext]:
    """Starts Spark in local mode and stops it at the end. Raises `Invalid` where there is no Java to run it.

    master  in place of `local` with all cores that may be used

    PySpark is told of its Java and of its workers' Python through the environment only, so this is the one place
    beside the mains that touches it.
    """
    environment = os.environ  # noqa: TID251
    environment["JAVA_HOME"] = str(find_java_home(environment, Path.home() / ".cache" / "lithify"))
    environment.setdefault("PYSPARK_PYTHON", sys.executable)
    conf = SparkConf().setAppName(app_name).setMaster(master or f"local[{usable_cores()}]")
    driver = driver_settings(_HEAP_BYTES, f'-Dlog4j2.configurationFile="{_QUIET_LOGS}"')
    for name, value in {**JOB_SETTINGS, **LOCAL_SETTINGS, **driver}.items():
        conf.set(name, value)
    spark = SparkContext(conf=conf)
    spark.setLogLevel("ERROR")
    wake_workers(spark)
    try:
        yield spark
    finally:
        spark.stop()


def local_resources(cores: int) -> Resources:
    """What a task may hold on this machine: an even share of half of its memory, at most seed 000's 8 GiB per core."""
    share_bytes = int(usable_memory_bytes() * _TASK_MEMORY_SHARE / cores)
    return Resources(task_memory_bytes=min(share_bytes, _TASK_MEMORY_BYTES_MAX), tasks=cores)
