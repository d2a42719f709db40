"""A lake on a real S3 service, compacted on Spark and without one: read by key with a bounded number of requests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from compactor import DeltaCatalog, compact
from compactor.index.files import find_row
from compactor.kernels.canonical import canonical_column
from compactor.kernels.digest import digest_keys
from compactor.kernels.hash_bucket import hash_buckets
from compactor.maintenance.verify import verify
from compactor.model.clock import SystemClock
from compactor.storage.aws.ranges import S3Ranges
from compactor.storage.aws.s3 import shared_clients
from compactor.storage.ranges import RangeReader, Span
from tests.proxy import proxy_before
from tests.servers import BUCKET, aws_environment, create_bucket, seaweedfs_server
from tests.spark.compact_program import command_to_compact

pytestmark = [pytest.mark.spark, pytest.mark.servers, pytest.mark.long]

READS_OF_ONE_RUN = 4
"""The head of an index file, a window of digests, those of the two columns of pointers, which are sent together."""

REPOSITORY = Path(__file__).resolve().parents[2]
TABLE = "ACME.ORDERS.V1"
LITHIFY = Path(sys.executable).with_name("lithify")


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[DeltaCatalog]:
    with aws_environment(), seaweedfs_server(tmp_path / "weed") as endpoint_url:
        create_bucket(endpoint_url)
        yield DeltaCatalog.open(f"s3://{BUCKET}/lake", endpoint_url=endpoint_url, region="us-east-1")


def compact_on_spark(lake: DeltaCatalog, **others: int) -> dict[str, int]:
    return only_session(command_to_compact(lake.location, TABLE, ["id"], **{"hash_bucket_count": 2, **others}))


def compact_by_the_command(lake: DeltaCatalog) -> dict[str, int]:
    """It needs no Spark for so few rows."""
    location = lake.location
    endpoint = ["--lake", location.root_uri, "--s3-endpoint-url", str(location.endpoint_url), "--region", "us-east-1"]
    return only_session([str(LITHIFY), "compact", TABLE, "-k", "id", *endpoint, "--output", "json"])


def only_session(command: list[str]) -> dict[str, int]:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=240)
    assert done.returncode == 0, done.stderr
    (session,) = json.loads(done.stdout)["sessions"]
    found: dict[str, int] = session
    return found


class CountingRanges(S3Ranges):
    """Ranges on S3, and how many requests were sent for them."""

    requests = 0

    def read(self, uri: str, span: Span, version: str | None) -> memoryview:
        self.requests += 1
        return super().read(uri, span, version)


def reads_to_find(lake: DeltaCatalog, key: int) -> int:
    compacted = lake.table(TABLE).stream({}).load().state.compacted
    assert compacted is not None
    words = digest_keys([canonical_column("id", pa.chunked_array([pa.array([key], pa.int64())]))], 1)
    bucket = int(hash_buckets(words, compacted.hash_bucket_count)[0])
    location = lake.location
    counting = CountingRanges(shared_clients(location.endpoint_url, location.region), SystemClock())
    files = [file for file in compacted.index_files if file.hash_bucket == bucket]
    assert find_row(lake.location, files, words, RangeReader(counting)) is not None
    return counting.requests


def test_a_lake_on_s3_is_compacted_audited_and_read_by_key(lake: DeltaCatalog) -> None:
    orders = lake.create_table(TABLE)
    orders.append({}, pa.table({"id": range(20_000), "value": [f"v{n}" for n in range(20_000)]}), rows_per_file=5_000)
    first = compact_on_spark(lake)
    assert (first["rows_in"], first["rows_out"]) == (20_000, 20_000)
    reads_of_small_table = max(reads_to_find(lake, key) for key in (0, 7_777, 19_999))

    orders.append({}, pa.table({"id": range(20_000, 100_000), "value": ["grown"] * 80_000}), rows_per_file=20_000)
    orders.append({}, pa.table({"id": [5]}), operation="delete")
    assert orders.scan(view="merged").to_table().num_rows == 99_999
    assert orders.scan().to_table().num_rows == 20_000
    compact_by_the_command(lake)

    stream = orders.stream({})
    assert verify(stream).problems == ()
    assert orders.scan().to_table().num_rows == 99_999
    assert orders.lookup({}, {"id": 7_777}) == {"id": 7_777, "value": "v7777"}
    assert orders.lookup({}, {"id": 5}) is None
    assert orders.lookup({}, {"id": 123_456}) is None
    runs = verify(stream).index_runs
    assert reads_of_small_table <= READS_OF_ONE_RUN
    assert max(reads_to_find(lake, key) for key in (0, 7_777, 99_999)) <= READS_OF_ONE_RUN * runs


def test_workers_of_one_machine_fetch_the_index_once_for_dedupe_and_for_writing_it_again(lake: DeltaCatalog) -> None:
    orders = lake.create_table(TABLE)
    orders.append({}, pa.table({"id": range(200_000), "value": [n % 1_000 for n in range(200_000)]}))
    compact(TABLE, {"id"}, delta_catalog_client=lake, hash_bucket_count=8, rows_per_compacted_file=20_000)
    compacted = orders.stream({}).load().state.compacted
    assert compacted is not None
    index_bytes = sum(file.bytes_at_rest for file in compacted.index_files)
    orders.append({}, pa.table({"id": range(50_000, 80_000), "value": [-1] * 30_000}))

    with proxy_before(str(lake.location.endpoint_url)) as proxy:
        far = DeltaCatalog.open(lake.location.root_uri, endpoint_url=proxy.url, region="us-east-1")
        session = compact_on_spark(far, hash_bucket_count=8, rows_per_compacted_file=20_000)
        of_index = [
            each for each in proxy.seen() if "/index/" in each.request.target and each.request.operation != "PUT"
        ]

    assert session["rows_out"] == 200_000
    assert index_bytes / 2 < sum(each.bytes_down for each in of_index) <= 1.05 * index_bytes
    assert verify(orders.stream({})).problems == ()
    assert orders.scan().to_table().column("value").to_pylist().count(-1) == 30_000
