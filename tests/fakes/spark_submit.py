"""A stand-in for `spark-submit`: takes its command line, and runs the session on the in-process engine.

SESSION_HOLD names a file: while the file exists, the session does not commit.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from compactor.lake import DeltaCatalog
from compactor.model.clock import SystemClock
from compactor.planning.bundle_plan import BundlePlan
from compactor.planning.spec import SessionPlan
from compactor.sessions.bundle import MemberTask, UnloggedEnd, run_bundle
from compactor.sessions.keys import BundleObject
from compactor.storage.location import parse_location
from compactor.storage.opening import open_store
from tests.fakes.attempts import run_attempt
from tests.fakes.held_engine import HeldEngine
from tests.fakes.in_process_runner import InProcessTaskRunner

PROGRAM = "tests.fakes.spark_submit"


def make_spark_home(folder: Path, stand_in: str = PROGRAM) -> Path:
    """A SPARK_HOME that contains only a stand-in for `spark-submit`: the module of this name."""
    program = folder / "bin" / "spark-submit"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nexec "$PYSPARK_PYTHON" -m {stand_in} "$@"\n')
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
    path = BundleObject.parse_or_none(given["--plan"])
    if path is not None:
        bundle = BundlePlan.parse_durable(body, path.key)
        runner = InProcessTaskRunner[MemberTask, "UnloggedEnd | None"](_run_when_not_held)
        run_bundle(bundle, path.bundle.job_run_id, state, runner, None, clock)
        return
    plan = SessionPlan.parse_durable(body, given["--plan"])
    lake = DeltaCatalog(open_store(plan.spec.job_run.lake), clock).for_one_run()
    run_attempt(plan, lake, state, HeldEngine(_wait_while_held), int(given["--attempt"]), clock)


def _run_when_not_held(
    run: Callable[[MemberTask, bool], UnloggedEnd | None],
    task: MemberTask,
    is_again: bool,
) -> UnloggedEnd | None:
    _wait_while_held()
    return run(task, is_again)


def _wait_while_held() -> None:
    hold = os.environ.get("SESSION_HOLD")
    while hold is not None and Path(hold).exists():
        time.sleep(0.02)


if __name__ == "__main__":
    main(sys.argv[1:])
