"""The Spark job: runs one attempt at one session, or a bundle of small sessions (`compactor/session_job.py`). The only
file of this process that reads arguments and environment.

Functions import what they need, so that Spark and its workers start first, and their imports overlap these.

    spark-submit ... compactor/main.py --state URI --plan KEY --attempt N
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

# spark-submit puts this file's own folder first on the path, where our modules would be found without their package.
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent]

from compactor.engine.pyspark_path import prefer_unpacked_pyspark  # noqa: E402

prefer_unpacked_pyspark()

from pyspark import SparkContext  # noqa: E402

from compactor.engine.prestart import prestart_workers  # noqa: E402
from compactor.session_job import exit_code_of  # noqa: E402

if TYPE_CHECKING:
    from compactor.engine.spark import SparkEngine
    from compactor.planning.sizing import Resources
    from compactor.planning.spec import SessionPlan
    from compactor.sessions.bundle import BundleTaskRunner


def main(arguments: Sequence[str]) -> int:
    spark = SparkContext.getOrCreate()
    spark.setLogLevel("ERROR")
    try:
        starting = prestart_workers(spark)
        return exit_code_of(lambda: _run(arguments, spark, starting))
    finally:
        _stop(spark)


def _stop(spark: SparkContext) -> None:
    from compactor.engine.local import stop_spark

    stop_spark(spark)


def _run(arguments: Sequence[str], spark: SparkContext, starting: Thread) -> None:
    from compactor.engine.spark import SparkEngine
    from compactor.log_context import configure_logging
    from compactor.session_job import run_job

    configure_logging(as_json=True, runs_session=True)
    run_job(arguments, _OnSpark(spark, SparkEngine(spark, starting)))


class _OnSpark:
    """The `JobPlace` of a running Spark."""

    def __init__(self, spark: SparkContext, engine: SparkEngine) -> None:
        self._spark = spark
        self._engine = engine

    def engine(self, plan: SessionPlan) -> SparkEngine:
        return self._engine

    def resources(self) -> Resources:
        return self._engine.resources()

    def task_runner(self) -> BundleTaskRunner:
        from compactor.engine.spark_tasks import SparkTaskRunner

        return SparkTaskRunner(self._spark)

    def hosts(self) -> tuple[str, str]:
        return self._engine.driver_hosts()

    def start_seconds(self, plan: SessionPlan) -> float:
        from compactor.planning.sizing import SESSION_SECONDS

        return plan.cluster.start_seconds if plan.cluster is not None else SESSION_SECONDS


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
