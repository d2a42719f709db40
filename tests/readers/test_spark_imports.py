"""A table of Apache Iceberg that Spark has written is imported, with Iceberg's own transforms, and published again."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from compactor import DeltaCatalog, compact
from compactor.publishing.keys import IcebergFolder
from tests.conftest import Command
from tests.published_rows import differences
from tests.readers.conftest import Engine

OLD = "ACME.OLD.V1"
DERIVED = {"at_day": "day(at)", "id_bucket": "bucket[3](id)", "code_trunc": "truncate[2](code)"}


@pytest.mark.slow
def test_what_spark_has_written_is_imported_and_read_by_spark_again(tmp_path: Path, command: Command) -> None:
    spark = Engine("spark_iceberg")
    written = spark.run("write_spark_iceberg.py", str(tmp_path / "warehouse"))
    source = str(tmp_path / "warehouse" / "shop" / "orders")
    ran = command(
        *("table", "import", OLD, source, "--lake", str(tmp_path / "lake"), "--write", "--output", "json"),
        *("--property", "primary_keys=id", "--property", "publish=iceberg"),
    )
    assert ran.exit_code == 0, ran.err
    answer = json.loads(ran.out)
    assert answer["partition_by"] == DERIVED
    whys = {each["why"] for each in answer["rewritten_files"]}
    assert any("position deletes" in why for why in whys)
    assert any("has other names for columns: amount" in why for why in whys)
    assert sum(each["rows"] for each in answer["partitions"]) == written.num_rows
    files = sum(each["files"] for each in answer["partitions"])
    assert len(answer["rewritten_files"]) == files - 1, "the file of the last insert stays"
    lake = DeltaCatalog.open(tmp_path / "lake")
    compact(OLD, delta_catalog_client=lake)
    scanned = lake.table(OLD).scan().to_table().drop_columns(list(DERIVED))
    assert differences(written, scanned) == []
    read = spark.read(str(tmp_path / "lake" / IcebergFolder(OLD).key))
    assert differences(written, plain(read)) == []


def plain(read: pa.Table) -> pa.Table:
    return read.drop_columns([name for name in DERIVED if name in read.column_names])
