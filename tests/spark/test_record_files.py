"""Rounds of many rows on one machine: their records lie in files, which each round writes over."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from compactor import DeltaCatalog, compact
from tests.builders import TABLE_ID, CompactedSide, audit

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROWS = 60_000
DELTAS = 4


def test_rounds_that_write_over_each_other_s_records_leave_the_right_rows(tmp_path: Path, spark: SparkSession) -> None:
    spare = Path(spark.sparkContext._temp_dir) / "spare-records"
    for left in spare.glob("*"):
        left.unlink()
    chance = random.Random(1)
    table = DeltaCatalog.open(tmp_path).create_table(TABLE_ID)
    latest: dict[int, tuple[int, str]] = {}
    for number in range(DELTAS):
        ids = [chance.randrange(2 * ROWS) for _ in range(ROWS)]
        times = [chance.randrange(1_000_000) for _ in range(ROWS)]
        values = [f"{number}-{row}" for row in range(ROWS)]
        table.append({}, pa.table({"id": ids, "time": times, "value": values}))
        for key, time, value in zip(ids, times, values, strict=True):
            if key not in latest or time >= latest[key][0]:
                latest[key] = time, value

    result = compact(
        TABLE_ID,
        {"id"},
        sort_keys=[("time", "ascending")],
        delta_catalog_client=DeltaCatalog.open(tmp_path),
        max_rows_per_round=2 * ROWS,
        hash_bucket_count=2,
        spark=spark,
    )
    assert result.sessions[0].rounds == DELTAS // 2
    assert list(spare.iterdir()), "records were small enough for none"
    side = CompactedSide.of(DeltaCatalog.open(tmp_path))
    audit(side)
    assert {row["id"]: (row["time"], row["value"]) for row in side.rows().to_pylist()} == latest
