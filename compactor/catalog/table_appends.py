"""Appends deltas to the streams of a table. The files of a delta are durable before the entry that adds it."""

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, Self, TypeVar

import pyarrow as pa

from compactor.catalog import appending
from compactor.catalog.actions import DeltaAdded, StreamAction
from compactor.catalog.appending import DeltaRequest
from compactor.catalog.delta_files import (
    ROWS_PER_DELTA_FILE,
    THE_DELTA,
    ArrowSource,
    DeltaFiles,
    DeltaRules,
    DeltaSource,
    DeltaTarget,
    FileList,
    copy_files,
    digest_source,
    open_source,
    register_files,
    write_files,
)
from compactor.catalog.joining import Arrival, Join, Overtaken, join, left_to_add
from compactor.catalog.keys import DeltaFilePath, StreamFolder
from compactor.catalog.properties import MissingColumns, SchemaGrowth, TableProperties, partitioning_of
from compactor.catalog.snapshot import StreamSnapshot, apply
from compactor.catalog.stream import PartitionStream
from compactor.catalog.stream_schema import (
    NamedSchema,
    StreamSchemas,
    refuse_inferred_floats,
    refuse_keys,
    warn_of_missing,
)
from compactor.log.durable_log import LogState
from compactor.model.clock import Clock
from compactor.model.errors import Invalid, refuse_if
from compactor.model.files import DataFile
from compactor.model.names import ContentType, OpenFormat, Operation, PartitionValues
from compactor.schemas.open_types import OpenTable
from compactor.schemas.unify import plain_schema
from compactor.storage.concurrently import run_concurrently
from compactor.storage.location import StoreLocation

WordT = TypeVar("WordT", bound=StrEnum)

_Columns = tuple[Operation, Sequence[NamedSchema]]
"""The columns of a delta's files, and whether its rows are written or deleted."""

_Checked = tuple[_Columns, tuple[str, ...]]
"""Columns that have been checked, and the warnings about them."""

DELTAS_PER_ENTRY_MAX = 10_000
"""Deltas in one entry of `append_many`: every reader reads an entry whole."""


@dataclass(frozen=True)
class Delta:
    """A durable delta: the result of `append`, the same for every append of one delta id.

    Attributes:
        warnings: what is probably not what its writer meant, a sentence each; none where the delta was there already"""

    table_id: str
    partition: Mapping[str, str]
    stream_version: int
    position: int
    operation: Operation
    delta_id: str
    files: tuple[DataFile, ...]
    warnings: tuple[str, ...] = field(default=(), compare=False)

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True)
class FileForm:
    """How the files of a delta are written. `copies`: files that are given are copied into the lake."""

    content_type: ContentType
    rows_per_file: int
    copies: bool

    @classmethod
    def of(cls, content_type: str, rows_per_file: int | None, *, copy: bool) -> Self:
        """From a caller's arguments. Raises `Invalid`."""
        rows_each = ROWS_PER_DELTA_FILE if rows_per_file is None else rows_per_file
        if rows_each < 1:
            raise Invalid(f"rows_per_file is {rows_each}: a file takes at least one row")
        return cls(member_of(ContentType, content_type, "content type"), rows_each, copy)


@dataclass(frozen=True)
class _Incoming:
    """A delta that is being appended."""

    stream: PartitionStream
    request: DeltaRequest
    source: ArrowSource | FileList
    form: FileForm


@dataclass(frozen=True)
class _Prepared:
    """A delta whose files are durable. `files` None: the delta was appended before."""

    incoming: _Incoming
    files: DeltaFiles | None


class _Target:
    """Where one append writes: all of its files of a stream are in one folder, which is made durable once."""

    def __init__(self, append_id: str) -> None:
        self._append_id = append_id
        self._numbers = itertools.count(1)

    def of(self, incoming: _Incoming) -> DeltaTarget:
        def name_file(_: int, content_type: ContentType) -> str:
            return DeltaFilePath(incoming.stream.folder, self._append_id, next(self._numbers), content_type).key

        return DeltaTarget(incoming.stream.location, incoming.form.content_type, incoming.form.rows_per_file, name_file)


class WritableTable(Protocol):
    """What is known of the table, which may be read again between two appends."""

    @property
    def table_id(self) -> str: ...
    @property
    def partition_keys(self) -> tuple[str, ...]: ...
    @property
    def schema(self) -> pa.Schema | None: ...
    @property
    def properties(self) -> TableProperties: ...

    def stream(self, partition: PartitionValues) -> PartitionStream: ...

    def check_takes_deltas(self, known_seconds: float = ...) -> None:
        """Raises `Invalid` if the table is offline or dropped."""


def published_as(table: WritableTable) -> OpenTable | None:
    """The published table; None: the table is not published."""
    properties = table.properties
    if not properties.publish:
        return None
    sort_keys = [key.column for key in properties.sort_keys or ()]
    for_delta = OpenFormat.DELTA in properties.publish
    return OpenTable(table.partition_keys, properties.primary_keys or (), sort_keys, for_delta)


class TableAppends:
    """Appends to the streams of one table. Safe to share between threads."""

    def __init__(self, table: WritableTable, location: StoreLocation, schemas: StreamSchemas, clock: Clock) -> None:
        self._table = table
        self._location = location
        self._schemas = schemas
        self._clock = clock

    def append(self, partition: PartitionValues, source: DeltaSource, request: DeltaRequest, form: FileForm) -> Delta:
        """See `Table.append`."""
        self._table.check_takes_deltas()
        incoming = _Incoming(self._table.stream(partition), request, open_source(source), form)
        snapshot = incoming.stream.load().state
        self._check_begins([snapshot])
        prepared = self._prepare(incoming, snapshot, _Target(DeltaFilePath.fresh_append_id(self._clock)), [])
        (added,) = self._append_to(incoming.stream, [prepared])
        return added

    def append_many(
        self,
        deltas: Sequence[tuple[PartitionValues, DeltaSource, str]],
        delta_ids: Sequence[str] | None,
        form: FileForm,
    ) -> list[Delta]:
        """See `Table.append_many`."""
        if delta_ids is not None and len(delta_ids) != len(deltas):
            raise Invalid(f"there are {len(deltas):,} deltas and {len(delta_ids):,} delta ids: give one for each")
        self._table.check_takes_deltas()
        incoming = self._incoming(deltas, delta_ids, form)
        streams = {each.stream.folder: each.stream for each in incoming}
        snapshots = self._load_all(streams)
        appended = self._append_all(incoming, streams, snapshots)
        added = {folder: iter(deltas or ()) for folder, deltas in appended.items()}
        return [next(added[each.stream.folder]) for each in incoming]

    def append_joined(self, arrivals: Sequence[Arrival]) -> list[str]:
        """See `Table.append_joined`."""
        self._table.check_takes_deltas()
        waiting: dict[StreamFolder, tuple[PartitionStream, list[Arrival]]] = {}
        for each in arrivals:
            stream = self._table.stream(each.partition)
            waiting.setdefault(stream.folder, (stream, []))[1].append(each)
        superseded: dict[StreamFolder, list[str]] = {}
        for _ in range(len(arrivals) + 1):  # each time something of a stream is there that was not before
            streams = {folder: stream for folder, (stream, _) in waiting.items()}
            snapshots = self._load_all(streams)
            incoming: list[_Incoming] = []
            for folder, (stream, of_stream) in waiting.items():
                left, superseded[folder] = left_to_add(snapshots[folder], of_stream)
                incoming += [_joint(stream, each, self._clock) for each in join(left)]
            appended = self._append_all(incoming, streams, snapshots)
            waiting = {folder: waiting[folder] for folder, deltas in appended.items() if deltas is None}
            if not waiting:
                return [delta_id for late in superseded.values() for delta_id in late]
        raise AssertionError("appends are overtaken, and nothing of them is there")

    def _load_all(self, streams: Mapping[StreamFolder, PartitionStream]) -> dict[StreamFolder, StreamSnapshot]:
        return dict(zip(streams, run_concurrently(self._location, _state_of, list(streams.values())), strict=True))

    def _append_all(
        self,
        incoming: Sequence[_Incoming],
        streams: Mapping[StreamFolder, PartitionStream],
        snapshots: Mapping[StreamFolder, StreamSnapshot],
    ) -> dict[StreamFolder, list[Delta] | None]:
        """The deltas of each stream, in their order. None: they were overtaken, and none of them is added."""
        self._check_begins(snapshots.values())
        checked: dict[StreamFolder, list[_Checked]] = {folder: [] for folder in streams}
        target = _Target(DeltaFilePath.fresh_append_id(self._clock))

        def prepare(number_and_delta: tuple[int, _Incoming]) -> _Prepared:
            number, each = number_and_delta
            try:
                return self._prepare(each, snapshots[each.stream.folder], target, checked[each.stream.folder])
            except Invalid as error:
                raise Invalid(*(f"delta {number} of {len(incoming)}: {reason}" for reason in error.reasons)) from error

        groups: dict[StreamFolder, list[_Prepared]] = {}
        for prepared in run_concurrently(self._location, prepare, list(enumerate(incoming, 1)), writes=True):
            groups.setdefault(prepared.incoming.stream.folder, []).append(prepared)

        def append_group(folder: StreamFolder) -> list[Delta] | None:
            try:
                return self._append_to(streams[folder], groups[folder])
            except Overtaken:
                return None

        return dict(zip(groups, run_concurrently(self._location, append_group, list(groups), writes=True), strict=True))

    def _incoming(
        self,
        deltas: Sequence[tuple[PartitionValues, DeltaSource, str]],
        delta_ids: Sequence[str] | None,
        form: FileForm,
    ) -> list[_Incoming]:
        """Raises `Invalid` with every reason."""
        incoming: list[_Incoming] = []
        reasons: list[str] = []
        named: set[tuple[StreamFolder, str]] = set()
        for number, (partition, source, operation) in enumerate(deltas):
            delta_id = None if delta_ids is None else delta_ids[number]
            try:
                request = self.request(operation, None, delta_id, None)
                each = _Incoming(self._table.stream(partition), request, open_source(source), form)
            except Invalid as error:
                reasons += [f"delta {number + 1} of {len(deltas)}: {reason}" for reason in error.reasons]
                continue
            name = (each.stream.folder, request.delta_id)
            if name in named:
                reasons.append(f"delta {number + 1} of {len(deltas)}: delta id {request.delta_id!r} is given twice")
            named.add(name)
            incoming.append(each)
        counts = Counter(each.stream.folder for each in incoming)
        reasons += [
            f"{count:,} deltas are for one partition stream, and an entry takes {DELTAS_PER_ENTRY_MAX:,} at most: "
            "append them in parts"
            for count in counts.values()
            if count > DELTAS_PER_ENTRY_MAX
        ]
        refuse_if(reasons)
        return incoming

    def request(
        self, operation: str, position: int | None, delta_id: str | None, stream_version: int | None
    ) -> DeltaRequest:
        requested = member_of(Operation, operation, "operation")
        if requested is Operation.DELETE and self._table.properties.primary_keys == ():
            raise Invalid(
                f"table {self._table.table_id} has no key (primary_keys is empty), so a delete cannot say which rows "
                "it means: append upserts, or drop a partition with `lithify table drop`"
            )
        return DeltaRequest(
            operation=requested,
            position=position,
            delta_id=self._clock.new_id() if delta_id is None else delta_id,
            stream_version=stream_version,
        )

    def _prepare(
        self, incoming: _Incoming, snapshot: StreamSnapshot, names: _Target, checked: list[_Checked]
    ) -> _Prepared:
        """Writes or measures the delta's files, unless the delta was appended before. Raises `Invalid`, before anything
        is written, if it cannot be appended."""
        stream, request, source, form = incoming.stream, incoming.request, incoming.source, incoming.form
        existing = appending.find_delta(snapshot, request)
        if existing is not None:
            content_digest = digest_source(stream.location, source, form.content_type, copies=form.copies)
            appending.check_same_delta(existing, request, content_digest)
            return _Prepared(incoming, None)
        appending.check_request(snapshot, request)
        rules, target = self._rules(incoming), names.of(incoming)
        if isinstance(source, list):
            if form.copies:
                files = copy_files(source, form.content_type, target, rules)
            else:
                files = register_files(stream.location, source, form.content_type, rules)
            refuse_inferred_floats(files, self._table.schema, self._table.properties.primary_keys or (), snapshot)
            return _Prepared(incoming, files)
        self._check_once(stream, snapshot, request, [(THE_DELTA, source.schema)], checked)
        return _Prepared(incoming, write_files(source, target, rules))

    def _append_to(self, stream: PartitionStream, prepared: Sequence[_Prepared]) -> list[Delta]:
        """Appends the deltas of one stream in one entry. Deltas that are in the stream already are skipped."""

        warnings: dict[str, tuple[str, ...]] = {}

        def decide(log_state: LogState[StreamSnapshot]) -> Sequence[StreamAction]:
            snapshot, actions = log_state.state, list[StreamAction]()
            self._check_not_dropped(snapshot)
            checked: list[_Checked] = []
            for each in prepared:
                request, files = each.incoming.request, each.files
                if files is None:
                    continue
                more = appending.add_delta(snapshot, request, files, self._clock.now_ms())
                if more:
                    of_columns = self._check_once(stream, snapshot, request, files.schemas, checked)
                    warnings[request.delta_id] = (*of_columns, *files.warnings)
                for action in more:
                    snapshot = apply(snapshot, action)
                    if isinstance(action, DeltaAdded):
                        self._schemas.remember(stream, action, files.schemas)
                actions += more
            return actions

        if any(each.files is not None for each in prepared):
            snapshot = stream.log.append(decide, stream.log.newest).after.state  # read before the files were written
        else:
            snapshot = stream.log.newest.state
        added = []
        for each in prepared:
            delta = appending.find_delta(snapshot, each.incoming.request)
            if delta is None:
                raise AssertionError(f"delta {each.incoming.request.delta_id!r} is neither added nor refused")
            added.append(_delta(stream, delta, warnings.get(delta.delta_id, ())))
        return added

    def _check_begins(self, snapshots: Iterable[StreamSnapshot]) -> None:
        """Before the first delta of streams: the table may have been dropped a moment ago. Raises `Invalid`."""
        if any(snapshot.is_dropped or not snapshot.sources for snapshot in snapshots):
            self._table.check_takes_deltas(known_seconds=0)

    def _check_not_dropped(self, snapshot: StreamSnapshot) -> None:
        """Before the first delta after a drop, which may be that of the table. Raises `Invalid`."""
        if snapshot.is_dropped:
            self._table.check_takes_deltas(known_seconds=0)

    def _check_once(
        self,
        stream: PartitionStream,
        snapshot: StreamSnapshot,
        request: DeltaRequest,
        found: Sequence[NamedSchema],
        checked: list[_Checked],
    ) -> tuple[str, ...]:
        """See `_check_columns`. Of many deltas with the same columns only the first one is checked."""
        columns = (request.operation, found)
        for known, warnings in checked:
            if known == columns:
                return warnings
        checked.append((columns, self._check_columns(stream, snapshot, request, found)))
        return checked[-1][1]

    def _check_columns(
        self,
        stream: PartitionStream,
        snapshot: StreamSnapshot,
        request: DeltaRequest,
        found: Sequence[NamedSchema],
    ) -> tuple[str, ...]:
        """Raises `Invalid` for columns that cannot be compacted or are missing. Returns warnings."""
        plain = [(name, plain_schema(schema)) for name, schema in found]
        target, properties = appending.target_of(snapshot, request), self._table.properties
        primary_keys, sort_keys = properties.primary_keys or (), properties.sort_keys or ()
        refuse_keys(plain, primary_keys, sort_keys)
        before = self._schemas.check(
            stream,
            snapshot,
            target,
            request.operation,
            plain,
            published=published_as(self._table),
            key_columns=(*primary_keys, *(key.column for key in sort_keys)),
        )
        if request.operation is Operation.DELETE:
            return ()
        known = [*([] if self._table.schema is None else [self._table.schema]), *(schema for _, schema in before)]
        refuses = properties.missing_columns is MissingColumns.REFUSE
        left_out = () if properties.changes is None else properties.changes.columns_left_out
        return warn_of_missing(plain, known, (*self._table.partition_keys, *left_out), refuses=refuses)

    def _rules(self, incoming: _Incoming) -> DeltaRules:
        properties = self._table.properties
        return DeltaRules(
            self._table.table_id,
            incoming.stream.partition,
            incoming.request.operation,
            self._table.schema,
            takes_more=properties.schema_growth is SchemaGrowth.ALLOW,
            is_published=bool(properties.publish),
            private_columns=properties.private_columns,
            allow_files=properties.allow_files,
            partitioning=partitioning_of(self._table.partition_keys, properties),
        )


def _joint(stream: PartitionStream, join: Join, clock: Clock) -> _Incoming:
    request = DeltaRequest(join.arrivals[0].operation, None, join.delta_id or clock.new_id(), None, join.joined)
    return _Incoming(stream, request, join.rows, FileForm(ContentType.PARQUET, ROWS_PER_DELTA_FILE, copies=False))


def _state_of(stream: PartitionStream) -> StreamSnapshot:
    return stream.load().state


def _delta(stream: PartitionStream, added: DeltaAdded, warnings: tuple[str, ...]) -> Delta:
    return Delta(
        table_id=stream.table_id,
        partition=stream.partition,
        stream_version=added.stream_version,
        position=added.position,
        operation=added.operation,
        delta_id=added.delta_id,
        files=added.files,
        warnings=warnings,
    )


def member_of(members: type[WordT], text: str, noun: str) -> WordT:
    """The member of an enumeration for a caller's text. Raises `Invalid` with the valid texts."""
    try:
        return members(text)
    except ValueError as error:
        raise Invalid(f"{text!r} is no {noun}: use {', '.join(members)}") from error
