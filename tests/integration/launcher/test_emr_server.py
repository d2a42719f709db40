"""The fake EMR behaves as the service does, as far as Lithify counts on it; asked through boto3."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, ConnectionClosedError, EndpointConnectionError

from tests.fakes.emr_account import (
    BOOTSTRAP_FAILED,
    NO_CAPACITY,
    SPOT_LOST,
    EmrAccount,
    Mishap,
    Timings,
)
from tests.fakes.emr_server import AnswerLost, Away, EmrServer, Throttled, emr_server
from tests.fakes.emr_serverless_account import ServerlessAccount
from tests.fakes.emr_steps import ScriptedSteps
from tests.fakes.manual_clock import ManualClock
from tests.servers import REGION, aws_environment

pytestmark = pytest.mark.servers

ONCE = Config(retries={"total_max_attempts": 1})


@dataclass
class Service:
    server: EmrServer
    clock: ManualClock
    steps: ScriptedSteps
    emr: Any
    serverless: Any

    def state_of(self, cluster_id: str) -> tuple[str, str]:
        status = self.emr.describe_cluster(ClusterId=cluster_id)["Cluster"]["Status"]
        return status["State"], status["StateChangeReason"].get("Code", "")

    def states_until_the_end(self, cluster_id: str) -> list[str]:
        states: list[str] = []
        while not states or not states[-1].startswith("TERMINATED"):
            state, _ = self.state_of(cluster_id)
            if not states or states[-1] != state:
                states.append(state)
            self.clock.sleep(5)
        return states


@pytest.fixture(scope="module")
def empty_service() -> Iterator[Service]:
    clock, steps = ManualClock(), ScriptedSteps()
    with aws_environment(), emr_server(EmrAccount(clock, steps), ServerlessAccount(clock, steps)) as server:
        clients = {
            name: boto3.client(name, endpoint_url=server.url, region_name=REGION, config=ONCE)
            for name in ("emr", "emr-serverless")
        }
        yield Service(server, clock, steps, clients["emr"], clients["emr-serverless"])


@pytest.fixture
def service(empty_service: Service) -> Service:
    clock, steps = ManualClock(), ScriptedSteps()
    empty_service.server.reset(EmrAccount(clock, steps, Timings()), ServerlessAccount(clock, steps))
    return replace(empty_service, clock=clock, steps=steps)


def job_flow(**changes: object) -> dict[str, Any]:
    group = {"InstanceRole": "MASTER", "InstanceType": "m6g.xlarge", "InstanceCount": 1, "Market": "ON_DEMAND"}
    step = {
        "Name": "a step",
        "ActionOnFailure": "TERMINATE_CLUSTER",
        "HadoopJarStep": {"Jar": "command-runner.jar", "Args": ["spark-submit", "s3://lake/main.py"]},
    }
    request: dict[str, Any] = {
        "Name": "a cluster",
        "ReleaseLabel": "emr-7.13.0",
        "Applications": [{"Name": "Spark"}],
        "Instances": {"InstanceGroups": [group], "KeepJobFlowAliveWhenNoSteps": False},
        "ServiceRole": "emr-service",
        "JobFlowRole": "emr-nodes",
        "Steps": [step],
    }
    return request | changes


def test_a_cluster_goes_through_its_states_and_ends_with_its_step(service: Service) -> None:
    cluster_id = service.emr.run_job_flow(**job_flow())["JobFlowId"]
    service.clock.sleep(181)
    assert service.state_of(cluster_id) == ("RUNNING", "")
    ((command, step),) = service.steps.started
    assert command == ("spark-submit", "s3://lake/main.py")
    step.exit_code = 0
    assert service.state_of(cluster_id) == ("TERMINATING", "ALL_STEPS_COMPLETED")
    service.clock.sleep(30)
    assert service.state_of(cluster_id) == ("TERMINATED", "ALL_STEPS_COMPLETED")
    (described,) = service.emr.list_steps(ClusterId=cluster_id)["Steps"]
    assert described["Status"]["State"] == "COMPLETED"


def test_a_step_that_fails_ends_its_cluster_with_errors(service: Service) -> None:
    service.steps.ends_with = 1
    cluster_id = service.emr.run_job_flow(**job_flow())["JobFlowId"]
    assert service.states_until_the_end(cluster_id) == [
        *("STARTING", "BOOTSTRAPPING", "TERMINATING", "TERMINATED_WITH_ERRORS")
    ]
    assert service.state_of(cluster_id)[1] == "STEP_FAILURE"
    (step,) = service.emr.list_steps(ClusterId=cluster_id)["Steps"]
    assert step["Status"]["State"] == "FAILED"
    assert "exit code 1" in step["Status"]["FailureDetails"]["Message"]


@pytest.mark.parametrize("mishap", [NO_CAPACITY, BOOTSTRAP_FAILED, SPOT_LOST], ids=lambda mishap: mishap.code)
def test_the_reason_of_a_clusters_end_is_reported(service: Service, mishap: Mishap) -> None:
    service.server.emr.mishaps.append(mishap)
    cluster_id = service.emr.run_job_flow(**job_flow())["JobFlowId"]
    assert service.states_until_the_end(cluster_id)[-1] == "TERMINATED_WITH_ERRORS"
    status = service.emr.describe_cluster(ClusterId=cluster_id)["Cluster"]["Status"]
    assert status["StateChangeReason"] == {"Code": mishap.code, "Message": mishap.message}
    assert [each["ErrorCode"] for each in status["ErrorDetails"]] == list(mishap.details)
    assert all(step.stopped for _, step in service.steps.started)


def test_a_cluster_that_is_terminated_interrupts_its_step(service: Service) -> None:
    cluster_id = service.emr.run_job_flow(**job_flow())["JobFlowId"]
    service.clock.sleep(200)
    service.state_of(cluster_id)
    service.emr.terminate_job_flows(JobFlowIds=[cluster_id])
    service.emr.terminate_job_flows(JobFlowIds=[cluster_id])
    service.clock.sleep(30)
    assert service.state_of(cluster_id) == ("TERMINATED", "USER_REQUEST")
    (step,) = service.emr.list_steps(ClusterId=cluster_id)["Steps"]
    assert step["Status"]["State"] == "INTERRUPTED"


def test_a_cluster_that_is_kept_waits_for_steps_and_ends_when_it_was_idle_for_long(service: Service) -> None:
    instances = job_flow()["Instances"] | {"KeepJobFlowAliveWhenNoSteps": True}
    request = job_flow(Instances=instances, AutoTerminationPolicy={"IdleTimeout": 600}, Steps=[])
    cluster_id = service.emr.run_job_flow(**request)["JobFlowId"]
    service.clock.sleep(181)
    assert service.state_of(cluster_id)[0] == "WAITING"
    service.emr.add_job_flow_steps(JobFlowId=cluster_id, Steps=job_flow()["Steps"])
    assert service.state_of(cluster_id)[0] == "RUNNING"
    service.steps.started[0][1].exit_code = 0
    assert service.state_of(cluster_id)[0] == "WAITING"
    service.clock.sleep(601)
    assert service.state_of(cluster_id)[0] == "TERMINATING"


def test_lists_of_clusters_come_in_pages_and_without_tags(service: Service) -> None:
    for number in range(60):
        service.emr.run_job_flow(**job_flow(Name=f"cluster {number}", Tags=[{"Key": "a", "Value": "b"}]))
    pages = list(service.emr.get_paginator("list_clusters").paginate(ClusterStates=["STARTING"]))
    assert [len(page["Clusters"]) for page in pages] == [50, 10]
    assert "Tags" not in pages[0]["Clusters"][0]
    cluster_id = pages[0]["Clusters"][0]["Id"]
    assert service.emr.describe_cluster(ClusterId=cluster_id)["Cluster"]["Tags"] == [{"Key": "a", "Value": "b"}]
    assert service.emr.list_clusters(ClusterStates=["RUNNING"])["Clusters"] == []


LIMITS_UPSIDE_DOWN = {"UnitType": "Instances", "MinimumCapacityUnits": 3, "MaximumCapacityUnits": 2}


@pytest.mark.parametrize(
    "changes",
    [
        {"ReleaseLabel": "emr-seven"},
        {"ServiceRole": ""},
        {"Applications": []},
        {"AutoTerminationPolicy": {"IdleTimeout": 5}},
        {"Tags": [{"Key": "a", "Value": "é#"}]},
        {"Instances": {"InstanceGroups": []}},
        {"Name": "x" * 257},
        {"ScaleDownBehavior": "AT_ONCE"},
        {"ManagedScalingPolicy": {"ComputeLimits": LIMITS_UPSIDE_DOWN}},
    ],
    ids=["release", "role", "application", "idle", "tag", "groups", "name", "enum", "limits"],
)
def test_values_that_the_service_does_not_accept_are_refused(service: Service, changes: dict[str, object]) -> None:
    with pytest.raises(ClientError, match="ValidationException"):
        service.emr.run_job_flow(**job_flow(**changes))
    assert service.server.emr.clusters == {}


def test_the_way_to_the_service_fails_on_demand(service: Service) -> None:
    service.server.faults += [Throttled("RunJobFlow"), Away("RunJobFlow"), AnswerLost("RunJobFlow")]
    with pytest.raises(ClientError, match="ThrottlingException"):
        service.emr.run_job_flow(**job_flow())
    for clusters in (0, 1):
        with pytest.raises((ConnectionClosedError, EndpointConnectionError)):
            service.emr.run_job_flow(**job_flow())
        assert len(service.server.emr.clusters) == clusters
    service.emr.run_job_flow(**job_flow())
    assert len(service.server.emr.clusters) == 2


APPLICATION = "00abcdefgh123456"


def job_run(**changes: object) -> dict[str, Any]:
    request: dict[str, Any] = {
        "applicationId": APPLICATION,
        "clientToken": "one",
        "executionRoleArn": "arn:aws:iam::123456789012:role/emr-jobs",
        "jobDriver": {
            "sparkSubmit": {
                "entryPoint": "s3://lake/main.py",
                "entryPointArguments": ["--attempt", "1"],
                "sparkSubmitParameters": "--conf spark.a=1 --conf 'spark.b=two words'",
            }
        },
    }
    return request | changes


def test_a_serverless_job_run_goes_through_its_states(service: Service) -> None:
    started = service.serverless.start_job_run(**job_run())
    states = []
    for _ in range(4):
        states.append(service.serverless.get_job_run(applicationId=APPLICATION, jobRunId=started["jobRunId"])["jobRun"])
        service.clock.sleep(10)
    assert [each["state"] for each in states] == ["SUBMITTED", "PENDING", "SCHEDULED", "RUNNING"]
    ((command, step),) = service.steps.started
    assert command == (
        *("spark-submit", "--conf", "spark.a=1", "--conf", "spark.b=two words"),
        *("s3://lake/main.py", "--attempt", "1"),
    )
    step.exit_code = 0
    found = service.serverless.get_job_run(applicationId=APPLICATION, jobRunId=started["jobRunId"])["jobRun"]
    assert found["state"] == "SUCCESS"


def test_a_serverless_job_run_is_started_once_with_a_token(service: Service) -> None:
    first = service.serverless.start_job_run(**job_run())
    assert service.serverless.start_job_run(**job_run())["jobRunId"] == first["jobRunId"]
    with pytest.raises(ClientError, match="ConflictException"):
        service.serverless.start_job_run(**job_run(name="another"))
    second = service.serverless.start_job_run(**job_run(clientToken="two"))
    assert second["jobRunId"] != first["jobRunId"]
    listed = service.serverless.list_job_runs(applicationId=APPLICATION, states=["SUBMITTED"])["jobRuns"]
    assert [each["id"] for each in listed] == [second["jobRunId"], first["jobRunId"]]


def test_a_serverless_job_run_is_cancelled(service: Service) -> None:
    run_id = service.serverless.start_job_run(**job_run())["jobRunId"]
    service.serverless.cancel_job_run(applicationId=APPLICATION, jobRunId=run_id)
    service.clock.sleep(10)
    found = service.serverless.get_job_run(applicationId=APPLICATION, jobRunId=run_id)["jobRun"]
    assert found["state"] == "CANCELLED"
    with pytest.raises(ClientError, match="ValidationException"):
        service.serverless.cancel_job_run(applicationId=APPLICATION, jobRunId=run_id)
