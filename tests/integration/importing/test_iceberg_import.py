"""`lithify table import` of tables that PyIceberg has written: the rows are those that it reads itself, except for
equality deletes, which it refuses to read."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.io import load_file_io
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestWriterV2,
    write_manifest_list,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableResponse, StaticTable, Table
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
    update_table_metadata,
)
from pyiceberg.transforms import BucketTransform, IdentityTransform, Transform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    DateType,
    DecimalType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

from compactor import DeltaCatalog, compact
from compactor.importing.table_import import TableImport, read_source
from compactor.model.names import ContentType
from compactor.storage.location import parse_location
from tests.builders import TABLE_ID
from tests.conftest import Command
from tests.fakes.unruly_engine import UnrulyEngine
from tests.integration.importing.conftest import KEYED, OLD, Importing
from tests.published_rows import PARTITIONS, append_round, compact_all, published_lake
from tests.servers import BUCKET, REGION, aws_environment, create_bucket, seaweedfs_server

AT = datetime(2026, 11, 25, 13, 4, 5, 123456, tzinfo=UTC)
WHO = StructType(
    NestedField(8, "name", StringType()), NestedField(9, "tags", ListType(10, StringType(), element_required=False))
)
COLUMNS = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "price", DecimalType(12, 2)),
    NestedField(3, "at", TimestamptzType()),
    NestedField(4, "who", WHO),
    NestedField(5, "place", StringType()),
    NestedField(6, "small", IntegerType()),
    NestedField(7, "day", DateType()),
)
SPEC: Sequence[tuple[str, int, Transform[Any, Any]]] = (
    ("place", 5, IdentityTransform()),
    ("day", 7, IdentityTransform()),
    ("third", 6, IdentityTransform()),
)


def orders(*numbers: int) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "price": pa.array([Decimal(number) / 4 for number in numbers], pa.decimal128(12, 2)),
            "at": pa.array([AT + timedelta(hours=number) for number in numbers], pa.timestamp("us", tz="UTC")),
            "who": pa.array(
                [None if number % 5 == 0 else {"name": f"n{number}", "tags": ["x", None]} for number in numbers],
                pa.struct([("name", pa.string()), ("tags", pa.list_(pa.string()))]),
            ),
            "place": ["a b/ü" if number % 2 else "100%" for number in numbers],
            "small": pa.array([None if number % 4 == 0 else number % 3 for number in numbers], pa.int32()),
            "day": pa.array([date(2026, 11, 1 + number % 2) for number in numbers], pa.date32()),
        }
    )


class FolderCatalog(NoopCatalog):
    """Commits by the next metadata file, under a name that tells no order of commits."""

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        metadata = update_table_metadata(table.metadata, updates)
        number = int(Path(table.metadata_location).name[:5]) + 1
        uri = f"{table.location()}/metadata/{number:05}-{uuid4()}.metadata.json"
        Path(uri.removeprefix("file://")).write_text(metadata.model_dump_json())
        return CommitTableResponse.model_validate({"metadata": metadata, "metadata-location": uri})


def create(folder: Path, spec: Sequence[tuple[str, int, Transform[Any, Any]]] = ()) -> Table:
    fields = (PartitionField(column, 1_000 + at, transform, name) for at, (name, column, transform) in enumerate(spec))
    metadata = new_table_metadata(COLUMNS, PartitionSpec(*fields), UNSORTED_SORT_ORDER, f"file://{folder}", {})
    path = folder / "metadata" / "00000-first.metadata.json"
    path.parent.mkdir(parents=True)
    path.write_text(metadata.model_dump_json())
    return Table(("shop", "orders"), metadata, f"file://{path}", load_file_io(), FolderCatalog("folder"))


def importing_of(importing: Importing, table: Table) -> Importing:
    """By the metadata file, as a catalog names it."""
    importing.folder = Path(table.metadata_location.removeprefix("file://"))
    return importing


def rows_of(rows: pa.Table, left_out: Sequence[str] = ()) -> Counter[str]:
    kept = ({name: value for name, value in row.items() if name not in left_out} for row in rows.to_pylist())
    return Counter(repr(sorted((name, value) for name, value in row.items() if value is not None)) for row in kept)


def test_a_table_is_imported_row_by_row_and_stays_as_it_was(importing: Importing) -> None:
    """One key has another name than its column, and nulls. Spark writes other transforms: `make test-readers`."""
    table = create(importing.folder, SPEC)
    table.append(orders(*range(20)))
    table.append(orders(*range(20, 30)))
    table.delete("id = 3 or id = 21")
    importing_of(importing, table)
    before = importing.files()
    assert "whose third is null" in importing.refusal()
    options = (*KEYED, "--null-partition", "none", "--count-duplicates")
    planned = importing.answer(*options)
    assert not importing.lake_folder.exists()
    assert planned["partition_keys"] == ["place", "day", "third"]
    assert planned["partition_by"] == {"third": "identity(small)"}
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert planned["version"] == snapshot.snapshot_id
    assert {each["partition"]["third"] for each in planned["partitions"]} == {"0", "1", "2", "none"}
    assert sum(each["rows"] for each in planned["partitions"]) == 28
    assert planned["rewritten_files"] == []
    assert all(each["duplicates"] == 0 for each in planned["partitions"])
    assert importing.answer(*options, "--write") == {**planned, "imported": True}
    assert importing.lake.table(OLD).properties.partition_by == planned["partition_by"]
    assert rows_of(importing.compacted(), ["third"]) == rows_of(table.scan().to_arrow())
    importing.lake.table(OLD).append_rows(orders(96, 97), delta_id="more")
    assert importing.compacted().num_rows == 30
    assert importing.files() == before


def test_renamed_dropped_added_and_widened_columns_are_those_of_now(importing: Importing) -> None:
    table = create(importing.folder)
    table.append(orders(*range(5)))
    with table.update_schema() as update:
        update.rename_column("price", "amount").delete_column("day").delete_column(("who", "tags"))
        update.rename_column("who.name", "nick").update_column("small", LongType()).add_column("note", StringType())
    table.append(pa.table({"id": [9], "note": ["new"], "amount": pa.array([Decimal(1)], pa.decimal128(12, 2))}))
    planned = importing_of(importing, table).answer(*KEYED, "--write")
    (rewritten,) = planned["rewritten_files"]
    assert rewritten["why"] == (
        "has columns that the table has not: who.tags and 1 more; it has other names for columns: amount and 1 more"
    )
    found = importing.compacted()
    assert rows_of(found) == rows_of(table.scan().to_arrow())
    assert set(found.schema.names) == {"id", "amount", "at", "who", "place", "small", "note"}


def test_an_older_snapshot_can_be_named_and_a_newer_one_does_not_go_on(importing: Importing) -> None:
    table = create(importing.folder)
    table.append(orders(1, 2))
    first = table.current_snapshot()
    assert first is not None
    importing_of(importing, table).answer(*KEYED, "--write")
    table.append(orders(3))
    importing_of(importing, table)
    assert "name the version that was imported with --version" in importing.refusal(*KEYED, "--write")
    importing.answer(*KEYED, "--write", "--version", str(first.snapshot_id))
    assert importing.lake.table(OLD).stream({}).load().entry_number == 1
    assert "has no snapshot 5" in importing.refusal("--version", "5")


def commit_equality_deletes(table: Table, deletes: Sequence[tuple[pa.Table, Record]]) -> StaticTable:
    """Rows whose like are deleted, as Flink writes them: in the next snapshot, each with its partition."""
    parent, io, metadata = table.current_snapshot(), table.io, table.metadata
    assert parent is not None
    number, snapshot_id = (parent.sequence_number or 0) + 1, parent.snapshot_id + 1
    manifest_path = f"{table.location()}/metadata/deletes-{number}.avro"
    with DeleteManifestWriter(
        table.spec(), table.schema(), io.new_output(manifest_path), snapshot_id, "deflate"
    ) as writer:
        for at, (rows, partition) in enumerate(deletes):
            ids = [table.schema().find_field(name).field_id for name in rows.column_names]
            fields = [
                field.with_metadata({"PARQUET:field_id": str(field_id)}) for field, field_id in zip(rows.schema, ids)
            ]
            path = f"{table.location()}/data/deletes-{number}-{at}.parquet"
            pq.write_table(rows.cast(pa.schema(fields)), path.removeprefix("file://"))
            file = DataFile.from_args(
                content=DataFileContent.EQUALITY_DELETES,
                file_path=path,
                file_format=FileFormat.PARQUET,
                partition=partition,
                record_count=rows.num_rows,
                file_size_in_bytes=Path(path.removeprefix("file://")).stat().st_size,
                equality_ids=ids,
            )
            file.spec_id = table.spec().spec_id
            entry = ManifestEntry.from_args(
                status=ManifestEntryStatus.ADDED, snapshot_id=snapshot_id, sequence_number=None, data_file=file
            )
            writer.add_entry(entry)
    list_path = f"{table.location()}/metadata/list-{number}.avro"
    with write_manifest_list(
        2, io.new_output(list_path), snapshot_id, parent.snapshot_id, number, "deflate"
    ) as manifests:
        manifests.add_manifests([*parent.manifests(io), writer.to_manifest_file()])
    snapshot = Snapshot(
        snapshot_id=snapshot_id,
        parent_snapshot_id=parent.snapshot_id,
        sequence_number=number,
        timestamp_ms=metadata.last_updated_ms + 1,
        manifest_list=list_path,
        summary=Summary(Operation.DELETE),
        schema_id=table.schema().schema_id,
    )
    pointed = SetSnapshotRefUpdate(
        ref_name="main",
        type=SnapshotRefType.BRANCH,
        snapshot_id=snapshot_id,
        max_ref_age_ms=None,
        max_snapshot_age_ms=None,
        min_snapshots_to_keep=None,
    )
    changed = update_table_metadata(metadata, (AddSnapshotUpdate(snapshot=snapshot), pointed))
    path = f"{table.location()}/metadata/v{number}.metadata.json"
    Path(path.removeprefix("file://")).write_text(changed.model_dump_json())
    return StaticTable.from_metadata(path)


class DeleteManifestWriter(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES


def test_equality_deletes_apply_to_older_files_of_their_partition(importing: Importing) -> None:
    """By two columns of which one may be null, and by one: nulls are equal, and numbers of a narrower type, too."""
    table = create(importing.folder, SPEC[:1])
    table.append(orders(*range(20)))
    even, odd = Record("100%"), Record("a b/ü")
    by_two = orders(0, 4, 6, 7).select(["small", "day"])
    deleted = commit_equality_deletes(table, [(by_two, even), (pa.table({"id": pa.array([1, 2], pa.int64())}), odd)])
    with pytest.raises(ValueError, match="equality deletes"):
        deleted.scan().to_arrow()
    importing.folder = Path(deleted.metadata_location.removeprefix("file://"))
    planned = importing.answer(*KEYED, "--write")
    assert {each["why"] for each in planned["rewritten_files"]} == {
        "has rows that may be deleted by 1 file of equality deletes"
    }
    gone = {(row["small"], row["day"]) for row in by_two.to_pylist()}
    left = [
        row["id"]
        for row in orders(*range(20)).to_pylist()
        if not (row["place"] == "100%" and (row["small"], row["day"]) in gone) and row["id"] != 1
    ]
    assert len(left) == 12
    assert sum(each["rows"] for each in planned["partitions"]) == 12
    assert rows_of(importing.compacted()) == rows_of(orders(*left))


def test_equality_deletes_of_a_table_without_partitions_leave_newer_rows(importing: Importing) -> None:
    table = create(importing.folder)
    table.append(orders(1, 2, 3))
    deleted = commit_equality_deletes(table, [(pa.table({"id": pa.array([2, 3], pa.int64())}), Record())])
    newer = Table(("shop", "orders"), deleted.metadata, table.metadata_location, table.io, table.catalog)
    newer.append(orders(3))
    planned = importing_of(importing, newer).answer(*KEYED, "--write")
    assert (planned["partitions"][0]["files"], planned["partitions"][0]["rows"]) == (2, 2)
    assert len(planned["rewritten_files"]) == 1, "the newer file stays"
    assert rows_of(importing.compacted()) == rows_of(orders(1, 3))


def test_what_lithify_has_published_is_imported_with_its_position_deletes(importing: Importing) -> None:
    """By its folder, since its metadata files have numbers; every type, and a schema that has grown."""
    lake, table = published_lake(importing.folder, "iceberg")
    chance = random.Random(1)
    for turn in range(2):
        for partition in PARTITIONS:
            append_round(table, partition, chance, turn)
        compact_all(lake)
    importing.folder = importing.folder / "tables" / TABLE_ID / "iceberg"
    published = StaticTable.from_metadata(str(importing.folder)).scan().to_arrow()
    source = read_source(parse_location(str(importing.folder)))
    trial = DeltaCatalog.open(importing.lake_folder.with_name("trial"))
    tried = trial.create_table(OLD, source.partition_keys)
    counted = list(TableImport(source, ContentType.PARQUET).into(tried, trial.location, is_trial=True))
    assert sum(each.rows or 0 for each in counted) == published.num_rows
    assert {
        pq.read_metadata(path).num_rows for path in importing.lake_folder.with_name("trial").rglob("*.parquet")
    } == {0}
    planned = importing.answer(*KEYED, "--count-duplicates", "--property", "publish=iceberg", "--write")
    assert [each["rows"] for each in planned["partitions"]] == [each.rows for each in counted]
    assert {each["duplicates"] for each in planned["partitions"]} == {0}
    assert any("1 file of position deletes" in each["why"] for each in planned["rewritten_files"])
    assert rows_of(importing.compacted()) == rows_of(published)
    again = StaticTable.from_metadata(str(importing.lake_folder / "tables" / OLD / "iceberg")).scan().to_arrow()
    assert rows_of(again) == rows_of(published)


def test_what_cannot_be_imported_is_refused_with_what_to_do(
    importing: Importing, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = create(importing.folder, SPEC[:1])
    assert "has no snapshot, so no rows" in importing_of(importing, table).refusal()
    table.append(orders(1, 2))
    with table.update_spec() as update:
        update.add_field("id", BucketTransform(4))
    importing.folder = Path(table.location().removeprefix("file://"))
    assert "only its catalog knows which of its 3 metadata files is the current one" in importing.refusal()
    assert "is of partition spec 0, by which the table is no longer divided" in importing_of(importing, table).refusal()
    snapshot = table.current_snapshot()
    assert snapshot is not None
    Path(snapshot.manifest_list.removeprefix("file://")).unlink()
    assert "cannot be read as a table of Apache Iceberg" in importing.refusal()
    importing.folder.write_text("{}")
    assert "cannot be read as a table of Apache Iceberg" in importing.refusal()
    monkeypatch.setitem(sys.modules, "compactor.importing.iceberg_table", None)
    assert "pip install 'lithify[iceberg]'" in importing.refusal()


@pytest.mark.servers
def test_a_published_table_on_s3_is_imported_into_another_lake_there(command: Command, tmp_path: Path) -> None:
    with aws_environment(), seaweedfs_server(tmp_path / "seaweedfs") as endpoint_url:
        create_bucket(endpoint_url)
        lake, other = (
            DeltaCatalog.open(f"s3://{BUCKET}/{name}", endpoint_url=endpoint_url, region=REGION)
            for name in ("one", "two")
        )
        table = lake.create_table(TABLE_ID, primary_keys={"id"}, properties={"publish": "iceberg"})
        table.append({}, orders(1, 2, 3))
        compact(TABLE_ID, delta_catalog_client=lake, engine=UnrulyEngine())
        ran = command(
            *("table", "import", OLD, f"s3://{BUCKET}/one/tables/{TABLE_ID}/iceberg", "--lake", f"s3://{BUCKET}/two"),
            *("--s3-endpoint-url", endpoint_url, "--region", REGION, *KEYED, "--write", "--copy"),
        )
        assert ran.exit_code == 0, ran.err
        found = other.table(OLD).scan(view="merged").to_table()
        assert rows_of(found) == rows_of(orders(1, 2, 3))
