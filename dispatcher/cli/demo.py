"""`lithify demo`: all of Lithify on this machine, from instructions on a queue to compacted tables."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from compactor.log_context import configure_logging
from compactor.model.errors import EXIT_FAILED, EXIT_INTERRUPTED, Unavailable
from compactor.model.names import counted
from dispatcher.cli.options import Output, OutputOption
from dispatcher.cli.output import answer, as_text, flush
from dispatcher.clients import CommandDependencies
from dispatcher.demo.changes_scenario import ANNOUNCED_TIMES, ChangesScenario
from dispatcher.demo.environment import DemoEnvironment, demo_environment, demo_page, make_dispatcher, make_folder
from dispatcher.demo.keeper_scenario import LAG_SECONDS_MAX, KeeperScenario
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
from dispatcher.demo.screen import DemoProgress, Screen
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
            if keeper or changes:
                show = _show_changes if changes else _show_keeper
                show(dependencies, environment, out, (seconds, max_sessions), output)
                if serve:
                    _wait(dependencies, out)
                return
            started_at_seconds = dependencies.clock.monotonic_seconds()
            progress = DemoProgress()
            with Screen(out, progress, dependencies.clock) as screen:
                queue_url, path = environment.endpoint_url, demo_folder.shown
                screen.show_step(f"the queue and the topic are at {queue_url}; all files are in {path}")
                scenario = Scenario(environment, screen, progress, scale_factor)
                ended = scenario.run(make_dispatcher(dependencies, environment, max_sessions), stops)
            if not ended:
                raise _stopped_early(environment, out)
            views = _views(dependencies, environment)
            took_seconds = dependencies.clock.monotonic_seconds() - started_at_seconds
            report = _report(dependencies, environment, scenario, views, took_seconds, out)
            follow_up = (
                make_follow_up(dependencies.program, environment, scenario.deltas) if keep_serving or serve else None
            )
            if follow_up is not None:
                report["follow_up"] = {"environment": follow_up.variables, "commands": follow_up.commands}
            if output is not Output.TEXT:
                answer(output, report, ())
                flush()
            if follow_up is not None:
                _serve(dependencies, follow_up, out)


def _show_keeper(
    dependencies: CommandDependencies,
    environment: DemoEnvironment,
    out: Console,
    shape: tuple[float, int | None],
    output: Output,
) -> None:
    """`shape`: seconds of the writers, and sessions at a time. Exits with 1 if the keeper was too late."""
    seconds, max_sessions = shape
    stops = dependencies.stops_on_signal()
    with Screen(out, DemoProgress(), dependencies.clock) as screen:
        scenario = KeeperScenario(environment, screen, dependencies.clock, seconds)
        kept = scenario.run(make_dispatcher(dependencies, environment, max_sessions), stops)
    if stops.interrupted:
        raise _stopped_early(environment, out)
    claim = (
        f"{kept.deltas:,} deltas in {kept.seconds:.0f} s: the greatest lag was {kept.greatest_lag_seconds:.0f} s, of "
        f"less than {LAG_SECONDS_MAX:.0f} s, with {counted(kept.decisions, 'decision')}, and "
        f"{counted(kept.files, 'file')} left; ${kept.usd:,.4f} on EMR"
    )
    _answer_check(Check(claim, kept.holds), asdict(kept), output)


def _show_changes(
    dependencies: CommandDependencies,
    environment: DemoEnvironment,
    out: Console,
    shape: tuple[float, int | None],
    output: Output,
) -> None:
    """`shape`: seconds of the shop, and sessions at a time. Exits with 1 if the tables are not equal at the end."""
    seconds, max_sessions = shape
    stops = dependencies.stops_on_signal()
    scenario = ChangesScenario(environment, dependencies.program, dependencies.clock, seconds)
    with Screen(out, DemoProgress(), dependencies.clock, scenario.render) as screen:
        played = scenario.run(screen, make_dispatcher(dependencies, environment, max_sessions), stops)
    if stops.interrupted:
        raise _stopped_early(environment, out)
    tables = " and ".join(f"{each.name} of {each.lake_rows:,} rows" for each in played.tables)
    claim = (
        f"{played.changes:,} changes in {counted(played.files, 'file')}, each announced {ANNOUNCED_TIMES} times, in "
        f"{played.seconds:.0f} s: the compacted tables, {tables}, are equal to the shop's"
    )
    _answer_check(Check(claim, played.holds), asdict(played), output)


def _stopped_early(environment: DemoEnvironment, out: Console) -> typer.Exit:
    out.print(f"Stopped before its end. What was done until then is in {environment.folder.shown}.")
    return typer.Exit(EXIT_INTERRUPTED)


def _answer_check(check: Check, facts: Mapping[str, object], output: Output) -> None:
    """Exits with 1 if it does not hold."""
    answer(output, {**facts, "holds": check.holds}, [_check_line(check)])
    if not check.holds:
        raise typer.Exit(EXIT_FAILED)


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
    out.print(f"\n{seconds:.0f} s in all. To look further:\n")
    for line in (*commands.setup, *commands.commands):
        out.print(f"  {line}", soft_wrap=True)
    out.print(f"\nLogs: {environment.folder.shown}/dispatcher.log, {environment.folder.shown}/spark/logs/")
    if not all(check.holds for check in checks):
        raise typer.Exit(1)
    return {
        "folder": str(environment.folder.path),
        "seconds": seconds,
        "job_runs": [view.model_dump(mode="json") for view in views],
        "checks": [{"claim": check.claim, "holds": check.holds} for check in checks],
        "before": commands.setup,
        "commands": commands.commands,
    }


def _check_line(check: Check) -> Line:
    right = ("right", SUCCEEDED) if check.holds else ("WRONG", FAILED)
    return right, (f"  {printable(check.claim)}", "")


def _console(*, to_stderr: bool) -> Console:
    out = Console(stderr=to_stderr, highlight=False, markup=False)
    return out if out.is_terminal else Console(stderr=to_stderr, highlight=False, markup=False, width=LINE_CHARACTERS)
