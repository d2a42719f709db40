"""Garbage of dropped tables: all of their objects but logs and hints, once nobody can need them.

A file of a table that was dropped before its grace period, and before its retention if that is longer, is garbage if it
was written before the grace period too: an append that had opened the table may have written it a moment later.
"""

from compactor.catalog.definition import TableDefinition
from compactor.catalog.keys import TableFolder
from compactor.maintenance.garbage import KEYS, SortedOut, StreamGarbage
from compactor.model.clock import Clock
from compactor.publishing.keys import IcebergFolder
from compactor.storage.keys import parse_any
from compactor.storage.object_store import ObjectStore
from compactor.tabular.output_file import is_unfinished


def find_dropped_garbage(
    store: ObjectStore, definition: TableDefinition, clock: Clock, grace_seconds: float
) -> StreamGarbage:
    """Of one dropped table. Published files and metadata go too: nobody publishes it any more."""
    folder, dropped_at_ms = TableFolder(definition.table_id), definition.dropped_at_ms
    since_ms = clock.now_ms() - int(grace_seconds * 1_000)
    kept_seconds = max(grace_seconds, definition.properties.retention_seconds or 0)
    is_over = dropped_at_ms is not None and dropped_at_ms < clock.now_ms() - int(kept_seconds * 1_000)
    sorted_out = SortedOut(since_ms if is_over else 0, _is_ours)
    for part in (f"{folder.key}/data", folder.open_files, IcebergFolder(definition.table_id).key, folder.news):
        for entry in store.list(f"{part}/"):
            sorted_out.add(entry, is_needed=False)
    return sorted_out.garbage(f"{definition.table_id}, dropped", {})


def _is_ours(key: str) -> bool:
    return is_unfinished(key) or parse_any(key, KEYS) is not None
