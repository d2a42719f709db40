"""Audits a partition stream: checks that the index has exactly one correct pointer for every live row.

It recomputes every key's digest from the compacted files and compares it with the index's pointers. Needs no Spark;
takes about 32 bytes of memory per live row, and reads the key columns of all compacted files.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from compactor.catalog.snapshot import CompactedStream
from compactor.catalog.stream import PartitionStream
from compactor.index.deletion_vectors import read_dead_rows
from compactor.index.files import read_bucket
from compactor.index.layout import TOMBSTONE_FILE_NUMBER, IndexRows
from compactor.kernels.canonical import canonical_column
from compactor.kernels.digest import digest_keys
from compactor.kernels.hash_bucket import hash_buckets
from compactor.kernels.sha1 import Digests
from compactor.kernels.sort_values import SortColumn
from compactor.model.document import Document
from compactor.model.errors import Corrupt
from compactor.model.names import counted
from compactor.schemas.text import parse_schema
from compactor.tabular import TabularFile, check_bytes, read_batches, written_here

PROBLEMS_SHOWN_MAX = 20


class VerifyReport(Document):
    """The result of an audit. `problems` is empty for a sound stream, and has at most PROBLEMS_SHOWN_MAX sentences."""

    stream: str
    rows: int
    tombstones: int
    index_runs: int
    problems: tuple[str, ...]


def verify(stream: PartitionStream) -> VerifyReport:
    """Audits the stream at the end of its log. Raises `Corrupt` if its index cannot be read."""
    compacted = stream.load().state.compacted
    if compacted is None:
        return VerifyReport(stream=str(stream), rows=0, tombstones=0, index_runs=0, problems=())
    problems: list[str] = []
    rows = _index(stream, compacted, problems)
    tombstones = int((rows.file_numbers == TOMBSTONE_FILE_NUMBER).sum())
    for number in sorted(compacted.files):
        try:
            problems += _audit_file(stream, compacted, rows, number)
        except Corrupt as error:
            # A missing or damaged file is a finding, and the audit continues with the others.
            problems.append(str(error))
    stray = ~np.isin(rows.file_numbers, [TOMBSTONE_FILE_NUMBER, *compacted.files])
    if stray.any():
        problems.append(f"{counted(int(stray.sum()), 'index row')} for files that are not in the stream")
    expected = compacted.last_round.counts.tombstones
    if tombstones != expected:
        problems.append(f"the index holds {tombstones} tombstones, the last completion says {expected}")
    return VerifyReport(
        stream=str(stream),
        rows=compacted.rows,
        tombstones=tombstones,
        index_runs=len({file.run for file in compacted.index_files}),
        problems=tuple(problems[:PROBLEMS_SHOWN_MAX]),
    )


def _index(stream: PartitionStream, compacted: CompactedStream, problems: list[str]) -> IndexRows:
    """The index's rows of all buckets, checked bucket by bucket. Sort values are not read."""
    no_sort_columns: tuple[SortColumn, ...] = ()
    buckets = []
    for bucket in sorted({file.hash_bucket for file in compacted.index_files}):
        files = [file for file in compacted.index_files if file.hash_bucket == bucket]
        rows = read_bucket(stream.location, files, no_sort_columns)
        if (hash_buckets(rows.digests, compacted.hash_bucket_count) != bucket).any():
            problems.append(f"hash bucket {bucket} holds digests of other buckets")
        if not _strictly_ascending(rows.digests):
            problems.append(f"hash bucket {bucket} is not sorted by digest, or has a digest twice")
        buckets.append(rows)
    if not buckets:
        return IndexRows(
            np.empty((0, 5), np.uint32), np.empty(0, np.int32), np.empty(0, np.int64), np.empty((0, 0), np.uint8)
        )
    return IndexRows.concatenate(buckets)


def _strictly_ascending(digests: Digests) -> bool:
    later, earlier = digests[1:], digests[:-1]
    differs = later != earlier
    first = differs.argmax(axis=1)
    rows = np.arange(len(first))
    return bool((differs.any(axis=1) & (later[rows, first] > earlier[rows, first])).all())


def _audit_file(
    stream: PartitionStream, compacted: CompactedStream, rows: IndexRows, file_number: int
) -> Iterator[str]:
    file = compacted.files[file_number]
    here = rows.take(np.flatnonzero(rows.file_numbers == file_number))
    digests = _digests_in(stream, compacted, file_number)
    if len(digests) != file.rows:
        yield f"{file.path} holds {counted(len(digests), 'row')}, the log says {file.rows}"
    due = np.ones(len(digests), np.int64)
    for vector in compacted.deletion_vectors:
        if vector.file_number == file_number:
            due[read_dead_rows(stream.location, vector)] = 0
    pointed = np.bincount(here.row_indices[here.row_indices < len(digests)], minlength=len(digests))
    if len(here) != int(due.sum()) or (pointed != due).any():
        yield (
            f"{file.path}: {int((pointed < due).sum())} of its live rows without a pointer, "
            f"{int((pointed > due).sum())} with too many, "
            f"{int((here.row_indices >= len(digests)).sum())} pointers past its end"
        )
        return
    wrong = (digests[here.row_indices] != here.digests).any(axis=1)
    if wrong.any():
        first = int(here.row_indices[np.flatnonzero(wrong)[0]])
        yield f"{file.path}: {int(wrong.sum())} pointers lead to rows of other keys, the first to row {first}"


def _digests_in(stream: PartitionStream, compacted: CompactedStream, file_number: int) -> Digests:
    file = compacted.files[file_number]
    pieces: list[npt.NDArray[np.uint32]] = [np.empty((0, 5), np.uint32)]
    source = TabularFile.of(stream.uri_of(file.path), file)
    schema = parse_schema(compacted.last_round.compacted_schema)
    check_bytes(stream.location, source)
    with written_here():
        # An audit must not depend on this package's own reading of pages.
        for batch in read_batches(stream.location, source, compacted.primary_keys, schema, own_pages=False):
            keys = [canonical_column(name, pa.chunked_array([batch.column(name)])) for name in compacted.primary_keys]
            pieces.append(digest_keys(keys, batch.num_rows))
    return np.concatenate(pieces)
