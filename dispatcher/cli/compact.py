"""`lithify compact`: one table on this machine, without a queue. Its progress is live on a terminal."""

import threading
from typing import Annotated, Self

import typer
from rich.console import Console
from rich.status import Status
from rich.text import Text

from compactor import compact
from compactor.catalog.properties import ROWS_PER_COMPACTED_FILE
from compactor.log_context import be_verbose
from compactor.model.clock import Clock
from compactor.model.errors import Invalid, LithifyError
from compactor.model.names import ContentType, SortOrder, counted, render_partition
from compactor.planning.spec import ROWS_PER_PRIMARY_KEY_INDEX_FILE, JobRunResult, SessionResult
from compactor.sessions.session_journal import rows_arrived
from compactor.sessions.session_log import Heartbeat, SessionProgress, describe_progress
from dispatcher.cli.options import Output, OutputOption, PartitionOption, TableArgument, VerboseOption
from dispatcher.cli.output import answer_records, parse_partition, write_lines
from dispatcher.cli.plan import NOTHING_TO_DO
from dispatcher.cli.table_places import LakePlace
from dispatcher.clients import CommandDependencies
from dispatcher.layout import OF_SESSION, PARTITION, Column, count_text, partition_text, printable

_COLUMNS = (PARTITION, Column("rows_before", "before", count_text), *OF_SESSION)


def compact_table(
    dependencies: CommandDependencies,
    table: TableArgument,
    lake: LakePlace,
    primary_key: Annotated[
        list[str] | None,
        typer.Option("--primary-key", "-k", help="A key column; once for each. Default: the table's keys."),
    ] = None,
    sort_key: Annotated[
        list[str] | None,
        typer.Option(
            "--sort-key",
            help="A sort key, as column or column:descending; once for each. Default: the table's sort keys.",
            metavar="COLUMN[:ORDER]",
        ),
    ] = None,
    destination: Annotated[
        str | None,
        typer.Option(
            help="The table of the compacted rows. Default: the one that the table names, or the table itself."
        ),
    ] = None,
    partition: PartitionOption = None,
    hash_bucket_count: Annotated[
        int | None, typer.Option(min=1, help="Buckets of the index. Default: as many as memory needs.")
    ] = None,
    rows_per_compacted_file: Annotated[
        int | None,
        typer.Option(
            min=1, help=f"Most rows of a compacted file. Default: the table's property, or {ROWS_PER_COMPACTED_FILE:,}."
        ),
    ] = None,
    rows_per_primary_key_index_file: Annotated[
        int, typer.Option(min=1, help="Most rows of a file of the index.")
    ] = ROWS_PER_PRIMARY_KEY_INDEX_FILE,
    max_rows_per_round: Annotated[
        int | None, typer.Option(min=1, help="Most delta rows of one round. Default: as many as memory holds.")
    ] = None,
    max_dead_row_share: Annotated[
        float, typer.Option(help="Largest share of dead rows of a file that is not rewritten.")
    ] = 0.0,
    content_type: Annotated[
        ContentType | None,
        typer.Option(help="Format of compacted files (json is only read). Default: the table's property, or parquet."),
    ] = None,
    wait_seconds: Annotated[
        float,
        typer.Option(
            min=0, help="Seconds to wait for another compactor of a table with session_plans; 0 fails at once."
        ),
    ] = 0.0,
    output: OutputOption = Output.TEXT,
    verbose: VerboseOption = False,
) -> None:
    """Compact a table now, in this process, on this machine's cores."""
    if verbose:
        be_verbose()
    try:
        with ProgressScreen(Console(stderr=True, highlight=False), dependencies.clock) as screen:
            result = compact(
                table,
                set(primary_key) if primary_key else None,
                sort_keys=[parse_sort_key(text) for text in sort_key] if sort_key else None,
                delta_catalog_client=lake.reach(),
                destination_compacted_table_id=destination,
                rows_per_primary_key_index_file=rows_per_primary_key_index_file,
                rows_per_compacted_file=rows_per_compacted_file,
                hash_bucket_count=hash_bucket_count,
                compacted_file_content_type=content_type and content_type.value,
                partitions=[parse_partition(partition)] if partition else None,
                max_rows_per_round=max_rows_per_round,
                max_dead_row_share=max_dead_row_share,
                progress=screen,
                wait_seconds=wait_seconds,
            )
    except LithifyError as error:
        if isinstance(error.result, JobRunResult) and (error.result.sessions or output is not Output.TEXT):
            _show(output, error.result)
        raise
    _show(output, result)


def _show(output: Output, result: JobRunResult) -> None:
    value: dict[str, object] = {
        "job_run_id": result.job_run_id,
        "sessions": [_figures(session) for session in result.sessions],
        "failures": [failure.model_dump(mode="json") for failure in result.failures],
    }
    if output is Output.TEXT and not result.failures and not any(session.seconds for session in result.sessions):
        write_lines([NOTHING_TO_DO])
        return
    rehashed = [
        f"The index of {render_partition(each.partition)} has {each.hash_bucket_count} hash buckets, not "
        f"{each.rehashed_from} any more."
        for each in result.sessions
        if each.rehashed_from is not None
    ]
    answer_records(output, value, "sessions", _COLUMNS, none=NOTHING_TO_DO, after=rehashed)


def _figures(session: SessionResult) -> dict[str, object]:
    """Without completions, which name every file; the delta's rows separate from earlier ones."""
    delta_rows = sum(rows_arrived(completion) for completion in session.completions)
    return {
        **session.model_dump(mode="json", exclude={"completions"}),
        "rows_before": session.rows_in - delta_rows,
        "delta_rows": delta_rows,
    }


def parse_sort_key(text: str) -> tuple[str, str]:
    """`column`, `column:ascending` or `column:descending`; a column may have colons itself."""
    column, separator, order = text.rpartition(":")
    if not separator:
        return text, SortOrder.ASCENDING.value
    if order not in list(SortOrder):
        raise Invalid(f"--sort-key {text!r}: the order is {order!r}; write :ascending or :descending")
    return column, order


class ProgressScreen:
    """A context manager, and inside it a `Listener`. Thread-safe."""

    def __init__(self, out: Console, clock: Clock) -> None:
        self._out = out
        self._clock = clock
        self._began_at_seconds = clock.monotonic_seconds()
        self._status = Status(Text("looking for work"), console=out)
        self._lock = threading.Lock()
        self._committed: dict[int, int] = {}

    def __enter__(self) -> Self:
        if self._out.is_terminal:
            self._status.start()
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self._status.stop()

    def __call__(self, progress: SessionProgress) -> None:
        with self._lock:
            name = printable(partition_text(progress.partition))
            if progress.sessions > 1:
                name += f" ({progress.number} of {progress.sessions})"
            if progress.waits_for is not None:
                self._status.update(Text(f"{name} waits"))
                self._line(f"{name} waits: {progress.waits_for}")
                return
            beat = progress.heartbeat
            self._status.update(Text(f"{name}: {_progress_text(beat)}"))
            committed = self._committed.get(progress.number, 0)
            if beat is not None and beat.step == "committed" and beat.round_number > committed:
                self._committed[progress.number] = beat.round_number
                self._line(f"{name}: {_round(beat)} committed, {counted(beat.rows_done, 'delta row')} done")

    def _line(self, text: str) -> None:
        seconds = self._clock.monotonic_seconds() - self._began_at_seconds
        self._out.print(Text(f"{seconds:6.1f} s  {text}"), soft_wrap=not self._out.is_terminal)


def _progress_text(beat: Heartbeat | None) -> str:
    if beat is None:
        return "starts"
    if beat.share_done is None or not beat.tasks:
        return describe_progress(beat)
    return f"{describe_progress(beat)}, {beat.share_done:.0%} of {counted(beat.rows, 'delta row')}"


def _round(beat: Heartbeat) -> str:
    return f"round {beat.round_number} of {beat.rounds}"
