"""Many deltas are appended at once: one entry for each stream, idempotent by delta id."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from compactor.catalog.tables import DeltaCatalog, Table
from compactor.model.clock import SystemClock
from compactor.model.errors import Invalid, Unavailable
from compactor.storage.location import StoreLocation
from compactor.storage.object_store import ObjectStore
from tests.fakes.faulty_store import FaultyStore
from tests.fakes.memory_store import MemoryStore

ORDERS = "ACME.ORDERS.V1"
Appends = list[tuple[dict[str, str], pa.Table, str]]


@pytest.fixture
def lake(store: ObjectStore) -> DeltaCatalog:
    return DeltaCatalog(store, SystemClock())


@pytest.fixture
def memory(tmp_path: Path) -> FaultyStore:
    """For behaviour that does not depend on the store: tested once."""
    return FaultyStore(MemoryStore(SystemClock(), StoreLocation(f"file://{tmp_path}/memory")))


@pytest.fixture
def orders(memory: FaultyStore) -> Table:
    return DeltaCatalog(memory, SystemClock()).create_table(ORDERS)


def rows(key: int) -> pa.Table:
    return pa.table({"id": [key]})


def ids(table: Table, partition: dict[str, str] | None = None) -> list[str]:
    fresh = DeltaCatalog(table._store, SystemClock()).table(table.table_id)
    active = fresh.stream(partition or {}).load().state.active
    return [] if active is None else [delta.delta_id for delta in active.deltas]


def test_each_stream_gets_one_entry_and_the_answers_are_in_the_order_asked(lake: DeltaCatalog) -> None:
    days = lake.create_table(ORDERS, ["day"])
    appends: Appends = [
        ({"day": f"{number % 2}"}, rows(number), "delete" if number == 3 else "upsert") for number in range(6)
    ]
    added = days.append_many(appends, [f"delta {number}" for number in range(6)])
    assert [delta.delta_id for delta in added] == [f"delta {number}" for number in range(6)]
    assert [delta.partition["day"] for delta in added] == ["0", "1", "0", "1", "0", "1"]
    assert [delta.operation for delta in added] == ["upsert"] * 3 + ["delete"] + ["upsert"] * 2
    for day, expected in (("0", [0, 2, 4]), ("1", [1, 3, 5])):
        log = days.stream({"day": day}).load()
        assert log.entry_number == 1
        assert ids(days, {"day": day}) == [f"delta {number}" for number in expected]
        deltas = log.state.sources[1].deltas
        assert [delta.position for delta in deltas] == sorted({delta.position for delta in deltas})


def test_those_that_were_appended_before_are_no_ops_with_the_same_answer(orders: Table) -> None:
    appends: Appends = [({}, rows(number), "upsert") for number in range(4)]
    names = [f"delta {number}" for number in range(4)]
    first = orders.append_many(appends[:2], names[:2])
    both = orders.append_many(appends, names)
    assert both[:2] == first
    assert orders.append_many(appends, names) == both
    assert orders.append({}, rows(3), delta_id="delta 3") == both[3]
    assert ids(orders) == names
    assert orders.stream({}).load().entry_number == 2


def test_one_that_cannot_be_appended_is_named_and_none_is(orders: Table) -> None:
    orders.append({}, rows(1), delta_id="before")
    bad = {
        "delta 2 of 3: the delta|delta 2 of 3: .*id": ({}, pa.table({"id": ["text"]}), "upsert"),
        "delta 2 of 3: 'remove' is no operation": ({}, rows(2), "remove"),
        "delta 2 of 3: 'day' is no partition key": ({"day": "1"}, rows(2), "upsert"),
        "delta 2 of 3: a delta cannot be made of a int": ({}, 7, "upsert"),
    }
    for reason, wrong in bad.items():
        with pytest.raises(Invalid, match=reason):
            orders.append_many([({}, rows(1), "upsert"), wrong, ({}, rows(3), "upsert")])
    with pytest.raises(Invalid, match="delta 2 of 2: delta id 'same' is given twice"):
        orders.append_many([({}, rows(1), "upsert")] * 2, ["same", "same"])
    with pytest.raises(Invalid, match="there are 1 deltas and 2 delta ids"):
        orders.append_many([({}, rows(1), "upsert")], ["a", "b"])
    with pytest.raises(Invalid, match="delta 1 of 1: delta id 'before' was already used, with other content"):
        orders.append_many([({}, rows(2), "upsert")], ["before"])
    assert ids(orders) == ["before"]


def test_columns_of_deltas_that_are_appended_together_must_agree(orders: Table) -> None:
    with pytest.raises(Invalid, match="id"):
        orders.append_many([({}, rows(1), "upsert"), ({}, pa.table({"id": ["text"]}), "upsert")])
    assert ids(orders) == []


def test_after_a_lost_answer_the_same_deltas_are_appended_again_and_stand_once(
    orders: Table, memory: FaultyStore
) -> None:
    appends: Appends = [({}, rows(number), "upsert") for number in range(3)]
    names = ["a", "b", "c"]
    memory.fail("put_if_absent", when="after", times=None)
    memory.fail("read", times=None)
    with pytest.raises(Unavailable):
        orders.append_many(appends, names)
    memory.heal()
    orders.append_many(appends, names)
    assert ids(orders) == names


def test_writers_that_append_many_at_the_same_time_all_succeed(memory: FaultyStore, orders: Table) -> None:
    def write(writer: int) -> None:
        table = DeltaCatalog(memory, SystemClock()).table(ORDERS)
        for batch in range(4):
            names = [f"{writer}.{batch}.{number}" for number in range(5)]
            table.append_many([({}, rows(writer), "upsert") for _ in names], names)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write, range(4)))
    found = ids(orders)
    assert len(found) == len(set(found)) == 80
    assert orders.stream({}).load().entry_number == 16
    own = [name for name in found if name.startswith("2.")]
    assert own == sorted(own)


def test_no_deltas_are_no_entry(orders: Table) -> None:
    assert orders.append_many([]) == []
    assert orders.stream({}).load().entry_number == 0
