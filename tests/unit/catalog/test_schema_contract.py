"""A declared schema is a contract: what its table says of columns that a delta has too many, and of those it lacks."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactor.catalog.definition import TABLE_LOG, TableCreated, TablePropertiesSet, define_table
from compactor.catalog.keys import TableFolder
from compactor.lake import DeltaCatalog, Table
from compactor.log.durable_log import DurableLog
from compactor.model.errors import Corrupt, Invalid
from compactor.schemas.unify import render_schema
from tests.fakes.manual_clock import ManualClock
from tests.rounds import compact_by_hand

ORDERS = "ACME.ORDERS.V1"
PLACE = pa.struct([("city", pa.string()), ("zip", pa.string())])
SCHEMA = pa.schema([("id", pa.int64()), ("status", pa.string()), ("to", PLACE), ("stops", pa.list_(PLACE))])
WHOLE = SCHEMA.empty_table()
MISSPELT = pa.table({"id": [1], "Statsu": ["new"]})


@pytest.fixture
def orders(lake: DeltaCatalog) -> Table:
    return lake.create_table(ORDERS, ["day"], SCHEMA)


DAY = {"day": "monday"}


def old_table(lake: DeltaCatalog, clock: ManualClock, arrow_schema: str = render_schema(SCHEMA)) -> Table:
    """A table with a schema, as releases before `schema_growth` created it."""
    log = DurableLog(lake.store, TableFolder(ORDERS).definition_log, TABLE_LOG, clock)
    log.append(lambda _: [TableCreated(table_id=ORDERS, partition_keys=("day",), arrow_schema=arrow_schema)])
    return lake.table(ORDERS)


def test_a_declared_schema_that_cannot_be_read_is_named_when_it_is_needed(
    lake: DeltaCatalog, clock: ManualClock
) -> None:
    table = old_table(lake, clock, arrow_schema="cnViYmlzaA==")
    assert table.partitions() == []
    with pytest.raises(Corrupt, match=rf"the schema of table {ORDERS} cannot be read: "):
        table.append(DAY, WHOLE)
    assert table.partitions() == []


# -- columns that the schema lacks


def test_a_misspelt_column_is_refused_with_the_one_that_was_meant_and_nothing_is_written(
    lake: DeltaCatalog, orders: Table, tmp_path: Path
) -> None:
    pq.write_table(MISSPELT, tmp_path / "rows.parquet")
    before = [entry.key for entry in lake.store.list("")]
    for operation in ("upsert", "delete"):
        with pytest.raises(Invalid, match=r"the delta has columns .* lacks, 'Statsu' \(did you mean 'status'\?\)"):
            orders.append(DAY, MISSPELT, operation=operation)
    with pytest.raises(Invalid, match=r"rows\.parquet has columns .* 'Statsu'.* schema_growth=allow"):
        orders.append(DAY, [tmp_path / "rows.parquet"])
    assert [entry.key for entry in lake.store.list("")] == before


@pytest.mark.parametrize(
    ("column", "value", "name"),
    [
        ("to", {"city": "Bonn", "zpi": "5"}, "to.zpi"),
        ("stops", [{"city": "Bonn", "zpi": "5"}], "stops.zpi"),
    ],
)
def test_a_field_of_a_struct_that_is_not_declared_is_refused(
    orders: Table, column: str, value: object, name: str, tmp_path: Path
) -> None:
    with pytest.raises(Invalid, match=f"lacks, '{name}'"):
        orders.append(DAY, pa.table({"id": [1], column: [value]}))
    (tmp_path / "rows.json").write_text(json.dumps({"id": 1, column: value}))
    with pytest.raises(Invalid, match=f"lacks, '{name}'"):
        orders.append(DAY, [tmp_path / "rows.json"])


def test_columns_of_partition_keys_are_no_new_columns(orders: Table) -> None:
    orders.append(DAY, pa.table({"id": [1], "day": ["monday"]}))


def test_a_table_with_a_schema_refuses_unless_its_creator_or_its_owner_allows(lake: DeltaCatalog) -> None:
    assert lake.create_table(ORDERS, schema=SCHEMA).properties.schema_growth == "refuse"
    allowing = lake.create_table("ACME.WIDE.V1", schema=SCHEMA, properties={"schema_growth": "allow"})
    allowing.append({}, MISSPELT)
    lake.create_table("ACME.FREE.V1").append({}, MISSPELT)
    table = lake.table(ORDERS)
    table.set_properties({"schema_growth": "allow"})
    table.append({}, MISSPELT)


def test_a_table_without_a_schema_has_nothing_to_refuse_by(lake: DeltaCatalog) -> None:
    with pytest.raises(Invalid, match="schema_growth is refuse, and the table has no declared schema"):
        lake.create_table(ORDERS, properties={"schema_growth": "refuse"})


def test_tables_of_earlier_releases_go_on_growing_also_when_they_are_created_again(
    lake: DeltaCatalog, clock: ManualClock
) -> None:
    old_table(lake, clock).append(DAY, MISSPELT)
    again = lake.create_table(ORDERS, ["day"], SCHEMA)
    assert again.properties.schema_growth == "allow"
    again.append(DAY, MISSPELT)
    with pytest.raises(Invalid, match='schema_growth "allow", not "refuse"'):
        lake.create_table(ORDERS, ["day"], SCHEMA, properties={"schema_growth": "refuse"})


def test_a_table_that_refuses_is_not_taken_for_one_that_allows(lake: DeltaCatalog, orders: Table) -> None:
    assert lake.create_table(ORDERS, ["day"], SCHEMA).table_id == orders.table_id
    with pytest.raises(Invalid, match='schema_growth "refuse", not "allow"'):
        lake.create_table(ORDERS, ["day"], SCHEMA, properties={"schema_growth": "allow"})


def test_a_new_table_without_a_schema_is_written_as_earlier_releases_read_it() -> None:
    (created,) = define_table(ORDERS, ["day"], None).as_new().as_actions()
    assert isinstance(created, TableCreated)
    _, properties = define_table(ORDERS, ["day"], SCHEMA).as_new().as_actions()
    assert isinstance(properties, TablePropertiesSet)
    assert properties.properties.model_dump(mode="json") == {"schema_growth": "refuse"}


# -- columns that a delta lacks


def test_a_delta_that_lacks_columns_of_its_stream_says_which(lake: DeltaCatalog) -> None:
    table = lake.create_table("ACME.FREE.V1")
    assert table.append({}, pa.table({"id": [1], "status": ["new"], "note": ["x"]})).warnings == ()
    (warning,) = table.append({}, pa.table({"id": [1], "stauts": ["paid"]})).warnings
    assert warning == (
        "the delta lacks columns that its stream has, 'status', 'note' (is 'stauts' meant to be 'status'?): they are "
        "null in its rows, which replace earlier rows in all columns"
    )
    assert table.append({}, pa.table({"id": [1]}), operation="delete").warnings == ()


def test_compacted_and_declared_columns_are_missed_too(lake: DeltaCatalog, orders: Table) -> None:
    (warning,) = orders.append(DAY, pa.table({"id": [1], "status": ["new"]})).warnings
    assert "'to', 'stops'" in warning
    free = lake.create_table("ACME.FREE.V1")
    free.append({}, pa.table({"id": [1]}))
    compact_by_hand(free.stream({}), [pa.table({"id": [1], "b": ["x"]})])
    (warning,) = free.append({}, pa.table({"id": [2]})).warnings
    assert "'b'" in warning
    assert DeltaCatalog(lake.store, lake._clock).table("ACME.FREE.V1").append({}, pa.table({"id": [2]})).warnings


def test_a_missing_field_of_a_struct_is_named(orders: Table) -> None:
    rows = WHOLE.drop_columns(["to"]).append_column("to", pa.array([], pa.struct([("city", pa.string())])))
    (warning,) = orders.append(DAY, rows).warnings
    assert "'to.zip':" in warning


def test_a_column_of_a_partition_key_is_not_missed(lake: DeltaCatalog) -> None:
    table = lake.create_table("ACME.DAYS.V1", ["day"], pa.schema([("id", pa.int64()), ("day", pa.string())]))
    assert table.append(DAY, pa.table({"id": [1]})).warnings == ()


def test_a_table_may_refuse_upserts_that_lack_columns(lake: DeltaCatalog, tmp_path: Path) -> None:
    table = lake.create_table("ACME.STRICT.V1", properties={"missing_columns": "refuse"})
    table.append({}, pa.table({"id": [1], "status": ["new"]}))
    pq.write_table(pa.table({"id": [1]}), tmp_path / "rows.parquet")
    with pytest.raises(Invalid, match=r"the delta lacks columns .*'status'; the table's missing_columns is refuse"):
        table.append({}, pa.table({"id": [1]}))
    with pytest.raises(Invalid, match=r"rows\.parquet lacks columns"):
        table.append({}, [tmp_path / "rows.parquet"])
    table.append({}, pa.table({"id": [1]}), operation="delete")


def test_many_missing_columns_are_counted(lake: DeltaCatalog) -> None:
    table = lake.create_table("ACME.FREE.V1")
    table.append({}, pa.table({f"c{number:02}": [number] for number in range(25)}))
    (warning,) = table.append({}, pa.table({"c00": [1]})).warnings
    assert "'c10' and 14 more" in warning
