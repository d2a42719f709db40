"""Drops a table: deletes everything that the lake stores of it.

    1. create `dropped_tables/<table id>`      from now on no table with this id can be created
    2. delete the definition log               from now on the table cannot be opened
    3. delete the data, then the streams' logs

After a crash between two steps the table may still be listed; a second call continues. The id is never used again, so
an entry that a stalled writer creates in a deleted log is never read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from compactor.catalog.tables import DeltaCatalog
from compactor.model.errors import Invalid
from compactor.model.names import TableId
from compactor.storage.listing import encoded_names
from compactor.storage.object_store import ObjectEntry
from compactor.storage.paths import DroppedTable, TableFolder


@dataclass(frozen=True)
class TableObjects:
    """The number and size of a table's objects. Files registered in place belong to their owner and are not counted."""

    streams: int
    objects: int
    size_bytes: int


def find_table_objects(lake: DeltaCatalog, table_id: str) -> TableObjects:
    """Raises `Invalid` if the lake has no object of such a table."""
    TableId.parse(table_id)
    folder = TableFolder(table_id)
    found = list(_objects(lake, folder))
    if not found:
        lake.table(table_id)  # raises with the reason if the id is not valid
        raise Invalid(f"there is nothing of table {table_id} in {lake.location.root_uri}")
    streams = sum(1 for _ in encoded_names(lake.store, f"{folder.streams}/"))
    return TableObjects(streams, len(found), sum(entry.size_bytes for entry in found))


def drop_table(lake: DeltaCatalog, table_id: str) -> None:
    """Deletes every object of a table. May be repeated."""
    find_table_objects(lake, table_id)
    folder = TableFolder(table_id)
    lake.store.put_if_absent(DroppedTable(table_id).key, b"")
    for entry in _objects(lake, folder):
        lake.store.delete(entry.key)


def _objects(lake: DeltaCatalog, folder: TableFolder) -> Iterator[ObjectEntry]:
    for part in (folder.definition_log, f"{folder.key}/data", folder.open_files, folder.iceberg, folder.streams):
        yield from list(lake.store.list(f"{part}/"))
