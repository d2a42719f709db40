"""Roles with which AWS itself writes: the workflow's log, and the network's flow log."""

from __future__ import annotations

from dataclasses import replace

from infra.permissions import Part, Permission, actions


def workflow_logs(part: Part) -> Part:
    """The part with permission to let Step Functions write its log."""
    names = (
        "CreateLogDelivery DeleteLogDelivery DescribeLogGroups DescribeResourcePolicies GetLogDelivery "
        "ListLogDeliveries PutResourcePolicy UpdateLogDelivery"
    )
    permission = Permission(
        "WriteWorkflowLog", "AWS knows no resource for the delivery of logs", actions("logs", names), ("*",)
    )
    return replace(part, permissions=(*part.permissions, permission))


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
