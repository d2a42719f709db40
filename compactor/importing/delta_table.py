"""A table of Delta Lake: the files that are live in one version of it, as the library `deltalake` reads its log.

A file stays where it is unless a deletion vector leaves rows of it out, or its columns have other names than the
table's, or it has columns that the table has not (column mapping). Its rows are then read by the names that the log
gives to its columns. The values of partitions are those of the log, as text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from compactor.importing.file_rows import Bools, FileRows, TableColumns, bare_schema, id_in_file, name_in_file, parquet
from compactor.importing.source_table import (
    OldFile,
    SourceTable,
    divided,
    library_lacks,
    partition_text,
    plain_uri,
    reading_table,
)
from compactor.model.errors import Invalid
from compactor.model.names import counted
from compactor.schemas.unify import plain_schema
from compactor.storage.concurrently import run_concurrently
from compactor.storage.location import StoreLocation
from compactor.storage.opening import with_region
from compactor.tabular import read_schema

if TYPE_CHECKING:
    from deltalake import DeltaTable

LOG_FOLDER = "_delta_log"

_PHYSICAL_NAME, _ID = b"delta.columnMapping.physicalName", b"delta.columnMapping.id"
_BY_ID = "id"
"""The column mapping by which names in files mean nothing."""


def read_delta_table(location: StoreLocation, version: int | None, null_value: str | None) -> SourceTable:
    """The live files of the table at `location`. Reads its log, its deletion vectors, and the end of each file.

    Args:
        version: None: the newest one
        null_value: what the partition of null values is called; None: it is refused

    Raises `Invalid` without the library, and for a table that it cannot read."""
    table, masks = _open(location, version)
    metadata = table.metadata()
    keys, columns = tuple(metadata.partition_columns), pa.schema(table.schema().to_arrow())
    mapping = _column_mapping(table)
    names = TableColumns(columns, partial(_keys, mapping), id_in_file if mapping == _BY_ID else name_in_file)
    written = bare_schema(plain_schema(pa.schema([each for each in columns if each.name not in keys])))

    def file_of(live: _Live) -> OldFile:
        held, mask = read_schema(location, parquet(live.uri)), masks.get(live.uri)
        rows = FileRows(live.uri, held, names.named(held), written, live=None if mask is None else partial(_live, mask))
        return OldFile(live.uri, live.size_bytes, rows.rewrite(_deletes(mask)))

    found = _live_files(table, location, keys, null_value)
    placed = zip((each.values for each in found), run_concurrently(location, file_of, found), strict=True)
    return SourceTable(
        location.root_uri,
        f"table of Delta Lake {location.root_uri} at version {table.version()}",
        keys,
        divided(keys, placed),
        version=table.version(),
    )


def _open(location: StoreLocation, version: int | None) -> tuple[DeltaTable, dict[str, Bools]]:
    """The table, and what its deletion vectors leave."""
    try:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError
    except ImportError as error:
        raise library_lacks(location.root_uri, "Delta Lake", "delta") from error
    taken = unquote(location.root_uri).replace("\\", "/")
    if taken != location.root_uri:  # it decodes a URI, and its path once more
        raise Invalid(
            f"{location.root_uri} cannot be read as a table of Delta Lake: the library takes this name for {taken}. "
            "Copy the table to a folder whose name has no backslash, and no % before two hexadecimal digits"
        )
    options: dict[str, str] = {}
    if location.is_remote:
        region, endpoint = with_region(location).region, location.endpoint_url
        options |= {} if region is None else {"AWS_REGION": region}
        options |= {} if endpoint is None else {"AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": "true"}
    with reading_table(location.root_uri, "Delta Lake", DeltaError):
        table = DeltaTable(quote(location.root_uri, safe=":/"), version, options)
        return table, dict(_masks(table))


def _masks(table: DeltaTable) -> Iterator[tuple[str, Bools]]:
    """Of each file with a deletion vector bool (rows,): which rows are live. Rows after its end are, too."""
    for batch in pa.RecordBatchReader.from_stream(table.deletion_vectors()):
        for uri, mask in zip(batch.column(0), batch.column(1), strict=True):
            yield plain_uri(unquote(uri.as_py())), mask.values.to_numpy(zero_copy_only=False)


@dataclass(frozen=True)
class _Live:
    uri: str
    size_bytes: int
    values: tuple[str, ...]


def _live_files(table: DeltaTable, location: StoreLocation, keys: Sequence[str], null_value: str | None) -> list[_Live]:
    """The oldest first. The log has paths below the table, or URIs, both percent-encoded."""
    actions = pa.table(table.get_add_actions())
    paths = map(unquote, actions["path"].to_pylist())
    uris = [path if ":/" in path else f"{location.root_uri}/{path}" for path in paths]
    texts: list[list[str | None]] = []
    if keys:
        within = actions["partition"].combine_chunks()
        texts = [pc.struct_field(within, [key]).cast(pa.string()).to_pylist() for key in keys]
    named = [[partition_text(key, each, null_value) for each in column] for key, column in zip(keys, texts)]
    values = zip(*named, strict=True) if keys else [()] * len(uris)
    files = [_Live(plain_uri(uri), *rest) for uri, *rest in zip(uris, actions["size_bytes"].to_pylist(), values)]
    order = sorted(
        zip(actions["modification_time"].to_pylist(), range(len(files))), key=lambda e: (e[0], files[e[1]].uri)
    )
    return [files[number] for _, number in order]


def _column_mapping(table: DeltaTable) -> str | None:
    """None: files have the table's names. The property counts only if the protocol has the feature, too: a table may
    have been created with the property alone."""
    protocol = table.protocol()
    if protocol.min_reader_version >= 3 and "columnMapping" not in (protocol.reader_features or ()):
        return None
    return table.metadata().configuration.get("delta.columnMapping.mode") if protocol.min_reader_version >= 2 else None


def _keys(mapping: str | None, column: pa.Field) -> tuple[str, ...]:
    """By what a file holds a column of the table."""
    found = {_BY_ID: _ID, "name": _PHYSICAL_NAME}.get(mapping or "")
    return ((column.metadata or {}).get(found, column.name.encode()).decode(),)


def _deletes(mask: Bools | None) -> tuple[str, ...]:
    if mask is None:
        return ()
    return (f"has a deletion vector, which leaves {counted(int(np.count_nonzero(~mask)), 'row')} out",)


def _live(mask: Bools, _location: StoreLocation, first: int, rows: pa.RecordBatch) -> Bools:
    within = mask[first : first + rows.num_rows]
    return np.pad(within, (0, rows.num_rows - len(within)), constant_values=True)
