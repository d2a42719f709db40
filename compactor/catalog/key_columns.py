"""Checks key columns and reports every violation at once, with a schema or without. Pure.

A primary key column may have any type that has canonical bytes (`compactor/kernels/canonical.py`). A sort key column
must have a fixed width, because its values are in every row of the primary key index (the paper, "Output - Primary Key
Index"): together 32 bytes at most.
"""

import difflib
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from compactor.kernels.canonical import is_key_type, unsupported_key_type
from compactor.kernels.sort_values import SortColumn, fixed_width_bytes
from compactor.model.arrow_types import value_type
from compactor.model.counts import SortKey
from compactor.model.names import PARTITION_STREAM_POSITION, SortOrder

SORT_KEY_BYTES_MAX = 32
STREAM_POSITION_BYTES = 8


_ALL_NULL_SORT_TYPE = pa.bool_()
"""The type of a sort key column without values: any type would do, this one is the smallest."""


def check_key_names(primary_keys: Sequence[str], sort_keys: Sequence[SortKey]) -> Iterator[str]:
    """Violations that do not depend on the data, one sentence each."""
    if not primary_keys:
        yield "primary_keys is empty: name at least one column"
    yield from check_given_key_names(primary_keys, sort_keys)


def check_given_key_names(primary_keys: Sequence[str], sort_keys: Sequence[SortKey]) -> Iterator[str]:
    """As `check_key_names`, for keys of which some may be set elsewhere."""
    if PARTITION_STREAM_POSITION in primary_keys:
        yield f"{PARTITION_STREAM_POSITION!r} is a virtual column: it can be a sort key, not a primary key"
    for kind, columns in (("primary", list(primary_keys)), ("sort", [key.column for key in sort_keys])):
        for column in dict.fromkeys(columns):
            if columns.count(column) > 1:
                yield f"{kind} key column {column!r} is named {columns.count(column)} times"


def check_key_columns(schema: pa.Schema, primary_keys: Sequence[str], sort_keys: Sequence[SortKey]) -> tuple[str, ...]:
    """All that is wrong with the keys for this schema, one sentence each."""
    return (
        *check_given_key_names(primary_keys, sort_keys),
        *_check_primary_keys(schema, primary_keys),
        *_check_sort_keys(schema, sort_keys),
    )


def check_declared_keys(schema: pa.Schema, primary_keys: Sequence[str], sort_keys: Sequence[SortKey]) -> Iterator[str]:
    """As `check_key_columns`, for a declared schema: data files may have further columns, which may be keys."""
    names = set(schema.names)
    yield from _check_primary_keys(schema, [column for column in primary_keys if column in names])
    yield from _check_sort_keys(schema, [key for key in sort_keys if key.column in names])


def sort_column(key: SortKey, schema: pa.Schema) -> SortColumn:
    """The sort key with the type of its values in the index, for a schema that fits the keys."""
    arrow_type = _ALL_NULL_SORT_TYPE
    if key.column == PARTITION_STREAM_POSITION:
        arrow_type = pa.int64()
    elif key.column in schema.names and sort_key_bytes(schema.field(key.column).type):
        arrow_type = value_type(schema.field(key.column).type)
    return SortColumn(key.column, arrow_type, key.order is SortOrder.DESCENDING)


def sort_key_bytes(data_type: pa.DataType) -> int | None:
    """Bytes that a value of this type takes in the index; None for a type without a fixed width.

    A dictionary-encoded column counts as its values, an extension type (a UUID) as its storage, nulls alone as 0 bytes.
    """
    data_type = value_type(data_type)
    return 0 if pa.types.is_null(data_type) else fixed_width_bytes(data_type)


def _check_primary_keys(schema: pa.Schema, primary_keys: Sequence[str]) -> Iterable[str]:
    for column in dict.fromkeys(primary_keys):
        if column == PARTITION_STREAM_POSITION:
            continue
        if schema.get_field_index(column) < 0:  # missing, or several
            yield _missing_or_repeated("primary key", column, schema)
        elif not is_key_type(schema.field(column).type):
            yield unsupported_key_type(column, schema.field(column).type)


def _check_sort_keys(schema: pa.Schema, sort_keys: Sequence[SortKey]) -> Iterable[str]:
    widths: dict[str, int] = {}
    for key in sort_keys:
        if key.column == PARTITION_STREAM_POSITION:
            widths[key.column] = STREAM_POSITION_BYTES
            if schema.get_all_field_indices(key.column):
                yield (
                    f"sort key {key.column!r} is the virtual column of stream positions, and the data have a column of "
                    "this name: rename that column"
                )
        elif schema.get_field_index(key.column) < 0:
            yield _missing_or_repeated("sort key", key.column, schema)
        else:
            data_type = schema.field(key.column).type
            width = sort_key_bytes(data_type)
            if width is None:
                yield (
                    f"sort key column {key.column!r} has type {data_type}, which has no fixed width: sort keys must be "
                    "numbers, booleans, dates, times, timestamps or binary of a fixed size"
                )
            else:
                widths[key.column] = width
    if sum(widths.values()) > SORT_KEY_BYTES_MAX:
        each = ", ".join(f"{column} {width}" for column, width in widths.items())
        yield f"the sort keys take {sum(widths.values())} bytes ({each}): at most {SORT_KEY_BYTES_MAX} are allowed"


def _missing_or_repeated(kind: str, column: str, schema: pa.Schema) -> str:
    if column in schema.names:
        return f"{kind} column {column!r} is {schema.names.count(column)} times in the data: names must be unique"
    nearest = difflib.get_close_matches(column, schema.names, n=1)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"the columns are {', '.join(map(repr, schema.names))}"
    return f"there is no {kind} column {column!r} in the data: {hint}"
