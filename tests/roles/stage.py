"""A deployed stage on this machine: the buckets, queues and topics of its template on stand-ins, behind a gate that
knows each part by its access key and holds it to its role and to the buckets' policies.

The template is the golden one, which `make test-infra` compares with the synthesised one, so that these tests need no
CDK. Commands and variables of parts are the template's, too; only addresses are those of the stand-ins.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

from compactor.engine.java_home import find_java_home
from compactor.model.clock import SystemClock
from dispatcher.demo.stand_ins import queue_server
from launcher.clusters.drivers import find_spark_home
from tests.fakes.emr_account import EmrAccount, Timings
from tests.fakes.emr_server import EmrServer, emr_server
from tests.fakes.emr_serverless_account import ServerlessAccount
from tests.fakes.emr_steps import SparkSubmitSteps, pack_this_python
from tests.proxy import Proxy, proxy_before
from tests.roles.gate import RoleGate
from tests.roles.later import DAYS_LATER
from tests.roles.policies import ACCOUNT, GOLDEN, REGION, Account
from tests.servers import ACCESS_KEY, SECRET_KEY, seaweedfs_server

REPOSITORY = Path(__file__).parents[2]
COMMAND_SECONDS_MAX = 240.0
_PATH_STYLE = Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 2})

_OF_A_TASK_ON_AWS = ("LITHIFY_HTTP_PORT", "LITHIFY_TASK_HEARTBEAT_SECONDS", "LITHIFY_METRICS_NAMESPACE")
_OF_CLUSTERS = ("LITHIFY_CLUSTER_SETTINGS", "LITHIFY_LIMITS", "LITHIFY_SPOT_SHARE")
_NO_WORKERS = {"LITHIFY_WORKERS": "0"}
"""Each session has the Spark job's role, however small it is."""

_QUICK_CLUSTERS = Timings(starting=0.2, bootstrapping=0.1, terminating=0.1)
_QUICK = ("tests.roles.later", "tests.paced_dispatcher", "quick")


@dataclass
class Answer:
    """What a command answered."""

    exit_code: int
    out: str
    err: str

    def json(self) -> Any:  # noqa: ANN401  (what the command prints)
        return json.loads(self.out)


@dataclass
class DeployedStage:
    """
    services              the proxy before SQS, SNS and CloudWatch Logs
    s3_url, services_url, emr_url  behind the gate
    direct_s3_url, direct_services_url  past it, for what a test itself looks up
    emr  what runs the Spark jobs of `dispatch_on_emr`
    """

    folder: Path
    account: Account
    gate: RoleGate
    services: Proxy
    s3_url: str
    direct_s3_url: str
    direct_services_url: str
    emr_url: str
    emr: EmrServer

    def __post_init__(self) -> None:
        self._steps = 0

    # -- places

    @property
    def services_url(self) -> str:
        return self.services.url

    @property
    def lake(self) -> str:
        return f"s3://{self.bucket('Lakes')}/lake"

    @property
    def state(self) -> str:
        return f"s3://{self.bucket('State')}/state"

    def bucket(self, name: str) -> str:
        return self.account.ref(self.account.named("AWS::S3::Bucket", name))

    def queue_url(self, name: str) -> str:
        return f"{self.services_url}/{ACCOUNT}/{self.account.ref(self.account.named('AWS::SQS::Queue', name))}"

    @property
    def topic_arn(self) -> str:
        return self.account.arn(self.account.named("AWS::SNS::Topic", "Events"))

    def client(self, service: str, role: str | None = None) -> Any:  # noqa: ANN401  (of boto3)
        """Of a role; None: of the test itself, which may do everything, past the gate. Not for S3 with a role."""
        direct = self.direct_s3_url if service == "s3" else self.direct_services_url
        return boto3.client(
            service,  # type: ignore[call-overload]
            endpoint_url=direct if role is None else self.services_url,
            region_name=REGION,
            aws_access_key_id=role or ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            config=_PATH_STYLE,
        )

    def keys(self, bucket: str, prefix: str) -> list[str]:
        pages = self.client("s3").get_paginator("list_objects_v2").paginate(Bucket=self.bucket(bucket), Prefix=prefix)
        return [each["Key"] for page in pages for each in page.get("Contents", [])]

    # -- what parts do

    def environment(self, role: str, days: float = 0.0) -> dict[str, str]:
        """Of a process with this role's key, `days` from now."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "LITHIFY_"))}
        return {
            **kept,
            "PYTHONPATH": str(REPOSITORY),
            "AWS_ACCESS_KEY_ID": role,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
            DAYS_LATER: str(days),
            "LITHIFY_LOG_FORMAT": "json",
            "LITHIFY_LOG_LEVEL": "warning",
            "LITHIFY_LAKE": self.lake,
            "LITHIFY_STATE": self.state,
            "LITHIFY_REGION": REGION,
            "LITHIFY_QUEUE_URL": self.queue_url("Instructions"),
            "LITHIFY_DEAD_LETTER_QUEUE_URL": self.queue_url("DeadLetters"),
            "LITHIFY_TOPIC_ARN": self.topic_arn,
            "LITHIFY_S3_ENDPOINT_URL": self.s3_url,
            "LITHIFY_ENDPOINT_URL": self.services_url,
        }

    def lithify(self, role: str, *arguments: str, days: float = 0.0, stdin: str | None = None) -> Answer:
        """The command line, as a process with this role's key, to its end."""
        command = [sys.executable, "-m", "tests.roles.later", "dispatcher.start", *arguments]
        return self._run(command, self.environment(role, days), stdin)

    def append(self, table_id: str, rows: Sequence[Mapping[str, object]], *partition: str, days: float = 0.0) -> Answer:
        """A delta, by a program with the writer's key."""
        command = [sys.executable, "-m", "tests.roles.later", "tests.roles.writer"]
        return self._run([*command, table_id, json.dumps(rows), *partition], self.environment("WriterRole", days), None)

    def dispatch(self, days: float = 0.0, **variables: str) -> Answer:
        """A dispatcher with the template's variables, until nothing is left to do. Its Spark jobs run here, and have
        their role. `variables`: other ones, or in place of these."""
        home = {"SPARK_HOME": str(self._spark_home()), "LITHIFY_CORES": "2", "LITHIFY_MEMORY_GIB": "2"}
        return self._dispatch(days, _OF_CLUSTERS, home | _NO_WORKERS | variables)

    def dispatch_on_emr(
        self, days: float = 0.0, *, is_spark_real: bool = False, small_in_workers: bool = False
    ) -> Answer:
        """The same with clusters of the fake EMR, whose nodes have the role of the template's instance profile.
        `small_in_workers`: and with the template's workers, which have the dispatcher's role."""
        environment = self.environment("SparkJobRole", days)
        home = self._spark_home()
        if is_spark_real:
            home = find_spark_home({})
            environment["JAVA_HOME"] = str(find_java_home(environment, self.folder / "java"))
        self._steps += 1
        steps = SparkSubmitSteps(
            self.folder / f"steps-{self._steps}", home, environment=environment, s3_endpoint=self.direct_s3_url
        )
        clock = SystemClock()
        serverless = ServerlessAccount(clock, steps, self._applications(), seconds_in_a_state=0.1)
        self.emr.reset(EmrAccount(clock, steps, _QUICK_CLUSTERS), serverless)
        places = {"LITHIFY_CLUSTER_SETTINGS": self.cluster_settings()}
        return self._dispatch(days, (), places | ({} if small_in_workers else _NO_WORKERS))

    def cluster_settings(self) -> str:
        """The template's, at the stand-in."""
        settings = json.loads(self._variables("DispatcherTask")["LITHIFY_CLUSTER_SETTINGS"])
        settings["endpoint_url"] = self.emr_url
        if settings["kind"] == "emr":
            settings["security_groups"] = dict.fromkeys(settings["security_groups"], "sg-0123456789abcdef0")
            settings["subnet_ids"] = ["subnet-0123456789abcdef0", "subnet-0123456789abcdef1"]
        return json.dumps(settings)

    def _applications(self) -> tuple[str, ...]:
        settings = json.loads(self._variables("DispatcherTask")["LITHIFY_CLUSTER_SETTINGS"])
        return (settings["application_id"],) if settings["kind"] == "emr_serverless" else ()

    def _dispatch(self, days: float, without: Sequence[str], variables: Mapping[str, str]) -> Answer:
        given = self._variables("DispatcherTask")
        kept = {name: value for name, value in given.items() if name not in (*_OF_A_TASK_ON_AWS, *without)}
        environment = {
            **self.environment("DispatcherRole", days),
            **kept,
            "LITHIFY_QUEUE_URL": self.queue_url("Instructions"),
            "LITHIFY_DEAD_LETTER_QUEUE_URL": self.queue_url("DeadLetters"),
            "LITHIFY_WORK_FOLDER": str(self.folder / "work"),
            **variables,
        }
        command = [sys.executable, "-m", *_QUICK, "dispatch", "--until-idle"]
        return self._run(command, environment, None)

    def keep(self, days: float = 0.0) -> Answer:
        """The keeper's task: its command and variables are the template's."""
        command = self._container("KeeperTask")["Command"]
        environment = self.environment("KeeperRole", days) | self._variables("KeeperTask")
        environment["LITHIFY_QUEUE_URL"] = self.queue_url("Instructions")
        environment["PATH"] = f"{self._programs()}{os.pathsep}{environment['PATH']}"
        return self._run(command, environment, None)

    def take_in(self) -> Answer:
        """The ingest's task, until its queue is empty: its command and variables are the template's."""
        program, *arguments = self._container("IngestTask")["Command"]
        assert program == "lithify"
        environment = self.environment("IngestRole") | self._variables("IngestTask")
        environment["LITHIFY_QUEUE_URL"] = self.queue_url("Announcements")
        environment["LITHIFY_DEAD_LETTER_QUEUE_URL"] = self.queue_url("Refused")
        return self._run(
            [sys.executable, "-m", "tests.roles.later", "dispatcher.start", *arguments, "--once"], environment, None
        )

    def _run(self, command: Sequence[str], environment: Mapping[str, str], stdin: str | None) -> Answer:
        ended = subprocess.run(
            command,
            cwd=self.folder,
            env=dict(environment),
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=COMMAND_SECONDS_MAX,
        )
        return Answer(ended.returncode, ended.stdout, ended.stderr)

    def _container(self, task: str) -> dict[str, Any]:
        properties = self.account.properties(self.account.named("AWS::ECS::TaskDefinition", task))
        (container,) = properties["ContainerDefinitions"]
        found: dict[str, Any] = container
        return found

    def _variables(self, task: str) -> dict[str, str]:
        return {each["Name"]: each["Value"] for each in self._container(task)["Environment"]}

    def _programs(self) -> Path:
        """A folder with the `lithify` of an image."""
        return self._program(
            self.folder / "programs" / "lithify", f'exec {sys.executable} -m tests.roles.later dispatcher.start "$@"'
        ).parent

    def _spark_home(self) -> Path:
        """Its `spark-submit` runs a session on the in-process engine, with the key of the Spark job's role."""
        job = f'AWS_ACCESS_KEY_ID=SparkJobRole exec {sys.executable} -m tests.roles.later tests.fakes.spark_submit "$@"'
        return self._program(self.folder / "spark" / "bin" / "spark-submit", job).parents[1]

    def _program(self, file: Path, line: str) -> Path:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"#!/bin/sh\n{line}\n")
        file.chmod(0o755)
        return file


@contextmanager
def deployed_stage(folder: Path, *, is_s3_real: bool, example: str = "dev") -> Iterator[DeployedStage]:
    """`is_s3_real`: seaweedfs, which checks signatures, has the buckets; else moto has them, as it has the rest.
    `example`: of tests/infra/templates.py."""
    account = Account(json.loads((GOLDEN / f"{example}.template.json").read_text()), SystemClock().new_id()[:8])
    with ExitStack() as opened:
        services = opened.enter_context(queue_server())
        keys = [ACCESS_KEY, *account.roles()]
        s3 = opened.enter_context(seaweedfs_server(folder / "weed", keys)) if is_s3_real else services
        stage: DeployedStage

        def delete(bucket: str, keys: Sequence[str]) -> None:
            objects = [{"Key": key} for key in keys]
            stage.client("s3").delete_objects(Bucket=bucket, Delete={"Objects": objects, "Quiet": True})

        clock, nothing = SystemClock(), SparkSubmitSteps(folder / "steps", folder)
        emr = opened.enter_context(emr_server(EmrAccount(clock, nothing), ServerlessAccount(clock, nothing)))
        gate = RoleGate(
            account,
            delete,
            lambda cluster: emr.emr.clusters[cluster].tags,
            lambda job_run: emr.serverless.job_runs[job_run].request["tags"],
        )
        proxy = opened.enter_context(proxy_before(services, gate))
        s3_url = opened.enter_context(proxy_before(s3, gate)).url if is_s3_real else proxy.url
        emr_url = opened.enter_context(proxy_before(emr.url, gate)).url
        stage = DeployedStage(folder, account, gate, proxy, s3_url, s3, services, emr_url, emr)
        _create(stage)
        yield stage


def _create(stage: DeployedStage) -> None:
    for name in ("Lakes", "State"):
        stage.client("s3").create_bucket(Bucket=stage.bucket(name))
    sqs = stage.client("sqs")
    for name in ("DeadLetters", "Instructions", "Refused", "Announcements", "PageFeed"):
        sqs.create_queue(QueueName=stage.account.ref(stage.account.named("AWS::SQS::Queue", name)))
    sns, feed = stage.client("sns"), stage.account.arn(stage.account.named("AWS::SQS::Queue", "PageFeed"))
    sns.create_topic(Name=stage.topic_arn.rpartition(":")[2])
    raw = {"RawMessageDelivery": "true"}
    sns.subscribe(TopicArn=stage.topic_arn, Protocol="sqs", Endpoint=feed, Attributes=raw)
    pack_this_python(stage.folder / "lithify.tar.gz")
    for file in (stage.folder / "lithify.tar.gz", REPOSITORY / "compactor" / "main.py"):
        stage.client("s3").upload_file(str(file), stage.bucket("State"), f"archive/{file.name}")
