"""Which columns can be keys: the rules of contract 2, checked on a schema, every violation at once. Pure.

A primary key column may have any Arrow type without nesting. A sort key column must have a fixed width, because its
values stand in every row of the primary key index (seed 000, "Output - Primary Key Index"): together 32 bytes at most.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

import pyarrow as pa

from compactor.catalog.actions import SortKey
from compactor.kernels.sort_values import fixed_width_bytes
from compactor.names import PARTITION_STREAM_POSITION

SORT_KEY_BYTES_MAX = 32
STREAM_POSITION_BYTES = 8


def check_key_columns(schema: pa.Schema, primary_keys: Sequence[str], sort_keys: Sequence[SortKey]) -> tuple[str, ...]:
    """Every way in which the keys do not fit the schema, a sentence each; empty if they fit."""
    return (*_check_primary_keys(schema, primary_keys), *_check_sort_keys(schema, sort_keys))


def sort_key_bytes(data_type: pa.DataType) -> int | None:
    """How many bytes a value of this type takes in the index; None for a type without a fixed width.

    A dictionary-encoded column counts as the values it stands for, an extension type (a UUID) as what it is stored as,
    and a column of nothing but nulls as nothing.
    """
    if isinstance(data_type, pa.BaseExtensionType):
        return sort_key_bytes(data_type.storage_type)
    if pa.types.is_dictionary(data_type):
        return sort_key_bytes(data_type.value_type)
    if pa.types.is_null(data_type):
        return 0
    return fixed_width_bytes(data_type)


def is_key_type(data_type: pa.DataType) -> bool:
    """Whether a primary key column may have this type."""
    if isinstance(data_type, pa.BaseExtensionType):
        return is_key_type(data_type.storage_type)
    if pa.types.is_dictionary(data_type):
        return is_key_type(data_type.value_type)
    return not (pa.types.is_nested(data_type) or pa.types.is_interval(data_type))


def _check_primary_keys(schema: pa.Schema, primary_keys: Sequence[str]) -> Iterable[str]:
    if not primary_keys:
        yield "there is no primary key column: name at least one"
    yield from _repeated("primary key", primary_keys)
    for column in dict.fromkeys(primary_keys):
        if column == PARTITION_STREAM_POSITION:
            yield f"{column!r} cannot be a primary key: it is the virtual column of stream positions"
        elif schema.names.count(column) != 1:
            yield _not_there_once("primary key", column, schema)
        elif not is_key_type(schema.field(column).type):
            yield f"primary key column {column!r} has type {schema.field(column).type}: keys cannot be nested"


def _check_sort_keys(schema: pa.Schema, sort_keys: Sequence[SortKey]) -> Iterable[str]:
    yield from _repeated("sort key", [key.column for key in sort_keys])
    widths: dict[str, int] = {}
    for key in sort_keys:
        if key.column == PARTITION_STREAM_POSITION:
            widths[key.column] = STREAM_POSITION_BYTES
        elif schema.names.count(key.column) != 1:
            yield _not_there_once("sort key", key.column, schema)
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


def _repeated(kind: str, columns: Sequence[str]) -> Iterable[str]:
    for column in dict.fromkeys(columns):
        if columns.count(column) > 1:
            yield f"{kind} column {column!r} is named {columns.count(column)} times"


def _not_there_once(kind: str, column: str, schema: pa.Schema) -> str:
    if column in schema.names:
        return f"{kind} column {column!r} stands {schema.names.count(column)} times in the data: names must be unique"
    nearest = difflib.get_close_matches(column, schema.names, n=1)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"the columns are {', '.join(map(repr, schema.names))}"
    return f"there is no {kind} column {column!r} in the data: {hint}"
