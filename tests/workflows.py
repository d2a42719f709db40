"""Step Functions' stand-ins, each for what it does right, and state machines that run in them.

moto     heartbeats are enforced; a missed one is `States.Timeout` (`States.HeartbeatTimeout` on AWS); causes get lost
ministack  callbacks, executions that start executions; heartbeats are never enforced
"""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
import pytest

from compactor.model.clock import SystemClock
from dispatcher.demo.stand_ins import free_ports, queue_server
from tests.servers import MINISTACK, REGION, aws_environment, ministack_server
from tests.waiting import wait_until

REPOSITORY = Path(__file__).parents[1]
ROLE = "arn:aws:iam::123456789012:role/workflows"

WAITS: dict[str, Any] = {
    "StartAt": "Wait",
    "States": {
        "Wait": {
            "Type": "Task",
            "Resource": "arn:aws:states:::sqs:sendMessage.waitForTaskToken",
            "HeartbeatSeconds": 60,
            "Parameters": {"QueueUrl": "QUEUE_URL", "MessageBody": {"task_token.$": "$$.Task.Token"}},
            "End": True,
        }
    },
}
"""Sends its task token to a queue, and waits."""


@dataclass
class StepFunctions:
    """One service of the name, with SQS beside it."""

    endpoint_url: str
    keeps_causes: bool
    clock: SystemClock = field(default_factory=SystemClock)

    def __post_init__(self) -> None:
        self.sfn = boto3.client("stepfunctions", endpoint_url=self.endpoint_url, region_name=REGION)
        self.sqs = boto3.client("sqs", endpoint_url=self.endpoint_url, region_name=REGION)

    def create_queue(self) -> str:
        return self.sqs.create_queue(QueueName=self.clock.new_id())["QueueUrl"]

    def create_state_machine(self, definition: Mapping[str, Any], name: str | None = None, **names: str) -> str:
        """`names`: what stands for `QUEUE_URL` and other words in capitals in the definition."""
        text = json.dumps(definition)
        for word, value in names.items():
            text = text.replace(word.upper(), value)
        return self.sfn.create_state_machine(name=name or self.clock.new_id(), definition=text, roleArn=ROLE)[
            "stateMachineArn"
        ]

    def start(self, machine: str, given: Mapping[str, object]) -> str:
        name = self.clock.new_id()  # moto fails without one
        return self.sfn.start_execution(stateMachineArn=machine, name=name, input=json.dumps(given))["executionArn"]

    def receive(self, queue_url: str) -> dict[str, Any]:
        """The next message's body."""
        found: list[dict[str, Any]] = []

        def received() -> bool:
            answer = self.sqs.receive_message(QueueUrl=queue_url, WaitTimeSeconds=1)
            for message in answer.get("Messages", []):
                self.sqs.delete_message(QueueUrl=queue_url, ReceiptHandle=message["ReceiptHandle"])
                found.append(json.loads(message["Body"]))
            return bool(found)

        wait_until(received, 30)
        return found[0]

    def await_end(self, execution: str) -> Mapping[str, Any]:
        wait_until(lambda: self.sfn.describe_execution(executionArn=execution)["status"] != "RUNNING", 60)
        return self.sfn.describe_execution(executionArn=execution)


@contextmanager
def moto_workflows() -> Iterator[StepFunctions]:
    """moto with executions that run. It finds its own services by MOTO_PORT."""
    (port,) = free_ports(1)
    before = os.environ.get("MOTO_PORT")
    os.environ["MOTO_PORT"] = str(port)
    with aws_environment(), queue_server(port) as endpoint_url:
        try:
            _configure(endpoint_url, executes=True)
            yield StepFunctions(endpoint_url, keeps_causes=False)
        finally:
            _configure(endpoint_url, executes=False)  # moto keeps one account for all servers of a process
            if before is None:
                del os.environ["MOTO_PORT"]
            else:
                os.environ["MOTO_PORT"] = before


def _configure(endpoint_url: str, *, executes: bool) -> None:
    body = json.dumps({"stepfunctions": {"execute_state_machine": executes}}).encode()
    request = urllib.request.Request(
        f"{endpoint_url}/moto-api/config", data=body, method="POST", headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.status in (200, 201)


@contextmanager
def ministack_workflows(program: Sequence[str] = ("-m", "ministack"), **variables: str) -> Iterator[StepFunctions]:
    """ministack, from its own environment. `program`: what its Python runs."""
    if not MINISTACK.exists():
        pytest.skip("ministack is not installed: make .venv-ministack/.installed (make test does)")
    with aws_environment(), ministack_server(program, **variables) as endpoint_url:
        yield StepFunctions(endpoint_url, keeps_causes=True)
