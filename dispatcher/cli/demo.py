"""`lithify demo`: the whole way on this machine, from instructions on a queue to compacted tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from compactor.errors import Unavailable
from compactor.log_context import configure_logging
from dispatcher.cli.options import Output, OutputOption
from dispatcher.cli.output import answer_json
from dispatcher.cli.tools import Tools, tools_of
from dispatcher.demo.board import Board
from dispatcher.demo.place import make_place
from dispatcher.demo.play import JOB_RUNS, Play
from dispatcher.demo.report import figures_of, look_further, paper_table, sessions_table
from dispatcher.demo.screen import Screen
from dispatcher.demo.stage import Stage, make_dispatcher, set_stage
from dispatcher.demo.stand_ins import AWS_VARIABLES
from dispatcher.demo.verdict import judge_orders, judge_paper
from dispatcher.records import JobRunRecords
from dispatcher.status import JobRunView, view_job_run

LINE_CHARACTERS = 160
"""Where there is no terminal whose width would say."""


def demo(
    context: typer.Context,
    folder: Annotated[
        Path | None, typer.Option(help="A new or empty folder for everything; left out: .lithify-demo/<number>.")
    ] = None,
    s3: Annotated[bool, typer.Option("--s3", help="Put the lake on an S3 server on this machine.")] = False,
    scale_factor: Annotated[float, typer.Option(min=0.001, help="Of TPC-H: 0.1 are 150,000 orders.")] = 0.1,
    max_sessions: Annotated[
        int | None, typer.Option(min=1, help="Side by side; left out: one a core, 4 at most.")
    ] = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Compact two tables here, with stand-ins for SQS, SNS and S3: the paper's example, and TPC-H's orders.

    Needs nothing that is not on this machine, and leaves one folder. Exit code 1 if any row is not as it must be.
    """
    tools = tools_of(context)
    place = make_place(folder)
    stops = tools.stops_when_asked()
    out = _console(to_stderr=output is Output.JSON)
    with place.log.open("w", encoding="utf-8") as log:
        configure_logging(as_json=False, stream=log)
        tools.stand_in_for_aws(AWS_VARIABLES)
        with set_stage(tools, place, on_s3=s3) as stage:
            started_at_seconds = tools.clock.monotonic_seconds()
            board = Board()
            with Screen(out, board, tools.clock) as screen:
                screen.say(f"the queue and the topic are at {stage.endpoint_url}; all files are in {place.shown}")
                play = Play(stage, screen, board, scale_factor)
                ended = play.run(make_dispatcher(tools, stage, max_sessions), stops)
            if not ended:
                out.print(f"Stopped before its end. What was done until then is in {place.shown}.", markup=False)
                raise typer.Exit(1)
            views = _views(tools, stage)
            answer = _report(tools, stage, play, views, tools.clock.monotonic_seconds() - started_at_seconds, out)
    if output is Output.JSON:
        answer_json(answer)


def _views(tools: Tools, stage: Stage) -> list[JobRunView]:
    """What the records say of both job runs. Raises `Unavailable`, with the reasons, if one did not succeed."""
    records = JobRunRecords(stage.state, tools.clock)
    views = [view_job_run(records, job_run_id, tools.clock) for job_run_id in JOB_RUNS]
    failed = [
        f"{view.job_run_id} {view.status}: {'; '.join(view.reasons)}" for view in views if view.status != "succeeded"
    ]
    if failed:
        raise Unavailable(f"{'; '.join(failed)} (see {stage.place.shown_path(stage.place.log)})")
    return views


def _report(
    tools: Tools, stage: Stage, play: Play, views: Sequence[JobRunView], seconds: float, out: Console
) -> dict[str, object]:
    """Shows it, and answers the same for JSON. Exits with 1 if any row is not as it must be."""
    verdicts = [judge_paper(stage.lake), judge_orders(stage.lake, play.deltas)]
    look = look_further(tools.program, stage, play.deltas)
    out.print(sessions_table(figures_of(views)))
    out.print(paper_table(stage.lake))
    for verdict in verdicts:
        out.print(
            f"[{'green' if verdict.holds else 'bold red'}]{'right' if verdict.holds else 'WRONG'}[/]  {verdict.claim}"
        )
    out.print(f"\n{seconds:.0f} s in all. To look further:\n", markup=False)
    for line in (*look.before, *look.commands):
        out.print(f"  {line}", markup=False, soft_wrap=True)
    out.print(f"\nLogs: {stage.place.shown}/dispatcher.log, {stage.place.shown}/spark/logs/", markup=False)
    if not all(verdict.holds for verdict in verdicts):
        raise typer.Exit(1)
    return {
        "folder": str(stage.place.folder),
        "seconds": seconds,
        "job_runs": [view.model_dump(mode="json") for view in views],
        "checks": [{"claim": verdict.claim, "holds": verdict.holds} for verdict in verdicts],
        "before": look.before,
        "commands": look.commands,
    }


def _console(*, to_stderr: bool) -> Console:
    out = Console(stderr=to_stderr, highlight=False)
    return out if out.is_terminal else Console(stderr=to_stderr, highlight=False, width=LINE_CHARACTERS)
