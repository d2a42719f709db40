"""`lithify table restore`: makes the rows of partitions what they were at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated

import typer

from compactor.catalog.restoring import Restore
from compactor.model.names import counted
from dispatcher.cli.options import EndpointOption, Output, OutputOption, TableArgument
from dispatcher.cli.output import answer_records, parse_partition
from dispatcher.cli.publish import publish_table
from dispatcher.cli.table_places import LakePlace
from dispatcher.clients import dependencies_of
from dispatcher.layout import PARTITION, Column, count_text, time_text

_COLUMNS = (
    PARTITION,
    Column("outcome"),
    Column("as_of_entry", "entry"),
    Column("rows_now", show=count_text),
    Column("rows_then", show=count_text),
    Column("rows_undone", show=count_text),
    Column("rows_pending", show=count_text),
    Column("rows_left_out", show=count_text),
)


def restore(
    context: typer.Context,
    table: TableArgument,
    lake: LakePlace,
    as_of: Annotated[
        str, typer.Option(help="A time in ISO 8601, UTC if it has no zone; of one partition also an entry of its log.")
    ],
    partition: Annotated[
        list[str] | None,
        typer.Option(
            "--partition",
            "-p",
            metavar="KEY=VALUE",
            help="Restore the partitions with this value instead of the whole table; once for each key.",
        ),
    ] = None,
    write: Annotated[
        bool, typer.Option("--write", help="Restore them. Without this option, they are only described.")
    ] = False,
    endpoint_url: EndpointOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Make the rows of a table, or of some of its partitions, what they were at a time within its retention. No row is
    copied, and writers go on. Rows that were appended since are undone; another restore brings them back."""
    catalog = lake.open()
    opened = catalog.table(table)
    moment = int(as_of) if as_of.isdecimal() else as_of
    wanted = parse_partition(partition) if partition else None
    restored = opened.restore(moment, wanted, dry_run=not write)
    unpublished: list[str] = []
    if write and opened.properties.publish:
        clients, store = dependencies_of(context).clients, catalog.store
        _, unpublished = publish_table(store, opened, lambda: clients.glue(lake.region, endpoint_url), dry_run=False)
    records = [asdict(each) for each in restored.partitions]
    answer_records(
        output,
        {
            "table_id": table,
            "as_of_ms": restored.as_of_ms,
            "restored": write,
            "partitions": records,
            "unpublished": unpublished,
        },
        "partitions",
        _COLUMNS,
        none="",
        before=[f"{table} as of {time_text(restored.as_of_ms)} UTC"],
        after=[*_summary(restored, write=write), *unpublished],
    )


def _summary(restore: Restore, *, write: bool) -> Iterator[str]:
    changed = [each for each in restore.partitions if each.outcome == "restored"]
    before = sum(each.outcome == "restored before" for each in restore.partitions)
    pending = sum(each.rows_pending for each in changed)
    left_out = sum(each.rows_left_out for each in changed)
    if before:
        partitions = counted(before, "partition was", "partitions were")
        yield (
            f"{partitions} restored to this time before, and what was appended since stays: to undo that, give the "
            "time of that restore."
        )
    if pending:
        yield f"{counted(pending, 'row')} that were appended by then and not compacted are compacted next."
    if left_out:
        yield (
            f"{counted(left_out, 'row')} that were appended by then and not compacted are of a stream version of "
            "another table that is no longer active, and are not restored: append them again."
        )
    if not changed:
        yield "There is nothing to restore."
    elif write:
        yield f"Restored {counted(len(changed), 'partition')}."
    else:
        yield f"Nothing was restored. To restore {counted(len(changed), 'partition')}, add --write."
