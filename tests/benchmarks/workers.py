"""How long one small instruction takes that runs in a warm worker, and what an idle worker holds. It takes from
SendMessage to its `job_run.succeeded` on a queue that is subscribed to the topic.

One instruction at a time, each for 1,000 new rows of one stream. Queue and topic are ministack, lake and state are in a
folder, all on the same cores.
"""

from __future__ import annotations

import json
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
import numpy as np
import psutil
import pyarrow as pa

from compactor.lake import DeltaCatalog
from compactor.storage.location import parse_location
from tests.benchmarks.one_dispatcher import Mail, dispatcher, open_mail
from tests.servers import REGION, aws_environment

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient

INSTRUCTIONS = 100
INSTRUCTIONS_MIN = 5
ROWS = 1_000

_TABLE = "BENCH.SMALL.V1"
_FIRST = 3
"""Instructions before those that are measured: workers and connections are warm then."""

_SECONDS_MAX = 120.0


@dataclass(frozen=True)
class InWorkers:
    """
    first_seconds    of the first instruction, which the dispatcher finds when it starts
    seconds          of each of the others, in a dispatcher that is warm
    idle_worker_mib  of each worker in the end, by its share of pages that processes have in common
    """

    first_seconds: float
    seconds: tuple[float, ...]
    idle_worker_mib: tuple[float, ...]

    @property
    def median_and_p95(self) -> tuple[float, float]:
        median, p95 = np.percentile(self.seconds, [50, 95])
        return float(median), float(p95)


def measure_workers(folder: Path, scale: float) -> InWorkers:
    """Raises `RuntimeError` if an instruction does not succeed in time."""
    count = max(round(INSTRUCTIONS * scale), INSTRUCTIONS_MIN)
    state, lake = (parse_location(str(folder / name)) for name in ("state", "lake"))
    table = DeltaCatalog.open(lake.root_uri).create_table(_TABLE)
    with aws_environment(), open_mail() as mail:
        sqs, events_url = mail.sqs(), _subscribe(mail)

        def run(number: int) -> float:
            table.append({}, pa.table({"id": range(number * ROWS, (number + 1) * ROWS)}))
            document = {
                "schema_version": "1",
                "job_run_id": f"run-{number}",
                "source_table_id": _TABLE,
                "primary_keys": ["id"],
            }
            began = time.monotonic()
            sqs.send_message(QueueUrl=mail.queue_url, MessageBody=json.dumps(document))
            _await_success(sqs, events_url, f"run-{number}", began)
            return time.monotonic() - began

        with dispatcher(folder, state, lake, mail) as process:
            first_seconds = run(0)
            for number in range(1, _FIRST):
                run(number)
            seconds = tuple(run(number) for number in range(_FIRST, _FIRST + count))
            children = psutil.Process(process.pid).children()
            workers = [each for each in children if "compactor.worker" in each.cmdline()]
            idle = tuple(each.memory_full_info().pss / 2**20 for each in workers)
            process.send_signal(signal.SIGTERM)
    return InWorkers(first_seconds, seconds, idle)


def _subscribe(mail: Mail) -> str:
    sqs = mail.sqs()
    url = sqs.create_queue(QueueName="bench-events")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    boto3.client("sns", endpoint_url=mail.url, region_name=REGION).subscribe(
        TopicArn=mail.topic_arn, Protocol="sqs", Endpoint=arn, Attributes={"RawMessageDelivery": "true"}
    )
    return url


def _await_success(sqs: SQSClient, events_url: str, job_run_id: str, began: float) -> None:
    while time.monotonic() - began < _SECONDS_MAX:
        found = sqs.receive_message(QueueUrl=events_url, MaxNumberOfMessages=10, WaitTimeSeconds=1)
        for message in found.get("Messages", []):
            sqs.delete_message(QueueUrl=events_url, ReceiptHandle=message["ReceiptHandle"])
            event = json.loads(message["Body"])
            if event["jobrunid"] != job_run_id:
                continue
            if event["type"] == "lithify.job_run.succeeded.v1":
                return
            if event["type"] == "lithify.job_run.failed.v1":
                raise RuntimeError(f"{job_run_id} failed: {event['data']}")
    raise RuntimeError(f"{job_run_id} did not succeed within {_SECONDS_MAX:g} s")
