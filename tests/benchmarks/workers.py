"""How long one small instruction takes that runs in a warm worker, and what an idle worker holds. It takes from
SendMessage to its `job_run.succeeded` on a queue that is subscribed to the topic.

One instruction at a time, each for 1,000 new rows of one stream. Queue and topic are ministack, lake and state are in a
folder, or on S3 at 30 ms a request (seaweedfs behind a proxy that delays each answer), all on the same cores.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import boto3
import numpy as np
import psutil
import pyarrow as pa

from compactor.lake import DeltaCatalog
from compactor.model.clock import SystemClock
from compactor.storage.location import StoreLocation, parse_location
from compactor.storage.opening import open_store
from tests.benchmarks.one_dispatcher import Mail, dispatcher, on_s3, open_mail
from tests.proxy import ProxyProcess, Seen, Weather, proxy_process_before
from tests.servers import REGION, aws_environment, seaweedfs_server

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient

INSTRUCTIONS = 100
INSTRUCTIONS_MIN = 5
ROWS = 1_000

DELAY_MS = 30

_TABLE = "BENCH.SMALL.V1"
_FIRST = 3
"""Instructions before those that are measured: workers and connections are warm then."""

_IDLE_SECONDS = 3.0
"""Without an instruction, before the memory of workers is taken."""

_SECONDS_MAX = 120.0


@dataclass(frozen=True)
class InWorkers:
    """
    delay_ms         of a request to S3; None: state and lake are in a folder
    first_seconds    of the first instruction, which the dispatcher finds when it starts
    seconds          of each of the others, in a dispatcher that is warm
    idle_worker_mib  of each worker in the end, by its share of pages that processes have in common
    requests         to S3, the median of an instruction
    in_sequence      of them, one after the other, until its event has arrived
    """

    delay_ms: int | None
    first_seconds: float
    seconds: tuple[float, ...]
    idle_worker_mib: tuple[float, ...]
    requests: float = 0.0
    in_sequence: float = 0.0

    @property
    def median_and_p95(self) -> tuple[float, float]:
        median, p95 = np.percentile(self.seconds, [50, 95])
        return float(median), float(p95)


def measure_workers(folder: Path, scale: float) -> Sequence[InWorkers]:
    """Raises `RuntimeError` if an instruction does not succeed in time."""
    count = max(round(INSTRUCTIONS * scale), INSTRUCTIONS_MIN)
    (folder / "near").mkdir()
    (folder / "far").mkdir()
    state, lake = (parse_location(str(folder / "near" / name)) for name in ("state", "lake"))
    with aws_environment():
        near = _Instructions(folder / "near", state, lake, lake, None).run(count)
        with seaweedfs_server(folder / "seaweedfs") as url, proxy_process_before(url) as proxy:
            proxy.set_weather(Weather(delay_seconds=DELAY_MS / 1000))
            far = _Instructions(folder / "far", *on_s3("small", proxy.url), on_s3("small", url)[1], proxy).run(count)
    return near, far


class _Instructions:
    """Instructions to one dispatcher. `near_lake`: the lake as the writer of deltas reaches it, whom nothing delays."""

    def __init__(
        self,
        folder: Path,
        state: StoreLocation,
        lake: StoreLocation,
        near_lake: StoreLocation,
        proxy: ProxyProcess | None,
    ) -> None:
        self._folder = folder
        self._state = state
        self._lake = lake
        self._proxy = proxy
        self._table = DeltaCatalog(open_store(near_lake), SystemClock()).create_table(_TABLE)
        self._seen: list[Sequence[Seen]] = []

    def run(self, count: int) -> InWorkers:
        with open_mail() as mail:
            sqs, events_url = mail.sqs(), subscribe(mail)
            with dispatcher(self._folder, self._state, self._lake, mail) as process:
                first_seconds = self._run_one(sqs, mail, events_url, 0)
                for number in range(1, _FIRST):
                    self._run_one(sqs, mail, events_url, number)
                self._seen.clear()
                seconds = tuple(
                    self._run_one(sqs, mail, events_url, number) for number in range(_FIRST, _FIRST + count)
                )
                time.sleep(_IDLE_SECONDS)
                children = psutil.Process(process.pid).children()
                workers = [each for each in children if "compactor.worker" in each.cmdline()]
                idle = tuple(each.memory_full_info().pss / 2**20 for each in workers)
                process.send_signal(signal.SIGTERM)
        return InWorkers(
            DELAY_MS if self._proxy is not None else None,
            first_seconds,
            seconds,
            idle,
            requests=median(len(each) for each in self._seen),
            in_sequence=median(len(in_sequence(each)) for each in self._seen),
        )

    def _run_one(self, sqs: SQSClient, mail: Mail, events_url: str, number: int) -> float:
        self._table.append({}, pa.table({"id": range(number * ROWS, (number + 1) * ROWS)}))
        document = {
            "schema_version": "1",
            "job_run_id": f"run-{number}",
            "source_table_id": _TABLE,
            "primary_keys": ["id"],
        }
        if self._proxy is not None:
            self._proxy.count_anew()
        began = time.monotonic()
        sqs.send_message(QueueUrl=mail.queue_url, MessageBody=json.dumps(document))
        _await_success(sqs, events_url, f"run-{number}", began)
        seconds = time.monotonic() - began
        self._seen.append(() if self._proxy is None else self._proxy.seen())
        return seconds


def in_sequence(requests: Sequence[Seen]) -> Sequence[Seen]:
    """The longest chain of requests of which each began after the one before it had ended."""
    chain: list[Seen] = []
    for seen in sorted(requests, key=lambda each: each.ended_seconds):
        if seen.ended_seconds and (not chain or seen.began_seconds >= chain[-1].ended_seconds):
            chain.append(seen)
    return chain


def subscribe(mail: Mail) -> str:
    sqs = mail.sqs()
    url = sqs.create_queue(QueueName="bench-events")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    boto3.client("sns", endpoint_url=mail.url, region_name=REGION).subscribe(
        TopicArn=mail.topic_arn, Protocol="sqs", Endpoint=arn, Attributes={"RawMessageDelivery": "true"}
    )
    return url


def _await_success(sqs: SQSClient, events_url: str, job_run_id: str, began: float) -> None:
    while time.monotonic() - began < _SECONDS_MAX:
        for event in take_events(sqs, events_url, 1):
            if event["jobrunid"] != job_run_id:
                continue
            if event["type"] == "lithify.job_run.succeeded.v1":
                return
            if event["type"] == "lithify.job_run.failed.v1":
                raise RuntimeError(f"{job_run_id} failed: {event['data']}")
    raise RuntimeError(f"{job_run_id} did not succeed within {_SECONDS_MAX:g} s")


def take_events(sqs: SQSClient, events_url: str, wait_seconds: int) -> Iterator[dict[str, Any]]:
    """Events that have arrived, off the queue; waits for the first so long."""
    found = sqs.receive_message(QueueUrl=events_url, MaxNumberOfMessages=10, WaitTimeSeconds=wait_seconds)
    for message in found.get("Messages", []):
        sqs.delete_message(QueueUrl=events_url, ReceiptHandle=message["ReceiptHandle"])
        yield json.loads(message["Body"])
