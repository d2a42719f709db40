"""Statistics of a column's values: null counts and bounds, in a form that the log can store.

Only exact bounds are stored. Integers, finite floats, booleans and short text are stored as they are; dates, times and
timestamps as ISO 8601 (a timestamp with a zone in UTC, with a `Z`), decimals as their digits. The bounds of a float
column do not cover NaN; nested columns, bytes and durations have no bounds.
"""

import json
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from types import MappingProxyType

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from compactor.model.files import ColumnStats, Scalar

TEXT_BOUND_BYTES_MAX = 63
"""Longer text is not stored: some writers truncate statistics at 64 bytes without a note, and the log stays small."""

_PARQUET_UNITS: Mapping[str, str] = MappingProxyType({"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"})


# ------------------------------------------------------------------------------------------------- from a footer


def parquet_column_stats(
    metadata: pq.FileMetaData, schema: pa.Schema, row_group_numbers: Sequence[int] | None = None
) -> dict[str, ColumnStats]:
    """Statistics of each top-level column that is not nested, from those of its chunks (None: in all row groups)."""
    positions = {metadata.schema.column(position).path: position for position in range(metadata.num_columns)}
    numbers = range(metadata.num_row_groups) if row_group_numbers is None else row_group_numbers
    row_groups = [metadata.row_group(number) for number in numbers]
    found = {}
    for field in schema:
        position = positions.get(field.name)
        if position is None or pa.types.is_nested(field.type):
            continue
        found[field.name] = _merged(field.type, [row_group.column(position) for row_group in row_groups])
    return found


def _merged(arrow_type: pa.DataType, chunks: Iterable[pq.ColumnChunkMetaData]) -> ColumnStats:
    """The column has no statistics if one of its chunks has none."""
    nulls: int | None = 0
    lows: list[_Bound] | None = []
    highs: list[_Bound] | None = []
    for chunk in chunks:
        stats = chunk.statistics if chunk.is_stats_set else None
        null_count = stats.null_count if stats is not None and stats.has_null_count else None
        nulls = None if nulls is None or null_count is None else nulls + null_count
        if null_count is not None and null_count == chunk.num_values:
            continue
        bounded = stats if stats is not None and stats.has_min_max else None
        low = _parquet_bound(bounded, "min", arrow_type) if bounded is not None else None
        high = _parquet_bound(bounded, "max", arrow_type) if bounded is not None else None
        lows = None if lows is None or low is None else [*lows, low]
        highs = None if highs is None or high is None else [*highs, high]
    return ColumnStats(
        null_count=nulls,
        min_value=min(lows, key=lambda bound: bound.rank).value if lows else None,
        max_value=max(highs, key=lambda bound: bound.rank).value if highs else None,
    )


@dataclass(frozen=True)
class _Bound:
    """A bound as the log stores it, with the value to compare it by."""

    rank: Scalar | Decimal | bytes
    value: Scalar


def _parquet_bound(stats: pq.Statistics, end: str, arrow_type: pa.DataType) -> _Bound | None:
    """One bound ("min" or "max") of a chunk's values, by its logical type in Parquet."""
    kind = "NONE" if stats.logical_type is None else stats.logical_type.type
    if kind in ("NONE", "INT"):
        value = getattr(stats, end)
        # Parquet stores durations as integers; bytes have no order that readers agree on.
        return None if pa.types.is_duration(arrow_type) or isinstance(value, bytes) else _plain_bound(value)
    raw = getattr(stats, f"{end}_raw")
    if kind == "STRING":
        return _text_bound(raw)
    logical = json.loads(stats.logical_type.to_json())
    meaning = logical.get("Type", "None")
    if meaning == "Float16":
        return _plain_bound(struct.unpack("<e", raw)[0])
    if meaning == "Decimal":
        unscaled = int.from_bytes(raw, "big", signed=True) if isinstance(raw, bytes) else int(raw)
        return _decimal_bound(Decimal(f"{unscaled}E{-int(logical['scale'])}"))
    return _parquet_temporal_bound(logical, raw)


def _parquet_temporal_bound(logical: Mapping[str, str | bool], raw: int) -> _Bound | None:
    unit = _PARQUET_UNITS.get(str(logical.get("timeUnit")), "ms")
    match logical["Type"]:
        case "Date":
            return _temporal_bound(raw, pa.int32(), pa.date32())
        case "Timestamp":
            return _temporal_bound(raw, pa.int64(), pa.timestamp(unit, "UTC" if logical["isAdjustedToUTC"] else None))
        case "Time" if unit == "ms":
            return _temporal_bound(raw, pa.int32(), pa.time32(unit))
        case "Time":
            return _temporal_bound(raw, pa.int64(), pa.time64(unit))
        case _:
            return None


def _plain_bound(value: Scalar) -> _Bound | None:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return _Bound(value, value)


def _text_bound(raw: bytes) -> _Bound | None:
    """Text is ordered by its UTF-8 bytes."""
    if len(raw) > TEXT_BOUND_BYTES_MAX:
        return None
    try:
        return _Bound(raw, raw.decode())
    except UnicodeDecodeError:
        return None


def _decimal_bound(value: Decimal) -> _Bound:
    return _Bound(value, f"{value:f}")


def _temporal_bound(raw: int, physical: pa.DataType, arrow_type: pa.DataType) -> _Bound | None:
    """ISO 8601, rendered by PyArrow because of nanoseconds; years without exactly four digits have no bound."""
    scalar = pa.scalar(raw, physical).cast(arrow_type)
    text = scalar.cast(pa.string()).as_py().replace(" ", "T")
    if not pa.types.is_time(arrow_type) and (len(text) < 5 or text[4] != "-" or not text[:4].isdigit()):
        return None
    return _Bound(raw, text)


# ------------------------------------------------------------------------------------------------- from the rows


class RunningStats:
    """Null counts, and bounds of the types for which they are cheap, of all rows that were added."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._nulls = dict.fromkeys(schema.names, 0)
        self._lows: dict[str, _Bound] = {}
        self._highs: dict[str, _Bound] = {}

    def add(self, table: pa.Table) -> None:
        for field in self._schema:
            column = table.column(field.name)
            self._nulls[field.name] += column.null_count
            if not _is_cheap(field.type) or column.null_count == len(column):
                continue
            extremes = pc.min_max(column)
            low, high = _arrow_bound(extremes["min"]), _arrow_bound(extremes["max"])
            if low is not None:
                self._lows[field.name] = min(low, self._lows.get(field.name, low), key=lambda bound: bound.rank)
            if high is not None:
                self._highs[field.name] = max(high, self._highs.get(field.name, high), key=lambda bound: bound.rank)

    def column_stats(self) -> dict[str, ColumnStats]:
        return {
            name: ColumnStats(
                null_count=nulls,
                min_value=self._lows[name].value if name in self._lows else None,
                max_value=self._highs[name].value if name in self._highs else None,
            )
            for name, nulls in self._nulls.items()
        }


def _is_cheap(arrow_type: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(arrow_type) or pa.types.is_boolean(arrow_type) or pa.types.is_date(arrow_type)
    ) or bool(pa.types.is_timestamp(arrow_type))


def _arrow_bound(scalar: pa.Scalar) -> _Bound | None:
    arrow_type = scalar.type
    if pa.types.is_timestamp(arrow_type):
        return _temporal_bound(
            scalar.value, pa.int64(), pa.timestamp(arrow_type.unit, None if arrow_type.tz is None else "UTC")
        )
    if pa.types.is_date64(arrow_type):
        return _temporal_bound(scalar.value // 86_400_000, pa.int32(), pa.date32())
    if pa.types.is_date(arrow_type):
        return _temporal_bound(scalar.value, pa.int32(), pa.date32())
    return _plain_bound(scalar.as_py())
