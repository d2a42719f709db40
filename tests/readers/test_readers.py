"""Published tables as other engines read them: the rows of a scan, all columns, partition columns included.

What differs, and is not compared as it stands: Delta Lake has no time of day, so `time` is left out for its readers;
ClickHouse shows one in Iceberg as a number. ClickHouse has no null lists, maps and structs, and no zoneless timestamps
and text apart from bytes: its columns are brought to the scan's types, and null structs to structs of nulls.
"""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from compactor import DeltaCatalog, compact
from compactor.model.clock import SystemClock
from compactor.model.names import OpenFormat
from compactor.publishing.publication import publishers_of
from compactor.schemas.cast import cast_column
from tests.builders import TABLE_ID
from tests.published_rows import PARTITIONS, append_round, compact_all, differences, published_lake
from tests.readers.conftest import ENGINES, Engine, published_folder
from tests.servers import ACCESS_KEY, BUCKET, REGION, SECRET_KEY, aws_environment, create_bucket, seaweedfs_server

ROUNDS = 8
ENGINES_AT_ONCE = 2
"""Each is a process of its own."""


def check(scanned: pa.Table, read: pa.Table, engine: str) -> None:
    is_clickhouse = engine.startswith("chdb")
    if is_clickhouse:
        scanned, read = as_clickhouse_has_it(scanned), typed_as(read, scanned)
    if engine == "chdb_iceberg":
        read = read.drop_columns(["time"])
    without_time = is_clickhouse or ENGINES[engine] is OpenFormat.DELTA
    assert differences(scanned, read, frozenset({"time"} if without_time else ())) == [], engine


def typed_as(read: pa.Table, scanned: pa.Table) -> pa.Table:
    columns = {}
    for name in read.schema.names:
        column, kind = read.column(name), scanned.schema.field(name).type
        if pa.types.is_timestamp(kind) or pa.types.is_binary(column.type) or pa.types.is_nested(kind):
            column = cast_column(column, pa.binary() if pa.types.is_fixed_size_binary(kind) else kind)
        columns[name] = column
    return pa.table(columns)


def as_clickhouse_has_it(scanned: pa.Table) -> pa.Table:
    position = scanned.schema.get_field_index("struct")
    rows = [row or {"a": None, "b": None} for row in scanned.column("struct").to_pylist()]
    return scanned.set_column(position, "struct", pa.array(rows, scanned.schema.field("struct").type))


@pytest.mark.slow
def test_every_engine_reads_every_random_round_as_a_scan_reads_it(tmp_path: Path) -> None:
    lake, table = published_lake(tmp_path, "delta,iceberg")
    chance = random.Random(5)
    for turn in range(ROUNDS):
        for partition in PARTITIONS:
            if chance.random() < 0.7 or turn == 0:
                append_round(table, partition, chance, turn)
        compact_all(lake, chance.choice([0.0, 0.3, 0.9]))
        scanned = table.scan().to_table()
        with ThreadPoolExecutor(ENGINES_AT_ONCE) as threads:
            folders = [str(tmp_path / published_folder(name, TABLE_ID)) for name in ENGINES]
            tables = threads.map(lambda name, folder: Engine(name).read(folder), ENGINES, folders)
            for name, read in zip(ENGINES, tables, strict=True):
                check(scanned, read, name)


def test_large_files_with_many_dead_rows_are_read_as_a_scan_reads_them(tmp_path: Path, engine: Engine) -> None:
    """Several row groups, of which engines read some in threads of their own."""
    lake, table = published_lake(tmp_path, ENGINES[engine.name])
    count = 1_500_000
    rows = pa.table({"id": pa.array(range(count)), "value": pa.array([n * 7_919 % 1_000_003 for n in range(count)])})
    table.append(PARTITIONS[0], rows)
    compact(TABLE_ID, {"id"}, delta_catalog_client=lake)
    table.append(PARTITIONS[0], pa.table({"id": pa.array(range(0, count, 10))}), operation="delete")
    compact(TABLE_ID, {"id"}, delta_catalog_client=lake, max_dead_row_share=0.5)
    (publisher,) = publishers_of(lake.store, table, SystemClock())
    assert any(file.dead_rows for file in publisher.state().files.values())
    read = engine.read(str(tmp_path / published_folder(engine.name, TABLE_ID))).select(["id", "value"])
    scanned = table.scan().to_table().select(["id", "value"])
    assert read.sort_by("id").combine_chunks().equals(scanned.sort_by("id").combine_chunks())


def test_rounds_on_an_object_store_are_read_as_a_scan_reads_them(tmp_path: Path) -> None:
    """On seaweedfs. ClickHouse finds its S3 by other means, and is left out."""
    chance = random.Random(7)
    with aws_environment(), seaweedfs_server(tmp_path / "seaweedfs") as endpoint_url:
        create_bucket(endpoint_url)
        lake = DeltaCatalog.open(f"s3://{BUCKET}/lake", endpoint_url=endpoint_url, region=REGION)
        table = lake.create_table(TABLE_ID, ["region", "day"], properties={"publish": "delta,iceberg"})
        environment = {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": REGION,
            "AWS_ENDPOINT_URL": endpoint_url,
            "AWS_ALLOW_HTTP": "true",
        }
        for turn in range(2):
            for partition in PARTITIONS:
                append_round(table, partition, chance, turn)
            compact_all(lake)
            scanned = table.scan().to_table()
            for name in (each for each in ENGINES if not each.startswith("chdb")):
                read = Engine(name, environment).read(f"s3://{BUCKET}/lake/{published_folder(name, TABLE_ID)}")
                check(scanned, read, name)


def test_restored_rows_are_read_behind_a_checkpoint_as_a_scan_reads_them(tmp_path: Path, engine: Engine) -> None:
    lake, table = published_lake(tmp_path, ENGINES[engine.name])
    entry = 0
    for turn in range(10):  # the tenth version comes with a checkpoint
        table.append(PARTITIONS[turn > 1], pa.table({"id": [1], "value": [turn]}))
        compact(TABLE_ID, {"id"}, delta_catalog_client=lake)
        if turn == 0:
            entry = table.stream(PARTITIONS[0]).load().entry_number
        if turn == 1:
            table.restore(entry, PARTITIONS[0], dry_run=False)
    read = engine.read(str(tmp_path / published_folder(engine.name, TABLE_ID))).select(["id", "value"])
    scanned = table.scan().to_table().select(["id", "value"])
    assert scanned.sort_by("value").column("value").to_pylist() == [0, 9]
    assert read.sort_by("value").cast(scanned.schema).equals(scanned.sort_by("value").combine_chunks())
