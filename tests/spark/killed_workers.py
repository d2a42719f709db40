"""Workers and dispatchers that are killed while a session runs on a standalone Spark.

    python -m tests.spark.killed_workers --runs 20 --kill worker
    python -m tests.spark.killed_workers --runs 20 --kill dispatcher
    python -m tests.spark.killed_workers --runs 20 --kill both

Each run: a table on seaweedfs with an upsert and a delete for each of its rounds, an instruction on a queue, `lithify
dispatch --master-url` as a process, a master and two workers that know nothing of Lithify. At a moment that the run's
number chooses, between the launch and the last round, a worker with all its processes, or the dispatcher, or both, get
a SIGKILL; another takes its place. What must hold: the job run succeeds, the rows are right, one application was
started and one attempt launched (where the dispatcher was killed), and no round was committed twice. A line of JSON
says of each run what was found; the exit code is 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import boto3
import pyarrow as pa

from compactor.lake import DeltaCatalog
from compactor.maintenance.verify import verify
from compactor.model.clock import SystemClock
from compactor.model.names import Operation
from compactor.storage.opening import open_store
from dispatcher.demo.stand_ins import queue_server
from dispatcher.records.job_run_log import JobRunStatus
from dispatcher.records.job_run_store import JobRunStore
from dispatcher.records.sessions import SessionLaunching
from tests.builders import multiset
from tests.oracle import Row, surviving_rows
from tests.servers import BUCKET, REGION, aws_environment, seaweedfs_server
from tests.standalone_spark import StandaloneSpark, packed_once, standalone_spark
from tests.waiting import wait_until

REPOSITORY = Path(__file__).resolve().parents[2]
TABLE = "ACME.ORDERS.V1"
ROUNDS = 3
ROWS = 400
STALL_SECONDS = 120
END_SECONDS_MAX = 240.0
SORT_KEYS = [("time", "ascending")]


@dataclass
class Surroundings:
    """What all runs share."""

    folder: Path
    spark: StandaloneSpark
    s3_endpoint: str
    aws_endpoint: str
    archive: Path


@contextmanager
def surroundings(folder: Path, packed_in: Path) -> Iterator[Surroundings]:
    """`packed_in`: the folder of the archive, which may be there."""
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as up:
        up.enter_context(aws_environment())
        s3_endpoint = up.enter_context(seaweedfs_server(folder / "s3"))
        aws_endpoint = up.enter_context(queue_server())
        archive = packed_once(packed_in)
        spark = up.enter_context(standalone_spark(folder / "spark"))
        yield Surroundings(folder, spark, s3_endpoint, aws_endpoint, archive)


class Run:
    """One session on that Spark."""

    def __init__(self, around: Surroundings, number: int) -> None:
        self.around = around
        self.number = number
        self.folder = around.folder / f"run-{number}"
        self.folder.mkdir()
        self.chance = random.Random(number)
        root = f"s3://{BUCKET}/run-{number}"
        self.lake = DeltaCatalog.open(f"{root}/lake", endpoint_url=around.s3_endpoint, region=REGION)
        self.state_uri, self.lake_uri = f"{root}/state", f"{root}/lake"
        state = DeltaCatalog.open(self.state_uri, endpoint_url=around.s3_endpoint, region=REGION).location
        self.records = JobRunStore(open_store(state), SystemClock())
        self.queue_url = self._queue()
        self.job_run_id = f"run-{number}"
        self.deltas = self._append()

    def _queue(self) -> str:
        sqs = boto3.client("sqs", endpoint_url=self.around.aws_endpoint, region_name=REGION)
        dead = sqs.create_queue(QueueName=f"run-{self.number}-dead")["QueueUrl"]
        arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 4})
        return sqs.create_queue(QueueName=f"run-{self.number}", Attributes={"RedrivePolicy": policy})["QueueUrl"]

    def _append(self) -> list[tuple[Operation, list[Row]]]:
        deltas: list[tuple[Operation, list[Row]]] = []
        for number in range(ROUNDS):
            keys = range(number * ROWS // 2, number * ROWS // 2 + ROWS)
            deltas.append((Operation.UPSERT, [{"id": key, "time": number, "v": f"{number} {key}"} for key in keys]))
        deltas.append((Operation.DELETE, [{"id": key, "time": ROUNDS} for key in range(0, ROWS, 7)]))
        table = self.lake.create_table(TABLE)
        for operation, rows in deltas:
            table.append({}, pa.Table.from_pylist(rows), operation, rows_per_file=ROWS // 2)
        return deltas

    def send(self) -> None:
        document = {
            "schema_version": "1",
            "job_run_id": self.job_run_id,
            "source_table_id": TABLE,
            "primary_keys": ["id"],
            "sort_keys": [list(key) for key in SORT_KEYS],
            "max_rows_per_round": ROWS,
            "hash_bucket_count": 2,
        }
        sqs = boto3.client("sqs", endpoint_url=self.around.aws_endpoint, region_name=REGION)
        sqs.send_message(QueueUrl=self.queue_url, MessageBody=json.dumps(document))

    def dispatcher(self, *options: str) -> subprocess.Popen[bytes]:
        around = self.around
        command = [
            *(sys.executable, "-m", "tests.paced_dispatcher", "quick", "dispatch", "--queue-url", self.queue_url),
            *("--state", self.state_uri, "--lake", self.lake_uri, "--endpoint-url", around.aws_endpoint),
            *("--s3-endpoint-url", around.s3_endpoint, "--region", REGION, "--work-folder", str(self.folder / "work")),
            *("--master-url", around.spark.master_url, "--archive", str(around.archive)),
            *("--cores", "2", "--memory-gib", "2", "--workers", "0", "--driver-host", "127.0.0.1"),
            *("--claim-seconds", "3", "--stall-seconds", str(STALL_SECONDS)),
            *options,
        ]
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "SPARK_LOCAL_IP": "127.0.0.1"}
        with self.log_file.open("ab") as log:
            return subprocess.Popen(command, cwd=self.folder, env=environment, stdout=log, stderr=log)

    @property
    def log_file(self) -> Path:
        return self.folder / "dispatcher.log"

    # -- what is seen

    def rounds(self) -> list[int]:
        """The number of each round that was committed."""
        entries = self.lake.table(TABLE).stream({}).log.entries()
        return [each.round_number for entry in entries for each in entry.actions if each.action == "round_committed"]

    def attempts(self) -> int:
        log = self.records.log(self.job_run_id)
        return sum(isinstance(action, SessionLaunching) for entry in log.entries() for action in entry.actions)

    def status(self) -> JobRunStatus:
        return self.records.state(self.job_run_id).status

    def applications(self) -> int:
        return sum(name.startswith(f"lithify-run-{self.number}-1-") for name in self.around.spark.applications())

    def rows_are_right(self) -> bool:
        expected = surviving_rows(
            [(position, operation, [rows]) for position, (operation, rows) in enumerate(self.deltas)],
            ["id"],
            SORT_KEYS,
        )
        table = self.lake.table(TABLE)
        columns = ["id", "time", "v"]
        return not verify(table.stream({})).problems and multiset(table.scan().to_table(), columns) == multiset(
            expected, columns
        )

    # -- what happens

    def kill(self, what: str) -> dict[str, object]:
        began = time.monotonic()
        self.send()
        first = self.dispatcher() if what in ("dispatcher", "both") else self.dispatcher("--until-idle")
        dispatchers = [first]
        try:
            moment = self._await_moment(first)
            if what in ("worker", "both"):
                number = self.chance.choice(sorted(self.around.spark.workers))
                self.around.spark.kill_worker(number)
                self.around.spark.start_worker()
            if what in ("dispatcher", "both"):
                first.send_signal(signal.SIGKILL)
                first.wait()
                dispatchers.append(self.dispatcher("--until-idle"))
            with suppress(subprocess.TimeoutExpired):
                dispatchers[-1].wait(END_SECONDS_MAX)
        finally:
            for process in dispatchers:
                process.kill()
                process.wait()
        return self._found(what, moment, time.monotonic() - began)

    def _await_moment(self, dispatcher: subprocess.Popen[bytes]) -> str:
        """From the launch on, at the start of any round."""
        wanted = self.number % (ROUNDS + 1) - 1

        def is_time() -> bool:
            if dispatcher.poll() is not None:
                return True
            if wanted < 0:
                sessions = self.records.state(self.job_run_id).sessions.values()
                return any(each.in_flight is not None and each.in_flight.reference is not None for each in sessions)
            return len(self.rounds()) >= wanted and bool(self._executors())

        wait_until(is_time, END_SECONDS_MAX, every_seconds=0.05)
        time.sleep(self.chance.uniform(0, 1.0))
        return "launched" if wanted < 0 else f"after {len(self.rounds())} rounds"

    def _executors(self) -> int:
        return sum(len(self.around.spark.executors(number)) for number in self.around.spark.workers)

    def _found(self, what: str, moment: str, seconds: float) -> dict[str, object]:
        rounds, attempts, applications = self.rounds(), self.attempts(), self.applications()
        twice = [number for number, count in Counter(rounds).items() if count > 1]
        ended = self.status()
        right = ended is JobRunStatus.SUCCEEDED and not twice and self.rows_are_right()
        if what != "worker":
            right = right and attempts == 1 and applications == 1
        found: dict[str, object] = {
            "run": self.number,
            "killed": what,
            "moment": moment,
            "right": right,
            "status": str(ended),
            "attempts": attempts,
            "applications": applications,
            "rounds": len(rounds),
            "rounds_twice": twice,
            "attached": self.log_file.read_text().count("session_attached"),
            "seconds": round(seconds, 1),
        }
        if not right:
            found["log"] = self.log_file.read_text()[-3_000:]
        return found


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="number of the first run")
    parser.add_argument("--kill", choices=["worker", "dispatcher", "both", "nobody"], default="worker")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing of it is left
    right = 0
    with tempfile.TemporaryDirectory() as folder, surroundings(Path(folder), Path(folder)) as around:
        for number in range(options.first, options.first + options.runs):
            around.spark.await_workers(2)
            found = Run(around, number).kill(options.kill)
            right += bool(found["right"])
            sys.stdout.write(json.dumps(found) + "\n")
            sys.stdout.flush()
    sys.stdout.write(f"{right} of {options.runs} right\n")
    return 0 if right == options.runs else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
