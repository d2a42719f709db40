"""The key of a proof (`privacy.py`): its columns with their types, and its values in the forms of files, index and
logs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from compactor.catalog.snapshot import CompactedStream
from compactor.catalog.stream import PartitionStream
from compactor.catalog.tables import Table
from compactor.kernels.canonical import canonical_column
from compactor.kernels.digest import digest_keys
from compactor.model.arrow_types import decoded_type
from compactor.model.errors import Invalid
from compactor.model.files import ColumnStats, DataFile, Scalar
from compactor.model.names import PartitionValues
from compactor.schemas.unify import parse_schema
from compactor.tabular.bounds import RunningStats

KeyValues: TypeAlias = Mapping[str, object]


@dataclass(frozen=True)
class SearchedKey:
    """The key in the forms of files, index and logs. `bounds`: its values as bounds, if their types have any."""

    columns: tuple[str, ...]
    schema: pa.Schema
    digests: npt.NDArray[np.uint32]
    bounds: Mapping[str, Scalar]

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


def _bounds_of(row: pa.Table) -> dict[str, Scalar]:
    """The values in the log's form of bounds, without those of types that have no bounds."""
    running = RunningStats(row.schema)
    running.add(row)
    found = {name: stats.min_value for name, stats in running.column_stats().items()}
    for name in row.schema.names:
        value = row.column(name)[0].as_py()
        if isinstance(value, str | float):
            found[name] = value
        elif isinstance(value, Decimal):
            found[name] = f"{value:f}"
    return {name: value for name, value in found.items() if value is not None}


def may_have(file: DataFile, key: SearchedKey) -> bool:
    """Whether the key is within the bounds of the file's key columns. Missing bounds exclude nothing."""
    return all(_is_within(value, file.columns.get(name, ColumnStats())) for name, value in key.bounds.items())


def _is_within(value: Scalar, stats: ColumnStats) -> bool:
    least, greatest = stats.min_value, stats.max_value
    if isinstance(value, int) and isinstance(least, int) and isinstance(greatest, int):
        return least <= value <= greatest
    return True  # a text bound may be a date or a number, which have another order
