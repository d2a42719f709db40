"""A table's publication: its publishers, their lag, the differences between published metadata and logs."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType

from compactor.catalog.actions import RoundCommitted, StreamDropped, StreamRestored
from compactor.catalog.definition import reasons_against_place
from compactor.catalog.keys import is_open_file
from compactor.catalog.partition_split import NO_PARTITIONS
from compactor.catalog.property_checks import reasons_against_rows
from compactor.catalog.stream import PartitionStream
from compactor.catalog.tables import Table
from compactor.log_context import LOG, Logged
from compactor.model.clock import Clock
from compactor.model.errors import Invalid, LithifyError, refuse_if
from compactor.model.names import OpenFormat, counted, render_partition
from compactor.publishing.changes import LiveFile, changes, live_files
from compactor.publishing.delta_schema import left_out
from compactor.publishing.glue import GluePointer, GlueService
from compactor.publishing.keys import IcebergFolder
from compactor.publishing.protocol import Outcome, PublishedState, TablePublisher
from compactor.publishing.published_bounds import PublishedBounds
from compactor.schemas.unify import parse_schema
from compactor.storage.keys import encode_partition
from compactor.storage.object_store import ObjectStore


@dataclass(frozen=True)
class PublishFailed:
    """A format could not be published now, for these reasons. The next publish continues."""

    format: OpenFormat
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class StreamLag:
    """How far a stream is published in a format.

    Attributes:
        entry_number: the published entry of its log; 0: nothing is published
        behind: files to be added, removed and marked
        since_ms: when the oldest unpublished change was committed, in ms since the epoch; None: nothing is"""

    format: OpenFormat
    entry_number: int
    behind: int
    since_ms: int | None


def publishers_of(store: ObjectStore, table: Table, clock: Clock) -> tuple[TablePublisher, ...]:
    """A publisher for each format of the table. Raises `Invalid` if other engines cannot read the location."""
    formats = table.properties.publish
    refuse_if(reasons_against_place(store.location, table.table_id) if formats else ())
    return tuple(_publisher(each, store, table, clock) for each in formats)


def _publisher(format_: OpenFormat, store: ObjectStore, table: Table, clock: Clock) -> TablePublisher:
    match format_:
        case OpenFormat.DELTA:
            from compactor.publishing.delta import DeltaPublisher  # only a published table loads a format

            private = table.properties.private_columns
            return DeltaPublisher(store, table.table_id, table.partition_keys, clock, private)
        case OpenFormat.ICEBERG:
            properties = table.properties
            try:
                with _needs_iceberg(table.table_id):
                    from compactor.publishing.iceberg import IcebergPublisher
            except Invalid as missing:
                return _NotInstalled(format_, missing.reasons)
            return IcebergPublisher(
                store, table.table_id, table.partitioning, clock, properties.grace_seconds, properties.private_columns
            )


@dataclass(frozen=True)
class _NotInstalled:
    """The publisher of a format whose package is not installed here: it refuses, and the other formats go on."""

    format: OpenFormat
    reasons: tuple[str, ...]

    def publish(self, streams: Sequence[PartitionStream]) -> Outcome:
        raise Invalid(*self.reasons)

    def state(self) -> PublishedState:
        raise Invalid(*self.reasons)


@contextmanager
def _needs_iceberg(table_id: str) -> Iterator[None]:
    """Around an import of PyIceberg, which is slow to import, and may not be installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise Invalid(
            f"{table_id} is published as Apache Iceberg, which needs a package that is not installed here ({error}): "
            "install lithify[iceberg]"
        ) from error


def publish(
    publishers: Sequence[TablePublisher], streams: Sequence[PartitionStream]
) -> tuple[Outcome | PublishFailed, ...]:
    """Publishes each format separately: a failure of one does not stop the others."""
    return tuple(_publish(publisher, streams) for publisher in publishers)


def _publish(publisher: TablePublisher, streams: Sequence[PartitionStream]) -> Outcome | PublishFailed:
    try:
        return publisher.publish(streams)
    except LithifyError as error:
        LOG.warning("table_not_published", format=publisher.format, reason=str(error))
        return PublishFailed(publisher.format, error.reasons)


def with_gone_streams(
    table: Table, publishers: Sequence[TablePublisher], streams: Sequence[PartitionStream]
) -> list[PartitionStream]:
    """The streams, and those of dropped partitions whose files are published still: a publish takes the files away."""
    dropped = [table.stream(partition) for partition in table.dropped_partitions()]
    if not dropped:
        return list(streams)
    shown = {encode_partition(file.partition) for each in publishers for file in each.state().files.values()}
    known = {stream.folder for stream in streams}
    gone = (each for each in dropped if each.folder not in known and encode_partition(each.partition) in shown)
    return [*streams, *gone]


def publish_or_log(store: ObjectStore, table: Table, streams: Sequence[PartitionStream], clock: Clock) -> None:
    """Publishes these streams of a published table. What fails is logged, and left to the next publish."""
    with Logged("table_not_published", LithifyError, table=table.table_id):
        for outcome in publish(publishers_of(store, table, clock), streams):
            log_refused(outcome)


def log_refused(outcome: Outcome | PublishFailed) -> None:
    """Logs the partitions that could not be published."""
    for each in () if isinstance(outcome, PublishFailed) else outcome.refused:
        partition, reason = render_partition(each.partition), "; ".join(each.reasons)
        LOG.warning("partition_not_published", partition=partition, reason=reason)


def reasons_of(outcome: Outcome | PublishFailed) -> list[str]:
    """Why the table, or some partitions, could not be published; none: all was."""
    if isinstance(outcome, PublishFailed):
        return list(outcome.reasons)
    return [f"{render_partition(each.partition)}: {'; '.join(each.reasons)}" for each in outcome.refused]


def lead_glue(
    service: GlueService, store: ObjectStore, table: Table, outcomes: Sequence[Outcome | PublishFailed]
) -> tuple[PublishFailed, ...]:
    """Leads Glue's readers to the versions of these outcomes, also where nothing was to do. Returns the failures."""
    database = table.properties.glue_database
    if database is None:
        return ()
    failed: list[PublishFailed] = []
    for outcome in outcomes:
        if isinstance(outcome, PublishFailed) or outcome.version is None:
            continue
        try:
            GluePointer(service, database, store, table.table_id, outcome.format).follow(outcome.version)
        except LithifyError as error:
            LOG.warning("glue_not_updated", format=outcome.format, table=table.table_id, reason=str(error))
            failed.append(PublishFailed(outcome.format, error.reasons))
    return tuple(failed)


def lags(
    publisher: TablePublisher, streams: Sequence[PartitionStream], ends: Mapping[str, int] = MappingProxyType({})
) -> list[StreamLag]:
    """The lag of each stream. Reads the published state once, and no log that is published up to its entry in `ends`,
    by encoded partition: such a stream is left out."""
    state = publisher.state()
    published = {key for key, end in ends.items() if end <= state.entries.get(key, 0)}
    behind = [stream for stream in streams if encode_partition(stream.partition) not in published]
    return [_lag(publisher.format, state, stream) for stream in behind]


def _lag(format_: OpenFormat, state: PublishedState, stream: PartitionStream) -> StreamLag:
    now, entry = stream.load(), state.entries.get(encode_partition(stream.partition), 0)
    behind = 0
    if now.entry_number > entry:
        before = live_files(stream.load(as_of=entry).state.compacted) if entry else {}
        found = changes(before, live_files(now.state.compacted))
        behind = len(found.added) + len(found.removed) + len(found.marked)
    return StreamLag(format_, entry, behind, _changed_at_ms(stream, entry + 1, now.entry_number) if behind else None)


def _changed_at_ms(stream: PartitionStream, first: int, last: int) -> int | None:
    """The time of the first of these entries that changed the compacted side. Reads entries until it is found."""
    changing = RoundCommitted | StreamDropped | StreamRestored
    entries = stream.log.entries_between(first, last)
    return next((entry.at_ms for entry in entries if any(isinstance(each, changing) for each in entry.actions)), None)


def columns_left_out(publisher: TablePublisher, streams: Sequence[PartitionStream]) -> tuple[str, ...]:
    """Columns of the compacted rows that the format has no type for."""
    if publisher.format is not OpenFormat.DELTA:
        return ()
    found: dict[str, None] = {}
    for stream in streams:
        compacted = stream.load().state.compacted
        if compacted is not None:
            found |= dict.fromkeys(left_out(parse_schema(compacted.last_round.compacted_schema)))
    return tuple(found)


def reasons_against_publishing(streams: Sequence[PartitionStream], table: Table) -> tuple[str, ...]:
    """Why the table's compacted rows cannot be published as they are: every reason."""
    found: dict[str, None] = {}
    for stream in streams:
        compacted = stream.load().state.compacted
        if compacted is None:
            continue
        found |= dict.fromkeys(reasons_against_rows(compacted, table.partition_keys, table.properties))
        closed = sum(not is_open_file(file.path) for file in compacted.files.values())
        if closed:
            found[f"{counted(closed, 'compacted file')} of {stream}: the next compaction rewrites them"] = None
    return tuple(found)


@dataclass(frozen=True)
class PublishedFiles:
    """The objects that readers of published tables may need.

    Attributes:
        paths: keys of published vectors and metadata, and of data files, of versions that were the newest within a time
        entries: by encoded partition, the first and the last entry of the stream's log that such a version publishes"""

    paths: frozenset[str] = frozenset()
    entries: Mapping[str, tuple[int, int]] = field(default_factory=dict)


def published_files(store: ObjectStore, table_id: str, clock: Clock, since_ms: int) -> PublishedFiles:
    """The published files, also of a table that is no longer published: they stay readable until they are deleted."""
    from compactor.publishing.delta import DeltaPublisher

    delta = DeltaPublisher(store, table_id, (), clock)
    paths = delta.paths_since(since_ms)
    entries = {name: (entry, entry) for name, entry in delta.state().entries.items()}
    if any(True for _ in store.list(f"{IcebergFolder(table_id).key}/")):
        with _needs_iceberg(table_id):
            from compactor.publishing.iceberg import IcebergPublisher
        readable = IcebergPublisher(store, table_id, NO_PARTITIONS, clock, 0).readable_since(since_ms)
        paths |= readable.metadata
        for name, span in readable.entries.items():
            first, last = entries.get(name, span)
            entries[name] = (min(first, span[0]), max(last, span[1]))
    return PublishedFiles(paths, entries)


def published_bounds(store: ObjectStore, table: Table, clock: Clock) -> tuple[PublishedBounds, ...]:
    """The published metadata of each format, also of a table that is no longer published."""
    from compactor.publishing.delta_bounds import DeltaBounds

    table_id = table.table_id
    found: list[PublishedBounds] = [DeltaBounds(store, table_id, clock)]
    if any(True for _ in store.list(f"{IcebergFolder(table_id).key}/")):
        with _needs_iceberg(table_id):
            from compactor.publishing.iceberg_bounds import IcebergBounds
        found.append(IcebergBounds(store, table_id, clock, table.properties.grace_seconds))
    return tuple(found)


def differences(publisher: TablePublisher, streams: Sequence[PartitionStream]) -> Iterator[str]:
    """The differences between the published metadata and the logs at the published entries, one sentence each."""
    state = publisher.state()
    known = {encode_partition(stream.partition): stream for stream in streams}
    expected: dict[str, LiveFile] = {}
    for app_id, entry in state.entries.items():
        stream = known.get(app_id)
        if stream is None:
            yield f"{publisher.format} has partition {app_id}, which the table does not have"
            continue
        expected |= live_files(stream.load(as_of=entry).state.compacted)
    for path in sorted(expected.keys() - state.files.keys()):
        yield f"{publisher.format} lacks {path}, which has {counted(expected[path].rows, 'row')}"
    for path in sorted(state.files.keys() - expected.keys()):
        yield f"{publisher.format} has {path}, which the log does not name"
    for path in sorted(expected.keys() & state.files.keys()):
        file, published = expected[path], state.files[path]
        dead = file.vector.rows if file.vector is not None else 0
        if (published.rows, published.dead_rows) != (file.file.rows, dead):
            yield (
                f"{publisher.format} has {path} with {counted(published.rows, 'row')}, {published.dead_rows} of them "
                f"dead: the log says {file.file.rows} and {dead}"
            )
