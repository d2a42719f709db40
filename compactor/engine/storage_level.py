"""Decides where Spark keeps records between two of its jobs."""

import gc
from typing import Any

from pyspark import SparkContext, StorageLevel

MEMORY_SHARE_MAX = 0.5
"""Share of the memory that is left for kept blocks. Spark counts kept blocks, but not all other memory: with a larger
share, a JVM ran out of memory while it loaded a block that was on its disk already."""


def storage_level(spark: SparkContext, needed_bytes: int) -> StorageLevel:
    """In memory if there is ample room for this many bytes, else on disk."""
    has_room = needed_bytes <= MEMORY_SHARE_MAX * storage_left_bytes(spark)
    return StorageLevel.MEMORY_AND_DISK if has_room else StorageLevel.DISK_ONLY


def release_scratch(spark: SparkContext) -> None:
    """Makes Spark delete the shuffle files of unreferenced RDDs now rather than in half an hour.

    Its cleaner learns of them from the JVM's garbage collection, which the driver of a session hardly needs. If records
    are in files of their own there is next to nothing to delete.
    """
    jvm: Any = spark._jvm  # noqa: SLF001
    gc.collect()  # PySpark keeps its RDDs in circles of references
    jvm.System.gc()


def storage_left_bytes(spark: SparkContext) -> int:
    """The memory left on all executors, as if each had as little as the one with the least.

    A cluster's driver, which is listed beside its executors, keeps nothing.
    """
    left = []
    status = spark._jsc.sc().getExecutorMemoryStatus().values().iterator()  # noqa: SLF001
    while status.hasNext():
        # Pairs of (maximum, remaining) memory.
        left.append(int(status.next()._2()))  # noqa: SLF001
    return min(left, default=0) * max(len(left) - 1, 1)
