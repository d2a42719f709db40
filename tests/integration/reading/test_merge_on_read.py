"""What `view="merged"` shows of partitions that were never compacted: their rows, or a refusal that names them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from compactor import DeltaCatalog, compact
from compactor.lake import Table
from compactor.model.errors import Invalid
from compactor.model.names import LifecycleState, Operation
from compactor.reading.scan import STREAMS_SAMPLED
from tests.builders import multiset
from tests.conftest import Command
from tests.fakes.faulty_store import FaultyStore
from tests.fakes.manual_clock import ManualClock
from tests.fakes.unruly_engine import UnrulyEngine
from tests.oracle import OracleDelta, Row, surviving_rows

TABLE_ID, ELSEWHERE = "ACME.ORDERS.V1", "ACME.COMPACTED.V1"
MONDAY, TUESDAY = {"day": "monday"}, {"day": "tuesday"}
SORT_KEYS = [("at", "ascending")]


@pytest.fixture
def orders(lake: DeltaCatalog) -> Table:
    return lake.create_table(TABLE_ID, ["day"])


def run(
    lake: DeltaCatalog,
    keys: set[str],
    partitions: Sequence[dict[str, str]],
    destination: str = TABLE_ID,
    tombstone_retention: int | None = None,
) -> None:
    compact(
        TABLE_ID,
        keys,
        SORT_KEYS,
        delta_catalog_client=lake,
        destination_compacted_table_id=destination,
        partitions=partitions,
        tombstone_retention=tombstone_retention,
        engine=UnrulyEngine(),
    )


def rows_of(table: Table, partition: dict[str, str] | None = None) -> list[tuple[object, ...]]:
    rows: list[dict[str, object]] = table.scan(partition, view="merged").to_table().to_pylist()
    return sorted((row["day"], row["id"], row.get("at")) for row in rows)


def some(*ids: int, at: int = 1) -> pa.Table:
    return pa.table({"id": ids, "at": [at] * len(ids)})


def test_a_partition_that_was_never_compacted_is_merged_by_the_keys_of_the_others(
    lake: DeltaCatalog, orders: Table
) -> None:
    orders.append(MONDAY, some(1))
    run(lake, {"id"}, [MONDAY])
    orders.append(TUESDAY, some(1, 2, at=5))
    orders.append(TUESDAY, some(1, at=4))
    orders.append(TUESDAY, some(2, at=6), operation="delete")
    assert rows_of(orders) == [("monday", 1, 1), ("tuesday", 1, 5)]
    assert rows_of(orders, TUESDAY) == [("tuesday", 1, 5)]


def test_a_table_that_knows_its_keys_is_merged_by_them_before_anything_is_compacted(
    lake: DeltaCatalog, orders: Table
) -> None:
    orders.set_properties({"primary_keys": ["id"], "sort_keys": SORT_KEYS})
    orders.append(TUESDAY, some(1, 2, at=5))
    orders.append(TUESDAY, some(1, at=4))
    orders.append(TUESDAY, some(2, at=6), operation="delete")
    orders.append(MONDAY, some(1))
    assert rows_of(orders) == [("monday", 1, 1), ("tuesday", 1, 5)]
    assert rows_of(orders, TUESDAY) == [("tuesday", 1, 5)]
    run(lake, {"id"}, [MONDAY, TUESDAY])
    assert rows_of(orders) == [("monday", 1, 1), ("tuesday", 1, 5)]


def test_a_table_of_which_nothing_was_compacted_is_refused_by_name(
    lake: DeltaCatalog, orders: Table, command: Command
) -> None:
    orders.append(MONDAY, some(1))
    orders.append(TUESDAY, some(2))
    with pytest.raises(
        Invalid, match=r"V1 day=monday and 1 more partition were never compacted, and its keys are unknown"
    ):
        orders.scan(view="merged")
    with pytest.raises(Invalid, match=r"ACME.ORDERS.V1 day=tuesday was never compacted, and its keys are unknown"):
        orders.scan(TUESDAY, view="merged")
    result = command("table", "scan", TABLE_ID, "--view", "merged", "--lake", lake.location.root_uri)
    assert (result.exit_code, result.out) == (2, "")
    assert "never compacted" in result.err


def test_partitions_with_different_keys_tell_nothing_of_a_third(lake: DeltaCatalog, orders: Table) -> None:
    for partition, keys in ((MONDAY, {"id"}), (TUESDAY, {"id", "at"})):
        orders.append(partition, some(1))
        run(lake, keys, [partition])
    orders.append({"day": "friday"}, some(7))
    with pytest.raises(
        Invalid, match="day=friday was never compacted, and the table's other partitions have different"
    ):
        orders.scan(view="merged")
    assert rows_of(orders, MONDAY) == [("monday", 1, 1)]


def test_a_compacted_table_shows_partitions_of_its_source_that_it_has_not_yet(
    lake: DeltaCatalog, orders: Table
) -> None:
    orders.append(MONDAY, some(1))
    run(lake, {"id"}, [MONDAY], ELSEWHERE)
    orders.append(MONDAY, some(2))
    orders.append(TUESDAY, some(3))
    compacted = lake.table(ELSEWHERE)
    assert rows_of(compacted) == [("monday", 1, 1), ("monday", 2, 1), ("tuesday", 3, 1)]
    with pytest.raises(Invalid, match=r"day=monday and 1 more partition were never compacted"):
        orders.scan(view="merged")


def test_a_compacted_table_shows_a_named_partition_of_its_source_that_it_has_not_yet(
    lake: DeltaCatalog, orders: Table
) -> None:
    orders.append(MONDAY, some(1))
    run(lake, {"id"}, [MONDAY], ELSEWHERE)
    orders.append(TUESDAY, some(3))
    compacted = lake.table(ELSEWHERE)
    assert rows_of(compacted, TUESDAY) == [("tuesday", 3, 1)]
    assert rows_of(compacted, {"day": "friday"}) == []
    run(lake, {"id"}, [TUESDAY], ELSEWHERE)
    compacted.drop_partitions(TUESDAY, dry_run=False)
    orders.append(TUESDAY, some(4))
    tuesday = [("tuesday", 3, 1), ("tuesday", 4, 1)]
    assert rows_of(compacted, TUESDAY) == tuesday
    assert rows_of(compacted) == [("monday", 1, 1), *tuesday]
    run(lake, {"id"}, [TUESDAY], ELSEWHERE)
    assert rows_of(compacted, TUESDAY) == tuesday


def test_a_named_partition_of_a_source_is_refused_if_the_compacted_ones_have_different_keys(
    lake: DeltaCatalog, orders: Table
) -> None:
    for partition, keys in ((MONDAY, {"id"}), (TUESDAY, {"id", "at"})):
        orders.append(partition, some(1))
        run(lake, keys, [partition], ELSEWHERE)
    orders.append({"day": "friday"}, some(7))
    with pytest.raises(Invalid, match=r"ACME.COMPACTED.V1 day=friday was never compacted, and the table's other"):
        lake.table(ELSEWHERE).scan({"day": "friday"}, view="merged")


def test_a_partition_that_was_restored_to_before_its_first_compaction_is_merged_from_its_source(
    lake: DeltaCatalog, orders: Table, clock: ManualClock
) -> None:
    orders.append(MONDAY, some(1))
    orders.append(TUESDAY, some(2))
    run(lake, {"id"}, [MONDAY], ELSEWHERE)
    clock.sleep(1)
    then = datetime.fromtimestamp(clock.now_ms() / 1_000, UTC)
    clock.sleep(1)
    run(lake, {"id"}, [TUESDAY], ELSEWHERE)
    compacted = lake.table(ELSEWHERE)
    compacted.restore(then, dry_run=False)
    assert rows_of(compacted, TUESDAY) == [("tuesday", 2, 1)]
    assert rows_of(compacted) == [("monday", 1, 1), ("tuesday", 2, 1)]


def test_a_merged_scan_reads_no_log_of_a_partition_that_its_filter_excludes(lake: DeltaCatalog, orders: Table) -> None:
    days = [{"day": str(day)} for day in range(8)]
    orders.append_many([(day, some(1), "upsert") for day in days])
    run(lake, {"id"}, days[:6])
    orders.append_many([(day, some(2), "upsert") for day in days])
    found, read = _merged_beside(lake, orders, "4")
    assert (found, read) == ([("4", 1, 1), ("4", 2, 1)], {"0", "4"})
    found, read = _merged_beside(lake, orders, "7")  # never compacted: the others tell the keys
    assert (found, read) == ([("7", 1, 1), ("7", 2, 1)], {day["day"] for day in days})
    orders.set_properties({"primary_keys": ["id"], "sort_keys": SORT_KEYS})
    assert _merged_beside(lake, orders, "7") == ([("7", 1, 1), ("7", 2, 1)], {"0", "7"})


@pytest.mark.parametrize("in_files", [False, True])
def test_a_filter_excludes_partitions_also_before_anything_is_compacted(
    lake: DeltaCatalog, in_files: bool, tmp_path: Path
) -> None:
    """By the types of pending deltas, whose files may have the partition's column themselves."""
    orders = lake.create_table(TABLE_ID, ["day"], primary_keys=["id"])
    days = [chr(number) for number in range(ord("A"), ord("z"))]
    for day in days:
        rows = some(1).append_column("day", pa.array([day])) if in_files else some(1)
        orders.append({"day": day}, rows)
    found, read = _merged_beside(lake, orders, "x")
    assert (found, read) == ([("x", 1, 1)], {*days[:STREAMS_SAMPLED], "x"})
    (tmp_path / "later.csv").write_text("id,at\n2,2\n")
    for day in ("A", "x"):
        orders.append({"day": day}, [tmp_path / "later.csv"])
    later = [] if in_files else [("x", 2, 2)]  # a file without the column that others have has null in it
    assert _merged_beside(lake, orders, "x")[0] == [("x", 1, 1), *later]


def test_of_a_source_no_log_is_read_of_a_partition_that_the_filter_excludes(lake: DeltaCatalog, orders: Table) -> None:
    days = [{"day": str(day)} for day in range(4)]
    orders.append_many([(day, some(1), "upsert") for day in days])
    run(lake, {"id"}, days[:2], ELSEWHERE)
    found, read = _merged_beside(lake, lake.table(ELSEWHERE), "1")
    assert (found, read) == ([("1", 1, 1)], {"0", "1"})
    found, read = _merged_beside(lake, lake.table(ELSEWHERE), "3")
    assert (found, read) == ([("3", 1, 1)], {"0", "1", "3"})


def _merged_beside(lake: DeltaCatalog, table: Table, day: str) -> tuple[list[tuple[object, ...]], set[str]]:
    """The rows of a day by a filter of the whole merged table, and the days of which something was read."""
    store = FaultyStore(lake.store)
    scan = DeltaCatalog(store, ManualClock()).table(table.table_id).scan(view="merged", filter=pc.field("day") == day)
    rows = [(row["day"], row["id"], row["at"]) for row in scan.to_table().to_pylist()]
    return sorted(rows), {key.split("day=")[1][:1] for _, key in store.requests if "day=" in key}


def test_a_newer_stream_version_replaces_the_rows_once_it_has_any(lake: DeltaCatalog, orders: Table) -> None:
    orders.append(MONDAY, some(1))
    run(lake, {"id"}, [MONDAY])
    orders.create_stream_version(MONDAY, LifecycleState.ACTIVE)
    assert rows_of(orders) == [("monday", 1, 1)]
    orders.append(MONDAY, some(2))
    assert rows_of(orders) == [("monday", 2, 1)]


def test_a_partition_without_deltas_shows_nothing_and_is_no_reason_to_refuse(lake: DeltaCatalog, orders: Table) -> None:
    orders.create_stream_version(MONDAY, LifecycleState.ACTIVE)
    assert orders.scan(view="merged").to_table().num_rows == 0


def test_deltas_of_a_deprecated_version_are_shown_no_more_than_a_compaction_takes_them(
    lake: DeltaCatalog, orders: Table
) -> None:
    orders.append(MONDAY, some(1))
    run(lake, {"id"}, [MONDAY])
    orders.append(MONDAY, some(2))
    orders.deprecate_stream_version(MONDAY, 1, abandon_pending=True)
    assert rows_of(orders) == rows_of(orders, MONDAY) == [("monday", 1, 1)]
    run(lake, {"id"}, [MONDAY])
    assert rows_of(orders) == [("monday", 1, 1)]


def test_deltas_that_a_released_version_has_left_behind_are_not_shown(lake: DeltaCatalog, orders: Table) -> None:
    orders.append(MONDAY, some(1))
    run(lake, {"id"}, [MONDAY])
    orders.append(MONDAY, some(2))
    orders.create_stream_version(MONDAY, LifecycleState.ACTIVE)
    assert rows_of(orders) == [("monday", 1, 1)]


def test_tombstones_are_remembered_as_long_as_by_the_last_compaction(lake: DeltaCatalog, orders: Table) -> None:
    orders.append(MONDAY, some(1, at=5), position=1)
    run(lake, {"id"}, [MONDAY], tombstone_retention=10)
    orders.append(MONDAY, some(1, at=6), operation="delete", position=2)
    orders.append(MONDAY, some(1, at=4), position=100)
    orders.append(TUESDAY, some(1, at=6), operation="delete", position=2)
    orders.append(TUESDAY, some(1, at=4), position=100)
    assert rows_of(orders) == [("monday", 1, 4), ("tuesday", 1, 4)]
    run(lake, {"id"}, [MONDAY, TUESDAY], tombstone_retention=10)
    assert rows_of(orders) == [("monday", 1, 4), ("tuesday", 1, 4)]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_compacted_the_merged_view_is_the_oracle_s(lake: DeltaCatalog, orders: Table, seed: int) -> None:
    chance = random.Random(seed)
    partitions = [{"day": str(number)} for number in range(3)]
    deltas: dict[str, list[OracleDelta]] = {partition["day"]: [] for partition in partitions}
    orders.append(partitions[0], some(99))
    deltas["0"].append((0, Operation.UPSERT, [some(99).to_pylist()]))
    run(lake, {"id"}, partitions[:1])
    for number in range(1, 8):
        partition = chance.choice(partitions)
        operation = chance.choice([Operation.UPSERT, Operation.UPSERT, Operation.DELETE])
        rows: list[Row] = [{"id": chance.randrange(5), "at": chance.choice([None, 1, 2, 3])} for _ in range(4)]
        schema = pa.schema([("id", pa.int64()), ("at", pa.int64())])
        position = orders.append(partition, pa.Table.from_pylist(rows, schema), operation).position
        deltas[partition["day"]].append((position, operation, [rows]))
        if number == chance.randrange(8):
            run(lake, {"id"}, [partition])
    expected = [{**row, "day": day} for day, each in deltas.items() for row in surviving_rows(each, ["id"], SORT_KEYS)]
    found = orders.scan(view="merged").to_table()
    assert multiset(found, ["day", "id", "at"]) == multiset(expected, ["day", "id", "at"])
