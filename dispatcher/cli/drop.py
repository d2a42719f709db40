"""`lithify table drop` and `restore`: drops tables and partitions, purges dropped tables, and restores partitions."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated

import typer

from compactor.catalog.definition import TableDefinition
from compactor.catalog.dropping import Drop, Purge
from compactor.catalog.restoring import Restore
from compactor.lake import DeltaCatalog
from compactor.maintenance.garbage import find_dropped_garbage
from compactor.model.clock import SystemClock
from compactor.model.errors import Invalid
from compactor.model.names import counted, render_partition
from dispatcher.cli.options import EndpointOption, Output, OutputOption, TableArgument
from dispatcher.cli.output import answer, answer_records, parse_partition
from dispatcher.cli.publish import publish_table
from dispatcher.cli.table_places import LakePlace
from dispatcher.clients import CommandDependencies
from dispatcher.layout import PARTITION, Column, counts, time_text

_PARTITIONS_SHOWN_MAX = 20

PartitionsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--partition",
        "-p",
        metavar="KEY=VALUE",
        help="The partitions with this value instead of the whole table; once for each key.",
    ),
]


def drop(
    dependencies: CommandDependencies,
    table: TableArgument,
    lake: LakePlace,
    partition: PartitionsOption = None,
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

    Files that were registered in place are never deleted.
    """
    catalog, glue = lake.open(), dependencies.clients.glue
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
    lines = _lines(dropped, of_partitions=bool(partition), delete=delete)
    if opened.definition.dropped_at_ms is not None:
        left = _left(catalog, opened.definition)
        value |= left
        files = f"{counted(left['files'], 'file')}, {counted(left['bytes'], 'byte')}"
        said = (
            f"{table} was dropped at {time_text(opened.definition.dropped_at_ms)} UTC, and {files} are left of it: "
            f"from {time_text(dropped.goes_at_ms)} UTC on, lithify gc --delete deletes them."
        )
        lines = iter((said,))
    answer(output, value, [*lines, *unpublished])


def _left(catalog: DeltaCatalog, table: TableDefinition) -> dict[str, int]:
    """The files of a table that was dropped before."""
    found = find_dropped_garbage(catalog.store, table, SystemClock(), grace_seconds=0.0)
    return {"files": found.kept_files + len(found.garbage), "bytes": found.kept_bytes + found.garbage_bytes}


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


_COLUMNS = (
    PARTITION,
    Column("outcome"),
    Column("as_of_entry", "entry"),
    *counts("rows_now", "rows_then", "rows_undone", "rows_pending", "rows_left_out"),
)


def restore(
    dependencies: CommandDependencies,
    table: TableArgument,
    lake: LakePlace,
    as_of: Annotated[
        str, typer.Option(help="A time in ISO 8601, UTC if it has no zone; of one partition also an entry of its log.")
    ],
    partition: PartitionsOption = None,
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
        clients, store = dependencies.clients, catalog.store
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
