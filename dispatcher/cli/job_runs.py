"""`lithify submit`, `status`, `watch`, `cancel`, `retry`, `pause`, `resume`: job runs, before, while and after."""

import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.live import Live

from compactor.log.durable_log import LogState
from compactor.model.clock import Clock
from compactor.model.errors import EXIT_INTERRUPTED, Denied, Invalid, Unavailable
from compactor.model.names import TableId, is_unicode, render_partition
from dispatcher.cli.expressions import read_document, valid_instruction
from dispatcher.cli.job_run_lines import Changes, is_open, job_run_lines
from dispatcher.cli.options import (
    DocumentArgument,
    EndpointOption,
    JobRunArgument,
    KnownLakeOption,
    KnownStateOption,
    Output,
    OutputOption,
    QueueOption,
    RegionOption,
    S3EndpointOption,
)
from dispatcher.cli.output import (
    answer,
    answer_records,
    as_text,
    console,
    flush,
    on_page,
    page_width,
    print_error,
    write_lines,
)
from dispatcher.cli.table_places import LakePlace, StatePlace
from dispatcher.clients import CommandDependencies, QueueAddress
from dispatcher.intake.instruction import InstructionDocument
from dispatcher.intake.intake import preview_job_run_id
from dispatcher.layout import FAILED, STATUS, Column, age_text, count_text, seconds_text, time_text, usd_text
from dispatcher.operations.retry import JobRunRetry, begin_retry, plan_retry
from dispatcher.operations.status import OPEN, UNREADABLE, JobRunView, find_job_run, view_all, view_job_run
from dispatcher.records.job_run_log import CancelRequested, JobRunAction, JobRunState, JobRunStatus
from dispatcher.records.job_run_store import JobRunStore, WatchedJobRuns
from dispatcher.records.keys import PausedObject
from dispatcher.records.liveness import last_signals

_JOB_RUN_COLUMNS = (
    Column("job_run_id", "job run"),
    Column("table"),
    STATUS,
    Column("accepted_at_ms", "accepted (UTC)", time_text),
    Column("seconds", show=seconds_text),
    Column("expected_sla", "expected", seconds_text),
    Column("desired_sla", "desired", count_text),
    Column("late_seconds", "late", seconds_text),
    Column("usd", show=usd_text),
)

ENDED_SHOWN = 1_000
"""Job runs that have ended and that `status` shows, by default."""

_END_TEXTS = {
    JobRunStatus.SUCCEEDED: "has succeeded",
    JobRunStatus.FAILED: "has failed",
    JobRunStatus.CANCELLED: "was cancelled",
    JobRunStatus.REJECTED: "was rejected",
}


def submit(
    dependencies: CommandDependencies,
    file: DocumentArgument,
    queue_url: QueueOption,
    state: KnownStateOption = None,
    lake: KnownLakeOption = None,
    endpoint_url: EndpointOption = None,
    s3_endpoint_url: S3EndpointOption = None,
    region: RegionOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Validate the document and send nothing.")] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Validate an instruction document and put it on the queue, and say what its dispatcher will do with it.

    With --state, a document that would be refused for its job_run_id is not sent. With --lake, or a delta_catalog in
    the document, a document whose table does not exist is not sent.
    """
    body = read_document(file)
    document = valid_instruction(body)
    records = (
        JobRunStore(dependencies.store(state, s3_endpoint_url, region), dependencies.clock)
        if state is not None
        else None
    )
    lake_uri = document.delta_catalog or lake
    place = None if lake_uri is None else LakePlace(lake_uri, s3_endpoint_url, region)
    unchecked = None if place is None else _check_table(document.source_table_id, place)
    preview = _preview(document, records)
    sentences = [each for each in (preview, unchecked) if each is not None]
    outlook = {"outlook": " ".join(sentences)} if sentences else {}
    if dry_run:
        answer(
            output, {"valid": True, "sent": False, **outlook}, ["The document is valid. Nothing was sent.", *sentences]
        )
        return
    message_id = dependencies.clients.queue(QueueAddress(queue_url, None, endpoint_url, region)).send(
        body, group=document.source_table_id
    )
    job_run_id = document.job_run_id or message_id
    answer(
        output,
        {"valid": True, "sent": True, "message_id": message_id, "job_run_id": job_run_id, **outlook},
        [
            "Sent." if preview is not None else f"Sent. The job run will be called {job_run_id}",
            *sentences,
            f"  lithify watch {job_run_id}{f' --message-id {message_id}' if job_run_id != message_id else ''}",
        ],
    )


def _check_table(table_id: str, lake: LakePlace) -> str | None:
    """Raises `Invalid` if there is no such table. Returns a sentence where this user cannot see the lake."""
    try:
        lake.open().table(table_id)
    except Unavailable as error:
        return f"Whether table {table_id} exists was not checked: {error}"
    return None


def _preview(document: InstructionDocument, records: JobRunStore | None) -> str | None:
    """What is known of this document's id. Who may only send documents may not read the state, and is not kept from
    sending: the dispatcher checks the id too."""
    try:
        return preview_job_run_id(document, records)
    except Denied as error:
        return f"Whether job_run_id {document.job_run_id!r} was used before was not checked: {error}"


def status(
    dependencies: CommandDependencies,
    state: StatePlace,
    job_run_id: Annotated[
        str | None, typer.Argument(metavar="JOB_RUN_ID", help="A job run. Default: all of them.")
    ] = None,
    last: Annotated[
        int, typer.Option("--last", min=0, help="How many ended job runs to show, the latest first (approximately).")
    ] = ENDED_SHOWN,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show job runs, how long each took against what was expected and desired, what it cost, and the dispatchers that
    run; or one job run with its sessions. `lithify table show TABLE` shows who else is at work on a table."""
    records = state.open(dependencies)
    if job_run_id is not None:
        view = view_job_run(records, job_run_id, dependencies.clock)
        answer(output, view.model_dump(mode="json"), job_run_lines(view, page_width()))
        return
    views, pauses = view_all(records, dependencies.clock, last), records.pauses.all()
    dispatchers = [
        {"owner": each.owner, "seconds_ago": max(dependencies.clock.now_ms() - each.at_ms, 0) / 1000}
        for each in last_signals(records.store)
    ]
    unreadable = [view for view in views if view.status == UNREADABLE]
    is_cut = 0 < last <= sum(view.status not in OPEN for view in views)
    answer_records(
        output,
        {
            "job_runs": [_against_desired(view) for view in views],
            "paused": [pause.model_dump(mode="json") for pause in pauses],
            "dispatchers": dispatchers,
        },
        "job_runs",
        _JOB_RUN_COLUMNS,
        none="There is no job run here yet.",
        before=[f"Paused since {time_text(pause.at_ms)} UTC: {pause.scope} ({pause.reason})" for pause in pauses],
        after=[
            *on_page((f"{each.job_run_id}: {reason}" for each in unreadable for reason in each.reasons), FAILED),
            *on_page(f"{each.job_run_id} waits for {each.waits_for}" for each in views if each.waits_for is not None),
        ]
        + ["There may be older ones: `lithify history` shows all that have ended."] * is_cut
        + [f"Dispatcher {each['owner']} signalled {age_text(each['seconds_ago'])} ago." for each in dispatchers]
        + ["No dispatcher runs on this state."] * (not dispatchers),
    )


def _against_desired(view: JobRunView) -> dict[str, object]:
    late = view.seconds_late(view.seconds)
    record = view.model_dump(mode="json", exclude={"sessions"})
    return {**record, "late_seconds": max(late, 0.0) if late is not None else None}


def _unicode_reason(reason: str) -> str:
    if not is_unicode(reason):
        raise Invalid(f"--reason {reason!r} is not Unicode text")
    return reason


def cancel(
    dependencies: CommandDependencies,
    job_run_id: JobRunArgument,
    state: StatePlace,
    reason: Annotated[
        str, typer.Option(help="The reason that the job run's log and its event record.", callback=_unicode_reason)
    ] = "cancelled by hand",
    output: OutputOption = Output.TEXT,
) -> None:
    """Ask for a job run to be cancelled. Its dispatcher stops its Spark jobs; what was committed stays committed."""
    records = state.open(dependencies)
    before = records.state(job_run_id)
    if before.accepted is None:
        raise Invalid(f"there is no job run {job_run_id!r} here that could be cancelled")

    def decide(now: LogState[JobRunState]) -> Sequence[JobRunAction]:
        wanted = now.state.status.is_open and now.state.cancel is None
        return [CancelRequested(reason=reason)] if wanted else []

    after = records.log(job_run_id).append(decide).after.state
    if not after.status.is_open:
        raise Invalid(f"job run {job_run_id} is over: it {_END_TEXTS[after.status]}")
    answer(output, {"job_run_id": job_run_id, "cancel_requested": True}, [f"{job_run_id} will be cancelled."])


def retry(
    dependencies: CommandDependencies,
    job_run_id: JobRunArgument,
    state: StatePlace,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would run, and start nothing.")] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Run a failed or cancelled job run again, as a new job run. What it has committed stays committed."""
    records = state.open(dependencies)
    rerun = plan_retry(records, dependencies.lake, job_run_id, dependencies.clock)
    if not dry_run:
        rerun = begin_retry(records, rerun)
    partitions = [pin.partition for pin in rerun.accepted.sessions]
    value = {
        "job_run_id": rerun.job_run_id,
        "predecessor": job_run_id,
        "started": not dry_run and not rerun.stands,
        "partitions": partitions,
    }
    answer(output, value, _retry_lines(rerun, job_run_id, dry_run=dry_run))


def _retry_lines(rerun: JobRunRetry, job_run_id: str, *, dry_run: bool) -> Iterator[str]:
    if rerun.stands:
        yield f"{job_run_id} runs again already, as {rerun.job_run_id}."
    else:
        yield f"{job_run_id} {'would run' if dry_run else 'runs'} again as {rerun.job_run_id}:"
        yield from (f"  {render_partition(pin.partition)}" for pin in rerun.accepted.sessions)
        if rerun.accepted.partitions is None:
            yield "  it finds its sessions as it reaches them"
        elif not rerun.accepted.sessions:
            yield "  no partition has anything left to do"
    if not dry_run:
        yield f"  lithify watch {rerun.job_run_id}"


JobRun = Annotated[str | None, typer.Argument(metavar="JOB_RUN_ID", help="The job run.")]
TableOption = Annotated[
    str | None, typer.Option("--table", help="All job runs from or to this table.", metavar="TABLE")
]
EverythingOption = Annotated[bool, typer.Option("--everything", help="All job runs of this state.")]


def pause(
    dependencies: CommandDependencies,
    state: StatePlace,
    job_run_id: JobRun = None,
    table: TableOption = None,
    everything: EverythingOption = False,
    reason: Annotated[
        str, typer.Option(help="The reason that status and the event show.", callback=_unicode_reason)
    ] = "paused by hand",
    output: OutputOption = Output.TEXT,
) -> None:
    """Start no new session of a job run, of a table, or of anything, until `resume`. Sessions that run go on to their
    end; documents are accepted as before, and wait. There is one event for each job run that is held up."""
    records = state.open(dependencies)
    target = _target(job_run_id, table, everything=everything)
    if job_run_id is not None:
        _check_open(records, job_run_id)
    paused = records.pauses.pause(target, reason)
    line = f"{_named(target)} is paused." if paused else f"{_named(target)} is paused already."
    answer(output, {"paused": _named(target), "was_paused": not paused}, [line])


def resume(
    dependencies: CommandDependencies,
    state: StatePlace,
    job_run_id: JobRun = None,
    table: TableOption = None,
    everything: EverythingOption = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """End the pause of a job run, of a table, or of everything. Other pauses stay in force."""
    records = state.open(dependencies)
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


def watch(
    dependencies: CommandDependencies,
    job_run_id: JobRunArgument,
    state: StatePlace,
    timeout: Annotated[
        float | None,
        typer.Option(
            min=0, help="Largest number of seconds to watch; then the exit code is 1. Default: until it ends."
        ),
    ] = None,
    message_id: Annotated[
        str | None,
        typer.Option(
            help="The message that `submit` has sent: rejections of earlier documents with this id are not its answer."
        ),
    ] = None,
    poll_seconds: Annotated[float, typer.Option(min=0.05, help="Seconds between two polls.")] = 1.0,
    output: OutputOption = Output.TEXT,
) -> None:
    """Follow a job run until it ends; wait for it if no dispatcher has taken it yet. Exit code 1 if it did not succeed.

    Without a terminal, and as jsonl, there is a line for each change.
    """
    records = WatchedJobRuns(state.store(dependencies), dependencies.clock)
    stops = dependencies.stops_on_signal()
    watched = JobRunWatch(records, job_run_id, dependencies.clock, message_id)
    view = _follow(watched, output, watched.until_it_ends(stops, timeout, poll_seconds))
    if stops.is_set():
        print_error(f"stopped watching {job_run_id}: it goes on without that")
        raise typer.Exit(EXIT_INTERRUPTED)
    if view is None:
        raise Unavailable(
            f"no dispatcher has taken job run {job_run_id!r} within {timeout:g} s: is one running, with this --state?"
        )
    if is_open(view):
        raise Unavailable(f"job run {job_run_id} is {view.status} still, after {timeout:g} s of watching")
    if view.status != "succeeded":
        raise typer.Exit(1)


@dataclass(frozen=True)
class JobRunWatch:
    records: JobRunStore
    job_run_id: str
    clock: Clock
    message_id: str | None = None

    def until_it_ends(
        self, stops: threading.Event, timeout: float | None, poll_seconds: float
    ) -> Iterator[JobRunView | None]:
        """The job run at each poll, the first one immediately; None while there is none."""
        began_at_seconds = self.clock.monotonic_seconds()
        while True:
            view = find_job_run(self.records, self.job_run_id, self.clock, message_id=self.message_id)
            yield view
            left = None if timeout is None else timeout - (self.clock.monotonic_seconds() - began_at_seconds)
            if (view is not None and not is_open(view)) or (left is not None and left <= 0):
                return
            if stops.wait(poll_seconds if left is None else min(poll_seconds, left)):
                return

    def waits(self) -> str:
        return f"no dispatcher has taken {self.job_run_id} yet: waiting for it"


def _follow(watched: JobRunWatch, output: Output, views: Iterator[JobRunView | None]) -> JobRunView | None:
    """Shows all views in the form of `output`; returns the last one."""
    if output is Output.TEXT:
        return _on_terminal(watched, views) if sys.stdout.isatty() else _line_by_line(watched, views)
    last: JobRunView | None = None
    lines: tuple[str, ...] = ()
    changes = Changes()
    for view in views:
        last = view
        if view is not None and output is Output.JSONL and (lines := tuple(changes.of(view))):
            answer(output, view.model_dump(mode="json"), lines)
            flush()
    if last is not None and output is not Output.JSONL:
        answer(output, last.model_dump(mode="json"), ())
    return last


def _on_terminal(watched: JobRunWatch, views: Iterator[JobRunView | None]) -> JobRunView | None:
    last: JobRunView | None = None
    out = console()
    with Live(console=out, refresh_per_second=4, transient=True) as live:
        for view in views:
            last = view
            lines = [watched.waits()] if view is None else job_run_lines(view, out.width, only_running=True)
            live.update(as_text(lines, out.width))
    if last is not None:
        write_lines(job_run_lines(last, page_width()))
    return last


def _line_by_line(watched: JobRunWatch, views: Iterator[JobRunView | None]) -> JobRunView | None:
    last: JobRunView | None = None
    changes = Changes()
    has_reported_waiting = False
    for view in views:
        last = view
        if view is not None:
            write_lines(f"{time_text(watched.clock.now_ms())}  {sentence}" for sentence in changes.of(view))
        elif not has_reported_waiting:
            has_reported_waiting = True
            write_lines([f"{time_text(watched.clock.now_ms())}  {watched.waits()}"])
        flush()
    if last is not None and not is_open(last):
        write_lines(job_run_lines(last, page_width()))
    return last
