"""`lithify table list`, `schema`, `files`; `new-version`, `release`, `deprecate`: tables, and their stream versions."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from compactor.lake import DeltaCatalog, Table
from compactor.model.clock import Clock
from compactor.model.errors import Invalid, LithifyError
from compactor.model.names import LifecycleState, PartitionValues, counted, render_partition
from compactor.planning.table_figures import read_figures
from dispatcher.cli.options import Output, OutputOption, PartitionOption, TableArgument
from dispatcher.cli.output import answer, answer_records, exit_if_failed, parse_partition, write_lines
from dispatcher.cli.table_places import LakePlace, existing_stream, named_partition, partitions_of, tables_of
from dispatcher.clients import CommandDependencies
from dispatcher.layout import PARTITION, Column, age_text, count_text, counts
from dispatcher.operations.table_lag import TableLag, lag_of

if TYPE_CHECKING:
    from compactor.reading.pieces import ScanFile

TABLE_COLUMNS = (
    Column("table_id", "table"),
    *counts("partitions", "rows", "bytes", "pending_rows"),
    Column("pending_seconds", "pending for", age_text),
)
_GARBAGE_COLUMNS = (Column("garbage_files", show=count_text), Column("garbage_bytes", show=count_text))
_SCHEMA_COLUMNS = (Column("column"), Column("type"), Column("nullable"), Column("declared"))
_FILE_COLUMNS = (
    PARTITION,
    Column("path", "file"),
    *counts("rows", "dead_rows", "bytes"),
)


class FilesOutput(StrEnum):
    """`paths`: a path a line, for programs that read a list of files."""

    TEXT = "text"
    JSON = "json"
    JSONL = "jsonl"
    PATHS = "paths"


def list_tables(
    dependencies: CommandDependencies,
    lake: LakePlace,
    garbage: Annotated[
        bool,
        typer.Option(
            "--garbage", help="Add what lithify gc --delete could free now. Lists every file of the lake, as gc does."
        ),
    ] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show all tables of a lake with their sizes: live rows, bytes of compacted files, rows not compacted yet, and for
    how long the oldest of them have been waiting. Exit code 1 if some cannot be read: they are named."""
    catalog = lake.open()
    clock = dependencies.clock
    tables, no_tables = tables_of(catalog)
    listed: list[dict[str, object]] = []
    failed: dict[str, str] = {}
    for table in tables:
        try:
            record = table_record(lag_of(table, read_figures(table), clock))
            listed.append({**record, **(_garbage_figures(catalog, table, clock) if garbage else {})})
        except LithifyError as error:
            failed[table.table_id] = str(error)
    columns = (*TABLE_COLUMNS, *(_GARBAGE_COLUMNS if garbage else ()))
    answer_records(
        output,
        {"tables": listed, "no_tables": no_tables, "failed": failed},
        "tables",
        columns,
        none="There is no table here yet." if not failed else "There is no table here that can be read.",
        notes=no_tables,
    )
    exit_if_failed(failed)


def _garbage_figures(catalog: DeltaCatalog, table: Table, clock: Clock) -> dict[str, int]:
    from compactor.maintenance.garbage import find_garbage  # of all columns only these need it

    grace_seconds, kept_seconds = table.properties.grace_seconds, table.properties.retention_seconds
    files = size_bytes = 0
    for found in find_garbage(catalog.store, table.table_id, clock, grace_seconds, kept_seconds):
        files += len(found.garbage)
        size_bytes += found.garbage_bytes
    return {"garbage_files": files, "garbage_bytes": size_bytes}


def table_record(lag: TableLag) -> dict[str, object]:
    """A line of `table list` and `report tables`. `pending_seconds`: since the append of the oldest pending delta; 0:
    none."""
    return {
        "table_id": lag.table_id,
        "partitions": lag.partitions,
        "rows": lag.figures.rows,
        "bytes": lag.figures.file_bytes,
        "pending_rows": lag.figures.pending_rows,
        "pending_seconds": lag.lag_seconds,
    }


def schema(
    table: TableArgument,
    lake: LakePlace,
    partition: PartitionOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show a table's columns and types: what was declared, what is compacted, what deltas bring that are pending."""
    opened = lake.open().table(table)
    found = opened.known_schema([parse_partition(partition)] if partition else None)
    declared = opened.schema.names if opened.schema is not None else []
    columns = [
        {"column": field.name, "type": str(field.type), "nullable": field.nullable, "declared": field.name in declared}
        for field in found
    ]
    value = {"table_id": table, "columns": columns}
    answer_records(
        output, value, "columns", _SCHEMA_COLUMNS, none="Nothing was declared, and nothing was appended yet."
    )


def files(
    table: TableArgument,
    lake: LakePlace,
    partition: PartitionOption = None,
    output: Annotated[
        FilesOutput, typer.Option("--output", "-o", help="Format of the answer; paths: one file per line.")
    ] = FilesOutput.TEXT,
) -> None:
    """List the live compacted files, as they are now, for other readers: a folder holds replaced ones too.

    A file with dead rows comes with its deletion vector. --output paths has no room for one, and refuses.
    """
    from compactor.reading.scan import partitions_of_table

    catalog = lake.open()
    opened = catalog.table(table)
    if partition:
        wanted = partitions_of(opened, partition)
    else:
        wanted = partitions_of_table(catalog.store, opened, even_dropped=False)
    live = [scanned for each in wanted for scanned in opened.scan(each).scan_files]
    if output is FilesOutput.PATHS:
        _refuse_dead_rows(table, live)
        write_lines(_path(scanned.uri) for scanned in live)
        return
    records = [_file_figures(opened, scanned) for scanned in live]
    value = {"table_id": table, "files": records}
    answer_records(Output(output.value), value, "files", _FILE_COLUMNS, none="Nothing is compacted yet.")


def _refuse_dead_rows(table: str, live: list[ScanFile]) -> None:
    marked = [scanned for scanned in live if scanned.dead is not None]
    if marked:
        dead = counted(sum(scanned.dead.rows for scanned in marked if scanned.dead is not None), "dead row")
        raise Invalid(
            f"{counted(len(marked), 'file')} of {table} with {dead} would be read wrongly by others: "
            "compact with --max-dead-row-share 0 to write them anew, or take --output json, which has the vectors"
        )


def _file_figures(table: Table, scanned: ScanFile) -> dict[str, object]:
    vector = scanned.dead
    return {
        "partition": dict(scanned.partition),
        "path": _path(scanned.uri),
        "content_type": scanned.file.content_type.value,
        "rows": scanned.file.rows,
        "bytes": scanned.file.size_bytes,
        "dead_rows": 0 if vector is None else vector.rows,
        "deletion_vector": None if vector is None else _path(table.stream(scanned.partition).uri_of(vector.path)),
    }


def _path(uri: str) -> str:
    """A local file's path, which every program accepts; a URI otherwise."""
    return uri.removeprefix("file://")


VersionOption = Annotated[int, typer.Option("--stream-version", min=1, help="The number of the stream version.")]


def new_version(
    table: TableArgument,
    lake: LakePlace,
    partition: PartitionOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Create the next version of a partition stream. Fill it by append --stream-version, then release it."""
    opened, named = named_partition(lake.open(), table, partition)
    wanted = opened.stream(named).partition
    number = opened.create_stream_version(wanted)
    _answer(output, opened, wanted, number, "is unreleased: compactions do not read it until it is released")


def release(
    table: TableArgument,
    lake: LakePlace,
    stream_version: VersionOption,
    partition: PartitionOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Make a version of a partition stream the active one; the active one before it is deprecated."""
    opened, stream = existing_stream(lake.open(), table, partition)
    opened.release_stream_version(stream.partition, stream_version)
    _answer(output, opened, stream.partition, stream_version, "is active: writers and compactions take it from now on")


def deprecate(
    table: TableArgument,
    lake: LakePlace,
    stream_version: VersionOption,
    partition: PartitionOption = None,
    abandon: Annotated[
        bool,
        typer.Option(
            "--abandon",
            help="Deprecate the active version even if rows of it are not compacted yet: they never will be.",
        ),
    ] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Make a version of a partition stream take no more deltas, for ever."""
    opened, stream = existing_stream(lake.open(), table, partition)
    opened.deprecate_stream_version(stream.partition, stream_version, abandon_pending=abandon)
    _answer(output, opened, stream.partition, stream_version, "is deprecated: it takes no more deltas")


def _answer(output: Output, table: Table, partition: PartitionValues, number: int, effect: str) -> None:
    state: LifecycleState = table.stream(partition).load().state.sources[number].state
    value = {"table_id": table.table_id, "partition": dict(partition), "stream_version": number, "state": state.value}
    answer(output, value, [f"Stream version {number} of {table.table_id} {render_partition(partition)} {effect}."])
