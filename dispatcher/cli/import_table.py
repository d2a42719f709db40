"""`lithify table import`: a table that exists already becomes a table of a lake.

What is described, and checked before anything is written, is an import into an empty lake in a temporary folder, which
names the same files: it measures and refuses as the real one does, but for rows that would be rewritten. They are
counted.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from pydantic import JsonValue
from pydantic_core import to_json
from rich.console import Console
from rich.progress import track

from compactor.catalog.tables import Table
from compactor.importing.source_table import SourceTable, is_metadata
from compactor.importing.table_import import ImportedPartition, TableImport, read_source
from compactor.lake import DeltaCatalog
from compactor.model.errors import REASONS_SHOWN_MAX, Invalid, refuse_if
from compactor.model.names import ContentType, counted
from compactor.planning.bundle_plan import BundleBounds
from compactor.planning.machine_share import workers_share
from compactor.planning.session_planner import pin_sessions
from compactor.planning.spec import SessionPlan
from compactor.planning.table_terms import complete_by_table
from compactor.planning.where_to_run import WorkerPool
from compactor.storage.location import StoreLocation, parse_location
from compactor.storage.opening import open_store
from dispatcher.cli.expressions import valid_instruction
from dispatcher.cli.options import ContentTypeOption, CopyOption, Output, OutputOption, TableArgument
from dispatcher.cli.output import answer_records
from dispatcher.cli.table_places import LakePlace, check_exists, partitioned_by
from dispatcher.cli.table_properties import PropertiesOption, parse_properties
from dispatcher.clients import CommandDependencies, machine_share, sessions_bytes
from dispatcher.intake.instruction import fields_given, job_run_spec
from dispatcher.layout import PARTITION, Column, count_text, counts, seconds_text, usd_text
from dispatcher.options.documents import read_limits
from dispatcher.options.settings import cluster_room
from launcher.clusters.local import session_resources
from launcher.plan import plan_as_dispatched
from launcher.sizing.cluster_choice import ClusterLimits

_COLUMNS = (
    PARTITION,
    *counts("files", "rewritten", "bytes"),
    Column("rows", show=lambda rows: "-" if rows is None else count_text(rows)),
)
_DUPLICATES = Column("duplicates", show=count_text)


def import_table(
    dependencies: CommandDependencies,
    table: TableArgument,
    source: Annotated[
        str,
        typer.Argument(
            help="The folder of a table of Delta Lake or Apache Iceberg, or one that is partitioned as Hive does it; "
            "or the metadata file of a table of Apache Iceberg.",
            metavar="SOURCE",
        ),
    ],
    lake: LakePlace,
    properties: PropertiesOption = None,
    null_partition: Annotated[
        str | None, typer.Option(help="The partition value to use instead of null. Default: null is refused.")
    ] = None,
    content_type: ContentTypeOption = ContentType.PARQUET,
    copy: CopyOption = False,
    version: Annotated[
        int | None,
        typer.Option(help="Version of a table of Delta Lake, or snapshot id. Default: the newest.", show_default=False),
    ] = None,
    count_duplicates: Annotated[
        bool,
        typer.Option("--count-duplicates", help="Count rows whose key a later row has. Reads the key columns."),
    ] = False,
    write: Annotated[
        bool, typer.Option("--write", help="Import it. Without this option, it is only checked and described.")
    ] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Import a table that exists already: of Delta Lake or Apache Iceberg, or a folder of data files, partitioned as
    Hive does it. The files stay where they are and become the first deltas of the table; those of which rows are
    deleted, or that name columns otherwise than the table, are rewritten. The source is only read. An import that was
    stopped goes on where it was."""
    place = parse_location(source, endpoint_url=lake.s3_endpoint_url, region=lake.region)
    if not is_metadata(place):
        check_exists(open_store(place), "folder")
    found = read_source(place, version, null_partition)
    catalog, given = lake.reach(), {**_division(found, null_partition), **parse_properties(properties or ())}
    importing = TableImport(found, content_type)
    with TemporaryDirectory(prefix="lithify-import-") as scratch:
        here = StoreLocation(f"file://{scratch}", lake.s3_endpoint_url, lake.region)
        trial = DeltaCatalog(open_store(here), dependencies.clock)
        like = _wanted(trial, table, found, {**_known_properties(catalog, table, found, given), "glue_database": None})
        checked = list(track_partitions("checking", importing.into(like, here, is_trial=True), found))
        _refuse(TableImport(found, content_type, copy).reasons_against_place(like, catalog.location), checked)
        keys = like.properties.primary_keys or ()
        duplicates = list(importing.duplicates(keys, here)) if count_duplicates and keys else None
        expected = _expected(dependencies, trial, like) if keys else None
    if write:
        wanted = _wanted(catalog, table, found, given)
        real = TableImport(found, content_type, copy).into(wanted, catalog.location)
        _refuse((), list(track_partitions("importing", real, found)))
    records = [_record(each, None if duplicates is None else duplicates[at]) for at, each in enumerate(checked)]
    answer_records(
        output,
        {
            "table_id": table,
            "source": found.uri,
            "version": found.version,
            "imported": write,
            "copied": copy,
            "partition_keys": found.partition_keys,
            "partition_by": found.partition_by,
            "passed_over": found.passed_over,
            "partitions": records,
            "rewritten_files": list(_rewritten(found)),
            "expected": expected,
        },
        "partitions",
        (*_COLUMNS, *((_DUPLICATES,) if duplicates is not None else ())),
        none="",
        before=[f"{found.description}, {partitioned_by(found.partition_keys)}"],
        after=[*_summary(found, records, expected, copy=copy), *_what_is_next(table, lake, found, write=write)],
    )


def track_partitions(
    verb: str, partitions: Iterator[ImportedPartition], source: SourceTable
) -> Iterator[ImportedPartition]:
    """The same, with a bar on a terminal."""
    console = Console(stderr=True)
    yield from track(
        partitions,
        f"{verb} {counted(len(source.partitions), 'partition')}",
        total=len(source.partitions),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def _division(source: SourceTable, null_partition: str | None) -> dict[str, object]:
    """The properties of a table whose partition keys are derived."""
    if not source.partition_by:
        return {}
    nulls = {} if null_partition is None else {"default_partition": null_partition}
    return {"partition_by": dict(source.partition_by), **nulls}


def _known_properties(
    catalog: DeltaCatalog, table_id: str, source: SourceTable, given: Mapping[str, object]
) -> dict[str, object]:
    """The table's properties if it exists, else the given ones. Raises `Invalid` if it cannot be the imported one."""
    if table_id not in catalog.tables():
        return dict(given)
    existing = catalog.table(table_id)
    if existing.partition_keys != source.partition_keys:
        raise Invalid(
            f"{table_id} has the partition keys {list(existing.partition_keys)}, and {source.uri} has "
            f"{list(source.partition_keys)}: import it as another table"
        )
    return {**existing.properties.model_dump(exclude_unset=True, mode="json"), **given}


def _wanted(catalog: DeltaCatalog, table_id: str, source: SourceTable, properties: Mapping[str, object]) -> Table:
    properties = {name: value for name, value in properties.items() if value is not None}
    return catalog.create_table(table_id, source.partition_keys, properties=properties)


def _refuse(reasons: Sequence[str], found: Sequence[ImportedPartition]) -> None:
    """Raises `Invalid` with every reason, up to a number."""
    refuse_if([*reasons, *(reason for each in found for reason in each.reasons)], REASONS_SHOWN_MAX)


def _record(found: ImportedPartition, duplicates: int | None) -> dict[str, object]:
    figures = {
        "partition": found.partition.values,
        "files": len(found.partition.files),
        "rewritten": sum(file.rewrite is not None for file in found.partition.files),
        "bytes": found.partition.size_bytes,
        "rows": found.rows,
        "warnings": found.warnings,
    }
    return figures if duplicates is None else {**figures, "duplicates": duplicates}


def _expected(dependencies: CommandDependencies, lake: DeltaCatalog, table: Table) -> dict[str, float]:
    """Seconds of the first compaction on this machine, and seconds and dollars on clusters of EMR."""
    share = workers_share(
        sessions_bytes(dependencies, None), dependencies.cores, None, WorkerPool.seconds, spark_is_here=True
    )
    machine = session_resources(*machine_share(dependencies, None, None, 1, share), Path(".lithify"))
    clusters = cluster_room(read_limits("{}"), ClusterLimits.spot_share, None, (), dependencies.clock)
    document: dict[str, JsonValue] = {"schema_version": "1", "source_table_id": table.table_id}
    instruction = valid_instruction(to_json(document).decode())
    spec = complete_by_table(job_run_spec(instruction, "dry-run", lake.location), fields_given(instruction), table)
    specs = [pinned.spec for pinned in pin_sessions(spec, lake, table)]
    pool = share.pool if share is not None else None
    here = plan_as_dispatched(specs, lake, machine, BundleBounds(), pool)
    there = plan_as_dispatched(specs, lake, clusters, BundleBounds())
    costs = [each.cluster.cost.total_usd for each in there.plans if isinstance(each, SessionPlan) and each.cluster]
    return {
        "machine_seconds": here.seconds(workers=pool.workers if pool is not None else 1),
        "emr_seconds": there.seconds(),
        "emr_usd": sum(costs),
    }


def _summary(
    source: SourceTable, records: Sequence[Mapping[str, object]], expected: Mapping[str, float] | None, *, copy: bool
) -> Iterator[str]:
    def total(name: str) -> int:
        return sum(int(str(each[name])) for each in records)

    place = "copied into the lake" if copy else "registered in place"
    rewritten = list(_rewritten(source))
    divided = f"{total('files') - len(rewritten):,} are {place}, {len(rewritten):,} rewritten"
    yield (
        f"{counted(total('rows'), 'row')} in {counted(total('files'), 'file')} of {total('bytes'):,} bytes, in "
        f"{counted(len(records), 'partition')}: {divided if rewritten else f'every file is {place}'}."
    )
    for each in rewritten[:REASONS_SHOWN_MAX]:
        yield f"{each['file']} is rewritten: it {each['why']}."
    if len(rewritten) > REASONS_SHOWN_MAX:
        yield f"--output json names {counted(len(rewritten) - REASONS_SHOWN_MAX, 'more file')} that are rewritten."
    if source.passed_over:
        yield f"{counted(source.passed_over, 'file')} passed over: hidden, or without a byte."
    if records and "duplicates" in records[0]:
        left_out = counted(total("duplicates"), "row is left out", "rows are left out")
        yield f"{left_out} by the first compaction: a later one has the same key."
    for warning in dict.fromkeys(str(each) for record in records for each in _warnings(record)):
        yield f"Warning: {warning}."
    if expected is None:
        yield "Without --property primary_keys=..., no key is checked and no time is expected."
        return
    yield (
        f"The first compaction is expected to take {seconds_text(expected['machine_seconds'])} s on this machine, or "
        f"{seconds_text(expected['emr_seconds'])} s on EMR for ${usd_text(expected['emr_usd'])}."
    )


def _rewritten(source: SourceTable) -> Iterator[dict[str, str]]:
    for partition in source.partitions:
        for file in partition.files:
            if file.rewrite is not None:
                yield {"file": file.uri, "why": "; it ".join(file.rewrite.why)}


def _warnings(record: Mapping[str, object]) -> Sequence[object]:
    warnings = record["warnings"]
    return warnings if isinstance(warnings, tuple) else ()


def _what_is_next(table: str, lake: LakePlace, source: SourceTable, *, write: bool) -> Iterator[str]:
    if not write:
        unchecked = sum(1 for _ in _rewritten(source))
        if unchecked:
            yield (
                f"Not checked: the values in {counted(unchecked, 'file')} to rewrite. They are checked when they are "
                "written, and a wrong one refuses its partition then."
            )
        yield "Nothing was imported. To import it, add --write."
        return
    yield f"Imported. To compact it: lithify compact {table} --lake {lake.lake}"
