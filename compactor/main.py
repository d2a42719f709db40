"""The Spark job: runs one attempt at one session, or a bundle of small sessions. The only file of this process that
reads arguments and environment.

Functions import what they need, so that Spark and its workers start first: the imports of this process then overlap
those of the workers.

    spark-submit ... compactor/main.py --state URI --plan KEY --attempt N

Exit code 0: the session succeeded. 1: it failed, and may be tried again. 2: its input can never work. 3: another
compactor, or a later attempt, was faster. The session log beside the plan has the reasons and the rounds done. A
bundle's plan names several attempts; its exit code is 0 once every session has ended, whether it succeeded or not.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

# spark-submit puts this file's own folder first on the path, where our modules would be found without their package.
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent]

from compactor.engine.pyspark_path import prefer_unpacked_pyspark  # noqa: E402

prefer_unpacked_pyspark()

from pyspark import SparkContext  # noqa: E402

from compactor.engine.prestart import prestart_workers  # noqa: E402
from compactor.model.errors import EXIT_FAILED, EXIT_FENCED, EXIT_INVALID, Corrupt, Fenced, Invalid, LithifyError  # noqa: E402  # noqa: E402

if TYPE_CHECKING:
    from compactor.sessions.keys import BundleObject
    from compactor.storage.object_store import ObjectStore


def main(arguments: Sequence[str]) -> int:
    options = _parse(arguments)
    spark = SparkContext.getOrCreate()
    spark.setLogLevel("ERROR")
    try:
        prestart_workers(spark)
        return exit_code_of(lambda: _run(options, spark))
    finally:
        _stop(spark)


def _stop(spark: SparkContext) -> None:
    from compactor.engine.local import stop_spark

    stop_spark(spark)


def exit_code_of(run: Callable[[], None]) -> int:
    """The exit code for the error that `run` raised, if any; its message goes to stderr."""
    try:
        run()
    except Invalid as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_INVALID
    except Fenced as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_FENCED
    except LithifyError as error:
        sys.stderr.write(f"{error.kind}: {error}\n")
        return EXIT_FAILED
    return 0


def _run(options: argparse.Namespace, spark: SparkContext) -> None:
    from compactor.log_context import configure_logging
    from compactor.sessions.keys import BundleObject
    from compactor.storage.location import parse_location
    from compactor.storage.opening import open_store

    configure_logging(as_json=True, runs_session=True)
    state = open_store(
        parse_location(options.state, endpoint_url=options.state_endpoint_url, region=options.state_region)
    )
    body = state.read(options.plan)
    if body is None:
        raise Corrupt(f"there is no plan at {options.plan} in {options.state}")
    path = BundleObject.parse_or_none(options.plan)
    if path is not None:
        _run_bundle(body, path, state, spark)
    else:
        _run_session(body, options, state, spark)


def _run_bundle(body: bytes, path: BundleObject, state: ObjectStore, spark: SparkContext) -> None:
    from compactor.engine.spark import SparkEngine
    from compactor.engine.spark_tasks import SparkTaskRunner
    from compactor.model.clock import SystemClock
    from compactor.planning.bundle_plan import BundlePlan, share_tasks
    from compactor.sessions.bundle import MemberTask, UnloggedEnd, run_bundle

    plan = BundlePlan.parse_durable(body, path.key)
    runner: SparkTaskRunner[MemberTask, UnloggedEnd | None] = SparkTaskRunner(spark)
    engine = SparkEngine(spark)
    resources = engine.resources()
    groups = share_tasks(plan, resources.tasks, resources.task_memory_bytes)
    run_bundle(plan, path.bundle.job_run_id, state, runner, engine.driver_hosts(), SystemClock(), groups=groups)


def _run_session(body: bytes, options: argparse.Namespace, state: ObjectStore, spark: SparkContext) -> None:
    from compactor.catalog.tables import DeltaCatalog
    from compactor.engine.spark import SparkEngine
    from compactor.model.clock import SystemClock
    from compactor.planning.sizing import SESSION_SECONDS
    from compactor.planning.spec import SessionPlan
    from compactor.sessions.attempt import run_attempt
    from compactor.storage.opening import open_store

    clock = SystemClock()
    plan = SessionPlan.parse_durable(body, options.plan)
    lake = DeltaCatalog(open_store(plan.spec.job_run.lake), clock).for_one_run()
    before_seconds = plan.cluster.start_seconds if plan.cluster is not None else SESSION_SECONDS
    run_attempt(plan, lake, state, SparkEngine(spark), options.attempt, clock, before_seconds=before_seconds)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Runs one attempt at one compaction session.")
    parser.add_argument("--state", required=True, help="root URI of the store that holds the plan")
    parser.add_argument("--state-endpoint-url", default=None, help="the store's S3 endpoint, if it is not AWS's own")
    parser.add_argument("--state-region", default=None, help="the store's S3 region")
    parser.add_argument("--plan", required=True, help="key of plan.json in that store")
    parser.add_argument("--attempt", required=True, type=int, help="number of this attempt, from 1")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
