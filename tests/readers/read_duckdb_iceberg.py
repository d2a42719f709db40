"""Reads an Apache Iceberg table with DuckDB: TABLE -> Arrow IPC on standard output. Extensions come from packages."""

import importlib.util
import os
import sys
from pathlib import Path

import duckdb
import pyarrow as pa


def load(connection: duckdb.DuckDBPyConnection, extension: str) -> None:
    """With DuckDB's own check of the extension's signature."""
    spec = importlib.util.find_spec(f"duckdb_extension_{extension}")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"duckdb_extension_{extension}")
    (file,) = Path(spec.origin).parent.rglob(f"{extension}.duckdb_extension")
    connection.execute(f"LOAD '{file}'")


def main() -> None:
    connection = duckdb.connect()
    load(connection, "avro")
    load(connection, "iceberg")
    if sys.argv[1].startswith("s3://"):
        load(connection, "httpfs")
        endpoint = os.environ["AWS_ENDPOINT_URL"].removeprefix("http://")
        connection.execute(
            f"CREATE SECRET (TYPE s3, KEY_ID '{os.environ['AWS_ACCESS_KEY_ID']}', "
            f"SECRET '{os.environ['AWS_SECRET_ACCESS_KEY']}', REGION '{os.environ['AWS_REGION']}', "
            f"ENDPOINT '{endpoint}', USE_SSL false, URL_STYLE path)"
        )
    connection.execute("SET TimeZone = 'UTC'")
    rows: pa.Table = connection.execute("SELECT * FROM iceberg_scan(?)", [sys.argv[1]]).to_arrow_table()
    with pa.ipc.new_stream(sys.stdout.buffer, rows.schema) as stream:
        stream.write_table(rows)


main()
