"""`lithify compact`: one table on this machine, without a queue."""

from __future__ import annotations

from typing import Annotated

import typer

from compactor import DeltaCatalog, compact
from compactor.api import DEFAULT_SORT_KEYS
from compactor.errors import Invalid
from compactor.names import ContentType, SortOrder, render_partition
from compactor.spec import ROWS_PER_COMPACTED_FILE, ROWS_PER_PRIMARY_KEY_INDEX_FILE, JobRunResult
from dispatcher.cli.options import (
    LakeOption,
    Output,
    OutputOption,
    PartitionOption,
    RegionOption,
    S3EndpointOption,
    TableArgument,
)
from dispatcher.cli.output import answer_json, console, parse_partition, rows_table


def compact_table(
    table: TableArgument,
    lake: LakeOption,
    primary_key: Annotated[list[str], typer.Option("--primary-key", "-k", help="A key column; once for each.")],
    sort_key: Annotated[
        list[str] | None,
        typer.Option("--sort-key", help="column or column:descending; once for each.", metavar="COLUMN[:ORDER]"),
    ] = None,
    destination: Annotated[str | None, typer.Option(help="Where compacted rows go; left out: the same table.")] = None,
    partition: PartitionOption = None,
    hash_bucket_count: Annotated[int | None, typer.Option(min=1)] = None,
    rows_per_compacted_file: Annotated[int, typer.Option(min=1)] = ROWS_PER_COMPACTED_FILE,
    rows_per_primary_key_index_file: Annotated[int, typer.Option(min=1)] = ROWS_PER_PRIMARY_KEY_INDEX_FILE,
    max_rows_per_round: Annotated[int | None, typer.Option(min=1)] = None,
    max_dead_row_share: Annotated[
        float, typer.Option(help="Files with at most this share of dead rows are not rewritten.")
    ] = 0.0,
    content_type: Annotated[ContentType, typer.Option(help="Of compacted files.")] = ContentType.PARQUET,
    s3_endpoint_url: S3EndpointOption = None,
    region: RegionOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Compact a table now, in this process, on this machine's cores."""
    result = compact(
        table,
        set(primary_key),
        sort_keys=[parse_sort_key(text) for text in sort_key] if sort_key else DEFAULT_SORT_KEYS,
        delta_catalog_client=DeltaCatalog.open(lake, endpoint_url=s3_endpoint_url, region=region),
        destination_compacted_table_id=destination,
        rows_per_primary_key_index_file=rows_per_primary_key_index_file,
        rows_per_compacted_file=rows_per_compacted_file,
        hash_bucket_count=hash_bucket_count,
        compacted_file_content_type=content_type.value,
        partitions=[parse_partition(partition)] if partition else None,
        max_rows_per_round=max_rows_per_round,
        max_dead_row_share=max_dead_row_share,
    )
    if output is Output.JSON:
        answer_json(result.model_dump(mode="json", exclude={"sessions": {"__all__": {"completions"}}}))
    else:
        _show(result)


def parse_sort_key(text: str) -> tuple[str, str]:
    """`column`, `column:ascending` or `column:descending`; a column may have colons itself."""
    column, separator, order = text.rpartition(":")
    if not separator:
        return text, SortOrder.ASCENDING.value
    if order not in list(SortOrder):
        raise Invalid(f"--sort-key {text!r}: the order is {order!r}; write :ascending or :descending")
    return column, order


def _show(result: JobRunResult) -> None:
    out = console()
    if not any(session.rounds for session in result.sessions):
        out.print("Nothing to do: no delta above the watermark.")
        return
    columns = ("partition", "rounds", "rows in", "rows out", "deduplicated", "deleted", "seconds", "expected s")
    rows = (
        (
            render_partition(session.partition),
            session.rounds,
            session.rows_in,
            session.rows_out,
            session.rows_deduplicated,
            session.rows_deleted,
            session.seconds,
            session.expected_sla,
        )
        for session in result.sessions
    )
    out.print(rows_table(columns, rows))
