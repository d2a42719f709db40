"""ORC: read by stripe, measured by its footer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import pyarrow as pa
from pyarrow import orc

from compactor.schemas import cast_array, cast_column, unify_types
from compactor.tabular.formats import FileMeasure, Source, wanted_columns
from compactor.tabular.stored_types import stored_in_orc

RowsT = TypeVar("RowsT", pa.Table, pa.RecordBatch)


class Orc:
    """See `TabularFormat`."""

    def read_schema(self, source: Source, schema: pa.Schema | None) -> pa.Schema:
        del schema
        with _open(source) as file:
            return file.schema

    def read_table(self, source: Source, columns: Sequence[str] | None, schema: pa.Schema | None) -> pa.Table:
        batches = list(self.read_batches(source, columns, schema))
        if batches:
            return pa.Table.from_batches(batches)
        with _open(source) as file:
            wanted = wanted_columns(source, file.schema, columns)
            return _as_written(file.schema.empty_table().select(wanted), schema)

    def read_batches(
        self, source: Source, columns: Sequence[str] | None, schema: pa.Schema | None
    ) -> Iterator[pa.RecordBatch]:
        with _open(source) as file:
            wanted = wanted_columns(source, file.schema, columns)
            # Asked for no column at all, the reader forgets how many rows there are.
            needed = wanted or file.schema.names[:1]
            for stripe in range(file.nstripes):
                yield _as_written(file.read_stripe(stripe, columns=needed).select(wanted), schema)

    def measure(self, source: Source, schema: pa.Schema | None) -> FileMeasure:
        del schema
        with _open(source) as file:
            return FileMeasure(file.nrows, file.file_length, file.schema)


@contextmanager
def _open(source: Source) -> Iterator[orc.ORCFile]:
    with source.open() as opened:
        yield orc.ORCFile(opened)


def _as_written(rows: RowsT, schema: pa.Schema | None) -> RowsT:
    """The rows with the types that `schema` names where ORC holds another in their place: it has no unsigned integers,
    no bytes of a fixed size, and only one unit of timestamps. A type that widens to the schema's is left as it is.
    """
    if schema is None:
        return rows
    columns = []
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        place = schema.get_field_index(name)
        kind = column.type if place < 0 else schema.field(place).type
        stands_in = stored_in_orc(kind) is not None and unify_types(kind, column.type) != kind
        columns.append(_cast(column, kind) if stands_in else column)
    return type(rows).from_arrays(columns, names=rows.schema.names) if columns else rows


def _cast(column: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """Where a value does not fit, the column stays as it is: whoever needs the type says so, with both files' names."""
    try:
        return cast_column(column, kind) if isinstance(column, pa.ChunkedArray) else cast_array(column, kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return column
