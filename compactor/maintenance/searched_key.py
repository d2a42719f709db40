"""The key of a proof (`privacy.py`): its columns with their types, and its values in the forms of files, index and
logs."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from compactor.catalog.partition_transforms import is_text
from compactor.catalog.snapshot import CompactedStream
from compactor.catalog.stream import PartitionStream
from compactor.catalog.tables import Table
from compactor.kernels.canonical import canonical_column
from compactor.kernels.digest import digest_keys
from compactor.model.arrow_types import decoded_type, stored_values, value_type
from compactor.model.errors import Invalid
from compactor.model.files import ColumnStats, DataFile, Scalar
from compactor.model.names import PartitionValues
from compactor.schemas.unify import parse_schema

KeyValues: TypeAlias = Mapping[str, object]
Comparable: TypeAlias = Scalar | Decimal
"""A bound as it compares: equal for equal values, whatever unit or scale they were written with."""

_DAY, _TIME = r"\d{4}-\d\d-\d\d", r"\d\d:\d\d:\d\d(\.\d+)?"
_ISO_8601 = (
    (pa.types.is_date, re.compile(_DAY)),
    (pa.types.is_time, re.compile(_TIME)),
    (pa.types.is_timestamp, re.compile(f"{_DAY}[T ]{_TIME}Z?")),
)


@dataclass(frozen=True)
class SearchedKey:
    """The key in the forms of files, index and logs. `bounds`: its values as bounds, if their types have any."""

    columns: tuple[str, ...]
    schema: pa.Schema
    digests: npt.NDArray[np.uint32]
    bounds: Mapping[str, Comparable]

    def has(self, name: str, bound: Scalar) -> bool | None:
        """Whether a bound of a key column is the key's value. None: it cannot be read as the column's type."""
        value = _comparable(bound, value_type(self.schema.field(name).type))
        return None if value is None else value == self.bounds.get(name)

    @property
    def digest(self) -> bytes:
        return self.digests.byteswap().tobytes()


def compacted_or_dropped(stream: PartitionStream) -> CompactedStream | None:
    """The compacted side; of a dropped partition, the one that was dropped."""
    at = stream.load()
    number = at.entry_number
    while at.state.is_dropped and number > 1:
        number -= 1
        at = stream.load(as_of=number)
    return at.state.compacted


def key_schema_of(tables: Sequence[Table], partition: PartitionValues) -> pa.Schema:
    """The key columns with their types, from the first table that has them."""
    columns = key_columns_of(tables, partition)
    if columns == ():
        raise Invalid(
            f"{tables[0].table_id} has no key (primary_keys is empty), so no row can be deleted or searched by one: "
            "its rows leave with their partition (lithify table drop)"
        )
    for table in tables:
        known = _known_schema(table, partition)
        names = known.names if columns is None else columns
        if names and set(names) <= set(known.names):
            return pa.schema([pa.field(name, decoded_type(known.field(name).type)) for name in sorted(names)])
    raise Invalid(f"{tables[0].table_id} has no rows here, so that the types of its key are not known")


def _known_schema(table: Table, partition: PartitionValues) -> pa.Schema:
    stream = table.stream(partition)
    compacted = compacted_or_dropped(stream)
    if stream.load().state.is_dropped and compacted is not None:
        return parse_schema(compacted.last_round.compacted_schema)
    return table.known_schema([partition])


def key_columns_of(tables: Sequence[Table], partition: PartitionValues) -> tuple[str, ...] | None:
    """None: no property has them, and nothing was compacted."""
    for table in tables:
        compacted = compacted_or_dropped(table.stream(partition))
        own = table.properties.primary_keys
        found = own if own is not None else (compacted.primary_keys if compacted is not None else None)
        if found is not None:
            return found
    return None


def searched_key(schema: pa.Schema, key: KeyValues, *, is_known: bool) -> SearchedKey:
    """Raises `Invalid` for a key with other columns than the table's, or values of other types."""
    columns = tuple(sorted(key))
    if not key or not set(key) <= set(schema.names) or (is_known and set(key) != set(schema.names)):
        raise Invalid(f"the key has columns {list(columns)}, but the table's key is {', '.join(schema.names)}")
    types = pa.schema([schema.field(name) for name in columns])
    try:
        row = pa.table({name: pa.array([key[name]], types.field(name).type) for name in columns}, schema=types)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise Invalid(f"the key does not have the types of its columns: {error}") from error
    digests = digest_keys([canonical_column(name, row.column(name)) for name in columns], 1)
    return SearchedKey(columns, types, digests, _bounds_of(row))


def _bounds_of(row: pa.Table) -> dict[str, Comparable]:
    found = {}
    for name in row.schema.names:
        values = stored_values(row.column(name).chunk(0))
        kind = values.type
        if pa.types.is_timestamp(kind):
            values = values.cast(pa.timestamp(kind.unit))  # bounds are in UTC
        if pa.types.is_temporal(kind):
            values = values.cast(pa.string())  # Python has no nanoseconds
        found[name] = _comparable(values[0].as_py(), kind)
    return {name: value for name, value in found.items() if value is not None}


def _comparable(bound: object, kind: pa.DataType) -> Comparable | None:
    """None: it is no bound of a value of this type."""
    if isinstance(bound, int | float):
        is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
        return bound if is_number else None
    if pa.types.is_decimal(kind):
        try:
            found = Decimal(str(bound))
        except InvalidOperation:
            return None
        return found if found.is_finite() else None
    if not isinstance(bound, str) or is_text(kind):
        return bound if isinstance(bound, str) else None
    if not any(is_one(kind) and form.fullmatch(bound) for is_one, form in _ISO_8601):
        return None
    whole, point, fraction = bound.replace(" ", "T").removesuffix("Z").partition(".")
    return (whole + point + fraction.rstrip("0")).removesuffix(".")


def may_have(file: DataFile, key: SearchedKey) -> bool:
    """Whether the key is within the bounds of the file's key columns. Missing bounds exclude nothing."""
    return all(_is_within(value, file.columns.get(name, ColumnStats())) for name, value in key.bounds.items())


def _is_within(value: Comparable, stats: ColumnStats) -> bool:
    least, greatest = stats.min_value, stats.max_value
    if isinstance(value, int) and isinstance(least, int) and isinstance(greatest, int):
        return least <= value <= greatest
    return True  # a text bound may be a date or a number, which have another order
