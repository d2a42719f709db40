"""How long a table of many small partition streams takes, through the dispatcher: one instruction, a thousand streams
of a thousand rows. Each is pinned, planned, compacted, committed, settled and told; the Spark is a real one.

The dispatcher is a process of its own; queue and topic are ministack, S3 is seaweedfs, on the same cores.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from compactor.lake import DeltaCatalog
from compactor.model.clock import SystemClock
from compactor.storage.location import StoreLocation, parse_location
from compactor.storage.opening import open_store
from dispatcher.records.job_run_log import JobRunState, JobRunStatus
from dispatcher.records.job_run_store import JobRunStore
from dispatcher.records.work_id import ShardNumber, WorkId
from tests.benchmarks.one_dispatcher import dispatcher, on_s3, open_mail, watch
from tests.proxy import proxy_before
from tests.servers import aws_environment, seaweedfs_server

STREAMS = 1_000
ROWS = 1_000
COUNTED = 30
"""Streams whose requests are counted, through a proxy, in a run of their own; and then twice as many."""

FOLDER, S3 = "folder", "S3"

_TABLE = "BENCH.STREAMS.V1"
_JOB_RUN = "streams"


@dataclass(frozen=True)
class Streams:
    """
    seconds      in all: from the start of the dispatcher's process to its end, when all is told and closed
    run_seconds  of that, from the acceptance to the end of the job run
    launches     bundles
    job_run_entries  of the job run's log and those of its shards
    requests     a stream, by operation; nothing on a folder
    """

    place: str
    streams: int
    seconds: float
    run_seconds: float
    launches: int
    job_run_entries: int
    requests: dict[str, float]


def measure_streams(folder: Path, scale: float) -> list[Streams]:
    """On a folder and on S3. Raises `RuntimeError` if a row is missing or doubled."""
    count = max(round(STREAMS * scale), 2)
    with aws_environment():
        own = folder / "folder"
        own.mkdir(parents=True)
        found = [measure_in(own, parse_location(str(own / "state")), parse_location(str(own / "lake")), count)]
        with seaweedfs_server(folder / "s3") as url:
            found.append(measure_in(folder / "s3", *on_s3("all", url), count, S3))
            requests = _count_requests(folder / "s3", url)
    return [found[0], Streams(**{**vars(found[1]), "requests": requests})]


def measure_in(
    folder: Path, state: StoreLocation, lake: StoreLocation, count: int, place: str = FOLDER, *options: str
) -> Streams:
    _append(DeltaCatalog(open_store(lake), SystemClock()), count)
    seconds = _dispatch(folder, state, lake, options)
    records = JobRunStore(open_store(state), SystemClock())
    loaded = [records.log(_JOB_RUN).load()]
    ended = _checked(loaded[0].state, count)
    if ended.shards is not None:
        numbers = (ShardNumber(number, ended.shards.count) for number in range(ended.shards.count))
        loaded += [records.log(WorkId(_JOB_RUN, each).text).load() for each in numbers]
    sessions = [session for log in loaded for session in log.state.sessions.values()]
    if len(sessions) != count:
        raise RuntimeError(f"{len(sessions)} sessions for {count} streams")
    launches = {session.bundle or session.pin.session_id for session in sessions}
    _check_rows(DeltaCatalog(open_store(lake), SystemClock()), count)
    run_seconds = ended.ended.seconds if ended.ended is not None else 0.0
    return Streams(place, count, seconds, run_seconds, len(launches), sum(log.entry_number for log in loaded), {})


def _count_requests(folder: Path, endpoint_url: str) -> dict[str, float]:
    """What grows with the streams: of twice as many, less those of one time as many."""
    counted = []
    for count in (COUNTED, 2 * COUNTED):
        state, lake = on_s3(f"counted-{count}", endpoint_url)
        _append(DeltaCatalog(open_store(lake), SystemClock()), count)
        with proxy_before(endpoint_url) as proxy:
            state, lake = on_s3(f"counted-{count}", proxy.url)
            _dispatch(folder, state, lake)
            counted.append(Counter({name: traffic.requests for (_, name), traffic in proxy.counted().items()}))
    counted[1].subtract(counted[0])
    return {name: count / COUNTED for name, count in sorted(counted[1].items())}


def _append(catalog: DeltaCatalog, count: int) -> None:
    """A delta of each stream, half of whose keys come twice."""
    table = catalog.create_table(_TABLE, ["stream"])
    keys = [*range(ROWS // 2), *range(ROWS // 2)]
    for number in range(count):
        rows = pa.table({"id": keys, "value": [f"{number}-{place}" for place in range(ROWS)]})
        table.append({"stream": str(number)}, rows)


def _checked(state: JobRunState, count: int) -> JobRunState:
    if state.status is not JobRunStatus.SUCCEEDED or state.ended is None:
        reasons = state.ended.outcome.reasons if state.ended is not None else ()
        raise RuntimeError(f"the job run is {state.status}: {'; '.join(reasons[:5])}")
    outcome = state.ended.outcome
    if (outcome.sessions, outcome.rows_in, outcome.rows_out) != (count, count * ROWS, count * ROWS // 2):
        raise RuntimeError(f"wrong counts: {outcome}")
    return state


def _check_rows(catalog: DeltaCatalog, count: int) -> None:
    """Of some streams, every value: of a key that came twice the later one."""
    for number in {0, count // 2, count - 1}:
        rows = catalog.table(_TABLE).scan({"stream": str(number)}).to_table().to_pylist()
        right = {(key, f"{number}-{ROWS // 2 + key}") for key in range(ROWS // 2)}
        if len(rows) != len(right) or {(row["id"], row["value"]) for row in rows} != right:
            raise RuntimeError(f"stream {number} has wrong rows")


def _dispatch(folder: Path, state: StoreLocation, lake: StoreLocation, options: tuple[str, ...] = ()) -> float:
    """One dispatcher, until it is idle: its seconds."""
    document = {"schema_version": "1", "job_run_id": _JOB_RUN, "source_table_id": _TABLE, "primary_keys": ["id"]}
    with open_mail() as mail:
        mail.sqs().send_message(QueueUrl=mail.queue_url, MessageBody=json.dumps(document))
        idle = ("--until-idle", *options)
        with dispatcher(folder, state, lake, mail, *idle, log_level="info", real_spark=True) as process:
            return watch(process).seconds
