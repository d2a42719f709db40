"""`lithify watch`: follows a job run to its end, also one that no dispatcher has accepted yet."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.live import Live

from compactor.model.clock import Clock
from compactor.model.errors import EXIT_INTERRUPTED, Unavailable
from dispatcher.cli.job_run_lines import Changes, is_open, job_run_lines
from dispatcher.cli.options import JobRunArgument, Output, OutputOption
from dispatcher.cli.output import answer, as_text, console, flush, page_width, print_error, write_lines
from dispatcher.cli.table_places import StatePlace
from dispatcher.clients import dependencies_of
from dispatcher.layout import time_text
from dispatcher.operations.status import JobRunView, find_job_run
from dispatcher.records.job_run_store import JobRunStore, WatchedJobRuns


def watch(
    context: typer.Context,
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
    dependencies = dependencies_of(context)
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
