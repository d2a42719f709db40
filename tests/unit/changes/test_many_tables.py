"""Changes of many tables in one feed."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from compactor.changes.many_tables import parse_paths
from compactor.lake import DeltaCatalog
from compactor.model.errors import Invalid


@pytest.fixture
def lake(tmp_path: Path) -> DeltaCatalog:
    lake = DeltaCatalog.open(tmp_path / "lake")
    for name in ("ORDERS", "ITEMS"):
        lake.create_table(f"SHOP.{name}.V1", primary_keys=["id"])
    return lake


TABLES = {"shop.orders": "SHOP.ORDERS.V1", "shop.items": "SHOP.ITEMS.V1", "shop.audit": None}


def event(table: str, key: int) -> dict[str, object]:
    return {"before": None, "after": {"id": key}, "op": "c", "source": {"schema": "shop", "table": table, "lsn": key}}


def written(file: Path, *events: object) -> Path:
    file.write_text("".join(f"{json.dumps(each)}\n" for each in events))
    return file


def ids(lake: DeltaCatalog, table_id: str) -> list[int]:
    return sorted(lake.table(table_id).scan(view="merged").to_table()["id"].to_pylist())


def test_each_change_goes_to_its_table_and_the_same_batch_again_adds_nothing(
    lake: DeltaCatalog, tmp_path: Path
) -> None:
    file = written(
        tmp_path / "a.json", event("orders", 1), event("items", 2), None, event("audit", 3), event("orders", 4)
    )
    first, again = (
        lake.append_changes([file], "debezium", "source.schema.source.table", TABLES, delta_id="a") for _ in range(2)
    )
    assert first == again
    assert {table_id: len(deltas) for table_id, deltas in first.items()} == {"SHOP.ORDERS.V1": 1, "SHOP.ITEMS.V1": 1}
    assert ids(lake, "SHOP.ORDERS.V1") == [1, 4]
    assert ids(lake, "SHOP.ITEMS.V1") == [2]


def test_events_may_have_their_schema_around_them(lake: DeltaCatalog, tmp_path: Path) -> None:
    row = {"type": "struct", "field": "after", "fields": [{"field": "id", "type": "int32"}]}
    source = {"type": "struct", "field": "source", "fields": [{"field": "table", "type": "string"}]}
    schema = {"type": "struct", "fields": [row, source, {"type": "string", "field": "op"}]}
    payload = {"after": {"id": 5}, "op": "c", "source": {"table": "orders"}}
    file = written(tmp_path / "a.json", {"schema": schema, "payload": payload})
    lake.append_changes([file], "debezium", "source.table", {"orders": "SHOP.ORDERS.V1"})
    assert ids(lake, "SHOP.ORDERS.V1") == [5]


def test_rows_lose_the_columns_that_name_their_table(lake: DeltaCatalog) -> None:
    rows = pa.table({"op": ["I", "I"], "owner": ["shop"] * 2, "name": ["items", "orders"], "id": [1, 2]})
    lake.append_changes(rows, "ops", ["owner", "name"], TABLES)
    assert lake.table("SHOP.ITEMS.V1").scan(view="merged").to_table().column_names == ["id"]


def test_nothing_is_added_if_a_change_is_of_another_table_or_says_none(lake: DeltaCatalog, tmp_path: Path) -> None:
    file = written(tmp_path / "a.json", event("orders", 1), event("users", 2))
    with pytest.raises(Invalid, match=r"a\.json, row 2: it is of shop\.users, which is not among tables"):
        lake.append_changes([file], "debezium", "source.schema.source.table", TABLES)
    with pytest.raises(Invalid, match=r"a\.json, row 1, 2: it does not say which table it is of"):
        lake.append_changes([file], "debezium", "source.db.source.table", TABLES)
    file.write_bytes(file.read_bytes().replace(b"users", b"\xff"))
    with pytest.raises(
        Invalid, match=r"a\.json, row 2: column 'source.schema.source.table' holds text that is not UTF-8"
    ):
        lake.append_changes([file], "debezium", "source.schema.source.table", TABLES)
    broken = written(tmp_path / "b.json", event("items", 1), {**event("orders", 1), "op": "t"})
    with pytest.raises(Invalid, match=r"b\.json \(changes of shop\.orders\), row 2: "):
        lake.append_changes([broken], "debezium", "source.schema.source.table", TABLES)
    assert lake.table("SHOP.ORDERS.V1").scan(view="merged").to_table().num_rows == 0


def test_tables_of_one_feed_may_have_columns_of_other_types(lake: DeltaCatalog, tmp_path: Path) -> None:
    text = {**event("items", 2), "after": {"id": "b"}}
    file = written(tmp_path / "a.json", event("orders", 1), text)
    lake.append_changes([file], "debezium", "source.schema.source.table", TABLES)
    assert lake.table("SHOP.ITEMS.V1").scan(view="merged").to_table()["id"].to_pylist() == ["b"]


def test_a_table_that_is_not_there_is_refused(lake: DeltaCatalog) -> None:
    with pytest.raises(Invalid, match=r"there is no table SHOP\.USERS\.V1"):
        lake.append_changes(pa.table({"op": ["I"]}), "ops", "t", {"users": "SHOP.USERS.V1"})


@pytest.mark.parametrize(
    ("table_of", "paths"),
    [
        ("source.schema.source.table", ["source.schema", "source.table"]),
        ("database.table", ["database", "table"]),
        ("__table", ["__table"]),
        (["a.b"], ["a.b"]),
    ],
)
def test_the_fields_that_name_a_table(table_of: str | list[str], paths: list[str]) -> None:
    assert parse_paths(table_of) == paths


def test_no_field_that_names_a_table_is_refused() -> None:
    with pytest.raises(Invalid, match="table_of names no field"):
        parse_paths("")
