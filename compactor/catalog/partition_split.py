"""Divides rows among the partitions of a table, by the values of their partition columns. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from compactor.model.arrow_types import value_type
from compactor.model.errors import Invalid

Int64s = npt.NDArray[np.int64]


def split_by_partition(
    rows: pa.Table, partition_keys: Sequence[str], source_name: str
) -> list[tuple[dict[str, str], Int64s]]:
    """The partitions that the rows are of, in the order of their values, and of each the row numbers, ascending.

    The value of a partition is the text of its column: of whole numbers, booleans and dates as Arrow writes them.

    Raises `Invalid`, with the row, for a column that is missing, null or of a type that has no one text.
    """
    if not partition_keys:
        return [({}, np.arange(rows.num_rows))]
    columns = [_values(rows, key, source_name) for key in partition_keys]
    codes = np.zeros(rows.num_rows, np.int64)
    for column in columns:
        within = column.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        codes = _renumbered(codes * len(column.dictionary) + within) if len(partition_keys) > 1 else within
    order = np.argsort(codes.astype(np.min_scalar_type(int(codes.max(initial=0)))), kind="stable")
    begins = np.flatnonzero(np.diff(codes[order], prepend=-1))
    found = []
    for numbers in np.split(order, begins[1:]) if len(begins) else []:
        values = (column.dictionary[column.indices[int(numbers[0])].as_py()].as_py() for column in columns)
        found.append((dict(zip(partition_keys, values, strict=True)), numbers))
    return sorted(found, key=lambda each: tuple(each[0].values()))


def _renumbered(codes: Int64s) -> Int64s:
    """The same codes from 0 on, without gaps, so that products of them stay small."""
    return np.unique(codes, return_inverse=True)[1].astype(np.int64)


def _values(rows: pa.Table, key: str, source_name: str) -> pa.DictionaryArray:
    if key not in rows.column_names:
        raise Invalid(f"{source_name} has no column {key!r}, by which its rows would find their partition")
    column = rows.column(key)
    kind = value_type(column.type)
    if column.null_count:
        row = pc.index(column.is_null(), pa.scalar(True)).as_py()
        raise Invalid(f"{source_name} has no value of {key!r} in row {row + 1:,}: a row without it has no partition")
    if not _has_one_text(kind):
        raise Invalid(
            f"column {key!r} of {source_name} is {kind}: a partition is text, a whole number, a date or a bool"
        )
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    values: pa.DictionaryArray = encoded.unify_dictionaries().combine_chunks()
    if isinstance(values, pa.ChunkedArray):  # without rows there is no chunk
        values = pa.array([], kind).dictionary_encode()
    return pa.DictionaryArray.from_arrays(values.indices, values.dictionary.cast(pa.string()))


def _has_one_text(kind: pa.DataType) -> bool:
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    return bool(is_text or pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_date(kind))
