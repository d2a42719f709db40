"""Starts Python workers before the first task needs one. It must start fast, so it imports next to nothing."""

import threading

from pyspark import RDD, SparkContext


def prestart_workers(spark: SparkContext) -> threading.Thread:
    """Starts the executors' Python workers, whose imports are slow, while the driver makes its own.

    Returns immediately, with the thread that waits for them. One empty task runs per core; Spark waits for the
    executors of a standalone session first (`standalone_spark_conf`).
    """
    cores = max(spark.defaultParallelism, int(spark.getConf().get("spark.cores.max") or 0))
    tasks = spark.parallelize(range(cores), cores)
    thread = threading.Thread(target=_run, args=(tasks,), name="wake-workers", daemon=True)
    thread.start()
    return thread


def _run(tasks: RDD[int]) -> None:
    try:
        tasks.foreach(_no_op)
    except Exception as error:  # noqa: BLE001  (the session's jobs report the cause)
        from compactor.log_context import LOG

        LOG.debug("workers_not_started", reason=str(error))


def _no_op(_: int) -> None:
    return
