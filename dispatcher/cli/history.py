"""`lithify history`: job runs that have ended."""

from datetime import date
from typing import Annotated, Literal

import typer

from compactor.model.errors import Invalid
from dispatcher.cli.options import Output, OutputOption
from dispatcher.cli.output import answer_records, exit_if_failed
from dispatcher.cli.table_places import StatePlace
from dispatcher.clients import CommandDependencies
from dispatcher.layout import STATUS, Column, counts, seconds_text, time_text, usd_text

End = Literal["succeeded", "failed", "cancelled", "rejected"]

_COLUMNS = (
    Column("job_run_id", "job run"),
    Column("table"),
    STATUS,
    Column("ended_at_ms", "ended (UTC)", time_text),
    Column("seconds", show=seconds_text),
    *counts("rounds", "rows_in", "rows_out"),
    Column("usd", show=usd_text),
)


def history(
    dependencies: CommandDependencies,
    state: StatePlace,
    since: Annotated[str | None, typer.Option("--since", help="The first day, YYYY-MM-DD, in UTC.")] = None,
    until: Annotated[str | None, typer.Option("--until", help="The last day, YYYY-MM-DD.")] = None,
    table: Annotated[str | None, typer.Option("--table", help="Only job runs of this source table.")] = None,
    status: Annotated[End | None, typer.Option("--status", help="Only job runs with this status.")] = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show job runs that have ended, the latest first: all of them, or those of some days. Exit code 1 if some days
    cannot be read: they are named."""
    first, last = _day(since, "--since"), _day(until, "--until")
    if first is not None and last is not None and first > last:
        raise Invalid(f"--since {first} is after --until {last}")
    records = state.open(dependencies)
    days = list(records.history.read(first, last))
    found = [
        {"day": day.day, **each.model_dump(mode="json"), "job_run_id": each.own_id, "message_id": each.message_id}
        for day in days
        for each in day.job_runs
        if (table is None or each.table == table) and (status is None or each.status == status)
    ]
    failed = {each.day: each.failure for each in days if each.failure}
    none = "No day that can be read has such a job run." if failed else "The history has no such job run."
    answer_records(output, {"job_runs": found, "failed": failed}, "job_runs", _COLUMNS, none=none)
    exit_if_failed(failed)


def _day(text: str | None, option: str) -> str | None:
    if text is None:
        return None
    try:
        day = date.fromisoformat(text).isoformat()
    except ValueError as error:
        raise Invalid(f"{option} {text!r} is no day: write it as 2026-11-22") from error
    return day
