"""The workflow that keeps dispatchers running is executed, with real dispatchers: on ministack for what replaces an
execution, on moto for heartbeats that stop. Waits are shorter here; the definition is the stack's own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import boto3
import pytest

from dispatcher.demo.stand_ins import free_ports
from dispatcher.records.job_run_log import JobRunStatus
from infra.workflow import WorkflowPlaces, WorkflowTimes, definition
from tests.e2e.conftest import House, Mailroom
from tests.fakes.dispatch_desk import instruction
from tests.infra_runs.tasks import Tasks
from tests.servers import REGION
from tests.waiting import wait_until
from tests.workflows import REPOSITORY, StepFunctions, ministack_workflows, moto_workflows

pytestmark = [pytest.mark.servers, pytest.mark.timeout(900)]

CLUSTER, FAMILY = "lithify-test", "lithify-test-dispatcher"
NODE = REPOSITORY / ".venv-infra" / "bin" / "node"
VALIDATOR = REPOSITORY / ".venv-asl" / "node_modules" / ".bin" / "asl-validator"
HANDOVERS = int(os.environ.get("HANDOVERS", "2"))


def machine(times: WorkflowTimes, dispatchers: int = 2) -> dict[str, Any]:
    places = WorkflowPlaces(CLUSTER, FAMILY, ["subnet-1", "subnet-2"], "sg-1", has_public_addresses=True)
    return definition(places, times, dispatchers)


DEPLOYED = WorkflowTimes(heartbeat=300, restart=30, watch=900, look=10, execution_events_max=15_000)
QUICK = WorkflowTimes(heartbeat=60, restart=1, watch=60, look=1, execution_events_max=15_000)


@pytest.mark.parametrize("dispatchers", [2, 3])
def test_the_definition_is_a_valid_one(tmp_path: Path, dispatchers: int) -> None:
    file = tmp_path / "workflow.json"
    file.write_text(json.dumps(machine(DEPLOYED, dispatchers)))
    checked = subprocess.run([NODE, VALIDATOR, "--json-path", file], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_every_state_has_a_name_of_its_own() -> None:
    names = list(state_names(machine(DEPLOYED)))
    assert len(names) == len(set(names))


def state_names(states: Mapping[str, Any]) -> Iterator[str]:
    for name, state in states["States"].items():
        yield name
        inner = [*state.get("Branches", []), *([state["ItemProcessor"]] if "ItemProcessor" in state else [])]
        for each in inner:
            yield from state_names(each)


# ------------------------------------------------------------------------------------------ continue as new: ministack


@pytest.fixture
def services(tmp_path: Path) -> Iterator[StepFunctions]:
    agent = str(REPOSITORY / "tests" / "infra_runs" / "ministack_agent.py")
    with ministack_workflows((agent,), TASK_HEALTH=str(tmp_path / "health.json")) as found:
        ecs: Any = boto3.client("ecs", endpoint_url=found.endpoint_url, region_name=REGION)
        ecs.create_cluster(clusterName=CLUSTER)
        container = {"name": "dispatcher", "image": "none", "essential": True}
        ecs.register_task_definition(family=FAMILY, containerDefinitions=[container])
        yield found


def await_replaced(services: StepFunctions, execution: str) -> None:
    wait_until(lambda: services.sfn.describe_execution(executionArn=execution)["status"] == "ABORTED", 240)


class Dispatchers:
    """Processes of `lithify dispatch` for tasks, each with a port of its own for probes."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._spark_home = house.small_spark_home()
        self._ports: dict[str, int] = {}

    def start(self, variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
        (port,) = free_ports(1)
        self._ports[variables["LITHIFY_TASK_TOKEN"]] = port
        options = ("--http-port", str(port), "--task-heartbeat-seconds", "6", "--drain-seconds", "10")
        return self._house.start(*options, spark_home=self._spark_home, **variables)  # type: ignore[arg-type]

    def is_healthy(self, variables: Mapping[str, str]) -> bool:
        port = self._ports[variables["LITHIFY_TASK_TOKEN"]]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


def test_an_execution_continues_as_new_with_never_fewer_than_two_dispatchers(
    services: StepFunctions, tmp_path: Path
) -> None:
    """`start` of infra/deploy.py does the same for an update. Instructions arrive all the while."""
    house = House(tmp_path, Mailroom.open(services.endpoint_url))
    house.append([{"order_id": 1, "last_updated": 5}, {"order_id": 1, "last_updated": 7}])
    dispatchers = Dispatchers(house)
    workflow = services.create_state_machine(machine(QUICK), name="lithify-test-dispatchers")
    sent: list[str] = []
    with Tasks(
        services.endpoint_url, CLUSTER, dispatchers.start, dispatchers.is_healthy, tmp_path / "health.json"
    ) as tasks:
        running = services.start(workflow, {})
        wait_until(lambda: sum(tasks.healthy.values()) == 2, 120)
        tasks.counts.clear()
        for number in range(HANDOVERS):
            sent.append(f"run-{number}")
            house.append([{"order_id": 1, "last_updated": 10 + number}])
            house.mailroom.send(instruction(job_run_id=sent[-1], primary_keys=["order_id"]))
            name = running.rpartition(":")[2]
            successor = services.start(workflow, {"replaces": {"execution_arn": running, "name": name}})
            await_replaced(services, running)
            wait_until(lambda: sum(process.poll() is None for process in tasks.processes.values()) == 2, 120)
            running = successor
        wait_until(lambda: all(house.job_run(each).status is JobRunStatus.SUCCEEDED for each in sent), 120)
        newest = {f"{running.rpartition(':')[2]}-{branch}" for branch in (1, 2)}
        wait_until(lambda: {tasks.started_by[task] for task, well in tasks.healthy.items() if well} == newest, 120)
        fewest = min(tasks.counts)
        services.sfn.stop_execution(executionArn=running)
    assert fewest >= 2, tasks.counts
    assert house.rounds() == len(sent)
    assert len(tasks.processes) == 2 * (HANDOVERS + 1)


def test_a_successor_that_does_not_get_healthy_leaves_what_it_was_to_replace_alone(services: StepFunctions) -> None:
    """Its third branch alone: ministack ends an execution only once all of its branches have ended."""
    running = services.start(services.create_state_machine(machine(QUICK)), {"watch": False})
    branch = machine(WorkflowTimes(60, 1, 4, 1, 15_000))["States"]["Run"]["Branches"][-1]
    given = {"replaces": {"execution_arn": running, "name": running.rpartition(":")[2]}}
    ended = services.await_end(services.start(services.create_state_machine(branch), given))
    assert (ended["status"], ended["error"]) == ("FAILED", "Lithify.NotReady")
    assert services.sfn.describe_execution(executionArn=running)["status"] == "RUNNING"
    services.sfn.stop_execution(executionArn=running)


def test_a_long_execution_starts_the_one_that_replaces_it(services: StepFunctions) -> None:
    times = WorkflowTimes(heartbeat=60, restart=1, watch=1, look=600, execution_events_max=2)
    workflow = services.create_state_machine(machine(times))
    first = services.start(workflow, {})
    found: list[str] = []

    def continued() -> bool:
        executions = services.sfn.list_executions(stateMachineArn=workflow)["executions"]
        found[:] = [each["executionArn"] for each in executions if each["executionArn"] != first]
        return bool(found)

    wait_until(continued, 60)
    given = json.loads(services.sfn.describe_execution(executionArn=found[0])["input"])
    assert given["replaces"] == {"execution_arn": first, "name": first.rpartition(":")[2]}
    for each in services.sfn.list_executions(stateMachineArn=workflow, statusFilter="RUNNING")["executions"]:
        services.sfn.stop_execution(executionArn=each["executionArn"])


# ------------------------------------------------------------------------------------------- heartbeats that stop: moto


def on_queue(states: dict[str, Any], queue_url: str) -> dict[str, Any]:
    """The first branch, whose task is told of by a queue: moto has no callbacks of ECS, and no task to be found."""
    branch = json.loads(json.dumps(states["States"]["Run"]["Branches"][0]))
    dispatch = branch["States"]["Dispatch1"]
    dispatch["Resource"] = "arn:aws:states:::sqs:sendMessage.waitForTaskToken"
    body = {"LITHIFY_TASK_TOKEN.$": "$$.Task.Token", "LITHIFY_EXECUTION_ARN.$": "$$.Execution.Id"}
    dispatch["Parameters"] = {"QueueUrl": queue_url, "MessageBody": body}
    branch["States"]["FindTasks1"] = {
        "Type": "Pass",
        "Result": {"TaskArns": []},
        "ResultPath": "$.tasks",
        "Next": "FindTasks1ToStop",
    }
    found: dict[str, Any] = branch
    return found


def test_a_dispatcher_that_stops_beating_is_replaced(tmp_path: Path) -> None:
    heartbeat_seconds = 6
    times = WorkflowTimes(heartbeat_seconds, restart=30, watch=60, look=1, execution_events_max=15_000)
    with moto_workflows() as services:
        house = House(tmp_path, Mailroom.open(services.endpoint_url))
        queue_url = services.create_queue()
        services.start(services.create_state_machine(on_queue(machine(times), queue_url)), {})
        dispatchers = Dispatchers(house)
        variables = services.receive(queue_url)
        process = dispatchers.start(variables)
        try:
            wait_until(lambda: dispatchers.is_healthy(variables), 60)
            process.send_signal(signal.SIGSTOP)
            stopped_at = services.clock.monotonic_seconds()
            replaced = services.receive(queue_url)
            seconds = services.clock.monotonic_seconds() - stopped_at
            assert replaced["LITHIFY_TASK_TOKEN"] != variables["LITHIFY_TASK_TOKEN"]
            assert seconds <= heartbeat_seconds + 10
        finally:
            process.kill()
            process.wait()
