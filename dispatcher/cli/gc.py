"""`lithify gc`: what nobody needs any more."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from compactor.catalog.catalog import DeltaCatalog
from compactor.clock import SystemClock
from compactor.garbage import GRACE_SECONDS, StreamGarbage, delete_garbage, find_garbage
from dispatcher.cli.options import LakeOption, Output, OutputOption, RegionOption, S3EndpointOption
from dispatcher.cli.output import answer_json, console, rows_table, time_text

_SECONDS_PER_HOUR = 3600
_FILES_SHOWN_MAX = 20


def gc(
    lake: LakeOption,
    table: Annotated[
        list[str] | None,
        typer.Argument(help="OWNER.NAME.Vn, any number of them; none: all.", metavar="TABLE..."),
    ] = None,
    grace_hours: Annotated[
        float,
        typer.Option(
            min=1, help="Spare what was needed or written so recently. Longer than any job run takes, and any reader."
        ),
    ] = GRACE_SECONDS / _SECONDS_PER_HOUR,
    delete: Annotated[bool, typer.Option("--delete", help="Delete it. Without this, it is only told.")] = False,
    s3_endpoint_url: S3EndpointOption = None,
    region: RegionOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Find files that no reader and no compaction needs any more, and with --delete, delete them."""
    catalog, clock = DeltaCatalog.open(lake, endpoint_url=s3_endpoint_url, region=region), SystemClock()
    table_ids = [catalog.table(each).table_id for each in table] if table else catalog.tables()
    progress, found = Console(stderr=True), []
    for table_id in table_ids:
        for garbage in find_garbage(catalog.store, table_id, clock, grace_hours * _SECONDS_PER_HOUR):
            found.append(garbage)
            if delete and garbage.garbage:
                with progress.status(f"{garbage.stream}: deleting {len(garbage.garbage):,} files"):
                    delete_garbage(catalog.store, garbage)
    if output is Output.JSON:
        answer_json({"deleted": delete, "streams": [garbage.model_dump(mode="json") for garbage in found]})
    else:
        _tell(found, delete)


def _tell(found: list[StreamGarbage], deleted: bool) -> None:
    out = console()
    columns = ("stream", "kept files", "kept MiB", "garbage files", "garbage MiB", "unknown files")
    out.print(
        rows_table(
            columns,
            (
                (each.stream, each.kept_files, each.kept_bytes / 2**20, len(each.garbage), each.garbage_bytes / 2**20,
                 len(each.unknown))
                for each in found
            ),
        )
    )  # fmt: skip
    files = [file for each in found for file in each.garbage]
    for file in files[:_FILES_SHOWN_MAX]:
        out.print(f"{time_text(file.modified_at_ms)}  {file.key}", markup=False)
    if len(files) > _FILES_SHOWN_MAX:
        out.print(f"... and {len(files) - _FILES_SHOWN_MAX:,} more: --output json names them all")
    unknown = sum(len(each.unknown) for each in found)
    if unknown:
        out.print(f"{unknown:,} files have names that Lithify does not give: they stay.")
    if not files:
        out.print("There is nothing to delete.")
    elif deleted:
        out.print(f"Deleted {len(files):,} files.")
    else:
        out.print(f"Nothing was deleted. To delete these {len(files):,} files, add --delete.")
