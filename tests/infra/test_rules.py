"""AWS's own rules for good architecture (cdk-nag), on every example; what is left out is named with its reason."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from aws_cdk import Aspects
from aws_cdk.assertions import Annotations, Match
from cdk_nag import AwsSolutionsChecks

from infra.app import build, checked_stage
from tests.infra.templates import GIVEN

ACCEPTED: Mapping[str, str] = {
    "AwsSolutions-S1": "who reads a lake is for the account's CloudTrail; access logs would be a lake of their own",
    "AwsSolutions-IAM4": "EMR's own policy, which AWS keeps up to date; a tag on network and clusters narrows it",
    "AwsSolutions-IAM5": "each `*` is named in tests/infra/wide_resources.py, or is below a prefix of Lithify's own",
    "AwsSolutions-VPC7": "stage dev has no log of connections, which costs more than the rest; stage prod has one",
    "AwsSolutions-ECS2": "the task's variables are names of places; its token comes from the workflow at its start",
    "AwsSolutions-ECS4": "dispatchers write metrics of their own; Container Insights cost more than they do",
    "AwsSolutions-SQS3": "the page's queue has hints that are old after minutes; the others have dead letters",
    "AwsSolutions-SF2": "an execution waits for weeks: there is nothing that X-Ray would trace",
}


def findings(example: str, folder: Path) -> dict[str, list[str]]:
    """Messages, by rule."""
    app, stack = build(checked_stage(GIVEN[example]), folder)
    Aspects.of(app).add(AwsSolutionsChecks(verbose=True))
    app.synth()
    found: dict[str, list[str]] = {}
    annotations = Annotations.from_stack(stack)
    for each in (
        *annotations.find_error("*", Match.any_value()),
        *annotations.find_warning("*", Match.any_value()),
    ):
        rule = re.match(r"AwsSolutions-\w+|CdkNagValidationFailure", str(each.entry.data))
        if rule is not None:
            found.setdefault(rule[0], []).append(f"{each.id}: {each.entry.data}")
    return found


@pytest.mark.parametrize("example", ["dev", "prod", "serverless"])
def test_every_rule_holds_or_is_accepted_with_a_reason(example: str, tmp_path: Path) -> None:
    found = findings(example, tmp_path)
    broken = [message for rule, messages in found.items() if rule not in ACCEPTED for message in messages]
    assert not broken, "\n".join(broken)
    if example == "dev":  # it has all of them: an exception that excepts nothing goes
        assert found.keys() == ACCEPTED.keys()
