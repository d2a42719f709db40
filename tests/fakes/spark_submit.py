"""Stands where `spark-submit` stands, takes its command line, and runs a small session instead of a Spark job.

SMALL_SESSION_HOLD names a file: while it is there, the session does not commit.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from compactor.catalog.catalog import DeltaCatalog
from compactor.clock import SystemClock
from compactor.object_store import open_store, parse_location
from compactor.spec import SessionPlan
from tests.fakes.small_session import run_small_session

SCRIPT = '#!/bin/sh\nexec "$PYSPARK_PYTHON" -m tests.fakes.spark_submit "$@"\n'


def make_spark_home(folder: Path) -> Path:
    """A SPARK_HOME with nothing in it but this."""
    program = folder / "bin" / "spark-submit"
    program.parent.mkdir(parents=True)
    program.write_text(SCRIPT)
    program.chmod(0o755)
    return folder


def main(arguments: list[str]) -> None:
    job = arguments[next(place for place, text in enumerate(arguments) if text.endswith("main.py")) + 1 :]
    given = dict(zip(job[::2], job[1::2]))
    clock = SystemClock()
    state = open_store(
        parse_location(
            given["--state"], endpoint_url=given.get("--state-endpoint-url"), region=given.get("--state-region")
        )
    )
    body = state.read(given["--plan"])
    assert body is not None
    plan = SessionPlan.parse_durable(body, given["--plan"])
    lake = DeltaCatalog(open_store(plan.spec.job_run.lake), clock)
    run_small_session(plan, lake, state, int(given["--attempt"]), clock, _wait_while_held)


def _wait_while_held() -> None:
    hold = os.environ.get("SMALL_SESSION_HOLD")
    while hold is not None and Path(hold).exists():
        time.sleep(0.02)


if __name__ == "__main__":
    main(sys.argv[1:])
