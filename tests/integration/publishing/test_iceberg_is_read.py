"""A published table as PyIceberg reads it: exact rows, and no way to harm the files. `make test-readers` has more."""

from __future__ import annotations

import json
import random
import shutil
import sys
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import ManifestContent, ManifestEntryStatus
from pyiceberg.table import StaticTable

from compactor import DeltaCatalog, compact
from compactor.catalog.keys import is_open_file
from compactor.catalog.partition_split import Partitioning
from compactor.catalog.properties import GRACE_SECONDS
from compactor.lake import Table
from compactor.maintenance.garbage import delete_garbage, find_garbage
from compactor.model.clock import Clock, SystemClock
from compactor.model.errors import Corrupt, Invalid, Unavailable
from compactor.model.names import OpenFormat
from compactor.publishing.iceberg import GROUPS_MAX, IcebergPublisher
from compactor.publishing.iceberg_metadata import METADATA_BYTES_MAX, SNAPSHOTS_MAX
from compactor.publishing.keys import IcebergMetadata
from compactor.publishing.protocol import NothingToPublish, Published
from compactor.publishing.publication import PublishFailed, publish, publishers_of
from compactor.schemas.open_types import OpenTable, reasons_against
from tests.arrow_types import KEY_TYPES, KeyType
from tests.builders import TABLE_ID
from tests.crashes import HurriedClock
from tests.fakes.faulty_store import FaultyStore
from tests.fakes.manual_clock import ManualClock
from tests.integration.publishing.test_delta_is_read import some_values
from tests.open_rounds import SCHEMA, OpenLake
from tests.published_rows import PARTITIONS, append_round, compact_all, differences, published_lake

BY_REGION = Partitioning(("region",))


def _publisher(lake: DeltaCatalog, table: Table) -> IcebergPublisher:
    return IcebergPublisher(lake.store, table.table_id, table.partitioning, SystemClock(), GRACE_SECONDS)


def _open(folder: Path, version: int | None = None) -> StaticTable:
    """The table as a reader of the folder finds it."""
    metadata = folder / "tables" / TABLE_ID / "iceberg" / "metadata"
    newest = version or int((metadata / "version-hint.text").read_text())
    return StaticTable.from_metadata(str(metadata / f"v{newest}.metadata.json"))


def _read(folder: Path) -> pa.Table:
    return _open(folder).scan().to_arrow()


def test_every_round_is_read_as_a_scan_reads_it_then_and_by_time_travel(tmp_path: Path) -> None:
    lake, table = published_lake(tmp_path, "iceberg")
    publisher, chance = _publisher(lake, table), random.Random(1)
    marked, scans = 0, []
    for turn in range(3):
        for partition in PARTITIONS[: 1 + (turn > 0)]:
            append_round(table, partition, chance, turn)
        compact_all(lake)
        outcome = publisher.publish([table.stream(partition) for partition in table.partitions()])
        assert outcome == NothingToPublish(publisher.format, turn + 1), "compact() has published it"
        marked += sum(file.dead_rows for file in publisher.state().files.values())
        scans.append(table.scan().to_table())
        assert differences(scans[-1], _read(tmp_path)) == []
    assert marked, "some files are kept with dead rows"
    newest = _open(tmp_path)
    for snapshot, scanned in zip(newest.metadata.snapshots, scans, strict=True):
        assert differences(scanned, newest.scan(snapshot_id=snapshot.snapshot_id).to_arrow()) == []


def test_both_formats_are_published_over_the_same_files(tmp_path: Path) -> None:
    lake, table = published_lake(tmp_path, "delta,iceberg")
    append_round(table, PARTITIONS[0], random.Random(1), 0)
    compact_all(lake)
    delta, iceberg = publishers_of(lake.store, table, SystemClock())
    assert delta.state().files.keys() == iceberg.state().files.keys() != set()
    assert delta.state().entries == iceberg.state().entries
    assert differences(table.scan().to_table(), _read(tmp_path)) == []


@pytest.mark.parametrize("kind", KEY_TYPES, ids=str)
def test_every_arrow_type_is_refused_or_read_as_a_scan_reads_it(kind: KeyType, tmp_path: Path) -> None:
    values = some_values(kind)
    rows = pa.table({"id": list(range(len(values) + 1)), "value": kind.array([*values, None])})
    refused = list(reasons_against(rows.schema, OpenTable(["region", "day"], {"id"}, (), for_delta=False)))
    lake, table = published_lake(tmp_path, "iceberg")
    if refused:
        with pytest.raises(Invalid, match="'value' is"):
            table.append(PARTITIONS[0], rows)
        return
    table.append(PARTITIONS[0], rows)
    compact(TABLE_ID, {"id"}, delta_catalog_client=lake)
    assert differences(table.scan().to_table(), _read(tmp_path)) == []


def test_filters_find_the_rows_also_in_files_that_are_narrower_than_the_column(tmp_path: Path) -> None:
    lake = DeltaCatalog.open(tmp_path)
    table = lake.create_table(TABLE_ID, ["region"], properties={"publish": "iceberg"})
    for region, kind, first in (("EU", pa.int32(), -50), ("US", pa.int64(), 2**40)):
        count = 100
        rows = pa.table(
            {
                "id": pa.array(range(first, first + count), kind),
                "at": pa.array(
                    [number * 86_400_000_001 - 10**12 for number in range(count)], pa.timestamp("us", "UTC")
                ),
                "day": pa.array(range(-50, 50), pa.date32()),
                "name": [f"n{number:03}" if number % 2 else None for number in range(count)],
                "real": pa.array([float("nan") if number % 3 == 0 else number for number in range(count)]),
            }
        )
        table.append({"region": region}, rows)
        compact(TABLE_ID, {"id"}, delta_catalog_client=lake, rows_per_compacted_file=10)
    scanned, published = table.scan().to_table(), _open(tmp_path)
    assert str(published.schema().find_type("id")) == "long"
    noon = datetime(1970, 1, 20, 12, tzinfo=UTC)
    filters: list[tuple[str, pc.Expression]] = [
        ("id = -7", pc.field("id") == -7),
        (f"id >= {2**40 + 95}", pc.field("id") >= 2**40 + 95),
        (f"at < '{noon.isoformat()}'", pc.field("at") < noon),
        ("day = '1969-12-31'", pc.field("day") == date(1969, 12, 31)),
        (
            "name = 'n051' and region = 'EU'",
            (pc.field("name") == "n051") & (pc.field("region") == "EU"),
        ),
        ("name is null", pc.field("name").is_null()),
        ("real >= 90.0", pc.field("real") >= 90.0),
    ]
    for row_filter, expected in filters:
        rows = published.scan(row_filter=row_filter).to_arrow()
        assert rows.num_rows
        assert differences(scanned.filter(expected), rows) == [], row_filter
    planned = {task.file.file_path for task in published.scan(row_filter="id < 100").plan_files()}
    of_region = {task.file.file_path for task in published.scan(row_filter="region = 'EU'").plan_files()}
    assert planned == of_region, "bounds leave the files of the other region out"


# -- statuses, groups, snapshots


def _lake(folder: Path, clock: Clock | None = None) -> tuple[OpenLake, IcebergPublisher]:
    lake = OpenLake(folder, clock=clock)
    return lake, IcebergPublisher(lake.store, TABLE_ID, BY_REGION, clock or HurriedClock(), GRACE_SECONDS)


def _write_out(lake: OpenLake, folder: Path) -> None:
    """Brings the metadata in memory to the disk, where PyIceberg reads them."""
    for entry in lake.store.list(f"tables/{TABLE_ID}/iceberg/"):
        path = folder / entry.key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(lake.store.read(entry.key) or b"")


def _statuses(table: StaticTable, content: ManifestContent) -> Mapping[tuple[ManifestEntryStatus, int | None], int]:
    """How many entries of the newest snapshot have each status and sequence number."""
    snapshot = table.current_snapshot()
    assert snapshot is not None
    found: Counter[tuple[ManifestEntryStatus, int | None]] = Counter()
    for manifest in snapshot.manifests(PyArrowFileIO()):
        if manifest.content == content:
            for entry in manifest.fetch_manifest_entry(PyArrowFileIO(), discard_deleted=False):
                found[entry.status, entry.sequence_number] += 1
    return found


def test_statuses_and_sequence_numbers_say_what_each_snapshot_has_changed(tmp_path: Path) -> None:
    lake, publisher = _lake(tmp_path)
    stream = lake.stream("EU")
    added, existing, deleted = ManifestEntryStatus.ADDED, ManifestEntryStatus.EXISTING, ManifestEntryStatus.DELETED
    lake.commit("EU", added=3)
    publisher.publish([stream])
    lake.commit("EU", added=1, removed=[1], dead={2: [0, 7]})
    outcome = publisher.publish([stream])
    _write_out(lake, tmp_path)
    second = _open(tmp_path)
    assert isinstance(outcome, Published)
    assert outcome.snapshot == second.metadata.current_snapshot_id
    assert _statuses(second, ManifestContent.DATA) == {(added, 2): 1, (existing, 1): 2, (deleted, 1): 1}
    assert _statuses(second, ManifestContent.DELETES) == {(added, 2): 1}
    lake.commit("EU", dead={2: [0, 7, 9], 3: [1]})
    publisher.publish([stream])
    _write_out(lake, tmp_path)
    third = _open(tmp_path)
    assert _statuses(third, ManifestContent.DATA) == {(existing, 1): 2, (existing, 2): 1}
    assert _statuses(third, ManifestContent.DELETES) == {(added, 3): 2, (deleted, 2): 1}
    newest = third.current_snapshot()
    assert newest is not None
    assert newest.summary is not None
    figures = newest.summary.additional_properties
    assert [figures[f"total-{name}"] for name in ("data-files", "records", "delete-files", "position-deletes")] == [
        "3",
        "300",
        "2",
        "4",
    ]
    assert newest.summary.operation.value == "overwrite"
    first = third.metadata.snapshots[0].summary
    assert first is not None
    assert first.operation.value == "append"


def test_many_partitions_share_manifests_and_only_changed_groups_are_written(tmp_path: Path) -> None:
    lake, publisher = _lake(tmp_path)
    names = [f"r{number}" for number in range(200)]
    for name in names:
        lake.commit(name, added=1)
    outcome = publisher.publish([lake.stream(name) for name in names])
    assert isinstance(outcome, Published)
    assert len(outcome.entries) == 200
    before = {entry.key for entry in lake.store.list(f"tables/{TABLE_ID}/iceberg/")}
    assert sum(key.endswith("-data.avro") for key in before) <= GROUPS_MAX
    lake.commit("r7", added=1)
    publisher.publish([lake.stream("r7")])
    written = {entry.key for entry in lake.store.list(f"tables/{TABLE_ID}/iceberg/")} - before
    assert sorted(key.rpartition("-")[2] for key in written if key.endswith(("-data.avro", "-deletes.avro"))) == [
        "data.avro"
    ]
    _write_out(lake, tmp_path)
    newest = _open(tmp_path).current_snapshot()
    assert newest is not None
    manifests = newest.manifests(PyArrowFileIO())
    assert sum((each.added_files_count or 0) + (each.existing_files_count or 0) for each in manifests) == 201


def test_metadata_lists_few_snapshots_none_older_than_the_grace_period_and_stays_small(tmp_path: Path) -> None:
    clock = ManualClock(1_800_000_000_000)
    lake, publisher = _lake(tmp_path, clock)
    stream = lake.stream("EU")

    def newest(version: int) -> dict[str, list[dict[str, int]]]:
        body = lake.store.read(IcebergMetadata(TABLE_ID, version).key) or b""
        assert len(body) <= METADATA_BYTES_MAX
        parsed: dict[str, list[dict[str, int]]] = json.loads(body)
        return parsed

    for _ in range(SNAPSHOTS_MAX + 5):
        clock.sleep(1)
        lake.commit("EU", added=1, schema=SCHEMA)
        publisher.publish([stream])
    assert len(newest(SNAPSHOTS_MAX + 5)["snapshots"]) == SNAPSHOTS_MAX
    clock.sleep(GRACE_SECONDS + 60)
    lake.commit("EU", added=1)
    publisher.publish([stream])
    (only,) = newest(SNAPSHOTS_MAX + 6)["snapshots"]
    assert only["sequence-number"] == SNAPSHOTS_MAX + 6
    wide = pa.schema([*SCHEMA, *(pa.field(f"a_column_with_a_long_name_{number}", pa.int64()) for number in range(300))])
    for turn in range(8):
        lake.commit("EU", added=1, schema=wide.append(pa.field(f"more_{turn}", pa.int64())))
        publisher.publish([stream])
    assert 1 < len(newest(SNAPSHOTS_MAX + 14)["snapshots"]) < 9


# -- the hint, and other harm


def test_a_hint_that_is_behind_is_repaired_even_if_nothing_else_is_due(tmp_path: Path) -> None:
    lake, publisher = _lake(tmp_path)
    hint = IcebergMetadata(TABLE_ID, None).key
    lake.commit("EU", added=1)
    publisher.publish([lake.stream("EU")])
    lake.commit("EU", added=1)
    store = FaultyStore(lake.store)
    store.fail("overwrite", times=None)
    unlucky = IcebergPublisher(store, TABLE_ID, BY_REGION, HurriedClock(), GRACE_SECONDS)
    assert isinstance(unlucky.publish([lake.stream("EU")]), Published), "the commit stands without its hint"
    assert lake.store.read(hint) == b"1"
    for each in (publisher, _lake(tmp_path / "other")[1]):
        each.publish([])
    fresh = IcebergPublisher(lake.store, TABLE_ID, BY_REGION, HurriedClock(), GRACE_SECONDS)
    assert isinstance(fresh.publish([lake.stream("EU")]), NothingToPublish)
    assert lake.store.read(hint) == b"2"
    for damaged in (b"1", b"", b"rubbish"):
        lake.store.overwrite(hint, damaged)
        assert isinstance(fresh.publish([]), NothingToPublish)
        assert lake.store.read(hint) == b"2"
    lake.store.delete(hint)
    again = IcebergPublisher(lake.store, TABLE_ID, BY_REGION, HurriedClock(), GRACE_SECONDS)
    assert again.state() == fresh.state()


def test_published_metadata_can_be_deleted_and_made_again(tmp_path: Path) -> None:
    lake, table = published_lake(tmp_path, "iceberg")
    append_round(table, PARTITIONS[0], random.Random(4), 0)
    compact_all(lake)
    shutil.rmtree(tmp_path / "tables" / TABLE_ID / "iceberg")
    again = _publisher(lake, table).publish([table.stream(PARTITIONS[0])])
    assert isinstance(again, Published)
    assert again.version == 1
    assert differences(table.scan().to_table(), _read(tmp_path)) == []


def test_damaged_metadata_is_named_with_what_to_do(tmp_path: Path) -> None:
    lake, table = published_lake(tmp_path, "iceberg")
    append_round(table, PARTITIONS[0], random.Random(4), 0)
    compact_all(lake)
    metadata = tmp_path / "tables" / TABLE_ID / "iceberg" / "metadata"
    (manifest,) = metadata.glob("*-data.avro")
    whole = manifest.read_bytes()
    for body in (b"", whole[: len(whole) // 2], b"rubbish"):
        manifest.write_bytes(body)
        with pytest.raises(Corrupt, match="is not a manifest that Lithify wrote"):
            _publisher(lake, table).state()
    manifest.unlink()
    with pytest.raises(Corrupt, match=r"is missing: delete tables/.*/iceberg, and publish the table again"):
        _publisher(lake, table).state()
    (metadata / "v1.metadata.json").write_text("{}")
    with pytest.raises(Corrupt, match="is damaged"):
        _publisher(lake, table).state()


def test_a_lake_that_was_moved_is_not_published_under_its_old_uris(tmp_path: Path) -> None:
    lake, table = published_lake(tmp_path / "old", "iceberg")
    append_round(table, PARTITIONS[0], random.Random(4), 0)
    compact_all(lake)
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    moved = DeltaCatalog.open(tmp_path / "new")
    with pytest.raises(Corrupt, match=f"was written for a lake at file://{tmp_path}/old"):
        _publisher(moved, moved.table(TABLE_ID)).publish([])


def test_types_that_iceberg_does_not_reconcile_are_refused_by_name(tmp_path: Path) -> None:
    lake, publisher = _lake(tmp_path)
    for name, kind in (("EU", pa.decimal128(10, 2)), ("US", pa.decimal128(12, 4)), ("DE", pa.decimal128(14, 2))):
        lake.commit(name, added=1, schema=pa.schema({"id": pa.int64(), "price": kind}))
    outcome = publisher.publish([lake.stream(name) for name in ("EU", "US", "DE")])
    assert isinstance(outcome, Published)
    assert outcome.entries.keys() == {"region=EU", "region=DE"}
    (refused,) = outcome.refused
    assert refused.partition == {"region": "US"}
    assert "'price' is decimal(10, 2) in some files and decimal(12, 4) in others" in refused.reasons[0]
    assert "delete the table's folder iceberg/" in refused.reasons[0]


def test_without_the_package_the_other_format_is_published_and_the_reason_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, table = published_lake(tmp_path, "delta,iceberg")
    partition = {"region": "EU", "day": "1"}
    table.append(partition, pa.table({"id": [7]}))
    monkeypatch.setitem(sys.modules, "compactor.publishing.iceberg", None)
    compact(table.table_id, {"id"}, delta_catalog_client=lake)
    delta, iceberg = publish(publishers_of(lake.store, table, SystemClock()), [table.stream(partition)])
    assert isinstance(delta, NothingToPublish)
    assert delta.version is not None
    assert isinstance(iceberg, PublishFailed)
    assert "install lithify[iceberg]" in iceberg.reasons[0]


def test_without_the_package_the_property_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake, table = published_lake(tmp_path, "delta")
    monkeypatch.setitem(sys.modules, "pyiceberg", None)
    with pytest.raises(Invalid, match=r"pip install 'lithify\[iceberg\]'"):
        table.set_properties({"publish": "delta,iceberg"})
    with pytest.raises(Invalid, match=r"pip install 'lithify\[iceberg\]'"):
        lake.create_table("ACME.OTHER.V1", properties={"publish": "iceberg"})
    assert table.properties.publish == (OpenFormat.DELTA,)


def test_a_store_that_does_not_answer_leaves_the_table_as_it_was(tmp_path: Path) -> None:
    lake, publisher = _lake(tmp_path)
    lake.commit("EU", added=1)
    publisher.publish([lake.stream("EU")])
    lake.commit("EU", added=1)
    store = FaultyStore(lake.store)
    store.fail("put_if_absent", times=None)
    before = publisher.state()
    with pytest.raises(Unavailable, match="not known whether"):
        IcebergPublisher(store, TABLE_ID, BY_REGION, HurriedClock(), GRACE_SECONDS).publish([lake.stream("EU")])
    assert publisher.state() == before


# -- garbage collection


def test_metadata_and_files_go_when_no_version_of_the_grace_period_names_them(tmp_path: Path) -> None:
    lake = DeltaCatalog.open(tmp_path)
    table = lake.create_table(TABLE_ID, ["region"], primary_keys={"id"}, properties={"publish": "iceberg"})
    table.append({"region": "EU"}, pa.table({"id": list(range(10))}))
    compact(TABLE_ID, delta_catalog_client=lake)
    for number in range(12):
        operation = "delete" if number < 5 else "upsert"
        table.append({"region": "EU"}, pa.table({"id": [number]}), operation=operation)
        compact(TABLE_ID, delta_catalog_client=lake, max_dead_row_share=0.9)
    root = tmp_path / "tables" / TABLE_ID
    before = {path for path in root.rglob("*") if path.is_file()}

    def collect(seconds: float) -> set[Path]:
        clock = ManualClock(SystemClock().now_ms() + int(seconds * 1_000))
        for garbage in find_garbage(lake.store, TABLE_ID, clock):
            assert garbage.unknown == ()
            delete_garbage(lake.store, garbage)
        return before - {path for path in root.rglob("*") if path.is_file()}

    def folder(path: Path) -> str:
        return path.parent.name if "iceberg" in path.parts else "open" if _is_open(path) else "other"

    def _is_open(path: Path) -> bool:
        return is_open_file(str(path.relative_to(tmp_path)))

    assert not {folder(path) for path in collect(GRACE_SECONDS / 2)} & {"metadata", "dead", "open"}
    for version in range(1, 14):
        assert _open(tmp_path, version).scan().to_arrow().num_rows, "readers of older versions"
    assert not {folder(path) for path in collect(GRACE_SECONDS + 4_000)} & {"dead"}, (
        "an attempt to commit may have needed them until now"
    )
    gone = collect(2 * GRACE_SECONDS + 4_000)
    assert {folder(path) for path in gone} >= {"metadata", "dead", "open"}
    kept = {path.name for path in (root / "iceberg" / "metadata").glob("v*.json")}
    assert kept == {"v13.metadata.json"}
    assert sorted(_read(tmp_path).column("id").to_pylist()) == list(range(5, 12))
    assert _publisher(lake, table).state().version == 13


def test_files_that_another_writer_left_are_reported_and_stop_nothing(tmp_path: Path) -> None:
    """Clients of a catalog upload files before they ask whether they may commit."""
    lake, table = published_lake(tmp_path, "iceberg")
    table.append(PARTITIONS[0], pa.table({"id": [1, 2]}))
    compact_all(lake)
    folder = tmp_path / "tables" / TABLE_ID / "iceberg"
    strangers = [
        folder / "metadata" / "00002-7f1c.metadata.json",
        folder / "metadata" / "v9-7f1c.metadata.json",
        folder / "metadata" / "7f1c-m0.avro",
        folder / "data" / "region=US" / "00000-0-7f1c.parquet",
    ]
    for path in strangers:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"{}")
    (folder / "metadata" / "version-hint.text").unlink()
    table.append(PARTITIONS[0], pa.table({"id": [3]}))
    compact_all(lake)
    assert _publisher(lake, table).state().version == 2
    assert sorted(_read(tmp_path).column("id").to_pylist()) == [1, 2, 3]
    clock = ManualClock(SystemClock().now_ms() + 3 * GRACE_SECONDS * 1_000)
    found = list(find_garbage(lake.store, TABLE_ID, clock))
    assert sorted(tmp_path / key for each in found for key in each.unknown) == sorted(strangers)
    assert {key for each in found for key in each.unknown}.isdisjoint(
        file.key for each in found for file in each.garbage
    )


def test_a_version_that_the_hint_still_names_after_the_grace_period_stays_readable(tmp_path: Path) -> None:
    lake = DeltaCatalog.open(tmp_path)
    table = lake.create_table(TABLE_ID, ["region"], primary_keys={"id"}, properties={"publish": "iceberg"})
    table.append({"region": "EU"}, pa.table({"id": list(range(10))}))
    compact(TABLE_ID, delta_catalog_client=lake)
    hint = IcebergMetadata(TABLE_ID, None).key
    for number in range(4):
        table.append({"region": "EU"}, pa.table({"id": [number]}), operation="delete")
        compact(TABLE_ID, delta_catalog_client=lake, max_dead_row_share=0.9)
        if number == 1:
            expected, body = _read(tmp_path), lake.store.read(hint) or b""
    lake.store.overwrite(hint, body)
    for garbage in find_garbage(lake.store, TABLE_ID, ManualClock(SystemClock().now_ms() + 10 * GRACE_SECONDS * 1_000)):
        delete_garbage(lake.store, garbage)
    assert body == b"3"
    assert differences(expected, _read(tmp_path)) == []
    _publisher(lake, table).publish([])
    assert sorted(_read(tmp_path).column("id").to_pylist()) == list(range(4, 10))


def test_files_of_a_table_that_nobody_publishes_any_more_stay_as_long_as_readers_see_them(tmp_path: Path) -> None:
    lake = DeltaCatalog.open(tmp_path)
    table = lake.create_table(TABLE_ID, ["region"], primary_keys={"id"}, properties={"publish": "iceberg"})
    table.append({"region": "EU"}, pa.table({"id": [1, 2]}))
    compact(TABLE_ID, delta_catalog_client=lake)
    table.set_properties({"publish": None})
    for number in range(3):
        table.append({"region": "EU"}, pa.table({"id": [1], "n": [number]}))
        compact(TABLE_ID, delta_catalog_client=lake)
    for garbage in find_garbage(lake.store, TABLE_ID, ManualClock(SystemClock().now_ms() + 10 * GRACE_SECONDS * 1_000)):
        delete_garbage(lake.store, garbage)
    assert sorted(_read(tmp_path).column("id").to_pylist()) == [1, 2]
