"""Reads the rows of a table: chooses the files by the log at one entry, and reads them batch by batch.

A scan is pinned when it is created: it keeps showing the same snapshot while deltas are appended and compacted. Rows
are returned by partition, then by file number, then in file order.

A filter excludes partitions by their values, before their logs are read, files by the bounds of their columns in the
log, and row groups of Parquet by the bounds in the footer. Only what has no matching rows is excluded; the filter is
then applied to every row. The columns of such a scan are those of the partitions that were read, of one more compacted
partition, and of the table's schema.

Partition keys are columns of every scan: where rows have no such column, the value is added as the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import pyarrow as pa
import pyarrow.compute as pc

from compactor.catalog.keys import TableFolder
from compactor.catalog.stream import PartitionStream
from compactor.catalog.stream_schema import nanosecond_columns, times_out_of_range
from compactor.model.errors import Corrupt, Invalid, refuse_if
from compactor.model.names import Operation, PartitionValues, by_values, counted
from compactor.reading.excluded import (
    columns_of,
    guarantee_of_rows,
    has_value,
    not_excluded,
    selected_partitions,
)
from compactor.reading.ordered_batches import batches_in_order
from compactor.reading.pieces import ReadColumns, ScanFile, plan_pieces, readers_of
from compactor.schemas.open_types import open_schema
from compactor.schemas.unify import parse_schema, unify_schemas
from compactor.storage.concurrently import run_concurrently
from compactor.storage.keys import decode_partition, encode_partition
from compactor.storage.location import StoreLocation
from compactor.storage.object_store import ObjectStore, decoded, encoded_names
from compactor.tabular import TabularFile, read_schema

if TYPE_CHECKING:
    from compactor.catalog.tables import Table
    from compactor.reading.merge_on_read import MergedStream

STREAMS_SAMPLED = 16
"""Partitions of which one must be compacted, or for the merged view have upserts, for a filter to exclude others."""

View = Literal["compacted", "merged"]
"""The compacted rows; the compacted rows with all pending deltas applied (merge on read)."""

AsOf: TypeAlias = int | str | date
"""An entry number of one partition stream's log, or a time: a datetime, ISO 8601 text, or ms since the epoch."""


@dataclass(frozen=True)
class ScanPart:
    """One partition stream of a scan: its live files, in order, and the schema of all their rows."""

    stream: PartitionStream
    schema: pa.Schema
    files: tuple[ScanFile, ...]


@dataclass(frozen=True)
class ScanRequest:
    """The arguments of a scan.

    Attributes:
        lake: the table's lake; merge on read opens other tables of it
        is_whole_table: no partition is named"""

    lake: ObjectStore
    table_id: str
    partition_keys: Sequence[str]
    columns: Sequence[str] | None
    row_filter: pc.Expression | None
    as_of: AsOf | None
    view: str
    is_whole_table: bool

    @property
    def names_one_stream(self) -> bool:
        return not (self.is_whole_table and self.partition_keys)


class Scan:
    """The rows of a scan, which can be read repeatedly: `to_table`, `to_batches`, `files`.

    Attributes:
        schema: of the rows: the requested columns, in the requested order
        scan_files: the files that will be read, in order: live files except those that the filter excludes"""

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
        filtered_by = columns_of(row_filter, whole_schema)
        self.schema = pa.schema([whole_schema.field(name) for name in names], metadata=whole_schema.metadata)
        self.scan_files = _scan_files(parts, whole_schema, row_filter, filtered_by)
        self._location = location
        self._filter = row_filter
        # A filter without columns is evaluated for each row all the same.
        filtered = pa.schema([whole_schema.field(name) for name in filtered_by or names[:1]])
        self._columns = ReadColumns(self.schema.remove_metadata(), row_filter, filtered)
        self._parts = parts

    def __repr__(self) -> str:
        columns = ", ".join(f"{field.name}: {field.type}" for field in self.schema)
        return f"<Scan of {counted(len(self.scan_files), 'file')}: {columns or 'no columns'}>"

    def files(self) -> list[str]:
        """The absolute URIs of the files that will be read. They are not percent-encoded."""
        return [scanned.uri for scanned in self.scan_files]

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, a bounded number of bytes at a time. No batch is empty.

        As many threads as PyArrow uses (`pyarrow.cpu_count()`) read ahead, within a bound of decoded bytes. They end
        when the iterator is closed or forgotten.
        """
        return self._read(self._columns)

    def count_rows(self) -> int:
        """The number of rows. Without a filter no file is opened."""
        if self._filter is None:
            return sum(scanned.rows for scanned in self.scan_files)
        columns = ReadColumns(self._columns.filtered, self._filter, self._columns.filtered)
        return sum(batch.num_rows for batch in self._read(columns))

    def to_table(self) -> pa.Table:
        """All rows at once."""
        return pa.Table.from_batches(list(self.to_batches()), self.schema)

    def _read(self, columns: ReadColumns) -> Iterator[pa.RecordBatch]:
        _refuse_times_out_of_range(self._parts, self.scan_files, [*columns.returned, *columns.filtered])
        pieces, threads = plan_pieces(self._location, self.scan_files, columns, pa.cpu_count())
        try:
            yield from batches_in_order(readers_of(pieces), threads)
        finally:
            for piece in pieces:
                piece.forget()


def partitions_of_table(store: ObjectStore, table: Table, *, even_dropped: bool) -> list[dict[str, str]]:
    """The partitions of a read that names none, in order. Raises `Corrupt` for one that lost its log: its rows would
    be left out without a word."""
    folder = TableFolder(table.table_id)
    listings: list[Callable[[], Iterable[str]]] = [
        lambda: encoded_names(store, f"{folder.streams}/"),
        lambda: encoded_names(store, f"{folder.data}/", even_empty=True) if table.partition_keys else (),
        lambda: () if even_dropped else map(encode_partition, table.dropped_partitions()),
    ]

    def partitions_named(names: Iterable[str]) -> list[dict[str, str]]:
        """A dropped table of this id may have had other keys: its partitions are left out."""
        found = (each for each in decoded(names, decode_partition) if tuple(each) == table.partition_keys)
        return sorted(found, key=by_values)

    with_log, with_files, hidden = run_concurrently(store.location, lambda listing: set(listing()), listings)
    if not with_log:
        return table.partitions_even_dropped()  # none, or it says what shows that there were some
    without_log = partitions_named(with_files - with_log)
    run_concurrently(store.location, lambda each: table.stream(each).load(), without_log)
    return partitions_named(with_log - hidden)


def open_scan(
    location: StoreLocation,
    stream_of: Callable[[PartitionValues], PartitionStream],
    partitions: Sequence[PartitionValues],
    declared: pa.Schema | None,
    request: ScanRequest,
) -> Scan:
    """Pins the partitions' snapshots and plans the scan. Raises `Invalid` for a request that does not fit the table.

    Args:
        declared: the table's schema; the scan's schema adds the further columns of the compacted rows"""
    if request.row_filter is not None and not isinstance(request.row_filter, pc.Expression):
        raise Invalid('filter is not a PyArrow expression: write, for example, pyarrow.dataset.field("a") > 5')
    if request.view not in get_args(View):
        raise Invalid(f"there is no view {request.view!r} of a table: use 'compacted' or 'merged'")
    sample = _sample((stream_of(each) for each in _to_sample(partitions, request)), declared, request)
    wanted = partitions if sample is None else sample.selected(partitions)
    if request.view == "merged":
        parts = _pin_merged([stream_of(each) for each in wanted], request, sample)
    else:
        pinned = run_concurrently(location, lambda each: _pin(stream_of(each), request), wanted)
        parts = [part for part in pinned if part is not None]
    named = [] if declared is None else [("the table's definition", declared)]
    named += [] if sample is None else [(str(sample.part.stream), sample.part.schema)]
    named += [(str(part.stream), part.schema) for part in parts]
    if not named:
        # Nothing is compacted and no schema was declared, so the request's columns cannot be checked.
        return Scan(location, [], pa.schema([]), None, None)
    whole_schema = with_partition_columns(_unified(named), request.partition_keys)
    parts = [_with_partition_values(part, whole_schema) for part in parts]
    return Scan(location, parts, whole_schema, request.columns, request.row_filter)


@dataclass(frozen=True)
class _Sample:
    """A partition whose columns fit the request: by their types the filter excludes other partitions. It is compacted,
    or, for the merged view, has pending upserts."""

    part: ScanPart
    schema: pa.Schema
    row_filter: pc.Expression

    def selected(self, partitions: Sequence[PartitionValues]) -> list[PartitionValues]:
        held, files = self.part.schema, [scanned.file for scanned in self.part.files]
        # The columns of files are theirs: where one has another value than its partition, that says nothing of others.
        keys = [
            key
            for key, value in self.part.stream.partition.items()
            if held.get_field_index(key) < 0 or has_value(files, held.field(key), value)
        ]
        return selected_partitions(partitions, keys, self.schema, self.row_filter)


def _to_sample(partitions: Sequence[PartitionValues], request: ScanRequest) -> Iterator[PartitionValues]:
    """Most files have no columns of their partition keys, which are text then: those that pass the filter come next."""
    yield from partitions[:STREAMS_SAMPLED]
    text = pa.schema([(key, pa.string()) for key in request.partition_keys])
    with suppress(Invalid):  # the filter has other columns, or other types
        selected = selected_partitions(partitions, request.partition_keys, text, request.row_filter)
        yield from selected[:STREAMS_SAMPLED]


def _sample(streams: Iterable[PartitionStream], declared: pa.Schema | None, request: ScanRequest) -> _Sample | None:
    """None: no partition can be excluded before its log is read. The scan knows all columns, and raises errors."""
    if request.row_filter is None or request.names_one_stream:
        return None
    part, not_compacted = None, list[PartitionStream]()
    for stream in streams:
        part = _pin(stream, request)
        if part is not None:
            break
        not_compacted.append(stream)
    if part is None and request.view == "merged":
        part = next((part for part in map(_pin_pending, not_compacted) if part is not None), None)
    if part is None:
        return None
    named = [] if declared is None else [("the table's definition", declared)]
    with suppress(Invalid):
        unified = _unified([*named, (str(part.stream), part.schema)])
        schema = with_partition_columns(unified, request.partition_keys)
        _check_columns(schema.names if request.columns is None else request.columns, schema)
        columns_of(request.row_filter, schema)
        return _Sample(part, schema, request.row_filter)
    return None


def _unified(named: Sequence[tuple[str, pa.Schema]]) -> pa.Schema:
    """The unified schema. Of a published table, some files have open types; others, or the declared schema, not yet."""
    try:
        return unify_schemas(named)
    except Invalid:
        with suppress(Invalid):
            return unify_schemas([(name, open_schema(schema)) for name, schema in named])
        raise


def _refuse_times_out_of_range(parts: Iterable[ScanPart], read: Iterable[ScanFile], fields: Iterable[pa.Field]) -> None:
    """`append` compares a delta with its own stream; two streams may differ."""
    read_fields = {each.name: each for each in fields}
    schema = pa.schema([read_fields[name] for name in nanosecond_columns(pa.schema(read_fields.values()))])
    if not schema.names:
        return
    uris = {scanned.uri for scanned in read}
    reasons = [
        f"column {times.column!r} of {part.stream} has times {times.bounds}, and other partitions have nanoseconds, "
        "which hold the years 1678 to 2262: scan these partitions by themselves, or leave the column out"
        for part in parts
        for times in times_out_of_range(
            (scanned.file for scanned in part.files if scanned.uri in uris), [part.schema], schema
        )
    ]
    refuse_if(reasons)


# -- partition columns


def with_partition_columns(schema: pa.Schema, partition_keys: Iterable[str]) -> pa.Schema:
    """The schema of rows, with a text column added for each partition key that it lacks."""
    missing = [pa.field(key, pa.string()) for key in partition_keys if schema.get_field_index(key) < 0]
    return pa.schema([*schema, *missing], metadata=schema.metadata)


def partition_constants(
    partition: PartitionValues, held: pa.Schema, whole_schema: pa.Schema, stream: object
) -> dict[str, pa.Scalar]:
    """The partition's values that rows of schema `held` lack, in the types of the whole schema.

    Raises `Invalid` if a value is not of the column's type, which the table or other partitions' files declare.
    """
    constants = {}
    for key, value in partition.items():
        if held.get_field_index(key) < 0:
            kind = whole_schema.field(key).type
            try:
                constants[key] = pa.scalar(value).cast(kind)
            except pa.ArrowException as error:
                raise Invalid(
                    f"the partition value {key}={value} of {stream} is no {kind}, which column {key!r} has in the "
                    "table's schema or in the files of other partitions: rename that column"
                ) from error
    return constants


def _with_partition_values(part: ScanPart, whole_schema: pa.Schema) -> ScanPart:
    constants = partition_constants(part.stream.partition, part.schema, whole_schema, part.stream)
    return replace(part, files=tuple(replace(scanned, constants=constants) for scanned in part.files))


# -- the snapshot


def _pin(stream: PartitionStream, request: ScanRequest) -> ScanPart | None:
    """The files and rows of the stream's compacted side; None if nothing was compacted."""
    compacted = stream.load(_entry_number(stream, request)).state.compacted
    if compacted is None:
        return None
    vectors = {vector.file_number: vector for vector in compacted.deletion_vectors}
    files = tuple(
        ScanFile(stream.partition, stream.uri_of(file.path), file, dead=vectors.get(number))
        for number, file in sorted(compacted.files.items())
    )
    return ScanPart(stream, parse_schema(compacted.last_round.compacted_schema), files)


def _pin_pending(stream: PartitionStream) -> ScanPart | None:
    """The files of a stream's upserts, with the columns of the newest; None: it has none, or their types are inferred,
    or they cannot be read, as the scan itself will say."""
    active = stream.load().state.active
    files = tuple(
        ScanFile(stream.partition, stream.uri_of(file.path), file, is_delta=True)
        for delta in (() if active is None else active.deltas)
        if delta.operation is Operation.UPSERT
        for file in delta.files
    )
    if files and not files[-1].file.content_type.is_text:
        with suppress(Invalid, Corrupt):
            newest = TabularFile.of(files[-1].uri, files[-1].file)
            return ScanPart(stream, read_schema(stream.location, newest), files)
    return None


def _pin_merged(streams: Sequence[PartitionStream], request: ScanRequest, sample: _Sample | None) -> list[ScanPart]:
    """The files and rows of the streams as if every delta were compacted now."""
    if request.as_of is not None:
        raise Invalid("view='merged' shows the deltas of now: leave as_of out, or use view='compacted'")
    # Merging needs the steps of the compaction and their kernels: only a merged scan loads them.
    from compactor.reading.merge_on_read import merge_table

    all_or_selected = list if sample is None else sample.selected
    merged = merge_table(
        request.lake,
        request.table_id,
        streams,
        others=[] if sample is None else [sample.part.stream],
        selected=all_or_selected if request.is_whole_table else None,
    )
    parts = (_pin(each, request) if isinstance(each, PartitionStream) else _merged_part(each) for each in merged)
    return [part for part in parts if part is not None]


def _merged_part(merged: MergedStream) -> ScanPart:
    partition = merged.stream.partition
    files = (
        ScanFile(partition, each.uri, each.file, kept=each.kept, is_delta=each.is_delta)
        for each in merged.files
        if len(each.kept)
    )
    return ScanPart(merged.stream, merged.schema, tuple(files))


def _entry_number(stream: PartitionStream, request: ScanRequest) -> int | None:
    """The entry to read as of; None: the last one. Raises `Invalid` if the one stream of a scan had none then."""
    as_of = request.as_of
    if as_of is None:
        return None
    is_entry = isinstance(as_of, int) and request.names_one_stream
    number = as_of if isinstance(as_of, int) and is_entry else stream.log.entry_number_at(time_ms(as_of))
    if number == 0 and request.names_one_stream:
        first = next(stream.log.entries(), None)
        since = "nothing was ever appended to it" if first is None else f"its log begins {_iso(first.at_ms)}"
        raise Invalid(f"{stream} was not there as of {as_of}: {since}")
    return number


def refuse_before(created_at_ms: int, table_id: str, as_of: AsOf) -> None:
    """Raises `Invalid` for a time at which a table was not there yet."""
    if time_ms(as_of) < created_at_ms:
        meant = "; an entry number is of one partition's log, so name it" if isinstance(as_of, int) else ""
        raise Invalid(f"{table_id} was not there as of {as_of}: it was created {_iso(created_at_ms)}{meant}")


def _iso(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1_000, UTC).isoformat(timespec="milliseconds")


def time_ms(as_of: AsOf) -> int:
    """The time in ms since the epoch. Raises `Invalid` for text that is no time."""
    if isinstance(as_of, int):
        return as_of
    try:
        time = as_of if isinstance(as_of, datetime) else datetime.fromisoformat(str(as_of))
    except ValueError as error:
        raise Invalid(f"as_of is {as_of!r}: write a time as in 2026-11-21T12:00:00+00:00") from error
    return int((time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp() * 1000)


# -- columns


def _check_columns(names: Sequence[str], schema: pa.Schema) -> None:
    present = set(schema.names)
    reasons = [
        f"there is no column {name!r} (there are: {', '.join(schema.names)})" for name in names if name not in present
    ]
    if len(set(names)) < len(names):
        reasons.append(f"a column is requested twice: {', '.join(names)}")
    if not names and schema.names:
        reasons.append("no column is requested: name some, or leave columns out for all")
    refuse_if(reasons)


# -- files that a filter excludes


def _scan_files(
    parts: Sequence[ScanPart], schema: pa.Schema, row_filter: pc.Expression | None, filtered_by: Sequence[str]
) -> tuple[ScanFile, ...]:
    found = [scanned for part in parts for scanned in part.files]
    if row_filter is None:
        return tuple(found)
    fields = [schema.field(name) for name in filtered_by]
    guarantees = [
        guarantee_of_rows(scanned.file.columns, scanned.file.rows, scanned.constants, fields) for scanned in found
    ]
    return tuple(found[number] for number in not_excluded(guarantees, schema, row_filter))
