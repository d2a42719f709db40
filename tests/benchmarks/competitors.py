"""What a user would pick instead, each in its usual form: Spark's window query, DuckDB; and the floor below all."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from compactor.engine.java_home import find_java_home
from tests.benchmarks.contestant import Answer, Task, parquet_files
from tests.benchmarks.data import KEY, SORT

_SPARK_HEAP = "8g"

_QUALIFY = f"""
    SELECT * FROM read_parquet($files)
    QUALIFY row_number() OVER (PARTITION BY {KEY} ORDER BY {SORT} DESC) = 1
"""
_SEMI_JOIN = f"""
    SELECT * FROM read_parquet($files)
    WHERE ({KEY}, {SORT}) IN (SELECT ({KEY}, max({SORT})) FROM read_parquet($files) GROUP BY {KEY})
"""


class WritesAFolder:
    """A contestant that needs no preparation and leaves Parquet files in a folder."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def prepare(self, folder: Path) -> None:
        folder.mkdir(parents=True)

    def run(self, folder: Path) -> None:
        raise NotImplementedError

    def describe(self, folder: Path, answer: Answer) -> Answer:
        return answer.model_copy(update={"written": parquet_files(folder)})


class SparkWindow(WritesAFolder):
    """The query of the paper, "Spark": rank the rows of each key, keep the first."""

    def __init__(self, task: Task) -> None:
        from pyspark.sql import SparkSession

        super().__init__(task)
        os.environ["JAVA_HOME"] = str(find_java_home(os.environ, Path.home() / ".cache" / "lithify"))
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = SparkSession.Builder().master(f"local[{task.cores}]").appName("window query")
        settings = {
            "spark.driver.memory": _SPARK_HEAP,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
        }
        for name, value in settings.items():
            builder = builder.config(name, value)
        self._spark = builder.getOrCreate()
        self._spark.sparkContext.setLogLevel("ERROR")

    def run(self, folder: Path) -> None:
        from pyspark.sql import Window
        from pyspark.sql.functions import col, row_number

        latest_first = Window.partitionBy(KEY).orderBy(col(SORT).desc())
        ranked = self._spark.read.parquet(*self._task.files).withColumn("rank", row_number().over(latest_first))
        ranked.where("rank = 1").drop("rank").write.parquet(str(folder / "out"))


class DuckDb(WritesAFolder):
    """One statement. Without insertion order and with a file per thread: DuckDB's quickest way to write."""

    statement = _QUALIFY

    def __init__(self, task: Task) -> None:
        import duckdb

        super().__init__(task)
        self._connection = duckdb.connect(config={"threads": task.cores, "preserve_insertion_order": False})

    def run(self, folder: Path) -> None:
        copy = f"COPY ({self.statement}) TO '{folder / 'out'}' (FORMAT parquet, PER_THREAD_OUTPUT)"
        self._connection.execute(copy, {"files": list(self._task.files)})


class DuckDbSemiJoin(DuckDb):
    """The same as the latest time of each key, and the rows that have it. Right only where no two of a key tie."""

    statement = _SEMI_JOIN


class Floor(WritesAFolder):
    """Reads all and writes all, a file at a time on each core, and decides nothing."""

    def run(self, folder: Path) -> None:
        with ThreadPoolExecutor(self._task.cores) as pool:
            list(
                pool.map(self._copy, self._task.files, [folder / f"{n}.parquet" for n in range(len(self._task.files))])
            )

    @staticmethod
    def _copy(source: str, target: Path) -> None:
        import pyarrow.parquet as pq

        pq.write_table(pq.read_table(source, use_threads=False), target)
