"""Pages that are not what their headers say: refused, or left to Arrow; never read beyond their ends."""

from __future__ import annotations

import struct
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pytest

from compactor.tabular.parquet_pages.arrow_files import chunk_span
from compactor.tabular.parquet_pages.page_format import Encoding
from compactor.tabular.parquet_pages.page_reader import ColumnType, ReadColumn, UnsupportedPages, read_column
from compactor.tabular.parquet_pages.statistics import Extremes
from compactor.tabular.parquet_pages.thrift import (
    Field,
    Items,
    Kind,
    boolean,
    i32,
    read_struct,
    struct_in,
    structs_in,
    structure,
    write_struct,
)

DATA, DICTIONARY = 0, 2
NUMBERS = ColumnType(name="x", physical="INT32", width=4, optional=False, logical_type="None", signed=True)
NULLABLE = ColumnType(name="x", physical="INT32", width=4, optional=True, logical_type="None", signed=True)
TEXT = ColumnType(name="x", physical="BYTE_ARRAY", width=0, optional=False, logical_type="String", signed=True)
TRUTHS = ColumnType(name="x", physical="BOOLEAN", width=1, optional=False, logical_type="None", signed=True)
TWO = struct.pack("<2i", 7, 8)


def data_page(body: bytes, rows: int, encoding: int = Encoding.PLAIN, levels: int = Encoding.RLE) -> bytes:
    header = {1: i32(DATA), 2: i32(len(body)), 3: i32(len(body))}
    header[5] = structure({1: i32(rows), 2: i32(encoding), 3: i32(levels), 4: i32(Encoding.RLE)})
    return write_struct(header) + body


def dictionary_page(body: bytes, values: int, encoding: int = Encoding.PLAIN) -> bytes:
    header = {1: i32(DICTIONARY), 2: i32(len(body)), 3: i32(len(body))}
    header[7] = structure({1: i32(values), 2: i32(encoding)})
    return write_struct(header) + body


def read(kind: ColumnType, pages: bytes, rows: int) -> ReadColumn:
    chunk = Mock(compression="UNCOMPRESSED", encodings=("PLAIN",), num_values=rows, total_uncompressed_size=len(pages))
    chunk.total_compressed_size = len(pages)
    return read_column(kind, np.frombuffer(pages, np.uint8), [(chunk, 0)])


CODES = b"\x01\x04\x01"
"""One bit each, and a run of two ones."""

LEVELS = struct.pack("<i", 2) + b"\x04\x01"
"""Two rows that are not null."""


def test_pages_that_are_as_they_say_are_read() -> None:
    assert len(read(NUMBERS, data_page(TWO, 2), 2).values) == 2
    assert len(read(NULLABLE, data_page(LEVELS + TWO, 2), 2).values) == 2
    coded = read(NUMBERS, dictionary_page(TWO, 2) + data_page(CODES, 2, Encoding.RLE_DICTIONARY), 2)
    assert coded.codes is not None
    assert coded.codes.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("kind", "pages", "reason"),
    [
        (NUMBERS, data_page(TWO, 3), "do not have the 2 values"),
        (NUMBERS, data_page(TWO, -1), "do not have the 2 values"),
        (NUMBERS, data_page(TWO[:7], 2), "ends early"),
        (NUMBERS, dictionary_page(TWO, 3), "ends early"),
        (NUMBERS, dictionary_page(TWO, -1), "ends early"),
        (TRUTHS, data_page(b"", 2), "ends early"),
        (TEXT, data_page(b"\x01\0\0\0a", 2), "ends early"),
        (TEXT, dictionary_page(b"\x09\0\0\0a", 1), "ends early"),
        (NUMBERS, data_page(CODES, 2, Encoding.RLE_DICTIONARY), "before its dictionary"),
        (NUMBERS, dictionary_page(TWO, 2) + data_page(b"", 2, Encoding.RLE_DICTIONARY), "codes ends early"),
        (NUMBERS, dictionary_page(TWO, 2) + data_page(b"\x21\x04\x01", 2, Encoding.RLE_DICTIONARY), "codes ends early"),
        (NUMBERS, dictionary_page(TWO, 2) + data_page(CODES[:2], 2, Encoding.RLE_DICTIONARY), "codes ends early"),
        (NULLABLE, data_page(struct.pack("<i", 900) + b"\x03\x01", 2), "levels end early"),
        (NULLABLE, data_page(struct.pack("<i", 1) + b"\x03", 2), "levels end early"),
    ],
)
def test_a_page_that_ends_before_its_values_do_is_refused(kind: ColumnType, pages: bytes, reason: str) -> None:
    with pytest.raises(pa.ArrowInvalid, match=reason):
        read(kind, pages, 2)


@pytest.mark.parametrize(
    ("kind", "pages"),
    [
        (NUMBERS, data_page(TWO, 2, encoding=5)),
        (NUMBERS, dictionary_page(TWO, 2, encoding=5) + data_page(CODES, 2, Encoding.RLE_DICTIONARY)),
        (NULLABLE, data_page(LEVELS + TWO, 2, levels=4)),
    ],
)
def test_an_encoding_that_is_not_of_our_subset_is_left_to_arrow(kind: ColumnType, pages: bytes) -> None:
    with pytest.raises(UnsupportedPages):
        read(kind, pages, 2)


@pytest.mark.parametrize(("offset", "size"), [(-5, 3), (4, -3), (90, 11), (2**62, 1)])
def test_a_column_chunk_that_lies_outside_of_its_file_is_refused(offset: int, size: int) -> None:
    chunk = Mock(data_page_offset=offset, dictionary_page_offset=None, total_compressed_size=size, num_values=1)
    with pytest.raises(pa.ArrowInvalid, match=r"negative|beyond"):
        chunk_span(chunk, 100)


def test_a_missing_parquet_statistic_is_named() -> None:
    fields = {1: i32(3)}
    with pytest.raises(pa.ArrowInvalid, match="lacks the struct in field 1"):
        struct_in(fields, 1)
    with pytest.raises(pa.ArrowInvalid, match="lacks the list in field 2"):
        structs_in(fields, 2)


def test_values_of_every_kind_are_written_as_they_were_read() -> None:
    fields = {
        1: Field(Kind.I8, -3),
        2: Field(Kind.DOUBLE, 0.5),
        40: Field(Kind.LIST, Items(Kind.TRUE, [True, False])),
        41: boolean(True),
    }
    found, _ = read_struct(write_struct(fields))
    assert found == fields


def test_a_column_of_nan_alone_has_no_bounds() -> None:
    floats = ColumnType(name="x", physical="DOUBLE", width=8, optional=False, logical_type="None", signed=True)
    pages = data_page(np.array([np.nan, np.nan]).tobytes(), 2)
    extremes = Extremes(floats)
    extremes.add(read(floats, pages, 2).values)
    assert extremes.bounds() is None
