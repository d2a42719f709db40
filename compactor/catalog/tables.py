"""Tables and their partition streams, for writers and for other packages.

`DeltaCatalog` has the tables of a lake; `Table` appends deltas and opens its partition streams. Every change is one log
entry (`log/durable_log.py`), by the rules in `appending.py`. Data files are written before the entry that adds them to
a delta, so a writer that stops leaves unreferenced files, never an incomplete delta. `compactor/lake.py` adds reading.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from compactor.catalog import appending
from compactor.catalog.definition import TableAction, TableDefinition, define_table, set_properties
from compactor.catalog.drop_marks import dropped_partitions
from compactor.catalog.dropping import (
    DefinitionLog,
    definition_log,
    drop_every_stream,
    is_gone,
    refuse_use_of_dropped,
    time_text,
)
from compactor.catalog.keys import NAME_IN_STREAM_BYTES_MAX, DroppedTable, TableFolder
from compactor.catalog.lost_streams import FirstStream, refuse_lost
from compactor.catalog.news import partitions_with_news
from compactor.catalog.properties import TableProperties, TableState, packages_missing, partitioning_of
from compactor.catalog.property_checks import (
    check_keys_of_index,
    check_publishable,
    check_set_at_creation,
    checked_for_rows_of,
    reasons_against_location,
)
from compactor.catalog.snapshot import StreamSnapshot
from compactor.catalog.stream import PartitionStream
from compactor.log.durable_log import LogState
from compactor.model.clock import Clock
from compactor.model.errors import Invalid, refuse_if
from compactor.model.names import (
    ContentType,
    LifecycleState,
    Operation,
    PartitionValues,
    by_values,
    no_such_partition,
    render_partition,
)
from compactor.storage.concurrently import run_concurrently
from compactor.storage.keys import decode, decode_partition
from compactor.storage.location import StoreLocation, key_bytes_max
from compactor.storage.object_store import ObjectStore, decoded_names

if TYPE_CHECKING:
    import pyarrow as pa

    from compactor.catalog.delta_files import DeltaSource
    from compactor.catalog.joining import Arrival
    from compactor.catalog.partition_split import Partitioning
    from compactor.catalog.stream_schema import StreamSchemas
    from compactor.catalog.table_appends import Delta, TableAppends

STREAMS_KEPT = 640
"""Partition streams whose last fold is cached, of a `Table`, and of all that a `DeltaCatalog` caches. So a writer does
not read a whole log for each delta, nor a dispatcher once more those of the sessions that it has just found."""

PROPERTIES_KNOWN_SECONDS = 60.0
"""Age of the cached properties of a `Table` at which a writer reads them again: one request."""

TABLES_KEPT = 64
"""Tables that a `DeltaCatalog` caches, with their own caches: a session opens its tables several times."""


class OpenTables:
    """Tables with what was read of their streams, the latest used ones. Safe to share between threads."""

    def __init__(self, new_table: Callable[[TableDefinition], Table]) -> None:
        self._new_table = new_table
        self._lock = threading.Lock()
        self._tables: OrderedDict[str, Table] = OrderedDict()

    def table(self, definition: TableDefinition) -> Table:
        with self._lock:
            table = self._tables.pop(definition.table_id, None)
            if table is None or definition.difference_from(table.definition) is not None:
                table = self._new_table(definition)
            table.refresh(definition)
            self._tables[definition.table_id] = table
            streams = sum(each.streams_kept for each in self._tables.values())
            while len(self._tables) > TABLES_KEPT or (streams > STREAMS_KEPT and len(self._tables) > 1):
                _, oldest = self._tables.popitem(last=False)
                streams -= oldest.streams_kept
        return table

    def forget(self, table_id: str) -> None:
        """What was read of a table that is purged: logs of its id begin anew."""
        with self._lock:
            self._tables.pop(table_id, None)


class DeltaCatalog:
    """The tables of one lake. Safe to share between threads."""

    def __init__(
        self, store: ObjectStore, clock: Clock, *, of_one_run: bool = False, opened: OpenTables | None = None
    ) -> None:
        """`of_one_run`, `opened`: see `for_one_run`."""
        self.store = store
        self._clock = clock
        self._opened = opened or OpenTables(self._new_table)
        self._definitions: dict[str, DefinitionLog] | None = {} if of_one_run else None
        self.schemas_of_run: dict[tuple[ContentType, str], pa.Schema] | None = {} if of_one_run else None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.location.root_uri}>"

    def for_one_run(self) -> DeltaCatalog:
        """The same lake for one job run, which compacts and does not read: definitions of tables are read once, not
        for each session, and schemas of small files once for all that have the same. Its tables are those of this one,
        with what was read of their streams."""
        if self._definitions is not None:
            return self
        return DeltaCatalog(self.store, self._clock, of_one_run=True, opened=self._opened)

    @property
    def location(self) -> StoreLocation:
        return self.store.location

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
        """Creates a table, or returns the existing one. Raises `Invalid` if the existing definition differs, or a table
        of this id was dropped and its writers may still be at work.

        Args:
            primary_keys, sort_keys: are properties too: a table with keys is compacted by these keys only
            properties: by name (`catalog/properties.py`); an existing table must have the given ones
            partition_by: derived partition keys, such as {"order_day": "day(at)"}, by which `append_rows` and
                `append_changes` find partitions. Those that `partition_keys` lacks come last"""
        keys = {"primary_keys": primary_keys, "sort_keys": sort_keys, "partition_by": partition_by}
        if partition_by and not isinstance(partition_keys, str):
            partition_keys = [*partition_keys, *(key for key in partition_by if key not in partition_keys)]
        given_keys = {name: value for name, value in keys.items() if value is not None}
        wanted = define_table(table_id, partition_keys, schema, {**(properties or {}), **given_keys})

        def decide(log_state: LogState[TableDefinition | None]) -> Sequence[TableAction]:
            existing = log_state.state
            if existing is None or existing.dropped_at_ms is not None:
                return self._begin(wanted.as_new(), existing)
            self._refuse_copy(table_id, existing)
            difference = wanted.difference_from(existing) or existing.properties.difference_from(wanted.properties)
            if difference is not None:
                raise Invalid(f"table {table_id} is already in {self.location.root_uri} with {difference}")
            return []

        reasons = reasons_against_location(self.location, table_id, wanted.properties)
        reasons += packages_missing(wanted.properties)
        refuse_if(reasons)
        created = self._definition_log(table_id).append(decide)
        return self._opened.table(created.after.state or wanted)

    def table(self, table_id: str) -> Table:
        """Raises `Invalid` if the lake has no such table, also if it was dropped."""
        definition = self._definition(table_id)
        if definition is None:
            near = [each for each in self.tables() if each.casefold() == table_id.casefold()]
            what_to_do = f"did you mean {near[0]}? Ids are told apart by case" if near else "create it, or check its id"
            raise Invalid(f"there is no table {table_id} in {self.location.root_uri}: {what_to_do}")
        return self._opened.table(definition)

    def table_like(self, table_id: str, like: Table) -> Table:
        """The table, which must take the rows of another one. If it does not exist: an unsaved one, partitioned so."""
        if table_id == like.table_id:
            return like
        definition = self._definition(table_id) or _like(table_id, like)
        return self._opened.table(checked_for_rows_of(like.definition, definition))

    def create_table_like(self, table_id: str, like: Table) -> Table:
        """The table, which must take the rows of another one; created if need be, with properties of that one."""
        known = self._known_definition(table_id)
        if known is not None:
            return self._opened.table(checked_for_rows_of(like.definition, known))
        wanted = _like(table_id, like)

        def decide(log_state: LogState[TableDefinition | None]) -> Sequence[TableAction]:
            if log_state.state is None:
                return self._begin(wanted, None)
            _refuse_dropped(log_state.state)
            return []

        created = self._definition_log(table_id).append(decide)
        return self._opened.table(checked_for_rows_of(like.definition, created.after.state or wanted))

    def tables(self) -> list[str]:
        """The ids of all tables, in order, without dropped ones."""
        dropped = set(self.dropped_tables())
        return sorted(each for each in decoded_names(self.store, "tables/", decode) if each not in dropped)

    def dropped_tables(self) -> list[str]:
        """The ids of tables that were dropped, in order. Their data may still be there."""
        marks = [DroppedTable.parse_or_none(entry.key) for entry in self.store.list(DroppedTable.prefix())]
        marked = [mark.table_id for mark in marks if mark is not None]
        definitions = run_concurrently(self.location, self.definition_even_dropped, marked)
        return sorted(
            table_id
            for table_id, definition in zip(marked, definitions, strict=True)
            if definition is None or definition.dropped_at_ms is not None
        )

    def definition_even_dropped(self, table_id: str) -> TableDefinition | None:
        """The definition, also of a table that was dropped. None: the lake has no entry of it."""
        return self._known_definition(table_id) or self._definition_log(table_id).load().state

    def table_even_dropped(self, table_id: str) -> Table:
        """The table, also if it was dropped: for what looks for its objects."""
        definition = self.definition_even_dropped(table_id)
        return self._new_table(definition) if definition and definition.dropped_at_ms else self.table(table_id)

    def _begin(self, wanted: TableDefinition, before: TableDefinition | None) -> Sequence[TableAction]:
        """The actions that create a table, maybe after the drop of another one of the same id."""
        refuse_use_of_dropped(self.store, wanted.table_id, before, self._clock.now_ms())
        if before is not None:
            drop_every_stream(self.store, wanted.table_id, self._clock)
        return wanted.as_actions()

    def _refuse_copy(self, table_id: str, definition: TableDefinition) -> None:
        """A folder that was copied names files of the original: its rows would vanish with that table's."""
        if definition.table_id != table_id:
            folder = f"{self.location.root_uri}/{TableFolder(table_id).key}"
            raise Invalid(
                f"the folder {folder} is a copy of table {definition.table_id}, and no table: move it out of the lake; "
                f"for the same rows under another id, create that table and append what a scan of the other one reads"
            )

    def _new_table(self, definition: TableDefinition) -> Table:
        return Table(self.store, definition, self._clock)

    def _definition(self, table_id: str) -> TableDefinition | None:
        definition = self.definition_even_dropped(table_id)
        if definition is not None:
            self._refuse_copy(table_id, definition)
            _refuse_dropped(definition)
        return definition

    def _known_definition(self, table_id: str) -> TableDefinition | None:
        known = self._definitions.get(table_id) if self._definitions is not None else None
        return known.newest.state if known is not None else None

    def _definition_log(self, table_id: str) -> DefinitionLog:
        log = definition_log(self.store, table_id, self._clock)
        return log if self._definitions is None else self._definitions.setdefault(table_id, log)


class Table:
    """One table. Safe to share between threads."""

    def __init__(self, store: ObjectStore, definition: TableDefinition, clock: Clock) -> None:
        self.definition = definition
        self._store = store
        self._clock = clock
        self._defined_at_seconds = clock.monotonic_seconds()
        self._folder = TableFolder(definition.table_id)
        self._lock = threading.Lock()
        self._others = FirstStream(store, self._folder)
        self._streams: OrderedDict[tuple[tuple[str, str], ...], PartitionStream] = OrderedDict()

    def __repr__(self) -> str:
        keys = f", partitioned by {', '.join(self.partition_keys)}" if self.partition_keys else ""
        return f"<{type(self).__name__} {self.table_id} in {self._store.location.root_uri}{keys}>"

    @cached_property
    def _appends(self) -> TableAppends:
        from compactor.catalog.table_appends import TableAppends  # loads what reads and writes files

        return TableAppends(self, self._store.location, self._schemas, self._clock)

    @cached_property
    def _schemas(self) -> StreamSchemas:
        from compactor.catalog.stream_schema import StreamSchemas

        return StreamSchemas(self.definition.schema)

    @property
    def streams_kept(self) -> int:
        return len(self._streams)

    @property
    def table_id(self) -> str:
        return self.definition.table_id

    @property
    def partition_keys(self) -> tuple[str, ...]:
        return self.definition.partition_keys

    def created_at_ms(self) -> int:
        """When the table was created, by its creator's clock, in ms since the epoch."""
        return definition_log(self._store, self.table_id, self._clock).entry(1).at_ms

    @property
    def partitioning(self) -> Partitioning:
        """How its rows find their partitions."""
        return partitioning_of(self.partition_keys, self.properties)

    @property
    def schema(self) -> pa.Schema | None:
        return self.definition.schema

    # -- properties

    @property
    def properties(self) -> TableProperties:
        """The properties as of the last read or `set_properties` of this object. Appends reread them after a minute."""
        return self.definition.properties

    def set_properties(self, changes: Mapping[str, object]) -> TableProperties:
        """Sets some properties, by name; None removes a property. The others are unchanged. Returns all properties.

        Raises `Invalid`, with every reason, if properties contradict each other or the table; then nothing is changed.
        """

        def decide(log_state: LogState[TableDefinition | None]) -> Sequence[TableAction]:
            definition = log_state.state or self.definition
            _refuse_dropped(definition)
            before, properties = definition.properties, definition.properties.changed(changes)
            actions = set_properties(definition, properties)
            if properties.publish and properties.publish != before.publish:
                check_publishable(self, self._store.location, properties)
            elif properties.glue_database or properties.landing or properties.quarantine != before.quarantine:
                refuse_if(reasons_against_location(self._store.location, self.table_id, properties))
            check_keys_of_index(self, before, properties)
            check_set_at_creation(self.partition_keys, before, properties)
            return actions

        self.refresh(definition_log(self._store, self.table_id, self._clock).append(decide).after.state)
        return self.properties

    def check_takes_deltas(self, known_seconds: float = PROPERTIES_KNOWN_SECONDS) -> None:
        """Raises `Invalid` if the table is offline or dropped, by what was read of it at most so long ago."""
        self.read_again(known_seconds)
        _refuse_dropped(self.definition)
        if self.properties.state is TableState.OFFLINE:
            raise Invalid(
                f"table {self.table_id} is offline: it takes no deltas until "
                f"`lithify table set {self.table_id} state=online`"
            )

    def read_again(self, known_seconds: float = PROPERTIES_KNOWN_SECONDS) -> None:
        """Reads the definition again if it was read so long ago. Writers call it first."""
        if self._clock.monotonic_seconds() - self._defined_at_seconds >= known_seconds:
            self.refresh(definition_log(self._store, self.table_id, self._clock).load().state)

    def refresh(self, definition: TableDefinition | None) -> None:
        """Takes over a definition that was just read. None: the destination does not exist yet."""
        with self._lock:
            if definition is not None and definition.puts_hints != self.definition.puts_hints:
                self._streams.clear()
            self.definition = definition or self.definition
            self._defined_at_seconds = self._clock.monotonic_seconds()

    # -- deltas

    def append(  # noqa: PLR0913, PLR0917 (the paper's signature)
        self,
        partition: PartitionValues,
        source: DeltaSource,
        operation: str = Operation.UPSERT,
        position: int | None = None,
        delta_id: str | None = None,
        content_type: str = ContentType.PARQUET,
        rows_per_file: int | None = None,
        stream_version: int | None = None,
        copy: bool = False,
    ) -> Delta:
        """Add one delta to a partition stream. It is durable and visible when this returns.

        Args:
            source: Arrow data: a table, a record batch reader (streamed), a frame of Polars or pandas, or anything else
                with `__arrow_c_stream__`; or a list of files to register in place
            operation: `upsert` or `delete`
            position: None: the clock in ms, or the last position + 1 if that is greater
            delta_id: a repeated append of the same id and content is a no-op with the same result
            content_type: of the written files, and of registered files without a known suffix
            rows_per_file: None: 4,000,000
            stream_version: None: the active one; an unreleased one must be named; a deprecated one is refused
            copy: files are copied into the lake, and not needed any more when this returns

        Raises `Invalid` if it cannot be appended; then nothing is added. After `Unavailable` it is not known whether
        the delta was added: append it again with the same delta id."""
        from compactor.catalog.table_appends import FileForm

        request = self._appends.request(operation, position, delta_id, stream_version)
        form = FileForm.of(content_type, rows_per_file, copy=copy)
        return self._appends.append(partition, source, request, form)

    def append_many(
        self,
        deltas: Sequence[tuple[PartitionValues, DeltaSource, str]],
        delta_ids: Sequence[str] | None = None,
        content_type: str = ContentType.PARQUET,
        copy: bool = False,
    ) -> list[Delta]:
        """Add many deltas with one log entry for each partition stream: in the order given, all or none.

        Args:
            deltas: (partition, source, operation) of each, as for `append`
            delta_ids: one for each; a repeated id is a no-op with the same result
            copy: files are copied into the lake

        Raises `Invalid`, with the number of the delta, if one cannot be appended. After any error each stream has all
        of its deltas or none: append all of them again with the same delta ids."""
        from compactor.catalog.table_appends import FileForm

        return self._appends.append_many(deltas, delta_ids, FileForm.of(content_type, None, copy=copy))

    def append_joined(self, arrivals: Sequence[Arrival]) -> list[str]:
        """Add what has landed and is not there yet, with one log entry for each partition stream: small appends with
        the same columns become one delta, and each is known again by its own id. Raises as `append_many`.

        Returns, for each stream, the ids of older versions of files of which it has a later one: they are left out.
        """
        return self._appends.append_joined(arrivals)

    def retract(self, partition: PartitionValues, delta_id: str) -> None:
        """Retract a delta that no compaction has committed. A repeated call is a no-op.

        A session that has read it does not commit it. Raises `Invalid` for a delta that does not exist, that a
        compaction has committed, or that a compaction is about to commit.
        """
        stream = self.stream(partition)
        appended = stream.log.append(lambda at: appending.retract_delta(at.state, self.table_id, delta_id))
        if stream.news is not None:
            stream.news.clear(appended.after)

    # -- partition streams

    def partitions(self) -> list[dict[str, str]]:
        """The partitions that have a stream, in the order of their values, without dropped ones."""
        return sorted(self._listed(), key=by_values)

    def partitions_even_dropped(self) -> list[dict[str, str]]:
        """The partitions that have or had a stream, in the order of their values."""
        return sorted(self._with_log(), key=by_values)

    def dropped_partitions(self) -> list[dict[str, str]]:
        """The partitions that were dropped, and were not written since."""
        return [dict(each) for each in sorted(dropped_partitions(self._store, self.table_id))]

    def _listed(self) -> Iterator[dict[str, str]]:
        """Listed as the caller takes them, without dropped partitions."""
        dropped = dropped_partitions(self._store, self.table_id)
        return (each for each in self._with_log() if tuple(each.items()) not in dropped)

    def _with_log(self) -> Iterator[dict[str, str]]:
        """Without partitions of a dropped table of this id with other keys."""
        partition = None
        for partition in decoded_names(self._store, f"{self._folder.streams}/", decode_partition):
            if tuple(partition) == self.partition_keys:
                yield partition
        if partition is None:
            refuse_lost(self._store, self._folder)

    def each_partition(self, *, with_news: bool) -> Iterator[dict[str, str]]:
        """The partitions, in the order of the store: all, or, if the table has news hints, those that may have
        something to compact. Each page is listed when the caller reaches it."""
        if with_news and self.properties.news_hints:
            return partitions_with_news(self._store, self.table_id)
        return self._listed()

    def known_schema(self, partitions: Sequence[PartitionValues] | None = None) -> pa.Schema:
        """The columns of the rows: declared, compacted, and of pending upserts. `partitions` None: all partitions."""
        import pyarrow as pa

        from compactor.schemas.open_types import open_schema
        from compactor.schemas.unify import parse_schema, unify_schemas

        named = [] if self.schema is None else [(f"the schema of {self.table_id}", self.schema)]
        for partition in self.partitions() if partitions is None else partitions:
            stream = self.stream(partition)
            snapshot = stream.load().state
            if snapshot.active is not None:
                named += self._schemas.known(stream, snapshot, snapshot.active)
            elif snapshot.compacted is not None:
                named.append((str(stream), parse_schema(snapshot.compacted.last_round.compacted_schema)))
        if self.properties.publish:
            named = [(name, open_schema(schema)) for name, schema in named]
        return unify_schemas(named) if named else pa.schema([])

    def compactions(self, partition: PartitionValues) -> list[tuple[PartitionStream, StreamSnapshot]]:
        """What takes the deltas of a partition: pairs of the stream that has them and the state of the stream that they
        are compacted into. One, but for a source that several tables are compacted from."""
        stream = self.stream(partition)
        snapshot = stream.load().state
        compacted = snapshot.compacted
        if compacted is not None:
            own = compacted.source_table_id == self.table_id
            return [(stream if own else stream.in_table(compacted.source_table_id), snapshot)]
        copies = [each.compacted_table_id for each in (snapshot.active.taken if snapshot.active is not None else ())]
        states = ((table_id, stream.in_table(table_id).load().state) for table_id in copies)
        sides = [side for table_id, side in states if side.compacted is not None or not is_gone(self._store, table_id)]
        return [(stream, side) for side in sides or [snapshot]]

    def stream(self, partition: PartitionValues) -> PartitionStream:
        """A partition stream, which may have no entry yet. Raises `Invalid` if the values are not the table's keys."""
        # Of the same values in the order of the keys, as they mostly come.
        are_texts = isinstance(partition, dict) and {*map(type, partition.values())} <= {str}
        with self._lock:
            stream = self._streams.pop(tuple(partition.items()), None) if are_texts else None
            if stream is None:
                folder, hints = self._folder.stream(self.definition.in_key_order(partition)), self.definition.puts_hints
                stream = self._streams.pop(folder.partition, None) or PartitionStream.open(
                    self._store, folder, self._clock, hints=hints, others=self._others
                )
                self._check_room(stream)
            self._streams[stream.folder.partition] = stream
            while len(self._streams) > STREAMS_KEPT:
                self._streams.popitem(last=False)
        return stream

    def look_up(self, partitions: Iterable[PartitionValues]) -> tuple[list[PartitionStream], list[str]]:
        """The streams of the partitions that have one, by one listing; and a reason against each of the others."""
        existing = self.partitions()
        known = {tuple(each.items()) for each in existing}
        found: list[PartitionStream] = []
        reasons: list[str] = []
        for partition in partitions:
            try:
                stream = self.stream(partition)
            except Invalid as error:
                reasons += error.reasons
                continue
            if stream.folder.partition in known:
                found.append(stream)
            else:
                reasons.append(no_such_partition(self.table_id, stream.partition, existing))
        return found, reasons

    def create_stream_version(self, partition: PartitionValues, state: str = LifecycleState.UNRELEASED) -> int:
        """Creates a stream version and returns its number. One created `active` deprecates the active one."""
        from compactor.catalog.table_appends import member_of

        wanted = member_of(LifecycleState, state, "lifecycle state")
        stream = self.stream(partition)
        appended = stream.log.append(lambda at: appending.create_stream_version(at.state, wanted), stream.load())
        return max(appended.after.state.sources)

    def release_stream_version(self, partition: PartitionValues, stream_version: int) -> None:
        """Make a version the active one; the active one before it is deprecated in the same entry."""
        self.read_again()
        self.stream(partition).log.append(lambda at: appending.release_stream_version(at.state, stream_version))

    def deprecate_stream_version(
        self, partition: PartitionValues, stream_version: int, *, abandon_pending: bool = False
    ) -> None:
        """Deprecate a version: it takes no more deltas. A stream without an active version is not compacted until
        another version is released.

        Raises `Invalid` if the version is active and has rows that are not compacted, unless these are abandoned.
        """
        stream = self.stream(partition)
        stream.log.append(
            lambda at: appending.deprecate_stream_version(
                at.state, self.table_id, stream_version, None if abandon_pending else stream.compacted_sides(at.state)
            )
        )

    def _check_room(self, stream: PartitionStream) -> None:
        """Raises `Invalid` if the partition's keys would be too long, before anything is written."""
        needed, room = len(stream.folder.data) + NAME_IN_STREAM_BYTES_MAX, key_bytes_max(stream.location)
        if needed > room:
            raise Invalid(
                f"partition {render_partition(stream.partition)[:100]}... of {self.table_id} needs keys of {needed} "
                f"bytes, and below {stream.location.root_uri} they may have {room}: use shorter partition values"
            )


def _refuse_dropped(definition: TableDefinition) -> None:
    if definition.dropped_at_ms is not None:
        raise Invalid(
            f"table {definition.table_id} was dropped at {time_text(definition.dropped_at_ms)}: it takes no deltas and "
            f"shows no rows, and `lithify gc --delete` deletes its data"
        )


def _like(table_id: str, table: Table) -> TableDefinition:
    return define_table(table_id, table.partition_keys, None, table.properties.of_a_copy())
