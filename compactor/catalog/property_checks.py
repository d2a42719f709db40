"""Checks properties that a table is to get against its place and its compacted rows."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Protocol

from compactor.catalog.definition import TableDefinition, reasons_against_glue, reasons_against_place
from compactor.catalog.keys import TABLES
from compactor.catalog.properties import TableProperties, packages_missing, partitioning_of
from compactor.catalog.snapshot import CompactedStream
from compactor.catalog.stream import PartitionStream
from compactor.model.counts import SortKey
from compactor.model.errors import Invalid, refuse_if
from compactor.model.names import PARTITION_STREAM_POSITION, OpenFormat, PartitionValues
from compactor.storage.location import StoreLocation, is_remote, lies_below

STREAMS_CHECKED_MAX = 16
"""Streams that are checked for compacted rows before new keys are accepted."""


class StreamsOfTable(Protocol):
    @property
    def table_id(self) -> str: ...
    @property
    def partition_keys(self) -> tuple[str, ...]: ...

    def stream(self, partition: PartitionValues) -> PartitionStream: ...

    def each_partition(self, *, with_news: bool) -> Iterator[dict[str, str]]: ...


def check_keys_of_index(table: StreamsOfTable, before: TableProperties, now: TableProperties) -> None:
    """Raises `Invalid` if compacted rows have an index of other keys: the next compaction would be refused. Only the
    first compacted stream among `STREAMS_CHECKED_MAX` is compared: compactions compare each."""
    keys_change = (now.primary_keys, now.sort_keys) != (before.primary_keys, before.sort_keys)
    if not keys_change or now.destination_compacted_table_id not in (None, table.table_id):
        return
    for stream, compacted in islice(_streams(table), STREAMS_CHECKED_MAX):
        if compacted is None:
            continue
        reasons = []
        if now.primary_keys is not None and set(now.primary_keys) != set(compacted.primary_keys):
            reasons.append(f"with primary_keys={','.join(compacted.primary_keys)}")
        sort_keys = () if now.sort_keys == (SortKey(column=PARTITION_STREAM_POSITION),) else now.sort_keys
        if sort_keys is not None and sort_keys != compacted.sort_keys:
            by = ",".join(f"{key.column}:{key.order}" for key in compacted.sort_keys)
            reasons.append(f"with sort_keys={by}" if by else "by arrival")
        if reasons:
            raise Invalid(
                f"{stream} was compacted {' and '.join(reasons)}: keep these, or set "
                "destination_compacted_table_id to another table, too"
            )
        return


def check_set_at_creation(partition_keys: Sequence[str], before: TableProperties, now: TableProperties) -> None:
    """Raises `Invalid` if a property would no longer be true of the rows and streams that are there."""
    if now.partition_by != before.partition_by:
        raise Invalid("partition_by can only be set by create_table: rows that are there lie by it")
    if now.news_hints and not before.news_hints:
        raise Invalid(
            "news_hints can only be set by create_table: streams that are there, and writers at work, have none; in a "
            "table with partition keys and compact_when a keeper sets it"
        )
    was, mixed = (partitioning_of(partition_keys, each).mixed_keys for each in (before, now))
    if mixed != was:
        default = (now if mixed else before).default_partition
        raise Invalid(
            f"default_partition {default!r} may also be a value of {', '.join(sorted(mixed ^ was))}: only create_table "
            "can set it, and set_properties one that is no value of a derived key"
        )


def checked_for_rows_of(source: TableDefinition, destination: TableDefinition) -> TableDefinition:
    """The destination. Raises `Invalid` if by its own derived keys rows of the source were of other partitions."""
    keys, properties = destination.partition_keys, destination.properties
    if not partitioning_of(keys, properties).takes_rows_of(partitioning_of(source.partition_keys, source.properties)):
        has, wanted = (
            f"partition_by={each.properties.partition_by} and default_partition={each.properties.default_partition}"
            for each in (source, destination)
        )
        raise Invalid(
            f"{destination.table_id} has {wanted}, and {source.table_id} {has}: rows would lie in other partitions "
            "than theirs. Choose a destination that is not there yet, or that was created with the same properties"
        )
    return destination


def check_publishable(table: StreamsOfTable, location: StoreLocation, properties: TableProperties) -> None:
    """Raises `Invalid`, with every reason, if other engines could not read the rows that are compacted already."""
    found = dict.fromkeys(
        (*reasons_against_location(location, table.table_id, properties), *packages_missing(properties))
    )
    for _, compacted in _streams(table):
        if compacted is not None:
            found |= dict.fromkeys(reasons_against_rows(compacted, table.partition_keys, properties))
    refuse_if([f"{table.table_id} cannot be published: {reason}" for reason in found])


def reasons_against_rows(
    compacted: CompactedStream, partition_keys: Sequence[str], properties: TableProperties
) -> Iterator[str]:
    """Why other engines cannot read the columns of the compacted rows, in the formats of these properties."""
    from compactor.schemas.open_types import OpenTable, reasons_against
    from compactor.schemas.unify import parse_schema

    sorted_by, for_delta = [key.column for key in compacted.sort_keys], OpenFormat.DELTA in properties.publish
    about = OpenTable(partition_keys, compacted.primary_keys, sorted_by, for_delta)
    yield from reasons_against(parse_schema(compacted.last_round.compacted_schema), about)


def _streams(table: StreamsOfTable) -> Iterator[tuple[PartitionStream, CompactedStream | None]]:
    for partition in table.each_partition(with_news=False):
        stream = table.stream(partition)
        yield stream, stream.load().state.compacted


def reasons_against_location(location: StoreLocation, table_id: str, properties: TableProperties) -> tuple[str, ...]:
    """Why other engines would not find the table, as its properties want it, the lake's own files would land, or
    refused changes would stay on one machine."""
    publish = reasons_against_place(location, table_id) if properties.publish else ()
    glue = reasons_against_glue(location, table_id) if properties.glue_database is not None else ()
    refused = reasons_against_quarantine(location, properties.quarantine)
    return (*publish, *glue, *_own_files_that_land(location, properties.landing), *refused)


def reasons_against_quarantine(location: StoreLocation, folder: str | None) -> tuple[str, ...]:
    """Of the property. A call on a machine may name one of its folders."""
    if folder is None or not location.is_remote or is_remote(folder):
        return ()
    return (f"quarantine is {folder}, a folder of one machine, and the lake is on S3: set it to s3://bucket/folder/",)


def _own_files_that_land(location: StoreLocation, landing: Sequence[str]) -> Iterator[str]:
    lake = location.root_uri
    for folder in landing:
        if lies_below(lake, [folder]) or lies_below(folder.rstrip("/"), [f"{lake}/{TABLES}"]):
            yield (
                f"landing has {folder}, where files of the lake {lake} are: each that is written would land, and be "
                "written again. Name a folder without them"
            )
