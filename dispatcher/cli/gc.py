"""`lithify gc`: finds and deletes unneeded files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from compactor.catalog.properties import GRACE_SECONDS, NO_PROPERTIES, TableProperties
from compactor.lake import DeltaCatalog
from compactor.maintenance.garbage import (
    StreamGarbage,
    delete_garbage,
    delete_unfinished,
    find_garbage,
    find_unfinished,
)
from compactor.maintenance.retirement import StreamRetired, retention_of, retire_table
from compactor.model.clock import SystemClock
from compactor.model.errors import Denied, Invalid
from compactor.model.names import counted
from compactor.storage.location import parse_location
from compactor.storage.object_store import ObjectStore, UnfinishedWrite
from compactor.storage.opening import open_store
from dispatcher.cli.options import LakeOption, Output, OutputOption, RegionOption, S3EndpointOption
from dispatcher.cli.output import answer_records
from dispatcher.cli.table_places import check_exists, open_lake
from dispatcher.layout import Column, count_text, time_text

_SECONDS_PER_HOUR = 3600
_FILES_SHOWN_MAX = 20


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
    lake: LakeOption,
    table: Annotated[
        list[str] | None,
        typer.Argument(help="OWNER.NAME.Vn, any number of them; none: all.", metavar="TABLE..."),
    ] = None,
    grace_hours: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Spare what was needed or written so recently. Longer than any job run takes, and any reader. "
            f"Left out: the table's gc_grace_seconds, or {GRACE_SECONDS / _SECONDS_PER_HOUR:g}. A table's retention "
            "counts in any case.",
        ),
    ] = None,
    nothing_runs: Annotated[
        bool,
        typer.Option(
            "--nothing-runs",
            help="No writer, compaction or reader of the lake runs now: deletes with a grace below an hour.",
        ),
    ] = False,
    delete: Annotated[bool, typer.Option("--delete", help="Delete them. Without this, they are only listed.")] = False,
    state: Annotated[
        str | None,
        typer.Option(
            "--state",
            help="Where job runs are recorded. Only writes that were begun and never finished go from there, and from "
            "the lake: both only where no table is named.",
        ),
    ] = None,
    s3_endpoint_url: S3EndpointOption = None,
    region: RegionOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Find deltas and files that no reader and no compaction still needs, and with --delete, retire and delete
    them."""
    if delete and grace_hours is not None and grace_hours < 1 and not nothing_runs:
        raise Invalid(
            f"a grace of {grace_hours:g} hours may delete files that a compaction or a writer is about to commit: "
            "give 1 hour or more, or stop all of them and add --nothing-runs"
        )
    catalog, clock = open_lake(lake, s3_endpoint_url, region), SystemClock()
    stores = [catalog.store, *_state_beside(catalog.store, state, s3_endpoint_url, region)]
    properties = _properties_of(catalog, table)
    graces = {name: _grace_seconds(name, each, grace_hours, nothing_runs) for name, each in properties.items()}
    longest_grace = max((GRACE_SECONDS, *graces.values())) if grace_hours is None else grace_hours * _SECONDS_PER_HOUR
    progress, found = Console(stderr=True), []
    retired: dict[str, StreamRetired] = {}
    for table_id, each in properties.items():
        retention = retention_of(each.retention_seconds, graces[table_id])
        retired |= {
            found.stream: found for found in retire_table(catalog.store, table_id, retention, clock, write=delete)
        }
        for garbage in find_garbage(catalog.store, table_id, clock, graces[table_id], each.retention_seconds):
            found.append(garbage)
            if delete and garbage.garbage:
                with progress.status(Text(f"{garbage.stream}: deleting {counted(len(garbage.garbage), 'file')}")):
                    delete_garbage(catalog.store, garbage)
    unfinished = []
    for store in stores if not table else ():
        try:
            writes = find_unfinished(store, clock, longest_grace)
        except Denied as error:  # needs a separate right
            progress.print(Text(f"Unfinished uploads are not shown: {error}"))
            continue
        unfinished += [(store.location.root_uri, write) for write in writes]
        if delete:
            delete_unfinished(store, writes)
    answer_records(
        output,
        {
            "deleted": delete,
            "streams": [_figures(garbage, retired.get(garbage.stream)) for garbage in found],
            "retired": [asdict(each) for each in retired.values()],
            "unfinished": [{"root_uri": root_uri, **asdict(write)} for root_uri, write in unfinished],
        },
        "streams",
        _COLUMNS,
        none="No stream has any data yet.",
        after=list(_summary(found, unfinished, list(retired.values()), deleted=delete)),
    )


def _properties_of(catalog: DeltaCatalog, table_ids: Sequence[str] | None) -> dict[str, TableProperties]:
    """Of the named tables, or of all. One that was dropped only in part is still listed, and has none."""
    if table_ids:
        return {table_id: catalog.table(table_id).properties for table_id in table_ids}
    found = {}
    for table_id in catalog.tables():
        try:
            found[table_id] = catalog.table(table_id).properties
        except Invalid:
            found[table_id] = NO_PROPERTIES
    return found


def _grace_seconds(table_id: str, properties: TableProperties, grace_hours: float | None, nothing_runs: bool) -> float:
    """Raises `Invalid` for less than what the table says that its writers and compactions may take."""
    if grace_hours is None:
        return properties.grace_seconds
    grace_seconds = grace_hours * _SECONDS_PER_HOUR
    allowed = properties.gc_grace_seconds
    if allowed is not None and grace_seconds < allowed and not nothing_runs:
        raise Invalid(
            f"a grace of {grace_seconds:,.0f} seconds is below the gc_grace_seconds {allowed:,} of {table_id}, which a "
            "writer or a compaction may take: leave --grace-hours out, or stop all of them and add --nothing-runs"
        )
    return grace_seconds


def _state_beside(
    lake: ObjectStore, state: str | None, s3_endpoint_url: str | None, region: str | None
) -> Iterator[ObjectStore]:
    """The store of an existing state, if one is named, and it is not that of the lake."""
    if state is None:
        return
    store = open_store(parse_location(state, endpoint_url=s3_endpoint_url, region=region))
    check_exists(store, "state")
    if store.location.root_uri != lake.location.root_uri:
        yield store


def _figures(garbage: StreamGarbage, retired: StreamRetired | None) -> dict[str, object]:
    return {
        **garbage.model_dump(mode="json"),
        "retired_deltas": 0 if retired is None else retired.deltas,
        "garbage_files": len(garbage.garbage),
        "garbage_bytes": garbage.garbage_bytes,
        "unknown_files": len(garbage.unknown),
    }


def _summary(
    found: list[StreamGarbage],
    unfinished: Sequence[tuple[str, UnfinishedWrite]],
    retired: Sequence[StreamRetired],
    *,
    deleted: bool,
) -> Iterator[str]:
    files = [(file.modified_at_ms, file.key) for each in found for file in each.garbage]
    files += [(write.begun_at_ms, f"{root_uri}/{write.name} (never finished)") for root_uri, write in unfinished]
    for at_ms, name in files[:_FILES_SHOWN_MAX]:
        yield f"{time_text(at_ms)}  {name}"
    if len(files) > _FILES_SHOWN_MAX:
        yield f"... and {len(files) - _FILES_SHOWN_MAX:,} more: --output json names them all"
    unknown = sum(len(each.unknown) for each in found)
    if unknown:
        yield f"{counted(unknown, 'file')} with names that Lithify does not give: left alone."
    if retired:
        yield _retired_line(retired, deleted=deleted)
    if not files and (deleted or not retired):
        yield "There is nothing to delete."
    elif deleted:
        yield f"Deleted {counted(len(files), 'file')}."
    else:
        yield f"Nothing was deleted. To delete {counted(len(files), 'file')}, add --delete."


def _retired_line(retired: Sequence[StreamRetired], *, deleted: bool) -> str:
    deltas = f"{counted(sum(each.deltas for each in retired), 'compacted delta')} of {counted(len(retired), 'stream')}"
    if deleted:
        return f"Retired {deltas}: their files can be deleted once the grace and the retention have passed again."
    return f"{deltas} can be retired; their files can be deleted some time later."
