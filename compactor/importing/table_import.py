"""Imports a table that exists already: its files are registered in place as the first deltas of a table, or copied,
or rewritten where they cannot stay as they are.

Each partition is a delta, or several, each of at most `FILES_PER_DELTA` files that are either all rewritten or all not.
Their ids follow from the source and the partition. So an import that was stopped goes on where it was: what is there
already is not measured again, and what was rewritten is read again, but not written. A file that was changed since
makes it fail, and nothing of that partition is appended twice. The source is only read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice

import numpy as np
import pyarrow as pa

from compactor.catalog.appending import DeltaRequest, add_delta
from compactor.catalog.delta_files import ROWS_PER_DELTA_FILE, DeltaFiles, DeltaRules, content_type_of
from compactor.catalog.tables import Table
from compactor.importing.delta_table import LOG_FOLDER, read_delta_table
from compactor.importing.file_rows import NO_DIGESTS, digests_of
from compactor.importing.hive_folder import read_hive_folder
from compactor.importing.source_table import (
    METADATA_SUFFIX,
    OldFile,
    SourcePartition,
    SourceTable,
    is_metadata,
    library_lacks,
)
from compactor.model.errors import Invalid
from compactor.model.names import ContentType, Operation, PartitionValues, render_partition
from compactor.storage.concurrently import AT_ONCE, run_concurrently
from compactor.storage.keys import encode_partition
from compactor.storage.location import StoreLocation
from compactor.storage.object_store import ObjectStore
from compactor.storage.opening import open_store
from compactor.tabular import TabularFile, read_batches

FILES_PER_DELTA = 1_000
"""Files of a delta at most: every reader of the log reads an entry whole."""

_ID_BEGINS = "import-"


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


@dataclass(frozen=True)
class ImportedPartition:
    """`rows`: of all files; None: it cannot be imported, for these reasons. Warnings: see `Delta`."""

    partition: SourcePartition
    rows: int | None
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class TableImport:
    """`fallback`: the content type of files whose names do not tell it; `copies`: files are copied into the lake."""

    source: SourceTable
    fallback: ContentType
    copies: bool = False

    def into(self, table: Table, location: StoreLocation, *, is_trial: bool = False) -> Iterator[ImportedPartition]:
        """Imports each partition that can be, as the caller takes them; of others it has the reasons.

        Args:
            is_trial: rows that would be rewritten are counted, and not written: the table is for plans, not for reading
        """
        rewrite, rest = _counted if is_trial else _written, iter(self.source.partitions)
        while together := list(islice(rest, AT_ONCE)):
            yield from run_concurrently(location, lambda each: self._import(table, each, location, rewrite), together)

    def reasons_against_place(self, table: Table, location: StoreLocation) -> tuple[str, ...]:
        """Why the files cannot stay where they are."""
        if self.copies:
            return ()
        rules = DeltaRules(table.table_id, {}, Operation.UPSERT, allow_files=table.properties.allow_files)
        for partition in self.source.partitions:
            try:
                for file in partition.files:
                    if file.rewrite is None:
                        rules.check_place(location, file.uri)
            except Invalid as error:  # one is enough: the others lie beside it
                return error.reasons
        return ()

    def duplicates(self, keys: Sequence[str], location: StoreLocation) -> Iterator[int]:
        """For each partition, the rows that a compaction leaves out since a later one has their key. Reads the key
        columns, and keeps 20 bytes for each row of a partition."""
        names = sorted(keys)
        for partition in self.source.partitions:
            found = [digests_of(rows, names) for file in partition.files for rows in self._rows(file, names, location)]
            whole = np.concatenate(found) if found else NO_DIGESTS
            yield len(whole) - len(np.unique(whole))

    def _rows(self, file: OldFile, names: Sequence[str], location: StoreLocation) -> Iterator[pa.RecordBatch]:
        if file.rewrite is not None:
            return file.rewrite.rows(location, names)
        return read_batches(location, TabularFile(file.uri, content_type_of(file.uri, self.fallback)), names)

    def _import(
        self, table: Table, partition: SourcePartition, location: StoreLocation, rewrite: _Rewriting
    ) -> ImportedPartition:
        rows, warnings = 0, list[str]()
        try:
            for number, files in enumerate(_deltas(partition.files)):
                delta_id = self._delta_id(partition, number)
                if files[0].rewrite is not None:
                    appended = rewrite(table, partition.values, files, location, delta_id)
                else:
                    uris = [file.uri for file in files]
                    delta = table.append(
                        partition.values, uris, delta_id=delta_id, content_type=self.fallback, copy=self.copies
                    )
                    appended = delta.rows, delta.warnings
                rows += appended[0]
                warnings += appended[1]
        except Invalid as error:
            return ImportedPartition(partition, None, self._understood(partition, error))
        return ImportedPartition(partition, rows, warnings=tuple(warnings))

    def _understood(self, partition: SourcePartition, error: Invalid) -> tuple[str, ...]:
        """The reasons, as a person reads them who knows of no delta ids: one is named only if it was used before."""
        if not any(_ID_BEGINS in reason for reason in error.reasons):
            return error.reasons
        where, source = render_partition(partition.values), self.source.uri
        what_to_do = "append what is new with `lithify table append`, or import into another table"
        if self.source.version is not None:
            what_to_do = f"name the version that was imported with --version, or {what_to_do}"
        return (f"{where} was imported from {source} before, and has other files now: {what_to_do}",)

    def _delta_id(self, partition: SourcePartition, number: int) -> str:
        named = f"{self.source.uri}\n{encode_partition(partition.values)}\n{number}"
        return f"{_ID_BEGINS}{hashlib.sha256(named.encode()).hexdigest()[:32]}"


_Rewriting = Callable[[Table, PartitionValues, Sequence[OldFile], StoreLocation, str], tuple[int, Sequence[str]]]
"""Appends a delta of files that cannot stay, by its id. Returns its rows, and warnings."""


def _deltas(files: Sequence[OldFile]) -> Iterator[Sequence[OldFile]]:
    """The files of each delta, in order: all are rewritten, or none is."""
    for _, alike in groupby(files, lambda file: file.rewrite is None):
        while together := list(islice(alike, FILES_PER_DELTA)):
            yield together


def _written(
    table: Table, partition: PartitionValues, files: Sequence[OldFile], location: StoreLocation, delta_id: str
) -> tuple[int, Sequence[str]]:
    rewrites = [file.rewrite for file in files if file.rewrite is not None]
    batches = (rows for each in rewrites for rows in each.rows(location, None))
    delta = table.append(partition, pa.RecordBatchReader.from_batches(rewrites[0].schema, batches), delta_id=delta_id)
    return delta.rows, delta.warnings


def _counted(
    table: Table, partition: PartitionValues, files: Sequence[OldFile], location: StoreLocation, delta_id: str
) -> tuple[int, Sequence[str]]:
    """What plans read, the log and a footer: an empty file has the columns, and the log says how many rows and bytes
    would be written."""
    rewrites = [file.rewrite for file in files if file.rewrite is not None]
    empty = table.append(partition, rewrites[0].schema.empty_table(), delta_id=f"{delta_id}-columns")
    rows = sum(each.count(location) for each in rewrites)
    count = -(-rows // ROWS_PER_DELTA_FILE)
    planned = tuple(
        empty.files[0].model_copy(
            update={
                "file_number": 1 + number,
                "rows": -(-rows // count),
                "size_bytes": sum(file.size_bytes for file in files) // count,
                "row_groups": (),
            }
        )
        for number in range(count)
    )
    if planned:
        request, found = DeltaRequest(Operation.UPSERT, None, delta_id, None), DeltaFiles(planned, delta_id, ())
        table.stream(partition).log.append(lambda at: add_delta(at.state, request, found, empty.position))
    return rows, empty.warnings
