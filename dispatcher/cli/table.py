"""`lithify table`: tables and their deltas."""

from typing import Annotated

import pyarrow as pa
import typer

from compactor.catalog.feed import FeedFormat, parse_feed
from compactor.catalog.table_appends import Delta
from compactor.changes.appending import AppendedChanges
from compactor.lake import DeltaCatalog, Table
from compactor.model.clock import SystemClock
from compactor.model.errors import Invalid
from compactor.model.names import ContentType, LifecycleState, Operation, counted, render_partition
from compactor.planning.table_figures import read_figures
from compactor.publishing.publication import columns_left_out, lags, publishers_of, reasons_against_publishing
from compactor.reading.scan import Scan, View
from compactor.schemas.cast import python_rows
from dispatcher.cli.expressions import parse_filters, parse_schema_option
from dispatcher.cli.options import ContentTypeOption, CopyOption, Output, OutputOption, PartitionOption, TableArgument
from dispatcher.cli.output import answer, answer_records
from dispatcher.cli.table_places import (
    LakePlace,
    existing_stream,
    named_partition,
    partitioned_by,
    partitions_of,
    tables_of,
)
from dispatcher.cli.table_properties import PropertiesOption, parse_properties
from dispatcher.layout import PARTITION, Column, age_text, count_text, counts, data_columns, time_text

_STREAM_COLUMNS = (
    PARTITION,
    *counts("deltas", "delta_rows"),
    Column("compacted_to"),
    Column("pending_rows", show=count_text),
    Column("pending_seconds", "oldest pending", age_text),
    *counts("files", "rows", "bytes"),
    Column("hash_bucket_count", "hash buckets", count_text),
)


def _in_flight_text(plan: object) -> str:
    """Who compacts the stream now, and since when."""
    if not isinstance(plan, dict):
        return ""
    return f"{plan['job_run_id']}, attempt {plan['attempt']}, since {time_text(plan['at_ms'])}"


def _action_text(action: dict[str, object]) -> str:
    """An action's name; of a delta also the id that `retract` takes, and how many small appends it consists of."""
    name, joined = str(action["action"]), action.get("joined")
    of = f", of {counted(len(joined), 'append')}" if isinstance(joined, list) and joined else ""
    return f"{name} {action['delta_id']} ({action['operation']}{of})" if name == "delta_added" else name


_IN_FLIGHT_COLUMN = Column("in_flight", "in flight", _in_flight_text)
_NOT_SHOWN = {"action", "compacted_schema"}
_PUBLISHED_COLUMNS = (
    Column("unpublished_files", "unpublished", count_text),
    Column("published_lag_seconds", "lag", age_text),
)
_OF_ARGUMENTS = ("news_hints", "partition_by", "schema_growth")
"""Properties that follow from the other arguments of `create`."""

_LIMIT_MAX = 2**63 - 2
"""Rows of `--limit`: one more, which tells whether there are more, is the most that Arrow slices."""

_ENTRY_COLUMNS = (
    Column("entry_number", "entry"),
    Column("at_ms", "at (UTC)", time_text),
    Column("actions", show=lambda actions: ", ".join(map(_action_text, actions))),  # type: ignore[call-overload]
)


def create(
    table: TableArgument,
    lake: LakePlace,
    partition_key: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY | KEY=TRANSFORM",
            help="A partition key, or one that is derived, such as order_day=day(ordered_at); once for each, in order. "
            "Default: none, one stream.",
            show_default=False,
        ),
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN:TYPE,... | FILE",
            help="Columns to declare, with Arrow's types (id:int64,at:timestamp[us]), or a data file that has them.",
        ),
    ] = None,
    properties: PropertiesOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Create a table. One that exists already with the same partition keys, schema and properties is left
    as it is; with others, it is refused."""
    catalog = lake.reach()
    declared = None if schema is None else parse_schema_option(schema, catalog.location)
    given = parse_properties(properties or ())
    written = [each.partition("=") for each in partition_key or ()]
    derived = {key: transform for key, _, transform in written if transform}
    keys = [key for key, _, _ in written]
    before = catalog.definition_even_dropped(table)
    stood = before is not None and before.dropped_at_ms is None
    created = catalog.create_table(table, keys, declared, properties=given, partition_by=derived or None)
    keys = list(created.partition_keys)
    columns = None if created.schema is None else {field.name: str(field.type) for field in created.schema}
    divided = f"({'partition keys: ' if keys else 'no partition keys'}{', '.join(keys)})"
    lines = [f"{table} exists already {divided}, as it was asked for." if stood else f"Created {table} {divided}."]
    others = {*created.properties.model_dump(mode="json", exclude_defaults=True)}.difference(given, _OF_ARGUMENTS)
    if stood and others:
        lines.append(f"It also has the properties {', '.join(sorted(others))}: `lithify table get {table}` shows them.")
    answer(
        output,
        {
            "table_id": created.table_id,
            "created": not stood,
            "partition_keys": keys,
            "schema": columns,
            **({"properties": created.properties.model_dump(mode="json")} if given else {}),
        },
        lines,
    )


def append(
    table: TableArgument,
    files: Annotated[
        list[str], typer.Argument(help="Data files, as URIs or local paths. They are registered in place.")
    ],
    lake: LakePlace,
    partition: PartitionOption = None,
    operation: Annotated[Operation, typer.Option()] = Operation.UPSERT,
    delta_id: Annotated[
        str | None,
        typer.Option(help="The delta's id. Appending the same id again changes nothing and gives the same answer."),
    ] = None,
    position: Annotated[int | None, typer.Option(help="The stream position. Default: the clock in ms.")] = None,
    content_type: ContentTypeOption = ContentType.PARQUET,
    stream_version: Annotated[
        int | None,
        typer.Option(min=1, help="The stream version. Default: the active one; an unreleased one must be named."),
    ] = None,
    copy: CopyOption = False,
    changes: Annotated[
        str | None,
        typer.Option(
            autocompletion=lambda: [*FeedFormat, "property"],
            help="The files are of a change feed: `dms`, `debezium`, `maxwell`, `canal`, `ops`, JSON such as "
            '{"format":"ops","column":"what"}, or `property`: as the table says. Rows find their partitions.',
        ),
    ] = None,
    quarantine: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER",
            help="With --changes: the folder for changes that cannot be applied; a file has them and their reasons. "
            "Default: the property `quarantine`; without either nothing is appended if there is such a change.",
            show_default=False,
        ),
    ] = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Append one delta to a partition stream; with --changes, a change feed's rows to their partitions."""
    if changes is not None:
        given = {"--partition": partition, "--position": position, "--stream-version": stream_version}
        unused = [name for name, value in given.items() if value]
        if unused or operation is not Operation.UPSERT:
            raise Invalid(f"{', '.join(unused) or '--operation'}: leave it out, each change says that itself")
        feed = None if changes == "property" else parse_feed(changes)
        added = lake.open().table(table).append_changes(files, feed, delta_id=delta_id, quarantine=quarantine)
        _show_changes(table, added, output)
        return
    if quarantine is not None:
        raise Invalid("--quarantine is for the changes of a feed: give --changes, too, or leave it out")
    opened, wanted = named_partition(lake.open(), table, partition)
    delta = opened.append(
        wanted,
        files,
        operation=operation,
        position=position,
        delta_id=delta_id,
        content_type=content_type,
        stream_version=stream_version,
        copy=copy,
    )
    answer(
        output,
        {**_delta_figures(delta), "files": len(delta.files)},
        [
            f"Delta {delta.delta_id} at {delta.position}: {delta.operation} of {counted(delta.rows, 'row')}.",
            *(f"Warning: {each}." for each in delta.warnings),
        ],
    )


def _show_changes(table: str, added: AppendedChanges, output: Output) -> None:
    figures = [{"partition": dict(delta.partition), **_delta_figures(delta)} for delta in added]
    lines = [f"{render_partition(each.partition)}: {each.operation} of {counted(each.rows, 'row')}." for each in added]
    lines += [f"Warning: {each}." for each in dict.fromkeys(text for delta in added for text in delta.warnings)]
    if added.quarantined_rows:
        lines.append(f"{counted(added.quarantined_rows, 'change')} quarantined in {added.quarantine_uri}.")
    quarantined = {"quarantined_rows": added.quarantined_rows, "quarantine_uri": added.quarantine_uri}
    answer(output, {"table_id": table, "deltas": figures, **quarantined}, lines or ["There is no change in it."])


def _delta_figures(delta: Delta) -> dict[str, object]:
    return {name: getattr(delta, name) for name in ("delta_id", "position", "operation", "rows", "warnings")}


def retract(
    table: TableArgument,
    lake: LakePlace,
    delta: Annotated[str, typer.Option(help="The delta's id, which `append` prints and `log` shows.")],
    partition: PartitionOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Retract a delta that no compaction has read. Its id cannot be used again."""
    opened, stream = existing_stream(lake.open(), table, partition)
    opened.retract(stream.partition, delta)
    value = {"table_id": table, "partition": stream.partition, "delta_id": delta, "retracted": True}
    answer(output, value, [f"Delta {delta} is taken back: no compaction will take it in."])


def show(
    lake: LakePlace,
    table: Annotated[str | None, typer.Argument(metavar="TABLE", help="One table. Default: all of them.")] = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show a lake's tables, or one table's partition streams."""
    catalog = lake.open()
    if table is None:
        tables, no_tables = tables_of(catalog)
        ids = [each.table_id for each in tables]
        answer(output, {"tables": ids}, [*(ids or ["There is no table here yet."]), *no_tables])
        return
    shown = catalog.table(table)
    streams = [_stream_figures(shown, partition) for partition in shown.partitions()]
    published = _published_figures(catalog, shown, streams)
    answer_records(
        output,
        {"table_id": table, "partition_keys": shown.partition_keys, "streams": streams, "published": published},
        "streams",
        (
            *_STREAM_COLUMNS,
            *((_IN_FLIGHT_COLUMN,) if any(each["in_flight"] for each in streams) else ()),
            *(_PUBLISHED_COLUMNS if published else ()),
        ),
        none="It has no partition stream yet.",
        before=[f"{table}, {partitioned_by(shown.partition_keys)}"],
        after=[line for each in published for line in _published_lines(each)],
    )


def log(
    table: TableArgument,
    lake: LakePlace,
    partition: PartitionOption = None,
    after: Annotated[int, typer.Option(min=0, help="Show only entries after this number.")] = 0,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show the entries of a partition stream's log."""
    _, stream = existing_stream(lake.open(), table, partition)
    entries = [
        {"entry_number": entry.number, "at_ms": entry.at_ms, "actions": [each.model_dump() for each in entry.actions]}
        for entry in stream.log.entries(after)
    ]
    answer_records(
        output,
        {"table_id": table, "partition": stream.partition, "entries": entries},
        "entries",
        _ENTRY_COLUMNS,
        none="The log has no such entry.",
    )


def scan(
    table: TableArgument,
    lake: LakePlace,
    partition: PartitionOption = None,
    column: Annotated[
        list[str] | None, typer.Option("--column", "-c", help="A column to show; once for each. Default: all.")
    ] = None,
    as_of: Annotated[
        str | None, typer.Option(help="A time in ISO 8601, or an entry number of the log of one partition.")
    ] = None,
    view: Annotated[View, typer.Option(help="merged: with the deltas that are not compacted yet.")] = "compacted",
    limit: Annotated[int, typer.Option(min=0, max=_LIMIT_MAX, help="Largest number of rows to show; 0: all.")] = 20,
    row_filter: Annotated[
        list[str] | None,
        typer.Option(
            "--filter",
            metavar="CONDITION",
            help="COLUMN = VALUE (or != < <= > >=), COLUMN is null, COLUMN is not null; rows satisfy all conditions.",
        ),
    ] = None,
    count: Annotated[bool, typer.Option("--count", help="Show only how many rows there are.")] = False,
    files: Annotated[bool, typer.Option("--files", help="Show the files that a scan reads, instead of rows.")] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show a table's rows."""
    shown = lake.open().table(table)
    wanted = partitions_of(shown, partition)[0] if partition else None
    moment = int(as_of) if as_of is not None and as_of.isdecimal() else as_of
    condition = parse_filters(row_filter, shown.scan(wanted, None, None, moment, view).schema) if row_filter else None
    opened = shown.scan(wanted, column, condition, moment, view)
    if files:
        answer(output, {"files": opened.files()}, opened.files())
        return
    if count:
        rows_found = opened.count_rows()
        answer(output, {"rows": rows_found}, [counted(rows_found, "row")])
        return
    rows, more = _first_rows(opened, limit)
    answer_records(
        output,
        {"columns": opened.schema.names, "rows": rows, "more": more},
        "rows",
        data_columns(opened.schema.names),
        none="",
        after=[] if more else [counted(len(rows), "row")],
        notes=[f"{counted(len(rows), 'row')}, and more: --limit 0 shows all"] if more else [],
    )


def _first_rows(opened: Scan, limit: int) -> tuple[list[dict[str, object]], bool]:
    """The first rows, and whether there are more. Reads no more batches than it needs."""
    rows: list[dict[str, object]] = []
    for batch in opened.to_batches():
        wanted = batch.slice(0, limit + 1 - len(rows)) if limit else batch
        rows.extend(python_rows(pa.Table.from_batches([wanted])))
        if limit and len(rows) > limit:
            return rows[:limit], True
    return rows, False


def _published_figures(
    catalog: DeltaCatalog, table: Table, streams: list[dict[str, object]]
) -> list[dict[str, object]]:
    """Per format: how far it is, and what cannot be published. Adds to each stream how far it is behind."""
    if not table.properties.publish:
        return []
    clock, opened = SystemClock(), [table.stream(partition) for partition in table.partitions()]
    try:
        publishers = publishers_of(catalog.store, table, clock)
    except Invalid as error:
        return [{"format": each, "version": None, "reasons": error.reasons} for each in table.properties.publish]
    shown: list[dict[str, object]] = []
    for publisher in publishers:
        try:
            lags_of_streams = lags(publisher, opened)
        except Invalid as error:
            shown.append({"format": publisher.format, "version": None, "reasons": error.reasons})
            continue
        for figures, lag in zip(streams, lags_of_streams, strict=True):
            behind = max(lag.behind, int(str(figures.get("unpublished_files", 0))))
            seconds = None if lag.since_ms is None else max(clock.now_ms() - lag.since_ms, 0) / 1_000
            figures["unpublished_files"], figures["published_lag_seconds"] = behind, seconds
        shown.append(
            {
                "format": publisher.format,
                "version": publisher.state().version,
                "left_out": columns_left_out(publisher, opened),
                "reasons": reasons_against_publishing(opened, table),
            }
        )
    return shown


def _published_lines(published: dict[str, object]) -> list[str]:
    version = published["version"]
    lines = [f"Published as {published['format']}: " + ("not yet" if version is None else f"version {version}")]
    left_out = published.get("left_out")
    if isinstance(left_out, tuple) and left_out:
        lines.append(f"{published['format']} has no type for {', '.join(left_out)}, and leaves them out.")
    reasons = published["reasons"]
    return lines + [f"Cannot be published: {reason}" for reason in (reasons if isinstance(reasons, tuple) else ())]


def _stream_figures(table: Table, partition: dict[str, str]) -> dict[str, object]:
    """The active stream version's deltas, the compacted side, and what of the one is not in the other."""
    stream = table.stream(partition)
    (figures,) = read_figures(table, [partition])
    snapshot, oldest_at_ms = stream.load().state, figures.oldest_pending_at_ms
    deltas = snapshot.active.deltas if snapshot.active is not None else ()
    compacted = snapshot.compacted
    return {
        "partition": stream.partition,
        "stream_version": snapshot.active.stream_version if snapshot.active is not None else None,
        "state": LifecycleState.ACTIVE if snapshot.active is not None else None,
        "deltas": len(deltas),
        "delta_rows": sum(file.rows for delta in deltas for file in delta.files),
        "compacted_to": compacted.processed.position if compacted is not None else None,
        "pending_deltas": figures.pending_deltas,
        "pending_rows": figures.pending_rows,
        "oldest_pending_at_ms": oldest_at_ms,
        "pending_seconds": None if oldest_at_ms is None else figures.lag_seconds(SystemClock().now_ms()),
        "files": figures.files,
        "rows": figures.rows,
        "bytes": figures.file_bytes,
        "hash_bucket_count": compacted.hash_bucket_count if compacted is not None else None,
        "in_flight": None if snapshot.in_flight is None else snapshot.in_flight.model_dump(exclude=_NOT_SHOWN),
    }
