"""The template is what was meant: as a whole against a golden file, and the promises by name.

Runs in .venv-infra, by `make test-infra`: aws-cdk-lib is not in the environment of the other tests.
"""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import cfnlint
import pytest

from infra.app import STACK_NAME, build
from infra.storage import LOG_ENTRIES

_GOLDEN = Path(__file__).parent / "Lithify.template.json"

Template = dict[str, Any]


@pytest.fixture(scope="module")
def template() -> Template:
    synthesised: Template = build().synth().get_stack_by_name(STACK_NAME).template
    return synthesised


def _only(template: Template, resource_type: str) -> Template:
    (properties,) = [
        resource["Properties"] for resource in template["Resources"].values() if resource["Type"] == resource_type
    ]
    found: Template = properties
    return found


def _statements(template: Template, resource_type: str) -> dict[str, Template]:
    statements = _only(template, resource_type)["PolicyDocument"]["Statement"]
    return {statement["Sid"]: statement for statement in statements if "Sid" in statement}


def test_the_template_is_the_golden_one(template: Template) -> None:
    assert template == json.loads(_GOLDEN.read_text()), (
        "if it was meant: make synth, then cp cdk.out/*.template.json tests/infra"
    )


def test_cloudformation_would_take_it(template: Template) -> None:
    assert [str(match) for match in cfnlint.lint(json.dumps(template), regions=["us-east-1", "eu-central-1"])] == []


def test_nobody_deletes_a_log_entry(template: Template) -> None:
    statement = _statements(template, "AWS::S3::BucketPolicy")["LogEntriesAreNeverDeleted"]
    assert (statement["Effect"], statement["Principal"]) == ("Deny", {"AWS": "*"})
    assert statement["Action"] == ["s3:DeleteObject", "s3:DeleteObjectVersion"]
    assert "Condition" not in statement


def test_a_log_entry_is_written_by_put_if_absent_only(template: Template) -> None:
    statement = _statements(template, "AWS::S3::BucketPolicy")["LogEntriesAreCreatedOnce"]
    assert (statement["Effect"], statement["Principal"]) == ("Deny", {"AWS": "*"})
    assert statement["Action"] == "s3:PutObject"
    assert statement["Condition"] == {"Null": {"s3:if-none-match": "true"}}


@pytest.mark.parametrize(
    ("key", "is_entry"),
    [
        ("tables/ACME.ORDERS.V1/log/00000000000000000001.json", True),
        ("lake/tables/ACME.ORDERS.V1/streams/order_day=1995-04-03/log/00000000000000000042.json", True),
        ("job_runs/run-1/log/00000000000000000001.json", True),
        ("job_runs/run-1/sessions/0/log/00000000000000000001.json", True),
        ("tables/ACME.ORDERS.V1/streams/_/log/00000000000000000100.checkpoint.parquet", False),
        ("tables/ACME.ORDERS.V1/streams/_/log/_last_checkpoint", False),
        ("tables/ACME.ORDERS.V1/data/_/compacted/1/c0ffee/1.parquet", False),
        ("job_runs/run-1/sessions/0/plan.json", False),
        ("job_runs/run-1/sessions/0/heartbeat.json", False),
        ("open_job_runs/run-1", False),
    ],
)
def test_what_the_bucket_holds_fast_are_the_entries_and_nothing_else(key: str, is_entry: bool) -> None:
    # IAM's wildcards are the shell's: `*` is any text, also with slashes, `?` is one character.
    assert any(fnmatchcase(f"/{key}", f"/{pattern}") for pattern in LOG_ENTRIES) == is_entry


def test_the_lake_is_kept_when_the_stack_is_deleted(template: Template) -> None:
    (bucket,) = [resource for resource in template["Resources"].values() if resource["Type"] == "AWS::S3::Bucket"]
    assert (bucket["DeletionPolicy"], bucket["UpdateReplacePolicy"]) == ("Retain", "Retain")


def test_an_instruction_that_no_dispatcher_survives_becomes_a_dead_letter(template: Template) -> None:
    queues = [resource for resource in template["Resources"].values() if resource["Type"] == "AWS::SQS::Queue"]
    redrives = [queue["Properties"]["RedrivePolicy"] for queue in queues if "RedrivePolicy" in queue["Properties"]]
    assert [redrive["maxReceiveCount"] for redrive in redrives] == [5]


def test_a_dispatcher_may_do_what_it_does_to_what_is_lithifys_and_no_more(template: Template) -> None:
    statements = _statements(template, "AWS::IAM::ManagedPolicy")
    assert {name: statement["Action"] for name, statement in statements.items()} == {
        "TakeInstructions": [
            "sqs:ChangeMessageVisibility",
            "sqs:DeleteMessage",
            "sqs:GetQueueAttributes",
            "sqs:GetQueueUrl",
            "sqs:ReceiveMessage",
        ],
        "RefuseInstructions": ["sqs:GetQueueAttributes", "sqs:GetQueueUrl", "sqs:SendMessage"],
        "PublishEvents": "sns:Publish",
        "ListLake": "s3:ListBucket",
        "ReadAndWriteLake": ["s3:AbortMultipartUpload", "s3:DeleteObject", "s3:GetObject", "s3:PutObject"],
    }
    assert all(statement["Resource"] != "*" for statement in statements.values())
