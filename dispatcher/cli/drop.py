"""`lithify table drop`: drops partitions and tables, and purges dropped tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from compactor.catalog.dropping import Drop, Purge
from compactor.model.errors import Invalid
from compactor.model.names import counted, render_partition
from dispatcher.cli.options import EndpointOption, Output, OutputOption, TableArgument
from dispatcher.cli.output import answer, parse_partition
from dispatcher.cli.publish import publish_table
from dispatcher.cli.table_places import LakePlace
from dispatcher.clients import dependencies_of
from dispatcher.layout import time_text

_PARTITIONS_SHOWN_MAX = 20


def drop(
    context: typer.Context,
    table: TableArgument,
    lake: LakePlace,
    partition: Annotated[
        list[str] | None,
        typer.Option(
            "--partition",
            "-p",
            metavar="KEY=VALUE",
            help="Drop the partitions with this value instead of the table; once for each key.",
        ),
    ] = None,
    delete: Annotated[
        bool, typer.Option("--delete", help="Drop them. Without this option, they are only described.")
    ] = False,
    purge: Annotated[
        bool,
        typer.Option(
            "--purge",
            help="With --delete, also delete every object of the table, log entries too, once its grace period has "
            "passed: its id is free again. Needs the right to delete all of them.",
        ),
    ] = False,
    nothing_runs: Annotated[
        bool,
        typer.Option(
            "--nothing-runs", help="No writer, compaction or reader of the table runs now: --purge need not wait."
        ),
    ] = False,
    endpoint_url: EndpointOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Drop a table, or some of its partitions. Nobody reads, writes or compacts a dropped table. A dropped partition
    that is written again begins empty. gc deletes the files later; until then, restore brings partitions back.

    Files that were registered where they lie stay there.
    """
    catalog, glue = lake.open(), dependencies_of(context).clients.glue
    if purge and partition:
        raise Invalid("--purge is of a whole table: lithify gc deletes the files of dropped partitions")
    if purge:
        purged = catalog.purge_table(table, dry_run=not delete, nothing_runs=nothing_runs)
        value = {"table_id": table, "purged": delete, "objects": purged.objects, "bytes": purged.size_bytes}
        answer(output, value, [_purge_line(purged, delete=delete)])
        return
    if partition:
        opened = catalog.table(table)
        dropped = opened.drop_partitions(parse_partition(partition), dry_run=not delete)
    else:
        opened = catalog.table_even_dropped(table)
        dropped = catalog.drop_table(table, dry_run=not delete)
    unpublished: list[str] = []
    if delete and opened.properties.publish:
        _, unpublished = publish_table(catalog.store, opened, lambda: glue(lake.region, endpoint_url), dry_run=False)
    value = {"table_id": table, "dropped": delete, **_figures(dropped), "unpublished": unpublished}
    answer(output, value, [*_lines(dropped, of_partitions=bool(partition), delete=delete), *unpublished])


def _figures(drop: Drop) -> dict[str, object]:
    return {
        "partitions": [
            {
                "partition": dict(each.partition),
                "rows": each.rows,
                "pending_rows": each.pending_rows,
                "files": each.files,
                "bytes": each.size_bytes,
            }
            for each in drop.partitions
        ],
        "rows": drop.rows,
        "pending_rows": drop.pending_rows,
        "files": drop.files,
        "bytes": drop.size_bytes,
        "goes_at_ms": drop.goes_at_ms,
    }


def _lines(drop: Drop, *, of_partitions: bool, delete: bool) -> Iterator[str]:
    shown = drop.partitions if of_partitions else ()
    for each in shown[:_PARTITIONS_SHOWN_MAX]:
        yield f"{render_partition(each.partition)}: {counted(each.rows, 'row')}, {counted(each.size_bytes, 'byte')}"
    if len(shown) > _PARTITIONS_SHOWN_MAX:
        yield f"... and {len(shown) - _PARTITIONS_SHOWN_MAX:,} more: --output json names them all"
    contents = f"{counted(len(drop.partitions), 'partition')}, {counted(drop.rows, 'row')}"
    pending = f" and {counted(drop.pending_rows, 'row')} of deltas" if drop.pending_rows else ""
    files = f"{counted(drop.files, 'file')}, {counted(drop.size_bytes, 'byte')}"
    what = f"{contents}{pending} of {drop.table_id}" if of_partitions else f"{drop.table_id} ({contents}{pending})"
    if of_partitions and not drop.partitions:
        yield f"Nothing to drop: these partitions of {drop.table_id} are dropped already."
    elif delete:
        yield f"Dropped {what}. From {time_text(drop.goes_at_ms)} UTC on, lithify gc --delete deletes {files}."
    else:
        yield f"Nothing was dropped. To drop {what}, with {files}, add --delete."


def _purge_line(purge: Purge, *, delete: bool) -> str:
    objects = f"{counted(purge.objects, 'object')}, {counted(purge.size_bytes, 'byte')}"
    if delete:
        return f"Purged {purge.table_id}: deleted {objects}. Its id can be used again."
    return f"Nothing was purged. To delete {objects} of {purge.table_id} for ever, add --delete."
