"""`lithify table`: tables and their deltas."""

from __future__ import annotations

from typing import Annotated

import typer

from compactor.catalog.catalog import DeltaCatalog, PartitionStream
from compactor.catalog.scan import Scan
from compactor.names import ContentType, LifecycleState, Operation, render_partition
from dispatcher.cli.options import (
    LakeOption,
    Output,
    OutputOption,
    PartitionOption,
    RegionOption,
    S3EndpointOption,
    TableArgument,
)
from dispatcher.cli.output import answer, answer_json, console, parse_partition, rows_table, time_text

table_app = typer.Typer(no_args_is_help=True, help="Tables and their deltas.")


@table_app.command()
def create(
    table: TableArgument,
    lake: LakeOption,
    partition_key: Annotated[list[str] | None, typer.Option(help="In order, once for each; none: one stream.")] = None,
    s3_endpoint_url: S3EndpointOption = None,
    region: RegionOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Create a table. Creating it again with the same partition keys changes nothing."""
    created = _open(lake, s3_endpoint_url, region).create_table(table, partition_key or ())
    keys = list(created.partition_keys)
    answer(
        output,
        {"table_id": created.table_id, "partition_keys": keys},
        [f"{created.table_id} is there, partitioned by {', '.join(keys) or 'nothing'}."],
    )


@table_app.command()
def append(
    table: TableArgument,
    files: Annotated[list[str], typer.Argument(help="URIs or local paths; they are registered where they lie.")],
    lake: LakeOption,
    partition: PartitionOption = None,
    operation: Annotated[Operation, typer.Option()] = Operation.UPSERT,
    delta_id: Annotated[str | None, typer.Option(help="The same id again is a no-op with the same answer.")] = None,
    position: Annotated[int | None, typer.Option(help="Stream position; left out: the clock's.")] = None,
    content_type: Annotated[ContentType, typer.Option(help="Of files whose name does not tell.")] = ContentType.PARQUET,
    s3_endpoint_url: S3EndpointOption = None,
    region: RegionOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Append one delta to a partition stream."""
    wanted = parse_partition(partition)
    delta = (
        _open(lake, s3_endpoint_url, region)
        .table(table)
        .append(wanted, files, operation=operation, position=position, delta_id=delta_id, content_type=content_type)
    )
    answer(
        output,
        {
            "delta_id": delta.delta_id,
            "position": delta.position,
            "operation": delta.operation,
            "files": len(delta.files),
            "rows": delta.rows,
        },
        [f"Delta {delta.delta_id} at {delta.position}: {delta.operation} of {delta.rows:,} rows."],
    )


@table_app.command()
def show(
    lake: LakeOption,
    table: Annotated[str | None, typer.Argument(metavar="TABLE", help="Left out: all of them.")] = None,
    s3_endpoint_url: S3EndpointOption = None,
    region: RegionOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show a lake's tables, or one table's partition streams."""
    catalog = _open(lake, s3_endpoint_url, region)
    if table is None:
        ids = catalog.tables()
        answer(output, {"tables": ids}, ids or ["There is no table here yet."])
        return
    shown = catalog.table(table)
    streams = [_stream_figures(shown.stream(partition)) for partition in shown.partitions()]
    if output is Output.JSON:
        answer_json({"table_id": table, "partition_keys": shown.partition_keys, "streams": streams})
        return
    columns = ("partition", "deltas", "delta rows", "compacted to", "files", "rows", "bytes", "hash buckets")
    out = console()
    out.print(f"{table}, partitioned by {', '.join(shown.partition_keys) or 'nothing'}", markup=False)
    out.print(rows_table(columns, ([stream[column] for column in columns] for stream in streams)))


@table_app.command()
def log(
    table: TableArgument,
    lake: LakeOption,
    partition: PartitionOption = None,
    after: Annotated[int, typer.Option(min=0, help="Entries after this number.")] = 0,
    s3_endpoint_url: S3EndpointOption = None,
    region: RegionOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show the entries of a partition stream's log."""
    wanted = parse_partition(partition)
    stream = _open(lake, s3_endpoint_url, region).table(table).stream(wanted)
    entries = [
        {"entry_number": entry.number, "at_ms": entry.at_ms, "actions": [each.model_dump() for each in entry.actions]}
        for entry in stream.log.entries(after)
    ]
    lines = (
        f"{entry.number:>6}  {time_text(entry.at_ms)}  {', '.join(each.action for each in entry.actions)}"
        for entry in stream.log.entries(after)
    )
    answer(output, {"table_id": table, "partition": stream.partition, "entries": entries}, lines)


@table_app.command()
def scan(
    table: TableArgument,
    lake: LakeOption,
    partition: PartitionOption = None,
    column: Annotated[list[str] | None, typer.Option("--column", "-c", help="Once for each; left out: all.")] = None,
    as_of: Annotated[
        str | None, typer.Option(help="An entry number of the one partition's log, or a time in ISO 8601.")
    ] = None,
    view: Annotated[str, typer.Option(help="compacted, or merged: with deltas not compacted yet.")] = "compacted",
    limit: Annotated[int, typer.Option(min=0, help="Rows to show at most; 0: all.")] = 20,
    files: Annotated[bool, typer.Option("--files", help="Show the files that would be read instead.")] = False,
    s3_endpoint_url: S3EndpointOption = None,
    region: RegionOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show a table's rows."""
    wanted = parse_partition(partition) if partition else None
    moment = int(as_of) if as_of is not None and as_of.isdecimal() else as_of
    opened = _open(lake, s3_endpoint_url, region).table(table).scan(wanted, column, None, moment, view)
    if files:
        answer(output, {"files": opened.files()}, opened.files())
        return
    rows, more = _first_rows(opened, limit)
    if output is Output.JSON:
        answer_json({"columns": opened.schema.names, "rows": rows, "more": more})
        return
    out = console()
    out.print(rows_table(opened.schema.names, (list(row.values()) for row in rows)))
    out.print(f"{len(rows):,} rows{', and more: --limit 0 shows all' if more else ''}", markup=False)


def _first_rows(opened: Scan, limit: int) -> tuple[list[dict[str, object]], bool]:
    """The first rows, and whether there are more. Reads no more batches than it needs."""
    rows: list[dict[str, object]] = []
    for batch in opened.to_batches():
        rows.extend(batch.slice(0, limit + 1 - len(rows)).to_pylist() if limit else batch.to_pylist())
        if limit and len(rows) > limit:
            return rows[:limit], True
    return rows, False


def _open(lake: str, s3_endpoint_url: str | None, region: str | None) -> DeltaCatalog:
    return DeltaCatalog.open(lake, endpoint_url=s3_endpoint_url, region=region)


def _stream_figures(stream: PartitionStream) -> dict[str, object]:
    """The active stream version's deltas, and the compacted side."""
    snapshot = stream.load().state
    deltas = snapshot.active.deltas if snapshot.active is not None else ()
    compacted = snapshot.compacted
    return {
        "partition": render_partition(stream.partition),
        "stream_version": snapshot.active.stream_version if snapshot.active is not None else None,
        "state": LifecycleState.ACTIVE if snapshot.active is not None else None,
        "deltas": len(deltas),
        "delta rows": sum(file.rows for delta in deltas for file in delta.files),
        "compacted to": compacted.processed.position if compacted is not None else None,
        "files": len(compacted.files) if compacted is not None else 0,
        "rows": compacted.rows if compacted is not None else 0,
        "bytes": compacted.bytes_at_rest if compacted is not None else 0,
        "hash buckets": compacted.hash_bucket_count if compacted is not None else None,
    }
