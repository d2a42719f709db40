"""Reads column chunks of Parquet without converting their values to Arrow.

Materialize writes the rows that it has just read in another order, and without some. Arrow would decode each value,
build a new dictionary, and encode it. Here dictionary codes are copied as codes, and other values as bytes. Flat
columns with the usual encodings are supported, see `is_supported`; Arrow reads the rest.

Everything that a file declares is checked before it is used; damage raises `pa.ArrowInvalid`, as in Arrow.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import cramjam
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from compactor.kernels.parquet_values import (
    LENGTH_BYTES,
    find_byte_arrays,
    take_byte_arrays,
    unpack_codes,
)
from compactor.tabular.parquet_pages.page_format import (
    BIT_WIDTH_MAX,
    CODECS_READ,
    ENCODINGS_READ,
    LOGICAL_TYPES_READ,
    NUMBER_TYPES,
    PAGE_SIZE_MAX,
    PAGE_TYPES_READ,
    PHYSICAL_TYPES_READ,
    DataPageHeaderField,
    DictionaryPageHeaderField,
    Encoding,
    PageHeaderField,
    PageType,
    page_checksum,
)
from compactor.tabular.parquet_pages.thrift import (
    Struct,
    UnknownKindError,
    number_in,
    read_struct,
    struct_in,
    write_unsigned,
)

Bytes: TypeAlias = npt.NDArray[np.uint8]
Codes: TypeAlias = npt.NDArray[np.uint32]
Int64s: TypeAlias = npt.NDArray[np.int64]

_SUPPORTED_ENCODINGS = frozenset(each.name for each in ENCODINGS_READ)
_SUPPORTED_CODECS = frozenset(each.name for each in CODECS_READ)
_SUPPORTED_PHYSICAL_TYPES = frozenset(each.name for each in PHYSICAL_TYPES_READ)


@dataclass(frozen=True)
class ColumnType:
    """A column's type in the file's schema.

    Attributes:
        physical: Parquet's physical type
        width: bytes of a plain value in memory, 1 for a boolean; 0: byte arrays, each with its length before it
        logical_type: Parquet's logical type"""

    name: str
    physical: str
    width: int
    optional: bool
    logical_type: str
    signed: bool

    @classmethod
    def of(cls, column: pq.ColumnSchema) -> ColumnType:
        logical = json.loads(column.logical_type.to_json())
        if column.physical_type == "FIXED_LEN_BYTE_ARRAY":
            width = column.length
        elif column.physical_type == "BOOLEAN":
            width = 1
        else:
            number_type = NUMBER_TYPES.get(column.physical_type)
            width = np.dtype(number_type).itemsize if number_type is not None else 0
        return cls(
            name=column.name,
            physical=column.physical_type,
            width=width,
            optional=column.max_definition_level == 1,
            logical_type=logical.get("Type", "None"),
            signed=logical.get("isSigned", True),
        )


def is_supported(column: pq.ColumnSchema, chunk: pq.ColumnChunkMetaData) -> bool:
    """Whether a column chunk can be read here."""
    if column.max_repetition_level or column.max_definition_level > 1:
        return False
    column_type = ColumnType.of(column)
    return (
        column_type.physical in _SUPPORTED_PHYSICAL_TYPES
        and column_type.logical_type in LOGICAL_TYPES_READ
        and (column_type.width > 0 or (column_type.physical == "BYTE_ARRAY" and column_type.logical_type != "Decimal"))
        and chunk.compression in _SUPPORTED_CODECS
        and set(chunk.encodings) <= _SUPPORTED_ENCODINGS
    )


_SPAN_BYTES, _CODE_BYTES = 16, 4
"""The start and the end of a byte array; of a value with a dictionary, its code."""


def decoded_bytes(column_type: ColumnType, chunk: pq.ColumnChunkMetaData) -> int:
    """Memory of a decoded column chunk, by its metadata."""
    size: int = max(chunk.total_uncompressed_size, 0)
    if chunk.has_dictionary_page:
        size += _CODE_BYTES * chunk.num_values
    elif not column_type.width:
        size += _SPAN_BYTES * chunk.num_values
    elif column_type.physical == "BOOLEAN":
        size += chunk.num_values
    return size + chunk.num_values if column_type.optional else size


# ---------------------------------------------------------------------------------------------------------- values


@dataclass(frozen=True)
class Values:
    """Plain values. Value v is data[starts[v]:ends[v]]; a byte array includes the length before it.

    Attributes:
        spans: starts and ends, int64 (values,) each; None: the values are contiguous, and all have this width"""

    data: Bytes
    width: int
    spans: tuple[Int64s, Int64s] | None = None

    def __len__(self) -> int:
        return len(self.data) // self.width if self.spans is None else len(self.spans[0])

    def sizes(self, value_numbers: Int64s) -> Int64s:
        """The size in bytes of each of these values."""
        if self.spans is None:
            return np.full(len(value_numbers), self.width)
        starts, ends = self.spans
        return ends[value_numbers] - starts[value_numbers]

    def put(self, value_numbers: Int64s, page: Bytes, start: int) -> None:
        """Writes these values to page[start:]."""
        if self.spans is not None:
            take_byte_arrays(self.data, *self.spans, value_numbers, page, start)
            return
        dtype = np.dtype(np.uint64) if self.width == 8 else np.dtype((np.void, self.width))
        taken = self.data.view(dtype).take(value_numbers)
        page[start : start + len(value_numbers) * self.width] = taken.view(np.uint8)


@dataclass(frozen=True)
class ReadColumn:
    """A column of one file.

    Attributes:
        values: without codes: those of the rows that are not null, in file order; with codes: the dictionary
        codes: uint32: the dictionary code of each row that is not null; None: there is no dictionary
        valid: (rows,): which rows are not null; None: all"""

    column_type: ColumnType
    values: Values
    codes: Codes | None
    valid: npt.NDArray[np.bool_] | None


# --------------------------------------------------------------------------------------------------------- reading


class UnsupportedPages(Exception):
    """The pages cannot be read here, which the footer does not show; Arrow may read them."""


def read_column(
    column_type: ColumnType, data: Bytes, chunks: Sequence[tuple[pq.ColumnChunkMetaData, int]]
) -> ReadColumn:
    """A column from its chunks, one per row group, each with its start in `data`.

    Byte arrays that are neither compressed nor dictionary-encoded are not copied: the column then refers to `data`.
    """
    is_in_place = can_stay_in_place(column_type, [chunk for chunk, _ in chunks])
    reader = ColumnReader(column_type, data if is_in_place else None)
    view = data.data
    for chunk, start in chunks:
        reader.add_chunk(chunk, view[: start + chunk.total_compressed_size], start)
    return reader.column()


def can_stay_in_place(column_type: ColumnType, chunks: Sequence[pq.ColumnChunkMetaData]) -> bool:
    """Whether these chunks hold byte arrays as they are, so that values can be found without copying them."""
    return not column_type.width and all(
        chunk.compression == "UNCOMPRESSED" and set(chunk.encodings) <= {"PLAIN", "RLE"} for chunk in chunks
    )


@dataclass(frozen=True)
class Page:
    """The header of a page, checked.

    Attributes:
        rows: of a data page; 0 for a dictionary
        start, end: of its body, in the bytes that the header was read from
        plain_size: bytes of the body when it is decompressed"""

    header: Struct
    kind: PageType
    rows: int
    start: int
    end: int
    plain_size: int

    def checked(self, body: memoryview) -> memoryview:
        """The page's bytes, compared with their checksum if the page has one."""
        if PageHeaderField.CRC in self.header and number_in(self.header, PageHeaderField.CRC) != page_checksum(body):
            raise pa.ArrowInvalid("a page's bytes do not match the checksum in its header")
        return body

    @property
    def data_header(self) -> Struct:
        return struct_in(self.header, PageHeaderField.DATA_PAGE_HEADER)

    @property
    def encoding(self) -> int:
        return number_in(self.data_header, DataPageHeaderField.ENCODING)


@dataclass(frozen=True)
class StoredPage:
    """A data page that is going to be decoded.

    Attributes:
        end: of its body in the file
        dictionary: of its column chunk, as far as there is one"""

    page: Page
    body: memoryview
    end: int
    codec: str
    dictionary: Values | None

    def check_in_place(self) -> None:
        """Raises `UnsupportedPages` unless the page's values are byte arrays as they are."""
        if len(self.body) != self.page.plain_size or self.page.encoding != Encoding.PLAIN:
            raise UnsupportedPages

    def dictionary_of_codes(self) -> Values:
        """The dictionary of a page that holds codes. Raises `UnsupportedPages` if it holds anything else."""
        if self.page.encoding not in (Encoding.PLAIN_DICTIONARY, Encoding.RLE_DICTIONARY):
            raise UnsupportedPages
        if self.dictionary is None:
            raise pa.ArrowInvalid("a page of dictionary codes comes before its dictionary")
        return self.dictionary


def read_page(chunk: pq.ColumnChunkMetaData, rows_before: int, data: memoryview, position: int, end: int) -> Page:
    """The page of a column chunk at data[position]. The chunk ends at `end`, and has `rows_before` before this page."""
    try:
        header, start = read_struct(data, position)
    except UnknownKindError as error:
        raise UnsupportedPages from error
    kind = number_in(header, PageHeaderField.TYPE)
    size = number_in(header, PageHeaderField.COMPRESSED_PAGE_SIZE)
    plain_size = number_in(header, PageHeaderField.UNCOMPRESSED_PAGE_SIZE)
    if not 0 <= size <= end - start or not 0 <= plain_size <= PAGE_SIZE_MAX:
        raise pa.ArrowInvalid("a page reaches beyond its column chunk")
    if kind not in PAGE_TYPES_READ:
        raise UnsupportedPages
    rows = 0
    if kind == PageType.DATA_PAGE:
        rows = number_in(struct_in(header, PageHeaderField.DATA_PAGE_HEADER), DataPageHeaderField.NUM_VALUES)
        if not 0 <= rows <= chunk.num_values - rows_before:
            raise pa.ArrowInvalid(f"a column chunk's pages do not have the {chunk.num_values} values of its metadata")
    return Page(header, PageType(kind), rows, start, start + size, plain_size)


class ColumnReader:
    """Collects the pages of a column: as dictionary codes as long as all pages have them, otherwise as plain values.

    Attributes:
        in_place: the file's bytes, if all pages hold byte arrays that need not be copied"""

    def __init__(self, column_type: ColumnType, in_place: Bytes | None) -> None:
        self._column_type = column_type
        self._valid: list[tuple[npt.NDArray[np.bool_] | None, int]] = []
        self._coded: list[tuple[Codes, Values]] = []
        self._in_place = in_place
        self._spans = _Spans()
        self._plain: _ValueBuffer | None = None
        self._scratch: Bytes = np.empty(0, np.uint8)

    def add_chunk(self, chunk: pq.ColumnChunkMetaData, data: memoryview, position: int) -> None:
        """Adds all pages of a chunk, which begins at data[position] and ends with `data`."""
        dictionary: Values | None = None
        rows = 0
        while rows < chunk.num_values:
            page = read_page(chunk, rows, data, position, len(data))
            body, position = page.checked(data[page.start : page.end]), page.end
            if page.kind == PageType.DICTIONARY_PAGE:
                dictionary = self.dictionary(chunk, page, body)
            else:
                rows += page.rows
                stored = StoredPage(page, body, page.end, chunk.compression, dictionary)
                self.add_page(stored, chunk.total_uncompressed_size)

    def add_page(self, stored: StoredPage, size: int) -> None:
        """Adds all rows of a data page.

        Args:
            size: of all plain values that will be added, by the footer: only the initial allocation"""
        page, body = stored.page, stored.body
        if self._in_place is not None:
            stored.check_in_place()
            count, values = self._take_levels(page, np.frombuffer(body, np.uint8))
            self._spans.find(self._in_place, stored.end - len(values), stored.end, count)
        elif page.encoding == Encoding.PLAIN and not self._column_type.width:
            buffer = self._plain_buffer(size)
            count, values = self._take_levels(page, buffer.add_page(stored.codec, body, page.plain_size))
            buffer.find_in_last_page(len(values), count)
        else:
            plain = self._plain_page(stored.codec, body, page.plain_size)
            count, values = self._take_levels(page, plain)
            if page.encoding == Encoding.PLAIN:
                self._plain_buffer(size).add(values, count)
            else:
                dictionary = stored.dictionary_of_codes()
                self._add_codes(_read_codes(values, count, dictionary), dictionary)

    def add_rows(self, stored: StoredPage, size: int, rows: Int64s) -> None:
        """Adds some rows of a data page; they ascend from the page's first row, 0. Otherwise as `add_page`."""
        page = stored.page
        plain = self._plain_page(stored.codec, stored.body, page.plain_size)
        valid, values = self._levels(page, plain)
        count, numbers, taken = page.rows, rows, None
        if valid is not None:
            count, taken = int(np.count_nonzero(valid)), valid[rows]
            numbers = (np.cumsum(valid) - 1)[rows[taken]]
        self._valid.append((taken, len(rows)))
        if self._in_place is not None:
            stored.check_in_place()
            self._spans.find(self._in_place, stored.end - len(values), stored.end, count, numbers)
        elif page.encoding == Encoding.PLAIN:
            self._plain_buffer(size).add_taken(_values_in(self._column_type, values, count), numbers)
        else:
            dictionary = stored.dictionary_of_codes()
            self._add_codes(_read_codes(values, count, dictionary)[numbers], dictionary)

    def dictionary(self, chunk: pq.ColumnChunkMetaData, page: Page, body: memoryview) -> Values:
        plain = self._plain_page(chunk.compression, body, page.plain_size)
        page_header = struct_in(page.header, PageHeaderField.DICTIONARY_PAGE_HEADER)
        encoding = number_in(page_header, DictionaryPageHeaderField.ENCODING)
        if encoding not in (Encoding.PLAIN, Encoding.PLAIN_DICTIONARY):
            raise UnsupportedPages
        buffer = _ValueBuffer(self._column_type, len(plain))
        buffer.add(plain, number_in(page_header, DictionaryPageHeaderField.NUM_VALUES))
        return buffer.values()

    def column(self) -> ReadColumn:
        valid = None
        if any(part is not None for part, _ in self._valid):
            valid = np.concatenate([np.ones(rows, np.bool_) if part is None else part for part, rows in self._valid])
        if self._coded:
            values, codes = _one_dictionary(self._column_type, self._coded)
            return ReadColumn(self._column_type, values, codes, valid)
        if self._in_place is not None:
            return ReadColumn(self._column_type, Values(self._in_place, 0, self._spans.spans()), None, valid)
        return ReadColumn(self._column_type, (self._plain or _ValueBuffer(self._column_type, 0)).values(), None, valid)

    def _take_levels(self, page: Page, plain: Bytes) -> tuple[int, Bytes]:
        """Reads which rows of a page are not null; returns their number, and the page's values."""
        valid, values = self._levels(page, plain)
        self._valid.append((valid, page.rows))
        return page.rows if valid is None else int(np.count_nonzero(valid)), values

    def _levels(self, page: Page, plain: Bytes) -> tuple[npt.NDArray[np.bool_] | None, Bytes]:
        """Which rows of a page are not null (None: all are not), and the page's values."""
        if not self._column_type.optional:
            return None, plain
        if number_in(page.data_header, DataPageHeaderField.DEFINITION_LEVEL_ENCODING) != Encoding.RLE:
            raise UnsupportedPages
        return _read_levels(plain, page.rows)

    def _add_codes(self, codes: Codes, dictionary: Values) -> None:
        if self._plain is None:
            self._coded.append((codes, dictionary))
        else:
            self._plain.add_taken(dictionary, codes.astype(np.int64))

    def _plain_page(self, codec: str, body: memoryview, size: int) -> Bytes:
        """The decompressed page, valid until the next call."""
        if codec == "UNCOMPRESSED" and len(body) == size:
            return np.frombuffer(body, np.uint8)
        if len(self._scratch) < size:
            self._scratch = np.empty(size, np.uint8)
        _decompress(codec, body, self._scratch[:size])
        return self._scratch[:size]

    def _plain_buffer(self, size: int) -> _ValueBuffer:
        """The buffer of plain values. `size` is their size by the footer: only the initial allocation."""
        if self._plain is None:
            self._plain = _ValueBuffer(self._column_type, min(max(size, 0), PAGE_SIZE_MAX))
            for codes, dictionary in self._coded:
                self._plain.add_taken(dictionary, codes.astype(np.int64))
            self._coded.clear()
        return self._plain


class _Spans:
    """Starts and ends of byte arrays."""

    def __init__(self) -> None:
        self._starts: list[Int64s] = [np.empty(0, np.int64)]
        self._ends: list[Int64s] = [np.empty(0, np.int64)]

    def find(self, data: Bytes, start: int, end: int, count: int, wanted: Int64s | None = None) -> int:
        """Finds the first `count` values in data[start:end], of which it keeps the `wanted` ones, or all; returns the
        end of the last one."""
        if not 0 <= count * LENGTH_BYTES <= end - start:
            raise pa.ArrowInvalid("a page of values ends early")
        bounds = np.empty(count + 1, np.int64)
        bounds[0] = start
        if not find_byte_arrays(data[:end], bounds):
            raise pa.ArrowInvalid("a page of values ends early")
        self._starts.append(bounds[:-1] if wanted is None else bounds[wanted])
        self._ends.append(bounds[1:] if wanted is None else bounds[wanted + 1])
        return int(bounds[-1])

    def spans(self) -> tuple[Int64s, Int64s]:
        return np.concatenate(self._starts), np.concatenate(self._ends)


class _ValueBuffer:
    """Plain values of all pages in one array. Pages of byte arrays are decompressed directly into it."""

    def __init__(self, column_type: ColumnType, size: int) -> None:
        self._column_type = column_type
        self._data = np.empty(size, np.uint8)
        self._used = 0
        self._spans = _Spans()

    def add(self, body: Bytes, count: int) -> None:
        """Adds the first `count` values of a page; further bytes are ignored."""
        if not 0 <= count * (self._column_type.width or LENGTH_BYTES) <= 8 * len(body):
            # A value takes at least one bit, a byte array at least its length.
            raise pa.ArrowInvalid("a page of values ends early")
        if self._column_type.physical == "BOOLEAN":
            body = np.unpackbits(body, bitorder="little")
        size = count * self._column_type.width if self._column_type.width else len(body)
        if size > len(body):
            raise pa.ArrowInvalid("a page of values ends early")
        start = self._room(size)
        self._data[start : self._used] = body[:size]
        if not self._column_type.width:
            self._used = self._spans.find(self._data, start, self._used, count)

    def add_page(self, codec: str, body: memoryview, size: int) -> Bytes:
        """Decompresses a page of byte arrays into the buffer; `find_in_last_page` then finds its values."""
        start = self._room(size)
        page = self._data[start : self._used]
        _decompress(codec, body, page)
        return page

    def find_in_last_page(self, size: int, count: int) -> None:
        """Adds the first `count` values in the last `size` bytes of the last page; levels may precede them."""
        self._used = self._spans.find(self._data, self._used - size, self._used, count)

    def add_taken(self, values: Values, value_numbers: Int64s) -> None:
        """Adds some of these values: of a dictionary by their codes, or of a page."""
        count = len(value_numbers)
        start = self._room(int(values.sizes(value_numbers).sum()))
        values.put(value_numbers, self._data, start)
        if not self._column_type.width:
            self._spans.find(self._data, start, self._used, count)

    def values(self) -> Values:
        if self._column_type.width:
            return Values(self._data[: self._used], self._column_type.width)
        return Values(self._data[: self._used], 0, self._spans.spans())

    def _room(self, size: int) -> int:
        """Reserves bytes at the end; returns their start."""
        start, self._used = self._used, self._used + size
        if self._used > len(self._data):
            grown = np.empty(max(self._used, len(self._data) * 3 // 2), np.uint8)
            grown[:start] = self._data[:start]
            self._data = grown
        return start


def _decompress(codec: str, body: memoryview, page: Bytes) -> None:
    """Decompresses `body` into the page. Not by Arrow's snappy, which cannot write to a given buffer."""
    if not len(page):
        return
    if codec == "SNAPPY":
        try:
            size = cramjam.snappy.decompress_raw_into(body, page.data)
        except cramjam.DecompressionError as error:
            raise pa.ArrowInvalid(f"a page cannot be decompressed: {error}") from error
    else:
        plain = body if codec == "UNCOMPRESSED" else pa.decompress(pa.py_buffer(body), len(page), codec.lower())
        size = len(plain)
        if size == len(page):
            page[:] = np.frombuffer(plain, np.uint8)
    if size != len(page):
        raise pa.ArrowInvalid(f"a page of {len(page)} bytes has {size}")


def _read_levels(body: Bytes, rows: int) -> tuple[npt.NDArray[np.bool_] | None, Bytes]:
    """Which rows are not null, and the rest of the page."""
    end = LENGTH_BYTES + int.from_bytes(body[:LENGTH_BYTES].tobytes(), "little")
    if body[LENGTH_BYTES:end].tobytes() == levels_without_nulls(rows):
        return None, body[end:]
    levels = np.empty(rows, np.uint32)
    if end > len(body) or not unpack_codes(body[:end], LENGTH_BYTES, 1, levels):
        raise pa.ArrowInvalid("a page's definition levels end early")
    return None if levels.all() else levels.astype(np.bool_), body[end:]


def levels_without_nulls(rows: int) -> bytes:
    """Definition levels without nulls as writers encode them: one run of ones."""
    run = bytearray()
    write_unsigned(run, rows << 1)
    return bytes((*run, 1))


def _values_in(column_type: ColumnType, page: Bytes, count: int) -> Values:
    """The first `count` plain values of a page, where they are."""
    if not column_type.width:
        spans = _Spans()
        spans.find(page, 0, len(page), count)
        return Values(page, 0, spans.spans())
    buffer = _ValueBuffer(column_type, 0)
    buffer.add(page, count)
    return buffer.values()


def _read_codes(body: Bytes, count: int, dictionary: Values) -> Codes:
    codes = np.empty(count, np.uint32)
    if count and (not len(body) or body[0] > BIT_WIDTH_MAX or not unpack_codes(body, 1, int(body[0]), codes)):
        raise pa.ArrowInvalid("a page of dictionary codes ends early")
    if count and codes.max() >= len(dictionary):
        raise pa.ArrowInvalid(f"a page has the dictionary code {codes.max()}, but there are {len(dictionary)} values")
    return codes


def _one_dictionary(column_type: ColumnType, coded: Sequence[tuple[Codes, Values]]) -> tuple[Values, Codes]:
    """The dictionaries of all row groups as one, and codes into it."""
    first = coded[0][1]
    if all(dictionary is first for _, dictionary in coded):
        return first, np.concatenate([codes for codes, _ in coded])
    known: dict[bytes, int] = {}
    recoded = {id(dictionary): dictionary for _, dictionary in coded}
    new_codes = {number: _recode(dictionary, known) for number, dictionary in recoded.items()}
    merged = _ValueBuffer(column_type, 0)
    merged.add(np.frombuffer(b"".join(known), np.uint8), len(known))
    return merged.values(), np.concatenate([new_codes[id(dictionary)][codes] for codes, dictionary in coded])


def _recode(dictionary: Values, known: dict[bytes, int]) -> Codes:
    data = dictionary.data.tobytes()
    if dictionary.spans is None:
        entries = [data[start : start + dictionary.width] for start in range(0, len(data), dictionary.width)]
    else:
        starts, ends = dictionary.spans
        entries = [data[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    return np.array([known.setdefault(entry, len(known)) for entry in entries], np.uint32)


# --------------------------------------------------------------------------------------------------------- writing
