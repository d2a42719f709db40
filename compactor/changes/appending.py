"""Appends the changes of a feed to a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa

from compactor.catalog.delta_files import THE_DELTA, DeltaSource, absolute_uri, open_source, read_rows
from compactor.catalog.feed import Feed, FeedFormat, parse_feed
from compactor.catalog.table_appends import Delta
from compactor.changes.change_batch import ChangeBatch
from compactor.changes.debezium import changes_of_debezium
from compactor.changes.latest import latest_changes
from compactor.changes.ops import changes_of_dms, changes_of_rows, read_dms_csv
from compactor.changes.order import with_ordered_columns
from compactor.model.counts import SortKey
from compactor.model.errors import Invalid
from compactor.model.names import PARTITION_STREAM_POSITION, Operation, PartitionValues
from compactor.storage.location import StoreLocation
from compactor.tabular import read_bytes

OF_UPSERTS, OF_DELETES = "upserts", "deletes"
"""Ends of the ids of the two deltas that a batch may be in a partition."""


class ChangedTable(Protocol):
    """The table that a feed changes."""

    @property
    def table_id(self) -> str: ...
    @property
    def partition_keys(self) -> tuple[str, ...]: ...
    @property
    def schema(self) -> pa.Schema | None: ...

    def append_many(
        self, deltas: Sequence[tuple[PartitionValues, DeltaSource, str]], delta_ids: Sequence[str] | None = ...
    ) -> list[Delta]: ...


def feed_of(said: Feed | None, given: object) -> Feed:
    """The feed of a call, or the table's property. Raises `Invalid` without either."""
    if isinstance(given, Feed):
        return given
    if given is not None:
        return parse_feed(given)
    if said is None:
        raise Invalid(
            'it is not known how the changes are written: give a feed, such as {"format": "dms"}, or set the property '
            "changes"
        )
    return said


def append_changes(
    table: ChangedTable,
    location: StoreLocation,
    keys: tuple[Sequence[str] | None, Sequence[SortKey] | None],
    source: DeltaSource,
    feed: Feed,
    batch_id: str,
) -> list[Delta]:
    """See `Table.append_changes`. `keys`: the table's primary keys and sort keys."""
    return table.append_many(*deltas_of_changes(table, location, keys, source, feed, batch_id))


def deltas_of_changes(
    table: ChangedTable,
    location: StoreLocation,
    keys: tuple[Sequence[str] | None, Sequence[SortKey] | None],
    source: DeltaSource,
    feed: Feed,
    batch_id: str,
) -> tuple[list[tuple[dict[str, str], pa.Table, Operation]], list[str]]:
    """The deltas of a batch, and their ids."""
    primary_keys = keys[0]
    if not primary_keys:
        raise Invalid(
            f"table {table.table_id} has no primary_keys, so a change cannot say which row it is of: set them"
        )
    sort_keys = [each for each in keys[1] or () if each.column != PARTITION_STREAM_POSITION]
    sort_columns = [key.column for key in sort_keys]
    changes = [
        with_ordered_columns(each, sort_columns, table.schema)
        for each in _read(table, location, source, feed, sort_columns)
        if each.rows.num_rows
    ]
    if not changes:
        return [], []
    latest = latest_changes(changes, table.partition_keys, primary_keys, sort_keys)
    ends = [OF_DELETES if operation is Operation.DELETE else OF_UPSERTS for _, _, operation in latest]
    return latest, [f"{batch_id}-{end}" for end in ends]


def _read(
    table: ChangedTable, location: StoreLocation, source: DeltaSource, feed: Feed, sort_columns: Sequence[str]
) -> list[ChangeBatch]:
    opened = open_source(source)
    if not isinstance(opened, list):
        rows = read_rows(location, opened)
        if feed.format is FeedFormat.DEBEZIUM:
            raise Invalid("a Debezium feed is JSON lines: give files")
        return [
            changes_of_dms(rows, THE_DELTA) if feed.format is FeedFormat.DMS else changes_of_rows(rows, feed, THE_DELTA)
        ]
    return [_read_file(table, location, absolute_uri(each), feed, sort_columns) for each in opened]


def _read_file(
    table: ChangedTable, location: StoreLocation, uri: str, feed: Feed, sort_columns: Sequence[str]
) -> ChangeBatch:
    match feed.format:
        case FeedFormat.OPS:
            return changes_of_rows(read_rows(location, [uri], table.schema), feed, uri)
        case FeedFormat.DMS:
            if uri.removesuffix(".gz").endswith(".csv"):
                return changes_of_dms(read_dms_csv(read_bytes(location, uri), table.schema, uri), uri)
            return changes_of_dms(read_rows(location, [uri], table.schema), uri)
        case FeedFormat.DEBEZIUM:
            return changes_of_debezium(read_bytes(location, uri), table.schema, sort_columns, uri)
