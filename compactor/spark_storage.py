"""Where Spark keeps what one of its jobs leaves for the next."""

from __future__ import annotations

from pyspark import SparkContext, StorageLevel

MEMORY_SHARE_MAX = 0.5
"""Of the memory that is left for kept blocks. Spark counts what it keeps, but not all that it holds beside that: with
less to spare, a JVM has died of taking a block into memory that it had written to its disk already."""


def storage_level(spark: SparkContext, needed_bytes: int) -> StorageLevel:
    """In memory where so many bytes have ample room; else on disk."""
    has_room = needed_bytes <= MEMORY_SHARE_MAX * storage_left_bytes(spark)
    return StorageLevel.MEMORY_AND_DISK if has_room else StorageLevel.DISK_ONLY


def storage_left_bytes(spark: SparkContext) -> int:
    """Of all executors, as if each had as little as the one that has least. A cluster's driver, which is listed beside
    its executors, keeps nothing."""
    left = []
    status = spark._jsc.sc().getExecutorMemoryStatus().values().iterator()  # noqa: SLF001
    while status.hasNext():
        # Pairs of what there is at the most, and what is left.
        left.append(int(status.next()._2()))  # noqa: SLF001
    return min(left, default=0) * max(len(left) - 1, 1)
