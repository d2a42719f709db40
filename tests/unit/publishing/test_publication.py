"""What is read to say how far a table is published."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from compactor.catalog.stream import PartitionStream
from compactor.lake import DeltaCatalog
from compactor.model.names import OpenFormat
from compactor.publishing.protocol import Outcome, PublishedState
from compactor.publishing.publication import lags
from tests.fakes.faulty_store import FaultyStore
from tests.keeper_world import ORDERS, KeeperWorld


class Publisher:
    """Has published three entries of each stream."""

    format = OpenFormat.DELTA

    def __init__(self, streams: Sequence[PartitionStream]) -> None:
        self._state = PublishedState(1, {f"day={each.partition['day']}": 3 for each in streams})

    def publish(self, streams: Sequence[PartitionStream]) -> Outcome:
        raise NotImplementedError

    def state(self) -> PublishedState:
        return self._state


@pytest.mark.parametrize(("ends", "read"), [({}, "012"), ({"day=0": 3, "day=1": 4}, "12"), ({"day=2": 2}, "01")])
def test_no_log_is_read_that_is_known_to_end_with_what_is_published(ends: dict[str, int], read: str) -> None:
    world = KeeperWorld()
    world.table(keys=("day",))
    for day in "012":
        world.append(partition={"day": day})
    lake = FaultyStore(world.lake_store)
    table = DeltaCatalog(lake, world.clock).table(ORDERS)
    streams = [table.stream({"day": day}) for day in "012"]
    lake.requests.clear()
    found = lags(Publisher(streams), streams, ends)
    assert len(found) == len(read)
    assert {key.split("day=")[1][0] for _, key in lake.requests} == set(read)
