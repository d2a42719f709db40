"""Reads and writes the primary key index's files: one hash bucket at a time, uncompressed Arrow IPC."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from compactor.catalog.keys import StreamFolder
from compactor.index.keys import IndexFilePath, IndexPointersPath
from compactor.index.layout import (
    DIGEST_BYTES,
    TOMBSTONE_FILE_NUMBER,
    VOID_FILE_NUMBER,
    IndexRows,
    IndexSegment,
    no_rows,
    pointer_batch,
    to_record_batch,
)
from compactor.index.packed_pointers import PACKED_ROWS_MIN, PointerColumns
from compactor.index.page_sums import FOOTER_BYTES, PageSums, footer_span
from compactor.index.paged_file import IN_FOLDER, KEPT_BYTES_MAX, KeptFiles, PagedFile, PageReader
from compactor.index.remote_search import RowsInRun, expected_rows, expected_share
from compactor.index.shared_pages import PAGE_BYTES, SharedPages
from compactor.kernels.digest_sort import RowsToMerge, merge_by_digest
from compactor.kernels.hash_bucket import hash_buckets
from compactor.kernels.sha1 import Digests
from compactor.kernels.sort_values import SortColumn
from compactor.model.errors import Corrupt
from compactor.model.files import IndexFile, IndexPointers
from compactor.model.names import counted
from compactor.storage.location import StoreLocation
from compactor.storage.opening import range_reader
from compactor.storage.ranges import Span
from compactor.storage.sending import Sending
from compactor.tabular.filesystems import local_path, reading, writing
from compactor.tabular.output_file import OutputFile
from compactor.tabular.same_file import check_crc32

_DIGESTS_SAMPLED = 64
"""Digests that are read of a file: enough to tell two buckets apart, without reading the whole file."""


COMPARED_BYTES = 8 * 1024 * 1024
"""Files on this machine up to this size are compared with their checksum before they are searched: in a millisecond. Of
larger ones, a small delta reads few pages, and shall not read all."""

_ROWS_PER_PIECE = 16 * 1024
"""Rows that are read of an index file at a time where they are merged with others."""

_Column = npt.NDArray[Any]


@dataclass(frozen=True)
class IndexTarget:
    """The location of an index version that one attempt of a round writes. Tasks add their own attempts.

    Attributes:
        packed_rows_min: files with fewer rows have pointers that are not packed"""

    stream: StreamFolder
    index_version: int
    commit_id: str
    rows_per_file: int
    packed_rows_min: int = PACKED_ROWS_MIN


def write_bucket(
    location: StoreLocation,
    target: IndexTarget,
    hash_bucket: int,
    rows: IndexRows,
    sort_columns: Sequence[SortColumn],
    task_attempt: str,
    *,
    sending: Sending,
) -> tuple[IndexFile, ...]:
    """Writes a bucket's rows, already sorted by digest, into as many files as needed; none for no rows. Files on an
    object store may still be on their way.

    The rows' digests are turned into the files' byte order where they lie, so that they are not in memory twice:
    afterwards the rows are of no use.
    """
    written = []
    for part, start in enumerate(range(0, len(rows), target.rows_per_file)):
        piece = rows.slice(start, min(start + target.rows_per_file, len(rows)))
        path = IndexFilePath(target.stream, target.index_version, target.commit_id, hash_bucket, part, task_attempt).key
        pointers = PointerColumns.of(piece.file_numbers, piece.row_indices, target.packed_rows_min)
        batch = to_record_batch(piece, pointers, sort_columns)
        size_bytes, crc32 = _write_file(location, f"{location.root_uri}/{path}", batch, sending)
        written.append(
            IndexFile(
                hash_bucket=hash_bucket,
                run=target.index_version,
                part=part,
                path=path,
                rows=len(piece),
                size_bytes=size_bytes,
                crc32=crc32,
                file_number_bytes=pointers.file_number_bytes,
                row_index_bytes=pointers.row_index_bytes,
            )
        )
    return tuple(written)


def write_pointers(
    location: StoreLocation,
    target: IndexTarget,
    file: IndexFile,
    file_numbers: npt.NDArray[np.int32],
    row_indices: npt.NDArray[np.int64],
    task_attempt: str,
    *,
    sending: Sending,
) -> IndexFile:
    """Writes pointers that replace a file's own, one for each of its rows; returns the file with them. On an object
    store they may still be on their way."""
    path = IndexPointersPath(
        target.stream, target.index_version, target.commit_id, file.hash_bucket, file.run, file.part, task_attempt
    ).key
    columns = PointerColumns.of(file_numbers, row_indices, target.packed_rows_min)
    size_bytes, crc32 = _write_file(location, f"{location.root_uri}/{path}", pointer_batch(columns), sending)
    pointers = IndexPointers(
        path=path,
        size_bytes=size_bytes,
        crc32=crc32,
        file_number_bytes=columns.file_number_bytes,
        row_index_bytes=columns.row_index_bytes,
    )
    return file.model_copy(update={"pointers": pointers})


@dataclass(frozen=True)
class Prefetch:
    """The parts of a bucket's index that are read first. Of files on an object store only these are fetched at once,
    and the others when they are read; files on this machine are mapped.

    Attributes:
        digests: digests that will be searched, in digest order; None: none
        pointers: whether those of the rows will be read that are found
        file_numbers: whether all file numbers will be read
        everything: whether all columns will be read
        kept_bytes: of remote files that this process keeps for later readers"""

    digests: Digests | None = None
    pointers: bool = False
    file_numbers: bool = False
    everything: bool = True
    kept_bytes: int = KEPT_BYTES_MAX


ALL = Prefetch()


def open_bucket(
    location: StoreLocation,
    files: Sequence[IndexFile],
    hash_bucket_count: int | None = None,
    prefetch: Prefetch = ALL,
    reader: PageReader | None = None,
) -> list[IndexSegment]:
    """One bucket's index files, opened; newest run first. `files` are the bucket's, in any order.

    Args:
        hash_bucket_count: of the index, to detect a file of another bucket by a sample of its digests
        reader: of remote files; None: this process's, if the location is remote

    Raises `Corrupt` naming the file that differs from the log's statement."""
    if reader is None and location.is_remote:
        reader = range_reader(location)
    opened = [
        _Opened.of(location.root_uri, file, rows_in_run, prefetch, reader) for file, rows_in_run in _in_runs(files)
    ]
    segments = []
    for each in opened:
        file, segment = each.file, each.segment()
        if hash_bucket_count is not None and prefetch.everything:
            _refuse_other_bucket(segment.raw_digests, f"{location.root_uri}/{file.path}", file, hash_bucket_count)
        elif hash_bucket_count is not None and prefetch.digests is not None:
            found = segment.first_digests(_DIGESTS_SAMPLED, prefetch.digests)
            _refuse_other_bucket(found, f"{location.root_uri}/{file.path}", file, hash_bucket_count)
        segments.append(segment)
    return segments


_Placed = tuple[IndexFile, RowsInRun]


def _in_runs(files: Sequence[IndexFile]) -> list[_Placed]:
    """The files of a bucket, newest run first, each with its place in its run."""
    in_order = sorted(files, key=lambda file: (-file.run, file.part))
    run_rows: dict[int, int] = defaultdict(int)
    before = []
    for file in in_order:
        before.append(run_rows[file.run])
        run_rows[file.run] += file.rows
    return [(file, RowsInRun(rows_before, run_rows[file.run])) for rows_before, file in zip(before, in_order)]


@dataclass(frozen=True)
class RowPointer:
    """The location of a key's row: a compacted file and a row in it, from 0."""

    file_number: int
    row_index: int


def find_row(
    location: StoreLocation, files: Sequence[IndexFile], digest: Digests, reader: PageReader | None = None
) -> RowPointer | None:
    """The live row of a key; None if the key does not exist. Of each run one part is opened, in which the digest is
    expected, and of these few pages are read, all requested together; its neighbours only if the digest lies there.

    Args:
        files: those of the digest's bucket, in any order
        digest: (1, 5)
        reader: of the files; None: this process's

    Raises `Corrupt` naming the file that differs from the log's statement."""
    if reader is None:
        reader = range_reader(location) if location.is_remote else IN_FOLDER
    prefetch = Prefetch(digest, pointers=True, everything=False)

    def opened(part: _Placed) -> _Opened:
        return _Opened.of(location.root_uri, *part, prefetch, reader)

    begun = []
    for _, of_run in groupby(_in_runs(files), key=lambda part: part[0].run):
        parts = list(of_run)
        expected_row = expected_share(digest) * parts[0][1].run_rows
        number = max(bisect_right(parts, expected_row, key=lambda part: part[1].rows_before) - 1, 0)
        begun.append((parts, number, opened(parts[number])))
    for parts, number, first in begun:
        pointer = _find_in_run(parts, number, first.segment(), digest, lambda part: opened(part).segment())
        if pointer is not None:
            is_deleted = pointer.file_number in (TOMBSTONE_FILE_NUMBER, VOID_FILE_NUMBER)
            return None if is_deleted else pointer
    return None


def _find_in_run(
    parts: Sequence[_Placed],
    number: int,
    segment: IndexSegment,
    digest: Digests,
    open_part: Callable[[_Placed], IndexSegment],
) -> RowPointer | None:
    """Parts are sorted like their rows: from the one of this number on, those on the side on which the digest lies."""
    came_from = 0
    while True:
        found = segment.find(digest)
        if len(found):
            rows = segment.rows((), found)
            return RowPointer(int(rows.file_numbers[0]), int(rows.row_indices[0]))
        side = segment.side_of(digest) if len(parts) > 1 else 0
        number += side
        if side in (0, -came_from) or not 0 <= number < len(parts):
            return None
        came_from = side
        segment = open_part(parts[number])


@dataclass(frozen=True)
class IndexPart:
    """Rows of an open index file that have not been read yet.

    Attributes:
        positions: of the rows, ascending; None: all rows"""

    segment: IndexSegment
    positions: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return self.segment.file.rows if self.positions is None else len(self.positions)

    def rows(self, sort_columns: Sequence[SortColumn]) -> IndexRows:
        return self.segment.rows(sort_columns, self.positions)

    def in_pieces(self, sort_columns: Sequence[SortColumn], rows_max: int = _ROWS_PER_PIECE) -> Iterator[IndexRows]:
        """The same, a few at a time, once all are there."""
        self.segment.fetch(sort_columns, self.positions)
        for start in range(0, len(self), rows_max):
            end = min(start + rows_max, len(self))
            if self.positions is None:
                yield self.segment.rows_between(sort_columns, start, end)
            else:
                yield self.segment.rows(sort_columns, self.positions[start:end])


def overlay(parts: Sequence[IndexPart], sort_columns: Sequence[SortColumn]) -> tuple[IndexRows, npt.NDArray[np.int32]]:
    """Merges parts, newest first: sorted by digest, the newest row of each digest.

    Returns the rows, and the position of each in the concatenated parts.
    """
    some = [part for part in parts if len(part)]
    if not some:
        return no_rows(sort_columns), np.empty(0, np.int32)
    if len(some) == 1:
        return some[0].rows(sort_columns), np.arange(len(some[0]), dtype=np.int32)
    for part in some:
        part.segment.begin(sort_columns, part.positions)
    pieces = ((0, piece) for part in some for piece in part.in_pieces(sort_columns))
    return overlay_pieces(pieces, sum(map(len, some)))


def overlay_pieces(pieces: Iterator[tuple[int, IndexRows]], count: int) -> tuple[IndexRows, npt.NDArray[np.int32]]:
    """The same of pieces that come one by one, at least one, with about so many rows in all. A piece is newer than
    those of a higher rank, and than later ones of its own."""
    columns = (
        RowsToMerge(each.digests, each.row_indices, (each.file_numbers, each.sort_values), rank)
        for rank, each in pieces
    )
    merged = merge_by_digest(columns, count)
    newest = np.ones(len(merged.digests), np.bool_)
    for start in range(1, len(newest), _ROWS_PER_PIECE):
        end = min(start + _ROWS_PER_PIECE, len(newest))
        newest[start:end] = (merged.digests[start:end] != merged.digests[start - 1 : end - 1]).any(axis=1)
    file_numbers, sort_values = merged.others
    rows = IndexRows(
        _moved_together(merged.digests, newest),
        _moved_together(file_numbers, newest),
        _moved_together(merged.row_indices, newest),
        _moved_together(sort_values, newest),
    )
    return rows, _moved_together(merged.row_numbers, newest)


def _moved_together(column: _Column, kept: npt.NDArray[np.bool_]) -> _Column:
    """The kept rows of a column, which takes no other memory: they move to its begin."""
    if kept.all():
        return column
    filled = 0
    for start in range(0, len(column), _ROWS_PER_PIECE):
        some = slice(start, start + _ROWS_PER_PIECE)
        moving = column[some].take(np.flatnonzero(kept[some]), axis=0)
        column[filled : filled + len(moving)] = moving
        filled += len(moving)
    return column[:filled]


def read_bucket(location: StoreLocation, files: Sequence[IndexFile]) -> IndexRows:
    """The live rows and tombstones of one bucket, over all runs, sorted by digest; without their sort values."""
    rows, _ = overlay([IndexPart(segment) for segment in open_bucket(location, files)], ())
    return without_void(rows)


def without_void(rows: IndexRows) -> IndexRows:
    """The entries of an `overlay` of all runs that still mean something: live rows and tombstones."""
    is_void = rows.file_numbers == VOID_FILE_NUMBER
    return rows.take(np.flatnonzero(~is_void)) if is_void.any() else rows


def _write_file(location: StoreLocation, uri: str, batch: pa.RecordBatch, sending: Sending) -> tuple[int, int]:
    """The size in bytes and the CRC-32 of the file."""
    with writing(uri, "primary key index"):
        output = OutputFile.open(location, uri)
    with _writing(output, uri):
        sums = PageSums.of_batch(batch).as_metadata()
        with pa.ipc.new_file(output.stream, batch.schema, metadata=sums) as writer:
            writer.write_batch(batch)
        size_bytes = output.close()
        if location.is_remote:
            sending.begin(partial(_finish, output, uri), size_bytes)
        else:
            output.finish()
    return size_bytes, output.crc32


def _finish(output: OutputFile, uri: str) -> None:
    with _writing(output, uri):
        output.finish()


@contextmanager
def _writing(output: OutputFile, uri: str) -> Iterator[None]:
    with writing(uri, "primary key index"):
        try:
            yield
        except BaseException:  # also for an interrupt: no upload and no temporary file may remain
            output.discard()
            raise


@dataclass(frozen=True)
class _Opened:
    """An index file whose first pages are on their way."""

    file: IndexFile
    uri: str
    pointers_uri: str | None
    rows_in_run: RowsInRun
    pages: tuple[PagedFile, PagedFile] | None
    first: tuple[list[Span], list[Span]]
    is_whole: bool

    @classmethod
    def of(
        cls, root_uri: str, file: IndexFile, rows_in_run: RowsInRun, prefetch: Prefetch, reader: PageReader | None
    ) -> Self:
        uri = f"{root_uri}/{file.path}"
        pointers_uri = None if file.pointers is None else f"{root_uri}/{file.pointers.path}"
        if reader is None:
            is_whole = prefetch.everything or _is_compared(file, prefetch)
            return cls(file, uri, pointers_uri, rows_in_run, None, ([], []), is_whole)
        own = _KEPT.open(reader, uri, file.size_bytes, prefetch.kept_bytes)
        placed = own
        if file.pointers is not None and pointers_uri is not None:
            placed = _KEPT.open(reader, pointers_uri, file.pointers.size_bytes, prefetch.kept_bytes)
        first = _first_spans(file, rows_in_run, prefetch, own_pointers=placed is own)
        own.begin(first[0])
        if placed is not own:
            placed.begin(first[1])
        return cls(file, uri, pointers_uri, rows_in_run, (own, placed), first, prefetch.everything)

    def segment(self) -> IndexSegment:
        """Raises `Corrupt`. What was kept of a remote file that is damaged is dropped, and read once more."""
        try:
            return self._segment()
        except Corrupt:
            if self.pages is None:
                raise
            self._drop()
        try:
            return self._segment()
        except Corrupt:
            self._drop()
            raise

    def _drop(self) -> None:
        for pages in self.pages or ():
            pages.drop()

    def _segment(self) -> IndexSegment:
        own, placed = self.pages or (None, None)
        if own is not None and placed is not None:
            own.need(self.first[0])
            placed.need(self.first[1])
        pointers = None
        if self.pointers_uri is not None and self.file.pointers is not None:
            expected = self.file.pointers.crc32 if self.is_whole else None
            pointers = _read_batch(self.pointers_uri, self.file.rows, placed, expected)
        batch = _read_batch(self.uri, self.file.rows, own, self.file.crc32 if self.is_whole else None)
        return IndexSegment(self.file, self.uri, batch, pointers, self.pages, self.rows_in_run)


def _is_compared(file: IndexFile, prefetch: Prefetch) -> bool:
    """Whether a mapped file of which parts will be read is compared whole: unless it is large, and these are few."""
    searched = 0 if prefetch.digests is None else len(prefetch.digests)
    return file.size_bytes <= max(COMPARED_BYTES, searched * PAGE_BYTES)


_KEPT = KeptFiles()
"""The cached pages of index files of this process."""


def share_index_pages(scratch_folders: Sequence[Path]) -> None:
    """From now on this process, and those that it forks, find in these folders what others of the machine have read of
    remote index files. The folders' owner deletes them."""
    _KEPT.share(SharedPages(scratch_folders))


def let_index_pages_go() -> None:
    """What this process has read of remote index files is read again, if it is needed again."""
    _KEPT.let_go()


def _first_spans(
    file: IndexFile, rows_in_run: RowsInRun, prefetch: Prefetch, *, own_pointers: bool
) -> tuple[list[Span], list[Span]]:
    """What to fetch of a file, and of what has its pointers, before it is known where exactly its columns lie."""
    size, rows = file.size_bytes, file.rows
    if prefetch.everything:
        return [Span(0, size)], [] if file.pointers is None else [Span(0, file.pointers.size_bytes)]
    expected = [] if prefetch.digests is None else expected_rows(prefetch.digests, rows_in_run, rows)
    own = _ends(size) + [_around(DIGEST_BYTES * low, DIGEST_BYTES * high, size) for low, high in expected]
    placed = [] if file.pointers is None else _ends(file.pointers.size_bytes)
    widths = file.placed.file_number_bytes, file.placed.row_index_bytes
    of_pointers = [(0, widths[0] * rows)] if prefetch.file_numbers else []
    if prefetch.pointers:
        begins = 0, widths[0] * rows
        of_pointers += [
            (at + width * low, at + width * high) for at, width in zip(begins, widths) for low, high in expected
        ]
    if own_pointers:
        own += [_around(DIGEST_BYTES * rows + start, DIGEST_BYTES * rows + end, size) for start, end in of_pointers]
    elif file.pointers is not None:
        placed += [_around(start, end, file.pointers.size_bytes) for start, end in of_pointers]
    return own, placed


def _ends(size_bytes: int) -> list[Span]:
    return [Span(0, min(FOOTER_BYTES, size_bytes)), footer_span(size_bytes)]


def _around(start: int, end: int, size_bytes: int) -> Span:
    """Bytes of the columns that lie `start` after the first one begins, which is somewhere in the first kilobytes."""
    return Span(min(start, size_bytes), min(end + _HEAD_BYTES_MAX, size_bytes))


_HEAD_BYTES_MAX = 2 * 1024


def _read_batch(uri: str, rows: int, pages: PagedFile | None, crc32: int | None) -> pa.RecordBatch:
    """`crc32`: of a file of which all bytes are there; None: some are not, or the log does not record it. Then the
    pages of a remote file are compared, if it has their sums."""
    with reading(uri, "primary key index"):
        source = pa.memory_map(local_path(uri)) if pages is None else pa.BufferReader(pages.buffer)
        try:
            opened = pa.ipc.open_file(source)
            batch = opened.get_batch(0)
            # Columns shorter than the batch's length would be read beyond their end.
            batch.validate()
            sums = PageSums.of_file(opened.metadata)
        except (pa.ArrowException, OSError) as error:
            raise Corrupt(f"{uri} cannot be read as primary key index: {error}") from error
    if batch.num_rows != rows:
        raise Corrupt(f"{uri} holds {counted(batch.num_rows, 'row')}, but the log says {rows}")
    if crc32 is not None:
        source.seek(0)
        check_crc32(uri, source.read_buffer(), crc32)
    if pages is not None:
        pages.trust(sums)
        if crc32 is not None:
            pages.is_compared()
        if pages.damaged([Span(0, 1)]).any():
            raise Corrupt(f"{uri} is damaged: its first page does not have its checksum")
    return batch


def _refuse_other_bucket(raw_digests: Digests, uri: str, file: IndexFile, hash_bucket_count: int) -> None:
    step = max(1, len(raw_digests) // _DIGESTS_SAMPLED)
    sample = raw_digests[::step].view(">u4").astype(np.uint32)
    if (hash_buckets(sample, hash_bucket_count) != file.hash_bucket).any():
        raise Corrupt(f"{uri} holds digests of other hash buckets than {file.hash_bucket}")
