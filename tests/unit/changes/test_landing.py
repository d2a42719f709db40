"""Small files and messages that land together are divided as each of them is by itself."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compactor.catalog.delta_files import FileVersion
from compactor.catalog.partition_split import Partitioning
from compactor.catalog.properties import TableProperties
from compactor.catalog.tables import Table
from compactor.changes.landing import LandedSource, divide, divide_together
from compactor.changes.sources import FeedSource

COLUMNS = pa.schema([("id", pa.int64()), ("day", pa.string()), ("paid", pa.float64())])
ROW = st.fixed_dictionaries(
    {"id": st.integers(0, 9), "day": st.sampled_from(["1", "2", "3"])},
    optional={"paid": st.sampled_from([None, 0.5, 2])},
)


@dataclass
class DividedTable:
    partitioning: Partitioning
    schema: pa.Schema | None = COLUMNS
    table_id: str = "SHOP.ORDERS.V1"
    properties: TableProperties = field(default_factory=TableProperties)


def landed(number: int, rows: list[dict[str, object]], *, is_message: bool) -> LandedSource:
    if is_message:
        lines = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
        return LandedSource(f"message {number}", FeedSource(f"rows {number}", lines))
    found = pa.Table.from_pylist(rows, COLUMNS)
    return LandedSource(
        f"s3://b/{number}@v", FeedSource(f"s3://b/{number}", found), FileVersion("1 1", "v"), f"0{number}"
    )


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.lists(ROW, min_size=1, max_size=4), st.booleans()), min_size=1, max_size=6),
    st.sampled_from([(), ("day",), ("day", "id")]),
    st.booleans(),
)
def test_what_lands_together_is_divided_as_each_by_itself(
    batches: list[tuple[list[dict[str, object]], bool]], keys: tuple[str, ...], is_declared: bool
) -> None:
    table: Table = DividedTable(Partitioning(keys), COLUMNS if is_declared else None)  # type: ignore[assignment]
    sources = [landed(at, rows, is_message=is_message) for at, (rows, is_message) in enumerate(batches)]
    assert divide_together(table, sources) == [divide(table, each) for each in sources]


@pytest.mark.parametrize(
    "other", [{"id": 1, "day": "1", "more": 1}, {"id": "one", "day": "1"}, {"id": 1, "day": None}], ids=str
)
def test_what_cannot_be_divided_is_left_for_each_by_itself(other: dict[str, object]) -> None:
    table: Table = DividedTable(Partitioning(("day",)))  # type: ignore[assignment]
    sources = [landed(at, [row], is_message=True) for at, row in enumerate([{"id": 1, "day": "1"}, other])]
    assert divide_together(table, sources) is None
