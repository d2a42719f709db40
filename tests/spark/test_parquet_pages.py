"""parquet-java, through Spark, reads the Parquet pages that Lithify writes."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from compactor.storage.location import parse_location
from tests.parquet_files import Lake, gathered_orders


@pytest.mark.spark
def test_spark_reads_the_same(tmp_path: Path, spark: SparkSession) -> None:
    path, expected = gathered_orders(Lake(parse_location(str(tmp_path))))
    found = [row.asDict() for row in spark.read.parquet(str(path)).collect()]
    assert found == expected.to_pylist()
    assert spark.read.parquet(str(path)).where("id < 100 AND status = 'new'").count() == len(
        [row for row in expected.to_pylist() if row["id"] < 100 and row["status"] == "new"]
    )
