"""Permissions of people and programs of the account: senders, observers, readers of tables, redrivers.

A person may have several roles.
"""

from __future__ import annotations

from infra.access.places import (
    LOG_FOLDER,
    Places,
    find_tables,
    list_lakes,
    list_state,
    read_lakes,
    read_tables,
    use_key,
)
from infra.permissions import Part, Permission, actions


def people(places: Places) -> tuple[Part, ...]:
    return (
        Part("sender", "SenderRole", (), (_send(places), use_key(places, writes=True))),
        Part("operator who reads", "OperatorReadRole", (), (*_reading(places), use_key(places, writes=False))),
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
        Part(
            "operator who redrives",
            "OperatorRedriveRole",
            (),
            (
                _send(places),
                Permission(
                    "TakeDeadLetters",
                    "once their copy is on the queue",
                    actions(
                        "sqs", "ChangeMessageVisibility DeleteMessage GetQueueAttributes GetQueueUrl ReceiveMessage"
                    ),
                    (places.dead_letters,),
                ),
                use_key(places, writes=True),
            ),
        ),
    )


def _send(places: Places) -> Permission:
    return Permission(
        "SendInstructions",
        "`lithify submit`",
        actions("sqs", "GetQueueAttributes GetQueueUrl SendMessage"),
        (places.queue,),
    )


def _reading(places: Places) -> tuple[Permission, ...]:
    return (
        *list_lakes(places),
        read_lakes(places),
        list_state(places),
        Permission(
            "ReadState",
            "`lithify status`; the bucket keeps task tokens from everybody but dispatchers",
            ("s3:GetObject",),
            places.state_objects("*"),
        ),
        Permission(
            "ReadSparkLogs", "why a step failed", ("s3:GetObject",), (places.in_state_bucket(f"{LOG_FOLDER}/*"),)
        ),
        Permission(
            "SeeQueues",
            "how many wait",
            actions("sqs", "GetQueueAttributes GetQueueUrl"),
            (places.queue, places.dead_letters),
        ),
        Permission(
            "ReadLogs",
            "of dispatchers and keeper",
            actions("logs", "FilterLogEvents GetLogEvents"),
            (f"{places.dispatcher_log_group}:*", f"{places.keeper_log_group}:*"),
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
