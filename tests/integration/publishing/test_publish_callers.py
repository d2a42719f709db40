"""Who publishes: the end of `compact()`, `lithify publish`, and what shows and checks it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder

from compactor import DeltaCatalog, compact
from compactor.catalog.keys import TableFolder, is_open_file
from compactor.catalog.properties import GRACE_SECONDS
from compactor.lake import Table
from compactor.maintenance.garbage import delete_garbage, find_garbage
from compactor.model.clock import SystemClock
from compactor.publishing.delta import DeltaPublisher
from compactor.publishing.publication import differences
from dispatcher.operations.table_lag import table_lag
from tests.builders import TABLE_ID
from tests.conftest import Command
from tests.fakes.faulty_store import FaultyStore
from tests.fakes.manual_clock import ManualClock

EU, US = {"region": "EU"}, {"region": "US"}


@pytest.fixture
def lake(tmp_path: Path) -> DeltaCatalog:
    return DeltaCatalog.open(tmp_path)


@pytest.fixture
def table(lake: DeltaCatalog) -> Table:
    return lake.create_table(TABLE_ID, ["region"], primary_keys={"id"}, properties={"publish": "delta"})


def _compact(lake: DeltaCatalog, **arguments: object) -> None:
    compact(TABLE_ID, delta_catalog_client=lake, **arguments)  # type: ignore[arg-type]


def _read(lake: DeltaCatalog) -> list[tuple[int, str]]:
    root = Path(lake.location.root_uri.removeprefix("file://")) / "tables" / TABLE_ID / "compacted"
    rows = pa.table(QueryBuilder().register("t", DeltaTable(str(root))).execute("select id, region from t"))
    return sorted(zip(rows.column("id").to_pylist(), rows.column("region").to_pylist(), strict=True))


def _answer(command: Command, field: str, *arguments: str) -> Any:  # noqa: ANN401 (it is JSON)
    """The only element of a list in the answer."""
    (only,) = json.loads(command(*arguments, "--output", "json").out)[field]
    return only


def test_compact_publishes_at_its_end(lake: DeltaCatalog, table: Table) -> None:
    table.append(EU, pa.table({"id": [1, 2]}))
    _compact(lake)
    assert _read(lake) == [(1, "EU"), (2, "EU")]
    table.append(EU, pa.table({"id": [2]}), operation="delete")
    table.append(US, pa.table({"id": [5]}))
    _compact(lake, max_dead_row_share=0.9)
    assert _read(lake) == [(1, "EU"), (5, "US")]


def test_a_compaction_whose_publication_fails_succeeds_and_the_next_one_publishes_both(
    lake: DeltaCatalog, table: Table, tmp_path: Path
) -> None:
    table.append(EU, pa.table({"id": [1]}))
    log = tmp_path / "tables" / TABLE_ID / "compacted"
    log.mkdir(parents=True)
    (log / "_delta_log").write_text("in the way")
    _compact(lake)
    assert table.scan().count_rows() == 1
    (log / "_delta_log").unlink()
    table.append(EU, pa.table({"id": [2]}))
    _compact(lake)
    assert _read(lake) == [(1, "EU"), (2, "EU")]


def test_publish_shows_in_a_dry_run_what_it_then_does(lake: DeltaCatalog, table: Table, command: Command) -> None:
    where = ("--lake", lake.location.root_uri)
    table.set_properties({"publish": None})
    table.append(EU, pa.table({"id": [1, 2], "at": pa.array([1, 2], pa.time32("s"))}))
    _compact(lake)
    refused = command("publish", TABLE_ID, *where)
    assert refused.exit_code == 2
    assert f"lithify table set {TABLE_ID} publish=delta" in refused.err
    table.set_properties({"publish": "delta"})
    closed = command("publish", TABLE_ID, *where)
    assert closed.exit_code == 1
    assert "written before the table was published" in closed.out
    _compact(lake)
    table.append(EU, pa.table({"id": [3]}))
    table.set_properties({"publish": None})
    _compact(lake)
    table.set_properties({"publish": ["delta"]})
    shown = command("table", "show", TABLE_ID, *where)
    assert "delta has no type for at" in shown.out
    _compact(lake)
    assert [id_ for id_, _ in _read(lake)] == [1, 2, 3]
    planned = _answer(command, "tables", "publish", "--dry-run", *where)
    assert (planned["behind"], planned["state"]) == (0, "published")
    assert command("publish", "--dry-run", *where).out.startswith("Everything is published: there would be nothing")


def test_a_table_that_cannot_be_published_stops_no_other_and_says_why_in_every_form(
    lake: DeltaCatalog, table: Table, command: Command, tmp_path: Path
) -> None:
    closed = lake.create_table("ACME.CLOSED.V1", primary_keys={"id"})
    closed.append({}, pa.table({"id": [1]}))
    compact(closed.table_id, delta_catalog_client=lake)
    closed.set_properties({"publish": "delta"})
    damaged = lake.create_table("ACME.A.V1", properties={"publish": "delta"})
    (tmp_path / TableFolder(damaged.table_id).definition_log / f"{1:020d}.json").write_text("{damaged")
    table.append(EU, pa.table({"id": [1]}))
    _compact(lake)
    for path in (tmp_path / "tables" / TABLE_ID / "compacted" / "_delta_log").iterdir():
        path.unlink()
    where = ("--lake", lake.location.root_uri)
    planned = command("publish", *where, "--dry-run")
    assert (planned.exit_code, planned.out.count("does not hold what Lithify writes there")) == (1, 1)
    with_json = command("publish", *where, "-o", "json")
    records = json.loads(with_json.out)["tables"]
    assert _read(lake) == [(1, "EU")]
    with_lines = command("publish", *where, "-o", "jsonl")
    reasons = [json.loads(line)["reasons"] for line in with_lines.out.splitlines()]
    assert reasons == [each["reasons"] for each in records]
    assert [(each["table_id"], each["format"], each["state"]) for each in records] == [
        (damaged.table_id, None, "failed"),
        (closed.table_id, "delta", "refused"),
        (TABLE_ID, "delta", "published"),
    ]
    of_damaged, of_closed = (reason for each in records for reason in each["reasons"])
    assert f"{TableFolder(damaged.table_id).definition_log}/" in of_damaged
    assert "written before the table was published" in of_closed
    assert (with_json.exit_code, with_lines.exit_code) == (1, 1)


def test_show_has_the_lag_and_publish_ends_it(
    lake: DeltaCatalog, table: Table, command: Command, tmp_path: Path
) -> None:
    where = ("--lake", lake.location.root_uri)
    table.append(EU, pa.table({"id": [1]}))
    _compact(lake)
    for path in (tmp_path / "tables" / TABLE_ID / "compacted" / "_delta_log").iterdir():
        path.unlink()
    stream = _answer(command, "streams", "table", "show", TABLE_ID, *where)
    assert stream["unpublished_files"] == 1
    assert stream["published_lag_seconds"] >= 0
    before = sorted(tmp_path.rglob("*"))
    planned = _answer(command, "tables", "publish", TABLE_ID, "--dry-run", *where)
    assert (planned["behind"], planned["state"], planned["version"]) == (1, "behind", None)
    assert command("publish", "--dry-run", *where).out.startswith("Nothing was written. Without --dry-run")
    assert sorted(tmp_path.rglob("*")) == before, "a dry run writes nothing"
    done = _answer(command, "tables", "publish", *where)
    assert (done["state"], done["version"], done["files_added"]) == ("published", 0, 1)
    stream = _answer(command, "streams", "table", "show", TABLE_ID, *where)
    assert (stream["unpublished_files"], stream["published_lag_seconds"]) == (0, None)


def test_verify_finds_what_is_published_otherwise_than_the_log_says(
    lake: DeltaCatalog, table: Table, command: Command, tmp_path: Path
) -> None:
    where = ("--lake", lake.location.root_uri)
    table.append(EU, pa.table({"id": [1, 2]}))
    _compact(lake)
    sound = command("table", "verify", TABLE_ID, "--published", *where)
    assert sound.exit_code == 0, sound.err
    log = tmp_path / "tables" / TABLE_ID / "compacted" / "_delta_log" / f"{0:020d}.json"
    lines = [line for line in log.read_text().splitlines() if not line.startswith('{"add"')]
    log.write_text("\n".join(lines) + "\n")
    damaged = command("table", "verify", TABLE_ID, "--published", *where)
    assert damaged.exit_code == 1
    assert "delta lacks tables/" in damaged.out
    assert "publish the table again" in " ".join(damaged.err.split())


def test_a_place_that_other_engines_decode_is_refused_when_the_property_is_set(tmp_path: Path) -> None:
    from compactor.model.errors import Invalid

    lake = DeltaCatalog.open(tmp_path / "my lake")
    lake.create_table("ACME.ORDERS.V1").append({}, pa.table({"id": [1]}))
    with pytest.raises(Invalid, match="the lake's root"):
        lake.table("ACME.ORDERS.V1").set_properties({"publish": "delta"})
    other = DeltaCatalog.open(tmp_path)
    with pytest.raises(Invalid, match="the table's folder"):
        other.create_table("ACME.MY ORDERS.V1", properties={"publish": "delta"})


# -- garbage collection


def _aged(lake: DeltaCatalog, seconds: float) -> ManualClock:
    return ManualClock(SystemClock().now_ms() + int(seconds * 1_000))


def test_files_that_a_publisher_that_lags_still_shows_are_no_garbage(
    lake: DeltaCatalog, table: Table, tmp_path: Path
) -> None:
    table.append(EU, pa.table({"id": [1, 2]}))
    _compact(lake)  # and publishes
    shown = set(DeltaPublisher(lake.store, TABLE_ID, ("region",), SystemClock()).state().files)
    table.set_properties({"publish": None})  # nobody publishes any more
    for number in range(3):
        table.append(EU, pa.table({"id": [1], "n": [number]}))
        _compact(lake)
    long_after = _aged(lake, 10 * GRACE_SECONDS)
    for garbage in find_garbage(lake.store, TABLE_ID, long_after):
        delete_garbage(lake.store, garbage)
    assert shown
    assert all((tmp_path / path).exists() for path in shown)
    assert _read(lake) == [(1, "EU"), (2, "EU")], "what is published stays readable"


def test_replaced_open_files_and_vectors_go_when_no_version_of_the_grace_period_names_them(
    lake: DeltaCatalog, table: Table, tmp_path: Path
) -> None:
    table.append(EU, pa.table({"id": list(range(10))}))
    _compact(lake)
    for number in range(12):
        table.append(EU, pa.table({"id": [number]}), operation="delete" if number < 5 else "upsert")
        _compact(lake, max_dead_row_share=0.9)
    root = tmp_path / "tables" / TABLE_ID / "compacted"
    before = {path for path in root.rglob("*") if path.is_file()}

    def collect(seconds: float) -> set[Path]:
        for garbage in find_garbage(lake.store, TABLE_ID, _aged(lake, seconds)):
            assert garbage.unknown == ()
            delete_garbage(lake.store, garbage)
        return before - {path for path in root.rglob("*") if path.is_file()}

    assert collect(GRACE_SECONDS / 2) == set(), "what readers of older versions may read stays"
    gone = collect(GRACE_SECONDS + 60)
    assert any(is_open_file(str(path.relative_to(tmp_path))) for path in gone)
    assert any(path.suffix == ".bin" for path in gone)
    assert {path.name for path in gone if path.parent.name == "_delta_log"} == {
        f"{version:020d}.json" for version in range(10)
    }
    assert _read(lake) == [(number, "EU") for number in range(5, 12)]
    fresh = DeltaPublisher(lake.store, TABLE_ID, ("region",), SystemClock())
    assert fresh.state().version == 12
    (root / "_delta_log" / "_last_checkpoint").unlink()
    assert DeltaPublisher(lake.store, TABLE_ID, ("region",), SystemClock()).state() == fresh.state()


def test_readers_of_a_published_table_see_no_row_of_what_was_dropped(lake: DeltaCatalog, table: Table) -> None:
    table.append(EU, pa.table({"id": [1]}))
    table.append(US, pa.table({"id": [2]}))
    _compact(lake)
    table.drop_partitions(US, dry_run=False)
    assert _read(lake) == [(1, "EU")]
    publisher = DeltaPublisher(lake.store, TABLE_ID, ("region",), SystemClock())
    every = [table.stream(partition) for partition in table.partitions_even_dropped()]
    assert list(differences(publisher, every)) == []
    lake.drop_table(TABLE_ID, dry_run=False)
    assert _read(lake) == []


def test_what_a_drop_could_not_publish_lags_and_is_published_by_the_next_compaction(
    lake: DeltaCatalog, table: Table
) -> None:
    table.append(EU, pa.table({"id": [1]}))
    table.append(US, pa.table({"id": [2]}))
    _compact(lake)
    store = FaultyStore(lake.store)
    store.fail("put_if_absent", "_delta_log", times=None)
    DeltaCatalog(store, SystemClock()).table(TABLE_ID).drop_partitions(US, dry_run=False)
    assert len(_read(lake)) == 2
    assert table_lag(lake.store, lake.table(TABLE_ID), SystemClock()).figures.unpublished_files == 1
    _compact(lake)
    assert _read(lake) == [(1, "EU")]
    assert table_lag(lake.store, lake.table(TABLE_ID), SystemClock()).figures.unpublished_files == 0


def test_readers_of_a_published_table_see_restored_rows(lake: DeltaCatalog, table: Table) -> None:
    table.append(EU, pa.table({"id": [1]}))
    _compact(lake)
    entry = table.stream(EU).load().entry_number
    table.append(EU, pa.table({"id": [2]}))
    _compact(lake)
    table.restore(entry, EU, dry_run=False)
    assert _read(lake) == [(1, "EU")]


def test_a_checkpoint_after_a_restore_does_not_remove_what_it_adds(
    lake: DeltaCatalog, table: Table, tmp_path: Path
) -> None:
    """Some readers take the last action of a file, whichever that is."""
    table.append(EU, pa.table({"id": [1], "v": [1]}))
    _compact(lake)
    entry = table.stream(EU).load().entry_number
    table.append(EU, pa.table({"id": [1], "v": [2]}))
    _compact(lake)
    table.restore(entry, EU, dry_run=False)
    log = tmp_path / "tables" / TABLE_ID / "compacted" / "_delta_log"
    number = 1
    while not (checkpoints := list(log.glob("*.checkpoint.parquet"))):
        number += 1
        table.append(US, pa.table({"id": [number], "v": [number]}))
        _compact(lake)
    actions = pq.read_table(checkpoints[0])
    added, removed = ({each["path"] for each in actions[name].drop_null().to_pylist()} for name in ("add", "remove"))
    assert (len(added & removed), len(removed)) == (0, 1)
    assert (1, "EU") in _read(lake)


def test_a_purge_takes_published_files_along(lake: DeltaCatalog, table: Table, tmp_path: Path) -> None:
    table.append(EU, pa.table({"id": [1]}))
    _compact(lake)
    lake.purge_table(TABLE_ID, dry_run=False, nothing_runs=True)
    assert not [path for path in (tmp_path / "tables").rglob("*") if path.is_file()]


def test_an_attempt_to_publish_writes_vectors_under_names_that_no_other_attempt_uses(
    lake: DeltaCatalog, table: Table, tmp_path: Path
) -> None:
    """So garbage collection may delete what a failed attempt has left, while the next one is about to commit."""
    table.append(EU, pa.table({"id": list(range(10))}))
    _compact(lake)
    table.append(EU, pa.table({"id": [3]}), operation="delete")
    store = FaultyStore(lake.store)
    store.fail("put_if_absent", "_delta_log", times=None)
    _compact(DeltaCatalog(store, SystemClock()), max_dead_row_share=0.9)
    folder = tmp_path / "tables" / TABLE_ID / "compacted" / "dead"
    left = list(folder.rglob("*.bin"))
    DeltaPublisher(lake.store, TABLE_ID, ("region",), SystemClock()).publish([table.stream(EU)])
    assert (len(left), len(list(folder.rglob("*.bin")))) == (1, 2)
    left[0].unlink()
    assert _read(lake) == [(number, "EU") for number in range(10) if number != 3]
