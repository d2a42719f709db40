"""What one `lithify ingest` takes in: small files, and rows of many writers, beside the same writers that race on
`append`.

The queue is ministack, the store seaweedfs behind a proxy that delays each request; all are processes of their own on
the same cores. So seconds are those of a crowded machine, and the service's own processor time says what it could
take with the cores to itself.
"""

from __future__ import annotations

import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import boto3
import pyarrow as pa
import pyarrow.parquet as pq

from compactor.lake import DeltaCatalog, Table
from compactor.model.clock import SystemClock
from compactor.storage.location import StoreLocation, parse_location
from compactor.storage.opening import open_store
from dispatcher.aws.sqs import SqsQueue
from dispatcher.ingest.ingest import Ingest, IngestSettings
from tests.benchmarks.goals import Goal
from tests.benchmarks.object_store import weather_of
from tests.benchmarks.report import Section, markdown_table
from tests.proxy import Weather, proxy_process_before
from tests.servers import BUCKET, REGION, aws_environment, ministack_server, seaweedfs_server

FILES, ROWS_OF_A_FILE = 3_000, 10
WRITERS, DELTAS_OF_A_WRITER = 32, 20
DELAY_SECONDS = 0.03
COLLECT_SECONDS, PACED_FILES, PACE_SECONDS = 2.0, 200, 0.1

FILES_PER_SECOND, OVER_RACING, LATE_SECONDS = 500.0, 10.0, COLLECT_SECONDS + 1.0


@dataclass(frozen=True)
class TakenIn:
    """
    place        where files land, and where the lake is
    seconds      of the service, from the first message that it receives to the last that it deletes
    cpu_seconds  of its process, all threads
    """

    place: str
    files: int
    seconds: float
    cpu_seconds: float


@dataclass(frozen=True)
class Landings:
    """racing, through: deltas a second of the writers, by place; late_seconds: the median from a file to its entry."""

    files: tuple[TakenIn, ...]
    racing: dict[str, float]
    through: dict[str, float]
    late_seconds: float


def measure_landing(folder: Path, scale: float) -> Landings:
    """Raises `RuntimeError` if a file or a row is in no delta."""
    folder.mkdir(parents=True, exist_ok=True)
    files = max(round(FILES * scale), 50)
    each = max(round(DELTAS_OF_A_WRITER * scale), 2)
    with (
        aws_environment(),
        ministack_server() as sqs_url,
        seaweedfs_server(folder / "weed") as s3_url,
        proxy_process_before(s3_url) as proxy,
        weather_of(proxy, Weather(delay_seconds=DELAY_SECONDS)),
    ):
        on_s3 = parse_location(f"s3://{BUCKET}/bench", endpoint_url=proxy.url, region=REGION)
        places = {"folder": parse_location(str(folder / "lake")), "S3 at 30 ms": on_s3}
        shops = {place: _Shop(location, sqs_url) for place, location in places.items()}
        return Landings(
            tuple(shop.take_files(place, files) for place, shop in shops.items()),
            {place: shop.race(each) for place, shop in shops.items()},
            {place: shop.take_rows(each) for place, shop in shops.items()},
            shops["folder"].late_seconds(max(round(PACED_FILES * scale), 20)),
        )


class _Shop:
    """A lake in one place, with a table that files land for, and queues."""

    def __init__(self, location: StoreLocation, sqs_url: str) -> None:
        self._location, self._sqs_url = location, sqs_url
        self._sqs = boto3.client("sqs", endpoint_url=sqs_url, region_name=REGION)
        self._landing = f"{location.root_uri}/landing/"
        properties = {"landing": [self._landing]}
        self._catalog().create_table("BENCH.VISITS.V1", ["day"], primary_keys=["id"], properties=properties)
        for name in ("RACE", "ROWS"):
            self._catalog().create_table(f"BENCH.{name}.V1", ["day"], schema=_rows_of(0).schema, primary_keys=["id"])

    def take_files(self, place: str, count: int) -> TakenIn:
        """Files that are all there, and announced, before the service starts."""
        queue_url = self._queue()
        self._send(queue_url, [{"register": {"files": [uri]}} for uri in self._write(range(count))])
        found = self._drained(place, queue_url)
        self._check("VISITS", count)
        return found

    def race(self, each: int) -> float:
        """Deltas a second of writers that append to one partition stream."""

        def write(writer: int) -> None:
            table = self._catalog().table("BENCH.RACE.V1")
            for number in range(each):
                table.append({"day": "1"}, _rows_of(writer * each + number))

        began = time.monotonic()
        with ThreadPoolExecutor(WRITERS) as writers:
            list(writers.map(write, range(WRITERS)))
        seconds = time.monotonic() - began
        self._check("RACE", WRITERS * each)
        return WRITERS * each / seconds

    def take_rows(self, each: int) -> float:
        """Deltas a second of the same rows, which the writers have sent to the service."""
        queue_url = self._queue()
        rows = [_rows_of(number).to_pylist() for number in range(WRITERS * each)]
        self._send(queue_url, [{"register": {"table": "BENCH.ROWS.V1", "rows": found}} for found in rows])
        found = self._drained("", queue_url)
        self._check("ROWS", WRITERS * each)
        return WRITERS * each / found.seconds

    def late_seconds(self, count: int) -> float:
        """The median from the time of a file to that of its delta, of files that land at a steady pace."""
        queue_url, ends = self._queue(), threading.Event()

        def serve() -> None:
            ingest = self._ingest(queue_url, IngestSettings(collect_seconds=COLLECT_SECONDS))
            while not ends.is_set():
                ingest.collect_once()

        before = len(self._deltas("VISITS"))
        service = threading.Thread(target=serve)
        service.start()
        landed = {}
        for number in range(FILES, FILES + count):
            (uri,) = self._write(range(number, number + 1))
            landed[uri] = time.time()
            self._send(queue_url, [{"register": {"files": [uri]}}])
            time.sleep(PACE_SECONDS)
        time.sleep(COLLECT_SECONDS)
        ends.set()
        service.join()
        durable = self._deltas("VISITS")
        if len(durable) != before + count:
            raise RuntimeError(f"{len(durable)} files of {before + count} are in deltas")
        return median(durable[uri] - at for uri, at in landed.items())

    def _catalog(self) -> DeltaCatalog:
        return DeltaCatalog(open_store(self._location), SystemClock())

    def _queue(self) -> str:
        name = SystemClock().new_id()
        self._sqs.create_queue(QueueName=f"{name}-dead")
        return self._sqs.create_queue(QueueName=name)["QueueUrl"]

    def _write(self, numbers: range) -> list[str]:
        store = open_store(self._location)
        found = []
        for number in numbers:
            sink = pa.BufferOutputStream()
            pq.write_table(_rows_of(number), sink)
            store.put_if_absent(f"landing/{number}.parquet", sink.getvalue().to_pybytes())
            found.append(f"{self._landing}{number}.parquet")
        return found

    def _send(self, queue_url: str, documents: list[dict[str, object]]) -> None:
        for start in range(0, len(documents), 10):
            batch = documents[start : start + 10]
            entries = [{"Id": str(at), "MessageBody": json.dumps(each)} for at, each in enumerate(batch)]
            self._sqs.send_message_batch(QueueUrl=queue_url, Entries=entries)  # type: ignore[arg-type]

    def _ingest(self, queue_url: str, settings: IngestSettings) -> Ingest:
        queue = SqsQueue.open(
            queue_url, dead_letter_queue_url=f"{queue_url}-dead", endpoint_url=self._sqs_url, region=REGION
        )
        return Ingest(queue, self._catalog(), settings, SystemClock())

    def _drained(self, place: str, queue_url: str) -> TakenIn:
        """Of a service that is there already. How long it waits for more, once the queue is empty, does not count."""
        ingest, files = self._ingest(queue_url, IngestSettings(collect_seconds=0.0)), 0
        began, cpu_began, seconds = time.monotonic(), time.process_time(), 0.0
        while (done := ingest.collect_once()).messages:
            if done.refused:
                raise RuntimeError(f"{done.refused} messages were refused")
            files += done.files
            seconds = time.monotonic() - began
        return TakenIn(place, files, seconds, time.process_time() - cpu_began)

    def _deltas(self, name: str) -> dict[str, float]:
        """By their file, when they were added."""
        table: Table = self._catalog().table(f"BENCH.{name}.V1")
        sources = table.stream({"day": "1"}).load().state.sources.values()
        return {
            delta_id.rpartition("@")[0] or delta_id: (each.at_ms or 0) / 1e3
            for source in sources
            for each in source.deltas
            for delta_id in each.append_ids
        }

    def _check(self, name: str, count: int) -> None:
        found = len(self._deltas(name))
        if found != count:
            raise RuntimeError(f"{found} deltas of {count} are in BENCH.{name}.V1")


def _rows_of(number: int) -> pa.Table:
    ids = range(number * ROWS_OF_A_FILE, (number + 1) * ROWS_OF_A_FILE)
    return pa.table(
        {
            "id": list(ids),
            "day": ["1"] * ROWS_OF_A_FILE,
            "visitor": [f"visitor {each % 97}" for each in ids],
            "amount": [each / 4 for each in ids],
        }
    )


def landing_section(found: Landings) -> Section:
    """Files and rows that announce themselves."""
    load = os.getloadavg()[1]
    text = (
        f"Files of {ROWS_OF_A_FILE} rows, one a message, through one `lithify ingest`; and {WRITERS} writers of "
        "as many rows a delta to one partition stream, which race on `append`, or have sent their rows to the service. "
        "Queue (ministack), S3 (seaweedfs behind a proxy that delays each request) and proxy are processes of their own"
        f" on the same cores. Load average, these processes included, {load:.1f}.\n\n"
    )
    rows = [
        (
            each.place,
            f"{each.files:,}",
            f"{each.files / each.seconds:.0f}",
            f"{each.files / each.cpu_seconds:.0f}",
            f"{found.racing[each.place]:.0f}",
            f"{found.through[each.place]:.0f}",
            f"{found.through[each.place] / found.racing[each.place]:.1f}",
        )
        for each in found.files
    ]
    header = ["lake", "files", "files a second", "files a processor second of the service"]
    header += [f"deltas a second, {WRITERS} writers that race", "through the service", "ratio"]
    text += markdown_table(header, rows)
    text += (
        f"\n\nFrom a file to its durable delta, collected for {COLLECT_SECONDS:g} s: median {found.late_seconds:.2f} s."
    )
    return "Files that announce themselves", text


def goals_of_landing(found: Landings) -> list[Goal]:
    goals = [Goal("from a file to its delta, median, s", LATE_SECONDS, found.late_seconds)]
    for each in found.files:
        where, ratio = f"ingest, {each.place}", found.through[each.place] / found.racing[each.place]
        speed = each.files / each.seconds
        goals.append(Goal(f"{where}: files a second", FILES_PER_SECOND, speed, at_least=True))
        goals.append(Goal(f"{where}: deltas of {WRITERS} writers / racing", OVER_RACING, ratio, at_least=True))
    return goals
