"""Dispatchers that are killed while their session runs on EMR: the next one attaches to the cluster that runs.

    python -m tests.spark.killed_dispatchers --rounds 20 --real 1

Each round: a table with six deltas on seaweedfs, an instruction on a queue, `lithify dispatch --cluster-settings` as a
process against the fake EMR. At a moment that the round's number chooses it gets a SIGKILL; another is started and
ends the job run. What must hold: one cluster was launched, no round was committed twice, by one attempt, the rows are
right, no cluster is left, and both dispatchers went the same way.

The step of the last `--real` rounds runs on a real Spark (`local[2]`), that of the others on a program that stands
where spark-submit stands and runs the session on the in-process engine. A line of JSON says of each round what was
found; the exit code is 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import boto3
import pyarrow as pa
import pyarrow.compute as pc

from compactor.catalog.actions import RoundCommitted
from compactor.engine.java_home import find_java_home
from compactor.lake import DeltaCatalog
from compactor.log.durable_log import DurableLog
from compactor.model.clock import SystemClock
from compactor.sessions.keys import SessionFolder
from compactor.sessions.session_log import SESSION_LOG
from compactor.storage.location import StoreLocation
from compactor.storage.opening import open_store
from dispatcher.demo.stand_ins import queue_server
from dispatcher.records.job_run_log import JobRunStatus
from dispatcher.records.job_run_store import JobRunStore
from launcher.archive import pack_archive
from launcher.clusters.drivers import find_spark_home
from tests.fakes.emr_account import EmrAccount, Timings
from tests.fakes.emr_server import AnswerLost, EmrServer, emr_server
from tests.fakes.emr_serverless_account import ServerlessAccount
from tests.fakes.emr_steps import SparkSubmitSteps, pack_this_python
from tests.fakes.spark_submit import make_spark_home
from tests.servers import BUCKET, REGION, aws_environment, seaweedfs_server
from tests.waiting import wait_until

REPOSITORY = Path(__file__).resolve().parents[2]
TABLE = "ACME.ORDERS.V1"
DELTAS = 6
ROWS = 200
QUICK = Timings(starting=0.5, bootstrapping=0.3, terminating=0.2)


class Moment(StrEnum):
    """When the dispatcher is killed."""

    LAUNCH_UNANSWERED = "the cluster is launched, and the answer never comes"
    LAUNCHED = "the cluster starts"
    BEFORE_FIRST_COMMIT = "the first round is about to commit"
    AFTER_FIRST_COMMIT = "the first round is committed"
    AFTER_FOURTH_COMMIT = "the fourth round is committed"


@dataclass
class Town:
    """Where all rounds of a run take place: services that stay, and a fake EMR."""

    folder: Path
    s3_endpoint: str
    aws_endpoint: str
    emr: EmrServer

    def steps(self, number: int, *, real: bool, hold: Path) -> SparkSubmitSteps:
        environment = {**os.environ, "SESSION_HOLD": str(hold), "PYTHONPATH": str(REPOSITORY)}
        home = make_spark_home(self.folder / f"home-{number}")
        if real:
            del environment["PYTHONPATH"]  # what runs comes out of the archive
            home = find_spark_home({})
            environment["JAVA_HOME"] = str(find_java_home(environment, self.folder / "java"))
        return SparkSubmitSteps(
            self.folder / f"steps-{number}", home, environment=environment, s3_endpoint=self.s3_endpoint
        )


@contextmanager
def town(folder: Path, *, packed: bool = False) -> Iterator[Town]:
    """`packed`: sessions run with what `lithify archive` makes, else with this process's own environment."""
    with ExitStack() as up:
        up.enter_context(aws_environment())
        s3_endpoint = up.enter_context(seaweedfs_server(folder / "s3"))
        aws_endpoint = up.enter_context(queue_server())
        clock = SystemClock()
        nothing = SparkSubmitSteps(folder / "steps", folder)
        emr = up.enter_context(emr_server(EmrAccount(clock, nothing), ServerlessAccount(clock, nothing)))
        if packed:
            pack_archive(folder / "lithify.tar.gz", folder / "packing")
        else:
            pack_this_python(folder / "lithify.tar.gz")
        s3 = boto3.client("s3", endpoint_url=s3_endpoint, region_name=REGION)
        s3.upload_file(str(folder / "lithify.tar.gz"), BUCKET, "lithify.tar.gz")
        yield Town(folder, s3_endpoint, aws_endpoint, emr)


@dataclass
class KilledRound:
    """One round. `hold`: while it is there, the stand-in does not commit."""

    town: Town
    number: int
    moment: Moment
    is_real: bool
    deltas: int = DELTAS

    def __post_init__(self) -> None:
        self.folder = self.town.folder / f"round-{self.number}"
        self.folder.mkdir()
        self.hold = self.folder / "hold"
        root = f"s3://{BUCKET}/round-{self.number}"
        self.state = StoreLocation(f"{root}/state", self.town.s3_endpoint, REGION)
        self.lake = StoreLocation(f"{root}/lake", self.town.s3_endpoint, REGION)
        self.clock = SystemClock()
        self.catalog = DeltaCatalog(open_store(self.lake), self.clock)
        self.records = JobRunStore(open_store(self.state), self.clock)
        self.queue_url = self._queue()

    # -- what takes place

    def run(self) -> dict[str, object]:
        steps = self.town.steps(self.number, real=self.is_real, hold=self.hold)
        account = EmrAccount(self.clock, steps, QUICK)
        self.town.emr.reset(account, ServerlessAccount(self.clock, steps))
        expected = self._append()
        began = time.monotonic()
        job_run_id = self._send()
        if self.moment is Moment.LAUNCH_UNANSWERED:
            self.town.emr.faults.append(AnswerLost("RunJobFlow"))
        if self.moment is Moment.BEFORE_FIRST_COMMIT and not self.is_real:
            self.hold.touch()
        first = self.dispatcher()
        try:
            self._await_moment(account, job_run_id, first)
        finally:
            first.send_signal(signal.SIGKILL)
            first.wait()
        committed_at_kill = len(self.rounds())
        second = self.dispatcher("--until-idle")
        try:
            wait_until(lambda: self._is_held_again(job_run_id) or second.poll() is not None)
            self.hold.unlink(missing_ok=True)
            exit_code = second.wait(180)
        finally:
            second.kill()
            second.wait()
        wait_until(lambda: not self._live(account), seconds=30)
        return self._found(job_run_id, account, expected) | {
            "round": self.number,
            "moment": str(self.moment),
            "real_spark": self.is_real,
            "committed_at_kill": committed_at_kill,
            "exit_code": exit_code,
            "seconds": round(time.monotonic() - began, 1),
        }

    def dispatcher(self, *options: str) -> subprocess.Popen[bytes]:
        settings = self.folder / "emr.json"
        settings.write_text(json.dumps(self._settings()))
        command = [
            *(sys.executable, "-m", "tests.paced_dispatcher", "quick", "dispatch"),
            *("--queue-url", self.queue_url, "--endpoint-url", self.town.aws_endpoint, "--region", REGION),
            *("--state", self.state.root_uri, "--lake", self.lake.root_uri),
            *("--s3-endpoint-url", self.town.s3_endpoint),
            *("--cluster-settings", str(settings)),
            *("--claim-seconds", "2", "--work-folder", str(self.folder / "work")),
            *options,
        ]
        with (self.folder / "dispatcher.log").open("ab") as log:
            environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
            return subprocess.Popen(command, cwd=self.folder, env=environment, stdout=log, stderr=log)

    def _await_moment(self, account: EmrAccount, job_run_id: str, first: subprocess.Popen[bytes]) -> None:
        rounds = {Moment.AFTER_FIRST_COMMIT: 1, Moment.AFTER_FOURTH_COMMIT: 4}.get(self.moment)
        if self.moment is Moment.LAUNCH_UNANSWERED:
            wait_until(lambda: bool(account.clusters) or first.poll() is not None, every_seconds=0.002)
        elif self.moment is Moment.LAUNCHED:
            wait_until(lambda: self._is_launched(job_run_id) or first.poll() is not None)
        elif rounds is not None:
            wait_until(lambda: len(self.rounds()) >= rounds or first.poll() is not None)
        else:
            wait_until(lambda: self._has_started(job_run_id) or first.poll() is not None)
        assert first.poll() is None, self.log()

    # -- what is found

    def _found(self, job_run_id: str, account: EmrAccount, expected: pa.Table) -> dict[str, object]:
        state = self.records.state(job_run_id)
        (session,) = state.sessions.values()
        found = {
            "clusters": len(account.clusters),
            "attempts": session.attempt,
            "rounds": len(self.rounds()),
            "clusters_left": self._live(account),
        }
        wrong = []
        if state.status is not JobRunStatus.SUCCEEDED:
            wrong.append(f"the job run is {state.status}: {self.log()[-3000:]}")
        if found["clusters"] != 1 or found["attempts"] != 1 or self._writers(job_run_id) != {1}:
            wrong.append("more than one cluster or attempt")
        if [each.round_number for each in self.rounds()] != list(range(1, self.deltas + 1)):
            wrong.append("a round is missing, or was committed twice")
        if not self._rows().equals(expected):
            wrong.append("the rows are wrong")
        if found["clusters_left"]:
            wrong.append("a cluster is left")
        return {**found, "wrong": wrong}

    def rounds(self) -> list[RoundCommitted]:
        entries = self.catalog.table(TABLE).stream({}).log.entries()
        return [action for entry in entries for action in entry.actions if isinstance(action, RoundCommitted)]

    def log(self) -> str:
        return (self.folder / "dispatcher.log").read_text()

    def _rows(self) -> pa.Table:
        table: pa.Table = self.catalog.table(TABLE).scan().to_table()
        return table.select(["id", "v"]).combine_chunks().take(pc.sort_indices(table["id"]))

    def _live(self, account: EmrAccount) -> int:
        with self.town.emr.lock:
            return len(account.live())

    def _is_launched(self, job_run_id: str) -> bool:
        return any(session.cluster is not None for session in self.records.state(job_run_id).sessions.values())

    def _has_started(self, job_run_id: str) -> bool:
        """And is in its first round, or has it behind it."""
        return bool(self._writers(job_run_id))

    def _writers(self, job_run_id: str) -> set[int]:
        sessions = self.records.state(job_run_id).sessions
        folders = [SessionFolder(job_run_id, session_id) for session_id in sessions]
        logs = [DurableLog(self.records.store, folder.log, SESSION_LOG, self.clock) for folder in folders]
        return {action.attempt for log in logs for entry in log.entries() for action in entry.actions}

    def _is_held_again(self, job_run_id: str) -> bool:
        return self.records.state(job_run_id).epoch >= 2

    # -- what it begins with

    def _append(self) -> pa.Table:
        """Deltas that overlap by half; answers the rows that must survive."""
        table = self.catalog.create_table(TABLE)
        rows: dict[int, str] = {}
        for delta in range(self.deltas):
            new = {key: f"{delta}-{key}" for key in range(delta * ROWS // 2, delta * ROWS // 2 + ROWS)}
            table.append({}, pa.table({"id": list(new), "v": list(new.values())}))
            rows |= new
        return pa.table({"id": sorted(rows), "v": [rows[key] for key in sorted(rows)]})

    def _send(self) -> str:
        document = {
            "schema_version": "1",
            "source_table_id": TABLE,
            "primary_keys": ["id"],
            "max_rows_per_round": ROWS,
            "job_run_id": f"round-{self.number}",
        }
        sqs = boto3.client("sqs", endpoint_url=self.town.aws_endpoint, region_name=REGION)
        sqs.send_message(QueueUrl=self.queue_url, MessageBody=json.dumps(document))
        return f"round-{self.number}"

    def _queue(self) -> str:
        sqs = boto3.client("sqs", endpoint_url=self.town.aws_endpoint, region_name=REGION)
        name = self.clock.new_id()
        dead = sqs.create_queue(QueueName=f"{name}-dead")["QueueUrl"]
        arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 10})
        return sqs.create_queue(QueueName=name, Attributes={"RedrivePolicy": policy})["QueueUrl"]

    def _settings(self) -> dict[str, object]:
        return {
            "kind": "emr",
            "region": REGION,
            "release_label": "emr-spark-8.0.0",
            "subnet_ids": ["subnet-0123456789abcdef0"],
            "service_role": "EMR_DefaultRole",
            "instance_profile": "EMR_EC2_DefaultRole",
            "archive_uri": f"s3://{BUCKET}/lithify.tar.gz",
            "log_uri": f"s3://{BUCKET}/logs/",
            "endpoint_url": self.town.emr.url,
        }


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Kills dispatchers whose sessions run on EMR.")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--real", type=int, default=1, help="of these rounds, the last ones, on a real Spark")
    parser.add_argument("--packed", action="store_true", help="with an archive of `lithify archive`")
    options = parser.parse_args(arguments)
    moments, wrong = list(Moment), 0
    with tempfile.TemporaryDirectory() as folder, town(Path(folder), packed=options.packed) as here:
        for number in range(options.rounds):
            is_real = number >= options.rounds - options.real
            found = KilledRound(here, number, moments[number % len(moments)], is_real).run()
            wrong += bool(found["wrong"])
            print(json.dumps(found), flush=True)  # noqa: T201
    print(json.dumps({"rounds": options.rounds, "wrong": wrong}))  # noqa: T201
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
