"""An evaluator of IAM policies, as small as the statements that the templates have: who may do what on which resource.

An explicit deny of a bucket's policy wins; else an allow of the role is needed. What the evaluator does not know (an
operator, a wildcard account, NotAction) is an error, and not a guess.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

Template = dict[str, Any]

GOLDEN = Path(__file__).parents[1] / "infra" / "golden"
"""Templates as they were synthesised last; `make test-infra` compares them with those of today."""

ACCOUNT, REGION = "123456789012", "us-east-1"
PARAMETERS = {
    "AWS::AccountId": ACCOUNT,
    "AWS::Region": REGION,
    "AWS::Partition": "aws",
    "AWS::URLSuffix": "amazonaws.com",
    "AWS::StackName": "Lithify",
}
_APPLICATION = "AWS::EMRServerless::Application"
_SERVICES = {
    "AWS::EC2::SecurityGroup": "ec2",
    "AWS::ECR::Repository": "ecr",
    "AWS::ECS::Cluster": "ecs",
    _APPLICATION: "emr-serverless",
    "AWS::KMS::Key": "kms",
    "AWS::SNS::Topic": "sns",
    "AWS::SQS::Queue": "sqs",
}
_SUFFIXED = ("AWS::S3::Bucket", "AWS::SQS::Queue", "AWS::SNS::Topic")


@dataclass(frozen=True)
class Request:
    """`context`: condition keys. A key that is not there is absent."""

    action: str
    resource: str
    context: Mapping[str, str] = field(default_factory=dict)


class Account:
    """The roles and buckets of a template, with names as an account would give them.

    suffix  of buckets, queues and topics, where several accounts share a stand-in
    """

    def __init__(self, template: Template, suffix: str = "") -> None:
        self._template = template
        self._suffix = suffix

    # -- names

    def named(self, resource_type: str, part: str = "") -> str:
        """The logical id of the one resource of this type whose id has this part."""
        (found,) = (
            name for name, each in self._template["Resources"].items() if each["Type"] == resource_type and part in name
        )
        return f"{found}"

    def arn(self, name: str) -> str:
        kind = self._template["Resources"][name]["Type"]
        if kind == "AWS::S3::Bucket":
            return f"arn:aws:s3:::{self.ref(name)}"
        if kind == "AWS::IAM::Role":
            return f"arn:aws:iam::{ACCOUNT}:role/{name}"
        if kind == "AWS::IAM::InstanceProfile":
            return f"arn:aws:iam::{ACCOUNT}:instance-profile/{name}"
        if kind in _SUFFIXED:
            name = f"{name}{self._suffix}"
        if kind == _APPLICATION:
            name = f"/applications/{self.ref(name)}"
        return f"arn:aws:{_SERVICES.get(kind, 'other')}:{REGION}:{ACCOUNT}:{name}"

    def ref(self, name: str) -> str:
        if name in PARAMETERS:
            return PARAMETERS[name]
        kind: str = self._template["Resources"][name]["Type"]
        if kind == "AWS::SNS::Topic":
            return self.arn(name)
        name = f"{name}{self._suffix}" if kind in _SUFFIXED else name
        return name.lower() if kind in ("AWS::S3::Bucket", _APPLICATION) else name

    def resolved(self, value: Any) -> Any:  # noqa: ANN401  (JSON)
        """Without CloudFormation's functions."""
        match value:
            case {"Ref": name}:
                return self.ref(name)
            case {"Fn::GetAtt": [name, str() as attribute]}:
                return self.arn(name) if attribute == "Arn" else f"{name}.{attribute}"
            case {"Fn::Join": [separator, parts]}:
                return separator.join(self.resolved(part) for part in parts)
            case dict():
                return {name: self.resolved(each) for name, each in value.items()}
            case list():
                return [self.resolved(each) for each in value]
            case _:
                return value

    def roles(self) -> dict[str, str]:
        """The logical id of each role by its name without the hash that CDK adds inside a construct."""
        found = (name for name, each in self._template["Resources"].items() if each["Type"] == "AWS::IAM::Role")
        return {re.sub(r"^Spark(?=\w+Role)(.*?)[0-9A-F]{8}$", r"\1", name): name for name in found}

    def key(self) -> str:
        """The ARN of the key that buckets, queues and topics are encrypted with."""
        encryption = self.properties(self.named("AWS::S3::Bucket", "State"))["BucketEncryption"]
        (rule,) = encryption["ServerSideEncryptionConfiguration"]
        return f"{rule['ServerSideEncryptionByDefault']['KMSMasterKeyID']}"

    def is_own_bucket(self, name: str) -> bool:
        resources = self._template["Resources"].items()
        return any(each["Type"] == "AWS::S3::Bucket" and self.ref(logical) == name for logical, each in resources)

    def role_of_profile(self, arn: str) -> str:
        """The ARN of the role of the instance profile with this name or ARN."""
        profile = self._template["Resources"][arn.rpartition("/")[2]]
        (role,) = profile["Properties"]["Roles"]
        return self.arn(self.ref(role["Ref"]))

    def alarm_descriptions(self) -> dict[str, str]:
        """By the logical id of the alarm."""
        resources = self._template["Resources"].items()
        alarms = {name: each["Properties"] for name, each in resources if each["Type"] == "AWS::CloudWatch::Alarm"}
        return {name: each["AlarmDescription"] for name, each in alarms.items()}

    def properties(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.resolved(self._template["Resources"][name]["Properties"])
        return found

    # -- decisions

    def statements(self, role: str) -> list[dict[str, Any]]:
        properties = self._template["Resources"][role]["Properties"]
        return [
            statement
            for policy in properties["Policies"]
            for statement in self.resolved(policy["PolicyDocument"]["Statement"])
        ]

    def allows(self, role: str, request: Request) -> bool:
        tags = self._template["Resources"][role]["Properties"].get("Tags", [])
        context = {
            **{f"aws:PrincipalTag/{tag['Key']}": tag["Value"] for tag in tags},
            "aws:SecureTransport": "true",
            "s3:TlsVersion": "1.3",
            **request.context,
        }
        in_context = Request(request.action, request.resource, context)
        if any(_applies(each, in_context) for each in self._denials()):
            return False
        return any(each["Effect"] == "Allow" and _applies(each, in_context) for each in self.statements(role))

    def _denials(self) -> Iterator[dict[str, Any]]:
        for each in self._template["Resources"].values():
            if each["Type"] in {"AWS::S3::BucketPolicy", "AWS::SQS::QueuePolicy", "AWS::SNS::TopicPolicy"}:
                for statement in self.resolved(each["Properties"]["PolicyDocument"]["Statement"]):
                    if statement["Effect"] == "Deny":
                        assert statement["Principal"] in ("*", {"AWS": "*"}), statement
                        yield statement


def listed(value: Any) -> list[Any]:  # noqa: ANN401  (JSON)
    return value if isinstance(value, list) else [value]


def _applies(statement: Mapping[str, Any], request: Request) -> bool:
    assert not statement.keys() & {"NotAction", "NotResource", "NotPrincipal"}, statement
    return (
        any(_matches(request.action.lower(), each.lower()) for each in listed(statement["Action"]))
        and any(_matches(request.resource, each) for each in listed(statement["Resource"]))
        and all(
            _holds(operator, key, listed(wanted), request.context)
            for operator, conditions in statement.get("Condition", {}).items()
            for key, wanted in conditions.items()
        )
    )


def _matches(text: str, pattern: str) -> bool:
    """Of IAM's patterns: `*` and `?`, also over slashes; a bracket is a bracket."""
    return fnmatchcase(text, pattern.replace("[", "[[]"))


def _holds(operator: str, key: str, wanted: list[str], context: Mapping[str, str]) -> bool:
    found = context.get(key)
    if operator == "Null":
        return (found is None) is (wanted == ["true"])
    if operator == "StringLikeIfExists":
        return found is None or any(_matches(found, each) for each in wanted)
    if operator == "BoolIfExists":
        return found is None or found in wanted
    if operator == "StringNotEquals":
        return found not in wanted
    if operator == "NumericLessThan":
        return found is not None and float(found) < float(wanted[0])
    if operator in {"StringEquals", "Bool", "ArnEquals"}:
        return found is not None and any(found == each for each in wanted)
    raise AssertionError(f"{operator} is not evaluated: add it")
