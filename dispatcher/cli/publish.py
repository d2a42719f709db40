"""`lithify publish`: publishes the committed rounds of tables in formats that other engines read."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated

import typer

from compactor.catalog.stream import PartitionStream
from compactor.lake import Table
from compactor.model.clock import SystemClock
from compactor.model.errors import Invalid, LithifyError, Unavailable
from compactor.model.names import OpenFormat, render_partition
from compactor.publishing.glue import GlueService
from compactor.publishing.protocol import NothingToPublish, Outcome, TablePublisher
from compactor.publishing.publication import (
    PublishFailed,
    columns_left_out,
    lags,
    lead_glue,
    publish,
    publishers_of,
    with_gone_streams,
)
from compactor.storage.object_store import ObjectStore
from dispatcher.cli.options import EndpointOption, Output, OutputOption
from dispatcher.cli.output import answer_records
from dispatcher.cli.table_places import LakePlace
from dispatcher.clients import CommandDependencies
from dispatcher.layout import Column, counts

_COUNTED_FILES = ("files_added", "files_removed", "files_marked")
_COLUMNS = (
    Column("table_id", "table"),
    Column("format"),
    Column("version", show=lambda value: "-" if value is None else str(value)),
    *counts(*_COUNTED_FILES, "behind"),
    Column("state"),
)


def publish_tables(
    dependencies: CommandDependencies,
    lake: LakePlace,
    table: Annotated[
        str | None, typer.Argument(metavar="TABLE", help="One table. Default: every table with the property publish.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be published, and write nothing.")] = False,
    endpoint_url: EndpointOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Publish committed rounds in the table formats that other engines read. No row is copied. Exit code 1 if
    something could not be published."""
    catalog = lake.open()
    if table is not None and not catalog.table(table).properties.publish:
        raise Invalid(f"{table} is not published: `lithify table set {table} publish=delta` (or iceberg) begins it")
    shown, reasons = [], []
    glue = dependencies.clients.glue
    for table_id in [table] if table is not None else catalog.tables():
        try:
            each = catalog.table(table_id)
            if not each.properties.publish:
                continue
            found, said = publish_table(catalog.store, each, lambda: glue(lake.region, endpoint_url), dry_run=dry_run)
        except LithifyError as error:
            said = [f"{table_id}: {reason}" for reason in error.reasons]
            found = [_failed(table_id, None, said)]
        shown += found
        reasons += said
    answer_records(
        output,
        {"dry_run": dry_run, "tables": shown},
        "tables",
        _COLUMNS,
        none="No table here has the property publish.",
        before=_before(shown) if dry_run and shown else [],
        after=reasons,
    )
    if any(each["state"] in ("failed", "refused") for each in shown):
        raise Unavailable("not everything is published: see the reasons, and publish again")


def _before(shown: Sequence[Mapping[str, object]]) -> list[str]:
    if any(each["behind"] for each in shown):
        return ["Nothing was written. Without --dry-run this would be published:"]
    if any(each["state"] == "failed" for each in shown):
        return []
    return ["Everything is published: there would be nothing to write."]


def publish_table(
    store: ObjectStore, table: Table, open_glue: Callable[[], GlueService], *, dry_run: bool
) -> tuple[list[dict[str, object]], list[str]]:
    publishers = publishers_of(store, table, SystemClock())
    listed = [table.stream(partition) for partition in table.partitions()]
    streams = with_gone_streams(table, publishers, listed)
    lines = [
        f"{table.table_id}: {publisher.format} has no type for {', '.join(names)}, which it leaves out"
        for publisher in publishers
        if (names := columns_left_out(publisher, streams))
    ]
    if dry_run:
        return [_planned(table, publisher, streams) for publisher in publishers], lines
    outcomes = publish(publishers, streams)
    if table.properties.glue_database is not None:
        outcomes += lead_glue(open_glue(), store, table, outcomes)
    found = [_figures(table, each) for each in outcomes]
    return found, lines + [reason for outcome in outcomes for reason in _reasons(table, outcome)]


def _planned(table: Table, publisher: TablePublisher, streams: list[PartitionStream]) -> dict[str, object]:
    behind = sum(each.behind for each in lags(publisher, streams))
    return {
        "table_id": table.table_id,
        "format": publisher.format,
        "version": publisher.state().version,
        "files_added": None,
        "files_removed": None,
        "files_marked": None,
        "behind": behind,
        "state": "behind" if behind else "published",
        "reasons": [],
    }


def _figures(table: Table, outcome: Outcome | PublishFailed) -> dict[str, object]:
    reasons = _reasons(table, outcome)
    if isinstance(outcome, PublishFailed):
        return _failed(table.table_id, outcome.format, reasons)
    figures: dict[str, object] = {"table_id": table.table_id, "format": outcome.format, "behind": None}
    figures |= {"version": outcome.version, "state": "refused" if outcome.refused else "published", "reasons": reasons}
    if isinstance(outcome, NothingToPublish):
        return {**figures, **dict.fromkeys(_COUNTED_FILES, 0)}
    counts = {name: getattr(outcome, name) for name in _COUNTED_FILES}
    return {**figures, **counts, "entries": dict(outcome.entries), "rows": outcome.rows}


def _failed(table_id: str, format_: OpenFormat | None, reasons: list[str]) -> dict[str, object]:
    unknown = dict.fromkeys(("behind", "version", *_COUNTED_FILES))
    return {"table_id": table_id, "format": format_, **unknown, "state": "failed", "reasons": reasons}


def _reasons(table: Table, outcome: Outcome | PublishFailed) -> list[str]:
    if isinstance(outcome, PublishFailed):
        return [f"{table.table_id}: {reason}" for reason in outcome.reasons]
    return [
        f"{table.table_id} {render_partition(each.partition)}: {reason}"
        for each in outcome.refused
        for reason in each.reasons
    ]
