"""Reads the rows of a table: which files, at which entry of which log, and then batch by batch.

A scan is pinned when it is made: it goes on showing the snapshot it found, whatever is appended or compacted meanwhile.
Rows come partition by partition, file by file in file number order, row by row as they lie.

Two things keep files unread that a filter excludes: the bounds of their columns in the log, and for Parquet the bounds
of row groups in the footer. Both only ever leave out what cannot match; the filter is then applied to every row left.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow import fs

from compactor.catalog.actions import DataFile, DeletionVector, Scalar
from compactor.catalog.stream import PartitionStream
from compactor.deletion_vectors import read_dead_rows
from compactor.errors import Invalid
from compactor.names import ContentType
from compactor.object_store import ObjectStore, StoreLocation
from compactor.schemas import conform, parse_schema, unify_schemas
from compactor.tabular import TabularFile, open_filesystem, read_batches, written_here
from compactor.tabular.filesystems import reading

STREAMS_LOADED_AT_ONCE = 16

VIEWS = ("compacted", "merged")
"""What compaction has left; that, with every delta applied that is not compacted yet (merge on read)."""

AsOf: TypeAlias = int | str | datetime
"""An entry number of one partition stream's log, or a time: a datetime, ISO 8601 text, or ms since the epoch."""


@dataclass(frozen=True)
class ScanFile:
    """A file of the scan: one partition stream's, with what the log knows of it.

    dead      the deletion vector of a compacted file that has dead rows
    kept      int64, ascending: the rows to read, where merge on read has found out; None: all but the dead ones
    is_delta  a delta's, in which merge on read has found rows that survive; else a compacted one, written here
    """

    partition: Mapping[str, str]
    uri: str
    file: DataFile
    dead: DeletionVector | None = None
    kept: npt.NDArray[np.int64] | None = None
    is_delta: bool = False


@dataclass(frozen=True)
class ScanPart:
    """What one partition stream has to read: its live files, in order, and the schema that holds all their rows."""

    stream: PartitionStream
    schema: pa.Schema
    files: tuple[ScanFile, ...]


@dataclass(frozen=True)
class ScanRequest:
    """What is asked of a scan.

    lake              whose table it is; merge on read opens other tables of it
    names_one_stream  whether the request is for one partition stream, whose entries `as_of` may count
    """

    lake: ObjectStore
    columns: Sequence[str] | None
    row_filter: pc.Expression | None
    as_of: AsOf | None
    view: str
    names_one_stream: bool


class Scan:
    """The rows of a scan, to be read as often as asked: `to_table`, `to_batches`, `files`.

    schema      of the rows: the columns asked for, in the order asked
    scan_files  what will be read, in order: live files but for those that the filter excludes
    """

    def __init__(
        self,
        location: StoreLocation,
        parts: Sequence[ScanPart],
        whole_schema: pa.Schema,
        columns: Sequence[str] | None,
        row_filter: pc.Expression | None,
    ) -> None:
        names = list(whole_schema.names) if columns is None else list(columns)
        _check_columns(names, whole_schema)
        filtered_by = _columns_of(row_filter, whole_schema)
        self.schema = pa.schema([whole_schema.field(name) for name in names], metadata=whole_schema.metadata)
        self.scan_files = _scan_files(parts, whole_schema, row_filter)
        self._location = location
        self._filter = row_filter
        self._read_schema = pa.schema([field for field in whole_schema if field.name in {*names, *filtered_by}])
        # Bounds do not cover NaN, which `~(x < 5)` matches: a float's bounds leave nothing out.
        self._leaves_out_row_groups = row_filter is not None and not any(
            _holds_floats(whole_schema.field(name).type) for name in filtered_by
        )

    def files(self) -> list[str]:
        """The absolute URIs of the files that will be read. They stand for themselves: nothing is to be decoded."""
        return [scanned.uri for scanned in self.scan_files]

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, a bounded number of bytes at a time. No batch is empty."""
        for scanned in self.scan_files:
            for batch in self._read(scanned):
                rows = conform(pa.Table.from_batches([batch]), self._read_schema)
                kept = rows if self._filter is None else rows.filter(self._filter)
                for selected in kept.select(self.schema.names).to_batches():
                    if selected.num_rows:
                        yield selected

    def to_table(self) -> pa.Table:
        """All rows at once."""
        return pa.Table.from_batches(list(self.to_batches()), self.schema)

    def _read(self, scanned: ScanFile) -> Iterator[pa.RecordBatch]:
        with nullcontext() if scanned.is_delta else written_here():
            yield from self._batches(scanned)

    def _batches(self, scanned: ScanFile) -> Iterator[pa.RecordBatch]:
        columns, content_type = self._read_schema.names, scanned.file.content_type
        if scanned.dead is not None or scanned.kept is not None:
            batches = read_batches(self._location, TabularFile(scanned.uri, content_type), columns, self._read_schema)
            return _select_rows(batches, _kept_rows(self._location, scanned))
        if self._leaves_out_row_groups and content_type is ContentType.PARQUET:
            return _read_row_groups(self._location, scanned.uri, columns, self._filter)
        return read_batches(self._location, TabularFile(scanned.uri, content_type), columns, self._read_schema)


def open_scan(
    location: StoreLocation,
    streams: Sequence[PartitionStream],
    declared: pa.Schema | None,
    request: ScanRequest,
) -> Scan:
    """Pin the streams' snapshots and plan what to read. Raises `Invalid` for a request that does not fit the table.

    declared  the table's own schema; the scan's holds it and everything that the compacted rows have beyond it
    """
    if request.row_filter is not None and not isinstance(request.row_filter, pc.Expression):
        raise Invalid('filter is not a PyArrow expression: write, for example, pyarrow.dataset.field("a") > 5')
    if request.view not in VIEWS:
        raise Invalid(f"there is no view {request.view!r} of a table: use 'compacted' or 'merged'")
    pin = _pin_merged if request.view == "merged" else _pin
    with ThreadPoolExecutor(STREAMS_LOADED_AT_ONCE) as threads:
        parts = [part for part in threads.map(lambda stream: pin(stream, request), streams) if part is not None]
    named = [] if declared is None else [("the table's definition", declared)]
    named += [(str(part.stream), part.schema) for part in parts]
    if not named:
        # Nothing is compacted and nothing was declared, so there is no column that a request could fit or not.
        return Scan(location, [], pa.schema([]), None, None)
    return Scan(location, parts, unify_schemas(named), request.columns, request.row_filter)


# -- the snapshot


def _pin(stream: PartitionStream, request: ScanRequest) -> ScanPart | None:
    """What the stream's compacted side holds; None where nothing was compacted."""
    compacted = stream.load(_entry_number(stream, request)).state.compacted
    if compacted is None:
        return None
    vectors = {vector.file_number: vector for vector in compacted.deletion_vectors}
    files = tuple(
        ScanFile(stream.partition, stream.uri_of(file.path), file, vectors.get(number))
        for number, file in sorted(compacted.files.items())
    )
    return ScanPart(stream, parse_schema(compacted.last_round.compacted_schema), files)


def _pin_merged(stream: PartitionStream, request: ScanRequest) -> ScanPart | None:
    """What the stream would hold if every delta were compacted now."""
    if request.as_of is not None:
        raise Invalid("view='merged' shows the deltas as they stand now: leave as_of out, or use view='compacted'")
    # Merging takes the whole compaction's steps, which are above the catalog; they are loaded where they are asked for.
    from compactor.merge_on_read import merge_stream

    merged = merge_stream(request.lake, stream)
    if merged is None:
        return None
    files = tuple(
        ScanFile(stream.partition, each.uri, each.file, kept=each.kept, is_delta=each.is_delta)
        for each in merged.files
        if len(each.kept)
    )
    return ScanPart(stream, merged.schema, files)


def _kept_rows(location: StoreLocation, scanned: ScanFile) -> npt.NDArray[np.int64]:
    if scanned.kept is not None:
        return scanned.kept
    kept = np.ones(scanned.file.rows, np.bool_)
    if scanned.dead is not None:
        kept[read_dead_rows(location, scanned.dead)] = False
    return np.flatnonzero(kept)


def _select_rows(batches: Iterator[pa.RecordBatch], kept: npt.NDArray[np.int64]) -> Iterator[pa.RecordBatch]:
    """The kept rows (ascending) of a file that comes batch by batch."""
    start = 0
    for batch in batches:
        begin, end = np.searchsorted(kept, [start, start + batch.num_rows])
        if begin < end:
            yield batch.take(pa.array(kept[begin:end] - start))
        start += batch.num_rows


def _entry_number(stream: PartitionStream, request: ScanRequest) -> int | None:
    as_of = request.as_of
    if as_of is None:
        return None
    if isinstance(as_of, int) and request.names_one_stream:
        return as_of
    return stream.log.entry_number_at(_time_ms(as_of))


def _time_ms(as_of: AsOf) -> int:
    if isinstance(as_of, int):
        return as_of
    try:
        time = datetime.fromisoformat(as_of) if isinstance(as_of, str) else as_of
    except ValueError as error:
        raise Invalid(f"as_of is {as_of!r}: write a time as in 2026-11-21T12:00:00+00:00") from error
    return int((time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp() * 1000)


# -- columns


def _check_columns(names: Sequence[str], schema: pa.Schema) -> None:
    reasons = [f"there is no column {name!r} (there are: {', '.join(schema.names)})" for name in names]
    reasons = [reason for name, reason in zip(names, reasons) if name not in schema.names]
    if len(set(names)) < len(names):
        reasons.append(f"a column is asked for twice: {', '.join(names)}")
    if not names and schema.names:
        reasons.append("no column is asked for: name some, or leave columns out for all")
    if reasons:
        raise Invalid(*reasons)


def _columns_of(row_filter: pc.Expression | None, schema: pa.Schema) -> list[str]:
    """The columns that a filter looks at. PyArrow does not tell, but it fits no table that lacks one of them."""
    if row_filter is None:
        return []
    try:
        schema.empty_table().filter(row_filter)
    except (pa.ArrowException, TypeError) as error:
        raise Invalid(f"the filter does not fit the table: {error}") from error
    return [name for name in schema.names if not _fits(row_filter, schema.empty_table().drop_columns([name]))]


def _fits(row_filter: pc.Expression, rows: pa.Table) -> bool:
    try:
        rows.filter(row_filter)
    except pa.ArrowException:
        return False
    return True


def _holds_floats(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _holds_floats(kind.value_type)
    return pa.types.is_floating(kind) or any(
        _holds_floats(kind.field(position).type) for position in range(kind.num_fields)
    )


# -- what need not be read


def _scan_files(parts: Sequence[ScanPart], schema: pa.Schema, row_filter: pc.Expression | None) -> tuple[ScanFile, ...]:
    found = [scanned for part in parts for scanned in part.files]
    if row_filter is None:
        return tuple(found)
    # PyArrow's datasets leave out fragments whose stated guarantee contradicts the filter. Nothing is opened for it,
    # so any format does, and a place in the list does as a path.
    nowhere, any_format = fs.LocalFileSystem(), ds.ParquetFileFormat()
    fragments = [
        any_format.make_fragment(str(place), nowhere, partition_expression=_guarantee(scanned.file, schema))
        for place, scanned in enumerate(found)
    ]
    dataset = ds.FileSystemDataset(fragments, schema, any_format, nowhere)
    return tuple(found[int(fragment.path)] for fragment in dataset.get_fragments(filter=row_filter))


def _guarantee(file: DataFile, schema: pa.Schema) -> pc.Expression:
    """What every row of the file is known to fulfil, by the bounds of its columns."""
    guarantee = pc.scalar(True)
    for name, stats in file.columns.items():
        position = schema.get_field_index(name)
        if position < 0 or _holds_floats(schema.field(position).type):
            continue
        column, kind = pc.field(name), schema.field(position).type
        least, greatest = _bound(stats.min_value, kind), _bound(stats.max_value, kind)
        if stats.null_count is not None and stats.null_count == file.rows:
            guarantee &= column.is_null()
        elif least is not None and greatest is not None:
            within = (column >= least) & (column <= greatest)
            guarantee &= within if stats.null_count == 0 else within | column.is_null()
    return guarantee


def _bound(value: Scalar | None, kind: pa.DataType) -> pa.Scalar | None:
    """A bound of the log as a value of the column's type; None where there is no such value."""
    if value is None:
        return None
    try:
        is_text_for = isinstance(value, str) and not (pa.types.is_string(kind) or pa.types.is_large_string(kind))
        return pa.scalar(value).cast(kind) if is_text_for else pa.scalar(value, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None


def _read_row_groups(
    location: StoreLocation, uri: str, columns: Sequence[str], row_filter: pc.Expression | None
) -> Iterator[pa.RecordBatch]:
    """The rows of a Parquet file but for row groups that the filter excludes. What is left still has to be filtered."""
    filesystem, path = open_filesystem(location, uri)
    with reading(uri, ContentType.PARQUET):
        fragment = ds.ParquetFileFormat().make_fragment(path, filesystem)
        present = [name for name in columns if name in fragment.physical_schema.names]
        # Where the file lacks a column of the filter, nothing is known of its row groups.
        with suppress(pa.ArrowInvalid):
            fragment = fragment.subset(row_filter)
        yield from fragment.to_batches(columns=present)
