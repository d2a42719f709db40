"""Permissions of people and programs of the account: writers, senders, operators, readers of tables.

A person may have several roles. Who acts also reads, because each of these commands reads before it writes.
"""

from dataclasses import replace

from infra.access.dispatcher import SparkRoles, end_clusters
from infra.access.places import (
    LOG_FOLDER,
    Places,
    find_tables,
    find_uploads,
    list_lakes,
    list_state,
    quarantine_changes,
    read_lakes,
    read_tables,
    use_key,
    write_deltas,
)
from infra.permissions import Part, Permission, actions


def serve_part(places: Places) -> Part:
    """The page that runs in a stage. Sessions of Session Manager reach its port, inside its task."""
    return Part(
        "page",
        "ServeRole",
        ("ecs-tasks",),
        (
            *_showing(replace(places, lakes=places.lakes[:1])),
            Permission(
                "TakeSessions",
                "of those who forward its port; AWS knows no resource for a session's channels",
                actions("ssmmessages", "CreateControlChannel CreateDataChannel OpenControlChannel OpenDataChannel"),
                ("*",),
            ),
            use_key(places, writes=False),
        ),
    )


def people(places: Places, spark: SparkRoles | None, *, serves: bool) -> tuple[Part, ...]:
    """`spark`: None: there are no clusters to end. `serves`: whether the stage has a page."""
    reading = (*_reading(places), *(_forwarding(places) if serves else ()))
    return (
        Part("writer", "WriterRole", (), (*_writing(places), use_key(places, writes=True))),
        Part("sender", "SenderRole", (), (_send(places), use_key(places, writes=True))),
        Part("operator who reads", "OperatorReadRole", (), (*reading, use_key(places, writes=False))),
        Part(
            "operator who acts",
            "OperatorActRole",
            (),
            (*reading, *_acting(places, spark), use_key(places, writes=True)),
        ),
        Part(
            "reader of tables",
            "TableReaderRole",
            (),
            (
                *list_lakes(places),
                read_tables(places),
                *find_tables(places),
                use_key(places, writes=False),
            ),
        ),
    )


def _send(places: Places) -> Permission:
    return Permission(
        "SendInstructions",
        "`lithify submit`; and files to take in, in `register` documents",
        actions("sqs", "GetQueueAttributes GetQueueUrl SendMessage"),
        (places.queue, places.announcements),
    )


def _writing(places: Places) -> tuple[Permission, ...]:
    return (
        *list_lakes(places),
        *read_lakes(places),
        write_deltas(places),
        Permission(
            "WriteLogs",
            "a table's definition, the entries that add or take back deltas, and their hints",
            ("s3:PutObject",),
            places.lake_objects("tables/*/log/*", "tables/*/news/*", "tables/*/dropped/*"),
        ),
        quarantine_changes(places),
    )


def _showing(places: Places) -> tuple[Permission, ...]:
    """What `lithify serve` needs."""
    return (
        *list_lakes(places),
        *read_lakes(places),
        list_state(places),
        Permission(
            "ReadState",
            "`lithify status`; the bucket keeps task tokens from everybody but dispatchers",
            ("s3:GetObject",),
            places.state_objects("*"),
        ),
        Permission(
            "SeeQueues",
            "how many wait",
            actions("sqs", "GetQueueAttributes GetQueueUrl"),
            (places.queue, places.dead_letters, places.announcements, places.refused),
        ),
        Permission(
            "HearEvents",
            "`lithify serve`: takes the messages of its own queue of events, which are no instructions",
            actions("sqs", "DeleteMessage GetQueueAttributes ReceiveMessage"),
            (places.page_feed,),
        ),
    )


def _reading(places: Places) -> tuple[Permission, ...]:
    return (
        *_showing(places),
        find_uploads(places),
        Permission(
            "ReadSparkLogs", "why a step failed", ("s3:GetObject",), (places.in_state_bucket(f"{LOG_FOLDER}/*"),)
        ),
        Permission(
            "ReadLogs",
            "of the containers",
            actions("logs", "FilterLogEvents GetLogEvents"),
            places.container_logs,
        ),
        Permission(
            "SeeMetrics",
            "AWS knows no resource for metrics",
            actions("cloudwatch", "DescribeAlarms GetDashboard GetMetricData ListMetrics"),
            ("*",),
        ),
        Permission(
            "SeeWorkflow",
            "which executions run; not their history, which has task tokens",
            ("states:ListExecutions",),
            (places.workflow,),
        ),
    )


def _forwarding(places: Places) -> tuple[Permission, ...]:
    tasks = places.arn("ecs", f"task/{places.cluster_name}/*")
    return (
        Permission("SeeTasks", "which task is the page's", ("ecs:DescribeTasks",), (tasks,)),
        Permission(
            "ListTasks",
            "in its cluster; AWS knows no resource for a list",
            ("ecs:ListTasks",),
            ("*",),
            {"ArnEquals": {"ecs:cluster": places.ecs_cluster}},
        ),
        Permission(
            "ForwardPort",
            "of the page's task, the only one that takes sessions, and by this document alone: no shell",
            ("ssm:StartSession",),
            (tasks, f"arn:{places.partition}:ssm:{places.region}::document/AWS-StartPortForwardingSession"),
            {"BoolIfExists": {"ssm:SessionDocumentAccessCheck": "true"}},
        ),
    )


def _acting(places: Places, spark: SparkRoles | None) -> tuple[Permission, ...]:
    return (
        _send(places),
        Permission(
            "TakeDeadLetters",
            "`lithify redrive`, once their copy is on the queue; to see them is to take them for a while",
            actions("sqs", "ChangeMessageVisibility DeleteMessage ReceiveMessage"),
            (places.dead_letters, places.refused),
        ),
        Permission(
            "PublishEvents",
            "`lithify events publish`",
            actions("sns", "GetTopicAttributes Publish"),
            (places.topic,),
        ),
        Permission(
            "ChangeJobRuns",
            "`lithify cancel`, `retry`, `pause`: entries, marks, how far events are published, and the history",
            ("s3:PutObject",),
            places.state_objects(
                "job_runs/*/log/*",
                "job_runs/*/published.json",
                "history/days/*/log/*",
                "open_job_runs_by_owner/*",
                "untold_job_runs/*",
                "paused/*",
            ),
        ),
        Permission(
            "RemoveMarks",
            "`lithify resume`; of job runs whose events are published",
            ("s3:DeleteObject",),
            places.state_objects("open_job_runs_by_owner/*", "untold_job_runs/*", "paused/*"),
        ),
        Permission(
            "ChangeTables",
            "`lithify table set`, `retract`, `drop`: entries of logs, and never data",
            ("s3:PutObject",),
            places.lake_objects("tables/*/log/*", "tables/*/news/*", "tables/*/dropped/*", "dropped_tables/*"),
        ),
        *(end_clusters(places, spark) if spark is not None else ()),
    )
