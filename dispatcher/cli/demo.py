"""`lithify demo`: all of Lithify on this machine, from instructions on a queue to compacted tables."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from compactor.log_context import configure_logging
from compactor.model.errors import EXIT_FAILED, EXIT_INTERRUPTED, Unavailable
from dispatcher.cli.options import Output, OutputOption
from dispatcher.cli.output import answer, as_text, flush
from dispatcher.clients import CommandDependencies
from dispatcher.demo.changes_scenario import ChangesScenario
from dispatcher.demo.environment import DemoEnvironment, demo_environment, demo_page, make_dispatcher, make_folder
from dispatcher.demo.keeper_scenario import KeeperScenario
from dispatcher.demo.report import (
    Check,
    FollowUp,
    check_orders,
    check_paper,
    make_follow_up,
    next_commands,
    paper_table,
    sessions_table,
)
from dispatcher.demo.scenario import JOB_RUNS, Scenario
from dispatcher.demo.screen import Screen
from dispatcher.demo.stand_ins import AWS_VARIABLES
from dispatcher.layout import FAILED, SUCCEEDED, Line, printable
from dispatcher.operations.status import JobRunView, view_job_run
from dispatcher.records.job_run_store import JobRunStore

LINE_CHARACTERS = 160
"""The width of the output without a terminal."""


def demo(
    dependencies: CommandDependencies,
    folder: Annotated[
        Path | None, typer.Option(help="A new or empty folder for everything. Default: .lithify-demo/<number>.")
    ] = None,
    s3: Annotated[bool, typer.Option("--s3", help="Put the lake on an S3 server on this machine.")] = False,
    scale_factor: Annotated[float, typer.Option(min=0.001, help="TPC-H's scale factor: 0.1 is 150,000 orders.")] = 0.1,
    max_sessions: Annotated[
        int | None, typer.Option(min=1, help="Sessions at a time. Default: one per core, at most 4.")
    ] = None,
    keep_serving: Annotated[
        bool,
        typer.Option(
            "--keep-serving", help="Keep the queue and the topic running until Ctrl-C, so that you can try them."
        ),
    ] = False,
    serve: Annotated[
        bool,
        typer.Option("--serve", help="Show the page of `lithify serve` over it, from its start until Ctrl-C."),
    ] = False,
    keeper: Annotated[
        bool, typer.Option("--keeper", help="Show the keeper instead: writers append, and it keeps the lag small.")
    ] = False,
    changes: Annotated[
        bool,
        typer.Option(
            "--changes", help="Show a change feed instead: two tables stay equal to those of a shop in SQLite."
        ),
    ] = False,
    seconds: Annotated[
        float, typer.Option(min=5, help="How long writers append, with --keeper, or the shop trades, with --changes.")
    ] = 120.0,
    output: OutputOption = Output.TEXT,
) -> None:
    """Compact two tables here, with stand-ins for SQS, SNS and S3: the paper's example, and TPC-H's orders.

    Needs no network, and leaves one folder. Exit code 1 if any row is wrong.
    """
    demo_folder = make_folder(folder)
    stops = dependencies.stops_on_signal()
    out = _console(to_stderr=output is not Output.TEXT)
    with demo_folder.log.open("w", encoding="utf-8") as log:
        configure_logging(as_json=False, stream=log)
        dependencies.stand_in_for_aws(AWS_VARIABLES)
        with ExitStack() as running:
            environment = running.enter_context(demo_environment(dependencies, demo_folder, on_s3=s3))
            if serve:
                url = running.enter_context(demo_page(environment, dependencies.clock))
                out.print(f"The page is at {url}", soft_wrap=True)
            clock, program, screen = dependencies.clock, dependencies.program, Screen(out, dependencies.clock)
            dispatch = make_dispatcher(dependencies, environment, max_sessions, screen.show_step)
            if keeper or changes:
                done = (
                    ChangesScenario(environment, program, screen, clock, seconds).run(dispatch, stops)
                    if changes
                    else KeeperScenario(environment, screen, clock, seconds).run(dispatch, stops)
                )
                if stops.interrupted:
                    raise _stopped_early(environment, out)
                answer(output, {**asdict(done), "holds": done.holds}, [_check_line(Check(done.claim, done.holds))])
                if not done.holds:
                    raise typer.Exit(EXIT_FAILED)
                if serve:
                    _wait(dependencies, out)
                return
            started_at_seconds = clock.monotonic_seconds()
            queue_url, path = environment.endpoint_url, demo_folder.shown
            screen.show_step(f"the queue and the topic are at {queue_url}; all files are in {path}")
            scenario = Scenario(environment, screen, scale_factor)
            if not scenario.run(dispatch, stops):
                raise _stopped_early(environment, out)
            views = _views(dependencies, environment)
            took_seconds = clock.monotonic_seconds() - started_at_seconds
            report = _report(dependencies, environment, scenario, views, took_seconds, out)
            follow_up = make_follow_up(program, environment, scenario.deltas) if keep_serving or serve else None
            if follow_up is not None:
                report["follow_up"] = {"environment": follow_up.variables, "commands": follow_up.commands}
            if output is not Output.TEXT:
                answer(output, report, ())
                flush()
            if follow_up is not None:
                _serve(dependencies, follow_up, out)


def _stopped_early(environment: DemoEnvironment, out: Console) -> typer.Exit:
    out.print(f"Stopped before its end. What was done until then is in {environment.folder.shown}.")
    return typer.Exit(EXIT_INTERRUPTED)


def _serve(dependencies: CommandDependencies, follow_up: FollowUp, out: Console) -> None:
    """Serves until Ctrl-C or SIGTERM. The scenario has set the event to end its dispatcher."""
    out.print("\nThe queue and the topic stay up. In another terminal, from this folder:\n")
    for command in follow_up.commands:
        out.print(f"  {command}", soft_wrap=True)
    _wait(dependencies, out)


def _wait(dependencies: CommandDependencies, out: Console) -> None:
    stops = dependencies.stops_on_signal()
    stops.clear()
    out.print("\nCtrl-C here ends them.")
    stops.wait()


def _views(dependencies: CommandDependencies, environment: DemoEnvironment) -> list[JobRunView]:
    """The recorded views of both job runs. Raises `Unavailable`, with the reasons, if one did not succeed."""
    records = JobRunStore(environment.state, dependencies.clock)
    views = [view_job_run(records, job_run_id, dependencies.clock) for job_run_id in JOB_RUNS]
    failed = [
        f"{view.job_run_id} {view.status}: {'; '.join(view.reasons)}" for view in views if view.status != "succeeded"
    ]
    if failed:
        raise Unavailable(f"{'; '.join(failed)} (see {environment.folder.shown_path(environment.folder.log)})")
    return views


def _report(
    dependencies: CommandDependencies,
    environment: DemoEnvironment,
    scenario: Scenario,
    views: Sequence[JobRunView],
    seconds: float,
    out: Console,
) -> dict[str, object]:
    """Shows the report and returns it for JSON. Exits with 1 if any row is wrong."""
    checks = [check_paper(environment.lake), check_orders(environment.lake, scenario.deltas)]
    commands = next_commands(dependencies.program, environment, scenario.deltas)
    width = out.width if out.is_terminal else None
    shown = (*sessions_table(views, width), (), *paper_table(environment.lake, width), (), *map(_check_line, checks))
    out.print(as_text(shown, width), soft_wrap=True)
    out.print(f"\n{seconds:.0f} s in all.{' To look further:' if commands else ''}\n")
    for line in commands:
        out.print(f"  {line}", soft_wrap=True)
    out.print(f"\nLogs: {environment.folder.shown}/dispatcher.log, {environment.folder.shown}/spark/logs/")
    if not all(check.holds for check in checks):
        raise typer.Exit(1)
    return {
        "folder": str(environment.folder.path),
        "seconds": seconds,
        "job_runs": [view.model_dump(mode="json") for view in views],
        "checks": [{"claim": check.claim, "holds": check.holds} for check in checks],
        "commands": commands,
    }


def _check_line(check: Check) -> Line:
    right = ("right", SUCCEEDED) if check.holds else ("WRONG", FAILED)
    return right, (f"  {printable(check.claim)}", "")


def _console(*, to_stderr: bool) -> Console:
    out = Console(stderr=to_stderr, highlight=False, markup=False)
    return out if out.is_terminal else Console(stderr=to_stderr, highlight=False, markup=False, width=LINE_CHARACTERS)
