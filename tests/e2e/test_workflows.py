"""Real executions of workflows that wait: the documentation's state machines, on the stand-ins of Step Functions."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compactor.model.clock import SystemClock
from dispatcher.aws.step_functions import StepFunctionsCallbacks
from dispatcher.demo.stand_ins import free_ports
from dispatcher.records.job_run_log import JobRunStatus
from dispatcher.workflow.callbacks import Reception
from dispatcher.workflow.dispatcher_task import DispatcherTask, EndOfTask, TaskSettings
from tests.e2e.conftest import House, Mailroom, ask_to_stop
from tests.e2e.test_drain import spark_jobs
from tests.e2e.test_snippets import BLOCKS
from tests.fakes.dispatch_desk import TABLE, instruction
from tests.fakes.small_cluster import Crashes, Succeeds
from tests.servers import REGION
from tests.waiting import wait_until
from tests.workflows import WAITS, StepFunctions, ministack_workflows, moto_workflows

pytestmark = pytest.mark.servers

QUEUE_OF_THE_PAGE = "https://sqs.us-east-1.amazonaws.com/123456789012/instructions"


@pytest.fixture(scope="module")
def moto_services() -> Iterator[StepFunctions]:
    with moto_workflows() as services:
        yield services


@pytest.fixture(scope="module")
def ministack_services() -> Iterator[StepFunctions]:
    with ministack_workflows() as services:
        yield services


@pytest.fixture(params=["moto_services", "ministack_services"])
def services(request: pytest.FixtureRequest) -> StepFunctions:
    found: StepFunctions = request.getfixturevalue(request.param)
    return found


def house_at(services: StepFunctions, folder: Path) -> House:
    house = House(folder, Mailroom.open(services.endpoint_url))
    house.append([{"order_id": 1, "last_updated": 5}, {"order_id": 1, "last_updated": 7}])
    return house


def readmes_workflow(house: House, heartbeat_seconds: int = 1_800) -> dict[str, Any]:
    """The documentation's, on this queue, which waits no longer than said for a heartbeat."""
    text = BLOCKS["workflow"].replace(QUEUE_OF_THE_PAGE, house.mailroom.queue_url)
    return dict(json.loads(text.replace("1800", str(heartbeat_seconds))))


class Running:
    """A dispatcher in threads of this process, until the block ends."""

    def __init__(self, house: House) -> None:
        self._stops = threading.Event()
        run = house.dispatcher(until_idle=False, drain_seconds=0)
        self._thread = threading.Thread(target=run, args=(self._stops,))

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stops.set()
        self._thread.join()


def test_the_workflow_waits_for_its_job_run_and_gets_the_result(services: StepFunctions, tmp_path: Path) -> None:
    house = house_at(services, tmp_path)
    machine = services.create_state_machine(readmes_workflow(house))
    with Running(house):
        execution = services.start(machine, {"night": 1})
        ended = services.await_end(execution)
    assert ended["status"] == "SUCCEEDED"
    output = json.loads(ended["output"])
    assert output["night"] == 1
    result = output["compaction"]
    assert (result["status"], result["table"], result["rows_in"], result["rows_out"]) == ("succeeded", TABLE, 2, 1)
    assert result["job_run_id"] == execution.rpartition(":")[2]
    assert [entry.key for entry in house.state.list("task_tokens/")] == []


def test_the_workflow_learns_that_its_job_run_failed(services: StepFunctions, tmp_path: Path) -> None:
    house = house_at(services, tmp_path)
    house.cluster.behaves = lambda _: Crashes(exit_code=7)
    machine = services.create_state_machine(readmes_workflow(house))
    with Running(house):
        ended = services.await_end(services.start(machine, {}))
    assert (ended["status"], ended["error"]) == ("FAILED", "Lithify.JobRunFailed")
    if services.keeps_causes:
        assert "exited with code 7" in str(json.loads(ended["cause"])["reasons"])


def test_a_missed_heartbeat_is_tried_again_and_waits_for_the_same_job_run(
    moto_services: StepFunctions, tmp_path: Path
) -> None:
    """Its first session hangs, so no heartbeat is sent. moto's time-out is `States.Timeout`."""
    house = house_at(moto_services, tmp_path)
    held = threading.Event()
    house.cluster.behaves = lambda _: Succeeds(held)
    machine = moto_services.create_state_machine(readmes_workflow(house, heartbeat_seconds=2))
    with Running(house):
        execution = moto_services.start(machine, {})
        job_run_id = execution.rpartition(":")[2]
        wait_until(lambda: len(house.job_run(job_run_id).waiters) == 2, 60)
        held.set()
        ended = moto_services.await_end(execution)
    assert ended["status"] == "SUCCEEDED"
    assert house.job_run(job_run_id).status is JobRunStatus.SUCCEEDED
    assert house.rounds() == 1


def dispatcher_workflow(queue_url: str, heartbeat_seconds: int) -> dict[str, Any]:
    """The page's workflow of a dispatcher. Its container is this test: it gets token and execution from a queue."""
    definition: dict[str, Any] = json.loads(BLOCKS["dispatcher_workflow"])
    dispatch = definition["States"]["Dispatch"]
    (container,) = dispatch["Parameters"]["Overrides"]["ContainerOverrides"]
    variables = {each["Name"]: each["Value.$"] for each in container["Environment"]}
    assert variables == {"LITHIFY_TASK_TOKEN": "$$.Task.Token", "LITHIFY_EXECUTION_ARN": "$$.Execution.Id"}
    body = {"task_token.$": "$$.Task.Token", "execution_arn.$": "$$.Execution.Id"}
    dispatch |= {
        "Resource": WAITS["States"]["Wait"]["Resource"],
        "HeartbeatSeconds": heartbeat_seconds,
        "Parameters": {"QueueUrl": queue_url, "MessageBody": body},
    }
    dispatch["Retry"][0] |= {"IntervalSeconds": 1}
    return definition


class CountedBeats(StepFunctionsCallbacks):
    """Counts heartbeats that were taken."""

    beats = 0

    def send_heartbeat(self, task_token: str) -> Reception:
        taken = super().send_heartbeat(task_token)
        self.beats += taken is Reception.TAKEN
        return taken


def task_of(given: dict[str, Any], callbacks: StepFunctionsCallbacks, settings: TaskSettings) -> DispatcherTask:
    token, execution_arn = given["task_token"], given["execution_arn"]
    return DispatcherTask(token, execution_arn, callbacks, callbacks, settings, SystemClock())


def test_a_dispatcher_that_is_a_task_ends_before_its_execution_is_long_and_the_next_execution_begins(
    ministack_services: StepFunctions, tmp_path: Path
) -> None:
    services = ministack_services
    house, queue_url = house_at(services, tmp_path), services.create_queue()
    machine = services.create_state_machine(dispatcher_workflow(queue_url, 60))
    first = services.start(machine, {})
    given = services.receive(queue_url)
    assert given["execution_arn"] == first
    # Any history has more than one event: the dispatcher ends as soon as it has looked.
    callbacks = StepFunctionsCallbacks.open(endpoint_url=services.endpoint_url, region=REGION)
    task = task_of(given, callbacks, TaskSettings(round_seconds=0.02, events_max=1))
    house.dispatcher(until_idle=False, task=task)(threading.Event())
    assert task.succeed(EndOfTask.STOPPED, "first", ())
    ended = services.await_end(first)
    assert ended["status"] == "SUCCEEDED"
    following = services.receive(queue_url)
    assert following["execution_arn"] != first
    assert following["task_token"] != given["task_token"]
    services.sfn.stop_execution(executionArn=following["execution_arn"])


def probe(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


def test_lithify_dispatch_is_a_task_and_is_probed_and_stops_when_it_is_told_to(
    moto_services: StepFunctions, tmp_path: Path
) -> None:
    """The real command, with the token in its environment: no child process of it and no log line gets it."""
    services = moto_services
    house, queue_url = house_at(services, tmp_path), services.create_queue()
    definition = dispatcher_workflow(queue_url, 60)
    definition["States"]["ContinueAsNew"] = {"Type": "Succeed"}  # moto starts no execution from an execution
    execution = services.start(services.create_state_machine(definition), {})
    given = services.receive(queue_url)
    (port,) = free_ports(1)
    hold = tmp_path / "hold"
    hold.touch()
    house.mailroom.send(instruction(job_run_id="run", primary_keys=["order_id"]))
    process = house.start(
        *("--http-port", str(port), "--metrics-namespace", "Lithify", "--drain-seconds", "30"),
        spark_home=house.small_spark_home(),
        hold=hold,
        LITHIFY_TASK_TOKEN=given["task_token"],
        LITHIFY_EXECUTION_ARN=given["execution_arn"],
    )
    try:
        wait_until(lambda: probe(port, "/ready")[0] == 200, 60)
        assert probe(port, "/live")[0] == 200
        wait_until(lambda: "lithify_sessions_running 1.0" in probe(port, "/metrics")[1], 60)
        wait_until(lambda: bool(spark_jobs(house)), 60)
        assert not any("LITHIFY_TASK_TOKEN" in job.environ() for job in spark_jobs(house))
        hold.unlink()
        wait_until(lambda: house.job_run("run").status is JobRunStatus.SUCCEEDED, 60)
        wait_until(lambda: 'lithify_job_runs_ended_total{status="succeeded"} 1.0' in probe(port, "/metrics")[1], 60)
    finally:
        hold.unlink(missing_ok=True)
        ask_to_stop(process)
    assert process.wait(60) == 0, house.log()
    ended = services.await_end(execution)
    assert ended["status"] == "SUCCEEDED"
    assert json.loads(ended["output"])["dispatcher"]["reason"] == "stopped"
    assert given["task_token"] not in house.log()
    lines = [json.loads(line) for line in house.log().splitlines() if line.startswith('{"_aws"')]
    assert sum(line.get("JobRunsEnded", 0) for line in lines) == 1


def test_a_dispatcher_that_cannot_work_says_so_to_its_workflow(moto_services: StepFunctions, tmp_path: Path) -> None:
    services = moto_services
    house, queue_url = house_at(services, tmp_path), services.create_queue()
    definition = dispatcher_workflow(queue_url, 60)
    del definition["States"]["Dispatch"]["Retry"]
    execution = services.start(services.create_state_machine(definition), {})
    token = tmp_path / "token"
    token.write_text(services.receive(queue_url)["task_token"] + "\n")
    process = house.start("--task-token-file", str(token), LITHIFY_QUEUE_URL=f"{house.mailroom.queue_url}-missing")
    assert process.wait(60) == 2, house.log()
    ended = services.await_end(execution)
    assert (ended["status"], ended["error"]) == ("FAILED", "Lithify.DispatcherFailed")


def test_a_dispatcher_that_is_a_task_outlives_the_heartbeat_time_out_while_it_turns(
    moto_services: StepFunctions, tmp_path: Path
) -> None:
    services = moto_services
    house, queue_url = house_at(services, tmp_path), services.create_queue()
    definition = dispatcher_workflow(queue_url, 3)
    definition["States"]["ContinueAsNew"] = {"Type": "Succeed"}  # moto starts no execution from an execution
    execution = services.start(services.create_state_machine(definition), {})
    counted = CountedBeats.open(endpoint_url=services.endpoint_url, region=REGION)
    task = task_of(services.receive(queue_url), counted, TaskSettings(heartbeat_seconds=3, round_seconds=0.1))
    stops = threading.Event()
    dispatching = threading.Thread(target=house.dispatcher(until_idle=False, task=task), args=(stops,))
    dispatching.start()
    wait_until(lambda: counted.beats >= 6, 60)  # twice the time-out
    assert services.sfn.describe_execution(executionArn=execution)["status"] == "RUNNING"
    stops.set()
    dispatching.join()
    assert task.succeed(EndOfTask.STOPPED, "first", ())
    ended = services.await_end(execution)
    assert ended["status"] == "SUCCEEDED"
    assert json.loads(ended["output"])["dispatcher"]["reason"] == "stopped"
