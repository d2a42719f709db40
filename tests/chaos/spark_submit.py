"""Stands where `spark-submit` stands: the in-process engine for most tables, the real Spark for the one that wants it.

Sessions on the in-process engine wait for up to PAUSE_SECONDS_MAX before each commit, those of a bundle before they
begin, so that signals find them there; how long follows from the session and the attempt. How they end they say as the
real job does.
"""

from __future__ import annotations

import os
import sys
import time
import zlib
from collections.abc import Callable

from compactor.lake import DeltaCatalog
from compactor.model.clock import SystemClock
from compactor.model.errors import EXIT_FAILED, EXIT_FENCED, EXIT_INVALID, Fenced, Invalid, LithifyError
from compactor.planning.bundle_plan import BundlePlan
from compactor.planning.spec import SessionPlan
from compactor.sessions.bundle import MemberTask, UnloggedEnd, run_bundle
from compactor.sessions.keys import BundleObject
from compactor.storage.location import parse_location
from compactor.storage.object_store import ObjectStore
from compactor.storage.opening import open_store
from tests.chaos.tables import REAL_TABLE
from tests.fakes.attempts import run_attempt
from tests.fakes.held_engine import HeldEngine
from tests.fakes.in_process_runner import InProcessTaskRunner

PAUSE_SECONDS_MAX = 1.5
REAL_SPARK_HOME = "CHAOS_REAL_SPARK_HOME"
PROGRAM = "tests.chaos.spark_submit"


def main(arguments: list[str]) -> int:
    job = arguments[next(place for place, text in enumerate(arguments) if text.endswith("main.py")) + 1 :]
    given = dict(zip(job[::2], job[1::2]))
    location = parse_location(
        given["--state"], endpoint_url=given.get("--state-endpoint-url"), region=given.get("--state-region")
    )
    try:
        state = open_store(location)
        body = state.read(given["--plan"])
        assert body is not None, f"there is no plan {given['--plan']}"
        path = BundleObject.parse_or_none(given["--plan"])
        if path is not None:
            bundle = BundlePlan.parse_durable(body, path.key)
            if any(_is_real(member.plan) for member in bundle.members):
                _become_real(arguments)
            runner = InProcessTaskRunner[MemberTask, "UnloggedEnd | None"](_run_after_pause)
            run_bundle(bundle, path.bundle.job_run_id, state, runner, None, SystemClock())
            return 0
        plan = SessionPlan.parse_durable(body, given["--plan"])
        if _is_real(plan):
            _become_real(arguments)
        _compact(plan, state, int(given["--attempt"]))
    except LithifyError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return EXIT_FENCED if isinstance(error, Fenced) else EXIT_INVALID if isinstance(error, Invalid) else EXIT_FAILED
    return 0


def _compact(plan: SessionPlan, state: ObjectStore, attempt: int) -> None:
    clock = SystemClock()
    lake = DeltaCatalog(open_store(plan.spec.job_run.lake), clock)
    pause_seconds = _pause_seconds(plan, attempt)
    run_attempt(plan, lake, state, HeldEngine(lambda: time.sleep(pause_seconds)), attempt, clock)


def _run_after_pause(
    run: Callable[[MemberTask, bool], UnloggedEnd | None],
    task: MemberTask,
    is_again: bool,
) -> UnloggedEnd | None:
    time.sleep(_pause_seconds(task.member.plan, task.member.attempt))
    return run(task, is_again)


def _pause_seconds(plan: SessionPlan, attempt: int) -> float:
    return zlib.crc32(f"{plan.spec.session_id} {attempt}".encode()) / 0xFFFF_FFFF * PAUSE_SECONDS_MAX


def _is_real(plan: SessionPlan) -> bool:
    return plan.spec.job_run.source_table_id == REAL_TABLE.table_id


def _become_real(arguments: list[str]) -> None:
    home = os.environ[REAL_SPARK_HOME]
    environment = {**os.environ, "SPARK_HOME": home}
    os.execve(f"{home}/bin/spark-submit", [f"{home}/bin/spark-submit", *arguments], environment)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
