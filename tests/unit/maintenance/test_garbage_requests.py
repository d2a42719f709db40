"""What garbage collection asks of an object store, where each request takes a round trip."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from compactor.lake import DeltaCatalog
from compactor.maintenance.collection import Collection, GracePeriods
from compactor.maintenance.garbage import delete_garbage, find_garbage
from compactor.storage.location import StoreLocation
from tests.fakes.faulty_store import FaultyStore
from tests.fakes.manual_clock import ManualClock
from tests.fakes.memory_store import MemoryStore
from tests.keeper_world import ORDERS, KeeperWorld
from tests.many_files import StreamShape, write_streams

TABLE = "ACME.MANY.V1"
DAY_MINUTES = 1_440


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def remote(clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock, StoreLocation("s3://lake/x"))


def requests_of_a_look(shape: StreamShape, streams: int = 1) -> FaultyStore:
    clock = ManualClock()
    store = FaultyStore(remote(clock))
    write_streams(store, TABLE, streams, shape, clock)
    store.requests.clear()
    found = list(find_garbage(store, TABLE, clock))
    assert [len(each.garbage) for each in found] == [shape.garbage] * streams
    return store


@pytest.mark.parametrize("garbage", [0, 3])
def test_a_stream_costs_the_same_however_many_entries_it_has(garbage: int) -> None:
    few, many = (requests_of_a_look(StreamShape(old=5, garbage=garbage, recent=count)) for count in (70, 262))
    assert len(many.requests) <= len(few.requests) + 10 <= 40


def test_a_collection_finds_the_state_at_the_retention_s_begin_where_an_earlier_one_has_left_it() -> None:
    world, day, minutes = KeeperWorld(remote=False), {"day": "1"}, 60
    world.table(None, keys=("day",), gc_grace_seconds=DAY_MINUTES * minutes, retention_seconds=DAY_MINUTES * minutes)
    stream, store = world.lake.table(ORDERS).stream(day), FaultyStore(world.lake_store)
    for minute in range(DAY_MINUTES + 930):
        if minute in (900, DAY_MINUTES + 910):  # nothing retires at the first
            store.requests.clear()
            Collection(DeltaCatalog(store, world.clock), world.clock, GracePeriods(), deletes=True).collect(ORDERS)
        world.clock.sleep(minutes)
        world.append(partition=day)
        if minute % 10 == 0:
            world.compact(stream)
    entries = [key for verb, key in store.requests if verb == "read" and "/log/0" in key]
    assert len(entries) < 160


def test_files_are_listed_once_however_many_there_are() -> None:
    few, many = (requests_of_a_look(StreamShape(old=count, garbage=2, recent=1)) for count in (5, 900))
    assert len(few.requests) == len(many.requests)


class Meeting(FaultyStore):
    """Reads of certain keys, or deletes if there are none, wait until two of them are on their way at the same time;
    `met` says whether they were."""

    keys: tuple[str, ...] = ()

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.met = threading.Event()
        self._here = threading.Semaphore(1)

    def read(self, key: str) -> bytes | None:
        if key.endswith(self.keys):
            self._meet()
        return super().read(key)

    def delete_many(self, keys: Sequence[str]) -> dict[str, str]:
        if not self.keys:
            self._meet()
        return super().delete_many(keys)

    def _meet(self) -> None:
        if not self._here.acquire(blocking=False):
            self.met.set()
        elif not self.met.wait(timeout=10):
            self._here.release()


def test_streams_are_read_side_by_side(clock: ManualClock) -> None:
    store = Meeting(remote(clock))
    write_streams(store, TABLE, 2, StreamShape(old=1, garbage=1, recent=40), clock)
    store.keys = ("/_last_checkpoint",)
    assert {len(each.garbage) for each in find_garbage(store, TABLE, clock)} == {1}
    assert store.met.is_set()


def test_the_garbage_of_streams_is_deleted_side_by_side(clock: ManualClock) -> None:
    store = Meeting(remote(clock))
    lake = DeltaCatalog(store, clock)
    lake.create_table(TABLE, partition_keys=["number"])
    write_streams(store, TABLE, 3, StreamShape(old=1, garbage=2, recent=1), clock)
    collection = Collection(lake, clock, GracePeriods(), deletes=True)
    collection.collect(TABLE)
    assert (collection.failed, collection.deleted_files, collection.streams) == ([], 6, 3)
    assert store.met.is_set()


def test_a_thousand_files_are_deleted_in_a_request(clock: ManualClock) -> None:
    store = FaultyStore(remote(clock))
    write_streams(store, TABLE, 1, StreamShape(old=1, garbage=1_001, recent=1), clock)
    (garbage,) = find_garbage(store, TABLE, clock)
    store.requests.clear()
    assert delete_garbage(store, garbage) == {}
    assert [verb for verb, _ in store.requests] == ["delete_many"] * 2
    (after,) = find_garbage(store, TABLE, clock)
    assert (after.garbage, after.kept_files) == ((), garbage.kept_files)
