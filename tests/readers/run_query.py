"""Runs one query of the documentation: ENGINE QUERY -> Arrow IPC on standard output."""

import importlib.util
import sys
from pathlib import Path

import pyarrow as pa


def of_duckdb(query: str) -> pa.Table:
    import duckdb

    connection = duckdb.connect()
    for extension in ("avro", "delta", "iceberg"):  # DuckDB downloads them by itself; here they come from packages
        spec = importlib.util.find_spec(f"duckdb_extension_{extension}")
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError(f"duckdb_extension_{extension}")
        (file,) = Path(spec.origin).parent.rglob(f"{extension}.duckdb_extension")
        connection.execute(f"LOAD '{file}'")
    return connection.execute(query).to_arrow_table()


def of_clickhouse(query: str) -> pa.Table:
    import chdb

    return pa.ipc.open_stream(chdb.query(query, "ArrowStream").bytes()).read_all()


def of_delta_rs(expression: str) -> pa.Table:
    from deltalake import DeltaTable, QueryBuilder

    return pa.table(eval(expression, {"DeltaTable": DeltaTable, "QueryBuilder": QueryBuilder}))


def of_polars(expression: str) -> pa.Table:
    import polars

    return eval(expression, {"polars": polars}).to_arrow()


def of_pyiceberg(expression: str) -> pa.Table:
    from pyiceberg.table import StaticTable

    return eval(expression, {"StaticTable": StaticTable}).to_arrow()


def of_sail(expression: str) -> pa.Table:
    from pysail.spark import SparkConnectServer
    from pyspark.sql import SparkSession

    server = SparkConnectServer("127.0.0.1", 0)
    server.start(background=True)
    _, port = server.listening_address
    spark = SparkSession.builder.remote(f"sc://127.0.0.1:{port}").getOrCreate()
    try:
        return eval(expression, {"spark": spark}).toArrow()
    finally:
        spark.stop()
        server.stop()


ENGINES = {
    "DuckDB": of_duckdb,
    "ClickHouse": of_clickhouse,
    "delta-rs": of_delta_rs,
    "Polars": of_polars,
    "PyIceberg": of_pyiceberg,
    "Sail": of_sail,
}


def main() -> None:
    rows = ENGINES[sys.argv[1]](sys.argv[2])
    with pa.ipc.new_stream(sys.stdout.buffer, rows.schema) as stream:
        stream.write_table(rows)


main()
