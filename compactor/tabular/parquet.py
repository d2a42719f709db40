"""Parquet: read by row group, written with bounded row groups, measured from its footer."""

import math
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from compactor.model.errors import Corrupt
from compactor.model.files import ColumnStats, FooterRange, RowGroupSize
from compactor.model.names import ContentType, counted
from compactor.schemas.cast import cast_column, plain_table
from compactor.schemas.unify import refuse_repeated_columns
from compactor.storage.location import StoreLocation
from compactor.tabular.bounds import parquet_column_stats
from compactor.tabular.filesystems import reading
from compactor.tabular.formats import FileMeasure, Source, TabularFile, wanted_columns
from compactor.tabular.parquet_pages.arrow_files import (
    KnownFooter,
    OpenParquet,
    arrow_schema_of,
    open_mapped,
    open_parquet,
    release_mapped,
    spans_of_columns,
)
from compactor.tabular.parquet_pages.footer_check import check_footer
from compactor.tabular.parquet_pages.page_format import DICTIONARY_PAGE_BYTES, DICTIONARY_SHARE_MAX
from compactor.tabular.same_file import check_crc32

BATCH_BYTES = 16 * 1024 * 1024
"""Memory of one batch: 64 Ki rows of 256 bytes, or 16 Ki rows of 1 KiB."""

_MAGIC_BYTES = 4
_TAIL_BYTES = 8
"""Bytes after the footer: its length, and Parquet's magic bytes."""

_SAMPLE_ROWS = 4_096
"""Rows by which it is judged which columns repeat their values."""

BATCH_ROWS_MAX = 128 * 1024
BATCH_ROWS_MIN = 256

_PLAIN_WIDTHS: Mapping[str, float] = MappingProxyType(
    {"BOOLEAN": 1 / 8, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
)


class Parquet:
    """See `TabularFormat`.

    Attributes:
        own_pages: whether Lithify decodes the pages of numbers that it supports, of files that are not small
        use_threads: whether Arrow decodes columns in several threads"""

    def __init__(self, own_pages: bool = True, use_threads: bool = True) -> None:
        self._own_pages = own_pages
        self._use_threads = use_threads

    def read_schema(self, source: Source, schema: pa.Schema | None) -> pa.Schema:
        del schema
        with open_parquet(source) as file:
            check_footer(file.parquet.metadata, file.opened)
            return arrow_schema_of(file.parquet)

    def read_table(self, source: Source, columns: Sequence[str] | None, schema: pa.Schema | None) -> pa.Table:
        with open_parquet(source) as file:
            return self.table_of(source, file, columns)

    def table_of(self, source: Source, file: OpenParquet, columns: Sequence[str] | None) -> pa.Table:
        """As `read_table`, of a file that is open."""
        parquet = file.parquet
        arrow_schema = file.schema
        wanted = wanted_columns(source, arrow_schema, columns)
        file.hold(range(parquet.num_row_groups), wanted)
        only = None if columns is None else wanted
        table = parquet.read(columns=only, use_threads=not file.is_small)
        _check_rows(table.num_rows, parquet.metadata.num_rows)
        return _as_written(table if only is None else table.select(wanted), arrow_schema)

    def read_batches(
        self, source: Source, columns: Sequence[str] | None, schema: pa.Schema | None
    ) -> Iterator[pa.RecordBatch]:
        del schema
        with open_parquet(source) as file:
            yield from self.batches_of(source, file, range(file.parquet.num_row_groups), columns)

    def batches_around(
        self, source: Source, rows: int, first_row: int, last_row: int, columns: Sequence[str] | None = None
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The rows of the row groups that have a row from the first to the last, each batch with its first row. `rows`:
        how many the file should have."""
        with open_mapped(source) as (file, mapped):
            metadata = file.parquet.metadata
            check_row_count(source.file.uri, metadata.num_rows, rows)
            row, groups = _groups_around(metadata, (first_row, last_row))
            for batch in self.batches_of(source, file, groups, columns):
                yield row, batch
                row += batch.num_rows
                release_mapped(mapped)

    def batches_of(
        self,
        source: Source,
        file: OpenParquet,
        row_groups: Sequence[int],
        columns: Sequence[str] | None,
        batch_rows: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """The rows of some row groups. `batch_rows`: None: as many as are `BATCH_BYTES`."""
        parquet = file.parquet
        arrow_schema = file.schema
        wanted = wanted_columns(source, arrow_schema, columns)
        # One row group at a time: of several at once the reader keeps all bytes until the end.
        for number, row_group in enumerate(row_groups):
            rows = 0
            file.hold([row_group], wanted)
            file.begin(row_groups[number + 1 : number + 2], wanted)
            for batch in self._batches(file, row_group, wanted, batch_rows):
                rows += batch.num_rows
                yield from _as_written(pa.Table.from_batches([batch]).select(wanted), arrow_schema).to_batches()
            _check_rows(rows, parquet.metadata.row_group(row_group).num_rows)

    def _batches(
        self, file: OpenParquet, row_group: int, columns: Sequence[str], batch_rows: int | None
    ) -> Iterator[pa.RecordBatch]:
        parquet = file.parquet
        of_file = parquet.metadata.row_group(row_group)
        rows = batch_rows or _rows_of_batch(of_file.total_byte_size / max(1, of_file.num_rows))
        by_arrow = file.is_small or not self._own_pages
        numbers = None if by_arrow else _numbers(parquet, file.opened, row_group, columns)
        if numbers is None:
            use_threads = self._use_threads and not file.is_small
            yield from parquet.iter_batches(
                batch_size=rows, row_groups=[row_group], columns=columns, use_threads=use_threads
            )
        else:
            yield from (numbers.slice(start, rows) for start in range(0, numbers.num_rows, rows))

    def read_row(self, source: Source, row_index: int) -> pa.Table:
        """One row, as a table; only the footer and the row's row group are read."""
        with open_parquet(source) as file:
            parquet = file.parquet
            for row_group in range(parquet.num_row_groups):
                rows = parquet.metadata.row_group(row_group).num_rows
                if row_index < rows:
                    file.hold([row_group], None)
                    table = parquet.read_row_group(row_group).slice(row_index, 1)
                    return _as_written(table, file.schema)
                row_index -= rows
            return file.schema.empty_table()

    def measure(self, source: Source, schema: pa.Schema | None) -> FileMeasure:
        del schema
        with open_parquet(source) as file:
            check_footer(file.parquet.metadata, file.opened)
            return parquet_measure(file.parquet.metadata, arrow_schema_of(file.parquet), file.opened.size())


def check_row_count(uri: str, rows: int, expected_rows: int) -> None:
    """Raises `Corrupt` if a file does not have the rows that the log says."""
    if rows != expected_rows:
        raise Corrupt(f"{uri} holds {counted(rows, 'row')}, but the log says {expected_rows}")


def _groups_around(metadata: pq.FileMetaData, bounds: tuple[int, int]) -> tuple[int, list[int]]:
    """The row groups that have a row from the first to the last, and where they begin."""
    ends = np.cumsum([metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)])
    starts = np.concatenate(([0], ends)).astype(np.int64)
    groups = np.flatnonzero((starts[1:] > bounds[0]) & (starts[:-1] <= bounds[1]))
    return int(starts[groups[0]]) if len(groups) else 0, groups.tolist()


def begin_parquet(source: Source, columns: Sequence[str] | None, bounds: tuple[int, int] | None = None) -> None:
    """Prefetches these columns of a remote file, one row group after the other, while there is room; of the row groups
    that have a row from the first to the last of `bounds`, or of all."""
    with open_parquet(source) as file:
        if file.remote is None or source.reader is None:
            return
        metadata = file.parquet.metadata
        groups = range(metadata.num_row_groups) if bounds is None else _groups_around(metadata, bounds)[1]
        for group in groups:
            spans = spans_of_columns(file.parquet.metadata, file.remote.size_bytes, [group], columns)
            if not source.reader.begin(source.file.uri, spans):
                return


class SharedParquet:
    """A Parquet file of which several threads read row groups. The footer is read once; each read opens the file."""

    def __init__(self, location: StoreLocation, file: TabularFile, use_threads: bool) -> None:
        self._file = file
        self._source = Source.of(location, file)
        self._reader = Parquet(own_pages=False, use_threads=use_threads)
        self._lock = threading.Lock()
        self._footer: KnownFooter | None = None

    @property
    def columns(self) -> set[str]:
        """Names of the top-level columns. Reads the footer."""
        return set(self._known().schema.names)

    def row_counts(self) -> list[int]:
        """The rows of each row group. Reads the footer."""
        metadata = self._known().metadata
        return [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]

    def column_stats(self, row_group: int, columns: Sequence[str]) -> Mapping[str, ColumnStats]:
        """The bounds of these columns in a row group; a column without any may be absent."""
        known = self._known()
        present = [known.schema.field(name) for name in columns if known.schema.get_field_index(name) >= 0]
        with reading(self._file.uri, self._file.content_type):
            return parquet_column_stats(known.metadata, pa.schema(present), [row_group])

    def batch_rows(self, columns: Collection[str]) -> int:
        """The rows of a batch of these columns that has about `BATCH_BYTES`."""
        with reading(self._file.uri, self._file.content_type):
            widths = _row_bytes(self._known().metadata)
        return _rows_of_batch(sum(width for name, width in widths.items() if name in columns))

    def read(self, row_group: int, columns: Sequence[str], batch_rows: int) -> Iterator[pa.RecordBatch]:
        """The rows of a row group, in batches of so many rows."""
        known = self._known()
        with reading(self._file.uri, self._file.content_type):
            opened_so = replace(known, dictionaries=_text_in_dictionaries(known, row_group, columns))
            with open_parquet(self._source, opened_so) as file:
                for batch in self._reader.batches_of(self._source, file, [row_group], columns, batch_rows):
                    yield from plain_table(pa.Table.from_batches([batch])).to_batches()

    def begin(self, row_groups: Sequence[int], columns: Sequence[str]) -> None:
        """Prefetches these columns of a remote file, one row group after the other, while there is room."""
        reader, metadata = self._source.reader, self._known().metadata
        size_bytes = self._file.size_bytes
        if reader is not None and size_bytes is not None:
            spans = (spans_of_columns(metadata, size_bytes, [group], columns) for group in row_groups)
            all(reader.begin(self._file.uri, each) for each in spans)

    def _known(self) -> KnownFooter:
        with self._lock:
            if self._footer is None:
                with reading(self._file.uri, self._file.content_type), open_parquet(self._source) as file:
                    refuse_repeated_columns(self._file.uri, file.schema)
                    self._footer = KnownFooter(file.parquet.metadata, file.schema)
            return self._footer


def _text_in_dictionaries(known: KnownFooter, row_group: int, columns: Sequence[str]) -> list[str]:
    """Columns of text whose values are all in a dictionary. To look them up at once is faster than one by one, as Arrow
    does while it decodes."""
    metadata, chunks = known.metadata, known.metadata.row_group(row_group)
    wanted = {name for name in columns if known.schema.field(name).type in (pa.string(), pa.binary())}
    leaves = ((position, metadata.schema.column(position)) for position in range(metadata.num_columns))
    return [
        leaf.path
        for position, leaf in leaves
        if leaf.path in wanted and _dictionary_pays([chunks.column(position)], leaf.length)
    ]


def _check_rows(rows: int, expected_rows: int) -> None:
    """Arrow skips pages of unknown types without an error, and a damaged page may look like one."""
    if rows != expected_rows:
        raise pa.ArrowInvalid(f"its pages hold {rows} rows, but its footer says {expected_rows}")


def parquet_measure(metadata: pq.FileMetaData, schema: pa.Schema, size_bytes: int) -> FileMeasure:
    """A file's measure from its footer."""
    footer_bytes = _footer_bytes(metadata)
    return FileMeasure(
        metadata.num_rows,
        size_bytes,
        schema,
        parquet_column_stats(metadata, schema),
        FooterRange(offset=size_bytes - _TAIL_BYTES - footer_bytes, size_bytes=footer_bytes),
        tuple(map(_row_group_size, (metadata.row_group(number) for number in range(metadata.num_row_groups)))),
    )


def _footer_bytes(metadata: pq.FileMetaData) -> int:
    """The size of the footer. Arrow does not know it for a footer that it has just written."""
    if metadata.serialized_size:
        return int(metadata.serialized_size)
    sink = pa.BufferOutputStream()
    metadata.write_metadata_file(sink)
    return int(sink.getvalue().size) - _MAGIC_BYTES - _TAIL_BYTES


def _row_group_size(row_group: pq.RowGroupMetaData) -> RowGroupSize:
    chunks = (row_group.column(position) for position in range(row_group.num_columns))
    return RowGroupSize(rows=row_group.num_rows, size_bytes=sum(chunk.total_compressed_size for chunk in chunks))


def dictionary_columns_of(location: StoreLocation, file: TabularFile) -> tuple[str, ...] | None:
    """Leaf columns (dotted paths) that dictionaries made smaller in this file; None if the file is not Parquet.

    With this list a writer does not build dictionaries that it drops when they outgrow their page.
    """
    if file.content_type is not ContentType.PARQUET:
        return None
    with reading(file.uri, file.content_type), open_parquet(Source.of(location, file)) as opened:
        metadata = opened.parquet.metadata
        if (
            file.crc32 is not None and opened.is_small and opened.remote is None
        ):  # a planner may not have checked its footer
            opened.opened.seek(0)
            check_crc32(file.uri, opened.opened.read_buffer(), file.crc32)
    return dictionary_columns_in(metadata)


def dictionary_columns_in(metadata: pq.FileMetaData) -> tuple[str, ...]:
    """As `dictionary_columns_of`, from a footer that was read already."""
    row_groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    return tuple(
        metadata.schema.column(position).path
        for position in range(metadata.num_columns)
        if _dictionary_pays(
            [row_group.column(position) for row_group in row_groups], metadata.schema.column(position).length
        )
    )


def columns_that_repeat(rows: pa.Table) -> tuple[str, ...] | None:
    """Columns for which dictionaries may pay, by a sample of rows; None: any may, since they are few, or nested.

    If d values are drawn k times each, a sample of n of its N rows has about n * n / (2 * d) that it has already. Half
    of the rows or more are distinct, so no dictionary pays, if these are fewer than n * n / N. Half of the sample are
    neighbours, since equal values may be.
    """
    rows_count, names = rows.num_rows, rows.column_names
    if (
        rows_count < 4 * _SAMPLE_ROWS
        or any("." in name for name in names)
        or any(map(pa.types.is_nested, rows.schema.types))
    ):
        return None
    half, middle = _SAMPLE_ROWS // 2, rows_count // 2
    spread = np.linspace(0, rows_count - 1, half).astype(np.int64)
    sample = rows.take(pa.array(np.union1d(spread, np.arange(middle, middle + half))))

    def repeats(column: pa.ChunkedArray) -> bool:
        kind = column.type
        if isinstance(kind, pa.ExtensionType) or pa.types.is_dictionary(kind) or pa.types.is_float16(kind):
            return True  # a dictionary, or a type of which Arrow finds no distinct values
        there = len(column) - column.null_count
        seen_before = there - len(column.drop_null().unique())
        return bool(seen_before * rows_count >= there * there)

    return tuple(name for name in names if repeats(sample.column(name)))


def _dictionary_pays(chunks: Sequence[pq.ColumnChunkMetaData], fixed_length: int) -> bool:
    """Whether one column's dictionary-encoded chunks are much smaller than plain ones would be.

    The metadata does not show that a writer dropped a dictionary: the encodings list PLAIN in either case, because the
    dictionary's own page is plain. So sizes before compression are compared. The size of plain chunks is computed from
    the width of the values, or from the usual length of text by its minimum and maximum. Without either: a dictionary
    page has at most 1 MiB and an index into it at most 18 bits, so larger chunks contain plain values.
    """
    encoded_bytes = plain_bytes = index_bytes_max = 0
    for chunk in chunks:
        if not chunk.has_dictionary_page:
            return False
        stats = chunk.statistics if chunk.is_stats_set else None
        nulls = stats.null_count if stats is not None and stats.has_null_count else 0
        values = chunk.num_values - nulls
        encoded_bytes += chunk.total_uncompressed_size
        plain_bytes += values * _plain_width(chunk, stats, fixed_length)
        index_bytes_max += DICTIONARY_PAGE_BYTES + values * 18 // 8 + chunk.num_values // 2
    return encoded_bytes <= index_bytes_max and encoded_bytes <= DICTIONARY_SHARE_MAX * plain_bytes


def _plain_width(chunk: pq.ColumnChunkMetaData, stats: pq.Statistics | None, fixed_length: int) -> float:
    """Bytes of one plain value; for text and bytes an estimate from the minimum and maximum in the statistics."""
    if chunk.physical_type != "BYTE_ARRAY":
        return _PLAIN_WIDTHS.get(chunk.physical_type, fixed_length)
    if stats is None or not stats.has_min_max:
        return math.inf
    return 4 + (len(stats.min_raw) + len(stats.max_raw)) / 2


def _row_bytes(metadata: pq.FileMetaData) -> dict[str, float]:
    """Decoded bytes of a row by top-level column, from the first row group; text in dictionaries is as wide as the two
    values that the statistics hold."""
    widths: dict[str, float] = {}
    rows = metadata.row_group(0).num_rows if metadata.num_row_groups else 0
    for position in range(metadata.num_columns if rows else 0):
        chunk = metadata.row_group(0).column(position)
        leaf = metadata.schema.column(position)
        stats = chunk.statistics if chunk.is_stats_set else None
        width = chunk.num_values * _plain_width(chunk, stats, leaf.length)
        if math.isinf(width) or (chunk.physical_type == "BYTE_ARRAY" and not chunk.has_dictionary_page):
            width = chunk.total_uncompressed_size
        name = leaf.path.split(".", 1)[0]
        widths[name] = widths.get(name, 0.0) + width / rows
    return widths


def _as_written(table: pa.Table, arrow_schema: pa.Schema) -> pa.Table:
    held = table.schema
    as_written = [arrow_schema.field(name) for name in held.names]
    if all(field.type == written.type for field, written in zip(held, as_written, strict=True)):
        return table
    columns = [cast_column(column, field.type) for column, field in zip(table.columns, as_written, strict=True)]
    return pa.Table.from_arrays(columns, schema=pa.schema(as_written, metadata=held.metadata))


def _rows_of_batch(bytes_per_row: float) -> int:
    return int(min(BATCH_ROWS_MAX, max(BATCH_ROWS_MIN, BATCH_BYTES // max(1, bytes_per_row))))


def _numbers(parquet: pq.ParquetFile, opened: pa.NativeFile, row_group: int, columns: Sequence[str]) -> pa.Table | None:
    from compactor.tabular.parquet_pages.numbers import read_numbers  # loads the kernels

    return read_numbers(parquet, opened, row_group, columns)
