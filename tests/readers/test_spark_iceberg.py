"""Published tables as Spark 3.5 with Iceberg reads them. It reads no table with a time of day, so this one has none."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from compactor.publishing.keys import IcebergFolder
from tests.builders import TABLE_ID
from tests.published_rows import PARTITIONS, compact_all, differences, published_lake, rows_of_every_kind
from tests.readers.conftest import Engine


@pytest.mark.slow
def test_spark_reads_rows_of_every_kind_as_a_scan_reads_them(tmp_path: Path) -> None:
    lake, table = published_lake(tmp_path, "iceberg")
    chance = random.Random(11)
    for turn in range(3):
        for partition in PARTITIONS:
            rows = rows_of_every_kind(chance.sample(range(300), 100), turn)
            table.append(partition, rows.drop_columns(["time"]))
            deleted = pa.table({"id": pa.array(chance.sample(range(300), 15), pa.int32())})
            table.append(partition, deleted, operation="delete")
        compact_all(lake)
        read = Engine("spark_iceberg").read(str(tmp_path / IcebergFolder(TABLE_ID).key))
        assert differences(table.scan().to_table(), read) == []
