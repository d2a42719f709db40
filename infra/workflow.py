"""The workflow that keeps dispatchers running, as a state machine: pure, so that it is executed in tests.

    Run in parallel
      1..N  Dispatch: a task with a token, and a heartbeat
              missed heartbeat -> stop that branch's tasks -> Dispatch
              any other end    -> pause -> the same (unless it was to run until idle only)
      W     Watch: wait -> check this execution's length -> long: start the next one, which replaces this one -> Watch
      R     Replace: of an execution that replaces another: once all of its own dispatchers are healthy, end the
            other execution, and then its tasks

Each branch's tasks have their own name (StartedBy: execution and branch), by which they are found and stopped. Only its
successor ends an execution. A successor whose dispatchers do not get healthy fails, and its dispatchers hand over: the
execution that it was to replace continues, and starts another one later.

A dispatcher whose execution was ended learns that from its next heartbeat, or from SIGTERM, and drains. With
`{"watch": false}` an execution is never followed by another one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dispatcher.workflow.dispatcher_task import EndOfTask
from infra.permissions import JsonObject

CONTAINER = "dispatcher"
_LAST = "$.last"
"""The place of a result that nobody reads: what a state was given stays."""

_FAILED_HEARTBEAT = ["States.HeartbeatTimeout", "States.Timeout"]
_PATIENT = [{"ErrorEquals": ["States.ALL"], "IntervalSeconds": 2, "MaxAttempts": 6, "BackoffRate": 2}]


@dataclass(frozen=True)
class WorkflowPlaces:
    """ARNs and names, which may be CloudFormation's own expressions. `subnet_ids`: assigned to the branches in turn."""

    cluster: str
    task_definition: str
    subnet_ids: Sequence[str]
    security_group: str
    has_public_addresses: bool


@dataclass(frozen=True)
class WorkflowTimes:
    """In seconds, except `execution_events_max`."""

    heartbeat: int
    restart: int
    watch: int
    look: int
    execution_events_max: int

    @property
    def ready_looks_max(self) -> int:
        """The most health checks: a successor gives up long before its predecessor starts another successor."""
        return max(self.watch // (2 * self.look), 1)


def definition(places: WorkflowPlaces, times: WorkflowTimes, dispatchers: int) -> JsonObject:
    branches = range(1, dispatchers + 1)
    return {
        "Comment": "Keeps Lithify's dispatchers running",
        "StartAt": "Run",
        "States": {
            "Run": {
                "Type": "Parallel",
                "Branches": [
                    *(_dispatcher(branch, places, times) for branch in branches),
                    _watch(times),
                    _replace(places, times, branches),
                ],
                "End": True,
            }
        },
    }


def _dispatcher(branch: int, places: WorkflowPlaces, times: WorkflowTimes) -> JsonObject:
    own_name = f"States.Format('{{}}-{branch}', $$.Execution.Name)"
    subnet = places.subnet_ids[(branch - 1) % len(places.subnet_ids)]
    dispatch, pause = f"Dispatch{branch}", f"Pause{branch}"
    find, why, idle = f"FindTasks{branch}", f"WhyEnded{branch}", f"Idle{branch}"
    return {
        "StartAt": dispatch,
        "States": {
            dispatch: {
                "Type": "Task",
                "Resource": "arn:aws:states:::ecs:runTask.waitForTaskToken",
                "HeartbeatSeconds": times.heartbeat,
                "Parameters": {
                    "LaunchType": "FARGATE",
                    "Cluster": places.cluster,
                    "TaskDefinition": places.task_definition,
                    "StartedBy.$": own_name,
                    "NetworkConfiguration": {
                        "AwsvpcConfiguration": {
                            "Subnets": [subnet],
                            "SecurityGroups": [places.security_group],
                            "AssignPublicIp": "ENABLED" if places.has_public_addresses else "DISABLED",
                        }
                    },
                    "Overrides": {
                        "ContainerOverrides": [
                            {
                                "Name": CONTAINER,
                                "Environment": [
                                    {"Name": "LITHIFY_TASK_TOKEN", "Value.$": "$$.Task.Token"},
                                    {"Name": "LITHIFY_EXECUTION_ARN", "Value.$": "$$.Execution.Id"},
                                ],
                            }
                        ]
                    },
                },
                "ResultPath": "$.ended",
                "Catch": [
                    {"ErrorEquals": _FAILED_HEARTBEAT, "ResultPath": _LAST, "Next": find},
                    {"ErrorEquals": ["States.ALL"], "ResultPath": _LAST, "Next": pause},
                ],
                "Next": why,
            },
            why: _choice("$.ended.reason", "StringEquals", EndOfTask.IDLE, idle, pause),
            idle: {"Type": "Succeed"},
            pause: {"Type": "Wait", "Seconds": times.restart, "Next": find},
            **_stop_tasks(find, own_name, places.cluster, "it did not beat, or is to be replaced", dispatch),
        },
    }


def _stop_tasks(find: str, name: str, cluster: str, reason: str, following: str | None) -> dict[str, JsonObject]:
    """States that stop all tasks of a branch, by its name."""
    stop = f"{find}ToStop"
    ending: JsonObject = {"Next": following} if following is not None else {"End": True}
    stop_task = {
        "Type": "Task",
        "Resource": "arn:aws:states:::aws-sdk:ecs:stopTask",
        "Parameters": {"Cluster": cluster, "Task.$": "$.task", "Reason": reason},
        "Retry": _PATIENT,
        "End": True,
    }
    return {
        find: _list_tasks(name, cluster, stop),
        stop: {
            "Type": "Map",
            "ItemsPath": "$.tasks.TaskArns",
            "ItemSelector": {"task.$": "$$.Map.Item.Value"},
            "ItemProcessor": {"StartAt": f"{find}Stop", "States": {f"{find}Stop": stop_task}},
            "ResultPath": _LAST,
            **ending,
        },
    }


def _list_tasks(name: str, cluster: str, following: str) -> JsonObject:
    parameters: JsonObject = {"Cluster": cluster, "StartedBy.$": name, "DesiredStatus": "RUNNING"}
    return _task("aws-sdk:ecs:listTasks", parameters, "$.tasks", following)


def _task(
    resource: str,
    parameters: JsonObject,
    result_path: str,
    following: str,
    *,
    selector: JsonObject | None = None,
    catch: Sequence[JsonObject] | None = None,
) -> JsonObject:
    return {
        "Type": "Task",
        "Resource": f"arn:aws:states:::{resource}",
        "Parameters": parameters,
        **({"ResultSelector": selector} if selector is not None else {}),
        "ResultPath": result_path,
        "Retry": _PATIENT,
        **({"Catch": catch} if catch is not None else {}),
        "Next": following,
    }


def _choice(variable: str, condition: str, value: object, then: str, otherwise: str) -> JsonObject:
    return {
        "Type": "Choice",
        "Choices": [{"Variable": variable, condition: value, "Next": then}],
        "Default": otherwise,
    }


def _watch(times: WorkflowTimes) -> JsonObject:
    return {
        "StartAt": "IsWatched",
        "States": {
            "IsWatched": {
                "Type": "Choice",
                "Choices": [
                    {
                        "And": [
                            {"Variable": "$.watch", "IsPresent": True},
                            {"Variable": "$.watch", "BooleanEquals": False},
                        ],
                        "Next": "NotWatched",
                    }
                ],
                "Default": "Watch",
            },
            "NotWatched": {"Type": "Succeed"},
            "Watch": {"Type": "Wait", "Seconds": times.watch, "Next": "Measure"},
            "Measure": _task(
                "aws-sdk:sfn:getExecutionHistory",
                {"ExecutionArn.$": "$$.Execution.Id", "ReverseOrder": True, "MaxResults": 1},
                "$.length",
                "IsLong",
                selector={"events.$": "$.Events[0].Id"},
            ),
            "IsLong": _choice(
                "$.length.events", "NumericGreaterThanEquals", times.execution_events_max, "ContinueAsNew", "Watch"
            ),
            "ContinueAsNew": _task(
                "states:startExecution",
                {
                    "StateMachineArn.$": "$$.StateMachine.Id",
                    # A repeated request starts the same execution, if an answer was lost.
                    "Name.$": "States.Hash(States.Format('{}#{}', $$.Execution.Id, $.length.events), 'SHA-256')",
                    "Input": {
                        "replaces": {"execution_arn.$": "$$.Execution.Id", "name.$": "$$.Execution.Name"},
                        "AWS_STEP_FUNCTIONS_STARTED_BY_EXECUTION_ID.$": "$$.Execution.Id",
                    },
                },
                _LAST,
                "Watch",
                catch=[{"ErrorEquals": ["States.ALL"], "ResultPath": _LAST, "Next": "Watch"}],
            ),
        },
    }


def _replace(places: WorkflowPlaces, times: WorkflowTimes, branches: Sequence[int]) -> JsonObject:
    stop = _stop_tasks(
        "FindReplaced",
        "States.Format('{}-{}', $.name, $.branch)",
        places.cluster,
        "a newer dispatcher has taken its place",
        None,
    )
    return {
        "StartAt": "Replaces",
        "States": {
            "Replaces": _choice("$.replaces.execution_arn", "IsPresent", True, "NameBranches", "Replaced"),
            "NameBranches": {
                "Type": "Pass",
                "Result": list(branches),
                "ResultPath": "$.branches",
                "Next": "AwaitHealth",
            },
            "AwaitHealth": {
                "Type": "Map",
                "ItemsPath": "$.branches",
                "ItemSelector": {"branch.$": "$$.Map.Item.Value", "looks": 0},
                "ItemProcessor": _await_health(places, times),
                "ResultPath": _LAST,
                "Next": "LookAtReplaced",
            },
            "LookAtReplaced": _task(
                "aws-sdk:sfn:describeExecution",
                {"ExecutionArn.$": "$.replaces.execution_arn"},
                "$.replaced",
                "IsStillRunning",
                selector={"status.$": "$.Status"},
            ),
            "IsStillRunning": _choice("$.replaced.status", "StringEquals", "RUNNING", "EndReplaced", "AlreadyReplaced"),
            "AlreadyReplaced": {
                "Type": "Fail",
                "Error": "Lithify.AlreadyReplaced",
                "Cause": "the execution that this one was to replace has ended: another one has taken its place",
            },
            "EndReplaced": _task(
                "aws-sdk:sfn:stopExecution",
                {
                    "ExecutionArn.$": "$.replaces.execution_arn",
                    "Error": "Lithify.ContinuedAsNew",
                    "Cause.$": "$$.Execution.Id",
                },
                _LAST,
                "StopReplaced",
            ),
            "StopReplaced": {
                "Type": "Map",
                "ItemsPath": "$.branches",
                "ItemSelector": {"branch.$": "$$.Map.Item.Value", "name.$": "$.replaces.name"},
                "ItemProcessor": {"StartAt": "FindReplaced", "States": stop},
                "ResultPath": _LAST,
                "Next": "Replaced",
            },
            "Replaced": {"Type": "Succeed"},
        },
    }


def _await_health(places: WorkflowPlaces, times: WorkflowTimes) -> JsonObject:
    """The states that wait until the task of one branch is healthy; they fail after many checks."""
    return {
        "StartAt": "Look",
        "States": {
            "Look": {"Type": "Wait", "Seconds": times.look, "Next": "FindNew"},
            "FindNew": _list_tasks("States.Format('{}-{}', $$.Execution.Name, $.branch)", places.cluster, "IsThere"),
            "IsThere": _choice("$.tasks.TaskArns[0]", "IsPresent", True, "Describe", "Count"),
            "Describe": _task(
                "aws-sdk:ecs:describeTasks",
                {"Cluster": places.cluster, "Tasks.$": "$.tasks.TaskArns"},
                "$.described",
                "IsHealthy",
                selector={"health.$": "$.Tasks[0].HealthStatus"},
            ),
            "IsHealthy": _choice("$.described.health", "StringEquals", "HEALTHY", "Healthy", "Count"),
            "Count": {
                "Type": "Pass",
                "Parameters": {"branch.$": "$.branch", "looks.$": "States.MathAdd($.looks, 1)"},
                "Next": "Patience",
            },
            "Patience": _choice("$.looks", "NumericGreaterThanEquals", times.ready_looks_max, "NotReady", "Look"),
            "NotReady": {
                "Type": "Fail",
                "Error": "Lithify.NotReady",
                "Cause": "a dispatcher did not get healthy: what it was to replace goes on",
            },
            "Healthy": {"Type": "Succeed"},
        },
    }
