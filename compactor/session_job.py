"""A launched job in any place: it reads its plan, runs an attempt at a session or a bundle, and has an exit code.

    --state URI --plan KEY --attempt N [--launched-at-ms MS]

Exit code 0: the session succeeded. 1: it failed, and may be tried again. 2: its input can never work. 3: another
compactor, or a later attempt, was faster. The session log beside the plan has the reasons and the rounds done. A
bundle's plan names several attempts; its exit code is 0 once every session has ended, whether it succeeded or not.

Functions import what they need, so that a Spark that starts meanwhile need not wait for those imports.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from compactor.model.errors import EXIT_FAILED, EXIT_FENCED, EXIT_INVALID, Corrupt, Fenced, Invalid, LithifyError

if TYPE_CHECKING:
    from compactor.engine.protocol import Engine
    from compactor.planning.sizing import Resources
    from compactor.planning.spec import SessionPlan
    from compactor.sessions.bundle import BundleTaskRunner


class JobPlace(Protocol):
    """Where the job runs."""

    def engine(self, plan: SessionPlan) -> Engine:
        """For a session alone."""

    def resources(self) -> Resources:
        """For the members of a bundle."""

    def task_runner(self) -> BundleTaskRunner:
        """For the members of a bundle."""

    def hosts(self) -> tuple[str, str] | None:
        """As in `Engine.driver_hosts`; None: tasks run in this process, and what it runs is small."""

    def start_seconds(self, plan: SessionPlan) -> float:
        """From the launch of a session alone to the beginning of its attempt."""


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


def run_job(arguments: Sequence[str], place: JobPlace) -> None:
    """Raises the error that ended a session alone, and errors that end a bundle as a whole."""
    from compactor.model.clock import SystemClock
    from compactor.planning.bundle_plan import BundlePlan, share_tasks
    from compactor.planning.spec import SessionPlan
    from compactor.sessions.attempt import run_attempt_with_journal
    from compactor.sessions.bundle import lake_at, run_bundle, store_at
    from compactor.sessions.keys import BundleObject, SessionFolder
    from compactor.sessions.session_journal import SessionJournal
    from compactor.storage.location import parse_location

    given, clock = _parse(arguments), SystemClock()
    state = store_at(parse_location(given.state, endpoint_url=given.state_endpoint_url, region=given.state_region))
    body = state.read(given.plan)
    if body is None:
        raise Corrupt(f"there is no plan at {given.plan} in {given.state}")
    path = BundleObject.parse_or_none(given.plan)
    if path is not None:
        bundle, resources = BundlePlan.parse_durable(body, path.key), place.resources()
        groups = share_tasks(bundle, resources.tasks, resources.task_memory_bytes)
        run_bundle(bundle, path.bundle.job_run_id, state, place.task_runner(), place.hosts(), clock, groups=groups)
        return
    plan = SessionPlan.parse_durable(body, given.plan)
    lake = lake_at(plan.spec.job_run.lake)
    folder = SessionFolder(plan.spec.job_run.job_run_id, plan.spec.session_id)
    journal = SessionJournal(state, folder, given.attempt, clock, is_brief=place.hosts() is None)
    engine = place.engine(plan)
    before_seconds = _seconds_since(given.launched_at_ms, clock.now_ms(), place.start_seconds(plan))
    run_attempt_with_journal(journal, plan, lake, engine, clock, before_seconds)


START_TIMES_MAX = 10
"""A start that seems longer than so many predicted ones, and an hour, is a clock that is wrong."""


def _seconds_since(launched_at_ms: int | None, now_ms: int, predicted_seconds: float) -> float:
    """From the launch until now, by the clocks of dispatcher and job; as predicted, where they cannot be right."""
    if launched_at_ms is None:
        return predicted_seconds
    seconds = (now_ms - launched_at_ms) / 1000
    return seconds if 0 <= seconds <= START_TIMES_MAX * predicted_seconds + 3600 else predicted_seconds


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Runs one attempt at one compaction session.")
    parser.add_argument("--state", required=True, help="root URI of the store that holds the plan")
    parser.add_argument("--state-endpoint-url", default=None, help="the store's S3 endpoint, if it is not AWS's own")
    parser.add_argument("--state-region", default=None, help="the store's S3 region")
    parser.add_argument("--plan", required=True, help="key of plan.json in that store")
    parser.add_argument("--attempt", required=True, type=int, help="number of this attempt, from 1")
    parser.add_argument(
        "--launched-at-ms", default=None, type=int, help="when it was launched, by its dispatcher's clock"
    )
    return parser.parse_args(arguments)
