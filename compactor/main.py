"""The Spark job: runs one attempt at one session. The only file of this process that reads arguments and environment.

    spark-submit ... compactor/main.py --state URI --plan KEY --attempt N

Exit code 0: the session succeeded. 1: it failed, and may be tried again. 2: its input can never work. Why, and what was
done, is in the session log beside the plan.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

# spark-submit puts this file's own folder first on the path, where our modules would be found without their package.
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent]

from compactor.unpacked_pyspark import prefer_unpacked_pyspark  # noqa: E402

prefer_unpacked_pyspark()

from pyspark import SparkContext  # noqa: E402

from compactor.errors import Corrupt, Invalid, LithifyError  # noqa: E402
from compactor.spark_workers import wake_workers  # noqa: E402

EXIT_FAILED = 1
EXIT_INVALID = 2


def main(arguments: Sequence[str]) -> int:
    options = _parse(arguments)
    spark = SparkContext.getOrCreate()
    spark.setLogLevel("ERROR")
    try:
        wake_workers(spark)
        _run(options, spark)
    except Invalid as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_INVALID
    except LithifyError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return EXIT_FAILED
    finally:
        spark.stop()
    return 0


def _run(options: argparse.Namespace, spark: SparkContext) -> None:
    # A second of imports, while executors make theirs.
    from compactor.attempt import run_attempt
    from compactor.catalog.catalog import DeltaCatalog
    from compactor.clock import SystemClock
    from compactor.log_context import configure_logging
    from compactor.object_store import open_store, parse_location
    from compactor.spec import SessionPlan

    configure_logging(as_json=True)
    clock = SystemClock()
    state = open_store(
        parse_location(options.state, endpoint_url=options.state_endpoint_url, region=options.state_region)
    )
    body = state.read(options.plan)
    if body is None:
        raise Corrupt(f"there is no plan at {options.plan} in {options.state}")
    plan = SessionPlan.parse_durable(body, options.plan)
    lake = DeltaCatalog(open_store(plan.spec.job_run.lake), clock)
    run_attempt(plan, lake, state, spark, options.attempt, clock)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Runs one attempt at one compaction session.")
    parser.add_argument("--state", required=True, help="root URI of the store that holds the plan")
    parser.add_argument("--state-endpoint-url", default=None, help="the store's S3 endpoint, where it is not AWS's own")
    parser.add_argument("--state-region", default=None, help="the store's S3 region")
    parser.add_argument("--plan", required=True, help="key of plan.json in that store")
    parser.add_argument("--attempt", required=True, type=int, help="number of this attempt, from 1")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
