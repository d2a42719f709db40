"""When compacted files are rewritten, older index runs get new pointers, or give their rows to the new run."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pytest

from compactor import DeltaCatalog, compact
from compactor.catalog.keys import StreamFolder
from compactor.index.files import IndexTarget
from compactor.index.packed_pointers import PACKED_ROWS_MIN
from compactor.lake import Table
from compactor.maintenance.garbage import delete_garbage, find_garbage
from compactor.model.errors import Corrupt
from compactor.model.files import IndexPointers
from compactor.planning import round_planner
from tests.builders import CompactedSide, audit
from tests.fakes.manual_clock import ManualClock
from tests.fakes.unruly_engine import UnrulyEngine

ORDERS = "ACME.ORDERS.V1"
KEYS = range(1_000)
EVERY_TENTH = KEYS[::10]
THE_FIRST_TEN = KEYS[:10]
GRACE_SECONDS = 7 * 24 * 3600


@pytest.fixture(params=[False, True], ids=["small files", "every other index packed"])
def orders(lake: DeltaCatalog, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Table:
    """A thousand rows in ten files; the index is one run. Files with so few rows are not packed, unless they are told
    to be: then the first run is, what the second round writes is not, and so on."""
    if request.param:
        monkeypatch.setattr(round_planner, "IndexTarget", _packed_in_turn)
    orders = lake.create_table(ORDERS)
    for start in KEYS[::100]:
        orders.append({}, rows_of(KEYS[start : start + 100], 1))
    compact_all(lake)
    return orders


def _packed_in_turn(stream: StreamFolder, index_version: int, commit_id: str, rows_per_file: int) -> IndexTarget:
    packed_rows_min = 0 if index_version % 2 else PACKED_ROWS_MIN
    return IndexTarget(stream, index_version, commit_id, rows_per_file, packed_rows_min)


def rows_of(keys: Iterable[int], time: int) -> pa.Table:
    return pa.table([(pa.array(keys, pa.int64())), pa.array([time for _ in keys])], names=["id", "time"])


def compact_all(lake: DeltaCatalog, hash_bucket_count: int = 2) -> None:
    compact(
        ORDERS,
        {"id"},
        [("time", "ascending")],
        delta_catalog_client=lake,
        hash_bucket_count=hash_bucket_count,
        rows_per_compacted_file=100,
        engine=UnrulyEngine(),
    )


def update(lake: DeltaCatalog, orders: Table, keys: Iterable[int], time: int) -> None:
    orders.append({}, rows_of(keys, time))
    compact_all(lake)


def pointers_of_base(lake: DeltaCatalog) -> list[IndexPointers | None]:
    """What holds in place of the pointers of the first run's files, by bucket."""
    return [file.pointers for file in CompactedSide.of(lake, ORDERS).stream.index_files if file.run == 1]


def times(orders: Table) -> dict[int, int]:
    return {row["id"]: row["time"] for row in orders.scan().to_table().to_pylist()}


def test_a_run_of_which_many_rows_moved_gets_new_pointers_and_keeps_its_digests(
    lake: DeltaCatalog, orders: Table
) -> None:
    update(lake, orders, EVERY_TENTH, 2)
    first = pointers_of_base(lake)
    assert len(first) == 2
    assert all(first)
    side = CompactedSide.of(lake, ORDERS)
    audit(side)
    assert sum(file.rows for file in side.stream.index_files if file.run != 1) == len(EVERY_TENTH)
    assert times(orders) == dict.fromkeys(KEYS, 1) | dict.fromkeys(EVERY_TENTH, 2)
    assert [orders.lookup({}, {"id": key}) for key in (10, 11)] == [{"id": 10, "time": 2}, {"id": 11, "time": 1}]
    assert orders.lookup({}, {"id": len(KEYS)}) is None


def test_rows_that_move_again_move_from_where_they_moved_to(lake: DeltaCatalog, orders: Table) -> None:
    update(lake, orders, EVERY_TENTH, 2)
    first = pointers_of_base(lake)
    update(lake, orders, KEYS[5::10], 3)
    second = pointers_of_base(lake)
    assert all(second)
    assert not set(map(repr, first)) & set(map(repr, second))
    audit(CompactedSide.of(lake, ORDERS))
    assert times(orders) == dict.fromkeys(KEYS, 1) | dict.fromkeys(EVERY_TENTH, 2) | dict.fromkeys(KEYS[5::10], 3)


def test_the_index_of_a_test_is_packed_where_it_says_so(
    lake: DeltaCatalog, orders: Table, request: pytest.FixtureRequest
) -> None:
    update(lake, orders, EVERY_TENTH, 2)
    update(lake, orders, KEYS[5::10], 3)
    is_packed = "packed" in request.node.callspec.id
    files = CompactedSide.of(lake, ORDERS).stream.index_files
    assert {file.are_packed for file in files if file.run == 1} == {is_packed}
    assert {file.pointers.are_packed for file in files if file.pointers is not None} == {is_packed}


def test_the_new_run_takes_over_the_rows_that_moved_where_they_are_few(lake: DeltaCatalog, orders: Table) -> None:
    update(lake, orders, THE_FIRST_TEN, 2)
    assert pointers_of_base(lake) == [None, None]
    side = CompactedSide.of(lake, ORDERS)
    audit(side)
    assert sum(file.rows for file in side.stream.index_files if file.run != 1) == 100


def test_a_run_with_new_pointers_is_absorbed_and_rehashed_like_any_other(lake: DeltaCatalog, orders: Table) -> None:
    update(lake, orders, EVERY_TENTH, 2)
    update(lake, orders, KEYS[:600], 3)
    assert pointers_of_base(lake) == []
    audit(CompactedSide.of(lake, ORDERS))
    update(lake, orders, EVERY_TENTH, 4)
    orders.append({}, rows_of(THE_FIRST_TEN, 5))
    compact_all(lake, hash_bucket_count=3)
    side = CompactedSide.of(lake, ORDERS)
    assert {file.hash_bucket for file in side.stream.index_files} == {0, 1, 2}
    audit(side)
    expected = dict.fromkeys(KEYS, 1) | dict.fromkeys(KEYS[:600], 3)
    assert times(orders) == expected | dict.fromkeys(EVERY_TENTH, 4) | dict.fromkeys(THE_FIRST_TEN, 5)


def test_pointers_are_garbage_when_others_have_replaced_them(
    lake: DeltaCatalog, orders: Table, clock: ManualClock
) -> None:
    update(lake, orders, EVERY_TENTH, 2)
    replaced = {each.path for each in pointers_of_base(lake) if each is not None}
    update(lake, orders, KEYS[5::10], 3)
    current = {each.path for each in pointers_of_base(lake) if each is not None}
    clock.sleep(GRACE_SECONDS + 3_600)  # files bear the time of the file system, which has gone on
    [garbage] = find_garbage(lake.store, ORDERS, clock, GRACE_SECONDS)
    keys = {file.key for file in garbage.garbage}
    assert replaced <= keys
    assert not current & keys
    assert garbage.unknown == ()
    delete_garbage(lake.store, garbage)
    audit(CompactedSide.of(lake, ORDERS))


def test_pointers_that_are_damaged_are_never_followed(lake: DeltaCatalog, orders: Table) -> None:
    update(lake, orders, EVERY_TENTH, 2)
    side = CompactedSide.of(lake, ORDERS)
    [pointers, _] = pointers_of_base(lake)
    assert pointers is not None
    path = side.path_of(pointers)
    table = pa.ipc.open_file(pa.BufferReader(path.read_bytes())).read_all()
    beyond = table.set_column(1, table.schema.field(1), pa.array([10_000] * len(table), pa.int64()))
    nowhere = table.set_column(0, table.schema.field(0), pa.array([10_000] * len(table), pa.int32()))
    assert 1 not in side.stream.files
    gone = table.set_column(0, table.schema.field(0), pa.array([1] * len(table), pa.int32()))
    orders.append({}, rows_of(KEYS[5::10], 3))
    damages = [
        *((each, "is damaged: its CRC-32") for each in (beyond, nowhere, gone)),
        (table.slice(1), "the log says"),
    ]
    for damaged, reason in damages:
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, damaged.schema) as writer:
            writer.write_batch(damaged.combine_chunks().to_batches()[0])
        with pytest.raises(Corrupt, match=reason):
            compact_all(lake)
