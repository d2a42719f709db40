"""`lithify table lookup`, `lithify table verify` and `lithify rehash`: what the primary key index is good for."""

from __future__ import annotations

from typing import Annotated

import typer

from compactor.catalog.catalog import DeltaCatalog, PartitionStream
from compactor.clock import SystemClock
from compactor.errors import Corrupt, Invalid
from compactor.names import render_partition
from compactor.schemas import parse_schema
from compactor.verify import verify
from dispatcher.cli.options import (
    LakeOption,
    Output,
    OutputOption,
    PartitionOption,
    RegionOption,
    S3EndpointOption,
    TableArgument,
)
from dispatcher.cli.output import answer, answer_json, console, parse_partition, rows_table

KeyOption = Annotated[
    list[str], typer.Option("--key", "-k", metavar="COLUMN=VALUE", help="A key column's value; once for each.")
]


def lookup(
    table: TableArgument,
    key: KeyOption,
    lake: LakeOption,
    partition: PartitionOption = None,
    s3_endpoint_url: S3EndpointOption = None,
    region: RegionOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show the compacted row of one primary key, found by the index."""
    opened = DeltaCatalog.open(lake, endpoint_url=s3_endpoint_url, region=region).table(table)
    wanted = parse_partition(partition)
    row = opened.lookup(wanted, _parse_key(opened.stream(wanted), key))
    if output is Output.JSON:
        answer_json({"row": row})
    elif row is None:
        console().print("There is no such row.")
    else:
        console().print(rows_table(tuple(row), [list(row.values())]))


def verify_table(
    table: TableArgument,
    lake: LakeOption,
    partition: PartitionOption = None,
    s3_endpoint_url: S3EndpointOption = None,
    region: RegionOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Audit keys and pointers: every live row has exactly one pointer, and it is true. Exit code 1 if not."""
    reports = [verify(stream) for stream in _streams(lake, s3_endpoint_url, region, table, partition)]
    if output is Output.JSON:
        answer_json({"streams": [report.model_dump(mode="json") for report in reports]})
    else:
        out = console()
        columns = ("stream", "rows", "tombstones", "index runs", "problems")
        out.print(
            rows_table(columns, ((r.stream, r.rows, r.tombstones, r.index_runs, len(r.problems)) for r in reports))
        )
        for report in reports:
            for problem in report.problems:
                out.print(f"{report.stream}: {problem}", markup=False)
    if any(report.problems for report in reports):
        raise Corrupt("the index and the files disagree: restore the files, or compact into another destination table")


def rehash(
    table: TableArgument,
    lake: LakeOption,
    hash_bucket_count: Annotated[int, typer.Option(min=1, help="How many hash buckets the index shall have.")],
    partition: PartitionOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be moved, and move nothing.")] = False,
    s3_endpoint_url: S3EndpointOption = None,
    region: RegionOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Move a table's primary key index to another hash bucket count. No data file is read or written."""
    from compactor.job_run import rehash_here  # Spark is loaded only by the verbs that run it

    catalog = DeltaCatalog.open(lake, endpoint_url=s3_endpoint_url, region=region)
    moved = []
    for stream in _streams(lake, s3_endpoint_url, region, table, partition):
        compacted = stream.load().state.compacted
        if compacted is None or compacted.hash_bucket_count == hash_bucket_count:
            continue
        if not dry_run:
            rehash_here(catalog, stream, hash_bucket_count, SystemClock())
        moved.append(
            {
                "partition": render_partition(stream.partition),
                "from": compacted.hash_bucket_count,
                "to": hash_bucket_count,
                "index_bytes": sum(file.bytes_at_rest for file in compacted.index_files),
            }
        )
    verb = "would move" if dry_run else "moved"
    lines = [f"{each['partition']}: {verb} {each['from']} -> {each['to']} hash buckets" for each in moved]
    answer(output, {"dry_run": dry_run, "streams": moved}, lines or ["Nothing to do: every index has that count."])


def _streams(
    lake: str, s3_endpoint_url: str | None, region: str | None, table: str, partition: list[str] | None
) -> list[PartitionStream]:
    opened = DeltaCatalog.open(lake, endpoint_url=s3_endpoint_url, region=region).table(table)
    return [opened.stream(each) for each in ([parse_partition(partition)] if partition else opened.partitions())]


def _parse_key(stream: PartitionStream, pairs: list[str]) -> dict[str, object]:
    """Key values from text, by the types of the compacted columns."""
    import pyarrow as pa

    compacted = stream.load().state.compacted
    if compacted is None:
        raise Invalid(f"{stream} has no index yet: compact it first")
    schema = parse_schema(compacted.last_round.compacted_schema)
    key: dict[str, object] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or name not in compacted.primary_keys:
            raise Invalid(f"--key {pair!r}: write COLUMN=VALUE with a column of {', '.join(compacted.primary_keys)}")
        if name in key:
            raise Invalid(f"--key names {name!r} twice: a row has one value of each key column")
        arrow_type = schema.field(name).type
        if pa.types.is_dictionary(arrow_type):
            arrow_type = arrow_type.value_type
        try:
            key[name] = pa.scalar(text).cast(arrow_type).as_py()
        except pa.ArrowException as error:
            raise Invalid(f"--key {pair!r}: {text!r} is no {arrow_type}") from error
    return key
