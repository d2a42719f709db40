"""Services that take announced files in are killed: each file is in exactly one delta, its rows are there once."""

from __future__ import annotations

import json
import multiprocessing
import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import boto3
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactor.model.clock import SystemClock
from dispatcher.demo.stand_ins import queue_server
from tests.chaos.ingest_service import Service, programs
from tests.servers import BUCKET, REGION, aws_environment, ministack_server, seaweedfs_server

pytestmark = pytest.mark.servers

DAYS = 2
WRITES_OF_TWO_COLLECTIONS = 12


class Shop:
    """A table that files land for, in two partitions each, and services, each a process of its own."""

    def __init__(self, service: Service, landing: str) -> None:
        self.service = service
        self.landing = landing
        properties = {"landing": [landing]}
        service.catalog().create_table("SHOP.VISITS.V1", ["day"], primary_keys=["id"], properties=properties)
        self.sqs = boto3.client("sqs", endpoint_url=service.sqs_url, region_name=REGION)
        self.processes = multiprocessing.get_context("forkserver")
        self.processes.set_forkserver_preload(list(programs()))
        self.newest: dict[int, str] = {}

    def announce(self, bodies: Sequence[str]) -> None:
        batches = [bodies[start : start + 10] for start in range(0, len(bodies), 10)]
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(self._send, batches))

    def _send(self, bodies: Sequence[str]) -> None:
        entries = [{"Id": str(at), "MessageBody": body} for at, body in enumerate(bodies)]
        self.sqs.send_message_batch(QueueUrl=self.service.queue_url, Entries=entries)  # type: ignore[arg-type]

    def start(self, kill_at: int = 0) -> ForkServerProcess:
        started = self.processes.Process(target=self.service.serve, args=(kill_at,), daemon=True)
        started.start()
        return started

    def check(self, expected: dict[int, str]) -> None:
        """Each version is in at most one delta of each stream, the newest one is the last, and its rows are there once.
        `expected`: the `v` of the newest, by id."""
        table = self.service.catalog().table("SHOP.VISITS.V1")
        for day in range(DAYS):
            state = table.stream({"day": str(day)}).load().state
            versions: dict[int, list[str]] = defaultdict(list)
            for source in state.sources.values():
                for append_id in (each for delta in source.deltas for each in delta.append_ids):
                    uri, _, version = append_id.rpartition("@")
                    versions[int(Path(uri).stem)].append(version)
            assert versions.keys() == expected.keys()
            assert all(len(found) == len(set(found)) for found in versions.values())
            assert {number: found[-1] for number, found in versions.items() if number in self.newest} == self.newest
        rows = table.scan(view="merged").to_table().to_pylist()
        assert Counter((row["id"], row["day"], row["v"]) for row in rows) == {
            (number, str(day), v): 1 for number, v in expected.items() for day in range(DAYS)
        }


def rows_of(number: int, v: str) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"id": [number] * DAYS, "day": [str(day) for day in range(DAYS)], "v": [v] * DAYS}), sink)
    return bytes(sink.getvalue())


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_service_that_is_killed_at_any_write_loses_and_doubles_no_file(tmp_path: Path) -> None:
    with aws_environment(), queue_server() as url:
        queue_url = boto3.client("sqs", endpoint_url=url, region_name=REGION).create_queue(
            QueueName=SystemClock().new_id()
        )["QueueUrl"]
        shop = Shop(Service(str(tmp_path / "lake"), queue_url, url), f"file://{tmp_path}/landing/")
        (tmp_path / "landing").mkdir()
        for kill_at in count(1):
            (tmp_path / "landing" / f"{kill_at}.parquet").write_bytes(rows_of(kill_at, "new"))
            shop.announce([json.dumps({"register": {"files": [f"{shop.landing}{kill_at}.parquet"]}})] * 2)
            service = shop.start(kill_at)
            service.join(60)
            if service.exitcode == 0:
                break
            assert service.exitcode == -signal.SIGKILL
            again = shop.start()
            again.join(60)
            assert again.exitcode == 0
        assert kill_at > 2 * (DAYS + 1)  # before and after an entry of each stream, and the deletion of the messages
        shop.check(dict.fromkeys(range(1, kill_at + 1), "new"))


@pytest.fixture
def far_shop(tmp_path: Path) -> Iterator[Shop]:
    """On S3."""
    with aws_environment(), ministack_server() as sqs_url, seaweedfs_server(tmp_path / "weed") as s3_url:
        sqs = boto3.client("sqs", endpoint_url=sqs_url, region_name=REGION)
        queue_url = sqs.create_queue(QueueName="landed")["QueueUrl"]
        service = Service(f"s3://{BUCKET}/lake", queue_url, sqs_url, s3_url, files_max=400, visibility_seconds=15)
        yield Shop(service, f"s3://{BUCKET}/landing/")


@pytest.mark.timeout(1_500)
@pytest.mark.parametrize(
    ("objects", "kills"),
    [pytest.param(1_000, 12, marks=pytest.mark.long), pytest.param(10_000, 40, marks=pytest.mark.release)],
)
def test_each_version_of_an_object_is_in_one_delta_while_two_services_are_killed(
    far_shop: Shop, objects: int, kills: int
) -> None:
    """At each write and at random; each version is announced 1 to 3 times, and some objects are written again."""
    chance, sequencers, expected = random.Random(37), count(1), dict[int, str]()
    s3 = boto3.client("s3", endpoint_url=far_shop.service.s3_url, region_name=REGION)

    def land(numbers: Sequence[int], v: str) -> None:
        def put(number: int) -> str:
            return s3.put_object(Bucket=BUCKET, Key=f"landing/{number}.parquet", Body=rows_of(number, v))["ETag"]

        with ThreadPoolExecutor(8) as threads:
            etags = dict(zip(numbers, threads.map(put, numbers)))
        bodies = []
        for number, etag in etags.items():
            named = {
                "key": f"landing/{number}.parquet",
                "etag": etag,
                "size": 9,
                "sequencer": f"{next(sequencers):016X}",
            }
            event = {"source": "aws.s3", "detail-type": "Object Created"}
            body = json.dumps({**event, "detail": {"bucket": {"name": BUCKET}, "object": named}})
            bodies += [body] * chance.randint(1, 3)
            expected[number] = v
            far_shop.newest[number] = etag
        chance.shuffle(bodies)
        far_shop.announce(bodies)

    land(range(objects), "first")
    kill_at, killed = count(1), 0
    services = [far_shop.start(next(kill_at)), far_shop.start()]
    while killed < kills and any(each.is_alive() for each in services):
        time.sleep(chance.uniform(0.1, 1.5))
        which = chance.randrange(2)
        services[which].kill()  # unless it was killed at its write
        services[which].join(10)
        killed += 1
        if killed % 4 == 0:
            land(chance.sample(range(objects), objects // 200), f"again {killed}")
        services[which] = far_shop.start(next(kill_at) % WRITES_OF_TWO_COLLECTIONS if killed < kills else 0)
    for which, service in enumerate(services):
        service.join(600)
        if service.exitcode == -signal.SIGKILL:
            services[which] = far_shop.start()
    for service in services:
        service.join(600)
        assert service.exitcode == 0
    assert killed >= kills // 2
    far_shop.check(expected)
