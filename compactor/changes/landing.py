"""The appends of what has landed for a table, a file or rows in a message: the changes of its feed, or else rows to
write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from compactor.catalog.delta_files import FileVersion, digest_rows, read_rows, version_of_file
from compactor.catalog.feed import OF_ROWS
from compactor.catalog.joining import Arrival
from compactor.catalog.properties import TableProperties
from compactor.changes.appending import (
    OF_DELETES,
    OF_UPSERTS,
    BatchOfChanges,
    ChangedTable,
    batch_of_sources,
    reader_of,
)
from compactor.changes.change_batch import ChangeBatch
from compactor.changes.latest import refuse_incomplete
from compactor.changes.quarantine import Quarantine, read_applicable
from compactor.changes.sources import FeedSource, open_feed
from compactor.model.errors import Invalid
from compactor.model.names import Operation
from compactor.storage.location import StoreLocation
from compactor.tabular import read_json_lines


class LandingTable(ChangedTable, Protocol):
    """The table that a file lands for."""

    @property
    def properties(self) -> TableProperties: ...


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


def arrivals_of_file(
    table: LandingTable,
    location: StoreLocation,
    uri: str,
    version: FileVersion,
    sequencer: str | None = None,
    quarantine: Quarantine | None = None,
) -> LandedFile:
    """Reads the file, and says what is to be appended. What of it is refused it quarantines, if there is a quarantine.
    `sequencer`: see `Arrival`.

    Raises `Invalid` if the file cannot be appended, or was replaced while it was read: then the newer version announces
    itself.
    """
    properties, file_id, quarantines = table.properties, id_of_file(uri, version), quarantine is not None
    if properties.changes is not None:
        reader = reader_of(table, (properties.primary_keys, properties.sort_keys), properties.changes)
        sources = open_feed(location, [uri], properties.changes, reader.feed_schema, properties.landing_format)
        batch = batch_of_sources(reader, sources, file_id, quarantines=quarantines)
    else:
        rows = FeedSource(uri, read_rows(location, [uri], table.schema, properties.landing_format))
        batch = _batch_of_rows(table, rows, file_id, quarantines=quarantines)
    if version_of_file(location, uri, was_read=True) != version:
        raise Invalid(f"{uri} was replaced while it was read: its newer version announces itself")
    return _landed(table, batch, quarantine, f"version:{version.etag or version.fingerprint}", sequencer)


def arrivals_of_rows(
    table: LandingTable, lines: bytes, rows_id: str, name: str, quarantine: Quarantine | None = None
) -> LandedFile:
    """The same of rows as JSON lines. `name`: theirs in messages."""
    properties, quarantines = table.properties, quarantine is not None
    if properties.changes is not None:
        reader = reader_of(table, (properties.primary_keys, properties.sort_keys), properties.changes)
        is_text = properties.changes.format not in OF_ROWS
        source = FeedSource(name, lines if is_text else read_json_lines(lines, name, reader.feed_schema))
        batch = batch_of_sources(reader, [source], rows_id, quarantines=quarantines)
    else:
        rows = FeedSource(name, read_json_lines(lines, name, table.schema))
        batch = _batch_of_rows(table, rows, rows_id, quarantines=quarantines)
    return _landed(table, batch, quarantine)


def _landed(
    table: LandingTable,
    batch: BatchOfChanges,
    quarantine: Quarantine | None,
    content_digest: str | None = None,
    sequencer: str | None = None,
) -> LandedFile:
    if quarantine is not None and batch.refused:
        quarantine.put(table.table_id, batch.batch_id, batch.refused)
    arrivals = [
        Arrival(partition, rows, operation, delta_id, content_digest or digest_rows(rows), sequencer)
        for (partition, rows, operation), delta_id in zip(batch.deltas, batch.delta_ids, strict=True)
    ]
    return LandedFile(batch.batch_id, arrivals, len(batch.refused))


def _batch_of_rows(table: LandingTable, source: FeedSource, file_id: str, *, quarantines: bool) -> BatchOfChanges:
    """Rows without a value of a partition key are refused: they have no place in the table."""

    def read(source: FeedSource) -> ChangeBatch:
        rows: pa.Table = source.content
        changes = ChangeBatch(source.source_name, rows, np.zeros(rows.num_rows, np.bool_), np.arange(rows.num_rows))
        refuse_incomplete(changes, table.partitioning, (), ())
        return changes

    changes, refused = read_applicable(source, read) if quarantines else (read(source), [])
    parts = table.partitioning.split(changes.rows, source.source_name)
    rows = changes.rows
    if len(parts) > 1:  # one take of small rows is much cheaper than one for each partition
        rows = rows.take(np.concatenate([numbers for _, numbers in parts]))
    ends = np.cumsum([len(numbers) for _, numbers in parts])
    deltas = [
        (partition, rows.slice(end - len(numbers), len(numbers)), Operation.UPSERT)
        for (partition, numbers), end in zip(parts, ends.tolist(), strict=True)
    ]
    return BatchOfChanges(file_id, deltas, [file_id] * len(deltas), refused)
