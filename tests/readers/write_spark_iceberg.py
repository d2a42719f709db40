"""Writes an Apache Iceberg table with Spark 3.5, with position deletes: WAREHOUSE -> its rows, as Arrow IPC."""

import sys
import tempfile

import pyarrow as pa
import pyarrow.parquet as pq

from tests.readers.iceberg_spark import spark_with_iceberg

TABLE = "local.shop.orders"
STATEMENTS = (
    f"""CREATE TABLE {TABLE} (id bigint, at timestamp, code string, price decimal(12, 2), tags map<string, int>)
    USING iceberg PARTITIONED BY (days(at), bucket(3, id), truncate(2, code)) TBLPROPERTIES (
        'format-version' = '2', 'write.delete.mode' = 'merge-on-read', 'write.update.mode' = 'merge-on-read')""",
    f"""INSERT INTO {TABLE} SELECT id, timestamp'2026-11-25 13:04:05.123456' + make_interval(0, 0, 0, 0, id),
        concat('c', id % 4, 'x'), id / 4, map('k', int(id)) FROM range(60)""",
    f"DELETE FROM {TABLE} WHERE id % 7 = 3",
    f"UPDATE {TABLE} SET price = 0.5 WHERE id % 11 = 2",
    f"ALTER TABLE {TABLE} RENAME COLUMN price TO amount",
    f"ALTER TABLE {TABLE} ADD COLUMN note string",
    f"INSERT INTO {TABLE} VALUES (99, timestamp'2026-11-29 00:00:00', 'é世界', 1, null, 'new')",
)


def main() -> None:
    settings = {
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.local": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.local.type": "hadoop",
        "spark.sql.catalog.local.warehouse": sys.argv[1],
        "spark.sql.shuffle.partitions": "1",
    }
    with spark_with_iceberg(settings) as spark, tempfile.TemporaryDirectory() as folder:
        for statement in STATEMENTS:
            spark.sql(statement)
        spark.table(TABLE).write.parquet(f"{folder}/rows")
        rows = pq.read_table(f"{folder}/rows")
    with pa.ipc.new_stream(sys.stdout.buffer, rows.schema) as stream:
        stream.write_table(rows)


main()
