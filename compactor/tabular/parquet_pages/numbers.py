"""Reads columns of numbers, dates, times and timestamps of a Parquet row group from its pages, without Arrow's decoder.

Most keys and sort values are of these types, and Arrow takes longer to read them than the hash bucket step to hash
them. Values whose stored bytes are Arrow's bytes become an Arrow array as they are. Arrow reads all other columns.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from compactor.tabular.parquet_pages.arrow_files import chunk_span
from compactor.tabular.parquet_pages.page_reader import (
    ColumnType,
    ReadColumn,
    UnsupportedPages,
    is_supported,
    read_column,
)

BYTES_MAX = 64 * 1024 * 1024
"""The most bytes of one row group's values: they are in memory at once. Arrow reads larger row groups in parts."""


def read_numbers(
    parquet: pq.ParquetFile, opened: pa.NativeFile, row_group: int, columns: Sequence[str]
) -> pa.RecordBatch | None:
    """These columns of a row group; None if one of them is not supported, so that Arrow must read all of them.

    `opened`: the bytes of `parquet`. Raises `pa.ArrowInvalid` for damaged bytes."""
    metadata, schema = parquet.metadata, parquet.schema_arrow
    group = metadata.row_group(row_group)
    value_numbers = {metadata.schema.column(number).path: number for number in range(metadata.num_columns)}
    # The path of a nested column may equal the name of a flat one.
    if not columns or len(value_numbers) < metadata.num_columns or not all(name in value_numbers for name in columns):
        return None
    wanted = [(metadata.schema.column(value_numbers[name]), group.column(value_numbers[name])) for name in columns]
    fields = [schema.field(name) for name in columns]
    column_types = [ColumnType.of(stored) for stored, _ in wanted]
    if not all(
        is_supported(stored, chunk) and _is_as_stored(field.type, column_type)
        for (stored, chunk), column_type, field in zip(wanted, column_types, fields, strict=True)
    ):
        return None
    if group.num_rows * sum(column_type.width for column_type in column_types) > BYTES_MAX:
        return None
    try:
        arrays = [
            _numbers(_read(opened, column_type, chunk), field.type, group.num_rows)
            for (_, chunk), column_type, field in zip(wanted, column_types, fields, strict=True)
        ]
    except UnsupportedPages:
        return None
    return pa.record_batch(arrays, schema=pa.schema(fields))


def _is_as_stored(arrow_type: pa.DataType, column_type: ColumnType) -> bool:
    """Whether Arrow and Parquet store values of this type as the same bytes."""
    is_number = pa.types.is_integer(arrow_type) or pa.types.is_floating(arrow_type)
    is_time = pa.types.is_date32(arrow_type) or pa.types.is_time(arrow_type) or pa.types.is_timestamp(arrow_type)
    in_numbers = column_type.physical in {"INT32", "INT64", "FLOAT", "DOUBLE"}
    return in_numbers and (is_number or is_time) and int(arrow_type.bit_width) == 8 * column_type.width


def _read(opened: pa.NativeFile, column_type: ColumnType, chunk: pq.ColumnChunkMetaData) -> ReadColumn:
    start, length = chunk_span(chunk, opened.size())
    data: bytes = opened.read_at(length, start) if length else b""
    return read_column(column_type, np.frombuffer(data, np.uint8), [(chunk, 0)])


def _numbers(column: ReadColumn, arrow_type: pa.DataType, rows: int) -> pa.Array:
    numbers = column.values.data.view(f"u{column.column_type.width}")
    if column.codes is not None:
        numbers = numbers.take(column.codes)
    validity = None
    if column.valid is not None:
        spread = np.zeros(len(column.valid), numbers.dtype)
        spread[column.valid] = numbers
        numbers, validity = spread, pa.py_buffer(np.packbits(column.valid, bitorder="little"))
    if len(numbers) != rows:
        raise pa.ArrowInvalid(f"column {column.column_type.name!r} does not have {rows} rows")
    return pa.Array.from_buffers(arrow_type, rows, [validity, pa.py_buffer(numbers)])
