"""The keeper of a table that is compacted into another one: its streams are that one's, its deltas its own."""

from __future__ import annotations

import json

import pyarrow as pa

from compactor import DeltaCatalog, compact
from compactor.planning.due import Due
from dispatcher.operations.table_lag import TABLE_LAG
from tests.fakes.faulty_store import FaultyStore
from tests.fakes.manual_clock import ManualClock
from tests.keeper_world import KeeperWorld

SOURCE, COPY = "ACME.ORDERS.V1", "ACME.COPY.V1"
STREAMS = 5


def world_with_copy(lake: DeltaCatalog, clock: ManualClock, policy: object) -> tuple[KeeperWorld, FaultyStore]:
    """Everything is compacted into the copy."""
    properties = {"compact_when": policy, "destination_compacted_table_id": COPY}
    lake.create_table(SOURCE, ["day"], primary_keys=["id"], properties=properties)
    for day in range(STREAMS):
        append(lake, day)
    compact(SOURCE, delta_catalog_client=lake)
    store = FaultyStore(lake.store)
    world = KeeperWorld(clock=clock)
    world.lake_store, world.lake = store, DeltaCatalog(store, clock)
    return world, store


def append(lake: DeltaCatalog, day: int) -> None:
    lake.table(SOURCE).append({"day": str(day)}, pa.table({"id": [day]}))


def test_the_floor_of_a_policy_counts_from_the_last_round_in_the_copy(lake: DeltaCatalog, clock: ManualClock) -> None:
    world, _ = world_with_copy(lake, clock, {"pending_deltas": 1, "not_before_seconds": 3_600})
    lake.table(COPY).set_properties({"compact_when": "streaming", "primary_keys": "id"})
    append(lake, 0)
    clock.sleep(3_500)
    keeper = world.keeper()
    assert keeper.look().decided == 0
    clock.sleep(200)  # rounds have the machine's time
    assert keeper.look().decided == 1
    (message,) = world.queue.receive(10, 0, 60)
    assert json.loads(message.body)["source_table_id"] == SOURCE
    compact(SOURCE, delta_catalog_client=lake)
    append(lake, 0)
    clock.sleep(60)
    source, copy = sorted(world.keeper().outlook(), key=lambda outlook: outlook.table_id, reverse=True)
    (waits,) = [each for each in source.streams if each.stream.figures.pending_deltas]
    assert (waits.stream.figures.rows, waits.stream.figures.files) == (1, 1)
    assert not any(isinstance(each.decision, Due) for each in copy.streams)


def test_an_idle_look_asks_each_stream_once_and_sees_what_becomes_of_those_with_work(
    lake: DeltaCatalog, clock: ManualClock
) -> None:
    world, store = world_with_copy(lake, clock, {"pending_deltas": 9})
    keeper = world.keeper()
    keeper.look()
    clock.sleep(60)
    store.requests.clear()
    keeper.look()
    assert store.count("read", f"tables/{SOURCE}/streams/") == STREAMS
    assert not store.count("read", f"tables/{COPY}/streams/")
    append(lake, 0)
    keeper.look()
    compact(SOURCE, delta_catalog_client=lake)
    keeper.look()
    (lag,) = [each.value for each in keeper.board.samples() if each.metric is TABLE_LAG and SOURCE in str(each)]
    assert lag == 0
