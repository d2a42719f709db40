"""Destinations that would hide the data of others are refused, with the partition that has them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from compactor import DeltaCatalog
from compactor.model.clock import SystemClock
from compactor.model.errors import Invalid
from compactor.planning.destinations import check_destination
from compactor.storage.local import LocalStore
from compactor.storage.location import StoreLocation

ORDERS, OTHER = "ACME.ORDERS.V1", "ACME.OTHER.V1"


@pytest.fixture
def lake(tmp_path: Path) -> DeltaCatalog:
    return DeltaCatalog(LocalStore(StoreLocation(f"file://{tmp_path / 'lake'}")), SystemClock())


def test_a_destination_with_deltas_of_its_own_is_refused_by_the_partition_that_has_them(lake: DeltaCatalog) -> None:
    lake.create_table(ORDERS, ["region"])
    other = lake.create_table(OTHER, ["region"])
    other.append({"region": "north"}, pa.table({"id": [1]}), operation="upsert")
    with pytest.raises(Invalid, match=rf"{OTHER} .*north.* holds deltas of its own"):
        check_destination(ORDERS, other)


def test_an_empty_destination_and_the_source_itself_are_taken(lake: DeltaCatalog) -> None:
    orders = lake.create_table(ORDERS, ["region"])
    orders.append({"region": "north"}, pa.table({"id": [1]}), operation="upsert")
    check_destination(ORDERS, orders)
    check_destination(ORDERS, lake.create_table(OTHER, ["region"]))
