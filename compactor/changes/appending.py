"""Appends the changes of a feed to a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import pyarrow as pa

from compactor.catalog.delta_files import DeltaSource
from compactor.catalog.feed import Feed, parse_feed
from compactor.catalog.partition_split import Partitioning
from compactor.catalog.table_appends import Delta
from compactor.changes.latest import latest_changes
from compactor.changes.order import with_ordered_columns
from compactor.changes.sources import ChangeReader, FeedSource, open_feed
from compactor.model.counts import SortKey
from compactor.model.errors import Invalid
from compactor.model.names import PARTITION_STREAM_POSITION, Operation, PartitionValues
from compactor.storage.location import StoreLocation

OF_UPSERTS, OF_DELETES = "upserts", "deletes"
"""Ends of the ids of the two deltas that a batch may be in a partition."""

Keys = tuple[Sequence[str] | None, Sequence[SortKey] | None]


class ChangedTable(Protocol):
    """The table that a feed changes."""

    @property
    def table_id(self) -> str: ...
    @property
    def partitioning(self) -> Partitioning: ...
    @property
    def schema(self) -> pa.Schema | None: ...

    def append_many(
        self, deltas: Sequence[tuple[PartitionValues, DeltaSource, str]], delta_ids: Sequence[str] | None = ...
    ) -> list[Delta]: ...


def feed_of(
    said: Feed | None,
    given: object,
    order: Sequence[str] | None = None,
    columns: Mapping[str, str] | None = None,
) -> Feed:
    """The feed of a call, or the table's property, with the order and the columns of the call. Raises `Invalid` without
    either."""
    feed = said if given is None else given if isinstance(given, Feed) else parse_feed(given)
    if feed is None:
        raise Invalid(
            'it is not known how the changes are written: give a format, such as "dms", or set the property changes'
        )
    more = {"order": order, "columns": columns}
    named = {name: value for name, value in more.items() if value is not None}
    return parse_feed({**feed.model_dump(exclude_defaults=True), **named}) if named else feed


def append_changes(
    table: ChangedTable, location: StoreLocation, keys: Keys, source: DeltaSource, feed: Feed, batch_id: str
) -> list[Delta]:
    """See `Table.append_changes`. `keys`: the table's primary keys and sort keys."""
    return table.append_many(*deltas_of_changes(table, location, keys, source, feed, batch_id))


def deltas_of_changes(
    table: ChangedTable, location: StoreLocation, keys: Keys, source: DeltaSource, feed: Feed, batch_id: str
) -> tuple[list[tuple[dict[str, str], pa.Table, Operation]], list[str]]:
    """The deltas of a batch, and their ids."""
    reader = reader_of(table, keys, feed)
    return deltas_of_sources(reader, open_feed(location, source, feed, reader.feed_schema), batch_id)


def reader_of(table: ChangedTable, keys: Keys, feed: Feed) -> ChangeReader:
    """What the table takes from a feed. Raises `Invalid` if it cannot be told which row a change is of, or if feed and
    table are ordered differently."""
    primary_keys = keys[0]
    if not primary_keys:
        raise Invalid(
            f"table {table.table_id} has no primary_keys, so a change cannot say which row it is of: set them"
        )
    sort_keys = [each for each in keys[1] or () if each.column != PARTITION_STREAM_POSITION]
    own = [each.column for each in sort_keys]
    if feed.order and own and own != [*feed.order]:
        raise Invalid(
            f"the feed is ordered by {', '.join(feed.order)}, and table {table.table_id} by {', '.join(own)}, its sort "
            "keys: leave the order out"
        )
    return ChangeReader(
        feed,
        table.schema,
        table.partitioning,
        primary_keys,
        sort_keys or [SortKey(column=name) for name in feed.order],
    )


def deltas_of_sources(
    reader: ChangeReader, sources: Sequence[FeedSource], batch_id: str
) -> tuple[list[tuple[dict[str, str], pa.Table, Operation]], list[str]]:
    """See `deltas_of_changes`."""
    changes = [
        with_ordered_columns(each, reader.sort_columns, reader.schema)
        for each in map(reader.changes, sources)
        if each.rows.num_rows
    ]
    if not changes:
        return [], []
    latest = latest_changes(changes, reader.partitioning, reader.primary_keys, reader.sort_keys)
    foreign = [] if reader.schema is None else [name for name in reader.feed.order if name not in reader.schema.names]
    deltas = [(partition, _without(rows, foreign), operation) for partition, rows, operation in latest]
    ends = [OF_DELETES if operation is Operation.DELETE else OF_UPSERTS for _, _, operation in latest]
    return deltas, [f"{batch_id}-{end}" for end in ends]


def _without(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """Without the feed's order, which a table with a declared schema need not hold."""
    return rows.drop_columns([name for name in names if name in rows.column_names])
