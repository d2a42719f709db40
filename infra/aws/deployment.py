"""A stack in an account: planned as a change set, changed, started, deleted. Translates boto3's errors."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import boto3
from botocore.exceptions import ClientError

from compactor.model.clock import Clock
from compactor.model.errors import Invalid, LithifyError, Unavailable
from compactor.storage.aws.failures import translated

BODY_BYTES_MAX = 51_200
"""Bytes of a template in a request, at most; a larger one is read from S3."""

POLL_SECONDS = 5.0
PLAN_SECONDS_MAX = 300.0
CHANGE_SECONDS_MAX = 3_600.0
_CAPABILITIES = ["CAPABILITY_IAM"]
_REVISED = frozenset({"AWS::ECS::TaskDefinition"})
"""Kinds of resources of which a replaced one is another revision: what runs goes on with its own."""

_NOTHING_CHANGES = ("didn't contain changes", "No updates are to be performed")
_STACK = "AWS::CloudFormation::Stack"
_BEGINNINGS = ("CREATE_IN_PROGRESS", "UPDATE_IN_PROGRESS", "DELETE_IN_PROGRESS")
"""The statuses that begin an operation, in the events of the stack itself."""

_CONSEQUENCES = ("cancelled", "Resource creation cancelled", "The following resource(s) failed")


@dataclass(frozen=True)
class Change:
    """`action`: Add, Modify or Remove. `replaces`: the existing resource is deleted and a new one created."""

    action: str
    logical_id: str
    resource_type: str
    replaces: bool

    @property
    def destroys(self) -> bool:
        return (self.action == "Remove" or self.replaces) and self.resource_type not in _REVISED

    def __str__(self) -> str:
        how = "Replace" if self.replaces else self.action
        return f"{how:8} {self.resource_type:40} {self.logical_id}"


@dataclass(frozen=True)
class ChangePlan:
    """`change_set_id` None: nothing changes."""

    change_set_id: str | None
    changes: tuple[Change, ...] = ()


OpenClient: TypeAlias = Callable[[str], Any]
"""Opens the client of a service, by its name."""


def clients(region: str, endpoint_url: str | None) -> OpenClient:
    session = boto3.session.Session()

    def open_client(service: str) -> Any:  # noqa: ANN401  (of several services)
        return session.client(service, region_name=region, endpoint_url=endpoint_url)  # type: ignore[call-overload]

    return open_client


class StackInAccount:
    """One stack, by its name."""

    def __init__(self, name: str, open_client: OpenClient, clock: Clock, poll_seconds: float = POLL_SECONDS) -> None:
        self.name = name
        self._open = open_client
        self._cloudformation = open_client("cloudformation")
        self._clock = clock
        self._poll_seconds = poll_seconds

    def account(self) -> str:
        """The account of the credentials."""
        with translated("AWS does not say whose credentials these are"):
            found: str = self._open("sts").get_caller_identity()["Account"]
        return found

    # -- changes

    def plan(self, template: str) -> ChangePlan:
        """The changes, as a change set. Changes nothing, except that the stack's name is reserved."""
        kind = "UPDATE" if self._status() not in (None, "REVIEW_IN_PROGRESS") else "CREATE"
        with translated(f"stack {self.name} cannot be planned"), self._placed(template) as place:
            change_set: str = self._cloudformation.create_change_set(
                StackName=self.name,
                ChangeSetName=f"change-{self._clock.new_id()}",
                ChangeSetType=kind,
                Capabilities=_CAPABILITIES,
                **place,
            )["Id"]
            found = self._await(
                lambda: self._cloudformation.describe_change_set(ChangeSetName=change_set), PLAN_SECONDS_MAX
            )
        if found["Status"] == "FAILED":
            reason = found.get("StatusReason", "")
            if any(each in reason for each in _NOTHING_CHANGES):
                return ChangePlan(None)
            raise Invalid(f"CloudFormation does not take the template: {reason}")
        return ChangePlan(change_set, tuple(self._changes(change_set)))

    def execute(self, plan: ChangePlan) -> Mapping[str, str]:
        """Makes the changes; returns the outputs. Raises `Unavailable` with the reason of the first failed resource."""
        if plan.change_set_id is not None:
            with translated(f"stack {self.name} cannot be changed"):
                self._cloudformation.execute_change_set(ChangeSetName=plan.change_set_id)
            status = self._await_stack()
            if not status.endswith(("CREATE_COMPLETE", "UPDATE_COMPLETE")) or "ROLLBACK" in status:
                raise Unavailable(f"stack {self.name} is {status}: {self._first_failure()}")
        return self.outputs()

    def outputs(self) -> Mapping[str, str]:
        """The stack's outputs. Raises `Invalid` if there is no such stack."""
        found = self._description()
        if found is None:
            raise Invalid(f"there is no stack {self.name} here: deploy it first")
        return {each["OutputKey"]: each["OutputValue"] for each in found.get("Outputs", [])}

    def delete(self) -> None:
        """Deletes the stack and waits. Raises `Unavailable` with the reason if a resource cannot be deleted."""
        with translated(f"stack {self.name} cannot be deleted"):
            stack_id = (self._description() or {}).get("StackId", self.name)
            self._cloudformation.delete_stack(StackName=self.name)
        status = self._await_stack(stack_id)
        if status not in ("DELETE_COMPLETE", ""):
            raise Unavailable(f"stack {self.name} is {status}: {self._first_failure()}")

    # -- executions and tasks

    def start_workflow(self, workflow: str) -> str:
        """Starts an execution, which replaces the running one, if any; returns its ARN. The running one continues until
        the new dispatchers are healthy. Raises `Invalid` if several run: a replacement is in progress."""
        workflows = self._open("stepfunctions")
        with translated("the workflow cannot be started"):
            running = self._running(workflow)
            if len(running) > 1:
                raise Invalid(f"{len(running)} executions of the workflow run, one in place of another: wait for it")
            given: dict[str, object] = {}
            for each in running:
                given["replaces"] = {"execution_arn": each["executionArn"], "name": each["name"]}
            started: str = workflows.start_execution(
                stateMachineArn=workflow, name=self._clock.new_id(), input=json.dumps(given)
            )["executionArn"]
        return started

    def stop_everything(self, workflow: str, cluster: str) -> int:
        """Ends executions and tasks, waits until no task runs, and returns how many ran."""
        workflows, containers = self._open("stepfunctions"), self._open("ecs")
        stopped: set[str] = set()
        with translated("what runs cannot be stopped"):
            for each in self._running(workflow):
                workflows.stop_execution(executionArn=each["executionArn"], cause="the stack is deleted")
            for service in containers.list_services(cluster=cluster)["serviceArns"]:  # they would start tasks anew
                containers.update_service(cluster=cluster, service=service, desiredCount=0)
            while tasks := containers.list_tasks(cluster=cluster, desiredStatus="RUNNING")["taskArns"]:
                for task in set(tasks) - stopped:
                    containers.stop_task(cluster=cluster, task=task, reason="the stack is deleted")
                stopped |= set(tasks)
                self._clock.sleep(self._poll_seconds)
        return len(stopped)

    def _running(self, workflow: str) -> Sequence[Mapping[str, Any]]:
        workflows = self._open("stepfunctions")
        found: list[Mapping[str, Any]] = workflows.list_executions(stateMachineArn=workflow, statusFilter="RUNNING")[
            "executions"
        ]
        return found

    # -- progress

    @contextmanager
    def _placed(self, template: str) -> Iterator[Mapping[str, str]]:
        """CloudFormation's arguments for the template: in the request, or in a bucket until the change set is made."""
        if len(template.encode()) <= BODY_BYTES_MAX:
            yield {"TemplateBody": template}
            return
        objects, region = self._open("s3"), self._cloudformation.meta.region_name
        bucket, key = f"lithify-template-{self._clock.new_id()}"[:63], f"{self.name}.json"
        where = {} if region == "us-east-1" else {"CreateBucketConfiguration": {"LocationConstraint": region}}
        objects.create_bucket(Bucket=bucket, **where)
        try:
            objects.put_object(Bucket=bucket, Key=key, Body=template.encode())
            yield {
                "TemplateURL": objects.generate_presigned_url("get_object", {"Bucket": bucket, "Key": key}).split("?")[
                    0
                ]
            }
        finally:
            objects.delete_object(Bucket=bucket, Key=key)
            objects.delete_bucket(Bucket=bucket)

    def _changes(self, change_set: str) -> Iterator[Change]:
        with translated(f"the changes of stack {self.name} cannot be listed"):
            for page in self._cloudformation.get_paginator("describe_change_set").paginate(ChangeSetName=change_set):
                for each in page.get("Changes", []):
                    found = each["ResourceChange"]
                    yield Change(
                        found["Action"],
                        found["LogicalResourceId"],
                        found["ResourceType"],
                        found.get("Replacement") == "True" and found["Action"] == "Modify",
                    )

    def _await(self, look: Callable[[], Mapping[str, Any]], seconds_max: float) -> Mapping[str, Any]:
        """What is there once its status says that it is done."""
        until_seconds = self._clock.monotonic_seconds() + seconds_max
        while True:
            found = look()
            if not found["Status"].endswith(("IN_PROGRESS", "_PENDING")):
                return found
            if self._clock.monotonic_seconds() > until_seconds:
                raise Unavailable(f"stack {self.name} is still {found['Status']}")
            self._clock.sleep(self._poll_seconds)

    def _await_stack(self, stack_id: str | None = None) -> str:
        with translated(f"stack {self.name} cannot be described"):
            found = self._await(lambda: {"Status": self._status(stack_id) or ""}, CHANGE_SECONDS_MAX)
        return str(found["Status"])

    def _status(self, stack_id: str | None = None) -> str | None:
        found = self._description(stack_id)
        return None if found is None else found["StackStatus"]

    def _description(self, stack_id: str | None = None) -> Mapping[str, Any] | None:
        try:
            found: Mapping[str, Any] = self._cloudformation.describe_stacks(StackName=stack_id or self.name)["Stacks"][
                0
            ]
        except ClientError as error:
            if "does not exist" in str(error):
                return None
            raise
        return found

    def _first_failure(self) -> str:
        """The oldest failure of the last operation that is not a consequence of another one."""
        found = "no event says why"
        try:
            pages = self._cloudformation.get_paginator("describe_stack_events").paginate(StackName=self.name)
            for each in (event for page in pages for event in page["StackEvents"]):  # the newest first
                reason, status = each.get("ResourceStatusReason", ""), each["ResourceStatus"]
                if each["ResourceType"] == _STACK and status in _BEGINNINGS:
                    break
                if status.endswith("FAILED") and not any(part in reason for part in _CONSEQUENCES):
                    found = f"{each['LogicalResourceId']} ({each['ResourceType']}): {reason}"
        except (ClientError, LithifyError):
            return "its events cannot be read"
        return found
