"""The appends of what has landed for a table, a file or rows in a message: the changes of its feed, or else rows to
write."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from compactor.catalog.delta_files import FileVersion, digest_rows, read_rows, version_of_file
from compactor.catalog.feed import OF_ROWS
from compactor.catalog.joining import Arrival
from compactor.catalog.stream_schema import columns_needed
from compactor.catalog.tables import Table
from compactor.changes.appending import OF_DELETES, OF_UPSERTS, batch_of_sources, reader_of
from compactor.changes.change_batch import ChangeBatch
from compactor.changes.conversion import refuse_wrong_text
from compactor.changes.latest import refuse_incomplete
from compactor.changes.quarantine import Quarantine, read_applicable
from compactor.changes.sources import FeedSource, open_feed
from compactor.model.errors import Invalid
from compactor.model.names import Operation, PartitionValues
from compactor.storage.location import StoreLocation
from compactor.tabular import is_named, read_json_lines, without_value


@dataclass(frozen=True)
class LandedSource:
    """What has landed, as it was read: rows, or the text of a feed or a message.

    Attributes:
        file_id: see `LandedFile`
        version: of the file; None: it is a message
        sequencer: see `Arrival`"""

    file_id: str
    source: FeedSource
    version: FileVersion | None = None
    sequencer: str | None = None


@dataclass(frozen=True)
class LandedFile:
    """`file_id`: of this version of the file, or of the message's rows; the ids of its arrivals begin with it. What was
    quarantined is durable."""

    file_id: str
    arrivals: Sequence[Arrival]
    quarantined_rows: int

    @property
    def rows(self) -> int:
        return sum(each.rows.num_rows for each in self.arrivals)

    @property
    def delta_ids(self) -> list[str]:
        """Of each of the streams."""
        return [each.delta_id for each in self.arrivals]

    @property
    def size_bytes(self) -> int:
        """Of its rows, in memory."""
        return sum(each.size_bytes for each in self.arrivals)


def id_of_file(uri: str, version: FileVersion) -> str:
    return f"{uri}@{version.etag or version.fingerprint}"


def delta_ids_of(file_id: str) -> tuple[str, ...]:
    """All that the appends of a file may have."""
    return (file_id, *(f"{file_id}-{end}" for end in (OF_UPSERTS, OF_DELETES)))


def read_file(
    table: Table, location: StoreLocation, uri: str, version: FileVersion, sequencer: str | None = None
) -> LandedSource:
    """Raises `Invalid` if the file cannot be read, or was replaced meanwhile: then the newer version announces
    itself."""
    properties = table.properties
    if properties.changes is not None:
        schema = reader_of(table, properties.changes).feed_schema
        (source,) = open_feed(location, [uri], properties.changes, schema, properties.landing_format)
    else:
        needed = _columns_needed(table)
        source = FeedSource(uri, read_rows(location, [uri], table.schema, properties.landing_format, needed))
    if version_of_file(location, uri, was_read=True) != version:
        raise Invalid(f"{uri} was replaced while it was read: its newer version announces itself")
    return LandedSource(id_of_file(uri, version), source, version, sequencer)


def divide(table: Table, landed: LandedSource, quarantine: Quarantine | None = None) -> LandedFile:
    """What is to be appended. Changes and rows that are refused it quarantines, if there is a quarantine; otherwise it
    raises `Invalid`."""
    changes, quarantines = table.properties.changes, quarantine is not None
    if changes is not None:
        reader, source = reader_of(table, changes), landed.source
        if landed.version is None and changes.format in OF_ROWS:
            source = _parsed(source, reader.feed_schema)
        batch = batch_of_sources(reader, [source], landed.file_id, quarantines=quarantines)
        refused, deltas = batch.refused, zip(batch.deltas, batch.delta_ids, strict=True)
        arrivals = [_arrival(landed, *delta, delta_id) for delta, delta_id in deltas]
    else:

        def read(source: FeedSource) -> ChangeBatch:
            return _rows_to_write(table, source.source_name, source.content)

        source = _parsed(landed.source, table.schema, _columns_needed(table))
        found, refused = read_applicable(source, read) if quarantines else (read(source), [])
        (divided,) = _divided(table, source.source_name, [found.rows])
        arrivals = [_arrival(landed, partition, rows) for partition, rows in divided]
    if quarantine is not None and refused:
        quarantine.put(table.table_id, landed.file_id, refused)
    return LandedFile(landed.file_id, arrivals, len(refused))


def divide_together(table: Table, landed: Sequence[LandedSource]) -> list[LandedFile] | None:
    """The same of many small files and messages at once, which is much cheaper. None: they are of a feed, or one of
    them cannot be divided, so each is to be by itself."""
    if table.properties.changes is not None:
        return None
    try:
        return [
            LandedFile(each.file_id, [_arrival(each, partition, rows) for partition, rows in divided], 0)
            for each, divided in zip(landed, _all_divided(table, _tables_of(table, landed)), strict=True)
        ]
    except Exception:  # noqa: BLE001  (of one of them, whose own error says which)
        return None


_Divided: TypeAlias = list[tuple[PartitionValues, pa.Table]]


def _all_divided(table: Table, tables: Sequence[pa.Table]) -> Iterator[_Divided]:
    for _, alike in groupby(tables, lambda rows: rows.schema):
        part = list(alike)
        name = f"{len(part)} files"
        _rows_to_write(table, name, pa.concat_tables(part))
        yield from _divided(table, name, part)


def _divided(table: Table, name: str, tables: Sequence[pa.Table]) -> list[_Divided]:
    """The rows of each table, which have the same columns, by partition."""
    rows = tables[0] if len(tables) == 1 else pa.concat_tables(tables)
    parts = table.partitioning.split(rows, name)
    if len(parts) == 1:
        keyless = not table.partitioning.keys
        return [[(parts[0][0], each)] if each.num_rows or keyless else [] for each in tables]
    # One take of small rows is much cheaper than one for each table and partition.
    taken = rows.take(np.concatenate([numbers for _, numbers in parts])) if parts else rows
    ends = np.cumsum([each.num_rows for each in tables])
    found: list[_Divided] = [[] for _ in tables]
    start = 0
    for partition, numbers in parts:
        counts = np.diff(np.searchsorted(numbers, ends), prepend=0)
        for number in np.flatnonzero(counts).tolist():
            found[number].append((partition, taken.slice(start, int(counts[number]))))
            start += int(counts[number])
    return found


def _tables_of(table: Table, landed: Sequence[LandedSource]) -> list[pa.Table]:
    """The rows of each. Messages for a table whose columns are declared are parsed at once: another type of a column,
    or another column, is in none of them, or `Invalid` is raised."""
    texts = [each.source.content for each in landed if isinstance(each.source.content, bytes)]
    needed = _columns_needed(table)
    if len(texts) < 2 or table.schema is None:
        return [_parsed(each.source, table.schema, needed).content for each in landed]
    ends = np.cumsum([text.count(b"\n") for text in texts]).tolist()
    rows = read_json_lines(b"".join(texts), f"{len(texts)} messages", table.schema)
    if rows.num_rows != ends[-1] or rows.column_names != table.schema.names:
        raise Invalid("one of the messages has other columns")
    doubtful = [name for name in needed if name in rows.column_names and rows.column(name).null_count]
    if not all(is_named(name, text) for name in doubtful for text in texts):
        raise Invalid("one of the messages lacks a column")
    parts = iter([rows.slice(start, end - start) for start, end in pairwise([0, *ends])])
    return [next(parts) if isinstance(each.source.content, bytes) else each.source.content for each in landed]


def _arrival(
    landed: LandedSource,
    partition: PartitionValues,
    rows: pa.Table,
    operation: Operation = Operation.UPSERT,
    delta_id: str | None = None,
) -> Arrival:
    version = landed.version
    digest = digest_rows(rows) if version is None else f"version:{version.etag or version.fingerprint}"
    return Arrival(partition, rows, operation, delta_id or landed.file_id, digest, landed.sequencer)


def _columns_needed(table: Table) -> tuple[str, ...]:
    return columns_needed(table.properties, table.schema, table.partitioning.keys)


def _parsed(source: FeedSource, schema: pa.Schema | None, needed: Sequence[str] = ()) -> FeedSource:
    """The rows of a message, which are JSON lines. `needed`: as for `read_rows`."""
    text = source.content
    if not isinstance(text, bytes):
        return source
    rows = read_json_lines(text, source.source_name, schema)
    lacking = [name for name in without_value(rows, needed) if not is_named(name, text)]
    return replace(source, content=rows.drop_columns(lacking))


def _rows_to_write(table: Table, name: str, rows: pa.Table) -> ChangeBatch:
    """Rows without a value of a partition key are refused, since they have no place in the table, and so are those of
    which a text is not UTF-8."""
    refuse_wrong_text(rows, name)
    changes = ChangeBatch(name, rows, np.zeros(rows.num_rows, np.bool_), np.arange(rows.num_rows))
    refuse_incomplete(changes, table.partitioning, (), ())
    return changes
