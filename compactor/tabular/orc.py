"""ORC: read by stripe, measured from its footer."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import pyarrow as pa
from pyarrow import orc

from compactor.model.files import RowGroupSize
from compactor.schemas.cast import cast_array, cast_column
from compactor.schemas.unify import unify_types
from compactor.tabular.formats import FileMeasure, Source, wanted_columns
from compactor.tabular.stored_types import stands_in_orc

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
        self, source: Source, columns: Sequence[str] | None, schema: pa.Schema | None, stripe: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """`stripe`: the number of one, from 0; None: all rows."""
        with _open(source) as file:
            wanted = wanted_columns(source, file.schema, columns)
            # Without any column the reader loses the number of rows.
            needed = wanted or file.schema.names[:1]
            for number in range(file.nstripes) if stripe is None else (stripe,):
                yield _as_written(file.read_stripe(number, columns=needed).select(wanted), schema)

    def measure(self, source: Source, schema: pa.Schema | None) -> FileMeasure:
        del schema
        with _open(source) as file:
            return FileMeasure(file.nrows, file.file_length, file.schema, row_groups=tuple(_stripes(file)))


def _stripes(file: orc.ORCFile) -> Iterator[RowGroupSize]:
    """PyArrow says of no stripe how many rows and bytes it has: a column of fixed width, if there is one, is read, and
    the file's bytes are shared out by rows. Nothing of a file of one stripe."""
    if file.nstripes == 1:
        return
    narrow = next((field.name for field in file.schema if pa.types.is_primitive(field.type)), file.schema.names[0])
    for number in range(file.nstripes):
        rows = file.read_stripe(number, columns=[narrow]).num_rows
        yield RowGroupSize(rows=rows, size_bytes=file.file_length * rows // max(file.nrows, 1))


@contextmanager
def _open(source: Source) -> Iterator[orc.ORCFile]:
    with source.open() as opened:
        yield orc.ORCFile(opened)


def _as_written(rows: RowsT, schema: pa.Schema | None) -> RowsT:
    """The rows with the types of `schema` where ORC stores another type in their place: it has no unsigned integers, no
    fixed-size bytes, and only one unit of timestamps. A type that widens to the schema's is kept."""
    if schema is None:
        return rows
    columns = []
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        position = schema.get_field_index(name)
        arrow_type = column.type if position < 0 else schema.field(position).type
        stands_in = stands_in_orc(arrow_type) and unify_types(arrow_type, column.type) != arrow_type
        columns.append(_cast(column, arrow_type) if stands_in else column)
    return type(rows).from_arrays(columns, names=rows.schema.names) if columns else rows


def _cast(column: pa.Array | pa.ChunkedArray, arrow_type: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """If a value does not fit, the column keeps its type; the caller that needs the type raises, naming both files."""
    try:
        return (
            cast_column(column, arrow_type) if isinstance(column, pa.ChunkedArray) else cast_array(column, arrow_type)
        )
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return column
