"""Which published tables a lake shows, under which names, and at what cost."""

from __future__ import annotations

import json

import pytest

from compactor.catalog.dropping import drop_table
from compactor.catalog.keys import TableFolder
from compactor.model.clock import Clock
from compactor.model.errors import Corrupt, Denied, Unavailable
from compactor.publishing.keys import IcebergFolder, IcebergMetadata
from compactor.publishing.published_lake import (
    TABLES_A_SECOND,
    PublishedLake,
    PublishedMetadata,
    PublishedTable,
    lake_name,
)
from tests.fakes.manual_clock import ManualClock
from tests.published_tables import PublishedTables

ORDERS, CARS = "ACME.ORDERS.V1", "ACME.CARS.V2"
ORDERS_NAMED = PublishedTable("lake", "acme_orders_v1", ORDERS)


def a_lake() -> tuple[PublishedTables, PublishedLake]:
    world = PublishedTables("s3://bucket/lake", ManualClock())
    return world, PublishedLake(world.store, world.clock)


def newest(lake: PublishedLake, table: PublishedTable = ORDERS_NAMED) -> PublishedMetadata:
    found = lake.newest(table)
    assert found is not None
    return found


def pass_time(clock: Clock) -> None:
    clock.sleep(3_600)


def test_a_published_table_has_its_name_in_glue_in_the_namespace_of_its_database_or_its_lake() -> None:
    world, lake = a_lake()
    world.published(ORDERS)
    world.published(CARS, glue_database="lakehouse")
    assert lake.tables() == [ORDERS_NAMED, PublishedTable("lakehouse", "acme_cars_v2", CARS)]
    assert lake.find("lakehouse", "acme_cars_v2") == [PublishedTable("lakehouse", "acme_cars_v2", CARS)]
    assert lake.find("lake", "acme_cars_v2") == []


def test_a_table_that_is_not_published_as_iceberg_is_not_shown() -> None:
    world, lake = a_lake()
    world.create("A.PRIVATE.V1", publish=None)
    world.create("A.DELTA.V1", publish="delta")
    world.create("A.NOT_YET.V1")
    assert lake.tables() == []
    for name in ("a_private_v1", "a_delta_v1", "a_not_yet_v1"):
        assert lake.find("lake", name) == []


def test_a_table_is_shown_from_its_first_published_version_until_it_is_dropped_or_unpublished() -> None:
    world, lake = a_lake()
    assert lake.find("lake", "acme_orders_v1") == []
    world.published(ORDERS)
    assert lake.find("lake", "acme_orders_v1") == [ORDERS_NAMED]
    assert lake.tables() == [ORDERS_NAMED]
    world.set(ORDERS, publish=None)
    assert lake.find("lake", "acme_orders_v1") == [], "what one table is, is read each time"
    pass_time(world.clock)
    assert lake.tables() == []
    world.set(ORDERS, publish="iceberg")
    assert lake.find("lake", "acme_orders_v1") == [ORDERS_NAMED]
    drop_table(world.store, world.lake.table(ORDERS).definition, world.clock, write=True)
    assert lake.find("lake", "acme_orders_v1") == []
    pass_time(world.clock)
    assert lake.tables() == []


def test_each_new_version_is_the_newest_at_once() -> None:
    world, lake = a_lake()
    world.published(ORDERS)
    for version in range(1, 5):
        found = newest(lake)
        assert found.uri == f"s3://bucket/lake/{IcebergMetadata(ORDERS, version).key}"
        assert found.parsed == json.loads(found.body)
        assert world.commit(ORDERS) == version + 1


def test_a_hint_that_is_behind_or_missing_changes_nothing() -> None:
    world, lake = a_lake()
    world.published(ORDERS)
    world.commit(ORDERS)
    found = newest(lake)
    hint = IcebergMetadata(ORDERS, None).key
    world.store.overwrite(hint, b"1")
    assert newest(lake) == found
    world.store.delete(hint)
    assert newest(lake) == found


def test_metadata_that_were_deleted_and_published_again_are_not_taken_for_the_old_ones() -> None:
    world, lake = a_lake()
    world.published(ORDERS)
    old = newest(lake)
    for entry in list(world.store.list(f"{IcebergFolder(ORDERS).key}/")):
        world.store.delete(entry.key)
    assert lake.newest(ORDERS_NAMED) is None
    world.commit(ORDERS)
    again = newest(lake)
    assert again.uri == old.uri
    assert again.parsed["table-uuid"] != old.parsed["table-uuid"]


def test_damaged_metadata_and_those_of_a_lake_that_was_moved_are_refused() -> None:
    world, lake = a_lake()
    world.published(ORDERS)
    key = IcebergMetadata(ORDERS, 1).key
    moved = newest(lake).body.replace(b"s3://bucket/lake/", b"s3://bucket/old/")
    world.store.overwrite(key, moved)
    with pytest.raises(Corrupt, match="written for a lake at s3://bucket/old"):
        lake.newest(ORDERS_NAMED)
    for body in (b"{", b"[]", b"\xff"):
        world.store.overwrite(key, body)
        with pytest.raises(Corrupt, match="is damaged"):
            lake.newest(ORDERS_NAMED)


def test_a_folder_that_was_copied_is_no_table() -> None:
    world, lake = a_lake()
    world.published(ORDERS)
    for entry in list(world.store.list(f"tables/{ORDERS}/")):
        body = world.store.read(entry.key)
        assert body is not None
        world.store.put_if_absent(entry.key.replace(ORDERS, CARS), body)
    assert lake.tables() == [ORDERS_NAMED]
    assert lake.find("lake", "acme_cars_v2") == []


def test_a_damaged_definition_hides_its_table_from_listings_and_says_so_when_it_is_asked_for() -> None:
    world, lake = a_lake()
    world.published(ORDERS)
    world.published(CARS)
    first = f"{TableFolder(CARS).definition_log}/{1:020}.json"
    assert world.store.read(first)
    world.store.overwrite(first, b"rubbish")
    assert lake.tables() == [ORDERS_NAMED]
    with pytest.raises(Corrupt):
        lake.find("lake", "acme_cars_v2")


@pytest.mark.parametrize("error", [Unavailable, Denied])
def test_a_store_that_does_not_answer_is_not_a_lake_without_tables(error: type[Unavailable]) -> None:
    world, lake = a_lake()
    world.published(ORDERS)
    world.store.fail("list_folders", times=None, error=error)
    with pytest.raises(error):
        lake.tables()
    with pytest.raises(error):
        lake.find("lake", "acme_orders_v1")
    world.store.heal()
    assert lake.tables() == [ORDERS_NAMED]


def test_an_unavailable_definition_fails_the_listing_that_would_lack_a_table() -> None:
    world, lake = a_lake()
    world.published(ORDERS)
    world.store.fail("read", ORDERS, times=1)
    with pytest.raises(Unavailable):
        lake.tables()
    assert lake.tables() == [ORDERS_NAMED]


def test_a_load_takes_few_requests_and_listings_are_bounded_by_time_not_by_callers() -> None:
    world, lake = a_lake()
    for number in range(40):
        world.published(f"ACME.T{number}.V1")
    lake.tables()
    world.requests()
    (table,) = lake.find("lake", "acme_t7_v1")
    assert world.requests() == 1, "its definition, which has no new entry"
    lake.newest(table)
    assert world.requests() == 3, "the hint, its version, and the next one, which does not exist"
    for _ in range(1_000):
        lake.tables()
    assert world.requests() == 0
    began = world.clock.monotonic_seconds()
    while world.clock.monotonic_seconds() < began + 60:
        lake.tables()
        world.clock.sleep(0.01)
    assert world.requests() <= 60 * TABLES_A_SECOND * 1.2


@pytest.mark.parametrize(
    ("uri", "name"),
    [("s3://a/lake", "lake"), ("s3://b/other-Lake", "other_lake"), ("file:///data/x y", "x_y"), ("s3://c", "c")],
)
def test_a_lake_has_the_last_part_of_its_uri_as_name(uri: str, name: str) -> None:
    assert lake_name(uri) == name
