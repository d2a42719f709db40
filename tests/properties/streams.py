"""Random tables and deltas in which everything that the rules name happens often: ties, nulls, NaN, late older rows,
deletes with and without sort values, re-inserts, empty deltas, columns that come and go, the same values in files of
other types and units, nulls at every depth of nested values.

Keys and sort values are drawn from a few values per type, so that rows meet. A column `row` numbers every row ever
drawn: two rows are never alike, so a wrong survivor is always seen.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal

import pyarrow as pa
from hypothesis import strategies as st

from compactor.catalog.table_appends import Delta
from compactor.lake import Table
from compactor.model.errors import Invalid
from compactor.model.names import ContentType, Operation
from compactor.tabular import stored_schema
from tests.oracle import OracleDelta, Row

NAN = float("nan")
LONG_AGO, LATELY = dt.datetime.fromisoformat("1960-01-01"), dt.datetime.fromisoformat("2024-01-01")
"""Without a time zone."""

KEY_POOLS: Mapping[pa.DataType, Sequence[object]] = {
    pa.int64(): [0, 1, -1, 2**40, None],
    pa.uint8(): [0, 1, 255, None],
    pa.string(): ["", "a", "ab", "ä", None],
    pa.large_string(): ["", "x" * 70, None],
    pa.float64(): [0.0, -0.0, 1.5, NAN, None],
    pa.decimal128(9, 2): [Decimal("1.50"), Decimal("-0.01"), None],
    pa.bool_(): [True, False, None],
    pa.binary(): [b"", b"\x00", b"\xff\xff\xff\xff", None],
    pa.date32(): [dt.date(1969, 12, 31), dt.date(2024, 2, 29), None],
    pa.timestamp("us", "Asia/Tokyo"): [
        dt.datetime(1960, 1, 1, 1, tzinfo=dt.UTC),
        dt.datetime(2024, 1, 1, 0, 0, 0, 1, tzinfo=dt.UTC),
        None,
    ],
    pa.timestamp("s"): [LONG_AGO, LATELY, None],
    pa.timestamp("ns"): [LONG_AGO.replace(microsecond=1), LATELY, None],
    pa.date64(): [dt.date(1969, 12, 31), dt.date(2024, 2, 29), None],
    pa.time32("s"): [dt.time(0, 0), dt.time(23, 59, 59), None],
    pa.time64("us"): [dt.time(0, 0), dt.time(23, 59, 59, 999_999), None],
    pa.duration("ms"): [dt.timedelta(0), dt.timedelta(milliseconds=-1), dt.timedelta(days=1), None],
    pa.dictionary(pa.int32(), pa.string()): ["", "a", "b", None],
}
PAYLOAD_POOLS: Mapping[pa.DataType, Sequence[object]] = {
    pa.list_(pa.int64()): [None, [], [None], [1, None, 2]],
    pa.list_(pa.struct({"a": pa.int64(), "b": pa.string()})): [None, [], [None, {"a": None, "b": ""}]],
    pa.struct({"a": pa.int64(), "b": pa.list_(pa.string())}): [
        None,
        {"a": None, "b": None},
        {"a": 1, "b": [None, ""]},
    ],
    pa.map_(pa.string(), pa.int64()): [None, [], [("", None), ("k", 1)]],
    pa.timestamp("s", "UTC"): [dt.datetime(2024, 1, 1, tzinfo=dt.UTC), None],
    pa.time32("ms"): [dt.time(1, 2, 3, 4_000), None],
    pa.duration("s"): [dt.timedelta(seconds=1), None],
    pa.float32(): [0.0, -0.0, 1.5, NAN, None],
}
SORT_POOLS: Mapping[pa.DataType, Sequence[object]] = {
    pa.int64(): [-(2**31), 0, 7, None],
    pa.uint64(): [0, 2**63, None],
    pa.float64(): [float("-inf"), -0.0, 0.0, 1.5, NAN, None],
    pa.float32(): [-1.5, 0.0, NAN, None],
    pa.decimal128(9, 2): [Decimal("1.50"), Decimal("-2.00"), None],
    pa.bool_(): [True, False, None],
    pa.timestamp("ms", "UTC"): [
        dt.datetime(1960, 1, 1, tzinfo=dt.UTC),
        dt.datetime(2024, 1, 1, tzinfo=dt.UTC),
        None,
    ],
    pa.timestamp("s"): [LONG_AGO, LATELY, None],
    pa.time64("ns"): [dt.time(0, 0), dt.time(23, 59, 59, 999_999), None],
    pa.duration("us"): [dt.timedelta(0), dt.timedelta(microseconds=-1), None],
    pa.binary(2): [b"ab", b"b\x00", None],
}
POSITION = "partition_stream_position"
NARROWER = {
    pa.int64(): pa.int32(),
    pa.float64(): pa.float32(),
    pa.decimal128(9, 2): pa.decimal128(5, 2),
    pa.string(): pa.dictionary(pa.int32(), pa.string()),
    pa.large_string(): pa.string(),
    pa.timestamp("us", "Asia/Tokyo"): pa.timestamp("ms", "UTC"),
    pa.timestamp("ns"): pa.timestamp("s"),
    pa.date64(): pa.date32(),
    pa.time64("us"): pa.time32("s"),
    pa.time64("ns"): pa.time64("us"),
    pa.duration("ms"): pa.duration("s"),
    pa.duration("us"): pa.duration("ms"),
    pa.list_(pa.int64()): pa.list_(pa.int32()),
    pa.map_(pa.string(), pa.int64()): pa.map_(pa.string(), pa.int32()),
}
"""Types that widen to a table's own, as the rules of survival allow, where all values of a column fit."""


@dataclass(frozen=True)
class Shape:
    """What a random table looks like. `sort_keys` empty: by stream position, as is the default."""

    key_types: Mapping[str, pa.DataType]
    sort_types: Mapping[str, pa.DataType]
    sort_keys: tuple[tuple[str, str], ...]
    payload_types: Mapping[str, pa.DataType]

    @property
    def schema(self) -> pa.Schema:
        named = {"row": pa.int64(), "note": pa.string()}
        return pa.schema(list({**self.key_types, **self.sort_types, **self.payload_types, **named}.items()))

    @property
    def primary_keys(self) -> list[str]:
        return list(self.key_types)


@dataclass(frozen=True)
class StreamDelta:
    """One delta: its rows, the columns that its files have, and how many rows go into a file.

    narrow  its columns have narrower types than the table's, where their values fit
    """

    operation: Operation
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    rows_per_file: int
    content_type: ContentType
    narrow: bool

    def table(self, shape: Shape) -> pa.Table:
        schema = pa.schema([shape.schema.field(name) for name in self.columns])
        table = pa.Table.from_pylist([dict(row) for row in self.rows], schema=schema)
        return _narrowed(table) if self.narrow else table

    def append_to(self, table: Table, shape: Shape, position: int) -> Delta:
        return table.append(
            {}, self.table(shape), self.operation, position, None, self.content_type, rows_per_file=self.rows_per_file
        )

    @property
    def files(self) -> list[tuple[Row, ...]]:
        starts = range(0, max(len(self.rows), 1), self.rows_per_file)
        return [self.rows[start : start + self.rows_per_file] for start in starts]

    def for_oracle(self, position: int) -> OracleDelta:
        return position, self.operation, self.files


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    key_types = draw(st.lists(st.sampled_from(list(KEY_POOLS)), min_size=1, max_size=3))
    sort_types = draw(st.lists(st.sampled_from(list(SORT_POOLS)), max_size=2))
    payload_types = draw(st.lists(st.sampled_from(list(PAYLOAD_POOLS)), max_size=2))
    orders = [draw(st.sampled_from(["ascending", "descending"])) for _ in sort_types]
    sort_keys = [(f"s{number}", order) for number, order in enumerate(orders)]
    if len(sort_types) < 2 and draw(st.integers(0, 5)) == 0:  # three might take more than 32 bytes
        sort_keys.insert(
            draw(st.integers(0, len(sort_keys))), (POSITION, draw(st.sampled_from(["ascending", "descending"])))
        )
    return Shape(
        key_types={f"k{number}": kind for number, kind in enumerate(key_types)},
        sort_types={f"s{number}": kind for number, kind in enumerate(sort_types)},
        sort_keys=tuple(sort_keys),
        payload_types={f"p{number}": kind for number, kind in enumerate(payload_types)},
    )


@st.composite
def stream_deltas(
    draw: st.DrawFn,
    shape: Shape,
    first_row: int,
    complete: bool = False,
    content_types: Sequence[ContentType] = (ContentType.PARQUET, ContentType.PARQUET, ContentType.FEATHER),
) -> StreamDelta:
    """A delta whose rows are numbered from `first_row`. `complete`: an upsert that has every column.

    content_types  of its files, where they can hold the columns
    """
    operation = (
        Operation.UPSERT if complete else draw(st.sampled_from([Operation.UPSERT, Operation.UPSERT, Operation.DELETE]))
    )
    columns = shape.schema.names
    if operation is Operation.DELETE:
        with_sort_values = draw(st.booleans())
        columns = [*shape.key_types, *(shape.sort_types if with_sort_values else ())]
    elif not complete:
        left_out = draw(st.sampled_from([(), (), (), ("note",), tuple(shape.sort_types)[:1]]))
        columns = [name for name in columns if name not in left_out]
    pools = {
        **_pools(shape.key_types, KEY_POOLS),
        **_pools(shape.sort_types, SORT_POOLS),
        **_pools(shape.payload_types, PAYLOAD_POOLS),
    }
    rows = []
    for number in range(draw(st.integers(0, 5))):
        row: dict[str, object] = {name: draw(st.sampled_from(pools[name])) for name in columns if name in pools}
        extra = {"row": first_row + number, "note": draw(st.sampled_from(["", "n", None]))}
        rows.append({**row, **{name: value for name, value in extra.items() if name in columns}})
    content_type = draw(st.sampled_from(content_types))
    schema = pa.schema([shape.schema.field(name) for name in columns])
    return StreamDelta(
        operation,
        tuple(columns),
        tuple(rows),
        rows_per_file=draw(st.sampled_from([1, 2, 100])),
        content_type=content_type if can_hold(content_type, schema) else ContentType.PARQUET,
        narrow=not complete and draw(st.booleans()),
    )


def can_hold(content_type: ContentType, schema: pa.Schema) -> bool:
    """Whether files of this format are written for these columns."""
    try:
        stored_schema(schema, content_type)
    except Invalid:
        return False
    return True


def _narrowed(table: pa.Table) -> pa.Table:
    for place, field in enumerate(table.schema):
        if field.type in NARROWER:
            with suppress(pa.ArrowInvalid):
                column = table.column(place).cast(NARROWER[field.type])
                table = table.set_column(place, field.with_type(column.type), column)
    return table


def _pools(
    types: Mapping[str, pa.DataType], pools: Mapping[pa.DataType, Sequence[object]]
) -> dict[str, Sequence[object]]:
    return {name: pools[kind] for name, kind in types.items()}


@st.composite
def streams(draw: st.DrawFn) -> tuple[Shape, list[StreamDelta]]:
    """A table and up to six deltas, the first of which has every column."""
    shape = draw(shapes())
    deltas: list[StreamDelta] = []
    for _ in range(draw(st.integers(1, 6))):
        first_row = sum(len(delta.rows) for delta in deltas)
        deltas.append(draw(stream_deltas(shape, first_row, complete=not deltas)))
    return shape, deltas
