"""`lithify pause`, `resume`: a job run, a table, everything. No new session of it is started; running ones continue."""

from __future__ import annotations

from typing import Annotated

import typer

from compactor.model.errors import Invalid
from compactor.model.names import TableId
from dispatcher.cli.options import Output, OutputOption
from dispatcher.cli.output import answer
from dispatcher.cli.table_places import StatePlace
from dispatcher.clients import dependencies_of
from dispatcher.records.job_run_log import JobRunStatus
from dispatcher.records.job_run_store import JobRunStore
from dispatcher.records.keys import PausedObject

JobRun = Annotated[str | None, typer.Argument(metavar="JOB_RUN_ID", help="The job run.")]
TableOption = Annotated[
    str | None, typer.Option("--table", help="All job runs from or to this table.", metavar="TABLE")
]
EverythingOption = Annotated[bool, typer.Option("--everything", help="All job runs of this state.")]


def pause(
    context: typer.Context,
    state: StatePlace,
    job_run_id: JobRun = None,
    table: TableOption = None,
    everything: EverythingOption = False,
    reason: Annotated[str, typer.Option(help="The reason that status and the event show.")] = "paused by hand",
    output: OutputOption = Output.TEXT,
) -> None:
    """Start no new session of a job run, of a table, or of anything, until `resume`. Sessions that run go on to their
    end; documents are accepted as before, and wait. There is one event for each job run that is held up."""
    records = state.open(dependencies_of(context))
    target = _target(job_run_id, table, everything=everything)
    if job_run_id is not None:
        _check_open(records, job_run_id)
    paused = records.pauses.pause(target, reason)
    line = f"{_named(target)} is paused." if paused else f"{_named(target)} is paused already."
    answer(output, {"paused": _named(target), "was_paused": not paused}, [line])


def resume(
    context: typer.Context,
    state: StatePlace,
    job_run_id: JobRun = None,
    table: TableOption = None,
    everything: EverythingOption = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Let go on what was paused. What else is paused stays so."""
    records = state.open(dependencies_of(context))
    target = _target(job_run_id, table, everything=everything)
    if not records.pauses.resume(target):
        raise Invalid(f"{_named(target)} is not paused: {', '.join(_paused(records)) or 'nothing'} is")
    left = _paused(records)
    lines = [f"{_named(target)} is resumed.", *(f"Still paused: {scope}" for scope in left)]
    answer(output, {"resumed": _named(target), "still_paused": left}, lines)


def _paused(records: JobRunStore) -> list[str]:
    return [each.scope for each in records.pauses.all()]


def _target(job_run_id: str | None, table: str | None, *, everything: bool) -> PausedObject:
    """Raises `Invalid` unless it is exactly one thing."""
    if [job_run_id is not None, table is not None, everything].count(True) != 1:
        raise Invalid("name one thing only: a job run's id, --table TABLE, or --everything")
    if job_run_id is not None:
        return PausedObject("job_runs", job_run_id)
    return PausedObject("everything") if table is None else PausedObject("tables", str(TableId.parse(table)))


def _named(target: PausedObject) -> str:
    return (
        "everything" if target.name is None else f"{'table' if target.scope == 'tables' else 'job run'} {target.name}"
    )


def _check_open(records: JobRunStore, job_run_id: str) -> None:
    status = records.state(job_run_id).status
    if status is JobRunStatus.ABSENT:
        raise Invalid(f"there is no job run {job_run_id!r} here: `lithify status` lists those there are")
    if not status.is_open:
        raise Invalid(f"job run {job_run_id} cannot be paused: it is {status}")
