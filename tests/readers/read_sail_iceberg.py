"""Reads an Apache Iceberg table with Sail, as a client of Spark Connect: TABLE -> Arrow IPC on standard output."""

import sys

import pyarrow as pa
from pysail.spark import SparkConnectServer
from pyspark.sql import SparkSession


def main() -> None:
    server = SparkConnectServer("127.0.0.1", 0)
    server.start(background=True)
    _, port = server.listening_address
    spark = SparkSession.builder.remote(f"sc://127.0.0.1:{port}").getOrCreate()
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    rows: pa.Table = spark.read.format("iceberg").load(sys.argv[1]).toArrow()
    with pa.ipc.new_stream(sys.stdout.buffer, rows.schema) as stream:
        stream.write_table(rows)
    spark.stop()
    server.stop()


main()
