"""The deltas of one file that has landed for a table: the changes of its feed, or else rows to write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from compactor.catalog.delta_files import FileVersion, read_rows, version_of_file
from compactor.catalog.properties import TableProperties
from compactor.changes.appending import ChangedTable, deltas_of_changes
from compactor.model.errors import Invalid
from compactor.model.names import Operation
from compactor.storage.location import StoreLocation


class LandingTable(ChangedTable, Protocol):
    """The table that a file lands for."""

    @property
    def properties(self) -> TableProperties: ...


@dataclass(frozen=True)
class LandedFile:
    """`file_id`: of this version of the file; its deltas' ids begin with it."""

    file_id: str
    deltas: Sequence[tuple[dict[str, str], pa.Table, str]]
    delta_ids: Sequence[str]


def deltas_of_file(table: LandingTable, location: StoreLocation, uri: str, version: FileVersion) -> LandedFile:
    """Reads the file, and says what is to be appended. Raises `Invalid` if it cannot be, or if the file was replaced
    while it was read: then the newer version announces itself."""
    properties = table.properties
    file_id = f"{uri}@{version.etag or version.fingerprint}"
    deltas: Sequence[tuple[dict[str, str], pa.Table, str]]
    if properties.changes is not None:
        keys = (properties.primary_keys, properties.sort_keys)
        deltas, ids = deltas_of_changes(table, location, keys, [uri], properties.changes, file_id)
    else:
        rows = read_rows(location, [uri], table.schema)
        parts = table.partitioning.split(rows, uri)
        deltas = [(partition, rows.take(numbers), Operation.UPSERT) for partition, numbers in parts]
        ids = [file_id] * len(deltas)
    if version_of_file(location, uri) != version:
        raise Invalid(f"{uri} was replaced while it was read: its newer version announces itself")
    return LandedFile(file_id, deltas, ids)
