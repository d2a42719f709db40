"""The pieces of a scan: some row groups of a Parquet file, or a file of another format. Threads read them side by side.

A piece is pruned by what is known already, and stops as soon as nothing is left: row groups without a row that is kept
are not planned; row groups that the filter excludes by the bounds in the footer are not read; of the others the columns
of the filter are read first, and the others from the first batch with a matching row to the last one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import acero

from compactor.index.deletion_vectors import read_dead_rows
from compactor.model.files import DataFile, DeletionVector
from compactor.model.names import ContentType
from compactor.reading.excluded import guarantee_of_rows, not_excluded
from compactor.reading.ordered_batches import Batches
from compactor.schemas.cast import conform
from compactor.storage.location import StoreLocation, is_remote
from compactor.storage.opening import range_reader
from compactor.tabular import SharedParquet, TabularFile, begin_soon, check_row_count, read_batches, written_here

PIECE_BYTES = 4 * 1024 * 1024
"""Bytes of a piece: smaller row groups of a file that follow each other are one."""

THREADED_BYTES_MIN = 1024 * 1024
"""Bytes of local pieces beside the largest one from which on several threads read: fewer are not worth a start."""

PIECES_AHEAD = 16
"""Remote pieces that are requested before they are read, as far as there is room."""

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class ScanFile:
    """A file of the scan, with its entry in the log of its partition stream.

    Attributes:
        constants: the partition's values that are columns of the scan but not of its files
        dead: the deletion vector of a compacted file that has dead rows
        kept: int64, ascending: the rows to read, from merge on read; None: all but the dead ones
        is_delta: whether it is a delta file, in which merge on read found surviving rows; else a compacted file"""

    partition: Mapping[str, str]
    uri: str
    file: DataFile
    constants: Mapping[str, pa.Scalar] = field(default_factory=dict)
    dead: DeletionVector | None = None
    kept: npt.NDArray[np.int64] | None = None
    is_delta: bool = False

    @property
    def rows(self) -> int:
        """Rows to read."""
        if self.kept is not None:
            return len(self.kept)
        return self.file.rows - (self.dead.rows if self.dead is not None else 0)


@dataclass(frozen=True)
class ReadColumns:
    """The columns to return, the filter, and the columns that it needs: at least one, so that rows can be counted."""

    returned: pa.Schema
    row_filter: pc.Expression | None
    filtered: pa.Schema

    @property
    def all(self) -> pa.Schema:
        return pa.unify_schemas([self.filtered, self.returned])


class ScanPiece:
    """Row groups of a Parquet file (None: all of them), or a file of another format."""

    def __init__(self, file: _OpenFile, row_groups: Sequence[int] | None) -> None:
        self._file = file
        self._row_groups = row_groups
        self._lock = threading.Lock()
        self._is_begun = False
        self._under_way: Future[None] | None = None

    def begin(self) -> None:
        """Requests what will be read first, if the file is remote. May be repeated."""
        with self._lock:
            if not self._is_begun:
                self._is_begun = True
                self._under_way = self._file.begin(self._row_groups)

    def read(self) -> Batches:
        """The rows that match. No batch is empty."""
        if self._under_way is not None:
            self._under_way.exception()  # the read raises it, if there was one
        with nullcontext() if self._file.scanned.is_delta else written_here():
            yield from self._file.read(self._row_groups)

    def forget(self) -> None:
        """Drops what was requested and not read, once its request is sent. From here on none is."""
        with self._lock:
            self._is_begun = True
        if self._under_way is not None:
            self._under_way.cancel()
            self._under_way.add_done_callback(lambda _: self._file.forget())


def plan_pieces(
    location: StoreLocation, files: Sequence[ScanFile], columns: ReadColumns, threads: int
) -> tuple[list[ScanPiece], int]:
    """The pieces of the files, in order, and by how many threads they are read, at most `threads`; 1: the caller's."""
    row_groups = [_row_groups_to_read(scanned) for scanned in files]
    sizes = [size for of_file in row_groups for _, size in of_file]
    beside_largest = sum(sizes) - max(sizes, default=0)
    threads = threads if location.is_remote or beside_largest >= THREADED_BYTES_MIN else 1
    # Of few pieces, several threads decode the columns of one.
    use_threads = threads == 1 or len(sizes) < 2 * threads
    opened = [_OpenFile(location, scanned, columns, use_threads) for scanned in files]
    pieces = [ScanPiece(file, each) for file, of_file in zip(opened, row_groups, strict=True) for each, _ in of_file]
    return pieces, threads


def readers_of(pieces: Sequence[ScanPiece]) -> list[Callable[[], Batches]]:
    """What reads each piece, and begins those that follow it."""

    def read(number: int) -> Batches:
        for piece in pieces[number : number + 1 + PIECES_AHEAD]:
            piece.begin()
        yield from pieces[number].read()

    return [partial(read, number) for number in range(len(pieces))]


def _row_groups_to_read(scanned: ScanFile) -> list[tuple[list[int] | None, int]]:
    """The row groups and bytes of each piece of a file, by the log. Those without a row that is kept are left out."""
    sizes = scanned.file.row_groups
    if scanned.file.content_type is not ContentType.PARQUET or not sizes:
        return [(None, scanned.file.size_bytes)]
    starts = list(accumulate((size.rows for size in sizes), initial=0))
    kept = None if scanned.kept is None else np.searchsorted(scanned.kept, starts)
    pieces: list[tuple[list[int] | None, int]] = []
    piece: list[int] = []
    piece_bytes = 0
    for number, size in enumerate(sizes):
        if kept is None or kept[number] < kept[number + 1]:
            piece.append(number)
            piece_bytes += size.size_bytes
        if piece_bytes >= PIECE_BYTES:
            pieces.append((piece, piece_bytes))
            piece, piece_bytes = [], 0
    return [*pieces, (piece, piece_bytes)] if piece else pieces


class _OpenFile:
    """A file of the scan, with what its pieces share: the footer and the rows that are kept."""

    def __init__(self, location: StoreLocation, scanned: ScanFile, columns: ReadColumns, use_threads: bool) -> None:
        self.scanned = scanned
        self._location = location
        self._columns = columns
        self._file = TabularFile.of(scanned.uri, scanned.file)
        is_parquet = scanned.file.content_type is ContentType.PARQUET
        self._parquet = SharedParquet(location, self._file, use_threads) if is_parquet else None
        self._lock = threading.Lock()
        self._kept: Mask | None = None

    def begin(self, row_groups: Sequence[int] | None) -> Future[None] | None:
        """Prefetches what a piece reads first; None: the file is local."""
        if not is_remote(self.scanned.uri):
            return None
        parquet = self._parquet
        if parquet is None:
            return begin_soon(self._location, self._file, self._stored(self._columns.all))
        return range_reader(self._location).soon(lambda: self._begin(parquet, row_groups))

    def _begin(self, parquet: SharedParquet, row_groups: Sequence[int] | None) -> None:
        first, others = self._stages(parquet)
        parquet.begin(self._selected(parquet, row_groups), first or others)

    def forget(self) -> None:
        range_reader(self._location).forget(self.scanned.uri)

    def read(self, row_groups: Sequence[int] | None) -> Iterator[pa.RecordBatch]:
        """The rows of a piece that match."""
        kept = self._kept_rows()
        parquet = self._parquet
        if parquet is None:
            names = self._stored(self._columns.all)
            rows = read_batches(self._location, self._file, names, self._columns.all)
            yield from self._matching(rows, kept, None)
            return
        counts = parquet.row_counts()
        check_row_count(self.scanned.uri, sum(counts), self.scanned.file.rows)
        starts = list(accumulate(counts, initial=0))
        first, others = self._stages(parquet)
        batch_rows = parquet.batch_rows({*first, *others})
        for number in self._selected(parquet, row_groups):
            kept_here = None if kept is None else kept[starts[number] : starts[number + 1]]
            if kept_here is not None and not kept_here.any():
                continue
            if first and others:
                rows = parquet.read(number, first, batch_rows)
                beside = _RowsBeside(parquet.read(number, others, batch_rows))
                yield from self._matching(rows, kept_here, beside)
            else:
                yield from self._matching(parquet.read(number, first or others, batch_rows), kept_here, None)

    def _stored(self, schema: pa.Schema) -> list[str]:
        """The columns that the file may have."""
        return [name for name in schema.names if name not in self.scanned.constants]

    def _stages(self, parquet: SharedParquet) -> tuple[list[str], list[str]]:
        """The columns of the filter that the file has, and its other columns."""
        present = parquet.columns
        stored = [name for name in self._stored(self._columns.all) if name in present]
        if self._columns.row_filter is None:
            return [], stored
        filtered = set(self._columns.filtered.names)
        return [name for name in stored if name in filtered], [name for name in stored if name not in filtered]

    def _selected(self, parquet: SharedParquet, row_groups: Sequence[int] | None) -> list[int]:
        """Those of the row groups whose bounds do not contradict the filter."""
        counts = parquet.row_counts()
        numbers = list(range(len(counts)) if row_groups is None else row_groups)
        row_filter, filtered = self._columns.row_filter, self._columns.filtered
        if row_filter is None or len(counts) == 1:  # the log has the bounds of a file
            return numbers
        constants = self.scanned.constants
        guarantees = [
            guarantee_of_rows(parquet.column_stats(each, filtered.names), counts[each], constants, filtered)
            for each in numbers
        ]
        return [numbers[position] for position in not_excluded(guarantees, filtered, row_filter)]

    def _kept_rows(self) -> Mask | None:
        """Which rows of the file are kept; None: all."""
        with self._lock:
            scanned = self.scanned
            if self._kept is None and scanned.kept is not None:
                self._kept = np.zeros(scanned.file.rows, np.bool_)
                self._kept[scanned.kept] = True
            elif self._kept is None and scanned.dead is not None:
                self._kept = np.ones(scanned.file.rows, np.bool_)
                self._kept[read_dead_rows(self._location, scanned.dead)] = False
            return self._kept

    def _matching(
        self, batches: Iterator[pa.RecordBatch], kept: Mask | None, beside: _RowsBeside | None
    ) -> Iterator[pa.RecordBatch]:
        """The rows that are kept and match the filter. `beside`: their other columns."""
        start = 0
        for batch in batches:
            rows, end = pa.Table.from_batches([batch]), start + batch.num_rows
            mask = self._mask(rows, None if kept is None else kept[start:end])
            if mask is None or mask.any():
                if beside is not None:
                    rows = _joined(rows, beside.rows(start, end))
                rows = rows.select(_present(self._columns.returned, rows.schema))
                found = rows if mask is None else rows.filter(pa.array(mask))
                yield from self._conformed(found, self._columns.returned).to_batches()
            start = end

    def _mask(self, rows: pa.Table, kept: Mask | None) -> Mask | None:
        """The returned rows of a batch; None: all. The filter sees kept rows only: others may raise an error."""
        row_filter = self._columns.row_filter
        if kept is not None and kept.all():
            kept = None
        if row_filter is None:
            return kept
        rows = rows.select(_present(self._columns.filtered, rows.schema))
        shown = self._conformed(rows if kept is None else rows.filter(pa.array(kept)), self._columns.filtered)
        matches = _matches(shown, row_filter)
        if kept is None:
            return None if matches.all() else matches
        mask = kept.copy()
        mask[kept] = matches
        return mask

    def _conformed(self, rows: pa.Table, schema: pa.Schema) -> pa.Table:
        for name, value in self.scanned.constants.items():
            if schema.get_field_index(name) >= 0:
                rows = rows.append_column(name, pa.repeat(value, rows.num_rows))
        return conform(rows, schema)


class _RowsBeside:
    """Other columns of the same rows, of which some are asked for, in order."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._held: list[pa.RecordBatch] = []
        self._start = 0

    def rows(self, start: int, end: int) -> pa.Table:
        """Those rows; what is before them is dropped."""
        while self._start + sum(batch.num_rows for batch in self._held) < end:
            while self._held and self._start + self._held[0].num_rows <= start:
                self._start += self._held.pop(0).num_rows
            self._held.append(next(self._batches))
        return pa.Table.from_batches(self._held).slice(start - self._start, end - start)


def _present(schema: pa.Schema, held: pa.Schema) -> list[str]:
    """The columns of a schema that are held."""
    names = set(held.names)
    return [name for name in schema.names if name in names]


def _joined(rows: pa.Table, others: pa.Table) -> pa.Table:
    return pa.Table.from_arrays([*rows.columns, *others.columns], names=[*rows.schema.names, *others.schema.names])


def _matches(rows: pa.Table, row_filter: pc.Expression) -> Mask:
    """Which rows match. A row for which the filter is null does not."""
    steps = [
        acero.Declaration("table_source", acero.TableSourceNodeOptions(rows)),
        acero.Declaration("project", acero.ProjectNodeOptions([row_filter], ["matches"])),
    ]
    found = acero.Declaration.from_sequence(steps).to_table(use_threads=False).column("matches")
    matches: Mask = found.combine_chunks().fill_null(False).to_numpy(zero_copy_only=False)
    return matches
