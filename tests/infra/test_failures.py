"""What is said of a stack that could not be changed: the cause, not the resources that were cancelled for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber

from compactor.model.clock import SystemClock
from compactor.model.errors import Unavailable
from infra.aws.deployment import ChangePlan, StackInAccount

NAME = "Lithify-dev"
AT = datetime(2026, 11, 1, tzinfo=UTC)
CANCELLED = ("Lakes", "AWS::S3::Bucket", "CREATE_FAILED", "Resource creation cancelled")
CAUSE = ("Queue", "AWS::SQS::Queue", "CREATE_FAILED", "a queue of this name was deleted less than 60 seconds ago")
SUMMED_UP = (NAME, "AWS::CloudFormation::Stack", "ROLLBACK_IN_PROGRESS", "The following resource(s) failed: [Queue]")
BEGUN = (NAME, "AWS::CloudFormation::Stack", "CREATE_IN_PROGRESS", "User Initiated")


@pytest.fixture
def cloudformation() -> Iterator[tuple[Any, Stubber]]:
    """A client whose answers, of CloudFormation's own form, the test gives."""
    client: Any = boto3.client(
        "cloudformation", region_name="us-east-1", aws_access_key_id="none", aws_secret_access_key="none"
    )
    with Stubber(client) as answers:
        yield client, answers


def failure(cloudformation: tuple[Any, Stubber], pages: Sequence[Sequence[tuple[str, str, str, str]]]) -> str:
    """The message of an execution that ends in ROLLBACK_COMPLETE, with these events, the newest first."""
    client, answers = cloudformation
    answers.add_response("execute_change_set", {})
    stack = {"StackName": NAME, "CreationTime": AT, "StackStatus": "ROLLBACK_COMPLETE"}
    answers.add_response("describe_stacks", {"Stacks": [stack]})
    for number, page in enumerate(pages, start=1):
        events = [
            {
                "StackId": NAME,
                "EventId": str(position),
                "StackName": NAME,
                "Timestamp": AT,
                "LogicalResourceId": name,
                "ResourceType": kind,
                "ResourceStatus": status,
                "ResourceStatusReason": reason,
            }
            for position, (name, kind, status, reason) in enumerate(page)
        ]
        more = {"NextToken": str(number)} if number < len(pages) else {}
        answers.add_response("describe_stack_events", {"StackEvents": events, **more})
    stack_in_account = StackInAccount(NAME, lambda _: client, SystemClock(), poll_seconds=0.0)
    with pytest.raises(Unavailable) as failed:
        stack_in_account.execute(ChangePlan("change"))
    answers.assert_no_pending_responses()
    return str(failed.value)


def test_the_first_resource_that_failed_is_named_with_its_reason(cloudformation: tuple[Any, Stubber]) -> None:
    """On the last page, below the newer failures that followed from it."""
    reason = failure(cloudformation, [[SUMMED_UP, CANCELLED], [CAUSE, BEGUN]])
    assert reason == f"stack {NAME} is ROLLBACK_COMPLETE: Queue (AWS::SQS::Queue): {CAUSE[-1]}"


def test_of_two_causes_the_older_one_is_named(cloudformation: tuple[Any, Stubber]) -> None:
    later = ("Topic", "AWS::SNS::Topic", "CREATE_FAILED", "limit exceeded")
    assert "Queue (AWS::SQS::Queue)" in failure(cloudformation, [[SUMMED_UP, later, CANCELLED, CAUSE, BEGUN]])


def test_a_failure_of_an_earlier_operation_is_not_named(cloudformation: tuple[Any, Stubber]) -> None:
    """CloudFormation answers the events of all operations of the last 90 days."""
    earlier = ("Topic", "AWS::SNS::Topic", "CREATE_FAILED", "limit exceeded")
    updating = (NAME, "AWS::CloudFormation::Stack", "UPDATE_IN_PROGRESS", "User Initiated")
    reason = failure(cloudformation, [[SUMMED_UP, CAUSE, updating, earlier, BEGUN]])
    assert reason.endswith(f"Queue (AWS::SQS::Queue): {CAUSE[-1]}")


def test_without_a_cause_among_the_events_that_is_said(cloudformation: tuple[Any, Stubber]) -> None:
    reason = failure(cloudformation, [[SUMMED_UP, BEGUN]])
    assert reason == f"stack {NAME} is ROLLBACK_COMPLETE: no event says why"


def test_events_that_cannot_be_read_do_not_hide_the_failure(cloudformation: tuple[Any, Stubber]) -> None:
    _, answers = cloudformation
    answers.add_response("execute_change_set", {})
    stack = {"StackName": NAME, "CreationTime": AT, "StackStatus": "UPDATE_ROLLBACK_COMPLETE"}
    answers.add_response("describe_stacks", {"Stacks": [stack]})
    answers.add_client_error("describe_stack_events", "AccessDenied", http_status_code=403)
    client, _ = cloudformation
    with pytest.raises(Unavailable, match="is UPDATE_ROLLBACK_COMPLETE: its events cannot be read"):
        StackInAccount(NAME, lambda _: client, SystemClock(), poll_seconds=0.0).execute(ChangePlan("change"))


def test_a_service_starts_no_task_anew_while_everything_is_stopped() -> None:
    clients = {
        name: boto3.client(name, region_name="us-east-1", aws_access_key_id="none", aws_secret_access_key="none")
        for name in ("stepfunctions", "ecs", "cloudformation")
    }
    here = "arn:aws:ecs:us-east-1:123456789012"
    service, task = f"{here}:service/lithify-dev/Ingest", f"{here}:task/lithify-dev/one"
    with Stubber(clients["stepfunctions"]) as workflows, Stubber(clients["ecs"]) as containers:
        workflows.add_response("list_executions", {"executions": []})
        containers.add_response("list_services", {"serviceArns": [service]})
        none = {"cluster": "lithify-dev", "service": service, "desiredCount": 0}
        containers.add_response("update_service", {}, none)
        containers.add_response("list_tasks", {"taskArns": [task]})
        stopped = {"cluster": "lithify-dev", "task": task, "reason": "the stack is deleted"}
        containers.add_response("stop_task", {}, stopped)
        containers.add_response("list_tasks", {"taskArns": []})
        stack = StackInAccount(NAME, clients.__getitem__, SystemClock(), poll_seconds=0.0)
        assert stack.stop_everything("arn:aws:states:us-east-1:123456789012:stateMachine:w", "lithify-dev") == 1
        containers.assert_no_pending_responses()
