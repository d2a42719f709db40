"""`lithify table new-version`, `release` and `deprecate`: the versions of a partition stream."""

from __future__ import annotations

from typing import Annotated

import typer

from compactor.lake import Table
from compactor.model.names import LifecycleState, PartitionValues, render_partition
from dispatcher.cli.options import Output, OutputOption, PartitionOption, TableArgument
from dispatcher.cli.output import answer
from dispatcher.cli.table_places import LakePlace, existing_stream, named_partition

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
