"""Engines read published tables through the Iceberg REST catalog.

Each engine connects once, and reads after every round. ClickHouse reads files on S3 alone. Spark's package of Iceberg
has no client of S3, and reads no table with a time of day, so its table has none.
"""

from __future__ import annotations

import random
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from compactor import DeltaCatalog, compact
from compactor.lake import Table
from tests.pages.sources import DOCS
from tests.published_rows import PARTITIONS, append_round, compact_all, differences, rows_of_every_kind
from tests.readers.conftest import HERE, OTHER_PYTHONS, PYTHON, environment_of
from tests.readers.served import served
from tests.readers.test_readers import as_clickhouse_has_it, typed_as
from tests.servers import ACCESS_KEY, BUCKET, REGION, SECRET_KEY, aws_environment, create_bucket, seaweedfs_server
from tests.waiting import wait_until

ORDERS, SIMPLE = "ACME.ORDERS.V1", "ACME.SIMPLE.V1"
ROUNDS = 3


URL = "http://127.0.0.1:8642/iceberg"


def lines() -> dict[str, tuple[str, str]]:
    """How each engine connects, and how it reads, of the table below its mark."""
    table = (DOCS / "guide" / "publishing.md").read_text().split("<!-- tested: catalog -->\n")[1].split("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    return {engine: (code(connect), code(read)) for engine, connect, read in rows}


def code(cell: str) -> str:
    found = re.fullmatch(r"(`+) ?(.*?) ?\1", cell)
    assert found is not None, cell
    return found[2]


LINES = lines()
ON_DISK = [engine for engine in LINES if engine != "ClickHouse"]
ON_S3 = [engine for engine in LINES if engine != "Spark"]


class Connection:
    """One engine's connection, in a process of its own."""

    def __init__(self, engine: str, process: subprocess.Popen[bytes], read: str, errors: Path) -> None:
        self.engine = engine
        self._process = process
        self._read = read
        self._errors = errors

    def rows(self, table: str = "lake.acme_orders_v1") -> pa.Table:
        return self.ask(self._read.replace("lake.acme_orders_v1", table))

    def names(self) -> list[str]:
        return sorted(self.ask("").column("name").to_pylist())

    def ask(self, query: str) -> pa.Table:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(query.encode() + b"\n")
        self._process.stdin.flush()
        size = self._process.stdout.read(8)
        if len(size) < 8:
            raise AssertionError(f"{self.engine} cannot {query!r}: {self._errors.read_text()[-2_000:]}")
        with pa.ipc.open_stream(self._process.stdout.read(int.from_bytes(size, "big"))) as stream:
            return stream.read_all()


@contextmanager
def connected(engine: str, url: str, folder: Path, environment: Mapping[str, str]) -> Iterator[Connection]:
    connect, read = LINES[engine]
    connect = connect.replace(URL, url)
    for name, value in {
        "<key>": ACCESS_KEY,
        "<secret>": SECRET_KEY,
        "https://s3.eu-west-1.amazonaws.com/bucket": f"{environment.get('AWS_ENDPOINT_URL')}/{BUCKET}",
    }.items():
        connect = connect.replace(name, value)
    python = OTHER_PYTHONS["spark_iceberg"] if engine == "Spark" else PYTHON
    errors = folder / f"{engine}.log"
    with errors.open("wb") as log:
        process = subprocess.Popen(
            [python, HERE / "run_catalog.py", engine, connect],
            cwd=folder,
            env=environment_of(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
        )
    with process:
        try:
            yield Connection(engine, process, read, errors)
        finally:
            process.kill()


def check(scanned: pa.Table, read: pa.Table, engine: str) -> None:
    if engine == "ClickHouse":  # it shows a time of day as a number
        scanned, read = as_clickhouse_has_it(scanned), typed_as(read, scanned)
        scanned, read = (
            each.drop_columns([name for name in each.schema.names if name == "time"]) for each in (scanned, read)
        )
    assert differences(scanned, read) == [], engine


def lakes_tables(lake: DeltaCatalog) -> tuple[Table, Table]:
    """A table of every kind of column, one without a time of day, which has a database in Glue if the lake is on S3,
    and two that the catalog must not show."""
    lake.create_table("ACME.PRIVATE.V1").append({}, pa.table({"id": [1]}))
    delta = lake.create_table("ACME.DELTA.V1", properties={"publish": "delta"})
    delta.append({}, pa.table({"id": [1]}))
    for each in ("ACME.PRIVATE.V1", "ACME.DELTA.V1"):
        compact(each, {"id"}, delta_catalog_client=lake)
    published = {"publish": "delta,iceberg"}
    return (
        lake.create_table(ORDERS, ["region", "day"], properties=published),
        lake.create_table(
            SIMPLE,
            ["region", "day"],
            properties={**published, "glue_database": "shared"} if lake.location.is_remote else published,
        ),
    )


def rounds_are_read(lake: DeltaCatalog, url: str, engines: list[str], folder: Path, env: Mapping[str, str]) -> None:
    """What every engine reads after each round is what a scan reads then."""
    orders, simple = lakes_tables(lake)
    simple_name = "shared.acme_simple_v1" if lake.location.is_remote else "lake.acme_simple_v1"
    chance = random.Random(3)
    with ExitStack() as stack:
        connections: list[Connection] = []
        for turn in range(ROUNDS):
            for partition in PARTITIONS:
                append_round(orders, partition, chance, turn)
                rows = rows_of_every_kind(chance.sample(range(300), 100), turn)
                simple.append(partition, rows.drop_columns(["time"]))
            compact_all(lake)
            compact(SIMPLE, {"id"}, delta_catalog_client=lake)
            if not connections:
                opened = (connected(engine, url, folder, env) for engine in engines)
                connections += [stack.enter_context(each) for each in opened]
            for each in connections:
                check(simple.scan().to_table(), each.rows(simple_name), each.engine)
                if each.engine != "Spark":
                    check(orders.scan().to_table(), each.rows(), each.engine)
                assert each.names() == ["lake.acme_orders_v1", simple_name], each.engine
        simple.set_properties({"publish": "delta"})
        for each in connections:
            if each.engine == "DuckDB":  # it lists once a connection
                each = stack.enter_context(connected(each.engine, url, folder, env))
            wait_until(lambda names=each.names: names() == ["lake.acme_orders_v1"], 10)  # type: ignore[misc]


@pytest.mark.slow
def test_every_engine_reads_each_round_on_disk_through_the_catalog(tmp_path: Path) -> None:
    lake = DeltaCatalog.open(tmp_path / "lake")
    lake.create_table("ACME.HIDDEN.V1")
    with served(lake) as url:
        rounds_are_read(lake, url, ON_DISK, tmp_path, {})


@pytest.mark.slow
def test_every_engine_reads_each_round_on_an_object_store_through_the_catalog(tmp_path: Path) -> None:
    with aws_environment(), seaweedfs_server(tmp_path / "seaweedfs") as endpoint_url:
        create_bucket(endpoint_url)
        lake = DeltaCatalog.open(f"s3://{BUCKET}/data/lake", endpoint_url=endpoint_url, region=REGION)
        environment = {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": REGION,
            "AWS_ENDPOINT_URL": endpoint_url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        lake.create_table("ACME.HIDDEN.V1")
        with served(lake) as url:
            rounds_are_read(lake, url, ON_S3, tmp_path, environment)


def test_a_write_is_refused_with_a_sentence_and_changes_nothing(tmp_path: Path) -> None:
    lake = DeltaCatalog.open(tmp_path / "lake")
    table = lake.create_table(ORDERS, properties={"publish": "iceberg"})
    table.append({}, pa.table({"order_id": range(10)}))
    compact(ORDERS, {"order_id"}, delta_catalog_client=lake)
    scanned = table.scan().to_table()
    with served(lake) as url:
        with connected("DuckDB", url, tmp_path, {}) as duckdb, pytest.raises(AssertionError, match="Lithify alone"):
            duckdb.ask("INSERT INTO lithify.lake.acme_orders_v1 VALUES (11)")
        with connected("PyIceberg", url, tmp_path, {}) as pyiceberg, pytest.raises(AssertionError, match="not support"):
            pyiceberg.ask("lithify.drop_table('lake.acme_orders_v1')")
        for engine in ("DuckDB", "PyIceberg"):
            with connected(engine, url, tmp_path, {}) as again:
                assert again.rows().sort_by("order_id").equals(scanned.sort_by("order_id"))


@pytest.mark.slow
def test_spark_reads_metadata_tables_and_earlier_versions_and_is_refused_to_write(tmp_path: Path) -> None:
    lake = DeltaCatalog.open(tmp_path / "lake")
    table = lake.create_table(ORDERS, properties={"publish": "iceberg"})
    for number in range(2):
        table.append({}, pa.table({"order_id": [number]}))
        compact(ORDERS, {"order_id"}, delta_catalog_client=lake)
    with served(lake) as url, connected("Spark", url, tmp_path, {}) as spark:
        snapshots = spark.ask("SELECT snapshot_id FROM lithify.lake.acme_orders_v1.snapshots ORDER BY committed_at")
        first = snapshots.column("snapshot_id")[0].as_py()
        assert len(snapshots) == 2
        earlier = spark.ask(f"SELECT * FROM lithify.lake.acme_orders_v1 VERSION AS OF {first}")
        assert earlier.column("order_id").to_pylist() == [0]
        assert sorted(spark.rows().column("order_id").to_pylist()) == [0, 1]
        with pytest.raises(AssertionError, match="Server does not support endpoint"):
            spark.ask("INSERT INTO lithify.lake.acme_orders_v1 VALUES (2)")
