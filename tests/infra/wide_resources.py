"""Actions for which AWS knows no resource, and why each part needs them. Named here one by one: there is no other."""

from __future__ import annotations

from collections.abc import Mapping

NOTHING_NARROWER: Mapping[str, str] = {
    "cloudwatch:DescribeAlarms": "an operator's look",
    "cloudwatch:GetDashboard": "an operator's look",
    "cloudwatch:GetMetricData": "an operator's look",
    "cloudwatch:ListMetrics": "an operator's look",
    "ecr:GetAuthorizationToken": "a sign-in is to the whole registry",
    "ecs:ListTasks": "narrowed to the cluster by a condition",
    "elasticmapreduce:ListClusters": "a list; what is done with what it names is narrowed by tag",
    "elasticmapreduce:RunJobFlow": "the cluster is not there yet; narrowed by the tag that it asks for",
    "logs:CreateLogDelivery": "of Step Functions",
    "logs:DeleteLogDelivery": "of Step Functions",
    "logs:DescribeLogGroups": "of Step Functions",
    "logs:DescribeResourcePolicies": "of Step Functions",
    "logs:GetLogDelivery": "of Step Functions",
    "logs:ListLogDeliveries": "of Step Functions",
    "logs:PutResourcePolicy": "of Step Functions",
    "logs:UpdateLogDelivery": "of Step Functions",
    "ssmmessages:CreateControlChannel": "of Session Manager",
    "ssmmessages:CreateDataChannel": "of Session Manager",
    "ssmmessages:OpenControlChannel": "of Session Manager",
    "ssmmessages:OpenDataChannel": "of Session Manager",
    "states:SendTaskFailure": "who has a task token may answer it",
    "states:SendTaskHeartbeat": "who has a task token may answer it",
    "states:SendTaskSuccess": "who has a task token may answer it",
}
