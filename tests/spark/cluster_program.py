"""A program of its own: compacts a table on Spark with separate executor processes, and says where its tasks ran.

    python cluster_program.py LAKE

Started by test_local_cluster.py, with a working folder and an environment that tell it nothing about Lithify.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from compactor import DeltaCatalog, compact
from compactor.engine.settings import JOB_SETTINGS, LOCAL_SETTINGS
from compactor.model.names import Operation

TABLE_ID = "ACME.ORDERS.V1"
MASTER = "local-cluster[2,1,1024]"
SORT_KEYS = [("time", "ascending")]

Row = dict[str, object]
RUNS: tuple[tuple[tuple[Operation, list[Row]], ...], ...] = (
    (
        (Operation.UPSERT, [{"id": n, "time": n % 3, "value": f"first {n}"} for n in range(60)]),
        (Operation.UPSERT, [{"id": n, "time": 1, "value": f"second {n}"} for n in range(0, 60, 2)]),
    ),
    (
        (Operation.DELETE, [{"id": n, "time": 9} for n in range(0, 60, 7)]),
        (Operation.UPSERT, [{"id": n, "time": 5, "value": f"third {n}"} for n in range(40, 70)]),
    ),
)
"""The deltas of two runs. Positions count from 0 over both."""


def main(root: str) -> None:
    builder = SparkSession.builder.appName("lithify cluster test").master(MASTER)
    for name, value in {**JOB_SETTINGS, **LOCAL_SETTINGS}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    lake = DeltaCatalog.open(root)
    table = lake.create_table(TABLE_ID)
    position = 0
    for hash_bucket_count, deltas in zip((3, 4), RUNS, strict=True):
        for operation, rows in deltas:
            table.append({}, pa.Table.from_pylist(rows), operation, position=position, rows_per_file=20)
            position += 1
        compact(
            TABLE_ID,
            {"id"},
            SORT_KEYS,
            delta_catalog_client=lake,
            hash_bucket_count=hash_bucket_count,
            rows_per_compacted_file=10,
            max_rows_per_round=60,
            spark=spark,
        )
    places = (
        spark.sparkContext.parallelize(range(8), 8).map(lambda _: (os.getppid(), str(Path.cwd()))).distinct().collect()
    )
    sys.stdout.write(json.dumps({"driver": os.getpid(), "places": places}) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
