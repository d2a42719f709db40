"""Reads and writes the primary key index's files: one hash bucket at a time, uncompressed Arrow IPC."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from compactor.catalog.actions import IndexFile, IndexPointers
from compactor.catalog.paths import IndexFilePath, IndexPointersPath, StreamFolder
from compactor.errors import Corrupt
from compactor.index.layout import (
    POINTER_SCHEMA,
    VOID_FILE_NUMBER,
    IndexRows,
    IndexSegment,
    no_rows,
    to_record_batch,
)
from compactor.kernels.digest_sort import digest_order
from compactor.kernels.hash_bucket import hash_buckets
from compactor.kernels.sort_values import SortColumn
from compactor.object_store import StoreLocation
from compactor.tabular.filesystems import open_filesystem, reading, writing
from compactor.tabular.writer import OutputFile

_DIGESTS_SAMPLED = 64
"""Enough to tell two buckets apart for certain, too few to read a file for them."""


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
        size_bytes = _write_file(location, f"{location.root_uri}/{path}", to_record_batch(piece, sort_columns))
        written.append(
            IndexFile(
                hash_bucket=hash_bucket,
                run=target.index_version,
                part=part,
                path=path,
                rows=len(piece),
                size_bytes=size_bytes,
            )
        )
    return tuple(written)


def write_pointers(
    location: StoreLocation,
    target: IndexTarget,
    file: IndexFile,
    file_numbers: npt.NDArray[np.int32],
    row_indices: npt.NDArray[np.int64],
) -> IndexFile:
    """Writes pointers that hold in place of a file's own, one for each of its rows; the file with them."""
    path = IndexPointersPath(
        target.stream, target.index_version, target.commit_id, file.hash_bucket, file.run, file.part
    ).key
    pointers = pa.record_batch([pa.array(file_numbers), pa.array(row_indices)], schema=POINTER_SCHEMA)
    size_bytes = _write_file(location, f"{location.root_uri}/{path}", pointers)
    return file.model_copy(update={"pointers": IndexPointers(path=path, size_bytes=size_bytes)})


def open_bucket(
    location: StoreLocation, files: Sequence[IndexFile], hash_bucket_count: int | None = None
) -> list[IndexSegment]:
    """One bucket's index files, opened; newest run first. `files` are the bucket's, in any order.

    hash_bucket_count  of the index; with it, a file of another bucket is noticed, by a sample of its digests

    Raises `Corrupt` naming the file that is not what the log says.
    """
    segments = []
    for file in sorted(files, key=lambda file: (-file.run, file.part)):
        segment = _open_file(location, file)
        if hash_bucket_count is not None:
            _refuse_other_bucket(segment, f"{location.root_uri}/{file.path}", file.hash_bucket, hash_bucket_count)
        segments.append(segment)
    return segments


def overlay(pieces: Sequence[IndexRows]) -> tuple[IndexRows, npt.NDArray[np.int64]]:
    """At least one piece, newest first, as one: sorted by digest, of each digest the newest row.

    Returns the rows, and where each was in the pieces laid one after the other.
    """
    rows = IndexRows.concatenate(pieces)
    if sum(len(piece) > 0 for piece in pieces) <= 1:
        return rows, np.arange(len(rows))
    order = digest_order(rows.words)
    words = rows.words[order]
    newest = np.ones(len(order), np.bool_)
    newest[1:] = (words[1:] != words[:-1]).any(axis=1)
    return rows.take(order[newest]), order[newest]


def read_bucket(
    location: StoreLocation,
    files: Sequence[IndexFile],
    sort_columns: Sequence[SortColumn],
    hash_bucket_count: int | None = None,
) -> IndexRows:
    """What one bucket's index says, all runs together: live rows and tombstones, sorted by digest."""
    segments = open_bucket(location, files, hash_bucket_count)
    if not segments:
        return no_rows(sort_columns)
    parts_of_runs = [list(parts) for _, parts in groupby(segments, key=lambda segment: segment.file.run)]
    runs = [IndexRows.concatenate([part.rows(sort_columns) for part in parts]) for parts in parts_of_runs]
    rows, _ = overlay(runs)
    return rows.take(np.flatnonzero(rows.file_numbers != VOID_FILE_NUMBER))


def _write_file(location: StoreLocation, uri: str, batch: pa.RecordBatch) -> int:
    filesystem, path = open_filesystem(location, uri)
    with writing(uri, "primary key index"):
        output = OutputFile.open(filesystem, path)
        try:
            with pa.ipc.new_file(output.stream, batch.schema) as writer:
                writer.write_batch(batch)
        except BaseException:
            output.discard()
            raise
        return output.finish()


def _open_file(location: StoreLocation, file: IndexFile) -> IndexSegment:
    pointers = None if file.pointers is None else _read_batch(location, file.pointers.path, file.rows)
    batch = _read_batch(location, file.path, file.rows)
    return IndexSegment(file, f"{location.root_uri}/{file.path}", batch, pointers)


def _read_batch(location: StoreLocation, path: str, rows: int) -> pa.RecordBatch:
    uri = f"{location.root_uri}/{path}"
    filesystem, place = open_filesystem(location, uri)
    with reading(uri, "primary key index"):
        if uri.startswith("file://"):
            source = pa.memory_map(place)
        else:
            with filesystem.open_input_stream(place) as stream:
                source = pa.BufferReader(stream.read())
        try:
            batch = pa.ipc.open_file(source).get_batch(0)
        except (pa.ArrowException, OSError) as error:
            raise Corrupt(f"{uri} cannot be read as primary key index: {error}") from error
    if batch.num_rows != rows:
        raise Corrupt(f"{uri} holds {batch.num_rows} rows, but the log says {rows}")
    return batch


def _refuse_other_bucket(segment: IndexSegment, uri: str, hash_bucket: int, hash_bucket_count: int) -> None:
    step = max(1, len(segment.raw_digests) // _DIGESTS_SAMPLED)
    sample = segment.raw_digests[::step].view(">u4").astype(np.uint32)
    if (hash_buckets(sample, hash_bucket_count) != hash_bucket).any():
        raise Corrupt(f"{uri} holds digests of other hash buckets than {hash_bucket}")
