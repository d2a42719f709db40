"""Tables and their partition streams, as writers and readers see them.

`DeltaCatalog` knows which tables a lake has; `Table` takes deltas and hands out its partition streams. What becomes
durable is one log entry each (`log.py`), by the rules in `appending.py`. Data files are written before the entry that
makes them part of a delta, so a writer that stops leaves files nobody refers to, and never half a delta.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from compactor.catalog import appending
from compactor.catalog.actions import DataFile, DeltaAdded, StreamAction
from compactor.catalog.appending import DeltaRequest
from compactor.catalog.definition import TABLE_LOG, TableCreated, TableDefinition, define_table
from compactor.catalog.delta_files import (
    ROWS_PER_DELTA_FILE,
    ArrowSource,
    DeltaFiles,
    DeltaSource,
    DeltaTarget,
    FileList,
    check_schema,
    digest_arrow,
    open_source,
    register_files,
    write_files,
)
from compactor.catalog.listing import encoded_names
from compactor.catalog.log import DurableLog, LogState
from compactor.catalog.paths import (
    NAME_IN_STREAM_BYTES_MAX,
    DeltaFilePath,
    TableFolder,
    decode,
    decode_partition,
)
from compactor.catalog.scan import AsOf, Scan, ScanRequest, open_scan
from compactor.catalog.snapshot import StreamSnapshot
from compactor.catalog.stream import PartitionStream
from compactor.clock import Clock, SystemClock
from compactor.errors import Invalid
from compactor.lookup import KeyValue, lookup
from compactor.names import ContentType, LifecycleState, Operation, PartitionValues, render_partition
from compactor.object_store import ObjectStore, StoreLocation, key_bytes_max, open_store, parse_location

__all__ = ["Delta", "DeltaCatalog", "PartitionStream", "Table"]

ValueT = TypeVar("ValueT")
WordT = TypeVar("WordT", bound=StrEnum)

STREAMS_KEPT = 256
"""Partition streams whose last fold a `Table` remembers, so that a writer does not read a whole log for each delta."""

TABLES_KEPT = 4
"""Tables that a `DeltaCatalog` hands out again, with what they remember: a session asks for its own several times."""


@dataclass(frozen=True)
class Delta:
    """A durable delta: what `append` answers, the first time and every later time for one delta id."""

    table_id: str
    partition: Mapping[str, str]
    stream_version: int
    position: int
    operation: Operation
    delta_id: str
    files: tuple[DataFile, ...]

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


class DeltaCatalog:
    """The tables of one lake. Safe to share between threads."""

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        self.store = store
        self._clock = clock
        self._lock = threading.Lock()
        self._tables: OrderedDict[str, Table] = OrderedDict()

    @staticmethod
    def open(
        uri: str | Path, *, endpoint_url: str | None = None, region: str | None = None, clock: Clock | None = None
    ) -> DeltaCatalog:
        """The lake at `s3://bucket/prefix`, `file:///data/lake` or a path. A place without tables is an empty lake."""
        location = parse_location(str(uri), endpoint_url=endpoint_url, region=region)
        return DeltaCatalog(open_store(location), clock or SystemClock())

    @property
    def location(self) -> StoreLocation:
        return self.store.location

    def create_table(self, table_id: str, partition_keys: Sequence[str] = (), schema: pa.Schema | None = None) -> Table:
        """A new table; the one that is there if it has the same definition, and `Invalid` if it has another."""
        wanted = define_table(table_id, partition_keys, schema)

        def decide(log_state: LogState[TableDefinition | None]) -> Sequence[TableCreated]:
            standing = log_state.state
            if standing is None:
                return [wanted.as_action()]
            difference = wanted.difference_from(standing)
            if difference is not None:
                raise Invalid(f"table {table_id} is already in {self.location.root_uri} with {difference}")
            return []

        self._definition_log(table_id).append(decide)
        return self._table(wanted)

    def table(self, table_id: str) -> Table:
        """Raises `Invalid` if the lake has no such table."""
        definition = self._definition_log(table_id).load().state
        if definition is None:
            raise Invalid(f"there is no table {table_id} in {self.location.root_uri}: create it, or check its id")
        return self._table(definition)

    def table_like(self, table_id: str, like: Table) -> Table:
        """The table; where there is none, what it would be with the partition keys of another: nothing is written."""
        standing = self._definition_log(table_id).load().state
        return self._table(standing or define_table(table_id, like.partition_keys, None))

    def create_table_like(self, table_id: str, like: Table) -> Table:
        """The table; where there is none, it is created with the partition keys of another."""
        wanted = define_table(table_id, like.partition_keys, None)
        created = self._definition_log(table_id).append(lambda log: [] if log.state else [wanted.as_action()])
        return self._table(created.after.state or wanted)

    def tables(self) -> list[str]:
        """The ids of all tables, in order."""
        return sorted(_decoded(encoded_names(self.store, "tables/"), decode))

    def _table(self, definition: TableDefinition) -> Table:
        with self._lock:
            table = self._tables.pop(definition.table_id, None)
            if table is None or definition.difference_from(table.definition) is not None:
                table = Table(self.store, definition, self._clock)
            self._tables[definition.table_id] = table
            while len(self._tables) > TABLES_KEPT:
                self._tables.popitem(last=False)
        return table

    def _definition_log(self, table_id: str) -> DurableLog[TableDefinition | None, TableCreated]:
        return DurableLog(self.store, TableFolder(table_id).definition_log, TABLE_LOG, self._clock)


class Table:
    """One table. Safe to share between threads."""

    def __init__(self, store: ObjectStore, definition: TableDefinition, clock: Clock) -> None:
        self.definition = definition
        self._store = store
        self._clock = clock
        self._folder = TableFolder(definition.table_id)
        self._lock = threading.Lock()
        self._streams: OrderedDict[tuple[tuple[str, str], ...], PartitionStream] = OrderedDict()

    @property
    def table_id(self) -> str:
        return self.definition.table_id

    @property
    def partition_keys(self) -> tuple[str, ...]:
        return self.definition.partition_keys

    @property
    def schema(self) -> pa.Schema | None:
        return self.definition.schema

    # -- deltas

    def append(  # noqa: PLR0917 (contract 4 states this signature)
        self,
        partition: PartitionValues,
        source: DeltaSource,
        operation: str = Operation.UPSERT,
        position: int | None = None,
        delta_id: str | None = None,
        content_type: str = ContentType.PARQUET,
        rows_per_file: int | None = None,
        stream_version: int | None = None,
    ) -> Delta:
        """Add one delta to a partition stream. When this returns it is durable; until then nobody sees any of it.

        source          a table, a record batch reader (streamed), or a list of files to register where they lie
        operation       `upsert` or `delete`
        position        None: the clock in ms, or the last position + 1 if that is greater
        delta_id        the same id with the same content again is a no-op with the same answer
        content_type    of the files written, and of registered files whose name does not tell
        rows_per_file   None: 4,000,000
        stream_version  None: the active one; an unreleased one must be named, a deprecated one takes nothing

        Raises `Invalid` for what cannot be appended, with nothing added. After `Unavailable` it is not known whether
        the delta was added: append it again under the same delta id.
        """
        stream = self.stream(partition)
        given = open_source(source)
        request = DeltaRequest(
            operation=_member(Operation, operation, "operation"),
            position=position,
            delta_id=self._clock.new_id() if delta_id is None else delta_id,
            stream_version=stream_version,
        )
        of_type = _member(ContentType, content_type, "content type")
        rows_each = ROWS_PER_DELTA_FILE if rows_per_file is None else rows_per_file
        if rows_each < 1:
            raise Invalid(f"rows_per_file is {rows_each}: a file takes at least one row")

        snapshot = stream.load().state
        standing = appending.find_delta(snapshot, request)
        if standing is not None:
            appending.check_same_delta(standing, request, self._digest(given, of_type))
            return _delta(stream, standing)
        appending.check_request(snapshot, request)
        if isinstance(given, list):
            delta_files = self._register(given, of_type)
        else:
            delta_files = self._write(stream, given, of_type, rows_each)

        def decide(log_state: LogState[StreamSnapshot]) -> Sequence[StreamAction]:
            return appending.add_delta(log_state.state, request, delta_files, self._clock.now_ms())

        added = appending.find_delta(stream.log.append(decide).after.state, request)
        if added is None:
            raise AssertionError(f"delta {request.delta_id!r} is neither added nor refused")
        return _delta(stream, added)

    def _write(
        self, stream: PartitionStream, source: ArrowSource, content_type: ContentType, rows_per_file: int
    ) -> DeltaFiles:
        check_schema(source.schema, "the delta", self.schema, self.table_id)
        append_id = self._clock.new_id()

        def name_file(number: int) -> str:
            return DeltaFilePath(stream.folder, append_id, number, content_type).key

        return write_files(source, DeltaTarget(stream.location, content_type, rows_per_file, name_file))

    def _register(self, files: FileList, content_type: ContentType) -> DeltaFiles:
        return register_files(self._store.location, files, content_type, self.schema, self.table_id)

    def _digest(self, source: ArrowSource | FileList, content_type: ContentType) -> str:
        if isinstance(source, list):
            return self._register(source, content_type).content_digest
        return digest_arrow(source)

    # -- partition streams

    def partitions(self) -> list[dict[str, str]]:
        """The partitions that have a stream, in the order of their values."""
        found = _decoded(encoded_names(self._store, f"{self._folder.streams}/"), decode_partition)
        return sorted(found, key=lambda partition: tuple(partition.values()))

    def lookup(self, partition: PartitionValues, key: Mapping[str, KeyValue]) -> dict[str, object] | None:
        """The compacted row of a primary key, found by the index; None where there is none. See `lookup.py`."""
        return lookup(self._store, self.stream(partition), key)

    def scan(
        self,
        partition: PartitionValues | None = None,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
        as_of: AsOf | None = None,
        view: str = "compacted",
    ) -> Scan:
        """The rows of one partition, or of all. The snapshot is pinned now, the files are read when asked.

        view     "compacted": what compaction has left; "merged": that, with all deltas since applied
        columns  names, in the order wanted; None: all
        filter   a PyArrow expression over the table's columns; rows for which it is null are left out
        as_of    an entry number of the log where one partition is named (or the table has no partition keys); else,
                 and for all partitions, a time: a datetime (UTC if it names no zone), ISO 8601 text, or epoch ms
        """
        names_one_stream = partition is not None or not self.partition_keys
        partitions = [partition] if partition is not None else self.partitions()
        request = ScanRequest(self._store, columns, filter, as_of, view, names_one_stream)
        return open_scan(self._store.location, [self.stream(each) for each in partitions], self.schema, request)

    def stream(self, partition: PartitionValues) -> PartitionStream:
        """A partition stream, which may have no entry yet. Raises `Invalid` if the values are not the table's keys."""
        folder = self._folder.stream(self._in_key_order(partition))
        with self._lock:
            stream = self._streams.pop(folder.partition, None)
            if stream is None:
                stream = PartitionStream.open(self._store, folder, self._clock)
                self._check_room(stream)
            self._streams[folder.partition] = stream
            while len(self._streams) > STREAMS_KEPT:
                self._streams.popitem(last=False)
        return stream

    def create_stream_version(self, partition: PartitionValues, state: str = LifecycleState.UNRELEASED) -> int:
        """The number of a new version of a partition stream; one created `active` deprecates the one before."""
        wanted = _member(LifecycleState, state, "lifecycle state")
        appended = self.stream(partition).log.append(
            lambda log_state: appending.create_stream_version(log_state.state, wanted)
        )
        return max(appended.after.state.sources)

    def release_stream_version(self, partition: PartitionValues, stream_version: int) -> None:
        """Make a version the active one; the one that was active is deprecated in the same entry."""
        self.stream(partition).log.append(
            lambda log_state: appending.release_stream_version(log_state.state, stream_version)
        )

    def _in_key_order(self, partition: Mapping[str, object]) -> dict[str, str]:
        if not isinstance(partition, Mapping):
            raise Invalid(f"a partition is a dict of text by partition key, not a {type(partition).__name__}")
        has = f"table {self.table_id} has the partition keys {list(self.partition_keys)}"
        reasons = [f"the partition lacks {key!r}: {has}" for key in self.partition_keys if key not in partition]
        reasons += [f"{key!r} is no partition key: {has}" for key in partition if key not in self.partition_keys]
        reasons += [
            f"the value of partition key {key!r} is {value!r}: give it as text"
            for key, value in partition.items()
            if not isinstance(value, str)
        ]
        if reasons:
            raise Invalid(*reasons)
        return {key: str(partition[key]) for key in self.partition_keys}

    def _check_room(self, stream: PartitionStream) -> None:
        """Refuse what could not be stored before anything of it is."""
        needed, room = len(stream.folder.data) + NAME_IN_STREAM_BYTES_MAX, key_bytes_max(stream.location)
        if needed > room:
            raise Invalid(
                f"partition {render_partition(stream.partition)[:100]}... of {self.table_id} needs keys of {needed} "
                f"bytes, and below {stream.location.root_uri} they may have {room}: use shorter partition values"
            )


def _delta(stream: PartitionStream, added: DeltaAdded) -> Delta:
    return Delta(
        table_id=stream.table_id,
        partition=stream.partition,
        stream_version=added.stream_version,
        position=added.position,
        operation=added.operation,
        delta_id=added.delta_id,
        files=added.files,
    )


def _decoded(encoded: Iterable[str], decode_one: Callable[[str], ValueT]) -> Iterator[ValueT]:
    """What the names say. A folder that somebody else put among ours has no name that we would give."""
    for name in encoded:
        with suppress(Invalid):
            yield decode_one(name)


def _member(words: type[WordT], text: str, what: str) -> WordT:
    """The word of an enumeration that a caller wrote. Raises `Invalid` with the words there are."""
    try:
        return words(text)
    except ValueError as error:
        raise Invalid(f"{text!r} is no {what}: use {', '.join(words)}") from error
