"""Column chunks of Parquet, taken apart and put together again without looking at what their values mean.

Materialize writes rows that it has just read, in another order and without some. Arrow would decode each value, build
a dictionary anew, and encode it. Here a value stays as it is: dictionary codes are moved as codes, all else as bytes.
Known are flat columns, and the encodings that most writers use by default; `is_known` tells, and Arrow does the rest.

What a file says of itself is checked before it is used; what is damaged raises `pa.ArrowInvalid`, as Arrow would.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import cramjam
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from compactor.kernels.parquet_values import (
    LENGTH_BYTES,
    extremes,
    find_byte_arrays,
    pack_codes,
    packed_bytes_max,
    take_byte_arrays,
    take_codes,
    unpack_codes,
)
from compactor.tabular.thrift import (
    Field,
    Kind,
    Struct,
    binary,
    boolean,
    i32,
    i64,
    items,
    number_in,
    read_struct,
    struct_in,
    structure,
    write_struct,
    write_unsigned,
)

Bytes: TypeAlias = npt.NDArray[np.uint8]
Codes: TypeAlias = npt.NDArray[np.uint32]
Int64s: TypeAlias = npt.NDArray[np.int64]

PAGE_BYTES = 1024 * 1024
DICTIONARY_PAGE_BYTES = 1024 * 1024
"""At which writers give a dictionary up (PyArrow's and parquet-java's default)."""

DICTIONARY_SHARE_MAX = 0.75
"""A dictionary is worth its time where it saves a quarter of the bytes: 1 M int64 among 60,000 take 2.5 of 8 MB; among
200,000 the dictionary is given up at 7.8 MB."""

COMPRESSED_SHARE_MAX = 0.875
"""Compression that saves less than an eighth of a column is not worth what it costs, here and to every reader."""

STATISTIC_BYTES_MAX = 4096
"""Longer values are no bounds: Arrow writes none either."""

_DATA_PAGE, _DICTIONARY_PAGE = 0, 2
_PLAIN, _PLAIN_DICTIONARY, _RLE, _RLE_DICTIONARY = 0, 2, 3, 8
_BIT_WIDTH_MAX = 32
_PAGE_SIZE_MAX = 2**31 - 1
_UNCOMPRESSED, _SNAPPY = 0, 1
_PHYSICAL_TYPES = {"BOOLEAN": 0, "INT32": 1, "INT64": 2, "FLOAT": 4, "DOUBLE": 5, "BYTE_ARRAY": 6}
_FIXED_LENGTH = 7
_NUMBERS = {"INT32": np.int32, "INT64": np.int64, "FLOAT": np.float32, "DOUBLE": np.float64}
_KNOWN_ENCODINGS = frozenset({"PLAIN", "PLAIN_DICTIONARY", "RLE", "RLE_DICTIONARY"})
_KNOWN_CODECS = frozenset({"UNCOMPRESSED", "SNAPPY", "GZIP", "ZSTD", "BROTLI"})
_KNOWN_MEANINGS = frozenset({"None", "String", "Decimal", "Date", "Time", "Timestamp", "Int", "JSON", "BSON", "UUID"})


@dataclass(frozen=True)
class ColumnType:
    """What the schema says of a column.

    physical  Parquet's type; of booleans each value takes a byte here
    width     bytes of a plain value; 0: each says its own length
    meaning   Parquet's logical type
    """

    name: str
    physical: str
    width: int
    optional: bool
    meaning: str
    signed: bool

    @classmethod
    def of(cls, column: pq.ColumnSchema) -> ColumnType:
        logical = json.loads(column.logical_type.to_json())
        if column.physical_type == "FIXED_LEN_BYTE_ARRAY":
            width = column.length
        elif column.physical_type == "BOOLEAN":
            width = 1
        else:
            kind = _NUMBERS.get(column.physical_type)
            width = np.dtype(kind).itemsize if kind is not None else 0
        return cls(
            name=column.name,
            physical=column.physical_type,
            width=width,
            optional=column.max_definition_level == 1,
            meaning=logical.get("Type", "None"),
            signed=logical.get("isSigned", True),
        )


def is_known(column: pq.ColumnSchema, chunk: pq.ColumnChunkMetaData) -> bool:
    """Whether a column chunk can be taken apart here."""
    if column.max_repetition_level or column.max_definition_level > 1 or column.physical_type == "INT96":
        return False
    kind = ColumnType.of(column)
    return (
        kind.meaning in _KNOWN_MEANINGS
        and (kind.width > 0 or (kind.physical == "BYTE_ARRAY" and kind.meaning != "Decimal"))
        and chunk.compression in _KNOWN_CODECS
        and set(chunk.encodings) <= _KNOWN_ENCODINGS
    )


def chunk_span(chunk: pq.ColumnChunkMetaData, file_bytes: int) -> tuple[int, int]:
    """Where a column chunk starts in its file, and its bytes. Raises `pa.ArrowInvalid` where they are not in it."""
    offsets = [offset for offset in (chunk.data_page_offset, chunk.dictionary_page_offset) if offset]
    if not chunk.num_values or not offsets:
        return 0, 0
    if min(offsets) < 0 or chunk.total_compressed_size < 0:
        raise pa.ArrowInvalid("a column chunk lies nowhere")
    if min(offsets) + chunk.total_compressed_size > file_bytes:
        raise pa.ArrowInvalid("a column chunk reaches beyond the file")
    return min(offsets), chunk.total_compressed_size


# ---------------------------------------------------------------------------------------------------------- values


@dataclass(frozen=True)
class Values:
    """Plain values. Value v is data[starts[v]:ends[v]], of byte arrays with the length before them.

    spans  starts and ends, int64 (values,) each; or None: the values lie side by side, and all have this width
    """

    data: Bytes
    width: int
    spans: tuple[Int64s, Int64s] | None = None

    def __len__(self) -> int:
        return len(self.data) // self.width if self.spans is None else len(self.spans[0])

    def sizes(self, places: Int64s) -> Int64s:
        """Bytes of each value at `places`."""
        if self.spans is None:
            return np.full(len(places), self.width)
        starts, ends = self.spans
        return ends[places] - starts[places]

    def put(self, places: Int64s, page: Bytes, start: int) -> None:
        """Write the values at `places` to page[start:]."""
        if self.spans is not None:
            take_byte_arrays(self.data, *self.spans, places, page, start)
            return
        kind = np.dtype(np.uint64) if self.width == 8 else np.dtype((np.void, self.width))
        taken = self.data.view(kind).take(places)
        page[start : start + len(places) * self.width] = taken.view(np.uint8)


@dataclass(frozen=True)
class Column:
    """A column of one file.

    values  plain, of the rows that are not null, in file order; or a dictionary's
    codes   uint32: what each row that is not null has of the dictionary
    valid   (rows,): which rows are not null; None: all
    """

    kind: ColumnType
    values: Values
    codes: Codes | None
    valid: npt.NDArray[np.bool_] | None


# --------------------------------------------------------------------------------------------------------- reading


class UnknownPages(Exception):
    """The pages are of a kind that is not known here. The footer does not say so; Arrow may read them."""


def read_column(kind: ColumnType, data: Bytes, chunks: Sequence[tuple[pq.ColumnChunkMetaData, int]]) -> Column:
    """A column from its chunks, one a row group, and where each starts in `data`.

    Byte arrays that are neither compressed nor coded stay where they are: the column then refers to `data`.
    """
    stays = not kind.width and all(
        chunk.compression == "UNCOMPRESSED" and set(chunk.encodings) <= {"PLAIN", "RLE"} for chunk, _ in chunks
    )
    reader = _ColumnReader(kind, data if stays else None)
    view = data.data
    for chunk, start in chunks:
        reader.add_chunk(chunk, view[: start + chunk.total_compressed_size], start)
    return reader.column()


class _ColumnReader:
    """Gathers the pages of a column: as codes for as long as all are, then as plain values.

    in_place  the file's bytes, where all pages hold byte arrays that can stay where they are
    """

    def __init__(self, kind: ColumnType, in_place: Bytes | None) -> None:
        self._kind = kind
        self._valid: list[tuple[npt.NDArray[np.bool_] | None, int]] = []
        self._coded: list[tuple[Codes, Values]] = []
        self._in_place = in_place
        self._spans = _Spans()
        self._plain: _ValueBuffer | None = None
        self._scratch: Bytes = np.empty(0, np.uint8)

    def add_chunk(self, chunk: pq.ColumnChunkMetaData, data: memoryview, position: int) -> None:
        dictionary: Values | None = None
        rows = 0
        while rows < chunk.num_values:
            header, position = read_struct(data, position)
            page, size, plain_size = number_in(header, 1), number_in(header, 3), number_in(header, 2)
            if not 0 <= size <= len(data) - position or not 0 <= plain_size <= _PAGE_SIZE_MAX:
                raise pa.ArrowInvalid("a page reaches beyond its column chunk")
            if page not in (_DATA_PAGE, _DICTIONARY_PAGE):
                raise UnknownPages
            body = data[position : position + size]
            position += size
            if page == _DICTIONARY_PAGE:
                buffer = _ValueBuffer(self._kind, plain_size)
                buffer.add(self._plain_page(chunk.compression, body, plain_size), number_in(struct_in(header, 7), 1))
                dictionary = buffer.values()
                continue
            said = struct_in(header, 5)
            if not 0 <= number_in(said, 1) <= chunk.num_values - rows:
                raise pa.ArrowInvalid(f"a column chunk's pages do not have the {chunk.num_values} values it names")
            rows += number_in(said, 1)
            if self._in_place is not None:
                if size != plain_size or number_in(said, 2) != _PLAIN:
                    raise UnknownPages
                count, values = self._take_levels(said, np.frombuffer(body, np.uint8))
                self._spans.find(self._in_place, position - len(values), position, count)
            elif number_in(said, 2) == _PLAIN and not self._kind.width:
                buffer = self._plain_buffer(chunk.total_uncompressed_size)
                count, values = self._take_levels(said, buffer.add_page(chunk.compression, body, plain_size))
                buffer.find_in_last(len(values), count)
            else:
                plain = self._plain_page(chunk.compression, body, plain_size)
                self._add_page(said, plain, dictionary, chunk.total_uncompressed_size)

    def column(self) -> Column:
        valid = None
        if any(part is not None for part, _ in self._valid):
            valid = np.concatenate([np.ones(rows, np.bool_) if part is None else part for part, rows in self._valid])
        if self._coded:
            values, codes = _one_dictionary(self._kind, self._coded)
            return Column(self._kind, values, codes, valid)
        if self._in_place is not None:
            return Column(self._kind, Values(self._in_place, 0, self._spans.found()), None, valid)
        return Column(self._kind, (self._plain or _ValueBuffer(self._kind, 0)).values(), None, valid)

    def _take_levels(self, header: Struct, page: Bytes) -> tuple[int, Bytes]:
        """Notes which rows of a page are not null; how many these are, and the page's values."""
        rows = number_in(header, 1)
        valid = None
        if self._kind.optional:
            if number_in(header, 3) != _RLE:
                raise UnknownPages
            valid, page = _read_levels(page, rows)
        self._valid.append((valid, rows))
        return rows if valid is None else int(np.count_nonzero(valid)), page

    def _add_page(self, header: Struct, page: Bytes, dictionary: Values | None, size: int) -> None:
        """Adds what can be copied, or has to be decoded, on its way to where it will be."""
        encoding = number_in(header, 2)
        count, values = self._take_levels(header, page)
        if encoding == _PLAIN:
            self._plain_buffer(size).add(values, count)
        elif encoding in (_PLAIN_DICTIONARY, _RLE_DICTIONARY):
            if dictionary is None:
                raise pa.ArrowInvalid("a page of dictionary codes comes before its dictionary")
            codes = _read_codes(values, count, dictionary)
            if self._plain is None:
                self._coded.append((codes, dictionary))
            else:
                self._plain.add_coded(codes, dictionary)
        else:
            raise UnknownPages

    def _plain_page(self, codec: str, body: memoryview, size: int) -> Bytes:
        """A page as it is without compression, until the next one is asked for."""
        if codec == "UNCOMPRESSED" and len(body) == size:
            return np.frombuffer(body, np.uint8)
        if len(self._scratch) < size:
            self._scratch = np.empty(size, np.uint8)
        _decompress(codec, body, self._scratch[:size])
        return self._scratch[:size]

    def _plain_buffer(self, size: int) -> _ValueBuffer:
        """Where plain values go. `size` is what the footer says that they will take: room to begin with, no more."""
        if self._plain is None:
            self._plain = _ValueBuffer(self._kind, min(max(size, 0), _PAGE_SIZE_MAX))
            for codes, dictionary in self._coded:
                self._plain.add_coded(codes, dictionary)
            self._coded.clear()
        return self._plain


class _Spans:
    """Where byte arrays lie."""

    def __init__(self) -> None:
        self._starts: list[Int64s] = [np.empty(0, np.int64)]
        self._ends: list[Int64s] = [np.empty(0, np.int64)]

    def find(self, data: Bytes, start: int, end: int, count: int) -> int:
        """Finds the first `count` values in data[start:end]; where the last one ends."""
        if not 0 <= count * LENGTH_BYTES <= end - start:
            raise pa.ArrowInvalid("a page of values ends early")
        bounds = np.empty(count + 1, np.int64)
        bounds[0] = start
        if not find_byte_arrays(data[:end], bounds):
            raise pa.ArrowInvalid("a page of values ends early")
        self._starts.append(bounds[:-1])
        self._ends.append(bounds[1:])
        return int(bounds[-1])

    def found(self) -> tuple[Int64s, Int64s]:
        return np.concatenate(self._starts), np.concatenate(self._ends)


class _ValueBuffer:
    """Plain values, page after page in one array. Pages of byte arrays are decompressed right where they will be."""

    def __init__(self, kind: ColumnType, size: int) -> None:
        self._kind = kind
        self._data = np.empty(size, np.uint8)
        self._used = 0
        self._spans = _Spans()

    def add(self, body: Bytes, count: int) -> None:
        """The first `count` values of a page. Whatever else there is in it is left out."""
        if not 0 <= count * (self._kind.width or LENGTH_BYTES) <= 8 * len(body):
            # No value takes less than a bit, and none that says its length less than that.
            raise pa.ArrowInvalid("a page of values ends early")
        if self._kind.physical == "BOOLEAN":
            body = np.unpackbits(body, bitorder="little")
        size = count * self._kind.width if self._kind.width else len(body)
        if size > len(body):
            raise pa.ArrowInvalid("a page of values ends early")
        place = self._room(size)
        self._data[place : self._used] = body[:size]
        if not self._kind.width:
            self._used = self._spans.find(self._data, place, self._used, count)

    def add_page(self, codec: str, body: memoryview, size: int) -> Bytes:
        """A page of byte arrays, not compressed any more, and what may come before them: `find_in_last` is about it."""
        place = self._room(size)
        page = self._data[place : self._used]
        _decompress(codec, body, page)
        return page

    def find_in_last(self, size: int, count: int) -> None:
        """The first `count` values of the last page's last `size` bytes."""
        self._used = self._spans.find(self._data, self._used - size, self._used, count)

    def add_coded(self, codes: Codes, dictionary: Values) -> None:
        """Values of a dictionary."""
        places = codes.astype(np.int64)
        count = len(places)
        place = self._room(int(dictionary.sizes(places).sum()))
        dictionary.put(places, self._data, place)
        if not self._kind.width:
            self._spans.find(self._data, place, self._used, count)

    def values(self) -> Values:
        if self._kind.width:
            return Values(self._data[: self._used], self._kind.width)
        return Values(self._data[: self._used], 0, self._spans.found())

    def _room(self, size: int) -> int:
        """Where so many bytes may be written."""
        place, self._used = self._used, self._used + size
        if self._used > len(self._data):
            grown = np.empty(max(self._used, len(self._data) * 3 // 2), np.uint8)
            grown[:place] = self._data[:place]
            self._data = grown
        return place


def _decompress(codec: str, body: memoryview, page: Bytes) -> None:
    """Fills the page with what `body` holds. Arrow's snappy would be half as fast, and cannot be told where to."""
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
    if body[LENGTH_BYTES:end].tobytes() == _levels_without_nulls(rows):
        return None, body[end:]
    levels = np.empty(rows, np.uint32)
    if end > len(body) or not unpack_codes(body[:end], LENGTH_BYTES, 1, levels):
        raise pa.ArrowInvalid("a page's definition levels end early")
    return None if levels.all() else levels.astype(np.bool_), body[end:]


def _levels_without_nulls(rows: int) -> bytes:
    """How all writers put it that no row is null: one run of so many ones."""
    run = bytearray()
    write_unsigned(run, rows << 1)
    return bytes((*run, 1))


def _read_codes(body: Bytes, count: int, dictionary: Values) -> Codes:
    codes = np.empty(count, np.uint32)
    if count and (not len(body) or body[0] > _BIT_WIDTH_MAX or not unpack_codes(body, 1, int(body[0]), codes)):
        raise pa.ArrowInvalid("a page of dictionary codes ends early")
    if count and codes.max() >= len(dictionary):
        raise pa.ArrowInvalid(f"a page has the dictionary code {codes.max()}, but there are {len(dictionary)} values")
    return codes


def _one_dictionary(kind: ColumnType, coded: Sequence[tuple[Codes, Values]]) -> tuple[Values, Codes]:
    """The dictionaries of all row groups as one, and codes into it."""
    first = coded[0][1]
    if all(dictionary is first for _, dictionary in coded):
        return first, np.concatenate([codes for codes, _ in coded])
    known: dict[bytes, int] = {}
    recoded = {id(dictionary): dictionary for _, dictionary in coded}
    places = {number: _recode(dictionary, known) for number, dictionary in recoded.items()}
    merged = _ValueBuffer(kind, 0)
    merged.add(np.frombuffer(b"".join(known), np.uint8), len(known))
    return merged.values(), np.concatenate([places[id(dictionary)][codes] for codes, dictionary in coded])


def _recode(dictionary: Values, known: dict[bytes, int]) -> Codes:
    data = dictionary.data.tobytes()
    if dictionary.spans is None:
        entries = [data[start : start + dictionary.width] for start in range(0, len(data), dictionary.width)]
    else:
        starts, ends = dictionary.spans
        entries = [data[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    return np.array([known.setdefault(entry, len(known)) for entry in entries], np.uint32)


# --------------------------------------------------------------------------------------------------------- writing


@dataclass(frozen=True)
class ColumnChunk:
    """A column chunk ready to be written: its bytes in order, and what the footer will say of it.

    plain_size  bytes before compression
    metadata    Parquet's ColumnMetaData, with offsets from the start of the bytes
    """

    pieces: Sequence[bytes | pa.Buffer]
    size: int
    plain_size: int
    metadata: Struct


def encode_rows(column: Column, rows: Int64s) -> ColumnChunk:
    """The column's values of these rows, in this order."""
    valid, places = None, rows
    if column.valid is not None:
        valid = column.valid[rows]
        places = (np.cumsum(column.valid) - 1)[rows[valid]]
        valid = None if len(places) == len(rows) else valid
    chunk = _ChunkWriter(column.kind)
    values = column.values
    if column.codes is not None:
        used = np.zeros(len(values), np.bool_)
        codes = take_codes(column.codes, places, used)
        dictionary, codes = _without_unused(values, codes, used)
        if _pays(column.kind, dictionary, codes):
            chunk.add_dictionary(dictionary)
            chunk.add_coded(codes, len(dictionary), valid, len(rows))
        else:
            chunk.add_plain(dictionary, codes.astype(np.int64), valid, len(rows))
    else:
        chunk.add_plain(values, places, valid, len(rows))
    return chunk.finish(len(rows), len(rows) - len(places))


def _without_unused(dictionary: Values, codes: Codes, used: npt.NDArray[np.bool_]) -> tuple[Values, Codes]:
    """The dictionary without what no row has, so that a deleted value is gone; and codes into it."""
    if used.all():
        return dictionary, codes
    places = np.flatnonzero(used)
    sizes = dictionary.sizes(places)
    data = np.empty(int(sizes.sum()), np.uint8)
    dictionary.put(places, data, 0)
    ends = np.cumsum(sizes)
    recoded = (np.cumsum(used) - 1).astype(np.uint32)
    return Values(data, dictionary.width, None if dictionary.width else (ends - sizes, ends)), recoded[codes]


def _bit_width(count: int) -> int:
    """Bits of a code into so many values; not none for a single one, as not every reader expects that."""
    return max(count - 1, 1).bit_length()


def _pays(kind: ColumnType, dictionary: Values, codes: Codes) -> bool:
    """Whether a dictionary is worth its bytes; booleans never have one."""
    size = len(dictionary.data)
    if kind.physical == "BOOLEAN" or size > DICTIONARY_PAGE_BYTES:
        return False
    plain = (dictionary.width or size / max(len(dictionary), 1)) * len(codes)
    return size + len(codes) * _bit_width(len(dictionary)) / 8 <= DICTIONARY_SHARE_MAX * plain


class _ChunkWriter:
    def __init__(self, kind: ColumnType) -> None:
        self._kind = kind
        self._pieces: list[bytes | pa.Buffer] = []
        self._codec: pa.Codec | None = pa.Codec("snappy")
        self._size = 0
        self._plain_size = 0
        self._data_offset: int | None = None
        self._pages: dict[tuple[int, int], int] = {}
        self._extremes = _Extremes(kind)

    def add_dictionary(self, dictionary: Values) -> None:
        """A dictionary of which every value has a row."""
        self._extremes.add(dictionary)
        said = {1: i32(len(dictionary)), 2: i32(_PLAIN), 3: boolean(False)}
        self._add_page(_DICTIONARY_PAGE, _PLAIN, {7: structure(said)}, dictionary.data)

    def add_coded(self, codes: Codes, dictionary_size: int, valid: npt.NDArray[np.bool_] | None, rows: int) -> None:
        width = _bit_width(dictionary_size)
        rows_per_page = max(PAGE_BYTES * 8 // max(width, 8), 1)
        for first, last, start, end in _cuts(np.arange(0, rows, rows_per_page), valid, rows):
            page = np.empty(_levels_max(last - first) + 1 + packed_bytes_max(end - start, width), np.uint8)
            position = self._put_levels(page, valid, first, last)
            page[position] = width
            position = pack_codes(codes[start:end], width, page, position + 1)
            self._add_data_page(_RLE_DICTIONARY, page[:position], last - first)

    def add_plain(self, values: Values, places: Int64s, valid: npt.NDArray[np.bool_] | None, rows: int) -> None:
        ends = np.cumsum(values.sizes(places)) if values.spans is not None else None
        for first, last, start, end in _cuts(_page_starts(values, ends, valid, rows), valid, rows):
            before = _end_of(ends, start)
            size = (end - start) * values.width if ends is None else _end_of(ends, end) - before
            page = np.empty(_levels_max(last - first) + size, np.uint8)
            position = self._put_levels(page, valid, first, last)
            values.put(places[start:end], page, position)
            filled = page[: position + size]
            # The page is in the processor's cache; the values that it was filled from may lie anywhere.
            self._extremes.add(_side_by_side(filled[position:], values.width, ends, before, start, end))
            if self._kind.physical == "BOOLEAN":
                filled = np.concatenate([page[:position], np.packbits(filled[position:], bitorder="little")])
            self._add_data_page(_PLAIN, filled, last - first)

    def finish(self, rows: int, nulls: int) -> ColumnChunk:
        statistics: Struct = {3: i64(nulls)}
        bounds = self._extremes.bounds()
        if bounds is not None:
            statistics |= {5: binary(bounds[1]), 6: binary(bounds[0]), 7: boolean(True), 8: boolean(True)}
        encodings = sorted({_RLE, *(encoding for _, encoding in self._pages)})
        stats = [
            {1: i32(page), 2: i32(encoding), 3: i32(count)} for (page, encoding), count in sorted(self._pages.items())
        ]
        fields: Struct = {
            1: i32(_PHYSICAL_TYPES.get(self._kind.physical, _FIXED_LENGTH)),
            2: items(Kind.I32, encodings),
            3: items(Kind.BINARY, [self._kind.name.encode()]),
            4: i32(_UNCOMPRESSED if self._codec is None else _SNAPPY),
            5: i64(rows),
            6: i64(self._plain_size),
            7: i64(self._size),
            9: i64(self._data_offset or 0),
            12: structure(statistics),
            13: items(Kind.STRUCT, stats),
        }
        if (_DICTIONARY_PAGE, _PLAIN) in self._pages:
            fields[11] = i64(0)
        return ColumnChunk(self._pieces, self._size, self._plain_size, fields)

    def _put_levels(self, page: Bytes, valid: npt.NDArray[np.bool_] | None, first: int, last: int) -> int:
        if not self._kind.optional:
            return 0
        if valid is None:
            run = _levels_without_nulls(last - first)
            end = LENGTH_BYTES + len(run)
            page[LENGTH_BYTES:end] = np.frombuffer(run, np.uint8)
        else:
            end = pack_codes(valid[first:last].astype(np.uint32), 1, page, LENGTH_BYTES)
        page[:LENGTH_BYTES] = np.frombuffer((end - LENGTH_BYTES).to_bytes(LENGTH_BYTES, "little"), np.uint8)
        return end

    def _add_data_page(self, encoding: int, body: Bytes, rows: int) -> None:
        if self._data_offset is None:
            self._data_offset = self._size
        said = {1: i32(rows), 2: i32(encoding), 3: i32(_RLE), 4: i32(_RLE)}
        self._add_page(_DATA_PAGE, encoding, {5: structure(said)}, body)

    def _add_page(self, page: int, encoding: int, said: dict[int, Field], body: Bytes) -> None:
        plain = pa.py_buffer(body)
        compressed = self._codec.compress(plain) if self._codec is not None else plain
        is_first = page == _DATA_PAGE and not self._pieces
        if is_first and compressed.size > COMPRESSED_SHARE_MAX * plain.size:
            # A column chunk has one codec for all pages, and the first page is like the others; a dictionary is not.
            self._codec, compressed = None, plain
        header = write_struct({1: i32(page), 2: i32(plain.size), 3: i32(compressed.size), **said})
        self._pieces += [header, compressed]
        self._size += len(header) + compressed.size
        self._plain_size += len(header) + len(body)
        self._pages[page, encoding] = self._pages.get((page, encoding), 0) + 1


def _levels_max(rows: int) -> int:
    return LENGTH_BYTES + packed_bytes_max(rows, 1)


def _page_starts(values: Values, ends: Int64s | None, valid: npt.NDArray[np.bool_] | None, rows: int) -> Int64s:
    """The first row of each page, so that no page is much larger than it should be."""
    if ends is None:
        return np.arange(0, rows, max(PAGE_BYTES // max(values.width, 1), 1))
    cuts = np.searchsorted(ends, np.arange(PAGE_BYTES, int(ends[-1]) if len(ends) else 0, PAGE_BYTES))
    places = np.unique(np.concatenate(([0], cuts)))
    return places if valid is None else np.unique(np.concatenate(([0], np.flatnonzero(valid)[places[1:]])))


def _cuts(page_starts: Int64s, valid: npt.NDArray[np.bool_] | None, rows: int) -> Iterator[tuple[int, int, int, int]]:
    """Of each page (first row, last row, first value, last value), the last ones exclusive."""
    bounds = [*page_starts.tolist(), rows]
    values = bounds if valid is None else np.concatenate(([0], np.cumsum(valid)))[bounds].tolist()
    return zip(bounds[:-1], bounds[1:], values[:-1], values[1:], strict=True)


def _end_of(ends: Int64s | None, count: int) -> int:
    """Where the first `count` of values that end there end."""
    return int(ends[count - 1]) if ends is not None and count else 0


def _side_by_side(data: Bytes, width: int, ends: Int64s | None, before: int, start: int, end: int) -> Values:
    """Values `start` to `end` of those that end at `ends`, put side by side; `before` is where the first starts."""
    if ends is None:
        return Values(data, width)
    bounds = np.empty(end - start + 1, np.int64)
    bounds[0] = 0
    np.subtract(ends[start:end], before, out=bounds[1:])
    return Values(data, 0, (bounds[:-1], bounds[1:]))


class _Extremes:
    """The least and the greatest value of a column chunk as Parquet's statistics hold them."""

    def __init__(self, kind: ColumnType) -> None:
        self._kind = kind
        self._found: list[bytes] = []

    def add(self, values: Values) -> None:
        """Some of its values, side by side."""
        if not len(values):
            return
        if self._kind.physical == "BOOLEAN":
            self._found += [bytes([values.data.min()]), bytes([values.data.max()])]
        elif self._kind.physical in _NUMBERS:
            self._found += _extreme_numbers(self._kind, values.data)
        else:
            self._found += _extreme_bytes(self._kind, values)

    def bounds(self) -> tuple[bytes, bytes] | None:
        """The two; None: there is none, or they are too long to be any."""
        if not self._found:
            return None
        found = self._found
        if self._kind.physical in _NUMBERS:
            least, greatest = _extreme_numbers(self._kind, np.frombuffer(b"".join(found), np.uint8))
        elif self._kind.meaning == "Decimal":
            numbers = {value: int.from_bytes(value, "big", signed=True) for value in found}
            least, greatest = min(found, key=numbers.__getitem__), max(found, key=numbers.__getitem__)
        else:
            least, greatest = min(found), max(found)
        return (least, greatest) if max(len(least), len(greatest)) <= STATISTIC_BYTES_MAX else None


def _extreme_bytes(kind: ColumnType, values: Values) -> list[bytes]:
    if values.spans is None:
        starts = np.arange(0, len(values.data), kind.width)
        ends = starts + kind.width
    else:
        starts, ends = values.spans[0] + LENGTH_BYTES, values.spans[1]
    flipped = 128 if kind.meaning == "Decimal" else 0
    return [values.data[starts[each] : ends[each]].tobytes() for each in extremes(values.data, starts, ends, flipped)]


def _extreme_numbers(kind: ColumnType, data: Bytes) -> list[bytes]:
    """The least and the greatest; nothing where no value is a number."""
    dtype = np.dtype(_NUMBERS[kind.physical])
    if not kind.signed:
        dtype = np.dtype(f"u{dtype.itemsize}")
    numbers = data.view(dtype)
    if dtype.kind != "f":
        return [numbers.min().tobytes(), numbers.max().tobytes()]
    numbers = numbers[~np.isnan(numbers)]
    if not len(numbers):
        return []
    # Zeros have signs, which do not order them: the format asks for the one that covers both.
    low, high = numbers.min(), numbers.max()
    least, greatest = (-0.0 if low == 0 else low), (0.0 if high == 0 else high)
    return [np.array(least, dtype).tobytes(), np.array(greatest, dtype).tobytes()]
