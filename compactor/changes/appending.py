"""Appends the changes of a feed to a table. Durable in this order: refused changes that are quarantined, then the delta
files, then an entry for each partition stream."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, overload

import pyarrow as pa
import pyarrow.compute as pc

from compactor.catalog.delta_files import digest_source
from compactor.catalog.feed import Feed, parse_feed
from compactor.catalog.table_appends import Delta
from compactor.catalog.tables import Table
from compactor.changes.change_batch import ChangeBatch, ChangesRefused
from compactor.changes.global_keys import (
    deletes_elsewhere,
    sort_keys_with_place,
    with_places,
    without_dictionaries,
    without_places,
)
from compactor.changes.latest import deletes_without_partition, latest_changes, refuse_incomplete
from compactor.changes.order import with_ordered_columns
from compactor.changes.quarantine import Quarantine, RefusedChange, read_applicable
from compactor.changes.sources import ChangeReader, FeedSource
from compactor.model.counts import SortKey
from compactor.model.errors import Invalid
from compactor.model.names import PARTITION_STREAM_POSITION, ContentType, Operation
from compactor.storage.location import StoreLocation

OF_UPSERTS, OF_DELETES = "upserts", "deletes"
"""The endings of the ids of the two deltas that a batch may be in a partition."""

_WHAT_TO_DO = (
    "nothing was appended: fix these changes or leave them out, and append the file again; or name a quarantine, "
    "where they go with their reasons"
)


class ReadableTable(Protocol):
    """What is read of a table whose keys are global."""

    def partitions(self) -> list[dict[str, str]]: ...

    def scan(
        self, *, columns: Sequence[str] | None = ..., filter: pc.Expression | None = ..., view: str = ...
    ) -> ScannedRows: ...


class ScannedRows(Protocol):
    def to_table(self) -> pa.Table: ...


def feed_of(
    said: Feed | None,
    given: object,
    order: Sequence[str] | None = None,
    columns: Mapping[str, str] | None = None,
    keys_are_global: bool | None = None,
) -> Feed:
    """The feed of a call, or the table's property, with the order and the columns of the call. Raises `Invalid` without
    either."""
    feed = said if given is None else given if isinstance(given, Feed) else parse_feed(given)
    if feed is None:
        raise Invalid(
            'it is not known how the changes are written: give a format, such as "dms", or set the property changes'
        )
    more = {"order": order, "columns": columns, "keys_are_global": keys_are_global}
    named = {name: value for name, value in more.items() if value is not None}
    return parse_feed({**feed.model_dump(exclude_defaults=True), **named}) if named else feed


@dataclass(frozen=True)
class AppendedChanges(Sequence[Delta]):
    """The deltas that a batch of changes became; how many changes were quarantined, and in which file."""

    deltas: tuple[Delta, ...]
    quarantined_rows: int = 0
    quarantine_uri: str | None = None

    @overload
    def __getitem__(self, at: int) -> Delta: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Delta]: ...
    def __getitem__(self, at: int | slice) -> Delta | Sequence[Delta]:
        return self.deltas[at]

    def __len__(self) -> int:
        return len(self.deltas)


@dataclass(frozen=True)
class BatchOfChanges:
    """What is to be appended, and, where they are quarantined, the changes that cannot be."""

    batch_id: str
    deltas: Sequence[tuple[dict[str, str], pa.Table, Operation]] = ()
    delta_ids: Sequence[str] = ()
    refused: Sequence[RefusedChange] = ()
    without_partition: pa.Table | None = None
    """Deletes that do not say where their row is."""


def append_batch(table: Table, batch: BatchOfChanges, quarantine: Quarantine | None) -> AppendedChanges:
    """Appends a batch, of which changes were refused only if there is a quarantine for them."""
    uri = None
    if quarantine is not None and batch.refused:
        uri = quarantine.put(table.table_id, batch.batch_id, batch.refused)
    return AppendedChanges(tuple(table.append_many(batch.deltas, batch.delta_ids)), len(batch.refused), uri)


def reader_of(table: Table, feed: Feed) -> ChangeReader:
    """What the table takes from a feed. Raises `Invalid` if it cannot be told which row a change is of, or if feed and
    table are ordered differently."""
    primary_keys = table.properties.primary_keys
    if not primary_keys:
        raise Invalid(
            f"table {table.table_id} has no primary_keys, so a change cannot say which row it is of: set them"
        )
    sort_keys = [each for each in table.properties.sort_keys or () if each.column != PARTITION_STREAM_POSITION]
    own = [each.column for each in sort_keys]
    if feed.order and own and own != [*feed.order]:
        raise Invalid(
            f"the feed is ordered by {', '.join(feed.order)}, and table {table.table_id} by {', '.join(own)}, its sort "
            "keys: leave the order out"
        )
    left_out = {*primary_keys, *table.partitioning.columns, *own, *feed.order}.intersection(feed.columns_left_out)
    if left_out:
        raise Invalid(
            f"the feed is without {', '.join(sorted(left_out))}, by which table {table.table_id} finds, places or "
            "orders its rows: leave it in"
        )
    reason = feed.reason_against_default_partition(table.partitioning.default_partition)
    if reason is not None:
        raise Invalid(reason)
    if feed.keys_are_global and not own:
        raise Invalid(
            f"table {table.table_id} has no sort_keys, and keys are looked up in all partitions by the order of their "
            "changes: set them, or leave keys_are_global out"
        )
    return ChangeReader(
        feed,
        table.schema,
        table.partitioning,
        primary_keys,
        sort_keys or [SortKey(column=name) for name in feed.order],
    )


def batch_of_sources(
    reader: ChangeReader, sources: Sequence[FeedSource], batch_id: str, *, quarantines: bool
) -> BatchOfChanges:
    """Raises `Invalid` for changes that are refused, unless it quarantines them."""

    def read(source: FeedSource) -> ChangeBatch:
        changes = with_ordered_columns(reader.changes(source), reader.sort_columns, reader.schema)
        refuse_incomplete(
            changes,
            reader.partitioning,
            reader.primary_keys,
            reader.sort_columns,
            finds_keys=reader.finds_keys,
        )
        return changes

    changes: list[ChangeBatch] = []
    refused: list[RefusedChange] = []
    for source in sources:
        found, wrong = read_applicable(source, read) if quarantines else (_all_of(source, read), [])
        refused += wrong
        if found.rows.num_rows:
            changes.append(found)
    if not changes:
        return BatchOfChanges(batch_id, refused=refused)
    without_partition = None
    sort_keys = reader.sort_keys
    if reader.finds_keys:
        changes, sort_keys = with_places(changes), sort_keys_with_place(sort_keys)
        changes, without_partition = deletes_without_partition(changes, reader.partitioning)
        if not changes:
            return BatchOfChanges(batch_id, refused=refused, without_partition=without_partition)
    latest = latest_changes(changes, reader.partitioning, reader.primary_keys, sort_keys)
    foreign = set() if reader.schema is None else {*reader.feed.order}.difference(reader.schema.names)
    deltas = [(partition, _without(rows, foreign), operation) for partition, rows, operation in latest]
    ends = [OF_DELETES if operation is Operation.DELETE else OF_UPSERTS for _, _, operation in latest]
    return BatchOfChanges(batch_id, deltas, [f"{batch_id}-{end}" for end in ends], refused, without_partition)


def _all_of(source: FeedSource, read: Callable[[FeedSource], ChangeBatch]) -> ChangeBatch:
    try:
        return read(source)
    except ChangesRefused as error:
        raise ChangesRefused([*error.reasons, _WHAT_TO_DO], error.rows) from error


def batch_of_table(
    table: ReadableTable,
    location: StoreLocation,
    reader: ChangeReader,
    sources: Sequence[FeedSource],
    batch_id: str,
    *,
    quarantines: bool,
) -> BatchOfChanges:
    """See `batch_of_sources`; with deletes in the partitions that keys have left, if they are global. For these the
    table is read: its pending deltas and the index of every partition (`view="merged"`)."""
    batch = batch_of_sources(reader, sources, batch_id, quarantines=quarantines)
    if not reader.finds_keys:
        return batch
    lost = batch.without_partition
    key, columns = reader.primary_keys[0], [*reader.primary_keys, *reader.sort_columns, *reader.partitioning.columns]
    given = [*(rows.select([key]) for _, rows, _ in batch.deltas), *([] if lost is None else [lost.select([key])])]
    living = None
    if given and table.partitions():
        values = pa.concat_tables(map(without_dictionaries, given), promote_options="permissive").column(key)
        # The table may hold the key in another type, which may be wider: then rows of other keys are found, too.
        wanted = pc.field(key).cast(values.type, safe=False).isin(values.combine_chunks().unique())
        living = table.scan(columns=list(dict.fromkeys(columns)), filter=wanted, view="merged").to_table()
    found = deletes_elsewhere(batch.deltas, lost, living, reader.partitioning, reader.primary_keys, reader.sort_keys)
    deltas = [(partition, without_places(rows), operation) for partition, rows, operation in batch.deltas]
    deltas += [(partition, rows, Operation.DELETE) for partition, rows in found]
    # What is looked up again may be less, or other, than before: the same deletes have the same id.
    digests = (digest_source(location, rows, ContentType.PARQUET, copies=False) for _, rows in found)
    ids = [*batch.delta_ids, *(f"{batch.batch_id}-moved-{digest}" for digest in digests)]
    return replace(batch, deltas=deltas, delta_ids=ids)


def _without(rows: pa.Table, names: Collection[str]) -> pa.Table:
    """Without the feed's order, which a table with a declared schema need not hold."""
    return rows.drop_columns(sorted(set(names).intersection(rows.column_names)))
