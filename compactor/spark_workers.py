"""Has Python workers start before the first task needs one. What it imports is what it may cost: next to nothing."""

from __future__ import annotations

import threading

from pyspark import RDD, SparkContext


def wake_workers(spark: SparkContext) -> threading.Thread:
    """Starts executors' Python workers, whose imports take more than a second, while the driver has its own to make.

    Returns at once, with the thread that waits for them. One task a core does nothing, on whatever executors there are.
    """
    cores = spark.defaultParallelism
    tasks = spark.parallelize(range(cores), cores)
    thread = threading.Thread(target=_run, args=(tasks,), name="wake-workers", daemon=True)
    thread.start()
    return thread


def _run(tasks: RDD[int]) -> None:
    try:
        tasks.foreach(_nothing)
    except Exception as error:  # noqa: BLE001  (what keeps workers from starting fails the session's jobs, which tell it)
        import structlog

        structlog.get_logger().debug("workers_not_woken", reason=str(error))


def _nothing(_: int) -> None:
    return
