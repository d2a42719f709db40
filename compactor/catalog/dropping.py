"""Drops partitions and tables, and purges dropped tables.

A drop is a fact in a log, and deletes nothing: garbage collection takes the data once nobody can need it, and log
entries stay. The order of durable writes:

    a partition    1  `stream_dropped`         an entry of its log: its rows are gone, and no compaction that is under
                                               way commits any more
                   2  its hint                 lists leave it out (`drop_marks.py`)

    a table        1  `dropped_tables/<id>`    who lists tables looks into this one's log
                   2  `table_dropped`          an entry of its own log: nobody opens it
                   3  every partition          as above; so an append that had opened the table is refused

    a purge        1  the table is dropped          as above, where it is not yet
                   2  data, published files and hints, then the logs of streams, then the table's own
                   3  `dropped_tables/<id>`    its id is as if it had never been used

After a crash a second call continues.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from compactor.catalog import appending
from compactor.catalog.definition import TABLE_LOG, TableAction, TableDefinition, TableDropped
from compactor.catalog.drop_marks import DropMarks, dropped_partitions
from compactor.catalog.keys import DroppedTable, TableFolder
from compactor.catalog.news import NewsHints
from compactor.catalog.stream import PartitionStream
from compactor.log.durable_log import DurableLog, LogState
from compactor.log.keys import EntryObject
from compactor.model.clock import Clock, utc_time
from compactor.model.errors import Denied, Invalid, refuse_if
from compactor.model.names import no_such_partition
from compactor.storage.concurrently import run_concurrently
from compactor.storage.keys import decode_partition
from compactor.storage.object_store import ObjectEntry, ObjectStore, decoded_names

DefinitionLog = DurableLog[TableDefinition | None, TableAction]


@dataclass(frozen=True)
class DroppedPartition:
    """A partition that is dropped, or would be.

    Attributes:
        rows, pending_rows: compacted ones, and those of deltas in its log
        files, size_bytes: of compacted files, index files and deltas that Lithify wrote"""

    partition: Mapping[str, str]
    rows: int
    pending_rows: int
    files: int
    size_bytes: int


@dataclass(frozen=True)
class Drop:
    """What a drop takes.

    Attributes:
        partitions: without those that were dropped before
        goes_at_ms: from then on `lithify gc --delete` deletes the files of what is dropped now"""

    table_id: str
    partitions: tuple[DroppedPartition, ...]
    goes_at_ms: int

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.partitions)

    @property
    def pending_rows(self) -> int:
        return sum(each.pending_rows for each in self.partitions)

    @property
    def files(self) -> int:
        return sum(each.files for each in self.partitions)

    @property
    def size_bytes(self) -> int:
        return sum(each.size_bytes for each in self.partitions)


@dataclass(frozen=True)
class Purge:
    """The objects of a table that a purge deletes, or would."""

    table_id: str
    objects: int
    size_bytes: int


def definition_log(store: ObjectStore, table_id: str, clock: Clock) -> DefinitionLog:
    return DurableLog(store, TableFolder(table_id).definition_log, TABLE_LOG, clock)


def drop_partitions(
    store: ObjectStore, definition: TableDefinition, wanted: Mapping[str, str], clock: Clock, *, write: bool
) -> Drop:
    """Drops the partitions that have these values; with `write` False it only says which. May be repeated.

    Args:
        wanted: a value for each partition key, or for some of them: every partition with these values"""
    found = matching_partitions(store, definition, wanted)
    return _drop(store, definition, _streams(store, definition.table_id, found, clock), clock, write=write)


def drop_table(store: ObjectStore, definition: TableDefinition, clock: Clock, *, write: bool) -> Drop:
    """Drops a table; with `write` False it only says what goes. May be repeated, also for a table that is dropped."""
    table_id = definition.table_id

    def decide(at: LogState[TableDefinition | None]) -> Sequence[TableAction]:
        is_there = at.state is not None and at.state.dropped_at_ms is None
        return [TableDropped(at_ms=clock.now_ms())] if is_there else []

    if write:
        store.put_if_absent(DroppedTable(table_id).key, b"")
        definition_log(store, table_id, clock).append(decide)
    streams = list(_streams(store, table_id, _partitions(store, table_id), clock))
    return _drop(store, definition, streams, clock, write=write)


def drop_every_stream(store: ObjectStore, table_id: str, clock: Clock) -> None:
    """Finishes the drop of a table before its id is used again."""
    streams = list(_streams(store, table_id, _partitions(store, table_id), clock))
    run_concurrently(store.location, lambda stream: _drop_stream(store, stream, clock), streams)


def is_gone(store: ObjectStore, table_id: str) -> bool:
    """Whether a table that was compacted into is dropped or purged. One is created before its source registers it."""
    if store.read(DroppedTable(table_id).key) is not None:
        return True
    return store.read(EntryObject(TableFolder(table_id).definition_log, 1).key) is None


def refuse_use_of_dropped(store: ObjectStore, table_id: str, existing: TableDefinition | None, now_ms: int) -> None:
    """Raises `Invalid` if the table was dropped, and its id may not be used again yet."""
    purge = f"`lithify table drop {table_id} --delete --purge`"
    if existing is None:
        if store.read(DroppedTable(table_id).key) is not None:
            raise Invalid(f"table {table_id} was dropped, and is not purged: {purge} lets its id be used again")
    elif existing.dropped_at_ms is not None:
        free_at_ms = _writers_end_at_ms(existing, existing.dropped_at_ms)
        if now_ms < free_at_ms:
            raise Invalid(
                f"table {table_id} was dropped at {time_text(existing.dropped_at_ms)}: its id can be used again from "
                f"{time_text(free_at_ms)} on, when no writer of it can be at work, or after {purge}"
            )


def purge_table(
    store: ObjectStore,
    table_id: str,
    existing: TableDefinition | None,
    clock: Clock,
    *,
    nothing_runs: bool,
    write: bool,
) -> Purge:
    """Drops a table, and deletes every object of it; with `write` False it only counts them. May be repeated.

    Args:
        existing: its definition; None: its log is deleted already
        nothing_runs: no writer, compaction or reader of it is at work: its grace period need not have passed

    Raises `Invalid` if some may be, and `Denied` if this caller may not delete all objects; then nothing has changed.
    """
    folder = TableFolder(table_id)
    if existing is None and store.read(DroppedTable(table_id).key) is None:
        raise Invalid(f"there is no table {table_id} in {store.location.root_uri}, and none was dropped")
    objects = list(_objects(store, folder))
    if write:
        if existing is not None and not nothing_runs:
            _refuse_while_in_use(existing, clock.now_ms())
        _check_may_delete(store, folder)
        if existing is not None:
            drop_table(store, existing, clock, write=True)
            objects = list(_objects(store, folder))
        for entry in objects:
            store.delete(entry.key)
        store.delete(DroppedTable(table_id).key)
    return Purge(table_id, len(objects), sum(entry.size_bytes for entry in objects))


def _refuse_while_in_use(definition: TableDefinition, now_ms: int) -> None:
    table_id, dropped_at_ms = definition.table_id, definition.dropped_at_ms
    stop = "stop all of them and add --nothing-runs"
    if dropped_at_ms is None:
        raise Invalid(
            f"writers and readers of {table_id} may be at work: drop it without --purge, and purge it once its grace "
            f"period has passed, or {stop}"
        )
    free_at_ms = _writers_end_at_ms(definition, dropped_at_ms)
    if now_ms < free_at_ms:
        raise Invalid(
            f"a writer or a reader of {table_id} may be at work until {time_text(free_at_ms)}: purge it then, or {stop}"
        )


def time_text(at_ms: int) -> str:
    return utc_time(at_ms).strftime("%Y-%m-%d %H:%M:%S UTC")


def _drop(
    store: ObjectStore,
    definition: TableDefinition,
    streams: Iterable[PartitionStream],
    clock: Clock,
    *,
    write: bool,
) -> Drop:
    def drop(stream: PartitionStream) -> DroppedPartition:
        figures = _figures(stream)
        if write:
            _drop_stream(store, stream, clock)
        return figures

    properties = definition.properties
    kept_seconds = max(properties.retention_seconds or 0, properties.grace_seconds)
    partitions = tuple(run_concurrently(store.location, drop, list(streams)))
    dropped_at_ms = clock.now_ms() if definition.dropped_at_ms is None else definition.dropped_at_ms
    return Drop(definition.table_id, partitions, dropped_at_ms + int(kept_seconds * 1_000))


def _drop_stream(store: ObjectStore, stream: PartitionStream, clock: Clock) -> None:
    drop_id, now_ms = clock.new_id(), clock.now_ms()
    appended = stream.log.append(lambda at: appending.drop_stream(at.state, drop_id, now_ms))
    NewsHints(store, stream.folder).clear(appended.after)
    if appended.after.state.is_dropped:
        DropMarks(store, stream.folder).put(appended.after)


def _figures(stream: PartitionStream) -> DroppedPartition:
    snapshot = stream.load().state
    deltas = [file for source in snapshot.sources.values() for delta in source.deltas for file in delta.files]
    compacted = snapshot.compacted
    files = [file for file in deltas if "://" not in file.path]
    files += [] if compacted is None else compacted.files.values()
    index = () if compacted is None else compacted.index_files
    return DroppedPartition(
        partition=stream.partition,
        rows=0 if compacted is None else compacted.rows,
        pending_rows=sum(file.rows for file in deltas),
        files=len(files) + len(index),
        size_bytes=sum(file.size_bytes for file in files) + sum(file.bytes_at_rest for file in index),
    )


def matching_partitions(
    store: ObjectStore, definition: TableDefinition, wanted: Mapping[str, str]
) -> list[dict[str, str]]:
    """Partitions that have these values, dropped ones too. Raises `Invalid` if there never was one."""
    keys, table_id = definition.partition_keys, definition.table_id
    if not keys:
        raise Invalid(f"table {table_id} has no partition keys: leave the partition out")
    reasons = [
        f"{key!r} is no partition key of {table_id}: it has {', '.join(keys)}" for key in wanted if key not in keys
    ]
    if not wanted:
        reasons.append(f"which partitions of {table_id}? Give a value for at least one of {', '.join(keys)}")
    refuse_if(reasons)
    existing = [each for each in _partitions(store, table_id) if tuple(each) == keys]
    found = [each for each in existing if all(each[key] == value for key, value in wanted.items())]
    if not found:
        raise Invalid(no_such_partition(table_id, dict(wanted), existing))
    return found


def _partitions(store: ObjectStore, table_id: str) -> Iterator[dict[str, str]]:
    return decoded_names(store, f"{TableFolder(table_id).streams}/", decode_partition)


def _streams(
    store: ObjectStore, table_id: str, partitions: Iterable[dict[str, str]], clock: Clock
) -> Iterator[PartitionStream]:
    """Those that are not dropped, by their hints."""
    dropped = dropped_partitions(store, table_id)
    for partition in partitions:
        if tuple(partition.items()) not in dropped:
            yield PartitionStream.open(store, TableFolder(table_id).stream(partition), clock)


def _writers_end_at_ms(definition: TableDefinition, dropped_at_ms: int) -> int:
    return dropped_at_ms + int(definition.properties.grace_seconds * 1_000)


def _objects(store: ObjectStore, folder: TableFolder) -> Iterator[ObjectEntry]:
    """All objects of a table, those last without which a purge could not be continued: what is left of a stream's log
    can be read."""
    streams, definitions = f"{folder.streams}/", f"{folder.definition_log}/"
    objects = sorted(store.list(f"{folder.key}/"), key=lambda each: each.key)
    yield from (each for each in objects if not each.key.startswith((streams, definitions)))
    in_streams = [each for each in objects if each.key.startswith(streams)]
    yield from (each for each in reversed(in_streams) if EntryObject.parse_or_none(each.key) is not None)
    yield from (each for each in in_streams if EntryObject.parse_or_none(each.key) is None)
    yield from (each for each in objects if each.key.startswith(definitions))


def _check_may_delete(store: ObjectStore, folder: TableFolder) -> None:
    """Deletes objects that cannot exist, of every kind that the table has: a store that denies this denies the rest."""
    stream = folder.stream({}).log
    keys = [EntryObject(log, 0).key for log in (folder.definition_log, stream)]
    keys += [f"{folder.key}/{part}/0" for part in ("data", "compacted", "iceberg", "news", "dropped")]
    for key in keys:
        try:
            store.delete(key)
        except Denied as error:
            raise Denied(
                f"{folder.table_id} cannot be purged, and nothing was deleted: you need the right to delete all of its "
                f"objects, log entries too, which the buckets of a stack give to nobody ({error}). It stays dropped, "
                "and `lithify gc --delete` deletes its data"
            ) from error
