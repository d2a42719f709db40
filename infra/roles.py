"""Roles of parts. Each is one resource with its permissions inline, so that they stand in one place."""

from aws_cdk import Aws, CfnTag
from aws_cdk import aws_iam as iam
from constructs import Construct

from infra.permissions import JsonObject, Part, document

POLICY_NAME = "Permissions"
_SAY_FOR_WHOM = ("ecs-tasks", "scheduler", "states", "vpc-flow-logs")
"""Services that say for which account they take a role: for another one they cannot."""


def create_role(scope: Construct, part: Part) -> iam.CfnRole:
    return iam.CfnRole(
        scope,
        part.role,
        description=f"Lithify: {part.name}",
        assume_role_policy_document={"Version": "2012-10-17", "Statement": [_trust(part)]},
        managed_policy_arns=[f"arn:{Aws.PARTITION}:iam::aws:policy/{name}" for name in part.managed_policies] or None,
        policies=[
            iam.CfnRole.PolicyProperty(policy_name=POLICY_NAME, policy_document=document(part.permissions)),
        ],
        tags=[CfnTag(key=key, value=value) for key, value in part.tags.items()] or None,
    )


def _trust(part: Part) -> JsonObject:
    if not part.principals:
        # Principals that the account's administrators allow to assume it.
        principal: JsonObject = {"AWS": f"arn:{Aws.PARTITION}:iam::{Aws.ACCOUNT_ID}:root"}
        return {"Effect": "Allow", "Principal": principal, "Action": "sts:AssumeRole"}
    statement: JsonObject = {
        "Effect": "Allow",
        "Principal": {"Service": [f"{each}.amazonaws.com" for each in part.principals]},
        "Action": "sts:AssumeRole",
    }
    if all(each in _SAY_FOR_WHOM for each in part.principals):
        statement["Condition"] = {"StringEquals": {"aws:SourceAccount": Aws.ACCOUNT_ID}}
    return statement
