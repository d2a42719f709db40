"""How fast a dispatcher takes instructions in, and what memory it holds while it does: thousands of them, for a table
that is compacted already, so that no Spark is started. Each is judged, accepted, claimed, concluded, told and closed.

Latency is measured in a run of its own, with fewer instructions a second than the dispatcher can take, since a message
that waits behind others says nothing of the dispatcher. The dispatcher is a process of its own; queue and topic are
ministack, S3 is seaweedfs, on the same cores.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from compactor.engine.in_process import InProcessEngine
from compactor.lake import DeltaCatalog
from compactor.model.clock import SystemClock
from compactor.planning.session_planner import pin_sessions
from compactor.planning.sizing import Resources
from compactor.planning.spec import JobRunSpec
from compactor.storage.keys import decode
from compactor.storage.location import StoreLocation, parse_location
from compactor.storage.object_store import ObjectStore, decoded_names
from compactor.storage.opening import open_store
from dispatcher.records.job_run_log import JobRunStatus
from dispatcher.records.job_run_store import JobRunStore
from tests.benchmarks.one_dispatcher import LOG, Mail, Watched, dispatcher, on_s3, open_mail, watch
from tests.fakes.attempts import plan_session, run_attempt
from tests.proxy import proxy_before
from tests.servers import START_SECONDS_MAX, aws_environment, seaweedfs_server
from tests.waiting import wait_until

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient

INSTRUCTIONS = 2_000
QUEUED = 50
"""Instructions on the queue at a time, at least, until all have been sent."""

COUNTED = 20
"""Instructions whose requests are counted, through a proxy, in a run of their own."""

BEATS = 300
BEATS_PER_SECOND = 4.0
"""Instructions whose latency is measured, in a run of their own."""

_TABLE = "BENCH.NOTHING.V1"
_FEED_SECONDS = 0.5
_PROGRAM = ("tests.paced_dispatcher", "benchmark")


@dataclass(frozen=True)
class Acceptance:
    """
    seconds         from the first acceptance to the end of the last job run
    cpu_seconds     of the dispatcher's process, its start included
    memory_mib      of its process: after a tenth of the instructions have ended, in the middle, at the end
    memory_growth   the most that it ever held after that tenth / what it held then
    requests        an instruction, by operation; nothing on a folder
    latency_seconds  from the sending of a message until it is accepted and deleted: the median, and of 99 % the longest
    """

    place: str
    instructions: int
    seconds: float
    cpu_seconds: float
    memory_mib: tuple[float, float, float]
    memory_growth: float
    requests: dict[str, float]
    latency_seconds: tuple[float, float] | None = None

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
            found.append(measure_in(folder / "s3", *on_s3("all", url), count, "S3"))
            requests = _count_requests(folder / "s3", url)
            latencies = measure_latencies(folder / "s3", *on_s3("beats", url), max(round(BEATS * scale), 10))
    median, longest = np.percentile(latencies, [50, 99])
    return [found[0], replace(found[1], requests=requests, latency_seconds=(float(median), float(longest)))]


def _count_requests(folder: Path, endpoint_url: str) -> dict[str, float]:
    """What grows with the instructions: of twice as many, less those of one time as many."""
    counted = []
    for count in (COUNTED, 2 * COUNTED):
        with proxy_before(endpoint_url) as proxy:
            state, lake = on_s3(f"counted-{count}", proxy.url)
            _work_off(folder, state, lake, count)
            counted.append(Counter({name: traffic.requests for (_, name), traffic in proxy.counted().items()}))
    counted[1].subtract(counted[0])
    return {name: count / COUNTED for name, count in sorted(counted[1].items())}


def measure_in(
    folder: Path, state: StoreLocation, lake: StoreLocation, count: int, place: str = "folder"
) -> Acceptance:
    watched = _work_off(folder, state, lake, count)
    first_ms, ended_ms = ends_of(state, count)
    # The last sample stands for what a short run has none of.
    after_tenth, after_half = (
        [mib for at_ms, mib in watched.memory if at_ms >= ended_ms[count // part - 1]] or [watched.memory[-1][1]]
        for part in (10, 2)
    )
    memory = (after_tenth[0], after_half[0], after_tenth[-1])
    growth = max(after_tenth) / after_tenth[0]
    return Acceptance(place, count, (ended_ms[-1] - first_ms) / 1000, watched.cpu_seconds, memory, growth, {})


def _work_off(folder: Path, state: StoreLocation, lake: StoreLocation, count: int) -> Watched:
    """So many instructions on a queue of their own, a dispatcher until it is idle."""
    _make_compacted_table(DeltaCatalog(open_store(lake), SystemClock()), open_store(state))
    with (
        open_mail() as mail,
        _fed(mail, count),
        dispatcher(folder, state, lake, mail, "--until-idle", program=_PROGRAM) as process,
    ):
        return watch(process)


def measure_latencies(folder: Path, state: StoreLocation, lake: StoreLocation, count: int) -> list[float]:
    """In seconds, by instruction, which come one after the other in time."""
    _make_compacted_table(DeltaCatalog(open_store(lake), SystemClock()), open_store(state))
    log = folder / LOG
    with (
        open_mail() as mail,
        dispatcher(folder, state, lake, mail, program=_PROGRAM, log_level="info") as process,
    ):
        wait_until(lambda: "dispatcher_started" in log.read_text(), START_SECONDS_MAX, every_seconds=0.2)
        sqs, sent = mail.sqs(), dict[str, float]()
        began = time.monotonic()
        for number in range(count):
            time.sleep(max(0.0, began + number / BEATS_PER_SECOND - time.monotonic()))
            document = _document(number)
            sent[str(document["job_run_id"])] = time.time()
            sqs.send_message(QueueUrl=mail.queue_url, MessageBody=json.dumps(document))
        wait_until(lambda: _accepted(log).keys() >= sent.keys(), START_SECONDS_MAX, every_seconds=0.5)
        accepted = _accepted(log)
        process.terminate()
    return [accepted[job_run_id] - sent_at for job_run_id, sent_at in sent.items()]


def _accepted(log: Path) -> dict[str, float]:
    """When each job run was, by the dispatcher's log, in seconds."""
    written = log.read_text().rpartition("\n")[0]  # its last line may be half written
    lines = (json.loads(line) for line in written.splitlines() if '"message_taken"' in line)
    return {
        line["job_run_id"]: datetime.fromisoformat(line["timestamp"]).timestamp()
        for line in lines
        if line["outcome"] == "Accepted"
    }


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
def _fed(mail: Mail, count: int) -> Iterator[None]:
    """The queue gets so many instructions meanwhile."""
    feeding = threading.Thread(target=_feed, args=(mail.sqs(), mail.queue_url, count), daemon=True)
    feeding.start()
    yield
    feeding.join()


def _feed(sqs: SQSClient, queue_url: str, count: int) -> None:
    """Keep the queue filled, and shallow: the stand-in takes longer for every message that lies on it."""
    sent = 0
    while sent < count:
        left = sqs.get_queue_attributes(QueueUrl=queue_url, AttributeNames=["ApproximateNumberOfMessages"])
        if int(left["Attributes"]["ApproximateNumberOfMessages"]) > QUEUED:
            time.sleep(_FEED_SECONDS)
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


def ends_of(state: StoreLocation, count: int) -> tuple[int, list[int]]:
    """When the first was accepted, and when each ended, in ms, ascending. All must have succeeded, without work."""
    records = JobRunStore(open_store(state), SystemClock())
    job_run_ids = [each for each in decoded_names(records.store, "job_runs/", decode) if each != "before"]
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
    return min(begun), sorted(ended)
