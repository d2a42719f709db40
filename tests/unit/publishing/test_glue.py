"""Glue leads to the newest published version, never back, and never to what is another table's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compactor.model.errors import Conflict, Denied, Invalid, Unavailable
from compactor.model.names import OpenFormat
from compactor.publishing.glue import ATTEMPTS_MAX, GluePointer, GlueTable, glue_name
from compactor.publishing.keys import IcebergMetadata
from compactor.storage.location import StoreLocation
from tests.fakes.manual_clock import ManualClock
from tests.fakes.memory_glue import MemoryGlue
from tests.fakes.memory_store import MemoryStore

ID, DATABASE = "ACME.ORDERS.V1", "lakehouse"
ROOT = "s3://bucket/lake"
NAME = "acme_orders_v1"


@pytest.fixture
def store() -> MemoryStore:
    """A lake that has published versions 1 to 9."""
    store = MemoryStore(ManualClock(), StoreLocation(ROOT))
    for version in range(1, 10):
        store.put_if_absent(IcebergMetadata(ID, version).key, b"{}")
    return store


@pytest.fixture
def glue() -> MemoryGlue:
    return MemoryGlue({DATABASE})


def follow(glue: MemoryGlue, store: MemoryStore, version: int, format_: OpenFormat = OpenFormat.ICEBERG) -> None:
    GluePointer(glue, DATABASE, store, ID, format_).follow(version)


def led_to(glue: MemoryGlue) -> str:
    return glue.tables[DATABASE, NAME].parameters["metadata_location"].rsplit("/", 1)[1]


def test_an_iceberg_table_is_created_and_then_moves_with_each_version(glue: MemoryGlue, store: MemoryStore) -> None:
    follow(glue, store, 1)
    table = glue.tables[DATABASE, NAME]
    assert table.location == f"{ROOT}/tables/{ID}/iceberg"
    assert table.parameters["table_type"] == "ICEBERG"
    assert table.parameters["metadata_location"] == f"{table.location}/metadata/v1.metadata.json"
    follow(glue, store, 2)
    assert led_to(glue) == "v2.metadata.json"
    assert glue.requests == ["table", "create", "table", "update"]


def test_an_earlier_version_and_the_same_one_change_nothing(glue: MemoryGlue, store: MemoryStore) -> None:
    follow(glue, store, 5)
    for version in (4, 5, 1):
        follow(glue, store, version)
    assert led_to(glue) == "v5.metadata.json"
    assert glue.requests.count("update") == 0


@pytest.mark.parametrize(("of_the_other", "newest"), [(7, 7), (2, 3)], ids=["a later version", "an earlier one"])
def test_of_two_dispatchers_the_slower_one_leaves_the_later_version(
    glue: MemoryGlue, store: MemoryStore, of_the_other: int, newest: int
) -> None:
    follow(glue, store, 1)

    def other_is_faster(request: str) -> None:
        if request == "update":
            glue.heal()
            follow(glue, store, of_the_other)

    glue.before = other_is_faster
    follow(glue, store, 3)
    assert led_to(glue) == f"v{newest}.metadata.json"


def test_a_table_that_another_one_creates_in_between_is_taken_as_it_is(glue: MemoryGlue, store: MemoryStore) -> None:
    def other_is_faster(request: str) -> None:
        if request == "create":
            glue.heal()
            follow(glue, store, 1)

    glue.before = other_is_faster
    follow(glue, store, 2)
    assert led_to(glue) == "v2.metadata.json"


@pytest.mark.parametrize("request_", ["create", "update"])
def test_an_answer_that_was_lost_is_settled_by_reading(glue: MemoryGlue, store: MemoryStore, request_: str) -> None:
    if request_ == "update":
        follow(glue, store, 1)
    glue.lost.append(request_)
    follow(glue, store, 2)
    assert led_to(glue) == "v2.metadata.json"
    assert glue.requests.count(request_) == 1


def test_a_service_that_is_away_is_given_up_and_caught_up_with_later(glue: MemoryGlue, store: MemoryStore) -> None:
    follow(glue, store, 1)
    glue.fail(Unavailable("no answer"))
    with pytest.raises(Unavailable, match="no answer"):
        follow(glue, store, 2)
    glue.heal()
    follow(glue, store, 2)
    assert led_to(glue) == "v2.metadata.json"


def test_writes_without_an_answer_are_given_up(glue: MemoryGlue, store: MemoryStore) -> None:
    def unanswered(request: str) -> None:
        if request != "table":
            raise Unavailable("no answer")

    glue.before = unanswered
    with pytest.raises(Unavailable, match="no answer"):
        follow(glue, store, 2)
    assert glue.requests.count("create") == ATTEMPTS_MAX


def test_a_role_that_may_not_is_denied(glue: MemoryGlue, store: MemoryStore) -> None:
    glue.fail(Denied("not authorised"))
    with pytest.raises(Denied):
        follow(glue, store, 1)


def test_a_table_that_others_change_all_the_time_is_a_conflict(glue: MemoryGlue, store: MemoryStore) -> None:
    follow(glue, store, 1)

    def others(request: str) -> None:
        if request == "update":
            found = glue.tables[DATABASE, NAME]
            glue.tables[DATABASE, NAME] = replace(found, version_id=str(int(found.version_id) + 1))

    glue.before = others
    with pytest.raises(Conflict, match=r"lakehouse\.acme_orders_v1 is changed by others"):
        follow(glue, store, 2)


@pytest.mark.parametrize(
    ("location", "type_"),
    [
        (f"{ROOT}/tables/{ID.lower()}/iceberg", "ICEBERG"),
        ("s3://elsewhere/tables/ACME.ORDERS.V1/iceberg", "ICEBERG"),
        (f"{ROOT}/tables/{ID}/iceberg", "DELTA"),
        ("", ""),
    ],
)
def test_a_table_that_somebody_else_has_made_is_refused_and_left_as_it_is(
    glue: MemoryGlue, store: MemoryStore, location: str, type_: str
) -> None:
    theirs = GlueTable(NAME, location, {"table_type": type_, "metadata_location": "s3://theirs"}, "0")
    glue.tables[DATABASE, NAME] = theirs
    with pytest.raises(Invalid, match=r"lakehouse\.acme_orders_v1 is another one .* drop it in Glue, or set"):
        follow(glue, store, 1)
    assert glue.tables[DATABASE, NAME] == theirs


def test_what_others_wrote_beside_the_location_stays(glue: MemoryGlue, store: MemoryStore) -> None:
    follow(glue, store, 1)
    found = glue.tables[DATABASE, NAME]
    glue.tables[DATABASE, NAME] = replace(
        found, parameters={**found.parameters, "theirs": "kept"}, other={"Description": "orders"}
    )
    follow(glue, store, 2)
    after = glue.tables[DATABASE, NAME]
    assert (after.parameters["theirs"], after.other) == ("kept", {"Description": "orders"})


def test_metadata_that_were_deleted_and_made_again_are_followed_from_version_1(
    glue: MemoryGlue, store: MemoryStore
) -> None:
    follow(glue, store, 9)
    made_again = MemoryStore(ManualClock(), StoreLocation(ROOT))
    made_again.put_if_absent(IcebergMetadata(ID, 1).key, b"{}")
    follow(glue, made_again, 1)
    assert led_to(glue) == "v1.metadata.json"


def test_metadata_of_another_writer_are_replaced_by_ours(glue: MemoryGlue, store: MemoryStore) -> None:
    follow(glue, store, 1)
    found = glue.tables[DATABASE, NAME]
    foreign = f"{found.location}/metadata/00007-0a.metadata.json"
    glue.tables[DATABASE, NAME] = replace(found, parameters={**found.parameters, "metadata_location": foreign})
    follow(glue, store, 2)
    assert led_to(glue) == "v2.metadata.json"


def test_a_delta_table_is_created_once_by_its_location(glue: MemoryGlue, store: MemoryStore) -> None:
    for version in range(3):
        follow(glue, store, version, OpenFormat.DELTA)
    table = glue.tables[DATABASE, "acme_orders_v1_delta"]
    assert table.location == f"{ROOT}/tables/{ID}/compacted"
    assert (table.parameters["table_type"], table.parameters["spark.sql.sources.provider"]) == ("DELTA", "delta")
    assert glue.requests == ["table", "create", "table", "table"]


def test_a_database_that_is_not_there_is_named(glue: MemoryGlue, store: MemoryStore) -> None:
    with pytest.raises(Invalid, match="Database nowhere not found"):
        GluePointer(glue, "nowhere", store, ID, OpenFormat.ICEBERG).follow(1)


def test_names_are_what_athena_takes() -> None:
    assert glue_name("ACME.My-Orders_2.V10", OpenFormat.ICEBERG) == "acme_my_orders_2_v10"
    assert glue_name(ID, OpenFormat.DELTA) == "acme_orders_v1_delta"
