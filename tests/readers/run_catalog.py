"""Reads tables through an Iceberg REST catalog, in one connection: ENGINE CONNECT.

CONNECT and the queries are those of the documentation. Each line of standard input is a query, or empty for the names
of all tables; each answer on standard output is the size of an Arrow IPC stream, in eight bytes, and the stream.
"""

import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import pyarrow as pa

Query = Callable[[str], pa.Table]
"""A query, or empty text: the names of all tables, `namespace.table`, in the column `name`."""


def names(found: list[str]) -> pa.Table:
    return pa.table({"name": pa.array(found, pa.string())})


@contextmanager
def of_pyiceberg(connect: str) -> Iterator[Query]:
    from pyiceberg.catalog.rest import RestCatalog
    from pyiceberg.exceptions import NoSuchNamespaceError

    variables: dict[str, object] = {"RestCatalog": RestCatalog}
    exec(connect, variables)

    def query(expression: str) -> pa.Table:
        if not expression:
            catalog = variables["lithify"]
            assert isinstance(catalog, RestCatalog)
            tables = []
            for space in catalog.list_namespaces():
                with suppress(NoSuchNamespaceError):  # its last table is hidden since it was listed
                    tables += catalog.list_tables(space)
            return names([".".join(table) for table in tables])
        for name in ("polars", "daft"):
            if expression.startswith(name):
                variables[name] = importlib.import_module(name)
        read = eval(expression, variables)
        return read.to_arrow() if hasattr(read, "to_arrow") else read

    yield query


@contextmanager
def of_duckdb(connect: str) -> Iterator[Query]:
    import duckdb

    connection = duckdb.connect()
    for extension in ("avro", "httpfs", "iceberg"):  # DuckDB downloads them by itself; here they come from packages
        spec = importlib.util.find_spec(f"duckdb_extension_{extension}")
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError(f"duckdb_extension_{extension}")
        (file,) = Path(spec.origin).parent.rglob(f"{extension}.duckdb_extension")
        connection.execute(f"LOAD '{file}'")
    if "AWS_ENDPOINT_URL" in os.environ:
        endpoint = os.environ["AWS_ENDPOINT_URL"].removeprefix("http://")
        connection.execute(
            f"CREATE SECRET (TYPE s3, KEY_ID '{os.environ['AWS_ACCESS_KEY_ID']}', "
            f"SECRET '{os.environ['AWS_SECRET_ACCESS_KEY']}', REGION '{os.environ['AWS_REGION']}', "
            f"ENDPOINT '{endpoint}', USE_SSL false, URL_STYLE path)"
        )
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute(connect)

    def query(text: str) -> pa.Table:
        if not text:
            listed = connection.execute("SELECT schema, name FROM (SHOW ALL TABLES)").fetchall()
            return names([".".join(table) for table in listed])
        return connection.execute(text).to_arrow_table()

    yield query


@contextmanager
def of_sail(connect: str) -> Iterator[Query]:
    name, _, value = connect.partition("=")
    os.environ[name] = value.strip("'")

    from pysail.spark import SparkConnectServer
    from pyspark.sql import SparkSession

    server = SparkConnectServer("127.0.0.1", 0)
    server.start(background=True)
    _, port = server.listening_address
    spark = SparkSession.builder.remote(f"sc://127.0.0.1:{port}").getOrCreate()
    spark.conf.set("spark.sql.session.timeZone", "UTC")

    def query(text: str) -> pa.Table:
        if text:
            return spark.sql(text).toArrow()
        spaces = [row[0] for row in spark.sql("SHOW DATABASES IN lithify").collect()]
        tables = [row for space in spaces for row in spark.sql(f"SHOW TABLES IN lithify.{space}").collect()]
        return names([f"{row[0]}.{row[1]}" for row in tables])

    yield query
    spark.stop()
    server.stop()


@contextmanager
def of_spark(connect: str) -> Iterator[Query]:
    import pyarrow.parquet as pq

    from tests.readers.iceberg_spark import spark_with_iceberg

    with spark_with_iceberg(dict(setting.split("=", 1) for setting in connect.split())) as spark:

        def query(text: str) -> pa.Table:
            if not text:
                spaces = [row[0] for row in spark.sql("SHOW NAMESPACES IN lithify").collect()]
                tables = [row for space in spaces for row in spark.sql(f"SHOW TABLES IN lithify.{space}").collect()]
                return names([f"{row[0]}.{row[1]}" for row in tables])
            with tempfile.TemporaryDirectory() as folder:
                spark.sql(text).write.parquet(f"{folder}/rows")
                return pq.read_table(f"{folder}/rows")

        yield query


@contextmanager
def of_clickhouse(connect: str) -> Iterator[Query]:
    from chdb.session import Session

    session = Session()
    session.query("SET allow_experimental_database_iceberg = 1")
    session.query("SET output_format_arrow_string_as_string = 0")
    session.query(connect)

    def query(text: str) -> pa.Table:
        if not text:
            listed = session.query("SHOW TABLES FROM lithify", "ArrowStream")
            return names([name.decode() for name in pa.ipc.open_stream(listed.bytes()).read_all()[0].to_pylist()])
        return pa.ipc.open_stream(session.query(text, "ArrowStream").bytes()).read_all()

    yield query
    session.close()


ENGINES: dict[str, Callable[[str], AbstractContextManager[Query]]] = {
    "PyIceberg": of_pyiceberg,
    "Polars": of_pyiceberg,
    "Daft": of_pyiceberg,
    "DuckDB": of_duckdb,
    "Sail": of_sail,
    "Spark": of_spark,
    "ClickHouse": of_clickhouse,
}


def main() -> None:
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # engines print, too
    with ENGINES[sys.argv[1]](sys.argv[2]) as query:
        for line in sys.stdin:
            rows = query(line.strip())
            body = pa.BufferOutputStream()
            with pa.ipc.new_stream(body, rows.schema) as stream:
                stream.write_table(rows)
            answer = body.getvalue().to_pybytes()
            output.write(len(answer).to_bytes(8, "big") + answer)
            output.flush()


main()
