"""Permissions of the workflow, which starts and replaces dispatchers, and of the keeper, which collects garbage."""

from __future__ import annotations

from infra.access.places import Places, list_lakes, list_state, use_key
from infra.permissions import Part, Permission, actions


def workflow_part(places: Places, dispatcher_role: str, container_start_role: str) -> Part:
    in_cluster = {"ArnEquals": {"ecs:cluster": places.ecs_cluster}}
    return Part(
        "workflow",
        "WorkflowRole",
        ("states",),
        (
            Permission(
                "StartDispatchers",
                "of this stack's task definition, in its cluster",
                ("ecs:RunTask",),
                (places.arn("ecs", f"task-definition/{places.dispatcher_family}:*"),),
                in_cluster,
            ),
            Permission(
                "WatchAndStopDispatchers",
                "in its cluster",
                actions("ecs", "DescribeTasks StopTask"),
                (places.arn("ecs", f"task/{places.cluster_name}/*"),),
                in_cluster,
            ),
            Permission(
                "FindDispatchers",
                "in its cluster; AWS knows no resource for a list",
                ("ecs:ListTasks",),
                ("*",),
                in_cluster,
            ),
            Permission(
                "PassDispatcherRoles",
                "these two only, to tasks only",
                ("iam:PassRole",),
                (dispatcher_role, container_start_role),
                {"StringEquals": {"iam:PassedToService": "ecs-tasks.amazonaws.com"}},
            ),
            Permission("ContinueAsNew", "itself", ("states:StartExecution",), (places.workflow,)),
            Permission(
                "MeasureAndEndExecutions",
                "its own: how long it is, and the one that it follows",
                actions("states", "DescribeExecution GetExecutionHistory StopExecution"),
                (places.executions,),
            ),
        ),
    )


def keeper_part(places: Places) -> Part:
    """Garbage collection: the only part that deletes files of lakes, and no log entry."""
    return Part(
        "keeper",
        "KeeperRole",
        ("ecs-tasks",),
        (
            *list_lakes(places),
            list_state(places),
            Permission(
                "FindUploads",
                "that killed writers left; AWS knows no prefix for this list",
                ("s3:ListBucketMultipartUploads",),
                tuple(dict.fromkeys((*(lake.bucket_arn for lake in places.lakes), places.state_bucket))),
            ),
            Permission(
                "CleanLakes",
                "what no snapshot in reach needs",
                actions("s3", "AbortMultipartUpload DeleteObject GetObject ListMultipartUploadParts"),
                tuple(lake.objects for lake in places.lakes),
            ),
            Permission(
                "CleanState",
                "uploads that killed writers left",
                actions("s3", "AbortMultipartUpload GetObject ListMultipartUploadParts"),
                places.state_objects("*"),
            ),
            use_key(places, writes=False),
        ),
    )


def keeper_schedule_part(places: Places, keeper_role: str, container_start_role: str) -> Part:
    return Part(
        "schedule of the keeper",
        "KeeperScheduleRole",
        ("scheduler",),
        (
            Permission(
                "StartKeeper",
                "of this stack's task definition, in its cluster",
                ("ecs:RunTask",),
                (places.arn("ecs", f"task-definition/{places.keeper_family}:*"),),
                {"ArnEquals": {"ecs:cluster": places.ecs_cluster}},
            ),
            Permission(
                "PassKeeperRoles",
                "these two only, to tasks only",
                ("iam:PassRole",),
                (keeper_role, container_start_role),
                {"StringEquals": {"iam:PassedToService": "ecs-tasks.amazonaws.com"}},
            ),
        ),
    )
