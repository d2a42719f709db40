"""Services that take announced files in are killed: each file is in exactly one delta, its rows are there once."""

from __future__ import annotations

import json
import multiprocessing
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from itertools import count
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import boto3
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactor.lake import DeltaCatalog, Table
from compactor.model.clock import SystemClock
from compactor.storage.location import parse_location
from compactor.storage.opening import open_store
from tests.chaos.ingest_service import programs, serve
from tests.servers import REGION, aws_environment, moto_server

pytestmark = [pytest.mark.servers, pytest.mark.kills, pytest.mark.timeout(300)]

DAYS = 2
FILES, KILLS = 300, 8


class Shop:
    """A table that files land for, a queue, and services, each a process of its own."""

    def __init__(self, folder: Path, endpoint_url: str) -> None:
        self.folder = folder
        self.endpoint_url = endpoint_url
        self.sqs = boto3.client("sqs", endpoint_url=endpoint_url, region_name=REGION)
        self.queue_url = self.sqs.create_queue(QueueName=SystemClock().new_id())["QueueUrl"]
        self.landing = folder / "landing"
        self.landing.mkdir()
        properties = {"landing": [f"file://{self.landing}/"]}
        self._catalog().create_table("SHOP.VISITS.V1", ["day"], primary_keys=["id"], properties=properties)
        self.files = 0
        self.processes = multiprocessing.get_context("forkserver")
        self.processes.set_forkserver_preload(list(programs()))

    def _catalog(self) -> DeltaCatalog:
        return DeltaCatalog(open_store(parse_location(str(self.folder / "lake"))), SystemClock())

    def table(self) -> Table:
        return self._catalog().table("SHOP.VISITS.V1")

    def land(self, announced: int) -> None:
        """A file with a row in each partition."""
        file, number = self.landing / f"{self.files}.parquet", self.files
        self.files += 1
        pq.write_table(pa.table({"id": [number] * DAYS, "day": [str(day) for day in range(DAYS)]}), file)
        body = json.dumps({"register": {"files": [f"file://{file}"]}})
        self.sqs.send_message_batch(
            QueueUrl=self.queue_url, Entries=[{"Id": str(at), "MessageBody": body} for at in range(announced)]
        )

    def start(self, kill_at: int = 0) -> ForkServerProcess:
        service = self.processes.Process(
            target=serve, args=(self.folder, self.queue_url, self.endpoint_url, kill_at), daemon=True
        )
        service.start()
        return service

    def check(self) -> None:
        table, expected = self.table(), set(range(self.files))
        for day in range(DAYS):
            state = table.stream({"day": str(day)}).load().state
            found = [each for source in state.sources.values() for each in source.deltas]
            deltas = Counter(file for each in found for file in each.append_ids)
            assert set(deltas.values()) == {1}
            assert {int(Path(each.partition("@")[0]).stem) for each in deltas} == expected
            assert len(deltas) == len(expected)
        rows = table.scan(view="merged").to_table().to_pylist()
        assert Counter((row["id"], row["day"]) for row in rows) == {
            (number, str(day)): 1 for number in expected for day in range(DAYS)
        }


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with aws_environment(), moto_server() as endpoint_url:
        yield Shop(tmp_path, endpoint_url)


def test_a_service_that_is_killed_at_any_write_loses_and_doubles_no_file(shop: Shop) -> None:
    for kill_at in count(1):
        shop.land(announced=2)
        service = shop.start(kill_at)
        service.join(60)
        if service.exitcode == 0:
            break
        assert service.exitcode == -signal.SIGKILL
        again = shop.start()
        again.join(60)
        assert again.exitcode == 0
    assert kill_at > 2 * (DAYS + 1)  # before and after an entry of each stream, and the deletion of the messages
    shop.check()


def test_two_services_of_which_one_is_killed_again_and_again_lose_and_double_no_file(shop: Shop) -> None:
    chance = random.Random(37)
    for _ in range(FILES - KILLS):
        shop.land(announced=chance.randint(1, 3))
    services = [shop.start() for _ in range(2)]
    killed = 0
    while killed < KILLS:
        time.sleep(chance.uniform(0.05, 0.6))
        which = chance.randrange(2)
        if not services[which].is_alive():
            break
        services[which].kill()
        services[which].join(10)
        killed += 1
        services[which] = shop.start()
        shop.land(announced=chance.randint(1, 3))
    for service in services:
        service.join(200)
        assert service.exitcode == 0
    assert killed >= KILLS // 2
    shop.check()
