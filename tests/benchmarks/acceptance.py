"""How fast a dispatcher takes instructions in, and what memory it holds while it does: thousands of them, for a table
that is compacted already, so that no Spark is started. Each is judged, accepted, claimed, concluded, told and closed.

The dispatcher is a process of its own; queue and topic are moto's server, S3 is seaweedfs, on the same cores.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
import psutil
import pyarrow as pa

from compactor.engine.in_process import InProcessEngine
from compactor.lake import DeltaCatalog
from compactor.model.clock import SystemClock
from compactor.planning.session_planner import pin_sessions, plan_session
from compactor.planning.sizing import Resources
from compactor.planning.spec import JobRunSpec
from compactor.sessions.attempt import run_attempt
from compactor.storage.location import StoreLocation, parse_location
from compactor.storage.object_store import ObjectStore
from compactor.storage.opening import open_store
from dispatcher.job_runs.job_run_log import JobRunStatus
from dispatcher.job_runs.job_run_store import JobRunStore
from tests.fakes.spark_submit import make_spark_home
from tests.proxy import proxy_before
from tests.servers import BUCKET, REGION, aws_environment, moto_server, seaweedfs_server

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient

INSTRUCTIONS = 2_000
QUEUED = 50
"""Instructions on the queue at a time, at least, until all have been sent."""

COUNTED = 20
"""Instructions whose requests are counted, through a proxy, in a run of their own."""

_TABLE = "BENCH.NOTHING.V1"
_REPOSITORY = Path(__file__).resolve().parents[2]
_SAMPLE_SECONDS = 0.5


@dataclass(frozen=True)
class Acceptance:
    """
    seconds         from the first acceptance to the end of the last job run
    cpu_seconds     of the dispatcher's process, its start included
    memory_mib      of its process: after a tenth of the instructions, in the middle, at the end
    requests        an instruction, by operation; nothing on a folder
    """

    place: str
    instructions: int
    seconds: float
    cpu_seconds: float
    memory_mib: tuple[float, float, float]
    requests: dict[str, float]

    @property
    def per_second(self) -> float:
        return self.instructions / self.seconds


def measure_acceptance(folder: Path, scale: float) -> list[Acceptance]:
    """On a folder and on S3. Raises `RuntimeError` if an instruction does not end as it has to."""
    count = max(COUNTED, round(INSTRUCTIONS * scale))
    with aws_environment():
        own = folder / "folder"
        own.mkdir(parents=True)
        found = [measure_in(own, parse_location(str(own / "state")), parse_location(str(own / "lake")), count)]
        with seaweedfs_server(folder / "s3") as url:
            found.append(measure_in(folder / "s3", *_on_s3("all", url), count, "S3"))
            requests = _count_requests(folder / "s3", url)
    return [found[0], Acceptance(**{**vars(found[1]), "requests": requests})]


def _on_s3(prefix: str, endpoint_url: str) -> tuple[StoreLocation, StoreLocation]:
    state, lake = (
        parse_location(f"s3://{BUCKET}/{prefix}/{name}", endpoint_url=endpoint_url, region=REGION)
        for name in ("state", "lake")
    )
    return state, lake


def _count_requests(folder: Path, endpoint_url: str) -> dict[str, float]:
    """What grows with the instructions: of twice as many, less those of one time as many."""
    counted = []
    for count in (COUNTED, 2 * COUNTED):
        with proxy_before(endpoint_url) as proxy:
            state, lake = _on_s3(f"counted-{count}", proxy.url)
            _work_off(folder, state, lake, count)
            counted.append(Counter({name: traffic.requests for (_, name), traffic in proxy.counted().items()}))
    counted[1].subtract(counted[0])
    return {name: count / COUNTED for name, count in sorted(counted[1].items())}


def measure_in(
    folder: Path, state: StoreLocation, lake: StoreLocation, count: int, place: str = "folder"
) -> Acceptance:
    samples, cpu_seconds = _work_off(folder, state, lake, count)
    first_ms, last_ms = ends_of(state, count)
    # Before the first instruction the process is still loading its modules; the last sample stands for a short run.
    memory = [mib for at_ms, mib in samples if at_ms >= first_ms] or [samples[-1][1]]
    tenths = (memory[len(memory) // 10], memory[len(memory) // 2], memory[-1])
    return Acceptance(place, count, (last_ms - first_ms) / 1000, cpu_seconds, tenths, {})


def _work_off(
    folder: Path, state: StoreLocation, lake: StoreLocation, count: int
) -> tuple[list[tuple[int, float]], float]:
    """So many instructions on a queue of their own, a dispatcher until it is idle: its memory and processor time."""
    _make_compacted_table(DeltaCatalog(open_store(lake), SystemClock()), open_store(state))
    with _mail(count) as (url, queue_url, topic_arn):
        return _run_dispatcher(folder, state, lake, url, queue_url, topic_arn)


def _make_compacted_table(catalog: DeltaCatalog, state: ObjectStore) -> None:
    catalog.create_table(_TABLE).append({}, pa.table({"id": [1]}))
    job_run = JobRunSpec(
        job_run_id="before",
        source_table_id=_TABLE,
        primary_keys=("id",),
        lake=catalog.location,
        destination_compacted_table_id=_TABLE,
        rows_per_compacted_file=1_000,
        rows_per_primary_key_index_file=1_000,
    )
    (pinned,) = pin_sessions(job_run, catalog)
    plan = plan_session(pinned.spec, catalog, Resources(task_memory_bytes=1 << 30, tasks=2))
    run_attempt(plan, catalog, state, InProcessEngine(), 1, SystemClock())


@contextmanager
def _mail(count: int) -> Iterator[tuple[str, str, str]]:
    """A queue that gets so many instructions, and a topic that nobody subscribes to."""
    with moto_server() as url:
        name = SystemClock().new_id()
        sqs = boto3.client("sqs", endpoint_url=url, region_name=REGION)
        dead = sqs.create_queue(QueueName=f"{name}-dead")["QueueUrl"]
        arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 5})
        queue_url = sqs.create_queue(QueueName=name, Attributes={"RedrivePolicy": policy})["QueueUrl"]
        topic = boto3.client("sns", endpoint_url=url, region_name=REGION).create_topic(Name=name)["TopicArn"]
        feeding = threading.Thread(target=_feed, args=(sqs, queue_url, count), daemon=True)
        feeding.start()
        yield url, queue_url, topic
        feeding.join()


def _feed(sqs: SQSClient, queue_url: str, count: int) -> None:
    """Keep the queue filled, and shallow: the stand-in takes longer for every message that lies on it."""
    sent = 0
    while sent < count:
        left = sqs.get_queue_attributes(QueueUrl=queue_url, AttributeNames=["ApproximateNumberOfMessages"])
        if int(left["Attributes"]["ApproximateNumberOfMessages"]) > QUEUED:
            time.sleep(_SAMPLE_SECONDS)
            continue
        for start in range(sent, min(sent + QUEUED, count), 10):
            numbers = range(start, min(start + 10, count))
            entries = [{"Id": str(number), "MessageBody": json.dumps(_document(number))} for number in numbers]
            sqs.send_message_batch(QueueUrl=queue_url, Entries=entries)  # type: ignore[arg-type]
        sent = min(sent + QUEUED, count)


def _document(number: int) -> dict[str, object]:
    return {
        "schema_version": "1",
        "job_run_id": f"run-{number}",
        "source_table_id": _TABLE,
        "primary_keys": ["id"],
    }


def _run_dispatcher(
    folder: Path, state: StoreLocation, lake: StoreLocation, url: str, queue_url: str, topic_arn: str
) -> tuple[list[tuple[int, float]], float]:
    """Until it is idle: samples of its memory (time in ms, MiB) and the seconds of processor that it took."""
    s3 = ("--s3-endpoint-url", state.endpoint_url) if state.endpoint_url is not None else ()
    command = [
        *(sys.executable, "-m", "dispatcher.main", "dispatch", "--until-idle"),
        *("--queue-url", queue_url, "--topic-arn", topic_arn, "--endpoint-url", url, "--region", REGION),
        *("--state", state.root_uri, "--lake", lake.root_uri, *s3),
        *("--wait-seconds", "1", "--poll-seconds", "0.1", "--work-folder", str(folder / "work")),
    ]
    spark_home = folder / "spark_home"
    environment = {
        **os.environ,
        "PYTHONPATH": str(_REPOSITORY),
        "SPARK_HOME": str(spark_home if spark_home.exists() else make_spark_home(spark_home)),
        "LITHIFY_LOG_LEVEL": "warning",
    }
    memory: list[tuple[int, float]] = []
    cpu_seconds = 0.0
    with (folder / "dispatcher.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
    try:
        watched = psutil.Process(process.pid)
        while process.poll() is None:
            with suppress(psutil.Error):  # it may just have ended, and then it has no memory either
                times, mib = watched.cpu_times(), watched.memory_info().rss / 2**20
                if mib > 0:
                    memory.append((SystemClock().now_ms(), mib))
                    cpu_seconds = times.user + times.system
            time.sleep(_SAMPLE_SECONDS)
    finally:
        process.kill()  # also where the benchmark itself was interrupted
    if process.wait():
        raise RuntimeError(f"the dispatcher failed:\n{(folder / 'dispatcher.log').read_text()[-4_000:]}")
    return memory, cpu_seconds


def ends_of(state: StoreLocation, count: int) -> tuple[int, int]:
    """When the first was accepted and the last ended, in ms. All of them must have succeeded, with nothing to do."""
    records = JobRunStore(open_store(state), SystemClock())
    job_run_ids = [each for each in records.job_run_ids() if each != "before"]
    if len(job_run_ids) != count:
        raise RuntimeError(f"{len(job_run_ids)} of {count} instructions were accepted")
    begun, ended = [], []
    for job_run_id in job_run_ids:
        log = records.log(job_run_id)
        entries = list(log.entries())
        if log.load().state.status is not JobRunStatus.SUCCEEDED:
            raise RuntimeError(f"{job_run_id} is {log.load().state.status}")
        begun.append(entries[0].at_ms)
        ended.append(entries[-1].at_ms)
    return min(begun), max(ended)
