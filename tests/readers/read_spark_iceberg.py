"""Reads an Apache Iceberg table with Spark 3.5: TABLE -> Arrow IPC on standard output."""

import sys
import tempfile

import pyarrow as pa
import pyarrow.parquet as pq

from tests.readers.iceberg_spark import spark_with_iceberg


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, spark_with_iceberg({}) as spark:
        spark.read.format("iceberg").load(sys.argv[1]).write.parquet(f"{folder}/rows")
        table: pa.Table = pq.read_table(f"{folder}/rows")
    with pa.ipc.new_stream(sys.stdout.buffer, table.schema) as stream:
        stream.write_table(table)


main()
