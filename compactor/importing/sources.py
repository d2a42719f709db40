"""Tells which kind of table lies at a place, and reads what an import takes of it."""

from __future__ import annotations

from compactor.importing.delta_table import LOG_FOLDER, read_delta_table
from compactor.importing.hive_folder import read_hive_folder
from compactor.importing.source_table import SourceTable
from compactor.model.errors import Invalid
from compactor.storage.object_store import ObjectStore


def read_source(store: ObjectStore, version: int | None = None, null_value: str | None = None) -> SourceTable:
    """The table at the store's root: of Delta Lake if it has a log, else a folder that is partitioned as Hive does it.

    version     of a table that has versions; None: the newest one
    null_value  what the partition of null values is called; None: it is refused
    """
    location = store.location
    if _has(store, f"{LOG_FOLDER}/"):
        return read_delta_table(location, version, null_value)
    if version is not None:
        raise Invalid(f"{location.root_uri} is a folder of files, which has no versions: leave --version out")
    return read_hive_folder(store, null_value)


def _has(store: ObjectStore, prefix: str) -> bool:
    return next(iter(store.list(prefix)), None) is not None
