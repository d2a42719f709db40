"""The page format of Parquet: names for its enums and for the fields of its Thrift structs (parquet.thrift, 2.10).

SUBSET.md, in this folder, lists which of them are read and written here, and where the specification defines them.
"""

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType

import numpy as np
import pyarrow as pa
from isal import isal_zlib

MAGIC = b"PAR1"


class PhysicalType(IntEnum):
    """`Type` in parquet.thrift."""

    BOOLEAN = 0
    INT32 = 1
    INT64 = 2
    INT96 = 3
    FLOAT = 4
    DOUBLE = 5
    BYTE_ARRAY = 6
    FIXED_LEN_BYTE_ARRAY = 7


class PageType(IntEnum):
    """`PageType` in parquet.thrift."""

    DATA_PAGE = 0
    INDEX_PAGE = 1
    DICTIONARY_PAGE = 2
    DATA_PAGE_V2 = 3


class Encoding(IntEnum):
    """`Encoding` in parquet.thrift."""

    PLAIN = 0
    PLAIN_DICTIONARY = 2
    RLE = 3
    BIT_PACKED = 4
    DELTA_BINARY_PACKED = 5
    DELTA_LENGTH_BYTE_ARRAY = 6
    DELTA_BYTE_ARRAY = 7
    RLE_DICTIONARY = 8
    BYTE_STREAM_SPLIT = 9


class Codec(IntEnum):
    """`CompressionCodec` in parquet.thrift."""

    UNCOMPRESSED = 0
    SNAPPY = 1
    GZIP = 2
    LZO = 3
    BROTLI = 4
    LZ4 = 5
    ZSTD = 6
    LZ4_RAW = 7


class PageHeaderField(IntEnum):
    TYPE = 1
    UNCOMPRESSED_PAGE_SIZE = 2
    COMPRESSED_PAGE_SIZE = 3
    CRC = 4
    DATA_PAGE_HEADER = 5
    DICTIONARY_PAGE_HEADER = 7


class DataPageHeaderField(IntEnum):
    NUM_VALUES = 1
    ENCODING = 2
    DEFINITION_LEVEL_ENCODING = 3
    REPETITION_LEVEL_ENCODING = 4


class DictionaryPageHeaderField(IntEnum):
    NUM_VALUES = 1
    ENCODING = 2
    IS_SORTED = 3


class StatisticsField(IntEnum):
    """Fields of `Statistics`. MAX and MIN are those of old writers."""

    MAX = 1
    MIN = 2
    NULL_COUNT = 3
    MAX_VALUE = 5
    MIN_VALUE = 6
    IS_MAX_VALUE_EXACT = 7
    IS_MIN_VALUE_EXACT = 8


class SizeStatisticsField(IntEnum):
    UNENCODED_BYTES = 1
    REPETITION_LEVELS = 2
    DEFINITION_LEVELS = 3


class PageEncodingStatsField(IntEnum):
    PAGE_TYPE = 1
    ENCODING = 2
    COUNT = 3


class ColumnMetaDataField(IntEnum):
    TYPE = 1
    ENCODINGS = 2
    PATH_IN_SCHEMA = 3
    CODEC = 4
    NUM_VALUES = 5
    TOTAL_UNCOMPRESSED_SIZE = 6
    TOTAL_COMPRESSED_SIZE = 7
    DATA_PAGE_OFFSET = 9
    INDEX_PAGE_OFFSET = 10
    DICTIONARY_PAGE_OFFSET = 11
    STATISTICS = 12
    ENCODING_STATS = 13
    SIZE_STATISTICS = 16


class ColumnChunkField(IntEnum):
    FILE_OFFSET = 2
    META_DATA = 3
    CRYPTO_METADATA = 8


class RowGroupField(IntEnum):
    COLUMNS = 1
    TOTAL_BYTE_SIZE = 2
    NUM_ROWS = 3
    FILE_OFFSET = 5
    TOTAL_COMPRESSED_SIZE = 6
    ORDINAL = 7


class FileMetaDataField(IntEnum):
    NUM_ROWS = 3
    ROW_GROUPS = 4
    CREATED_BY = 6


PAGE_BYTES = 1024 * 1024
DICTIONARY_PAGE_BYTES = 1024 * 1024
"""The size at which writers drop a dictionary (the default of PyArrow and parquet-java)."""

DICTIONARY_SHARE_MAX = 0.75
"""A dictionary is written only if it saves a quarter of the bytes."""

COMPRESSED_SHARE_MAX = 0.875
"""Compression that saves less than an eighth of a column is not worth its time, here and in every reader."""

STATISTIC_BYTES_MAX = 4096
"""Longer values are not written as bounds, as in Arrow."""

PAGE_SIZE_MAX = 2**31 - 1
BIT_WIDTH_MAX = 32

NUMBER_TYPES: Mapping[str, type[np.number]] = MappingProxyType(
    {"INT32": np.int32, "INT64": np.int64, "FLOAT": np.float32, "DOUBLE": np.float64}
)
"""NumPy's types of PLAIN numbers, by the name of the physical type."""

# The subset that is read here; Arrow reads everything else.
PAGE_TYPES_READ = frozenset({PageType.DATA_PAGE, PageType.DICTIONARY_PAGE})
ENCODINGS_READ = frozenset({Encoding.PLAIN, Encoding.PLAIN_DICTIONARY, Encoding.RLE, Encoding.RLE_DICTIONARY})
CODECS_READ = frozenset({Codec.UNCOMPRESSED, Codec.SNAPPY, Codec.GZIP, Codec.ZSTD, Codec.BROTLI})
PHYSICAL_TYPES_READ = frozenset(PhysicalType) - {PhysicalType.INT96}
LOGICAL_TYPES_READ = frozenset(
    {"None", "String", "Decimal", "Date", "Time", "Timestamp", "Int", "JSON", "BSON", "UUID"}
)


def page_checksum(stored: memoryview | pa.Buffer) -> int:
    """The value of `PageHeader.crc`: CRC-32 of a page's stored bytes, without its header."""
    checksum = isal_zlib.crc32(stored)
    return checksum - ((checksum & 0x8000_0000) << 1)
