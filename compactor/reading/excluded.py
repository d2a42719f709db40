"""What a filter excludes without reading rows: partitions by their values, and files by the bounds of their columns.

A *guarantee* is a condition that every row of a partition or a file fulfils. What contradicts the filter is left out.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import product

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow import fs

from compactor.model.arrow_types import value_type
from compactor.model.errors import Invalid
from compactor.model.files import ColumnStats, DataFile, Scalar
from compactor.model.names import PartitionValues


def columns_of(row_filter: pc.Expression | None, schema: pa.Schema) -> list[str]:
    """The columns of a filter. PyArrow does not list them, but a table without one of them does not fit the filter."""
    if row_filter is None:
        return []
    try:
        schema.empty_table().filter(row_filter)
    except (pa.ArrowException, TypeError) as error:
        raise Invalid(f"the filter does not fit the table: {error}") from error
    return [field.name for field in _needed(row_filter, list(schema), [])]


def _needed(row_filter: pc.Expression, fields: list[pa.Field], beside: list[pa.Field]) -> list[pa.Field]:
    """The columns among `fields` that the filter needs, beside others. By halves: it names few of many."""
    if len(fields) <= 1:
        return [] if _fits(row_filter, beside) else fields
    halves = fields[: len(fields) // 2], fields[len(fields) // 2 :]
    for half in halves:
        if _fits(row_filter, [*beside, *half]):
            return _needed(row_filter, half, beside)
    first = _needed(row_filter, halves[0], [*beside, *halves[1]])
    return first + _needed(row_filter, halves[1], [*beside, *first])


def _fits(row_filter: pc.Expression, fields: list[pa.Field]) -> bool:
    try:
        pa.schema(fields).empty_table().filter(row_filter)
    except pa.ArrowException:
        return False
    return True


def holds_floats(kind: pa.DataType) -> bool:
    kind = value_type(kind)
    return pa.types.is_floating(kind) or any(
        holds_floats(kind.field(position).type) for position in range(kind.num_fields)
    )


def not_excluded(guarantees: Sequence[pc.Expression], schema: pa.Schema, row_filter: pc.Expression) -> list[int]:
    """The numbers of the guarantees that do not contradict the filter, ascending."""
    # PyArrow's datasets leave out fragments whose guarantee contradicts a filter. No file is opened for this, so the
    # format does not matter, and the number in the list serves as the path.
    nowhere, any_format = fs.LocalFileSystem(), ds.ParquetFileFormat()
    fragments = [
        any_format.make_fragment(str(number), nowhere, partition_expression=guarantee)
        for number, guarantee in enumerate(guarantees)
    ]
    dataset = ds.FileSystemDataset(fragments, schema, any_format, nowhere)
    return sorted(int(fragment.path) for fragment in dataset.get_fragments(filter=row_filter))


def selected_partitions(
    partitions: Sequence[PartitionValues], keys: Collection[str], schema: pa.Schema, row_filter: pc.Expression
) -> list[PartitionValues]:
    """The partitions whose values do not contradict the filter.

    Args:
        keys: partition keys whose column has the partition's value in every row, or null where a file lacks the column
    """
    fields = [schema.field(name) for name in columns_of(row_filter, schema)]
    if fields and partitions and all(field.name in keys and not holds_floats(field.type) for field in fields):
        values = pa.table(
            [pa.array([each[field.name] for each in partitions]) for field in fields], [field.name for field in fields]
        )
        with suppress(pa.ArrowException):  # a value that is not of its column's type
            matches = _matches(values.cast(pa.schema(fields)), row_filter)
            return [partition for partition, is_match in zip(partitions, matches, strict=True) if is_match]
    guarantees = [
        _guarantee_of_partition(each, [field for field in fields if field.name in keys]) for each in partitions
    ]
    return [partitions[number] for number in not_excluded(guarantees, schema, row_filter)]


def has_value(files: Iterable[DataFile], field: pa.Field, value: str) -> bool:
    """Whether the bounds of a column in the log are this value in all of the files."""
    bounds = (file.columns.get(field.name, ColumnStats()) for file in files)
    ends = {end for each in bounds for end in (each.min_value, each.max_value)}
    expected = _bound(value, field.type)
    return expected is not None and all(_bound(end, field.type) == expected for end in ends)


def _matches(values: pa.Table, row_filter: pc.Expression) -> npt.NDArray[np.bool_]:
    """Whether rows with these values match, or with null in place of some of them."""
    found = np.zeros(values.num_rows, np.bool_)
    for are_null in product([False, True], repeat=values.num_columns):
        columns = [
            pa.nulls(len(column), column.type) if is_null else column
            for column, is_null in zip(values.columns, are_null, strict=True)
        ]
        rows = ds.dataset(pa.table(columns, schema=values.schema)).to_table({"matches": row_filter})
        found |= rows["matches"].combine_chunks().fill_null(False).to_numpy(zero_copy_only=False)
    return found


def _guarantee_of_partition(partition: PartitionValues, fields: Iterable[pa.Field]) -> pc.Expression:
    guarantee = pc.scalar(True)
    for field in fields:
        value = _bound(partition[field.name], field.type)
        if value is not None and not holds_floats(field.type):
            column = pc.field(field.name)
            guarantee &= (column == value) | column.is_null()
    return guarantee


def guarantee_of_rows(
    bounds: Mapping[str, ColumnStats], rows: int, constants: Mapping[str, pa.Scalar], fields: Iterable[pa.Field]
) -> pc.Expression:
    """What the bounds of the rows of a file or a row group say of these columns.

    Args:
        constants: values of columns that the file lacks"""
    guarantee = pc.scalar(True)
    for field in fields:
        if holds_floats(field.type):
            continue
        name, kind, column = field.name, field.type, pc.field(field.name)
        if name in constants:
            guarantee &= column == constants[name]
        stats = bounds.get(name)
        if stats is None:
            continue
        least, greatest = _bound(stats.min_value, kind), _bound(stats.max_value, kind)
        if stats.null_count is not None and stats.null_count == rows:
            guarantee &= column.is_null()
        elif least is not None and greatest is not None:
            within = (column >= least) & (column <= greatest)
            guarantee &= within if stats.null_count == 0 else within | column.is_null()
    return guarantee


def _bound(value: Scalar | None, kind: pa.DataType) -> pa.Scalar | None:
    """A value in the log, or a partition's, as a value of the column's type; None if it is not one."""
    if value is None:
        return None
    try:
        is_text_for = isinstance(value, str) and not (pa.types.is_string(kind) or pa.types.is_large_string(kind))
        return pa.scalar(value).cast(kind) if is_text_for else pa.scalar(value, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None
