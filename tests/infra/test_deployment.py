"""A stack is created, changed, used and deleted, on ministack, by the command that deploys it. moto is no stand-in for
this: it leaves out resources that it does not know, and says nothing."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from tempfile import TemporaryDirectory
from typing import Any

import boto3
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactor.model.clock import SystemClock
from compactor.model.errors import Invalid, LithifyError
from dispatcher.demo.stand_ins import free_ports
from infra.app import checked_stage, synthesise
from infra.aws.deployment import StackInAccount, clients
from infra.deploy import run
from infra.stack import stack_name
from tests.infra.templates import GIVEN, synthesised
from tests.pages.sources import DOCS, blocks, section
from tests.servers import REGION, aws_environment, seaweedfs_server
from tests.waiting import wait_until
from tests.workflows import REPOSITORY, ministack_workflows

pytestmark = pytest.mark.timeout(600)

REFUSED = {
    "dev": ["AWS::EMR::SecurityConfiguration"],
    "prod": [
        "AWS::EC2::EIP",
        "AWS::EC2::FlowLog",
        "AWS::EC2::NatGateway",
        "AWS::EC2::SecurityGroupIngress",
        "AWS::EMR::SecurityConfiguration",
    ],
    "serverless": ["AWS::EC2::EIP", "AWS::EC2::FlowLog", "AWS::EC2::NatGateway", "AWS::EMRServerless::Application"],
}
"""Resource types that ministack does not know. cfn-lint alone has looked at these (tests/infra/test_templates.py)."""

PROGRAMS = REPOSITORY / ".venv" / "bin"
PATHS = f"{PROGRAMS}:/usr/local/bin:/usr/bin:/bin"
"""What an image brings along, beside the task's environment."""


@pytest.fixture(scope="module")
def endpoint_url() -> Iterator[str]:
    with ministack_workflows() as services:
        yield services.endpoint_url


@pytest.fixture(scope="module")
def s3_endpoint_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    before = os.environ["PATH"]
    os.environ["PATH"] = f"{PROGRAMS}:{before}"  # `weed` is there
    try:
        with aws_environment(), seaweedfs_server(tmp_path_factory.mktemp("weed")) as url:
            yield url
    finally:
        os.environ["PATH"] = before


@dataclass
class Account:
    """The stack of stage dev, with sessions in the dispatcher's own task, and the lines that are printed about it."""

    endpoint_url: str
    s3_endpoint_url: str
    http_port: int = field(default_factory=lambda: free_ports(1)[0])
    lines: list[str] = field(default_factory=list)

    @property
    def given(self) -> list[str]:
        return [
            "dev",
            "spark=local",
            "workers=0",
            f"endpoint_url={self.endpoint_url}",
            f"s3_endpoint_url={self.s3_endpoint_url}",
            f"http_port={self.http_port}",
        ]

    def client(self, service: str) -> Any:  # noqa: ANN401
        return boto3.client(service, region_name=REGION, endpoint_url=self.endpoint_url)  # type: ignore[call-overload]

    def lake_client(self) -> Any:  # noqa: ANN401
        """Of the service that has lakes and state: buckets of the same names."""
        return boto3.client("s3", region_name=REGION, endpoint_url=self.s3_endpoint_url)

    def stack(self, name: str = "Lithify-dev") -> StackInAccount:
        return StackInAccount(name, clients(REGION, self.endpoint_url), SystemClock(), poll_seconds=0.2)

    def run(self, verb: str, *more: str) -> list[str]:
        self.lines.clear()
        run(verb, [*self.given, *more], lambda stage: self.stack(stack_name(stage)), self.lines.append)
        return list(self.lines)

    def container(self, part: str) -> tuple[list[str], dict[str, str]]:
        """Command and environment of a part's task."""
        found = self.task(part)
        return found["command"], {each["name"]: each["value"] for each in found["environment"]}

    def task(self, part: str = "dispatcher") -> dict[str, Any]:
        definition = self.client("ecs").describe_task_definition(taskDefinition=f"lithify-dev-{part}")
        (container,) = definition["taskDefinition"]["containerDefinitions"]
        found: dict[str, Any] = container
        return found


@pytest.fixture(scope="module")
def account(endpoint_url: str, s3_endpoint_url: str) -> Account:
    return Account(endpoint_url, s3_endpoint_url)


@pytest.mark.parametrize("example", sorted(GIVEN))
def test_what_the_stand_in_refuses_is_listed(account: Account, example: str) -> None:
    with pytest.raises(LithifyError, match="Unrecognized resource types") as refused:
        account.stack(f"Refused-{example}").plan(json.dumps(synthesised(example), separators=(",", ":")))
    listed = re.search(r"Unrecognized resource types: \[([^]]*)\]", str(refused.value))
    assert listed is not None
    assert listed[1].split(", ") == REFUSED[example]


def test_a_stack_that_is_not_there_is_said_so(account: Account) -> None:
    with pytest.raises(Invalid, match="there is no stack Lithify-dev here: deploy it first"):
        account.run("env")


def test_a_stage_of_another_account_is_refused(account: Account) -> None:
    with pytest.raises(Invalid, match="stage dev is for account 999999999999, not for 000000000000"):
        account.run("plan", "account=999999999999")


def test_a_stack_is_created_changed_used_and_deleted(account: Account, tmp_path: Path) -> None:
    """One story: each step needs the one before."""
    changes = account.run("plan")
    assert all(line.startswith("Add ") for line in changes)
    assert any("AWS::StepFunctions::StateMachine" in line for line in changes)
    outputs = variables_of(account.run("up"))
    assert account.run("env") == account.lines

    assert visibility(account, outputs["LITHIFY_QUEUE_URL"]) == 120
    (change,) = (
        line
        for line in account.run("plan", "visibility_seconds=180")
        if "SQS::Queue " in line and "Instructions" in line
    )
    assert change.startswith("Modify")
    account.run("up", "visibility_seconds=180")
    assert visibility(account, outputs["LITHIFY_QUEUE_URL"]) == 180
    assert account.run("plan", "visibility_seconds=180") == ["Nothing changes."]

    use(account, outputs, tmp_path)
    take_in(account, outputs, tmp_path)
    start_twice(account, outputs["WORKFLOW_ARN"])
    left = what_is_there(account)
    with pytest.raises(Invalid, match="nothing was deleted: to delete stack Lithify-dev, add --yes"):
        account.run("down")
    assert what_is_there(account) == left
    account.run("down", "--yes")
    kept = what_is_there(account)
    lakes, states = (outputs[name].split("/")[2] for name in ("LITHIFY_LAKE", "LITHIFY_STATE"))
    assert set(kept.pop("buckets")) == {lakes, states}
    dead_letters = ("LITHIFY_DEAD_LETTER_QUEUE_URL", "REFUSED_FILES")
    assert sorted(kept.pop("queues")) == sorted(outputs[name].rpartition("/")[2] for name in dead_letters)
    assert len(kept.pop("keys")) == 1
    assert kept == {name: [] for name in kept}


def take_in(account: Account, outputs: dict[str, str], folder: Path) -> None:
    """A file that lands is announced by the stack's rule; the service's task, with its own environment, appends it."""
    landing = ("ingests=1", "landing=s3://partners/visits", "visibility_seconds=180")
    assert any("AWS::Events::Rule" in line for line in account.run("plan", *landing))
    account.run("up", *landing)
    (service,) = account.client("ecs").describe_services(
        cluster="lithify-dev", services=account.client("ecs").list_services(cluster="lithify-dev")["serviceArns"]
    )["services"]
    assert service["desiredCount"] == 1
    notifying = account.client("s3")  # it tells EventBridge; the other service has the objects
    notifying.create_bucket(Bucket="partners")
    notifying.put_bucket_notification_configuration(
        Bucket="partners", NotificationConfiguration={"EventBridgeConfiguration": {}}
    )
    account.lake_client().create_bucket(Bucket="partners")
    pq.write_table(pa.table({"id": [1, 2], "day": ["1", "2"]}), folder / "visits.parquet")
    created = ("table", "create", "SHOP.VISITS.V1", "--partition-key", "day", "--property", "primary_keys=id")
    lithify(account, outputs, folder, *created, "--property", "landing=s3://partners/visits/")
    for key in ("visits/1.parquet", "elsewhere/2.parquet"):
        for client in (account.lake_client(), notifying):
            client.put_object(Bucket="partners", Key=key, Body=(folder / "visits.parquet").read_bytes())
    wait_until(lambda: waiting(account, outputs["ANNOUNCEMENTS"]) == 1, 30)
    command, environment = account.container("ingest")
    lithify(account, environment, folder, *command[1:], "--once")
    assert waiting(account, outputs["ANNOUNCEMENTS"]) == waiting(account, outputs["REFUSED_FILES"]) == 0
    scan = ("table", "scan", "SHOP.VISITS.V1", "--view", "merged", "--output", "jsonl")
    rows = [json.loads(line) for line in lithify(account, outputs, folder, *scan).splitlines()]
    assert sorted(tuple(map(str, row.values())) for row in rows) == [("1", "1"), ("2", "2")]
    account.run("up", "visibility_seconds=180", "--yes")
    for client in (account.lake_client(), notifying):
        for each in client.list_objects_v2(Bucket="partners")["Contents"]:
            client.delete_object(Bucket="partners", Key=each["Key"])
        client.delete_bucket(Bucket="partners")


def waiting(account: Account, queue_url: str) -> int:
    found = account.client("sqs").get_queue_attributes(QueueUrl=queue_url, AttributeNames=["All"])["Attributes"]
    return int(found["ApproximateNumberOfMessages"]) + int(found["ApproximateNumberOfMessagesNotVisible"])


def start_twice(account: Account, workflow: str) -> None:
    """The second execution takes the place of the first; while that goes on, there is no third."""
    (first,), (second,) = account.run("start"), account.run("start")
    described = account.client("stepfunctions").describe_execution(executionArn=second)
    assert json.loads(described["input"]) == {"replaces": {"execution_arn": first, "name": first.rpartition(":")[2]}}
    with pytest.raises(Invalid, match="2 executions of the workflow run, one in place of another: wait for it"):
        account.run("start")
    ecs = account.client("ecs")
    wait_until(lambda: len(ecs.list_tasks(cluster="lithify-dev", desiredStatus="RUNNING")["taskArns"]) == 4, 30)
    assert first.rpartition(":")[0] == workflow.replace(":stateMachine:", ":execution:")


def variables_of(lines: list[str]) -> dict[str, str]:
    return dict(shlex.split(line)[1].split("=", 1) for line in lines if line.startswith("export "))


def visibility(account: Account, queue_url: str) -> int:
    found = account.client("sqs").get_queue_attributes(QueueUrl=queue_url, AttributeNames=["VisibilityTimeout"])
    return int(found["Attributes"]["VisibilityTimeout"])


def what_is_there(account: Account) -> dict[str, list[str]]:
    """Of what a stack makes; the account's own network and keys are not the stack's."""
    client = account.client
    keys = [each["KeyId"] for each in client("kms").list_keys()["Keys"]]
    described = [client("kms").describe_key(KeyId=each)["KeyMetadata"] for each in keys]
    vpcs = client("ec2").describe_vpcs()["Vpcs"]
    return {
        "buckets": [each["Name"] for each in client("s3").list_buckets()["Buckets"]],
        "queues": [each.rpartition("/")[2] for each in client("sqs").list_queues().get("QueueUrls", [])],
        "keys": [each["KeyId"] for each in described if "Lithify" in each.get("Description", "")],
        "topics": [each["TopicArn"] for each in client("sns").list_topics()["Topics"]],
        "roles": [each["RoleName"] for each in client("iam").list_roles()["Roles"] if "ithify" in each["RoleName"]],
        "workflows": [each["name"] for each in client("stepfunctions").list_state_machines()["stateMachines"]],
        "clusters": client("ecs").list_clusters()["clusterArns"],
        "logs": [each["logGroupName"] for each in client("logs").describe_log_groups()["logGroups"]],
        "images": [each["repositoryName"] for each in client("ecr").describe_repositories()["repositories"]],
        "alarms": [each["AlarmName"] for each in client("cloudwatch").describe_alarms()["MetricAlarms"]],
        "dashboards": [each["DashboardName"] for each in client("cloudwatch").list_dashboards()["DashboardEntries"]],
        "networks": [each["VpcId"] for each in vpcs if not each.get("IsDefault")],
        "rules": [each["Name"] for each in client("events").list_rules()["Rules"]],
        "schedules": [each["Name"] for each in client("scheduler").list_schedules()["Schedules"]],
    }


# --------------------------------------------------------------------------------------------------- as it is used


def use(account: Account, outputs: dict[str, str], folder: Path) -> None:
    """The first instruction of the pages, taken by a dispatcher with exactly its task's environment, and its event."""
    s3 = account.lake_client()
    for name in ("LITHIFY_LAKE", "LITHIFY_STATE"):
        s3.create_bucket(Bucket=outputs[name].split("/")[2])
    events_url = subscribe(account, outputs["LITHIFY_TOPIC_ARN"])
    write_table(account, outputs, folder)
    lithify(account, outputs, folder, "submit", "-", given=blocks()["instruction"])
    with dispatcher(account, folder):
        event = receive(account, events_url)
    assert (event["type"], event["table"]) == ("lithify.job_run.succeeded.v1", "ACME.ORDERS.V1")
    assert event["jobrunid"] == json.loads(blocks()["instruction"])["job_run_id"]
    assert event["data"]["rows_out"] == 2
    watch(account, outputs, folder)


def watch(account: Account, outputs: dict[str, str], folder: Path) -> None:
    """The commands of "Alarms of your own"."""
    shown = section(DOCS / "operate" / "alarms.md", "Alarms of your own")
    block = re.search(r"```sh\n(.*?)^```", shown, re.S | re.M)
    assert block is not None
    subscription, *reports = block[1].replace("\\\n", " ").splitlines()
    words = [Template(word).substitute(outputs) for word in shlex.split(subscription)]
    assert words[:3] == ["aws", "sns", "subscribe"]
    options = dict(zip(words[3::2], words[4::2], strict=True))
    made = account.client("sns").subscribe(
        TopicArn=options.pop("--topic-arn"),
        Protocol=options.pop("--protocol"),
        Endpoint=options.pop("--notification-endpoint"),
        Attributes=json.loads(options.pop("--attributes")),
    )
    account.client("sns").unsubscribe(SubscriptionArn=made["SubscriptionArn"])
    assert options == {"--region": REGION}
    assert reports
    for report in reports:
        program, *arguments = shlex.split(report)
        assert program == "lithify"
        lithify(account, outputs, folder, *arguments)


def subscribe(account: Account, topic_arn: str) -> str:
    """A queue that gets ends of job runs, and nothing else."""
    sqs, sns = account.client("sqs"), account.client("sns")
    url: str = sqs.create_queue(QueueName="ends")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    policy = json.dumps({"type": ["lithify.job_run.succeeded.v1", "lithify.job_run.failed.v1"]})
    attributes = {"RawMessageDelivery": "true", "FilterPolicy": policy}
    sns.subscribe(TopicArn=topic_arn, Protocol="sqs", Endpoint=arn, Attributes=attributes)
    return url


def receive(account: Account, queue_url: str) -> dict[str, Any]:
    """The first event; the queue is deleted then."""
    sqs, found = account.client("sqs"), []

    def came() -> bool:
        found.extend(sqs.receive_message(QueueUrl=queue_url, WaitTimeSeconds=1).get("Messages", []))
        return bool(found)

    wait_until(came, 240)
    sqs.delete_queue(QueueUrl=queue_url)
    event: dict[str, Any] = json.loads(found[0]["Body"])
    return event


def write_table(account: Account, outputs: dict[str, str], folder: Path) -> None:
    rows = {"order_id": [1, 2, 2], "status": ["NEW", "NEW", "SHIPPED"], "last_updated": [10, 10, 30]}
    pq.write_table(pa.table(rows), folder / "orders.parquet")
    bucket, _, prefix = outputs["LITHIFY_LAKE"].removeprefix("s3://").partition("/")
    key = f"{prefix}/uploads/orders.parquet"
    account.lake_client().put_object(Bucket=bucket, Key=key, Body=(folder / "orders.parquet").read_bytes())
    table = ("table", "create", "ACME.ORDERS.V1", "--partition-key", "order_day")
    lithify(account, outputs, folder, *table)
    appended = ("table", "append", "ACME.ORDERS.V1", f"s3://{bucket}/{key}", "--partition", "order_day=1995-04-03")
    lithify(account, outputs, folder, *appended)


def lithify(account: Account, outputs: dict[str, str], folder: Path, *arguments: str, given: str = "") -> str:
    """What the command line answers, with what `env` says."""
    environment = {
        "PATH": PATHS,
        **{name: value for name, value in os.environ.items() if name.startswith("AWS_")},
        **outputs,
        "LITHIFY_ENDPOINT_URL": account.endpoint_url,
        "LITHIFY_S3_ENDPOINT_URL": account.s3_endpoint_url,
    }
    done = subprocess.run(
        [str(PROGRAMS / "lithify"), *arguments],
        env=environment,
        cwd=folder,
        input=given,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def template_of(account: Account) -> dict[str, Any]:
    """The container as the template has it."""
    with TemporaryDirectory() as folder:
        template = json.loads(synthesise(checked_stage(account.given), Path(folder)).read_text())
    (container,) = template["Resources"]["DispatcherTask"]["Properties"]["ContainerDefinitions"]
    found: dict[str, Any] = container
    return found


class dispatcher:  # noqa: N801  (a context)
    """The container of the task definition, without the container: its command, its environment and nothing else."""

    def __init__(self, account: Account, folder: Path) -> None:
        container = account.task()
        program, *arguments = container["command"]
        environment = {each["name"]: each["value"] for each in container["environment"]}
        work = Path(environment["LITHIFY_WORK_FOLDER"])
        assert str(work) in {each["containerPath"] for each in container["mountPoints"]}
        # (ministack loses the health check: it is the template's)
        self._check = template_of(account)["HealthCheck"]["Command"]
        self._log = folder / "dispatcher.log"
        mounted = folder / "work"
        mounted.mkdir()
        # The task's volume is mounted at the same place, in a namespace of its own.
        mount = 'mkdir -p "$2" && mount --bind "$1" "$2" && shift 2 && exec "$@"'
        command = ["unshare", "--mount", "sh", "-c", mount, "sh", str(mounted), str(work)]
        credentials = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, str(PROGRAMS / program), *arguments],
                env={"PATH": PATHS, **credentials, **environment},
                cwd=folder,
                stdout=log,
                stderr=log,
            )

    def __enter__(self) -> None:
        kind, program, *arguments = self._check
        assert (kind, program) == ("CMD", "python")
        command = [str(PROGRAMS / program), *arguments]

        def is_healthy() -> bool:
            assert self._process.poll() is None, self._log.read_text()
            return subprocess.run(command, capture_output=True, check=False).returncode == 0

        wait_until(is_healthy, 120)

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(120) == 0, self._log.read_text()
        lines = [json.loads(line) for line in self._log.read_text().splitlines() if line.startswith('{"_aws"')]
        assert lines, "no metrics were written"
        assert all(line["_aws"]["CloudWatchMetrics"][0]["Namespace"] == "Lithify/dev" for line in lines)
