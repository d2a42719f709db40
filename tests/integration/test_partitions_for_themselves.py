"""A partition whose input is bad keeps no other from being compacted, and the outcome names each."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from compactor import DeltaCatalog, compact
from compactor.lake import Table
from compactor.model.errors import Corrupt, Invalid
from compactor.planning.spec import JobRunResult
from tests.conftest import Command
from tests.fakes.unruly_engine import UnrulyEngine

TABLE_ID = "ACME.ORDERS.V1"
GOOD, ALSO_GOOD, BAD, DAMAGED = ({"day": day} for day in ("1", "3", "2", "4"))


@pytest.fixture
def orders(lake: DeltaCatalog) -> Table:
    orders = lake.create_table(TABLE_ID, ["day"])
    for partition in (GOOD, ALSO_GOOD):
        orders.append(partition, pa.table({"id": [1, 1], "v": ["a", "b"]}))
    return orders


def run(lake: DeltaCatalog) -> None:
    compact(TABLE_ID, {"id"}, delta_catalog_client=lake, engine=UnrulyEngine())


def rows_of(orders: Table) -> list[object]:
    return [(row["day"], row["id"], row["v"]) for row in orders.scan().to_table().to_pylist()]


def test_the_others_are_compacted_and_the_error_has_what_came_of_all(lake: DeltaCatalog, orders: Table) -> None:
    orders.append(BAD, pa.table({"v": ["no key"]}))
    with pytest.raises(Invalid, match=r"^day=2: there is no primary key column 'id'") as refusal:
        run(lake)
    assert rows_of(orders) == [("1", 1, "b"), ("3", 1, "b")]
    result = refusal.value.result
    assert isinstance(result, JobRunResult)
    assert [(each.partition, each.rounds) for each in result.sessions] == [(GOOD, 1), (ALSO_GOOD, 1)]
    assert [(each.partition, each.error_kind) for each in result.failures] == [(BAD, "Invalid")]
    assert [f"day=2: {reason}" for reason in result.failures[0].reasons] == list(refusal.value.reasons)


def test_a_damaged_file_is_reported_and_the_others_are_compacted(lake: DeltaCatalog, orders: Table) -> None:
    added = orders.append(DAMAGED, pa.table({"id": [1], "v": ["x"]}))
    orders.append(BAD, pa.table({"v": ["no key"]}))
    Path(f"{lake.location.root_uri.removeprefix('file://')}/{added.files[0].path}").unlink()
    with pytest.raises(Corrupt, match=r"day=2: there is no primary key .*; day=4: ") as failure:
        run(lake)
    result = failure.value.result
    assert isinstance(result, JobRunResult)
    assert [(each.partition, each.error_kind) for each in result.failures] == [
        (BAD, "Invalid"),
        (DAMAGED, "Corrupt"),
    ]
    assert rows_of(orders) == [("1", 1, "b"), ("3", 1, "b")]


def test_where_every_partition_is_bad_nothing_is_written(lake: DeltaCatalog) -> None:
    orders = lake.create_table(TABLE_ID, ["day"])
    for partition in (BAD, GOOD):
        orders.append(partition, pa.table({"v": ["no key"]}))
    before = [entry.key for entry in lake.store.list("")]
    with pytest.raises(Invalid, match=r"day=1: .*; day=2: "):
        compact(
            TABLE_ID,
            {"id"},
            delta_catalog_client=lake,
            destination_compacted_table_id="ACME.ELSEWHERE.V1",
            engine=UnrulyEngine(),
        )
    assert [entry.key for entry in lake.store.list("")] == before


def test_the_command_shows_what_was_done_and_says_what_was_not(
    lake: DeltaCatalog, orders: Table, command: Command
) -> None:
    orders.append(BAD, pa.table({"v": ["no key"]}))
    result = command("compact", TABLE_ID, "-k", "id", "--lake", lake.location.root_uri, "--output", "json")
    assert result.exit_code == 2
    assert "day=2: there is no primary key column 'id'" in result.err
    answer = json.loads(result.out)
    assert [each["partition"] for each in answer["sessions"]] == [GOOD, ALSO_GOOD]
    assert [each["partition"] for each in answer["failures"]] == [BAD]
    assert rows_of(orders) == [("1", 1, "b"), ("3", 1, "b")]
