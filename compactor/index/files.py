"""Reads and writes the primary key index's files: one hash bucket at a time, uncompressed Arrow IPC."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from compactor.catalog.actions import IndexFile
from compactor.catalog.paths import IndexFilePath, StreamFolder
from compactor.index.layout import IndexRows, from_record_batch, index_schema, no_rows, to_record_batch
from compactor.kernels.sort_values import SortColumn
from compactor.object_store import StoreLocation
from compactor.tabular.filesystems import open_filesystem, reading, writing
from compactor.tabular.writer import _Target


@dataclass(frozen=True)
class IndexTarget:
    """Where an index version is written, by one attempt only."""

    stream: StreamFolder
    index_version: int
    commit_id: str
    rows_per_file: int


def write_bucket(
    location: StoreLocation,
    target: IndexTarget,
    hash_bucket: int,
    rows: IndexRows,
    sort_columns: Sequence[SortColumn],
) -> tuple[IndexFile, ...]:
    """Writes a bucket's rows, already sorted by digest, into as many files as they need; none for no rows."""
    written = []
    for part, start in enumerate(range(0, len(rows), target.rows_per_file)):
        piece = rows.slice(start, min(start + target.rows_per_file, len(rows)))
        path = IndexFilePath(target.stream, target.index_version, target.commit_id, hash_bucket, part).key
        size_bytes = _write_file(location, f"{location.root_uri}/{path}", piece, sort_columns)
        written.append(IndexFile(hash_bucket=hash_bucket, part=part, path=path, rows=len(piece), size_bytes=size_bytes))
    return tuple(written)


def read_bucket(location: StoreLocation, files: Sequence[IndexFile], sort_columns: Sequence[SortColumn]) -> IndexRows:
    """All rows of one bucket, sorted by digest. `files` are the bucket's, in any order."""
    pieces = [_read_file(location, file, sort_columns) for file in sorted(files, key=lambda file: file.part)]
    return IndexRows.concatenate(pieces) if pieces else no_rows(sort_columns)


def _write_file(location: StoreLocation, uri: str, rows: IndexRows, sort_columns: Sequence[SortColumn]) -> int:
    filesystem, path = open_filesystem(location, uri)
    with writing(uri, "primary key index"):
        output = _Target.open(filesystem, path)
        try:
            with pa.ipc.new_file(output.stream, index_schema(sort_columns)) as writer:
                writer.write_batch(to_record_batch(rows, sort_columns))
        except BaseException:
            output.discard()
            raise
        return output.finish()


def _read_file(location: StoreLocation, file: IndexFile, sort_columns: Sequence[SortColumn]) -> IndexRows:
    uri = f"{location.root_uri}/{file.path}"
    filesystem, path = open_filesystem(location, uri)
    with reading(uri, "primary key index"):
        if uri.startswith("file://"):
            source = pa.memory_map(path)
        else:
            with filesystem.open_input_stream(path) as stream:
                source = pa.BufferReader(stream.read())
        return from_record_batch(pa.ipc.open_file(source).get_batch(0), sort_columns, uri)
