"""The key of buckets, queues and topics: the stack's own, which outlives it as its buckets do, or one that is given."""

from __future__ import annotations

from aws_cdk import RemovalPolicy
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from constructs import Construct

from infra.stages import Stage


def encryption_key(scope: Construct, construct_id: str, stage: Stage) -> kms.IKey:
    if stage.key_arn:
        return kms.Key.from_key_arn(scope, construct_id, stage.key_arn)
    key = kms.Key(
        scope,
        construct_id,
        description=f"Lithify {stage.name}: lakes, state, queues, topics",
        enable_key_rotation=True,
        removal_policy=RemovalPolicy.RETAIN,
    )
    # CloudWatch itself publishes alarms to the encrypted topic.
    key.add_to_resource_policy(
        iam.PolicyStatement(
            sid="AlarmsArePublished",
            principals=[iam.ServicePrincipal("cloudwatch.amazonaws.com")],
            actions=["kms:Decrypt", "kms:GenerateDataKey"],
            resources=["*"],
        )
    )
    return key
