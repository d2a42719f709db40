"""One dispatcher as a process of its own, for benchmarks: with a queue and a topic on ministack, on the same cores."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
import psutil

from compactor.model.clock import SystemClock
from compactor.storage.location import StoreLocation, parse_location
from tests.fakes.spark_submit import make_spark_home
from tests.servers import BUCKET, REGION, START_SECONDS_MAX, ministack_server

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient

LOG = "dispatcher.log"
_REPOSITORY = Path(__file__).resolve().parents[2]
_SAMPLE_SECONDS = 0.5


@dataclass(frozen=True)
class Watched:
    """
    memory       of the dispatcher's process, all its life: time in ms, MiB
    cpu_seconds  that it took
    seconds      that it lived
    """

    memory: list[tuple[int, float]]
    cpu_seconds: float
    seconds: float


def on_s3(prefix: str, endpoint_url: str) -> tuple[StoreLocation, StoreLocation]:
    state, lake = (
        parse_location(f"s3://{BUCKET}/{prefix}/{name}", endpoint_url=endpoint_url, region=REGION)
        for name in ("state", "lake")
    )
    return state, lake


@dataclass(frozen=True)
class Mail:
    """A queue and a topic, which nobody reads but the dispatcher."""

    url: str
    queue_url: str
    topic_arn: str

    def sqs(self) -> SQSClient:
        return boto3.client("sqs", endpoint_url=self.url, region_name=REGION)


@contextmanager
def open_mail() -> Iterator[Mail]:
    with ministack_server() as url:
        name = SystemClock().new_id()
        sqs = boto3.client("sqs", endpoint_url=url, region_name=REGION)
        dead = sqs.create_queue(QueueName=f"{name}-dead")["QueueUrl"]
        arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 5})
        queue_url = sqs.create_queue(QueueName=name, Attributes={"RedrivePolicy": policy})["QueueUrl"]
        topic = boto3.client("sns", endpoint_url=url, region_name=REGION).create_topic(Name=name)["TopicArn"]
        yield Mail(url, queue_url, topic)


@contextmanager
def dispatcher(
    folder: Path,
    state: StoreLocation,
    lake: StoreLocation,
    mail: Mail,
    *options: str,
    program: Sequence[str] = ("dispatcher.start",),
    log_level: str = "warning",
    real_spark: bool = False,
) -> Iterator[subprocess.Popen[bytes]]:
    """Its log is `LOG`, in the folder. Raises `RuntimeError` if it fails. Without a `real_spark`, its sessions compact
    without one."""
    s3 = ("--s3-endpoint-url", state.endpoint_url) if state.endpoint_url is not None else ()
    command = [
        *(sys.executable, "-m", *program, "dispatch"),
        *("--queue-url", mail.queue_url, "--topic-arn", mail.topic_arn),
        *("--endpoint-url", mail.url, "--region", REGION),
        *("--state", state.root_uri, "--lake", lake.root_uri, *s3),
        *("--work-folder", str(folder / "work"), *options),
    ]
    spark_home = folder / "spark_home"
    environment = {
        **os.environ,
        "PYTHONPATH": str(_REPOSITORY),
        "LITHIFY_LOG_LEVEL": log_level,
        "LITHIFY_LOG_FORMAT": "json",
    }
    if not real_spark:
        environment["SPARK_HOME"] = str(spark_home if spark_home.exists() else make_spark_home(spark_home))
    with (folder / LOG).open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
    try:
        yield process
        code = process.wait(START_SECONDS_MAX)
    finally:
        process.kill()  # also where the benchmark itself was interrupted
        process.wait()
    if code:
        raise RuntimeError(f"the dispatcher failed:\n{(folder / LOG).read_text()[-4_000:]}")


def watch(process: subprocess.Popen[bytes]) -> Watched:
    """Until it ends."""
    memory: list[tuple[int, float]] = []
    cpu_seconds, began = 0.0, time.monotonic()
    watched = psutil.Process(process.pid)
    while process.poll() is None:
        with suppress(psutil.Error):  # it may just have ended, and then it has no memory either
            times, mib = watched.cpu_times(), watched.memory_info().rss / 2**20
            if mib > 0:
                memory.append((SystemClock().now_ms(), mib))
                cpu_seconds = times.user + times.system
        with suppress(subprocess.TimeoutExpired):
            process.wait(_SAMPLE_SECONDS)
    return Watched(memory, cpu_seconds, time.monotonic() - began)
