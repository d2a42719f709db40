"""`lithify health`: whether the dispatcher with this work folder runs, and reaches its services."""

from pathlib import Path
from typing import Annotated

import typer

from compactor.model.errors import EXIT_FAILED
from compactor.model.names import counted
from dispatcher.cli.options import Output, OutputOption
from dispatcher.cli.output import answer_records
from dispatcher.clients import CommandDependencies
from dispatcher.layout import Column, time_text
from dispatcher.operations.health import GONE_AFTER_SECONDS, HEALTH_FILE, HealthReport, read_health

_COLUMNS = (
    Column("place"),
    Column("error_kind", "kind"),
    Column("since_ms", "since (UTC)", time_text),
    Column("reason"),
)


def health(
    dependencies: CommandDependencies,
    work_folder: Annotated[Path, typer.Option(help="The work folder that `lithify dispatch` was given.")] = Path(
        ".lithify"
    ),
    age_seconds_max: Annotated[
        float | None,
        typer.Option(
            min=1,
            help="Age of a report above which its dispatcher counts as gone. Default: its --claim-seconds, "
            f"{GONE_AFTER_SECONDS:g} at most.",
        ),
    ] = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Say whether the dispatcher with this work folder runs and reaches queue, state and topics. Exit code 0: it does;
    1: it does not. Good for a container's health check."""
    report = read_health(work_folder / HEALTH_FILE)
    age_seconds = max(dependencies.clock.now_ms() - report.at_ms, 0) / 1000
    gone = age_seconds > (report.gone_after_seconds if age_seconds_max is None else age_seconds_max)
    answer_records(
        output,
        {**report.model_dump(mode="json"), "age_seconds": age_seconds, "is_well": not gone and not report.troubles},
        "troubles",
        _COLUMNS,
        none="" if gone else f"{report.owner} is well and holds {_job_runs(report)}.",
        notes=_notes(report, age_seconds, gone=gone),
    )
    if gone or report.troubles:
        raise typer.Exit(EXIT_FAILED)


def _notes(report: HealthReport, age_seconds: float, *, gone: bool) -> list[str]:
    late = f"{report.owner} has not reported for {age_seconds:,.0f} s: it hangs, or is gone."
    return [*([late] if gone else []), *(f"Warning: {each}." for each in report.warnings)]


def _job_runs(report: HealthReport) -> str:
    return counted(report.job_runs_held, "job run")
