"""A program of its own: compacts a table on a Spark that runs a task again when its worker or its executor dies.

    python retrying_program.py LAKE MASTER

Started by test_process_deaths.py. The rows are many, so that writing them takes long enough to be killed in it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession

from compactor.engine.settings import JOB_SETTINGS, LOCAL_SETTINGS
from compactor.engine.spark import SparkEngine
from compactor.model.names import Operation
from tests.crashes import Delta, Lake, Options, attempt

IN_ONE_PROCESS = "local[2,4]"
EXECUTORS_APART = "local-cluster[2,1,1024]"
ROWS = 60_000


def deltas() -> list[Delta]:
    """Wide rows in several files, then updates of some and deletes of others."""
    return [
        Delta(Operation.UPSERT, [_row(n, 1) for n in range(ROWS)], 20_000),
        Delta(Operation.UPSERT, [_row(n, 2) for n in range(0, ROWS, 3)], 20_000),
        Delta(Operation.DELETE, [{"id": n, "time": 3} for n in range(0, ROWS, 5)], 20_000),
    ]


def _row(key: int, time: int) -> dict[str, object]:
    return {"id": key, "time": time, "value": f"{key * 2_654_435_761 % 2**64:x}" * 40}


def main(folder: str, master: str) -> None:
    builder = SparkSession.builder.appName("lithify retrying test").master(master)
    for name, value in {**JOB_SETTINGS, **LOCAL_SETTINGS}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    lake = Lake(Path(folder), [])
    attempt(
        lake.plan(Options(rows_per_compacted_file=20_000, rows_per_index_file=1_000_000)),
        lake,
        SparkEngine(spark.sparkContext),
        1,
    )
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
