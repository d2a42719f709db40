"""A table's properties: how they are set, read back, and refused."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from compactor.catalog.definition import TablePropertiesSet
from compactor.catalog.dropping import definition_log
from compactor.catalog.keys import TableFolder
from compactor.catalog.properties import NAMES, TableProperties, TableState, value_of_text
from compactor.lake import DeltaCatalog, Table
from compactor.model.counts import SortKey
from compactor.model.errors import Invalid, Outdated
from compactor.model.names import ContentType, SortOrder
from compactor.storage.location import StoreLocation
from tests.fakes.manual_clock import ManualClock
from tests.fakes.memory_store import MemoryStore

ORDERS = "ACME.ORDERS.V1"
DAY = 24 * 3600


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(ManualClock(), StoreLocation("file:///nowhere"))


@pytest.fixture
def orders(store: MemoryStore) -> Table:
    return lake(store).create_table(ORDERS, ["day"])


def lake(store: MemoryStore) -> DeltaCatalog:
    return DeltaCatalog(store, ManualClock())


def again(store: MemoryStore) -> Table:
    """The same table, as another process opens it."""
    return lake(store).table(ORDERS)


def entry_actions(store: MemoryStore, number: int) -> list[dict[str, object]]:
    body = store.read(f"{TableFolder(ORDERS).definition_log}/{number:020d}.json")
    assert body is not None
    actions: list[dict[str, object]] = json.loads(body)["actions"]
    return actions


def test_a_table_without_properties_has_the_meaning_of_before(store: MemoryStore, orders: Table) -> None:
    assert orders.properties == TableProperties()
    assert [action["action"] for action in entry_actions(store, 1)] == ["table_created"]


def test_a_table_is_created_with_its_keys_and_properties_in_one_entry(store: MemoryStore) -> None:
    created = lake(store).create_table(
        ORDERS,
        ["day"],
        primary_keys={"line", "order"},
        sort_keys=[("updated", "descending")],
        properties={"retention_seconds": 30 * DAY, "compacted_file_content_type": "orc"},
    )
    expected = TableProperties(
        primary_keys=("line", "order"),
        sort_keys=(SortKey(column="updated", order=SortOrder.DESCENDING),),
        retention_seconds=30 * DAY,
        compacted_file_content_type=ContentType.ORC,
    )
    assert created.properties == again(store).properties == expected
    assert [action["action"] for action in entry_actions(store, 1)] == ["table_created", "table_properties_set"]


def test_a_change_keeps_the_other_properties_and_can_unset_one(store: MemoryStore, orders: Table) -> None:
    orders.set_properties({"primary_keys": ["id"], "state": "offline", "rows_per_compacted_file": 5})
    orders.set_properties({"state": None, "private_columns": ["email"]})
    expected = TableProperties(primary_keys=("id",), rows_per_compacted_file=5, private_columns=("email",))
    assert orders.properties == again(store).properties == expected


def test_an_entry_names_only_properties_that_are_set(store: MemoryStore, orders: Table) -> None:
    orders.set_properties({"primary_keys": ["id"]})
    assert entry_actions(store, 2) == [{"action": "table_properties_set", "properties": {"primary_keys": ["id"]}}]


def test_the_same_properties_again_write_no_entry(store: MemoryStore, orders: Table) -> None:
    orders.set_properties({"state": "offline"})
    again(store).set_properties({"state": "offline"})
    assert store.read(f"{TableFolder(ORDERS).definition_log}/{3:020d}.json") is None


def test_two_processes_that_set_different_properties_lose_none(store: MemoryStore, orders: Table) -> None:
    other = again(store)
    orders.set_properties({"state": "offline"})
    other.set_properties({"gc_grace_seconds": DAY})
    assert again(store).properties == TableProperties(state=TableState.OFFLINE, gc_grace_seconds=DAY)


def test_a_catalog_that_opens_a_table_again_has_its_new_properties(store: MemoryStore) -> None:
    here = lake(store)
    kept = here.create_table(ORDERS, ["day"])
    again(store).set_properties({"state": "offline"})
    assert here.table(ORDERS).properties.state is TableState.OFFLINE
    assert kept is here.table(ORDERS)


CONTRADICTIONS = [
    ({"primary_keys": ["id", "id"]}, "primary key column 'id' is named 2 times"),
    ({"primary_keys": [], "sort_keys": [("at", "ascending")]}, "primary_keys is empty"),
    ({"primary_keys": [""]}, "primary_keys"),
    ({"primary_keys": ["partition_stream_position"]}, "virtual column"),
    ({"sort_keys": [("at", "ascending"), ("at", "descending")]}, "sort key column 'at' is named 2 times"),
    ({"sort_keys": [("at", "upwards")]}, "ascending"),
    ({"private_columns": ["day"]}, "private column 'day' is a partition key"),
    ({"private_columns": ["email", "email"]}, "private column 'email' is named 2 times"),
    ({"destination_compacted_table_id": "orders"}, "OWNER.NAME.Vn"),
    ({"compacted_file_content_type": "json"}, "can be read only"),
    ({"compacted_file_content_type": "xlsx"}, "compacted_file_content_type"),
    ({"rows_per_compacted_file": 0}, "rows_per_compacted_file is 0"),
    ({"bytes_per_compacted_file": "many"}, "bytes_per_compacted_file"),
    ({"gc_grace_seconds": 60}, "3600"),
    ({"gc_grace_seconds": 10**399}, "0...: at most 31,536,000,000 are allowed"),
    ({"retention_seconds": 31_536_000_001}, "retention_seconds is 31536000001: at most 31,536,000,000 are allowed"),
    (
        {"retention_seconds": DAY},
        "retention_seconds is 86,400: gc_grace_seconds is not set, so an attempt may take 604,800",
    ),
    ({"retention_seconds": DAY, "gc_grace_seconds": 2 * DAY}, "may take 172,800 seconds"),
    ({"retention": DAY}, "did you mean 'retention_seconds'?"),
    ({"wholly_else": 1}, "known are primary_keys"),
    ({"state": "away"}, 'state is "away"'),
]


@pytest.mark.parametrize(("changes", "reason"), CONTRADICTIONS)
def test_a_contradiction_is_refused_and_leaves_the_old_ones_in_force(
    store: MemoryStore, orders: Table, changes: dict[str, object], reason: str
) -> None:
    orders.set_properties({"primary_keys": ["order"]})
    with pytest.raises(Invalid) as refused:
        orders.set_properties(changes)
    assert reason in str(refused.value)
    assert orders.properties == again(store).properties == TableProperties(primary_keys=("order",))


def test_every_reason_is_told_at_once(orders: Table) -> None:
    with pytest.raises(Invalid) as refused:
        orders.set_properties({"private_columns": ["day"], "retention_seconds": 5, "primary_keys": ["a", "a"]})
    assert len(refused.value.reasons) == 3
    with pytest.raises(Invalid) as refused:
        orders.set_properties({"stat": "x", "gc_grace_seconds": "x", "rows_per_compacted_file": -1})
    assert len(refused.value.reasons) == 3


def test_a_change_may_be_refused_for_what_was_set_before(orders: Table) -> None:
    orders.set_properties({"retention_seconds": 10 * DAY})
    with pytest.raises(Invalid, match=r"864,000.*may take 1,728,000"):
        orders.set_properties({"gc_grace_seconds": 20 * DAY})


def test_keys_that_the_declared_schema_cannot_have_are_refused(store: MemoryStore) -> None:
    schema = pa.schema({"id": pa.int64(), "name": pa.string(), "tags": pa.list_(pa.string())})
    with pytest.raises(Invalid) as refused:
        lake(store).create_table(ORDERS, schema=schema, primary_keys=["tags"], sort_keys=[("name", "ascending")])
    assert len(refused.value.reasons) == 2
    undeclared = lake(store).create_table(ORDERS, schema=schema, primary_keys=["id", "later"])
    assert undeclared.properties.primary_keys == ("id", "later")


def test_creating_a_table_again_with_other_properties_is_refused(store: MemoryStore) -> None:
    lake(store).create_table(ORDERS, primary_keys=["id"], properties={"gc_grace_seconds": DAY})
    assert lake(store).create_table(ORDERS, primary_keys=["id"]).properties.gc_grace_seconds == DAY
    with pytest.raises(Invalid, match=r"primary_keys \[\"id\"\], not \[\"other\"\] \(lithify table set"):
        lake(store).create_table(ORDERS, primary_keys=["other"])


def test_a_property_of_a_newer_release_is_told_as_such(store: MemoryStore, orders: Table) -> None:
    entry = {
        "format": 1,
        "entry_number": 2,
        "entry_id": "ab",
        "at_ms": 1,
        "actions": [{"action": "table_properties_set", "properties": {"colour": "blue"}}],
    }
    store.put_if_absent(f"{TableFolder(ORDERS).definition_log}/{2:020d}.json", json.dumps(entry).encode())
    with pytest.raises(Outdated, match="newer release"):
        again(store)


def test_a_retention_of_an_entry_that_is_longer_than_can_be_set_stays_in_force(
    store: MemoryStore, orders: Table
) -> None:
    longer = TableProperties(retention_seconds=2**63 - 1, gc_grace_seconds=10**18)
    log = definition_log(store, ORDERS, ManualClock())
    log.append(lambda _: [TablePropertiesSet(properties=longer)])
    again(store).set_properties({"session_plans": True})
    assert again(store).properties == longer.changed({"session_plans": True})
    lake(store).drop_table(ORDERS, dry_run=False)
    with pytest.raises(Invalid, match="its id can be used again from 9999-12-31 23:59:59 UTC on"):
        lake(store).create_table(ORDERS)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("primary_keys", "order,line", ["order", "line"]),
        ("primary_keys", '["a,b"]', ["a,b"]),
        ("primary_keys", "7", ["7"]),
        ("sort_keys", "at:descending,id", [("at", "descending"), ("id", "ascending")]),
        ("rows_per_compacted_file", "4,000_000", 4_000_000),
        ("destination_compacted_table_id", "A.B.V2", "A.B.V2"),
        ("state", "offline", "offline"),
        ("session_plans", "true", True),
        ("news_hints", "false", False),
    ],
)
def test_a_property_can_be_written_on_a_command_line(orders: Table, name: str, text: str, expected: object) -> None:
    by_text = orders.set_properties({name: value_of_text(name, text)})
    orders.set_properties({name: None})
    assert by_text == orders.set_properties({name: expected})


def test_a_number_of_too_many_digits_on_a_command_line_is_refused(orders: Table) -> None:
    with pytest.raises(Invalid, match=r'^rows_per_compacted_file is "9+\.\.\.: it must be a valid integer'):
        orders.set_properties({"rows_per_compacted_file": value_of_text("rows_per_compacted_file", "9" * 5_000)})


def test_every_property_says_what_it_is() -> None:
    assert all(TableProperties.model_fields[name].description for name in NAMES)


def test_a_database_of_glue_is_refused_with_every_reason(orders: Table) -> None:
    with pytest.raises(Invalid) as refused:
        orders.set_properties({"glue_database": "Lake House"})
    assert refused.value.reasons == (
        "glue_database is 'Lake House': write 1 to 255 small letters, digits and _, as Athena wants it",
        "glue_database is Lake House, and publish is not set: set publish to delta, iceberg, or both",
    )
    with pytest.raises(Invalid, match="AWS Glue leads to tables on S3, and this lake is at file:///nowhere"):
        orders.set_properties({"glue_database": "lakehouse", "publish": "delta"})
    assert orders.properties == TableProperties()


def test_a_table_on_s3_takes_a_database_of_glue_when_it_is_created_and_later() -> None:
    store = MemoryStore(ManualClock(), StoreLocation("s3://bucket/lake"))
    published = {"publish": "iceberg", "glue_database": "lakehouse"}
    assert lake(store).create_table(ORDERS, properties=published).properties.glue_database == "lakehouse"
    other = again(store)
    assert other.set_properties({"glue_database": None}).glue_database is None
    assert other.set_properties({"glue_database": "second"}).glue_database == "second"
    with pytest.raises(Invalid, match="publish is not set"):
        other.set_properties({"publish": None})


def test_a_table_whose_id_has_no_name_in_glue_is_refused() -> None:
    store = MemoryStore(ManualClock(), StoreLocation("s3://bucket/lake"))
    with pytest.raises(Invalid, match="a table id of 201 characters has no name in Glue: 200 at most"):
        lake(store).create_table(f"A.{'B' * 196}.V1", properties={"publish": "delta", "glue_database": "lakehouse"})
