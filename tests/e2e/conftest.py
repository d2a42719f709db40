"""A queue, its dead-letter queue and a topic on moto's server, and dispatchers that work on them."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import boto3
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactor.events.aws.sns import SnsSink
from compactor.events.relay import Event
from compactor.lake import DeltaCatalog
from compactor.model.clock import SystemClock
from compactor.model.retries import Backoff
from compactor.storage.location import StoreLocation, parse_location
from compactor.storage.opening import open_store
from dispatcher.assembly import DispatcherSettings, ExternalServices, build_dispatcher
from dispatcher.aws.sqs import SqsQueue
from dispatcher.aws.step_functions import StepFunctionsCallbacks
from dispatcher.demo.stand_ins import queue_server
from dispatcher.intake.admission import Admission
from dispatcher.intake.intake import Intake, IntakeSettings
from dispatcher.intake.receiver import ReceiverSettings
from dispatcher.main import run
from dispatcher.outbox.event_publisher import PublisherSettings
from dispatcher.outbox.workflow_callbacks import AnswerSettings
from dispatcher.records.job_run_log import JobRunState
from dispatcher.records.job_run_store import JobRunStore
from dispatcher.running.job_run_controller import JobRunControllerSettings
from dispatcher.service import ServiceSettings
from dispatcher.workflow.dispatcher_task import DispatcherTask
from launcher.clusters import AwsCluster
from launcher.clusters.workers import Workers
from tests.conftest import CommandResult
from tests.fakes.dispatch_desk import FOLLOWS_SPEED, QUICK, TABLE
from tests.fakes.memory_glue import MemoryGlue
from tests.fakes.small_cluster import Behaviour, SmallCluster
from tests.fakes.spark_submit import make_spark_home
from tests.servers import REGION, aws_environment

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def endpoint_url() -> Iterator[str]:
    with aws_environment(), queue_server() as url:
        yield url


@dataclass
class Mailroom:
    """The services of one test."""

    endpoint_url: str
    queue_url: str
    dead_letter_queue_url: str
    topic_arn: str
    events_queue_url: str

    @classmethod
    def open(cls, endpoint_url: str) -> Mailroom:
        name = SystemClock().new_id()
        sqs = boto3.client("sqs", endpoint_url=endpoint_url, region_name=REGION)
        sns = boto3.client("sns", endpoint_url=endpoint_url, region_name=REGION)
        dead_letters = sqs.create_queue(QueueName=f"{name}-dead")["QueueUrl"]
        policy = json.dumps({"deadLetterTargetArn": cls._arn(sqs, dead_letters), "maxReceiveCount": 4})
        queue = sqs.create_queue(QueueName=name, Attributes={"RedrivePolicy": policy})["QueueUrl"]
        events = sqs.create_queue(QueueName=f"{name}-events")["QueueUrl"]
        topic = sns.create_topic(Name=name)["TopicArn"]
        sns.subscribe(
            TopicArn=topic,
            Protocol="sqs",
            Endpoint=cls._arn(sqs, events),
            Attributes={"RawMessageDelivery": "true"},
        )
        return cls(endpoint_url, queue, dead_letters, topic, events)

    @classmethod
    def arn_of(cls, queue_url: str, endpoint_url: str) -> str:
        return cls._arn(boto3.client("sqs", endpoint_url=endpoint_url, region_name=REGION), queue_url)

    def with_fifo_queues(self) -> Mailroom:
        """The same topic, with a queue and a dead-letter queue that are FIFO."""
        name = SystemClock().new_id()
        sqs = boto3.client("sqs", endpoint_url=self.endpoint_url, region_name=REGION)
        dead_letters = sqs.create_queue(QueueName=f"{name}-dead.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
        policy = json.dumps({"deadLetterTargetArn": self._arn(sqs, dead_letters), "maxReceiveCount": 4})
        attributes = {"FifoQueue": "true", "RedrivePolicy": policy}
        queue = sqs.create_queue(QueueName=f"{name}.fifo", Attributes=attributes)["QueueUrl"]  # type: ignore[arg-type]
        return replace(self, queue_url=queue, dead_letter_queue_url=dead_letters)

    @staticmethod
    def _arn(sqs: object, url: str) -> str:
        arn: str = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]  # type: ignore[attr-defined]
        return arn

    def queue(self) -> SqsQueue:
        return SqsQueue.open(self.queue_url, endpoint_url=self.endpoint_url, region=REGION)

    def send(self, document: object) -> str:
        return self.queue().send(document if isinstance(document, str) else json.dumps(document))

    def waiting(self) -> int:
        """Messages on the queue, visible or not."""
        sqs = boto3.client("sqs", endpoint_url=self.endpoint_url, region_name=REGION)
        found = sqs.get_queue_attributes(
            QueueUrl=self.queue_url,
            AttributeNames=["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"],
        )["Attributes"]
        return sum(int(number) for number in found.values())

    def dead_letters(self) -> list[tuple[str, list[str]]]:
        """What lies on the dead-letter queue: each body, with its reasons."""
        messages = self.queue().dead_letters().receive(10, 0, 0)
        return [(message.body, json.loads(message.reasons or "[]")) for message in messages]

    def events(self) -> list[Event]:
        """Every event that subscribers got, in sequence; each call answers all of them since the beginning."""
        sqs = boto3.client("sqs", endpoint_url=self.endpoint_url, region_name=REGION)
        while True:
            messages = sqs.receive_message(
                QueueUrl=self.events_queue_url, MaxNumberOfMessages=10, MessageAttributeNames=["All"]
            ).get("Messages", [])
            if not messages:
                return sorted(self._events, key=lambda event: event.sequence)
            for message in messages:
                event = Event.model_validate_json(message["Body"])
                attributes = {name: each["StringValue"] for name, each in message["MessageAttributes"].items()}
                assert attributes == event.attributes
                self._events.append(event)
                sqs.delete_message(QueueUrl=self.events_queue_url, ReceiptHandle=message["ReceiptHandle"])

    def __post_init__(self) -> None:
        self._events: list[Event] = []

    def event_types(self) -> list[str]:
        """The types of all events but those that follow the machine's speed, without what they share."""
        names = [event.type.removeprefix("lithify.").removesuffix(".v1") for event in self.events()]
        return [name for name in names if name not in FOLLOWS_SPEED]


@pytest.fixture
def mailroom(endpoint_url: str) -> Mailroom:
    return Mailroom.open(endpoint_url)


@dataclass
class House:
    """A lake with one unpartitioned table, a state, and dispatchers over the mailroom."""

    folder: Path
    mailroom: Mailroom

    def __post_init__(self) -> None:
        self.clock = SystemClock()
        self.lake = DeltaCatalog.open(str(self.folder / "lake"))
        self.state = open_store(parse_location(str(self.folder / "state")))
        self.records = JobRunStore(self.state, self.clock)
        self.cluster = SmallCluster(self.state, self.clock)
        self.launcher = QUICK
        self.callbacks = StepFunctionsCallbacks.open(endpoint_url=self.mailroom.endpoint_url, region=REGION)

    # -- the lake

    def append(self, rows: list[dict[str, object]], operation: str = "upsert") -> None:
        self.lake.create_table(TABLE).append({}, pa.Table.from_pylist(rows), operation=operation)

    def rows(self) -> list[dict[str, object]]:
        """The live compacted rows, and nothing if nothing was compacted."""
        if TABLE not in self.lake.tables():
            return []
        stream = self.lake.table(TABLE).stream({})
        compacted = stream.load().state.compacted
        if compacted is None:
            return []
        files = [stream.uri_of(file.path).removeprefix("file://") for file in compacted.files.values()]
        return sorted(pa.concat_tables(pq.read_table(file) for file in files).to_pylist(), key=str)

    def rounds(self) -> int:
        """Rounds that were ever committed."""
        actions = [action for entry in self.lake.table(TABLE).stream({}).log.entries() for action in entry.actions]
        return sum(action.action == "round_committed" for action in actions)

    def job_run(self, job_run_id: str) -> JobRunState:
        return self.records.state(job_run_id)

    # -- dispatchers

    def intake(self) -> Intake:
        """The intake alone, for a delivery that a test holds in its hand."""
        settings = IntakeSettings(admission=Admission(own_lake=self.lake.location))
        return Intake(self.mailroom.queue(), self.records, self._open_lake, settings, self.clock)

    def _open_lake(self, location: StoreLocation) -> DeltaCatalog:
        return DeltaCatalog(open_store(location), self.clock)

    def dispatch(self, behaves: Callable[..., Behaviour] | None = None) -> None:
        """One dispatcher, in this process, until nothing is left to do."""
        if behaves is not None:
            self.cluster.behaves = behaves
        self.dispatcher(until_idle=True)(threading.Event())

    def dispatcher(
        self,
        *,
        until_idle: bool,
        drain_seconds: float = 5.0,
        on_aws: AwsCluster | None = None,
        cluster_sweep_seconds: float = ServiceSettings.cluster_sweep_seconds,
        task: DispatcherTask | None = None,
        workers: Workers | None = None,
    ) -> Callable[[threading.Event], object]:
        """`on_aws`: in place of the house's own cluster. `workers`: for small sessions; None: there are none."""
        room = self.mailroom
        sink = SnsSink.open(room.topic_arn, self.clock, endpoint_url=room.endpoint_url, patient=False)
        outside = ExternalServices(
            queue=room.queue(),
            state=self.state,
            cluster=on_aws or self.cluster,
            open_lake=self._open_lake,
            open_glue=lambda _: MemoryGlue(),
            sink_for=lambda _: sink,
            callbacks=self.callbacks,
            task=task,
            owner=self.clock.new_id(),
            clock=self.clock,
            listing=on_aws,
            workers=workers,
        )
        settings = DispatcherSettings(
            intake=IntakeSettings(admission=Admission(own_lake=self.lake.location), put_back_seconds=0),
            controller=JobRunControllerSettings(tick_seconds=0.02, sweep_seconds=0.0, look_seconds=0.1),
            receiver=ReceiverSettings(wait_seconds=0, idle_seconds=0.02, unavailable_seconds=0.02),
            answers=AnswerSettings(round_seconds=0.05),
            publisher=PublisherSettings(round_seconds=0.05, backoff=Backoff(0.05, 0.1)),
            launcher=self.launcher,
            service=ServiceSettings(
                drain_seconds=drain_seconds, until_idle=until_idle, cluster_sweep_seconds=cluster_sweep_seconds
            ),
        )
        return build_dispatcher(outside, settings).run

    def start(
        self, *options: str, spark_home: Path | None = None, hold: Path | None = None, **variables: str
    ) -> subprocess.Popen[bytes]:
        """`lithify dispatch` as a process of its own. Its log is dispatcher.log in the test's folder."""
        room = self.mailroom
        command = [sys.executable, "-m", "tests.paced_dispatcher", "quick", "dispatch", *self.options(), *options]
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "LITHIFY_QUEUE_URL": room.queue_url}
        # Its Spark is a stand-in, which tests hold and kill; `tests/e2e/test_workers.py` has workers.
        environment |= {"LITHIFY_WORKERS": "0", **variables}
        if spark_home is not None:
            environment["SPARK_HOME"] = str(spark_home)
        if hold is not None:
            environment["SESSION_HOLD"] = str(hold)
        with (self.folder / "dispatcher.log").open("ab") as log:
            return subprocess.Popen(command, cwd=self.folder, env=environment, stdout=log, stderr=log)

    def lithify(self, *arguments: str) -> CommandResult:
        """The command line to its end, in this process: `start` and tests/integration/dispatcher/test_main.py have
        processes."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.chdir(self.folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            exit_code = run(arguments, {**os.environ, "LITHIFY_LOG_LEVEL": "error"})
        logging.getLogger().handlers.clear()
        return CommandResult(exit_code, out.getvalue(), err.getvalue())

    def options(self) -> Sequence[str]:
        room = self.mailroom
        return (
            *("--state", str(self.folder / "state"), "--lake", str(self.folder / "lake")),
            *("--topic-arn", room.topic_arn, "--endpoint-url", room.endpoint_url, "--region", REGION),
            *("--claim-seconds", "2", "--work-folder", str(self.folder / "work")),
        )

    def small_spark_home(self) -> Path:
        return make_spark_home(self.folder / "spark_home")

    def log(self) -> str:
        return (self.folder / "dispatcher.log").read_text()


@pytest.fixture
def house(tmp_path: Path, mailroom: Mailroom) -> House:
    return House(tmp_path, mailroom)


def ask_to_stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
