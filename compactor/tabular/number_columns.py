"""Numbers of a Parquet row group, read from its pages: keys and sort values mostly are numbers, and hashing them takes
less than reading them does. Their pages are copied side by side, and are an Arrow array.

Arrow reads whatever is not known here; it takes half as long again, most of it to take snappy apart.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from compactor.tabular.column_chunks import Column, ColumnType, UnknownPages, chunk_span, is_known, read_column

BYTES_MAX = 64 * 1024 * 1024
"""Of one row group's numbers, which are all in memory at once; Arrow reads more than that in parts."""


def read_numbers(
    parquet: pq.ParquetFile, opened: pa.NativeFile, row_group: int, columns: Sequence[str]
) -> pa.RecordBatch | None:
    """These columns of a row group; None where one of them is not plain numbers, and Arrow has to read them.

    opened  the bytes of `parquet`
    Raises `pa.ArrowInvalid` where they are damaged.
    """
    metadata, schema = parquet.metadata, parquet.schema_arrow
    group = metadata.row_group(row_group)
    places = {metadata.schema.column(number).path: number for number in range(metadata.num_columns)}
    # A nested column is named by its path, which may be a flat one's name too.
    if not columns or len(places) < metadata.num_columns or not all(name in places for name in columns):
        return None
    wanted = [(metadata.schema.column(places[name]), group.column(places[name])) for name in columns]
    fields = [schema.field(name) for name in columns]
    kinds = [ColumnType.of(stored) for stored, _ in wanted]
    if not all(
        is_known(stored, chunk) and _is_as_stored(field.type, kind)
        for (stored, chunk), kind, field in zip(wanted, kinds, fields, strict=True)
    ):
        return None
    if group.num_rows * sum(kind.width for kind in kinds) > BYTES_MAX:
        return None
    try:
        arrays = [
            _numbers(_read(opened, kind, chunk), field.type, group.num_rows)
            for (_, chunk), kind, field in zip(wanted, kinds, fields, strict=True)
        ]
    except UnknownPages:
        return None
    return pa.record_batch(arrays, schema=pa.schema(fields))


def _is_as_stored(arrow_type: pa.DataType, kind: ColumnType) -> bool:
    """Whether Arrow's values of this type are the bytes that Parquet has of them."""
    is_number = pa.types.is_integer(arrow_type) or pa.types.is_floating(arrow_type)
    is_time = pa.types.is_date32(arrow_type) or pa.types.is_time(arrow_type) or pa.types.is_timestamp(arrow_type)
    in_numbers = kind.physical in {"INT32", "INT64", "FLOAT", "DOUBLE"}
    return in_numbers and (is_number or is_time) and int(arrow_type.bit_width) == 8 * kind.width


def _read(opened: pa.NativeFile, kind: ColumnType, chunk: pq.ColumnChunkMetaData) -> Column:
    start, length = chunk_span(chunk, opened.size())
    data: bytes = opened.read_at(length, start) if length else b""
    return read_column(kind, np.frombuffer(data, np.uint8), [(chunk, 0)])


def _numbers(column: Column, arrow_type: pa.DataType, rows: int) -> pa.Array:
    numbers = column.values.data.view(f"u{column.kind.width}")
    if column.codes is not None:
        numbers = numbers.take(column.codes)
    validity = None
    if column.valid is not None:
        spread = np.zeros(len(column.valid), numbers.dtype)
        spread[column.valid] = numbers
        numbers, validity = spread, pa.py_buffer(np.packbits(column.valid, bitorder="little"))
    if len(numbers) != rows:
        raise pa.ArrowInvalid(f"column {column.kind.name!r} does not have {rows} rows")
    return pa.Array.from_buffers(arrow_type, rows, [validity, pa.py_buffer(numbers)])
