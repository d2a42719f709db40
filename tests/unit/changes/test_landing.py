"""Small files and messages that land together are divided as each of them is by itself."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compactor.catalog.delta_files import FileVersion
from compactor.catalog.feed import Feed, FeedFormat
from compactor.catalog.partition_split import Partitioning
from compactor.catalog.properties import TableProperties
from compactor.catalog.tables import Table
from compactor.changes.landing import LandedSource, divide, divide_together
from compactor.changes.quarantine import Quarantine
from compactor.changes.sources import FeedSource
from compactor.model.errors import Invalid
from tests.fakes.manual_clock import ManualClock
from tests.fakes.memory_store import MemoryStore

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


DAMAGED = pa.Array.from_buffers(pa.string(), 3, pa.array([b"a", b"caf\xe9", b"c"]).buffers())
DAMAGED_COLUMNS: dict[str, tuple[pa.Array, object]] = {
    "text": (DAMAGED, "caf\ufffd"),
    "lists": (pa.ListArray.from_arrays([0, 1, 2, 3], DAMAGED), ["caf\ufffd"]),
    "structs": (pa.StructArray.from_arrays([DAMAGED], ["a"]), {"a": "caf\ufffd"}),
    "dictionary": (pa.DictionaryArray.from_arrays([0, 1, 2], DAMAGED), "caf\ufffd"),
}


@pytest.mark.parametrize("kind", DAMAGED_COLUMNS)
@pytest.mark.parametrize("changes", [None, Feed(format=FeedFormat.OPS)], ids=["rows", "ops"])
def test_a_row_of_which_a_text_is_not_utf_8_is_quarantined_and_named(kind: str, changes: Feed | None) -> None:
    column, change = DAMAGED_COLUMNS[kind]
    properties = TableProperties(primary_keys=("id",), changes=changes)
    table: Table = DividedTable(Partitioning(()), None, properties=properties)  # type: ignore[assignment]
    rows = pa.table({"id": [1, 2, 3], "note": column, "op": ["I", "I", "D"]})
    source = LandedSource("rows", FeedSource("s3://b/rows", rows), FileVersion("1 1", "v"))
    with pytest.raises(Invalid, match="s3://b/rows, row 2: column 'note' holds text that is not UTF-8"):
        divide(table, source)
    clock = ManualClock()
    store = MemoryStore(clock)
    found = divide(table, source, Quarantine(store, clock))
    assert (found.rows, found.quarantined_rows) == (2, 1)
    (entry,) = store.list("")
    assert json.loads(store.read(entry.key) or b"")["change"] == {"id": 2, "note": change, "op": "I"}


def test_a_row_of_a_message_that_is_not_utf_8_is_named_beside_numbers_beyond_64_bits() -> None:
    table: Table = DividedTable(Partitioning(()), None)  # type: ignore[assignment]
    lines = b'{"id": 99999999999999999999}\n{"id": 1, "note": "caf\xe9"}\n'
    with pytest.raises(Invalid, match="rows, row 2: column 'note' holds text that is not UTF-8"):
        divide(table, LandedSource("message", FeedSource("rows", lines)))
