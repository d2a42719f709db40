"""A table that knows itself, where it is used: appends, compactions, plans, documents, gc."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pyarrow as pa
import pytest

from compactor import DeltaCatalog, compact
from compactor.catalog.actions import RoundCommitted
from compactor.lake import Table
from compactor.maintenance.garbage import find_garbage
from compactor.model.errors import Invalid
from compactor.model.names import ContentType
from tests.conftest import Command
from tests.fakes.manual_clock import ManualClock
from tests.fakes.unruly_engine import UnrulyEngine

ORDERS, COMPACTED = "ACME.ORDERS.V1", "ACME.COMPACTED.V1"
DAY = 24 * 3600
ROWS = pa.table({"id": [1, 2, 1], "at": [9, 1, 3], "email": ["ann@example", "bob@example", "eve@example"]})
KNOWING = {"primary_keys": ["id"], "sort_keys": [("at", "ascending")]}


def run(lake: DeltaCatalog, **arguments: object) -> None:
    compact(ORDERS, delta_catalog_client=lake, engine=UnrulyEngine(), **arguments)  # type: ignore[arg-type]


def test_compact_takes_keys_from_the_table_and_another_key_is_refused(lake: DeltaCatalog) -> None:
    orders = lake.create_table(ORDERS, properties=KNOWING)
    orders.append({}, ROWS)
    with pytest.raises(Invalid, match="primary_keys are email, but table"):
        run(lake, primary_keys={"email"})
    with pytest.raises(Invalid, match="sort_keys are id:ascending, but table"):
        run(lake, sort_keys=[("id", "ascending")])
    run(lake)
    assert orders.scan().to_table().sort_by("id")["email"].to_pylist() == ["ann@example", "bob@example"]


def test_a_table_that_does_not_know_its_keys_needs_them(lake: DeltaCatalog) -> None:
    lake.create_table(ORDERS).append({}, ROWS)
    with pytest.raises(Invalid, match="primary_keys is missing"):
        run(lake)


def test_compacted_rows_go_where_the_table_says_in_files_as_it_says(lake: DeltaCatalog) -> None:
    files = {"compacted_file_content_type": "orc", "rows_per_compacted_file": 1}
    orders = lake.create_table(ORDERS, properties={**KNOWING, **files, "destination_compacted_table_id": COMPACTED})
    orders.append({}, ROWS)
    run(lake)
    assert orders.stream({}).load().state.compacted is None
    compacted = lake.table(COMPACTED).stream({}).load().state.compacted
    assert compacted is not None
    assert [(file.content_type, file.rows) for file in compacted.files.values()] == [(ContentType.ORC, 1)] * 2


def test_compacted_files_have_about_as_many_bytes_as_the_table_says(lake: DeltaCatalog) -> None:
    """Of incompressible rows, so that their bytes are known: four files, and after the next round none is larger."""
    orders = lake.create_table(ORDERS, properties={"primary_keys": ["id"], "bytes_per_compacted_file": 25_000})
    noise = [bytes((n * 7919 + k * k * 104_729) % 251 for k in range(100)) for n in range(1_000)]
    orders.append({}, pa.table({"id": range(1_000), "noise": noise}))
    run(lake)
    orders.append({}, pa.table({"id": range(0, 1_000, 3), "noise": noise[:334]}))
    run(lake)
    compacted = orders.stream({}).load().state.compacted
    assert compacted is not None
    sizes = [file.size_bytes for file in compacted.files.values()]
    assert len(sizes) >= compacted.bytes_at_rest // 25_000
    assert max(sizes) < 1.5 * 25_000, "the estimate is by the size of rows in other files"


def test_bounds_of_private_columns_are_in_no_log(lake: DeltaCatalog, tmp_path: Path) -> None:
    orders = lake.create_table(
        ORDERS, properties={**KNOWING, "private_columns": ["email"], "destination_compacted_table_id": COMPACTED}
    )
    first = orders.append({}, ROWS)
    registered = orders.append({}, [orders.stream({}).uri_of(first.files[0].path)], delta_id="registered")
    run(lake)
    compacted = lake.table(COMPACTED).stream({})
    (round_committed,) = (
        action for entry in compacted.log.entries() for action in entry.actions if isinstance(action, RoundCommitted)
    )
    for file in (*first.files, *registered.files, *round_committed.files_added):
        assert file.columns.keys() == {"id", "at"}
    assert lake.table(COMPACTED).properties.private_columns == ("email",)
    logs = [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix in (".json", ".checkpoint.parquet")]
    assert logs
    assert not [path for path in logs if b"@example" in path.read_bytes()]


def test_an_offline_table_takes_no_deltas_and_no_compaction_and_can_be_read(lake: DeltaCatalog) -> None:
    orders = lake.create_table(ORDERS, properties=KNOWING)
    orders.append({}, ROWS)
    run(lake)
    orders.set_properties({"state": "offline"})
    with pytest.raises(Invalid, match="is offline: it takes no deltas until `lithify table set"):
        orders.append({}, ROWS)
    with pytest.raises(Invalid, match="is offline: it takes no compaction"):
        run(lake)
    assert orders.scan().to_table().num_rows == 2
    orders.set_properties({"state": "online"})
    orders.append({}, ROWS)
    run(lake)


def test_no_compaction_goes_into_an_offline_table(lake: DeltaCatalog) -> None:
    lake.create_table(COMPACTED, properties={"state": "offline"})
    orders = lake.create_table(ORDERS, properties={**KNOWING, "destination_compacted_table_id": COMPACTED})
    orders.append({}, ROWS)
    with pytest.raises(Invalid, match=f"table {COMPACTED} is offline"):
        run(lake)


def test_a_writer_that_goes_on_for_long_sees_new_properties(lake: DeltaCatalog, clock: ManualClock) -> None:
    writer = lake.create_table(ORDERS)
    writer.append({}, ROWS)  # before the first delta of a stream they are read again in any case
    DeltaCatalog(lake.store, clock).table(ORDERS).set_properties({"private_columns": ["email"]})
    assert "email" in writer.append({}, ROWS).files[0].columns
    clock.sleep(60)
    assert "email" not in writer.append({}, ROWS).files[0].columns


@pytest.fixture
def orders(lake: DeltaCatalog) -> Table:
    orders = lake.create_table(ORDERS, properties=KNOWING)
    for _ in range(2):
        orders.append({}, ROWS)
        run(lake)
    return orders


def test_gc_keeps_for_the_retention_what_was_replaced(lake: DeltaCatalog, orders: Table, clock: ManualClock) -> None:
    clock.sleep(8 * DAY)
    (by_grace,) = find_garbage(lake.store, ORDERS, clock)
    assert by_grace.garbage
    (by_retention,) = find_garbage(lake.store, ORDERS, clock, retention_seconds=30 * DAY)
    assert by_retention.garbage == ()
    clock.sleep(23 * DAY)
    (after,) = find_garbage(lake.store, ORDERS, clock, retention_seconds=30 * DAY)
    assert after.garbage == by_grace.garbage


def test_the_verb_gc_takes_its_grace_for_tables_that_set_none(tmp_path: Path, command: Command) -> None:
    """Files of three days ago that nothing needs: one in each table."""
    lake = DeltaCatalog.open(tmp_path / "lake")
    three_days_ago = time.time() - 3 * DAY
    lake.create_table(ORDERS, properties={"gc_grace_seconds": 4 * DAY}).append({}, ROWS)
    lake.create_table("ACME.OTHER.V1").append({}, ROWS)
    for table_id in (ORDERS, "ACME.OTHER.V1"):
        key = f"tables/{table_id}/data/_/delta/{'a' * 32}/1.parquet"
        lake.store.overwrite(key, b"left over")
        os.utime(tmp_path / "lake" / key, (three_days_ago, three_days_ago))

    def garbage(*options: str) -> list[tuple[str, int]]:
        result = command("gc", "--lake", str(tmp_path / "lake"), "--output", "json", *options)
        assert result.exit_code == 0
        return [(each["stream"].split()[0], each["garbage_files"]) for each in json.loads(result.out)["streams"]]

    assert garbage() == [(ORDERS, 0), ("ACME.OTHER.V1", 0)]
    assert garbage("--grace-hours", "48") == [(ORDERS, 0), ("ACME.OTHER.V1", 1)]
    assert garbage("--grace-hours", "120") == [(ORDERS, 0), ("ACME.OTHER.V1", 0)]
    assert garbage("--grace-hours", "48", "--nothing-runs") == [(ORDERS, 1), ("ACME.OTHER.V1", 1)]
    assert garbage("--grace-hours", "48", "--delete") == [(ORDERS, 0), ("ACME.OTHER.V1", 1)]


def test_plan_and_compact_of_the_command_line_take_keys_from_the_table(tmp_path: Path, command: Command) -> None:
    lake = DeltaCatalog.open(tmp_path / "lake")
    orders = lake.create_table(ORDERS, properties=KNOWING)
    orders.append({}, ROWS)
    document = tmp_path / "document.json"
    document.write_text(json.dumps({"schema_version": "1", "source_table_id": ORDERS}))
    planned = command("plan", str(document), "--lake", str(tmp_path / "lake"), "-o", "json")
    assert planned.exit_code == 0, planned.err
    assert json.loads(planned.out)["total"]["delta_rows"] == 3
    document.write_text(json.dumps({"schema_version": "1", "source_table_id": ORDERS, "primary_keys": ["at"]}))
    refused = command("plan", str(document), "--lake", str(tmp_path / "lake"))
    assert refused.exit_code == 2
    assert "primary_keys=id: leave them out" in " ".join(refused.err.split())
    compacted = command("compact", ORDERS, "--lake", str(tmp_path / "lake"))
    assert compacted.exit_code == 0, compacted.err
    assert orders.scan().to_table().num_rows == 2
