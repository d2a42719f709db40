"""Permissions of the workflow, which starts and replaces dispatchers, of the keeper, which sends instructions, and of
AWS itself, which writes the logs of the workflow and of the network."""

from infra.access.places import Places, enter_tables, find_uploads, list_lakes, list_state, publish_tables, use_key
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
            pass_roles("PassDispatcherRoles", dispatcher_role, container_start_role),
            Permission("ContinueAsNew", "itself", ("states:StartExecution",), (places.workflow,)),
            Permission(
                "MeasureAndEndExecutions",
                "its own: how long it is, and the one that it follows",
                actions("states", "DescribeExecution GetExecutionHistory StopExecution"),
                (places.executions,),
            ),
            Permission(
                "WriteWorkflowLog",
                "AWS knows no resource for the delivery of logs",
                actions(
                    "logs",
                    "CreateLogDelivery DeleteLogDelivery DescribeLogGroups DescribeResourcePolicies GetLogDelivery "
                    "ListLogDeliveries PutResourcePolicy UpdateLogDelivery",
                ),
                ("*",),
            ),
        ),
    )


def keeper_part(places: Places) -> Part:
    """The only part that deletes files of lakes, and no log entry. It writes no data, and sends instructions."""
    return Part(
        "keeper",
        "KeeperRole",
        ("ecs-tasks",),
        (*_of_lakes(places), *_of_state(places), *_messages(places), use_key(places, writes=True)),
    )


def _of_lakes(places: Places) -> tuple[Permission, ...]:
    return (
        *list_lakes(places),
        find_uploads(places),
        Permission(
            "CleanLakes",
            "what no snapshot in reach needs",
            actions("s3", "AbortMultipartUpload DeleteObject GetObject ListMultipartUploadParts"),
            places.lake_objects("*"),
        ),
        Permission(
            "RetireDeltas",
            "an entry of a stream's log, and its checkpoint: compacted deltas leave the log before their files go",
            ("s3:PutObject",),
            places.lake_objects("tables/*/streams/*/log/*"),
        ),
        Permission(
            "GiveHints",
            "a table's log says that writers hint at streams with news; and the first hints of those",
            ("s3:PutObject",),
            places.lake_objects("tables/*/log/*", "tables/*/news/*"),
        ),
        publish_tables(places),
        *enter_tables(places),
    )


def _of_state(places: Places) -> tuple[Permission, ...]:
    return (
        list_state(places),
        Permission(
            "CleanState",
            "uploads that killed writers left; it reads what became of job runs",
            actions("s3", "AbortMultipartUpload GetObject ListMultipartUploadParts"),
            places.state_objects("*"),
        ),
        Permission(
            "WriteDecisions",
            "and samples of lag, and days of the history that are over",
            ("s3:PutObject",),
            places.state_objects("keeper/*", "history/*"),
        ),
        Permission(
            "DeleteOldPlans",
            "and heartbeats of job runs that ended long ago, and samples that are in the file of their day",
            ("s3:DeleteObject",),
            places.state_objects(
                "job_runs/*/sessions/*", "job_runs/*/bundles/*", "job_runs/*/published.json", "history/lag_minutes/*"
            ),
        ),
    )


def _messages(places: Places) -> tuple[Permission, ...]:
    return (
        Permission(
            "SendInstructions",
            "what a policy says is due",
            actions("sqs", "GetQueueAttributes GetQueueUrl SendMessage"),
            (places.queue,),
        ),
        Permission(
            "PublishDecisions",
            "after a look, at its start, whether the topic exists",
            actions("sns", "GetTopicAttributes Publish"),
            (places.topic,),
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
            pass_roles("PassKeeperRoles", keeper_role, container_start_role),
        ),
    )


def pass_roles(sid: str, *roles: str) -> Permission:
    service = {"StringEquals": {"iam:PassedToService": "ecs-tasks.amazonaws.com"}}
    return Permission(sid, "these two only, to tasks only", ("iam:PassRole",), roles, service)


def flow_logs_part(log_group: str) -> Part:
    return Part(
        "log of connections",
        "ConnectionLogRole",
        ("vpc-flow-logs",),
        (
            Permission(
                "WriteConnections",
                "of the network",
                actions("logs", "CreateLogStream DescribeLogStreams PutLogEvents"),
                (f"{log_group}:*",),
            ),
        ),
    )
