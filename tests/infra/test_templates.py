"""The templates are what was meant: as a whole against golden files, and what a deletion keeps, by name."""

from __future__ import annotations

import json
import re
from fnmatch import fnmatchcase
from typing import Any

import cfnlint
import pytest

from dispatcher.operations import lag_board, metrics, table_lag
from dispatcher.records import metrics_samples as samples
from infra.alarms import metric_name
from infra.storage import LOG_ENTRIES, TASK_TOKENS
from tests.infra.templates import GIVEN, differences, golden_file, synthesised
from tests.pages.sources import GENERATE
from tests.roles.policies import Template

KEPT = {
    "AWS::S3::Bucket": "lakes and state",
    "AWS::KMS::Key": "what they are encrypted with",
    "AWS::SQS::Queue": "dead letters and refused files",
}
"""What a deletion of the stack leaves, as the page's table has it; policies that go with these stay beside them."""


def resources(template: Template, resource_type: str) -> dict[str, Template]:
    found = template["Resources"].items()
    return {name: resource for name, resource in found if resource["Type"] == resource_type}


@pytest.mark.parametrize("example", sorted(GIVEN))
def test_a_template_is_the_golden_one(example: str) -> None:
    changes = list(differences(json.loads(golden_file(example).read_text()), synthesised(example)))
    assert not changes, "\n".join([f"{example} differs; if that is meant: {GENERATE}", *changes])


def test_a_difference_is_told_by_resource_and_property(dev: Template) -> None:
    other = json.loads(json.dumps(dev))
    (queue,) = (name for name in resources(dev, "AWS::SQS::Queue") if "Instructions" in name)
    other["Resources"][queue]["Properties"]["VisibilityTimeout"] = 60
    del other["Resources"]["Dashboard"]
    assert list(differences(dev, other)) == [
        "- Resources Dashboard (AWS::CloudWatch::Dashboard)",
        f"  Resources {queue} (AWS::SQS::Queue).Properties.VisibilityTimeout: 120 -> 60",
    ]


@pytest.mark.parametrize("example", sorted(GIVEN))
def test_cloudformation_would_take_it(example: str) -> None:
    region = "eu-west-1" if example == "prod" else "us-east-1"
    assert [str(match) for match in cfnlint.lint(json.dumps(synthesised(example)), regions=[region])] == []


def test_a_deletion_keeps_lakes_state_key_and_dead_letters_and_nothing_else(template: Template) -> None:
    kept = {
        name: resource for name, resource in template["Resources"].items() if resource.get("DeletionPolicy") == "Retain"
    }
    assert {each["Type"] for each in kept.values()} <= KEPT.keys()
    assert all(each.get("UpdateReplacePolicy") == "Retain" for each in kept.values())
    assert kept.keys() >= resources(template, "AWS::S3::Bucket").keys()
    queues = sorted(name[:-8] for name in kept if template["Resources"][name]["Type"] == "AWS::SQS::Queue")
    assert queues == ["LandingRefused", "QueuesDeadLetters"]
    assert kept.keys() >= resources(template, "AWS::KMS::Key").keys()


def test_what_is_deleted_does_not_refuse_to_be(template: Template) -> None:
    for repository in resources(template, "AWS::ECR::Repository").values():
        assert repository["Properties"]["EmptyOnDelete"] is True
    for group in resources(template, "AWS::Logs::LogGroup").values():
        assert group["DeletionPolicy"] == "Delete"


def statements(template: Template) -> list[dict[str, Template]]:
    """Of each bucket's policy, by name."""
    return [
        {each["Sid"]: each for each in policy["Properties"]["PolicyDocument"]["Statement"] if "Sid" in each}
        for policy in resources(template, "AWS::S3::BucketPolicy").values()
    ]


def test_nobody_deletes_a_log_entry(template: Template) -> None:
    for found in statements(template):
        statement = found["LogEntriesAreNeverDeleted"]
        assert (statement["Effect"], statement["Principal"]) == ("Deny", {"AWS": "*"})
        assert statement["Action"] == ["s3:DeleteObject", "s3:DeleteObjectVersion"]
        assert "Condition" not in statement


def test_a_log_entry_is_written_by_put_if_absent_only(template: Template) -> None:
    for found in statements(template):
        statement = found["LogEntriesAreCreatedOnce"]
        assert (statement["Effect"], statement["Principal"]) == ("Deny", {"AWS": "*"})
        assert statement["Action"] == "s3:PutObject"
        assert statement["Condition"] == {"Null": {"s3:if-none-match": "true"}}


@pytest.mark.parametrize(
    ("key", "is_entry"),
    [
        ("lake/tables/ACME.ORDERS.V1/log/00000000000000000001.json", True),
        ("lake/tables/ACME.ORDERS.V1/streams/order_day=1995-04-03/log/00000000000000000042.json", True),
        ("state/job_runs/run-1/log/00000000000000000001.json", True),
        ("state/job_runs/run-1/sessions/0/log/00000000000000000001.json", True),
        ("lake/tables/ACME.ORDERS.V1/streams/_/log/00000000000000000100.checkpoint.parquet", False),
        ("lake/tables/ACME.ORDERS.V1/streams/_/log/_last_checkpoint", False),
        ("lake/tables/ACME.ORDERS.V1/data/_/compacted/1/c0ffee/1.parquet", False),
        ("state/job_runs/run-1/sessions/0/plan.json", False),
    ],
)
def test_the_patterns_name_log_entries_alone(key: str, *, is_entry: bool) -> None:
    assert any(fnmatchcase(key, pattern) for pattern in LOG_ENTRIES) is is_entry


@pytest.mark.parametrize(
    ("key", "is_token"),
    [
        ("task_tokens/run-1/message-1", True),
        ("state/task_tokens/run-1/message-1", True),
        ("state/answered_waiters/run-1/message-1", False),
        ("state/job_runs/run-1/result.json", False),
    ],
)
def test_the_patterns_name_task_tokens_alone(key: str, *, is_token: bool) -> None:
    assert any(fnmatchcase(key, pattern) for pattern in TASK_TOKENS) is is_token


def test_buckets_queues_and_topics_are_encrypted_with_one_key(template: Template) -> None:
    keys: list[Any] = []
    for bucket in resources(template, "AWS::S3::Bucket").values():
        (rule,) = bucket["Properties"]["BucketEncryption"]["ServerSideEncryptionConfiguration"]
        assert rule["ServerSideEncryptionByDefault"]["SSEAlgorithm"] == "aws:kms"
        keys.append(rule["ServerSideEncryptionByDefault"]["KMSMasterKeyID"])
    keys += [each["Properties"]["KmsMasterKeyId"] for each in resources(template, "AWS::SQS::Queue").values()]
    for topic in resources(template, "AWS::SNS::Topic").values():
        keys.append(topic["Properties"]["KmsMasterKeyId"])
    assert len(keys) == 9
    # A topic has the key's id, or its ARN behind `arn:...:key/`.
    own = resources(template, "AWS::KMS::Key")
    assert all((next(iter(own)) if own else "11111111-2222-3333-4444-555555555555") in json.dumps(key) for key in keys)


def test_dispatchers_run_in_different_zones_with_time_to_drain(template: Template) -> None:
    definition = json.dumps(resources(template, "AWS::StepFunctions::StateMachine"))
    subnets = {name for name in resources(template, "AWS::EC2::Subnet") if f'"{name}"' in definition}
    zones = {json.dumps(template["Resources"][name]["Properties"]["AvailabilityZone"]) for name in subnets}
    assert len(subnets) == len(zones) == 2
    for task in resources(template, "AWS::ECS::TaskDefinition").values():
        (container,) = task["Properties"]["ContainerDefinitions"]
        variables = {each["Name"]: each["Value"] for each in container["Environment"]}
        assert container["StopTimeout"] > int(variables.get("LITHIFY_DRAIN_SECONDS", 0))
        assert container["ReadonlyRootFilesystem"] is (container["Name"] != "serve")


def test_every_log_is_kept_for_as_long_as_the_stage_says(template: Template) -> None:
    groups = resources(template, "AWS::Logs::LogGroup").values()
    assert {each["Properties"]["RetentionInDays"] for each in groups} <= {7, 90}
    assert len(groups) >= 3


def test_no_connection_from_outside_comes_in(template: Template) -> None:
    for group in resources(template, "AWS::EC2::SecurityGroup").values():
        assert "SecurityGroupIngress" not in group["Properties"]
    for rule in resources(template, "AWS::EC2::SecurityGroupIngress").values():
        assert "SourceSecurityGroupId" in rule["Properties"]


def test_every_alarm_says_what_to_do_and_goes_to_the_topic(template: Template) -> None:
    found = {
        name.removeprefix("Alarms")[:-8]: each["Properties"]
        for name, each in resources(template, "AWS::CloudWatch::Alarm").items()
    }
    assert set(found) == {
        "OldestInstruction",
        "InstructionsSoonLost",
        "DeadLetters",
        "OldestAnnouncement",
        "FilesRefused",
        "StalledSession",
        "JobRunFailed",
        "SlaMissed",
        "DispatchersMissing",
        "Troubles",
        "EventsWaiting",
        "MoneyOfTheDay",
        "ClustersWithoutOwner",
        "TableLate",
        "KeeperSilent",
        "KeeperFails",
    }
    for alarm in found.values():
        assert alarm["AlarmActions"]
        assert re.search(r"`(?:lithify|aws) [^`]+`.* Role: Operator(?:Read|Act)Role\.$", alarm["AlarmDescription"])
    queue = next(each for name, each in resources(template, "AWS::SQS::Queue").items() if "Instructions" in name)
    half = queue["Properties"]["MessageRetentionPeriod"] / 2
    assert found["InstructionsSoonLost"]["Threshold"] == half
    late, failed = found["TableLate"], found["JobRunFailed"]
    assert (late["DatapointsToAlarm"], late["EvaluationPeriods"], late["Period"]) == (1, 2, 300)
    assert failed["Dimensions"] == [{"Name": "Status", "Value": "failed"}]
    missing = found["KeeperSilent"]
    assert (missing["EvaluationPeriods"], missing["Period"]) == (4, 300)  # a run every five minutes
    assert missing["TreatMissingData"] == "breaching"
    (counted,) = resources(template, "AWS::Logs::MetricFilter").values()
    (metric,) = counted["Properties"]["MetricTransformations"]
    assert (metric["MetricName"], metric["MetricNamespace"]) == (missing["MetricName"], missing["Namespace"])


def test_each_landing_folder_is_announced_to_the_queue_of_the_ingest() -> None:
    prod = synthesised("prod")
    (queue,) = (name for name in resources(prod, "AWS::SQS::Queue") if "Announcements" in name)
    rules = resources(prod, "AWS::Events::Rule")
    folders = {}
    for name, rule in rules.items():
        pattern = rule["Properties"]["EventPattern"]
        assert (pattern["source"], pattern["detail-type"]) == (["aws.s3"], ["Object Created"])
        (bucket,), (key,) = pattern["detail"]["bucket"]["name"], pattern["detail"]["object"]["key"]
        folders[name] = f"{bucket}/{key['prefix']}"
        assert [each["Arn"] for each in rule["Properties"]["Targets"]] == [{"Fn::GetAtt": [queue, "Arn"]}]
    assert sorted(folders.values()) == ["landing/feed/", "partners/in/"]
    statements = [
        each
        for policy in resources(prod, "AWS::SQS::QueuePolicy").values()
        for each in policy["Properties"]["PolicyDocument"]["Statement"]
        if each.get("Sid") == "FilesAreAnnounced"
    ]
    (allowed,) = statements
    assert allowed["Resource"] == {"Fn::GetAtt": [queue, "Arn"]}
    assert allowed["Condition"] == {
        "ArnEquals": {"aws:SourceArn": [{"Fn::GetAtt": [name, "Arn"]} for name in sorted(rules)]}
    }


def test_the_page_runs_where_it_is_asked_for_and_is_reached_by_sessions_alone() -> None:
    for example in ("dev", "serverless"):
        assert [name for name in synthesised(example)["Resources"] if name.startswith("Serve")] == []
    prod = synthesised("prod")
    services = {name: each["Properties"] for name, each in resources(prod, "AWS::ECS::Service").items()}
    assert {name: each.get("EnableExecuteCommand") for name, each in services.items()} == {
        "Ingest": None,
        "Serve": True,
    }
    page = services["Serve"]
    assert page["DesiredCount"] == 1
    assert "LoadBalancers" not in page
    assert page["NetworkConfiguration"] == services["Ingest"]["NetworkConfiguration"]
    tasks = resources(prod, "AWS::ECS::TaskDefinition").values()
    containers = {each["Name"]: each for task in tasks for each in task["Properties"]["ContainerDefinitions"]}
    assert [name for name, each in containers.items() if not each["ReadonlyRootFilesystem"]] == ["serve"]
    assert containers["serve"]["Command"] == ["lithify", "serve"]  # on 127.0.0.1, of its task


def test_the_dashboard_has_a_graph_for_each_question_of_an_operator(template: Template) -> None:
    (body,) = (
        each["Properties"]["DashboardBody"] for each in resources(template, "AWS::CloudWatch::Dashboard").values()
    )
    graphs = json.dumps(body)
    for question in (
        "Age of the oldest instruction that waits",
        "actual and expected",
        "US dollars",
        "Job runs by state",
        "Retries",
    ):
        assert question in graphs
    for metric in (
        samples.JOB_RUN_SECONDS,
        samples.JOB_RUN_EXPECTED,
        samples.COST,
        samples.RETRIES,
        metrics.JOB_RUNS,
        table_lag.TABLE_LAG,
        lag_board.KEEPER_TROUBLES,
    ):
        assert metric_name(metric) in graphs


def test_every_branch_starts_a_dispatcher_with_a_heartbeat_and_a_missed_one_stops_its_tasks(template: Template) -> None:
    (machine,) = resources(template, "AWS::StepFunctions::StateMachine").values()
    text = "".join(each if isinstance(each, str) else "place" for each in joined(machine))
    branches = json.loads(text)["States"]["Run"]["Branches"]
    dispatching = [branch for branch in branches if branch["StartAt"].startswith("Dispatch")]
    assert len(dispatching) >= 2
    for branch in dispatching:
        state = branch["States"][branch["StartAt"]]
        assert state["Resource"] == "arn:aws:states:::ecs:runTask.waitForTaskToken"
        assert state["HeartbeatSeconds"] == 300
        missed = state["Catch"][0]
        assert missed["ErrorEquals"] == ["States.HeartbeatTimeout", "States.Timeout"]
        assert missed["Next"].startswith("FindTasks")


def joined(machine: Template) -> list[Any]:
    """The parts of a definition: strings, and what CloudFormation puts between them."""
    definition = machine["Properties"]["DefinitionString"]
    parts: list[Any] = definition["Fn::Join"][1] if isinstance(definition, dict) else [definition]
    return parts
