"""Tells which kind of table lies at a place, and reads what an import takes of it."""

from compactor.importing.delta_table import LOG_FOLDER, read_delta_table
from compactor.importing.hive_folder import read_hive_folder
from compactor.importing.source_table import METADATA_SUFFIX, SourceTable, is_metadata, library_lacks
from compactor.model.errors import Invalid
from compactor.storage.location import StoreLocation
from compactor.storage.object_store import ObjectStore
from compactor.storage.opening import open_store


def read_source(location: StoreLocation, version: int | None = None, null_value: str | None = None) -> SourceTable:
    """The table at `location`: of Apache Iceberg if that is a metadata file, or a folder with some; of Delta Lake if it
    is a folder with a log; else a folder that is partitioned as Hive does it.

    Args:
        version: of a table of Delta Lake, or the id of a snapshot; None: the newest one
        null_value: what the partition of null values is called; None: it is refused"""
    if is_metadata(location):
        return _iceberg(location, version, null_value)
    store = open_store(location)
    if _has(store, f"{LOG_FOLDER}/"):
        return read_delta_table(location, version, null_value)
    if any(entry.key.endswith(METADATA_SUFFIX) for entry in store.list("metadata/")):
        return _iceberg(location, version, null_value)
    if version is not None:
        raise Invalid(f"{location.root_uri} is a folder of files, which has no versions: leave --version out")
    return read_hive_folder(store, null_value)


def _iceberg(location: StoreLocation, version: int | None, null_value: str | None) -> SourceTable:
    try:
        from compactor.importing.iceberg_table import read_iceberg_table
    except ImportError as error:
        raise library_lacks(location.root_uri, "Apache Iceberg", "iceberg") from error
    return read_iceberg_table(location, version, null_value)


def _has(store: ObjectStore, prefix: str) -> bool:
    return next(iter(store.list(prefix)), None) is not None
