"""Checks a file's footer before PyArrow shows its columns.

Arrow's readers answer a damaged footer with an error. PyArrow's accessors to the metadata of column chunks and their
statistics do not: there the same C++ exception is expected by nobody, and ends the process.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Self

import pyarrow as pa
import pyarrow.parquet as pq

from compactor.model.names import counted
from compactor.tabular.parquet_pages.page_format import (
    Codec,
    ColumnChunkField,
    ColumnMetaDataField,
    FileMetaDataField,
    PhysicalType,
    RowGroupField,
    SizeStatisticsField,
    StatisticsField,
)
from compactor.tabular.parquet_pages.thrift import (
    Items,
    Struct,
    UnknownKindError,
    Wanted,
    number_in,
    read_struct,
    struct_in,
    structs_in,
)

_WIDTHS: Mapping[PhysicalType, int] = MappingProxyType(
    {
        PhysicalType.BOOLEAN: 1,
        PhysicalType.INT32: 4,
        PhysicalType.INT64: 8,
        PhysicalType.FLOAT: 4,
        PhysicalType.DOUBLE: 8,
    }
)
"""Bytes of a bound in the statistics. INT96 has none that are read."""

_BOUNDS = (
    StatisticsField.MAX,
    StatisticsField.MIN,
    StatisticsField.MAX_VALUE,
    StatisticsField.MIN_VALUE,
)

_CHECKED: Wanted = {
    FileMetaDataField.ROW_GROUPS: {
        RowGroupField.NUM_ROWS: None,
        RowGroupField.COLUMNS: {
            ColumnChunkField.CRYPTO_METADATA: {},
            ColumnChunkField.META_DATA: {
                ColumnMetaDataField.TYPE: None,
                ColumnMetaDataField.CODEC: None,
                ColumnMetaDataField.STATISTICS: dict.fromkeys(_BOUNDS),
                ColumnMetaDataField.SIZE_STATISTICS: dict.fromkeys(SizeStatisticsField),
            },
        },
    }
}

_TAIL_BYTES = 8
"""Bytes after the footer: its length, and Parquet's magic bytes."""


def check_footer(metadata: pq.FileMetaData, opened: pa.NativeFile) -> None:
    """Raises `pa.ArrowInvalid`, naming the column, for a footer at which PyArrow would end the process.

    Args:
        opened: the file that the metadata are of"""
    footer_bytes = metadata.serialized_size
    footer = opened.read_at(footer_bytes, opened.size() - _TAIL_BYTES - footer_bytes)
    try:
        fields, _ = read_struct(footer, wanted=_CHECKED)
    except UnknownKindError as error:
        raise pa.ArrowInvalid(f"its footer is damaged: it has {error}, which Parquet does not use") from error
    columns = [_Column.of(metadata.schema.column(number)) for number in range(metadata.num_columns)]
    rows = 0
    for row_group in structs_in(fields, FileMetaDataField.ROW_GROUPS):
        rows += _rows_of(row_group, columns)
    if rows != metadata.num_rows:
        raise pa.ArrowInvalid(f"its footer is damaged: its row groups have {rows} rows, not {metadata.num_rows}")


@dataclass(frozen=True)
class _Column:
    """A leaf column of the schema. `bound_bytes`: of a bound, at least."""

    path: str
    physical_type: PhysicalType
    bound_bytes: int
    definition_levels: int
    repetition_levels: int

    @classmethod
    def of(cls, column: pq.ColumnSchema) -> Self:
        physical_type = PhysicalType[column.physical_type]
        is_fixed = physical_type is PhysicalType.FIXED_LEN_BYTE_ARRAY
        width = column.length if is_fixed else _WIDTHS.get(physical_type, 0)
        levels = (column.max_definition_level + 1, column.max_repetition_level + 1)
        return cls(column.path, physical_type, width, *levels)

    def damage_of(self, chunk: Struct) -> str | None:
        """What is wrong with a column chunk."""
        if ColumnChunkField.CRYPTO_METADATA in chunk:
            return "is encrypted"
        metadata = struct_in(chunk, ColumnChunkField.META_DATA)
        found = number_in(metadata, ColumnMetaDataField.TYPE)
        if found != self.physical_type:
            return f"has the type {found}, and in the schema {self.physical_type.name}"
        if not 0 <= number_in(metadata, ColumnMetaDataField.CODEC) <= max(Codec):
            return "has an unknown compression"
        if ColumnMetaDataField.STATISTICS in metadata:
            statistics = struct_in(metadata, ColumnMetaDataField.STATISTICS)
            bounds = (statistics[field].value for field in _BOUNDS if field in statistics)
            if not all(isinstance(bound, bytes) and len(bound) >= self.bound_bytes for bound in bounds):
                return f"has a bound of less than {self.bound_bytes} bytes in its statistics"
        if ColumnMetaDataField.SIZE_STATISTICS in metadata:
            return self._damage_of_sizes(struct_in(metadata, ColumnMetaDataField.SIZE_STATISTICS))
        return None

    def _damage_of_sizes(self, sizes: Struct) -> str | None:
        is_text = self.physical_type is PhysicalType.BYTE_ARRAY
        if SizeStatisticsField.UNENCODED_BYTES in sizes and not is_text:
            return "has a size of text in its statistics"
        for field, levels in (
            (SizeStatisticsField.REPETITION_LEVELS, self.repetition_levels),
            (SizeStatisticsField.DEFINITION_LEVELS, self.definition_levels),
        ):
            counts = sizes[field].value if field in sizes else None
            if isinstance(counts, Items) and len(counts.values) not in {0, levels}:
                return f"has {counted(len(counts.values), 'level')} in its statistics, and in the schema {levels}"
        return None


def _rows_of(row_group: Struct, columns: list[_Column]) -> int:
    """The rows of a row group, if it is sound."""
    chunks = structs_in(row_group, RowGroupField.COLUMNS)
    if len(chunks) != len(columns):
        raise pa.ArrowInvalid(
            f"its footer is damaged: a row group has {counted(len(chunks), 'column')}, the schema {len(columns)}"
        )
    for column, chunk in zip(columns, chunks, strict=True):
        damage = column.damage_of(chunk)
        if damage is not None:
            raise pa.ArrowInvalid(f"its footer is damaged: a chunk of column {column.path!r} {damage}")
    rows = number_in(row_group, RowGroupField.NUM_ROWS)
    if rows < 0:
        raise pa.ArrowInvalid(f"its footer is damaged: a row group has {rows} rows")
    return rows
