"""Audits a partition stream: checks that the index has exactly one correct pointer for every live row, and that pending
delta files are those that were appended.

It recomputes every key's digest from the compacted files and compares it with the index's pointers. Needs no Spark;
reads the key columns of all compacted files, and the index once for as many files as the memory has room for: 36 bytes
for each of their rows, beside 100 for each row of one file or hash bucket. Where the log has
their checksum, it reads all bytes of pending delta files, and of long lists that lie beside the log's entries.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from compactor.catalog.appending import pending_files
from compactor.catalog.snapshot import CompactedStream, StreamSnapshot
from compactor.catalog.stream import PartitionStream
from compactor.index.deletion_vectors import read_dead_rows
from compactor.index.files import read_bucket
from compactor.index.layout import TOMBSTONE_FILE_NUMBER, IndexRows, no_rows
from compactor.kernels.canonical import canonical_column
from compactor.kernels.digest import digest_keys
from compactor.kernels.hash_bucket import hash_buckets
from compactor.kernels.sha1 import Digests
from compactor.model.document import Document
from compactor.model.errors import Corrupt
from compactor.model.machine import usable_memory_bytes
from compactor.model.names import LifecycleState, counted
from compactor.planning.machine_share import GUEST_MEMORY_SHARE
from compactor.schemas.unify import parse_schema
from compactor.tabular import TabularFile, check_bytes, read_batches, written_here

PROBLEMS_SHOWN_MAX = 20

_BYTES_PER_ROW = 36
"""Bytes of an index row: a digest, a file number, a row index, and which rows are in the file that is audited."""


class VerifyReport(Document):
    """The result of an audit. `problems` is empty for a sound stream, and has at most PROBLEMS_SHOWN_MAX sentences."""

    stream: str
    rows: int
    tombstones: int
    index_runs: int
    problems: tuple[str, ...]


def verify(stream: PartitionStream, memory_bytes: int | None = None) -> VerifyReport:
    """Audits the stream at the end of its log. Raises `Corrupt` if its index cannot be read.

    Args:
        memory_bytes: for the index; None: half of what is usable"""
    snapshot = stream.load().state
    compacted = snapshot.compacted
    problems = [*stream.log.damaged_lists(), *_audit_pending(stream, snapshot)]
    if compacted is None:
        shown = tuple(problems[:PROBLEMS_SHOWN_MAX])
        return VerifyReport(stream=str(stream), rows=0, tombstones=0, index_runs=0, problems=shown)
    room = int(usable_memory_bytes() * GUEST_MEMORY_SHARE) if memory_bytes is None else memory_bytes
    index = _Index(stream, compacted)
    for files in groups_of_files(compacted, room // _BYTES_PER_ROW):
        pieces = index.read(files, problems)
        for number in files:
            try:
                problems += _audit_file(stream, compacted, pieces, number)
            except Corrupt as error:
                # A missing or damaged file is a finding, and the audit continues with the others.
                problems.append(str(error))
    if index.stray:
        problems.append(f"{counted(index.stray, 'index row')} for files that are not in the stream")
    expected = compacted.last_round.counts.tombstones
    if index.tombstones != expected:
        problems.append(f"the index holds {index.tombstones} tombstones, the last completion says {expected}")
    return VerifyReport(
        stream=str(stream),
        rows=compacted.rows,
        tombstones=index.tombstones,
        index_runs=len({file.run for file in compacted.index_files}),
        problems=tuple(problems[:PROBLEMS_SHOWN_MAX]),
    )


def _audit_pending(stream: PartitionStream, snapshot: StreamSnapshot) -> Iterator[str]:
    """Problems of delta files that a compaction will read."""
    sides = stream.compacted_sides(snapshot)
    for source in snapshot.sources.values():
        if source.state is LifecycleState.DEPRECATED:
            continue
        for delta, file in pending_files(source, stream.table_id, sides):
            try:
                check_bytes(stream.location, TabularFile.of(stream.uri_of(file.path), file, delta.delta_id))
            except Corrupt as error:
                yield str(error)


def groups_of_files(compacted: CompactedStream, rows_at_once: int) -> list[list[int]]:
    """The numbers of the compacted files in groups of at most so many rows, or of one file; at least one group."""
    groups: list[list[int]] = [[]]
    rows = 0
    for number in sorted(compacted.files):
        rows += compacted.files[number].rows
        if groups[-1] and rows > rows_at_once:
            groups.append([])
            rows = compacted.files[number].rows
        groups[-1].append(number)
    return groups


class _Index:
    """The index's rows, read bucket by bucket, and checked when they are read first. Sort values are not read.

    Attributes:
        tombstones: how many there are
        stray: rows for files that are not in the stream"""

    def __init__(self, stream: PartitionStream, compacted: CompactedStream) -> None:
        self.tombstones = self.stray = 0
        self._stream = stream
        self._compacted = compacted
        self._is_checked = False

    def read(self, files: Sequence[int], problems: list[str]) -> list[IndexRows]:
        """Its rows for these files, a piece for each hash bucket."""
        pieces = []
        compacted = self._compacted
        for bucket in sorted({file.hash_bucket for file in compacted.index_files}):
            of_bucket = [file for file in compacted.index_files if file.hash_bucket == bucket]
            rows = read_bucket(self._stream.location, of_bucket)
            if not self._is_checked:
                self._check(bucket, rows, problems)
            pieces.append(rows.take(np.flatnonzero(np.isin(rows.file_numbers, files))))
        self._is_checked = True
        return pieces

    def _check(self, bucket: int, rows: IndexRows, problems: list[str]) -> None:
        if (hash_buckets(rows.digests, self._compacted.hash_bucket_count) != bucket).any():
            problems.append(f"hash bucket {bucket} holds digests of other buckets")
        if not _strictly_ascending(rows.digests):
            problems.append(f"hash bucket {bucket} is not sorted by digest, or has a digest twice")
        known = [TOMBSTONE_FILE_NUMBER, *self._compacted.files]
        self.tombstones += int((rows.file_numbers == TOMBSTONE_FILE_NUMBER).sum())
        self.stray += int((~np.isin(rows.file_numbers, known)).sum())


def _strictly_ascending(digests: Digests) -> bool:
    later, earlier = digests[1:], digests[:-1]
    differs = later != earlier
    first = differs.argmax(axis=1)
    rows = np.arange(len(first))
    return bool((differs.any(axis=1) & (later[rows, first] > earlier[rows, first])).all())


def _audit_file(
    stream: PartitionStream, compacted: CompactedStream, pieces: Sequence[IndexRows], file_number: int
) -> Iterator[str]:
    file = compacted.files[file_number]
    if not compacted.primary_keys:
        rows = sum(batch.num_rows for batch in _batches(stream, compacted, file_number))
        if rows != file.rows:
            yield f"{file.path} holds {counted(rows, 'row')}, the log says {file.rows}"
        return
    of_buckets = (rows.take(np.flatnonzero(rows.file_numbers == file_number)) for rows in pieces)
    here = IndexRows.concatenate([no_rows(()), *of_buckets])
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
    pieces: list[npt.NDArray[np.uint32]] = [np.empty((0, 5), np.uint32)]
    for batch in _batches(stream, compacted, file_number):
        keys = [canonical_column(name, pa.chunked_array([batch.column(name)])) for name in compacted.primary_keys]
        pieces.append(digest_keys(keys, batch.num_rows))
    return np.concatenate(pieces)


def _batches(stream: PartitionStream, compacted: CompactedStream, file_number: int) -> Iterator[pa.RecordBatch]:
    """The file's rows with their key columns; without a key, with all of them."""
    file = compacted.files[file_number]
    source = TabularFile.of(stream.uri_of(file.path), file)
    schema = parse_schema(compacted.last_round.compacted_schema)
    check_bytes(stream.location, source)
    with written_here():
        # An audit must not depend on this package's own reading of pages.
        yield from read_batches(stream.location, source, compacted.primary_keys or None, schema, own_pages=False)
