"""`lithify gc`: finds and deletes unneeded files.

Each table stands for itself: an error at one is reported, and the others are collected all the same.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Annotated

import typer
from rich.console import Console
from rich.status import Status
from rich.text import Text

from compactor.catalog.properties import GRACE_SECONDS, KEPT_SECONDS_MAX
from compactor.lake import DeltaCatalog
from compactor.log_context import LOG
from compactor.maintenance.collection import CollectedStream, Collection, GracePeriods
from compactor.maintenance.retirement import StreamRetired
from compactor.model.clock import SystemClock
from compactor.model.errors import EXIT_FAILED, Corrupt, Denied, Invalid, Unavailable
from compactor.model.names import counted
from compactor.storage.location import parse_location
from compactor.storage.object_store import ObjectStore
from compactor.storage.opening import open_store
from dispatcher.cli.options import Output, OutputOption, TablesArgument
from dispatcher.cli.output import answer_records, print_error
from dispatcher.cli.table_places import LakePlace, check_exists
from dispatcher.layout import Column, counts, time_text

_SECONDS_PER_HOUR = 3600
_FILES_SHOWN_MAX = 20
_SECONDS_BETWEEN_LINES = 60.0
"""Interval between two lines of the log about a run that is not watched in a terminal."""


_COLUMNS = (
    Column("stream"),
    *counts("kept_files", "kept_bytes", "garbage_files", "garbage_bytes", "unknown_files", "retired_deltas"),
)


def gc(
    lake: LakePlace,
    table: TablesArgument = None,
    grace_hours: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=KEPT_SECONDS_MAX / _SECONDS_PER_HOUR,
            help="Hours for which files that were needed or written are kept, in tables without gc_grace_seconds. "
            "Must exceed the longest job run and the longest read. "
            f"Default: {GRACE_SECONDS / _SECONDS_PER_HOUR:g}. A table's retention counts in any case.",
        ),
    ] = None,
    nothing_runs: Annotated[
        bool,
        typer.Option(
            "--nothing-runs",
            help="No writer, compaction or reader of the lake runs now: --grace-hours may be below an hour, and counts "
            "for tables with a gc_grace_seconds, too.",
        ),
    ] = False,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete them. Without this option, they are only listed.")
    ] = False,
    state: Annotated[
        str | None,
        typer.Option(
            "--state",
            help="Where job runs are recorded. Unless a table is named, unfinished writes are deleted there, as in the "
            "lake.",
        ),
    ] = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Find deltas and files that no reader and no compaction still needs, and with --delete, retire and delete them.

    Exit code 1: some tables could not be collected; they are named with the reason, and the others were collected.
    """
    if delete and grace_hours is not None and grace_hours < 1 and not nothing_runs:
        raise Invalid(
            f"a grace of {grace_hours:g} hours may delete files that a compaction or a writer is about to commit: "
            "give 1 hour or more, or stop all of them and add --nothing-runs"
        )
    catalog = lake.open()
    stores = [catalog.store, *_state_beside(catalog.store, state, lake)]
    seconds = None if grace_hours is None else grace_hours * _SECONDS_PER_HOUR
    grace = GracePeriods(seconds, counts_for_all=nothing_runs and grace_hours is not None)
    console = Console(stderr=True)
    found = _Found(names_all=output in (Output.JSON, Output.JSONL))
    with console.status(Text("tables are listed")) as status:
        progress = _Progress(status)
        run = Collection(catalog, SystemClock(), grace, deletes=delete, add=found.add)
        run.show = lambda what: progress.show(what, run)
        dropped = catalog.dropped_tables()
        run.collect_tables(
            _existing(catalog, table, dropped) if table else catalog.tables(),
            [table_id for table_id in dropped if not table or table_id in table],
        )
        for store in stores if not table else ():
            _give_up_unfinished(run, store, console)
    _answer(output, run, found)


class _Progress:
    """Shows in a terminal what is done now; elsewhere it writes a line now and then."""

    def __init__(self, status: Status) -> None:
        self._status = status
        self._clock = SystemClock()
        self._shown_seconds = self._clock.monotonic_seconds()

    def show(self, what: str, run: Collection) -> None:
        self._status.update(
            Text(f"{what} ({counted(run.seen_files, 'file')} seen, {run.found_files:,} of them garbage)")
        )
        now_seconds = self._clock.monotonic_seconds()
        if not self._status.console.is_terminal and now_seconds - self._shown_seconds > _SECONDS_BETWEEN_LINES:
            self._shown_seconds = now_seconds
            LOG.info("collecting_garbage", at=what, streams=run.streams, files=run.seen_files, garbage=run.found_files)


@dataclass
class _Found:
    """
    Attributes:
        streams: figures of each; with the names of all garbage if `names_all`
        first_files: of the garbage, with their times"""

    names_all: bool
    streams: list[dict[str, object]] = field(default_factory=list)
    first_files: list[tuple[int, str]] = field(default_factory=list)

    def add(self, collected: CollectedStream) -> None:
        room = _FILES_SHOWN_MAX - len(self.first_files)
        self.first_files += [(file.modified_at_ms, file.key) for file in collected.garbage.garbage[:room]]
        figures = _figures(collected)
        self.streams.append(figures if self.names_all else {column.key: figures[column.key] for column in _COLUMNS})


def _give_up_unfinished(run: Collection, store: ObjectStore, console: Console) -> None:
    try:
        run.give_up_unfinished(store)
    except Denied as error:
        console.print(Text(f"Unfinished uploads are not shown: {error}"))


def _answer(output: Output, run: Collection, found: _Found) -> None:
    value = {
        "deleted": run.deletes,
        "streams": found.streams,
        "retired": [asdict(each) for each in run.retired],
        "unfinished": [{"root_uri": root_uri, **asdict(write)} for root_uri, write in run.unfinished],
        "failed": [asdict(each) for each in run.failed],
    }
    none = "No stream has any data yet."
    answer_records(output, value, "streams", _COLUMNS, none=none, after=list(_summary(run, found)))
    for failed in run.failed:
        print_error(f"{failed.table_id or 'unfinished writes'}: {failed.reason}")
    if run.failed:
        raise typer.Exit(EXIT_FAILED)


def _existing(catalog: DeltaCatalog, table_ids: Sequence[str], dropped: Sequence[str]) -> Sequence[str]:
    """Those that are not dropped. Raises `Invalid` if a table that was named does not exist."""
    existing = [table_id for table_id in table_ids if table_id not in dropped]
    for table_id in existing:
        with suppress(Corrupt, Unavailable):  # reported when its turn comes
            catalog.table(table_id)
    return existing


def _state_beside(lake: ObjectStore, state: str | None, place: LakePlace) -> Iterator[ObjectStore]:
    """The store of an existing state, if one is named, and it is not that of the lake."""
    if state is None:
        return
    store = open_store(parse_location(state, endpoint_url=place.s3_endpoint_url, region=place.region))
    check_exists(store, "state")
    if store.location.root_uri != lake.location.root_uri:
        yield store


def _figures(collected: CollectedStream) -> dict[str, object]:
    garbage, retired = collected.garbage, collected.retired
    return {
        **garbage.model_dump(mode="json"),
        "retired_deltas": 0 if retired is None else retired.deltas,
        "garbage_files": len(garbage.garbage),
        "garbage_bytes": garbage.garbage_bytes,
        "unknown_files": len(garbage.unknown),
        "not_deleted": collected.not_deleted,
    }


def _summary(run: Collection, found: _Found) -> Iterator[str]:
    unfinished = [(write.begun_at_ms, f"{root}/{write.name} (never finished)") for root, write in run.unfinished]
    for at_ms, name in (*found.first_files, *unfinished)[:_FILES_SHOWN_MAX]:
        yield f"{time_text(at_ms)}  {name}"
    files = run.found_files + len(unfinished)
    if files > _FILES_SHOWN_MAX:
        yield f"... and {files - _FILES_SHOWN_MAX:,} more: --output json names them all"
    if run.unknown_files:
        yield f"{counted(run.unknown_files, 'file')} with names that Lithify does not give: left alone."
    if run.retired:
        yield _retired_line(run.retired, deleted=run.deletes)
    if not files and (run.deletes or not run.retired):
        yield "There is nothing to delete."
    elif run.deletes:
        yield f"Deleted {counted(run.deleted_files, 'file')}."
    else:
        yield f"Nothing was deleted. To delete {counted(files, 'file')}, add --delete."


def _retired_line(retired: Sequence[StreamRetired], *, deleted: bool) -> str:
    deltas = f"{counted(sum(each.deltas for each in retired), 'compacted delta')} of {counted(len(retired), 'stream')}"
    if deleted:
        return f"Retired {deltas}: their files can be deleted once the grace and the retention have passed again."
    return f"{deltas} can be retired; their files can be deleted some time later."
