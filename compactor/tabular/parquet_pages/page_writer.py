"""Writes column chunks: pages of chosen rows of a column that was read, in any order."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from compactor.kernels.parquet_values import (
    LENGTH_BYTES,
    pack_codes,
    packed_bytes_max,
    take_codes,
)
from compactor.tabular.parquet_pages.page_format import (
    COMPRESSED_SHARE_MAX,
    DICTIONARY_PAGE_BYTES,
    DICTIONARY_SHARE_MAX,
    PAGE_BYTES,
    Codec,
    ColumnMetaDataField,
    DataPageHeaderField,
    DictionaryPageHeaderField,
    Encoding,
    PageEncodingStatsField,
    PageHeaderField,
    PageType,
    PhysicalType,
    StatisticsField,
    page_checksum,
)
from compactor.tabular.parquet_pages.page_reader import (
    Bytes,
    Codes,
    ColumnType,
    Int64s,
    ReadColumn,
    Values,
    levels_without_nulls,
)
from compactor.tabular.parquet_pages.statistics import Extremes
from compactor.tabular.parquet_pages.thrift import (
    Kind,
    Struct,
    binary,
    boolean,
    i32,
    i64,
    items,
    structure,
    write_struct,
)


@dataclass(frozen=True)
class ColumnChunk:
    """A column chunk ready to be written: its bytes in order, and its metadata for the footer.

    Attributes:
        plain_size: bytes before compression
        metadata: Parquet's ColumnMetaData, with offsets from the start of the bytes"""

    pieces: Sequence[bytes | pa.Buffer]
    size: int
    plain_size: int
    metadata: Struct


def encode_rows(column: ReadColumn, rows: Int64s) -> ColumnChunk:
    """The column's values of these rows, in this order."""
    valid, value_numbers = None, rows
    if column.valid is not None:
        valid = column.valid[rows]
        value_numbers = (np.cumsum(column.valid) - 1)[rows[valid]]
        valid = None if len(value_numbers) == len(rows) else valid
    chunk = _ChunkWriter(column.column_type)
    values = column.values
    if column.codes is not None:
        used = np.zeros(len(values), np.bool_)
        codes = take_codes(column.codes, value_numbers, used)
        dictionary, codes = _without_unused(values, codes, used)
        if _pays(column.column_type, dictionary, codes):
            chunk.add_dictionary(dictionary)
            chunk.add_coded(codes, len(dictionary), valid, len(rows))
        else:
            chunk.add_plain(dictionary, codes.astype(np.int64), valid, len(rows))
    else:
        chunk.add_plain(values, value_numbers, valid, len(rows))
    return chunk.finish(len(rows), len(rows) - len(value_numbers))


def _without_unused(dictionary: Values, codes: Codes, used: npt.NDArray[np.bool_]) -> tuple[Values, Codes]:
    """The dictionary without unused values, so that a deleted value is gone; and codes into it."""
    if used.all():
        return dictionary, codes
    value_numbers = np.flatnonzero(used)
    sizes = dictionary.sizes(value_numbers)
    data = np.empty(int(sizes.sum()), np.uint8)
    dictionary.put(value_numbers, data, 0)
    ends = np.cumsum(sizes)
    recoded = (np.cumsum(used) - 1).astype(np.uint32)
    return Values(data, dictionary.width, None if dictionary.width else (ends - sizes, ends)), recoded[codes]


def _bit_width(count: int) -> int:
    """Bits of a code into so many values; at least 1, since not every reader accepts 0 for a single value."""
    return max(count - 1, 1).bit_length()


def _pays(column_type: ColumnType, dictionary: Values, codes: Codes) -> bool:
    """Whether a dictionary saves bytes; booleans never have one."""
    size = len(dictionary.data)
    if column_type.physical == "BOOLEAN" or size > DICTIONARY_PAGE_BYTES:
        return False
    plain = (dictionary.width or size / max(len(dictionary), 1)) * len(codes)
    return size + len(codes) * _bit_width(len(dictionary)) / 8 <= DICTIONARY_SHARE_MAX * plain


class _ChunkWriter:
    def __init__(self, column_type: ColumnType) -> None:
        self._column_type = column_type
        self._pieces: list[bytes | pa.Buffer] = []
        self._codec: pa.Codec | None = pa.Codec("snappy")
        self._size = 0
        self._plain_size = 0
        self._data_offset: int | None = None
        self._pages: dict[tuple[PageType, Encoding], int] = {}
        self._extremes = Extremes(column_type)

    def add_dictionary(self, dictionary: Values) -> None:
        """Adds a dictionary without unused values."""
        self._extremes.add(dictionary)
        header: Struct = {
            DictionaryPageHeaderField.NUM_VALUES: i32(len(dictionary)),
            DictionaryPageHeaderField.ENCODING: i32(Encoding.PLAIN),
            DictionaryPageHeaderField.IS_SORTED: boolean(False),
        }
        page = PageType.DICTIONARY_PAGE
        self._add_page(
            page, Encoding.PLAIN, {PageHeaderField.DICTIONARY_PAGE_HEADER: structure(header)}, dictionary.data
        )

    def add_coded(self, codes: Codes, dictionary_size: int, valid: npt.NDArray[np.bool_] | None, rows: int) -> None:
        width = _bit_width(dictionary_size)
        rows_per_page = max(PAGE_BYTES * 8 // max(width, 8), 1)
        for first, last, start, end in _cuts(np.arange(0, rows, rows_per_page), valid, rows):
            page = np.empty(_levels_max(last - first) + 1 + packed_bytes_max(end - start, width), np.uint8)
            position = self._put_levels(page, valid, first, last)
            page[position] = width
            position = pack_codes(codes[start:end], width, page, position + 1)
            self._add_data_page(Encoding.RLE_DICTIONARY, page[:position], last - first)

    def add_plain(self, values: Values, value_numbers: Int64s, valid: npt.NDArray[np.bool_] | None, rows: int) -> None:
        ends = np.cumsum(values.sizes(value_numbers)) if values.spans is not None else None
        for first, last, start, end in _cuts(_page_starts(values, ends, valid, rows), valid, rows):
            before = _end_of(ends, start)
            size = (end - start) * values.width if ends is None else _end_of(ends, end) - before
            page = np.empty(_levels_max(last - first) + size, np.uint8)
            position = self._put_levels(page, valid, first, last)
            values.put(value_numbers[start:end], page, position)
            filled = page[: position + size]
            # From the page, which is in the processor's cache, rather than from the scattered source values.
            self._extremes.add(_side_by_side(filled[position:], values.width, ends, before, start, end))
            if self._column_type.physical == "BOOLEAN":
                filled = np.concatenate([page[:position], np.packbits(filled[position:], bitorder="little")])
            self._add_data_page(Encoding.PLAIN, filled, last - first)

    def finish(self, rows: int, nulls: int) -> ColumnChunk:
        statistics: Struct = {StatisticsField.NULL_COUNT: i64(nulls)}
        bounds = self._extremes.bounds()
        if bounds is not None:
            statistics |= {
                StatisticsField.MAX_VALUE: binary(bounds[1]),
                StatisticsField.MIN_VALUE: binary(bounds[0]),
                StatisticsField.IS_MAX_VALUE_EXACT: boolean(True),
                StatisticsField.IS_MIN_VALUE_EXACT: boolean(True),
            }
        encodings = sorted({Encoding.RLE, *(encoding for _, encoding in self._pages)})
        fields: Struct = {
            ColumnMetaDataField.TYPE: i32(PhysicalType[self._column_type.physical]),
            ColumnMetaDataField.ENCODINGS: items(Kind.I32, encodings),
            ColumnMetaDataField.PATH_IN_SCHEMA: items(Kind.BINARY, [self._column_type.name.encode()]),
            ColumnMetaDataField.CODEC: i32(Codec.UNCOMPRESSED if self._codec is None else Codec.SNAPPY),
            ColumnMetaDataField.NUM_VALUES: i64(rows),
            ColumnMetaDataField.TOTAL_UNCOMPRESSED_SIZE: i64(self._plain_size),
            ColumnMetaDataField.TOTAL_COMPRESSED_SIZE: i64(self._size),
            ColumnMetaDataField.DATA_PAGE_OFFSET: i64(self._data_offset or 0),
            ColumnMetaDataField.STATISTICS: structure(statistics),
            ColumnMetaDataField.ENCODING_STATS: items(Kind.STRUCT, self._encoding_stats()),
        }
        if (PageType.DICTIONARY_PAGE, Encoding.PLAIN) in self._pages:
            fields[ColumnMetaDataField.DICTIONARY_PAGE_OFFSET] = i64(0)
        return ColumnChunk(self._pieces, self._size, self._plain_size, fields)

    def _encoding_stats(self) -> list[Struct]:
        return [
            {
                PageEncodingStatsField.PAGE_TYPE: i32(page),
                PageEncodingStatsField.ENCODING: i32(encoding),
                PageEncodingStatsField.COUNT: i32(count),
            }
            for (page, encoding), count in sorted(self._pages.items())
        ]

    def _put_levels(self, page: Bytes, valid: npt.NDArray[np.bool_] | None, first: int, last: int) -> int:
        if not self._column_type.optional:
            return 0
        if valid is None:
            run = levels_without_nulls(last - first)
            end = LENGTH_BYTES + len(run)
            page[LENGTH_BYTES:end] = np.frombuffer(run, np.uint8)
        else:
            end = pack_codes(valid[first:last].astype(np.uint32), 1, page, LENGTH_BYTES)
        page[:LENGTH_BYTES] = np.frombuffer((end - LENGTH_BYTES).to_bytes(LENGTH_BYTES, "little"), np.uint8)
        return end

    def _add_data_page(self, encoding: Encoding, body: Bytes, rows: int) -> None:
        if self._data_offset is None:
            self._data_offset = self._size
        header: Struct = {
            DataPageHeaderField.NUM_VALUES: i32(rows),
            DataPageHeaderField.ENCODING: i32(encoding),
            DataPageHeaderField.DEFINITION_LEVEL_ENCODING: i32(Encoding.RLE),
            DataPageHeaderField.REPETITION_LEVEL_ENCODING: i32(Encoding.RLE),
        }
        self._add_page(PageType.DATA_PAGE, encoding, {PageHeaderField.DATA_PAGE_HEADER: structure(header)}, body)

    def _add_page(self, page: PageType, encoding: Encoding, page_header: Struct, body: Bytes) -> None:
        plain = pa.py_buffer(body)
        compressed = self._codec.compress(plain) if self._codec is not None else plain
        is_first = page == PageType.DATA_PAGE and not self._pieces
        if is_first and compressed.size > COMPRESSED_SHARE_MAX * plain.size:
            # A column chunk has one codec for all pages. The first data page decides it: other data pages are alike, a
            # dictionary is not.
            self._codec, compressed = None, plain
        fields: Struct = {
            PageHeaderField.TYPE: i32(page),
            PageHeaderField.UNCOMPRESSED_PAGE_SIZE: i32(plain.size),
            PageHeaderField.COMPRESSED_PAGE_SIZE: i32(compressed.size),
            PageHeaderField.CRC: i32(page_checksum(compressed)),
        }
        header = write_struct(fields | page_header)
        self._pieces += [header, compressed]
        self._size += len(header) + compressed.size
        self._plain_size += len(header) + len(body)
        self._pages[page, encoding] = self._pages.get((page, encoding), 0) + 1


def _levels_max(rows: int) -> int:
    return LENGTH_BYTES + packed_bytes_max(rows, 1)


def _page_starts(values: Values, ends: Int64s | None, valid: npt.NDArray[np.bool_] | None, rows: int) -> Int64s:
    """The first row of each page, so that no page is much larger than the target size."""
    if ends is None:
        return np.arange(0, rows, max(PAGE_BYTES // max(values.width, 1), 1))
    cuts = np.searchsorted(ends, np.arange(PAGE_BYTES, int(ends[-1]) if len(ends) else 0, PAGE_BYTES))
    value_numbers = np.unique(np.concatenate(([0], cuts)))
    return (
        value_numbers if valid is None else np.unique(np.concatenate(([0], np.flatnonzero(valid)[value_numbers[1:]])))
    )


def _cuts(page_starts: Int64s, valid: npt.NDArray[np.bool_] | None, rows: int) -> Iterator[tuple[int, int, int, int]]:
    """For each page (first row, last row, first value, last value), with exclusive ends."""
    bounds = [*page_starts.tolist(), rows]
    values = bounds if valid is None else np.concatenate(([0], np.cumsum(valid)))[bounds].tolist()
    return zip(bounds[:-1], bounds[1:], values[:-1], values[1:], strict=True)


def _end_of(ends: Int64s | None, count: int) -> int:
    """The end of the first `count` values, by the ends of all values."""
    return int(ends[count - 1]) if ends is not None and count else 0


def _side_by_side(data: Bytes, width: int, ends: Int64s | None, before: int, start: int, end: int) -> Values:
    """Values `start` to `end`, contiguous. `ends`: the ends of the values; `before`: the start of the first."""
    if ends is None:
        return Values(data, width)
    bounds = np.empty(end - start + 1, np.int64)
    bounds[0] = 0
    np.subtract(ends[start:end], before, out=bounds[1:])
    return Values(data, 0, (bounds[:-1], bounds[1:]))
