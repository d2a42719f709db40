"""`lithify submit`, `plan`, `status`, `watch`, `cancel`: job runs, before, while and after they run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from compactor.catalog.catalog import DeltaCatalog
from compactor.catalog.log import LogState
from compactor.errors import Invalid
from compactor.names import render_partition
from compactor.object_store import open_store, parse_location
from compactor.session_planner import pin_sessions
from compactor.spec import SessionPlan
from dispatcher.cli.options import (
    DocumentArgument,
    EndpointOption,
    Output,
    OutputOption,
    QueueOption,
    RegionOption,
    S3EndpointOption,
    StateOption,
)
from dispatcher.cli.output import answer, answer_json, console, read_document, rows_table, time_text
from dispatcher.cli.tools import QueueAddress, tools_of
from dispatcher.instruction import InstructionDocument, Violations, job_run_spec, parse_instruction
from dispatcher.job_runs import CancelRequested, JobRunAction, JobRunState
from dispatcher.lake_checks import check_against_lake
from dispatcher.records import JobRunRecords
from dispatcher.status import JobRunView, SessionView, view_all, view_job_run
from launcher.outcomes import NothingToDo
from launcher.session_plan import plan_for_cluster
from launcher.spark_conf import MACHINE_MEMORY_SHARE, share_of_machine

JobRunArgument = Annotated[str, typer.Argument(help="The job run's id.", metavar="JOB_RUN_ID")]


def submit(
    context: typer.Context,
    file: DocumentArgument,
    queue_url: QueueOption,
    endpoint_url: EndpointOption = None,
    region: RegionOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Validate the document and send nothing.")] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Validate an instruction document and put it on the queue."""
    tools = tools_of(context)
    body = read_document(file)
    document = _valid(body)
    if dry_run:
        answer(output, {"valid": True, "sent": False}, ["The document is valid. Nothing was sent."])
        return
    message_id = tools.clients.queue(QueueAddress(queue_url, None, endpoint_url, region)).send(body)
    job_run_id = document.job_run_id or message_id
    answer(
        output,
        {"valid": True, "sent": True, "message_id": message_id, "job_run_id": job_run_id},
        [f"Sent. The job run will be called {job_run_id}", f"  lithify watch {job_run_id}"],
    )


def plan(
    context: typer.Context,
    file: DocumentArgument,
    lake: Annotated[str | None, typer.Option(help="For a document that names no delta_catalog.")] = None,
    s3_endpoint_url: S3EndpointOption = None,
    region: RegionOption = None,
    max_sessions: Annotated[int, typer.Option(min=1, help="Sessions that share the machine.")] = 1,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show what a document would do, with the arithmetic. Writes nothing."""
    tools = tools_of(context)
    document = _valid(read_document(file))
    uri = document.delta_catalog or lake
    if uri is None:
        raise Invalid("delta_catalog is missing: name the lake's root URI in the document, or give --lake")
    location = parse_location(uri, endpoint_url=s3_endpoint_url, region=region)
    catalog = DeltaCatalog(open_store(location), tools.clock)
    spec = job_run_spec(document, document.job_run_id or "dry-run", location)
    reasons = check_against_lake(spec, catalog)
    if reasons:
        raise Invalid(*reasons)
    resources, _ = share_of_machine(int(tools.memory_bytes * MACHINE_MEMORY_SHARE), tools.cores, max_sessions)
    plans = {
        render_partition(pinned.spec.partition): plan_for_cluster(pinned.spec, catalog, resources)
        for pinned in pin_sessions(spec, catalog)
    }
    sessions = [_plan_answer(partition, planned) for partition, planned in plans.items()]
    answer(output, {"table": spec.source_table_id, "sessions": sessions}, _plan_lines(plans))


def status(
    context: typer.Context,
    state: StateOption,
    job_run_id: Annotated[str | None, typer.Argument(metavar="JOB_RUN_ID", help="Left out: all of them.")] = None,
    s3_endpoint_url: S3EndpointOption = None,
    region: RegionOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show job runs, or one with its sessions."""
    tools = tools_of(context)
    records = JobRunRecords(tools.store(state, s3_endpoint_url, region), tools.clock)
    if job_run_id is not None:
        view = view_job_run(records, job_run_id, tools.clock)
        _show(output, view.model_dump(mode="json"), _render_job_run(view))
        return
    views = view_all(records, tools.clock)
    table = rows_table(
        ("job run", "table", "status", "accepted (UTC)", "seconds", "owner"),
        (
            (view.job_run_id, view.table, view.status, time_text(view.accepted_at_ms), view.seconds, view.owner)
            for view in views
        ),
    )
    _show(output, {"job_runs": [view.model_dump(mode="json", exclude={"sessions"}) for view in views]}, table)


def watch(
    context: typer.Context,
    job_run_id: JobRunArgument,
    state: StateOption,
    s3_endpoint_url: S3EndpointOption = None,
    region: RegionOption = None,
    poll_seconds: Annotated[float, typer.Option(min=0.05)] = 1.0,
    output: OutputOption = Output.TEXT,
) -> None:
    """Follow a job run until it ends. Exit code 1 if it did not succeed."""
    tools = tools_of(context)
    records = JobRunRecords(tools.store(state, s3_endpoint_url, region), tools.clock)
    stops = tools.stops_when_asked()
    view = view_job_run(records, job_run_id, tools.clock)
    if output is Output.TEXT:
        with Live(_render_job_run(view), console=console(), refresh_per_second=4) as live:
            while _runs(view) and not stops.wait(poll_seconds):
                view = view_job_run(records, job_run_id, tools.clock)
                live.update(_render_job_run(view))
    else:
        while _runs(view) and not stops.wait(poll_seconds):
            view = view_job_run(records, job_run_id, tools.clock)
        answer_json(view.model_dump(mode="json"))
    if view.status != "succeeded":
        raise typer.Exit(1)


def cancel(
    context: typer.Context,
    job_run_id: JobRunArgument,
    state: StateOption,
    reason: Annotated[str, typer.Option(help="Kept in the job run's log and told in its event.")] = "cancelled by hand",
    s3_endpoint_url: S3EndpointOption = None,
    region: RegionOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Ask for a job run to be cancelled. Whoever runs it stops its Spark jobs; what was committed stays committed."""
    tools = tools_of(context)
    records = JobRunRecords(tools.store(state, s3_endpoint_url, region), tools.clock)
    before = records.state(job_run_id)
    if before.accepted is None:
        raise Invalid(f"there is no job run {job_run_id!r} here that could be cancelled")

    def decide(now: LogState[JobRunState]) -> Sequence[JobRunAction]:
        wanted = now.state.status.is_open and now.state.cancel is None
        return [CancelRequested(reason=reason)] if wanted else []

    after = records.log(job_run_id).append(decide).after.state
    if not after.status.is_open:
        raise Invalid(f"job run {job_run_id} is {after.status} already")
    answer(output, {"job_run_id": job_run_id, "cancel_requested": True}, [f"{job_run_id} will be cancelled."])


# ------------------------------------------------------------------------------------------------------- parts


def _valid(body: str) -> InstructionDocument:
    document = parse_instruction(body)
    if isinstance(document, Violations):
        raise Invalid(*document.reasons)
    return document


def _runs(view: JobRunView) -> bool:
    return view.status in ("waiting", "running")


def _show(output: Output, value: dict[str, object], rendered: RenderableType) -> None:
    if output is Output.JSON:
        answer_json(value)
    else:
        console().print(rendered)


def _render_job_run(view: JobRunView) -> RenderableType:
    head = f"{view.job_run_id}  {view.table or '-'}  {view.status}  {view.seconds:,.1f} s"
    if view.cancel_requested and _runs(view):
        head += "  (to be cancelled)"
    sessions = rows_table(
        ("session", "partition", "status", "attempt", "progress", "expected s", "left s", "rows in", "rows out"),
        (_session_row(session) for session in view.sessions),
    )
    reasons = [Text(f"  {reason}") for reason in view.reasons]
    return Group(Text(head), *([sessions] if view.sessions else []), *reasons)


def _session_row(session: SessionView) -> Sequence[object]:
    result = getattr(session.end, "result", None)
    return (
        session.session_id,
        render_partition(session.partition),
        session.status,
        session.attempt,
        _progress(session),
        session.expected_sla,
        session.eta_seconds,
        result.rows_in if result is not None else None,
        result.rows_out if result is not None else None,
    )


def _progress(session: SessionView) -> str:
    beat = session.heartbeat
    if beat is None:
        return f"{session.rounds_done} rounds"
    return f"round {beat.round_number}/{beat.rounds} {beat.step} {beat.tasks_done}/{beat.tasks}"


def _plan_answer(partition: str, planned: SessionPlan | NothingToDo) -> dict[str, object]:
    if isinstance(planned, NothingToDo):
        return {"partition": partition, "nothing_to_do": True}
    return {"partition": partition, "nothing_to_do": False, **planned.model_dump(mode="json", exclude={"spec"})}


def _plan_lines(plans: dict[str, SessionPlan | NothingToDo]) -> Iterable[str]:
    if not plans:
        yield "The table has no partition stream: there is nothing to do."
    for partition, planned in plans.items():
        yield partition
        if isinstance(planned, NothingToDo):
            yield "  nothing to do: no delta above the watermark"
        else:
            yield from (f"  {sentence}" for sentence in planned.arithmetic)
