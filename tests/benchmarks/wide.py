"""What memory a dispatcher holds over job runs of many streams: no more of the wider one.

The sessions are compacted without a Spark, in processes of their own. The dispatcher is another; queue and topic are
ministack, on the same cores; state and lake are a folder.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from compactor.lake import DeltaCatalog
from compactor.model.clock import SystemClock
from compactor.storage.location import parse_location
from compactor.storage.opening import open_store
from dispatcher.records.job_run_log import JobRunStatus
from dispatcher.records.job_run_store import JobRunStore
from tests.benchmarks.one_dispatcher import dispatcher, open_mail, watch
from tests.servers import aws_environment

STREAMS = (4_000, 8_000)
"""Both so many that shards have as many streams as they ever have."""

_TABLE = "BENCH.WIDE.V1"


@dataclass(frozen=True)
class Wide:
    """
    shards      of the job run
    memory_mib  the most that the dispatcher's process had
    """

    streams: int
    shards: int
    seconds: float
    memory_mib: float


def measure_wide(folder: Path, scale: float) -> list[Wide]:
    """Raises `RuntimeError` if a stream is not compacted."""
    with aws_environment():
        return [measure_in(folder / str(streams), max(round(streams * scale), 2)) for streams in STREAMS]


def measure_in(folder: Path, streams: int) -> Wide:
    folder.mkdir(parents=True)
    state, lake = parse_location(str(folder / "state")), parse_location(str(folder / "lake"))
    table = DeltaCatalog(open_store(lake), SystemClock()).create_table(_TABLE, ["stream"])
    for number in range(streams):
        table.append({"stream": str(number)}, pa.table({"id": [number]}))
    document = {"schema_version": "1", "job_run_id": "wide", "source_table_id": _TABLE, "primary_keys": ["id"]}
    with open_mail() as mail:
        mail.sqs().send_message(QueueUrl=mail.queue_url, MessageBody=json.dumps(document))
        with dispatcher(folder, state, lake, mail, "--until-idle", "--max-sessions", "2") as process:
            watched = watch(process)
    ended = JobRunStore(open_store(state), SystemClock()).state("wide")
    sessions = ended.ended.outcome.sessions if ended.ended is not None else 0
    if ended.status is not JobRunStatus.SUCCEEDED or sessions != streams:
        raise RuntimeError(f"the job run is {ended.status}, with {sessions} sessions of {streams}")
    shards = ended.shards.count if ended.shards is not None else 0
    return Wide(streams, shards, watched.seconds, max(mib for _, mib in watched.memory))
