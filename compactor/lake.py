"""The classes for users: the tables of a lake, with appends (`catalog/tables.py`) and reads (`reading/`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from compactor.catalog import tables
from compactor.catalog.definition import TableDefinition
from compactor.catalog.delta_writer import DELTAS_MAX, SECONDS, SIZE_BYTES_MAX, DeltaWriter, WriterLimits
from compactor.catalog.dropping import (
    Drop,
    Purge,
    drop_partitions,
    drop_table,
    matching_partitions,
    purge_table,
)
from compactor.catalog.stream import PartitionStream
from compactor.model.clock import Clock, SystemClock
from compactor.model.errors import Invalid
from compactor.model.names import Operation, PartitionValues
from compactor.storage.concurrently import run_concurrently
from compactor.storage.location import parse_location
from compactor.storage.object_store import ObjectStore
from compactor.storage.opening import open_store

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

    from compactor.catalog.delta_files import DeltaSource
    from compactor.catalog.feed import Feed
    from compactor.catalog.partition_split import Int64s
    from compactor.catalog.restoring import Restore, StreamRestore
    from compactor.catalog.table_appends import Delta
    from compactor.changes.appending import AppendedChanges
    from compactor.changes.sources import FeedSource
    from compactor.reading.lookup import KeyValue
    from compactor.reading.scan import AsOf, Scan


class Table(tables.Table):
    """A table with scans of its rows, and lookups of single keys."""

    def lookup(self, partition: PartitionValues, key: Mapping[str, KeyValue]) -> dict[str, object] | None:
        """The compacted row of a primary key, found by the index; None if there is none. See `reading/lookup.py`."""
        from compactor.reading.lookup import lookup  # loads the kernels

        return lookup(self.stream(partition), key, self.schema)

    def drop_partitions(self, partition: PartitionValues, dry_run: bool = True) -> Drop:
        """Drops partitions: their rows, compacted or not. Returns what goes; only with dry_run=False anything happens.

        A partition that is written again afterwards begins empty. Files are deleted by `lithify gc`, once the grace
        period and the retention have passed; until then `scan(as_of=...)` shows the rows, and `restore` brings them
        back. Of a published table the rows go from what is published, now or with the next publish. May be repeated.

        Args:
            partition: a value for each partition key, or for some of them: every partition with these values"""
        drop = drop_partitions(self._store, self.definition, partition, self._clock, write=not dry_run)
        if not dry_run:
            _publish(self._store, self, drop, self._clock)
        return drop

    def restore(self, as_of: AsOf, partition: PartitionValues | None = None, dry_run: bool = True) -> Restore:
        """Makes the rows of partitions what they were at a time. Returns what changes; only with dry_run=False anything
        happens.

        No row is copied, and writers go on. Rows that were appended since are undone, until this call; deltas that were
        appended by then and not compacted are compacted next. What a restore has undone, another one brings back. May
        be repeated: a partition that is restored already stays as it is, with what was appended to it meanwhile.

        Args:
            as_of: as for `scan`; within the table's retention
            partition: a value for each partition key, or for some of them; None: the whole table, dropped partitions
                too

        Raises `Invalid`, before anything is written, if a partition's state of that time is out of reach."""
        from compactor.catalog.restoring import Restore, StreamRestore

        self.read_again(known_seconds=0)
        if partition:
            wanted = matching_partitions(self._store, self.definition, partition)
        else:
            wanted = self.partitions_even_dropped()
        restores = self._restores(as_of, [self.stream(each) for each in wanted], is_named=bool(partition))
        planned = run_concurrently(self._store.location, StreamRestore.plan, restores)
        if not any(each.as_of_entry for each in planned):
            raise Invalid(f"{self.table_id} has nothing as of {as_of}: give a later time, or drop what is to go")
        as_of_ms = restores[0].as_of_ms
        restore = Restore(self.table_id, as_of_ms, tuple(planned))
        if not dry_run:
            run_concurrently(self._store.location, StreamRestore.run, restores)
            _publish(self._store, self, restore, self._clock)
        return restore

    def _restores(self, as_of: AsOf, streams: Sequence[PartitionStream], *, is_named: bool) -> list[StreamRestore]:
        from compactor.catalog.restoring import StreamRestore
        from compactor.reading.scan import time_ms

        entry = as_of if isinstance(as_of, int) else None
        if entry is not None and (len(streams) != 1 or not (is_named or not self.partition_keys)):
            raise Invalid(f"as_of is {as_of}: an entry number is of one partition's log, so name it, or give a time")
        as_of_ms = time_ms(as_of) if entry is None else streams[0].load(as_of=entry).at_ms
        if as_of_ms > self._clock.now_ms():
            raise Invalid(f"as_of is {as_of}, which is still to come: give a time in the past")
        return [
            StreamRestore(self._store, stream, self.properties, self._clock, as_of_ms=as_of_ms, as_of_entry=entry)
            for stream in streams
        ]

    def append_rows(
        self, rows: DeltaSource, operation: str = Operation.UPSERT, delta_id: str | None = None
    ) -> list[Delta]:
        """Add rows of many partitions: each goes to the partition that its partition columns name. One log entry for
        each partition stream; all are durable and visible when this returns. The rows are held in memory.

        Args:
            rows: as for `append`; files are read, not registered
            operation: `upsert` or `delete`
            delta_id: of the delta in each of the partitions; a repeated call with the same id and rows is a no-op with
                the same result

        Raises `Invalid`, with row and column, if a row has no partition or cannot be appended; then nothing is added.
        After any other error some of the partitions may have their rows: call it again with the same delta id."""
        from compactor.catalog.delta_files import THE_DELTA, read_rows, refuse_absent
        from compactor.catalog.stream_schema import columns_needed

        refuse_absent(self._store.location, rows)
        needed = columns_needed(self.properties, self.schema, self.partition_keys)
        read = read_rows(self._store.location, rows, self.schema, needed=needed)
        parts = self.partitioning.split(read, THE_DELTA)
        deltas = [(partition, _taken(read, numbers), operation) for partition, numbers in parts]
        one_id = self._clock.new_id() if delta_id is None else delta_id
        return self.append_many(deltas, [one_id] * len(deltas))

    def append_changes(
        self,
        source: DeltaSource,
        format: str | Mapping[str, object] | Feed | None = None,
        order: Sequence[str] | None = None,
        columns: Mapping[str, str] | None = None,
        keys_are_global: bool | None = None,
        *,
        delta_id: str | None = None,
        quarantine: str | Path | None = None,
    ) -> AppendedChanges:
        """Add the inserts, updates and deletes of a change feed, each to its row's partition, in their order. One log
        entry for each partition stream; all are durable and visible when this returns. The changes are held in memory.

        Of the changes of a key only the last one is added, by the table's sort keys, then by its place in the source. A
        row that moves to another partition is deleted in the old one, if the change has the row before it.

        Args:
            source: files, in the order of their changes; or, of flat rows, Arrow data
            format: how they are written: "dms", "debezium", "maxwell", "canal", "ops", or a feed such as {"format":
                "ops", "column": "operation"}; None: as the table's property `changes` says
            order: of a table without sort keys: columns by which the changes of the batch are in order
            columns: names of columns in the feed, and those that they have in the table
            keys_are_global: a key has one row in all partitions, and its changes do not say where it was: its old
                partition is looked up by a merged scan of the table, which reads the indexes of all partitions. One
                writer at a time, and files in their order
            delta_id: of this batch: a repeated call with the same id and source is a no-op with the same result
            quarantine: the folder for changes that cannot be applied: a file of JSON lines has them and their reasons,
                and the others are added; None: as the table's property `quarantine` says

        Returns the deltas, in order of partition, with `quarantined_rows` and `quarantine_uri`.

        Without a quarantine it raises `Invalid`, with file and row, for changes that cannot be applied whole; then
        nothing is added. After any other error some of the partitions may have theirs: call it again with the same
        delta id."""
        from compactor.catalog.delta_files import refuse_absent
        from compactor.changes.appending import append_batch, batch_of_table, feed_of, reader_of
        from compactor.changes.quarantine import quarantine_of
        from compactor.changes.sources import open_feed

        batch_id = self._clock.new_id() if delta_id is None else delta_id
        feed = feed_of(self.properties.changes, format, order, columns, keys_are_global)
        reader, location = reader_of(self, feed), self._store.location
        aside = quarantine_of(self.properties.quarantine, quarantine, location, self._clock)
        refuse_absent(location, source)
        sources = open_feed(location, source, feed, reader.feed_schema)
        batch = batch_of_table(self, location, reader, sources, batch_id, quarantines=aside is not None)
        return append_batch(self, batch, aside)

    def writer(
        self, seconds: float = SECONDS, deltas: int = DELTAS_MAX, size_bytes: int = SIZE_BYTES_MAX
    ) -> DeltaWriter:
        """A writer that collects small deltas for so long, so many or so many bytes, and appends them together."""
        return DeltaWriter(self, WriterLimits(seconds, deltas, size_bytes), self._clock)

    def scan(
        self,
        partition: PartitionValues | None = None,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
        as_of: AsOf | None = None,
        view: str = "compacted",
    ) -> Scan:
        """The rows of one partition, or of all. The snapshot is pinned now, the files are read later.

        A partition key is added as a text column, after the others, if the files have no column of its name.

        Args:
            view: "compacted": the compacted rows; "merged": these with all later deltas applied. A partition that was
                never compacted is merged by the keys of the others; `Invalid` if these differ or are unknown
            columns: names, in the order to return; None: all
            filter: a PyArrow expression over the table's columns; rows for which it is null are left out. Of partitions
                whose values contradict it nothing is read, and their further columns are not among the scan's
            as_of: a time: a datetime (UTC if it has no zone), ISO 8601 text, or epoch ms; for one partition (or a table
                without partition keys) also an entry number of its log. Raises `Invalid` if the table, or the one
                partition, was not there yet

        Raises `Corrupt` if the partition, or one of all, has lost its log."""
        from compactor.reading.scan import ScanRequest, open_scan, partitions_of_table, refuse_before

        partitions: Sequence[PartitionValues] = [partition] if partition is not None else []
        if partition is None:
            partitions = partitions_of_table(self._store, self, even_dropped=as_of is not None)
        request = ScanRequest(
            self._store, self.table_id, self.partition_keys, columns, filter, as_of, view, partition is None
        )
        if as_of is not None and not (request.names_one_stream and partitions):
            refuse_before(self.created_at_ms(), self.table_id, as_of)
        return open_scan(self._store.location, self.stream, partitions, self.schema, request)


class DeltaCatalog(tables.DeltaCatalog):
    """The tables of one lake. Safe to share between threads."""

    @staticmethod
    def open(
        uri: str | Path, *, endpoint_url: str | None = None, region: str | None = None, clock: Clock | None = None
    ) -> DeltaCatalog:
        """The lake at `s3://bucket/prefix`, `file:///data/lake` or a path, which may be empty or not exist yet."""
        location = parse_location(str(uri), endpoint_url=endpoint_url, region=region)
        return DeltaCatalog(open_store(location), clock or SystemClock())

    def create_table(
        self,
        table_id: str,
        partition_keys: Sequence[str] = (),
        schema: pa.Schema | None = None,
        primary_keys: Collection[str] | None = None,
        sort_keys: Sequence[tuple[str, str]] | None = None,
        properties: Mapping[str, object] | None = None,
        *,
        partition_by: Mapping[str, str] | None = None,
    ) -> Table:
        return _readable(
            super().create_table(
                table_id, partition_keys, schema, primary_keys, sort_keys, properties, partition_by=partition_by
            )
        )

    def drop_table(self, table_id: str, dry_run: bool = True) -> Drop:
        """Drops a table: nobody lists, opens, writes or compacts it any more. Returns what goes; only with
        dry_run=False anything happens.

        Its data are deleted by `lithify gc`, once its grace period and its retention have passed; log entries stay. Its
        id can be used again after its grace period, or a purge (`lithify table drop --purge`). May be repeated.
        """
        table = self.table_even_dropped(table_id)
        drop = drop_table(self.store, table.definition, self._clock, write=not dry_run)
        if not dry_run:
            _publish(self.store, table, drop, self._clock)
        return drop

    def purge_table(self, table_id: str, dry_run: bool = True, nothing_runs: bool = False) -> Purge:
        """Drops a table, and deletes every object of it, so that its id is free. Returns what goes; only with
        dry_run=False anything happens.

        Args:
            nothing_runs: no writer, compaction or reader of it is at work: its grace period need not have passed

        Raises `Invalid` if some may be, and `Denied` without the right to delete all objects; then nothing has changed.
        """
        definition = self.definition_even_dropped(table_id)
        if not dry_run:
            self._opened.forget(table_id)
        return purge_table(self.store, table_id, definition, self._clock, nothing_runs=nothing_runs, write=not dry_run)

    def append_changes(
        self,
        source: DeltaSource,
        format: str | Mapping[str, object] | Feed,
        table_of: str | Sequence[str],
        tables: Mapping[str, str | None],
        delta_id: str | None = None,
        quarantine: str | Path | None = None,
    ) -> dict[str, AppendedChanges]:
        """Add the changes of many tables in one feed, each to its table: by table id, the deltas. See
        `Table.append_changes`; every table's part is a batch of its own, with the same delta id.

        Args:
            table_of: the fields that say which table a change is of, joined by dots: "source.schema.source.table",
                "database.table"; of flat rows, columns, which are no part of the row
            tables: ids of tables by the names that the feed has for them, such as {"shop.orders": "SHOP.ORDERS.V1"};
                None: its changes are left out
            quarantine: as for a table, for changes of these tables; a file for each table

        Raises `Invalid`, with file and row, for a change that cannot be applied, or of another table; then nothing is
        added. After any other error some of the tables may have theirs: call it again with the same delta id."""
        from compactor.catalog.delta_files import refuse_absent
        from compactor.changes.appending import append_batch, batch_of_table, feed_of, reader_of
        from compactor.changes.many_tables import parse_paths, parts_by_table
        from compactor.changes.quarantine import quarantine_of
        from compactor.changes.sources import open_feed

        feed, paths = feed_of(None, format), parse_paths(table_of)
        batch_id = self._clock.new_id() if delta_id is None else delta_id
        wanted = {table_id for table_id in tables.values() if table_id is not None}
        opened = {table_id: self.table(table_id) for table_id in sorted(wanted)}
        refuse_absent(self.location, source)
        parts: dict[str, list[FeedSource]] = {}
        for each in open_feed(self.location, source, feed, None):
            for table_id, part in parts_by_table(each, paths, tables).items():
                parts.setdefault(table_id, []).append(part)
        batches = {}
        for table_id, sources in parts.items():
            table = opened[table_id]
            aside = quarantine_of(table.properties.quarantine, quarantine, self.location, self._clock)
            reader, quarantines = reader_of(table, feed), aside is not None
            batch = batch_of_table(table, self.location, reader, sources, batch_id, quarantines=quarantines)
            batches[table_id] = batch, aside
        return {table_id: append_batch(opened[table_id], *given) for table_id, given in batches.items()}

    def table_even_dropped(self, table_id: str) -> Table:
        return _readable(super().table_even_dropped(table_id))

    def table(self, table_id: str) -> Table:
        return _readable(super().table(table_id))

    def _new_table(self, definition: TableDefinition) -> Table:
        return Table(self.store, definition, self._clock)


def _taken(rows: pa.Table, numbers: Int64s) -> pa.Table:
    """These rows; of all of them no copy is made."""
    return rows if len(numbers) == rows.num_rows else rows.take(numbers)


def _readable(table: tables.Table) -> Table:
    """The same table, which this catalog has made."""
    if not isinstance(table, Table):
        raise TypeError(f"{table.table_id} was made by another catalog")
    return table


def _publish(store: ObjectStore, table: Table, changed: Drop | Restore, clock: Clock) -> None:
    """For other engines, if the table is published. What fails is logged, and left to the next publish."""
    if table.properties.publish and changed.partitions:
        from compactor.publishing.publication import publish_or_log

        publish_or_log(store, table, [table.stream(each.partition) for each in changed.partitions], clock)
