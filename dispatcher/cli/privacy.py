"""`lithify privacy`: what may still hold the values of a deleted key."""

from __future__ import annotations

from typing import Annotated

import typer

from compactor.maintenance.privacy import key_schema, prove
from compactor.model.names import counted, render_partition
from dispatcher.cli.options import (
    LakeOption,
    Output,
    OutputOption,
    PartitionOption,
    RegionOption,
    S3EndpointOption,
    TableArgument,
)
from dispatcher.cli.output import answer_records
from dispatcher.cli.table_places import named_partition, open_lake, parse_key, partitions_of
from dispatcher.clients import dependencies_of, show_help
from dispatcher.layout import Column, time_text

privacy_app = typer.Typer()


@privacy_app.callback(invoke_without_command=True)
def privacy(context: typer.Context) -> None:
    """What may still hold the values of a deleted key."""
    show_help(context)


_COLUMNS = (
    Column("kind"),
    Column("key", "object"),
    Column("goes_at_ms", "goes at (UTC)", time_text),
    Column("why"),
    Column("how"),
)


@privacy_app.command("prove")
def prove_key(
    context: typer.Context,
    table: TableArgument,
    lake: LakeOption,
    key: Annotated[list[str], typer.Option("--key", "-k", metavar="COLUMN=VALUE", help="Once for each key column.")],
    partition: PartitionOption = None,
    s3_endpoint_url: S3EndpointOption = None,
    region: RegionOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Name every object that may still hold the values of a key, and when it goes. Exit code 1 while there is one.

    The values of a key are those of its columns and of the table's private columns; of a table without private columns,
    those of all columns.
    """
    catalog = open_lake(lake, s3_endpoint_url, region)
    opened, named = named_partition(catalog, table, partition)
    wanted = opened.stream(named).partition
    partitions_of(opened, partition)
    schema = key_schema(catalog, table, wanted)
    values = parse_key(key, schema.names, schema)
    proof = prove(catalog, table, wanted, values, dependencies_of(context).clock)
    searched, left = counted(proof.searched_objects, "object"), len(proof.holders)
    answer_records(
        output,
        {"table_id": table, **proof.model_dump(mode="json")},
        "holders",
        _COLUMNS,
        none=f"None of {searched} holds a value of the key in {render_partition(wanted)} of {', '.join(proof.tables)}.",
        after=[f"{counted(left, 'object')} of {searched} may hold values of the key."] if left else [],
    )
    if proof.holders:
        raise typer.Exit(1)
