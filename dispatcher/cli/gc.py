"""`lithify gc`: finds and deletes unneeded files.

Each table stands for itself: an error at one is reported, and the others are collected all the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Annotated

import structlog
import typer
from rich.console import Console
from rich.status import Status
from rich.text import Text

from compactor.catalog.keys import TableFolder
from compactor.catalog.properties import GRACE_SECONDS, NO_PROPERTIES, TableProperties
from compactor.lake import DeltaCatalog
from compactor.maintenance.dropped import find_dropped_garbage
from compactor.maintenance.garbage import (
    StreamGarbage,
    delete_garbage,
    delete_unfinished,
    find_garbage,
    find_unfinished,
)
from compactor.maintenance.retirement import StreamRetired, retention_of, retire_table
from compactor.model.clock import Clock, SystemClock
from compactor.model.errors import EXIT_FAILED, Corrupt, Denied, Invalid, LithifyError, Unavailable
from compactor.model.names import counted
from compactor.storage.location import parse_location
from compactor.storage.object_store import ObjectStore, UnfinishedWrite
from compactor.storage.opening import open_store
from dispatcher.cli.options import Output, OutputOption
from dispatcher.cli.output import answer_records, print_error
from dispatcher.cli.table_places import LakePlace, check_exists
from dispatcher.layout import Column, count_text, time_text

_log = structlog.get_logger(__name__)

_SECONDS_PER_HOUR = 3600
_FILES_SHOWN_MAX = 20
_SECONDS_BETWEEN_LINES = 60.0
"""Between two lines of the log about a run that is not watched in a terminal."""


_COLUMNS = (
    Column("stream"),
    Column("kept_files", show=count_text),
    Column("kept_bytes", show=count_text),
    Column("garbage_files", show=count_text),
    Column("garbage_bytes", show=count_text),
    Column("unknown_files", show=count_text),
    Column("retired_deltas", show=count_text),
)


def gc(
    lake: LakePlace,
    table: Annotated[
        list[str] | None,
        typer.Argument(help="Tables, OWNER.NAME.Vn. Default: all tables of the lake.", metavar="TABLE..."),
    ] = None,
    grace_hours: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Spare what was needed or written so recently, in tables without a gc_grace_seconds of their own. "
            "Longer than any job run takes, and any reader. "
            f"Left out: {GRACE_SECONDS / _SECONDS_PER_HOUR:g}. A table's retention counts in any case.",
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
            help="Where job runs are recorded. Only writes that were begun and never finished go from there, and from "
            "the lake: both only where no table is named.",
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
    grace = _Grace(grace_hours, counts_for_all=nothing_runs and grace_hours is not None)
    console = Console(stderr=True)
    with console.status(Text("tables are listed")) as status:
        run = _Run(catalog, SystemClock(), grace, _Progress(status), deletes=delete)
        run.names_all = output in (Output.JSON, Output.JSONL)
        dropped = catalog.dropped_tables()
        for table_id in _existing(catalog, table, dropped) if table else catalog.tables():
            run.collect(table_id)
        for table_id in dropped:
            if not table or table_id in table:
                run.collect_dropped(table_id)
        for store in stores if not table else ():
            run.give_up_unfinished(store, console)
    _answer(output, run)


@dataclass(frozen=True)
class _Failed:
    """What could not be done for a table; `table_id` None: for unfinished writes, which belong to no table."""

    table_id: str | None
    reason: str


@dataclass
class _Grace:
    """hours  for tables that set none; None: the default. `counts_for_all`: and for those that do"""

    hours: float | None
    counts_for_all: bool
    longest_seconds: float = 0.0

    def __post_init__(self) -> None:
        self.longest_seconds = self._default_seconds

    @property
    def _default_seconds(self) -> float:
        return GRACE_SECONDS if self.hours is None else self.hours * _SECONDS_PER_HOUR

    def seconds_of(self, properties: TableProperties) -> float:
        own = properties.gc_grace_seconds
        seconds = self._default_seconds if own is None or self.counts_for_all else own
        self.longest_seconds = max(self.longest_seconds, seconds)
        return seconds


class _Progress:
    """Shows in a terminal what is done now; elsewhere it writes a line now and then."""

    def __init__(self, status: Status) -> None:
        self._status = status
        self._clock = SystemClock()
        self._shown_seconds = self._clock.monotonic_seconds()

    def show(self, what: str, run: _Run) -> None:
        self._status.update(
            Text(f"{what} ({counted(run.seen_files, 'file')} seen, {run.found_files:,} of them garbage)")
        )
        now_seconds = self._clock.monotonic_seconds()
        if not self._status.console.is_terminal and now_seconds - self._shown_seconds > _SECONDS_BETWEEN_LINES:
            self._shown_seconds = now_seconds
            _log.info(
                "collecting_garbage", at=what, streams=len(run.streams), files=run.seen_files, garbage=run.found_files
            )


@dataclass
class _Run:
    """One run over the tables, and what it has found so far.

    streams      figures of each; with the names of all garbage if `names_all`
    first_files  of the garbage, with their times
    found_files  garbage; `deleted_files` of them were deleted
    """

    catalog: DeltaCatalog
    clock: Clock
    grace: _Grace
    progress: _Progress
    deletes: bool
    names_all: bool = False
    streams: list[dict[str, object]] = field(default_factory=list)
    retired: list[StreamRetired] = field(default_factory=list)
    unfinished: list[tuple[str, UnfinishedWrite]] = field(default_factory=list)
    failed: list[_Failed] = field(default_factory=list)
    first_files: list[tuple[int, str]] = field(default_factory=list)
    seen_files: int = 0
    found_files: int = 0
    deleted_files: int = 0
    unknown_files: int = 0
    knows_every_grace: bool = True

    def collect(self, table_id: str) -> None:
        """Retires and deletes what one table no longer needs. Does not raise errors of the table."""
        self.progress.show(table_id, self)
        properties = None
        with self._reported(table_id):
            properties = _properties_of(self.catalog, table_id)
        if properties is None:
            self.knows_every_grace = False
            return
        grace_seconds, kept_seconds = self.grace.seconds_of(properties), properties.retention_seconds
        retired: dict[str, StreamRetired] = {}
        with self._reported(table_id):
            retention = retention_of(kept_seconds, grace_seconds)
            for each in retire_table(self.catalog.store, table_id, retention, self.clock, write=self.deletes):
                retired[each.stream] = each
                self.retired.append(each)
        with self._reported(table_id):
            for garbage in find_garbage(self.catalog.store, table_id, self.clock, grace_seconds, kept_seconds):
                self._add(table_id, garbage, retired.get(garbage.stream))

    def collect_dropped(self, table_id: str) -> None:
        """Deletes the data of a dropped table, once nobody can need it. Does not raise errors of the table."""
        with self._reported(table_id):
            definition = self.catalog.definition_even_dropped(table_id)
            if definition is not None:
                grace_seconds = self.grace.seconds_of(definition.properties)
                garbage = find_dropped_garbage(self.catalog.store, definition, self.clock, grace_seconds)
                self._add(table_id, garbage, None)

    def give_up_unfinished(self, store: ObjectStore, console: Console) -> None:
        """Writes that began before the longest grace of all tables; if one is not known, none."""
        if not self.knows_every_grace:
            return
        try:
            with self._reported(None):
                writes = find_unfinished(store, self.clock, self.grace.longest_seconds)
                self.unfinished += [(store.location.root_uri, write) for write in writes]
                if self.deletes:
                    delete_unfinished(store, writes)
                    self.deleted_files += len(writes)
        except Denied as error:  # needs a separate right
            console.print(Text(f"Unfinished uploads are not shown: {error}"))

    def _add(self, table_id: str, garbage: StreamGarbage, retired: StreamRetired | None) -> None:
        count = len(garbage.garbage)
        not_deleted: dict[str, str] = {}
        self.seen_files += garbage.kept_files + count
        self.found_files += count
        self.unknown_files += len(garbage.unknown)
        if self.deletes and count:
            self.progress.show(f"{garbage.stream}: deleting {counted(count, 'file')}", self)
            not_deleted = delete_garbage(self.catalog.store, garbage)
            self.deleted_files += count - len(not_deleted)
        if not_deleted:
            first = next(iter(not_deleted.values()))
            what = f"{len(not_deleted):,} of {counted(count, 'file')} of {garbage.stream} could not be deleted"
            self.failed.append(_Failed(table_id, f"{what}, the first: {first}"))
        room = _FILES_SHOWN_MAX - len(self.first_files)
        self.first_files += [(file.modified_at_ms, file.key) for file in garbage.garbage[:room]]
        figures = _figures(garbage, retired, not_deleted)
        self.streams.append(figures if self.names_all else {column.key: figures[column.key] for column in _COLUMNS})
        self.progress.show(garbage.stream, self)

    @contextmanager
    def _reported(self, table_id: str | None) -> Iterator[None]:
        try:
            yield
        except LithifyError as error:
            if table_id is None and isinstance(error, Denied):
                raise
            self.failed.append(_Failed(table_id, str(error)))


def _answer(output: Output, run: _Run) -> None:
    value = {
        "deleted": run.deletes,
        "streams": run.streams,
        "retired": [asdict(each) for each in run.retired],
        "unfinished": [{"root_uri": root_uri, **asdict(write)} for root_uri, write in run.unfinished],
        "failed": [asdict(each) for each in run.failed],
    }
    none = "No stream has any data yet."
    answer_records(output, value, "streams", _COLUMNS, none=none, after=list(_summary(run)))
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


def _properties_of(catalog: DeltaCatalog, table_id: str) -> TableProperties:
    """Raises `Corrupt` if the definition is lost: nothing says then for how long its files are to be kept. `Invalid`
    for a folder that is a copy: its log names the files of another table."""
    if catalog.definition_even_dropped(table_id) is not None:
        return catalog.table(table_id).properties
    folder = TableFolder(table_id)
    if not {"compacted", "data", "streams"} & set(catalog.store.list_folders(f"{folder.key}/")):
        return NO_PROPERTIES
    raise Corrupt(
        f"{catalog.location.root_uri}/{folder.key} has files, and there is no definition of {table_id} in "
        f"{folder.definition_log}/: nothing is deleted. If it was lost, by a restore, a mount or a copy, bring it back"
    )


def _state_beside(lake: ObjectStore, state: str | None, place: LakePlace) -> Iterator[ObjectStore]:
    """The store of an existing state, if one is named, and it is not that of the lake."""
    if state is None:
        return
    store = open_store(parse_location(state, endpoint_url=place.s3_endpoint_url, region=place.region))
    check_exists(store, "state")
    if store.location.root_uri != lake.location.root_uri:
        yield store


def _figures(garbage: StreamGarbage, retired: StreamRetired | None, not_deleted: dict[str, str]) -> dict[str, object]:
    return {
        **garbage.model_dump(mode="json"),
        "retired_deltas": 0 if retired is None else retired.deltas,
        "garbage_files": len(garbage.garbage),
        "garbage_bytes": garbage.garbage_bytes,
        "unknown_files": len(garbage.unknown),
        "not_deleted": not_deleted,
    }


def _summary(run: _Run) -> Iterator[str]:
    unfinished = [(write.begun_at_ms, f"{root}/{write.name} (never finished)") for root, write in run.unfinished]
    for at_ms, name in (*run.first_files, *unfinished)[:_FILES_SHOWN_MAX]:
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
