"""`lithify table lookup`, `table verify`, `rehash` and `privacy prove`: verbs that use the primary key index."""

from collections.abc import Sequence
from typing import Annotated

import typer

from compactor.catalog.keys import TableFolder
from compactor.catalog.lost_streams import streams_without_log
from compactor.catalog.stream import PartitionStream
from compactor.lake import DeltaCatalog
from compactor.log_context import be_verbose
from compactor.maintenance.privacy import PrivacyProof, prove_partitions
from compactor.maintenance.searched_key import KeyValues
from compactor.maintenance.verify import VerifyReport, verify
from compactor.model.clock import SystemClock
from compactor.model.errors import Corrupt, Invalid
from compactor.model.names import counted, render_partition
from compactor.publishing.publication import differences, lags, publishers_of
from compactor.schemas.unify import parse_schema
from compactor.storage.keys import decode_partition
from dispatcher.cli.expressions import read_document
from dispatcher.cli.options import KeyOption, Output, OutputOption, PartitionOption, TableArgument, VerboseOption
from dispatcher.cli.output import answer_json, answer_records, on_page
from dispatcher.cli.table_places import (
    LakePlace,
    existing_stream,
    parse_key,
    parse_keys,
    partitions_even_dropped,
    partitions_of,
)
from dispatcher.clients import CommandDependencies
from dispatcher.layout import FAILED, PARTITION, Column, count_text, counts, data_columns, problem_style, time_text

_AUDIT_COLUMNS = (
    Column("stream"),
    *counts("rows", "tombstones", "index_runs"),
    Column("problems", show=lambda found: str(len(found)) if isinstance(found, list) else "-", style=problem_style),
)
_PUBLISHED_COLUMNS = (
    Column("format"),
    Column("version", show=lambda value: "-" if value is None else str(value)),
    Column("files", show=count_text),
    Column("behind", "files behind", count_text),
    Column("problems", show=lambda found: str(len(found)) if isinstance(found, list) else "-", style=problem_style),
)
_REHASH_COLUMNS = (
    PARTITION,
    Column("from", "hash buckets before", count_text),
    Column("to", "hash buckets after", count_text),
    Column("index_bytes", show=count_text),
)


def lookup(
    table: TableArgument,
    key: Annotated[list[str], KeyOption],
    lake: LakePlace,
    partition: PartitionOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show the compacted row of one primary key, found by the index."""
    opened, stream = existing_stream(lake.open(), table, partition)
    row = opened.lookup(stream.partition, _parse_key(stream, key))
    if output is Output.JSON:
        answer_json({"row": row})
        return
    found = {"rows": [row] if row is not None else []}
    answer_records(output, found, "rows", data_columns(row or ()), none="There is no such row.")


def verify_table(
    table: TableArgument,
    lake: LakePlace,
    partition: PartitionOption = None,
    published: Annotated[
        bool, typer.Option("--published", help="Compare what other engines read with the logs instead.")
    ] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Audit keys and pointers: every live row has exactly one pointer, and it is true. Exit code 1 if not."""
    if published:
        _verify_published(table, lake.open(), partition, output)
        return
    opened = lake.open()
    reports = [(stream.partition, verify(stream)) for stream in _streams(opened, table, partition)]
    for name, problem in () if partition else streams_without_log(opened.store, TableFolder(table)):
        without = VerifyReport(stream=f"{table} {name}", rows=0, tombstones=0, index_runs=0, problems=(problem,))
        reports.append((decode_partition(name), without))
    answer_records(
        output,
        {"streams": [{"partition": partition, **report.model_dump(mode="json")} for partition, report in reports]},
        "streams",
        _AUDIT_COLUMNS,
        none="There is no partition stream here yet.",
        after=on_page((f"{report.stream}: {each}" for _, report in reports for each in report.problems), FAILED),
    )
    if any(report.problems for _, report in reports):
        raise Corrupt(
            "the audit found problems: restore the files and logs that it names; if an index is wrong, compact into "
            "another destination table"
        )


def _verify_published(table: str, catalog: DeltaCatalog, partition: list[str] | None, output: Output) -> None:
    if partition:
        raise Invalid("--published compares the whole table: leave --partition out")
    opened, clock = catalog.table(table), SystemClock()
    if not opened.properties.publish:
        raise Invalid(f"{table} is not published: `lithify table set {table} publish=delta` (or iceberg) begins it")
    streams = [opened.stream(each) for each in opened.partitions_even_dropped()]
    found: list[dict[str, object]] = []
    problems: list[str] = []
    for publisher in publishers_of(catalog.store, opened, clock):
        state, differing = publisher.state(), list(differences(publisher, streams))
        behind = sum(lag.behind for lag in lags(publisher, streams))
        figures = {"format": publisher.format, "version": state.version, "files": len(state.files), "behind": behind}
        found.append({**figures, "problems": differing})
        problems += differing
    answer_records(
        output,
        {"table_id": table, "published": found},
        "published",
        _PUBLISHED_COLUMNS,
        none="Nothing is published.",
        after=on_page(problems, FAILED),
    )
    if problems:
        raise Corrupt(
            f"what other engines read of {table} is not what its logs say: delete the published metadata, and publish "
            "the table again"
        )


def rehash(
    table: TableArgument,
    lake: LakePlace,
    hash_bucket_count: Annotated[
        int | None,
        typer.Option(min=1, help="The new number of hash buckets; default: as many as take half of a task's memory."),
    ] = None,
    partition: PartitionOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be moved, and move nothing.")] = False,
    output: OutputOption = Output.TEXT,
    verbose: VerboseOption = False,
) -> None:
    """Move a table's primary key index to another hash bucket count. No data file is read or written."""
    from compactor.local_job_run import plan_rehash_here, rehash_here  # only verbs that run Spark load it

    if verbose:
        be_verbose()
    catalog = lake.open()
    moved = []
    for stream in _streams(catalog, table, partition):
        compacted = stream.load().state.compacted
        if compacted is None or compacted.hash_bucket_count == hash_bucket_count:
            continue
        if dry_run:
            plan = plan_rehash_here(catalog, stream, hash_bucket_count, SystemClock())
            to = None if plan is None else plan.hash_bucket_count
        else:
            done = rehash_here(catalog, stream, hash_bucket_count, SystemClock())
            to = None if done is None or done.rehashed_from is None else done.hash_bucket_count
        if to is None:
            continue
        moved.append(
            {
                "partition": stream.partition,
                "from": compacted.hash_bucket_count,
                "to": to,
                "index_bytes": sum(file.bytes_at_rest for file in compacted.index_files),
            }
        )
    answer_records(
        output,
        {"dry_run": dry_run, "streams": moved},
        "streams",
        _REHASH_COLUMNS,
        none="Nothing to do: every index has that count.",
        before=["Nothing was moved. Without --dry-run this would be:"] if dry_run and moved else [],
    )


def _streams(lake: DeltaCatalog, table: str, partition: list[str] | None) -> list[PartitionStream]:
    opened = lake.table(table)
    return [opened.stream(each) for each in partitions_of(opened, partition)]


def _parse_key(stream: PartitionStream, pairs: list[str]) -> dict[str, object]:
    """Key values from text, by the types of the compacted columns."""
    compacted = stream.load().state.compacted
    if compacted is None:
        raise Invalid(f"{stream} has no index yet: compact it first")
    return parse_key(pairs, compacted.primary_keys, parse_schema(compacted.last_round.compacted_schema))


_COLUMNS = (
    Column("kind"),
    Column("key", "object"),
    Column("goes_at_ms", "goes at (UTC)", time_text),
    Column("why"),
    Column("how"),
)


def prove_key(
    dependencies: CommandDependencies,
    table: TableArgument,
    lake: LakePlace,
    key: Annotated[list[str] | None, KeyOption] = None,
    keys: Annotated[
        str | None,
        typer.Option(
            "--keys",
            metavar="FILE",
            help='Many keys: a file of JSON lines, {"COLUMN": VALUE, ...} for each key; - for standard input.',
        ),
    ] = None,
    partition: PartitionOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Name every object that may still hold the values of a key, and when it goes. Exit code 1 while there is one. Of
    many keys, say for each whether it is proved gone; every file is read once. Without a partition, all are searched,
    dropped ones too.

    The values of a key are those of its columns and of the table's private columns; of a table without private columns,
    those of all columns.
    """
    if (key is None) == (keys is None):
        raise Invalid("which key? Give --key COLUMN=VALUE for each of its columns, or --keys FILE for many keys")
    catalog, clock = lake.open(), dependencies.clock
    now_ms = clock.now_ms()
    wanted = partitions_even_dropped(catalog, table, partition)
    if keys is not None:
        text = read_document(keys)
        many = prove_partitions(catalog, table, wanted, lambda schema: parse_keys(text, schema.names, schema), clock)
        _answer_many(output, table, many, now_ms)
        return
    ((proved_key, proof),) = prove_partitions(
        catalog, table, wanted, lambda schema: [parse_key(key or (), schema.names, schema)], clock
    )
    where = render_partition(wanted[0]) if len(wanted) == 1 else f"any of {len(wanted):,} partitions"
    searched, left = counted(proof.searched_objects, "object"), len(proof.holders)
    answer_records(
        output,
        {"table_id": table, "key": proved_key, "proved_at_ms": now_ms, **proof.model_dump(mode="json")},
        "holders",
        _COLUMNS,
        none=f"None of {searched} holds a value of the key in {where} of {', '.join(proof.tables)}.",
        after=[f"{counted(left, 'object')} of {searched} may hold values of the key."] if left else [],
    )
    if proof.holders:
        raise typer.Exit(1)


_KEY_COLUMNS = (
    Column("key", show=lambda key: ", ".join(f"{name}={value}" for name, value in key.items())),  # type: ignore[attr-defined]
    Column("proved"),
    Column("objects", show=count_text),
    Column("goes_at_ms", "all gone at (UTC)", time_text),
)


def _answer_many(output: Output, table: str, proofs: Sequence[tuple[KeyValues, PrivacyProof]], now_ms: int) -> None:
    records = [
        {
            "key": key,
            "proved": not proof.holders,
            "objects": len(proof.holders),
            "goes_at_ms": _goes_at_ms(proof),
            "holders": [holder.model_dump(mode="json") for holder in proof.holders],
        }
        for key, proof in proofs
    ]
    held = sum(not record["proved"] for record in records)
    answer_records(
        output,
        {
            "table_id": table,
            "proved_at_ms": now_ms,
            "searched_objects": proofs[0][1].searched_objects,
            "keys": records,
        },
        "keys",
        _KEY_COLUMNS,
        none="",
        after=[f"{counted(len(records) - held, 'key')} of {len(records):,} proved gone."],
    )
    if held:
        raise typer.Exit(1)


def _goes_at_ms(proof: PrivacyProof) -> int | None:
    """When the last object goes; None: nothing is held, or one does not go by itself."""
    times = [holder.goes_at_ms for holder in proof.holders]
    known = [each for each in times if each is not None]
    return max(known) if known and len(known) == len(times) else None
