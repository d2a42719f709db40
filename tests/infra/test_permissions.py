"""Least privilege: denied things are tried, on the statements that are synthesised."""

from __future__ import annotations

import json
import re

import pytest

from infra.access.places import DEPLOYMENT_TAG
from tests.infra.templates import GIVEN, parts_of, synthesised
from tests.infra.wide_resources import NOTHING_NARROWER
from tests.roles.policies import ACCOUNT, REGION, Account, Request, Template, listed

ENTRY = "streams/_/log/00000000000000000007.json"
CHECKPOINT = "streams/_/log/checkpoints/00000000000000000032.json"


@pytest.fixture(scope="module")
def account() -> Account:
    return Account(synthesised("dev"))


@pytest.fixture(scope="module")
def serverless() -> Account:
    return Account(synthesised("serverless"))


def request_of(account: Account, text: str) -> Request:
    """`s3:PutObject lake/lake/tables/x [key=value ...]`, with words for what the stack makes."""
    action, what, *context = text.split()
    lakes = account.arn(account.named("AWS::S3::Bucket", "Lakes"))
    state = account.arn(account.named("AWS::S3::Bucket", "State"))
    words = {
        "LAKES": lakes,
        "STATE": state,
        "QUEUE": account.arn(account.named("AWS::SQS::Queue", "Instructions")),
        "ANNOUNCED": account.arn(account.named("AWS::SQS::Queue", "Announcements")),
        "REFUSED": account.arn(account.named("AWS::SQS::Queue", "Refused")),
        "DEAD": account.arn(account.named("AWS::SQS::Queue", "DeadLetters")),
        "TOPIC": account.arn(account.named("AWS::SNS::Topic", "Events")),
        "ALARMS": account.arn(account.named("AWS::SNS::Topic", "Alarms")),
        "KEY": account.arn(account.named("AWS::KMS::Key")),
        "HERE": f"{REGION}:{ACCOUNT}",
        "EC2_ROLE": account.arn(account.named("AWS::IAM::Role", "SparkJobRole")),
        "EMR_ROLE": account.arn(account.named("AWS::IAM::Role", "EmrServiceRole")),
        "TASK_ROLE": account.arn(account.named("AWS::IAM::Role", "DispatcherRole")),
        "START_ROLE": account.arn(account.named("AWS::IAM::Role", "ContainerStartRole")),
        "KEEPER_ROLE": f"arn:aws:iam::{ACCOUNT}:role/KeeperRole",
        "CLUSTER": f"arn:aws:ecs:{REGION}:{ACCOUNT}:cluster/lithify-dev",
    }
    for word, value in words.items():
        what = re.sub(rf"\b{word}\b", value, what)
        context = [re.sub(rf"\b{word}\b", value, each) for each in context]
    pairs = dict(each.split("=", 1) for each in context)
    return Request(action, what, pairs)


OUR_TAG = f"elasticmapreduce:RequestTag/{DEPLOYMENT_TAG}=Lithify-dev"
OUR_CLUSTER = f"elasticmapreduce:ResourceTag/{DEPLOYMENT_TAG}=Lithify-dev"
FOREIGN_CLUSTER = f"elasticmapreduce:ResourceTag/{DEPLOYMENT_TAG}=Lithify-prod"
NEW = "s3:if-none-match=*"

MAY = {
    "DispatcherRole": [
        "sqs:ReceiveMessage QUEUE",
        "sqs:SendMessage DEAD",
        "sns:Publish TOPIC",
        f"s3:PutObject STATE/state/job_runs/run/log/00000000000000000001.json {NEW}",
        "s3:GetObject STATE/state/task_tokens/run/message",
        "s3:DeleteObject STATE/state/task_tokens/run/message",
        "s3:PutObject STATE/state/live_dispatchers/one",
        "s3:GetObject LAKES/lake/tables/T/log/00000000000000000001.json",
        f"s3:PutObject LAKES/lake/tables/T/compacted/_delta_log/00000000000000000001.json {NEW}",
        "s3:PutObject LAKES/lake/tables/T/compacted/_delta_log/_last_checkpoint",
        f"s3:PutObject LAKES/lake/tables/T/compacted/dead/0a/deletion_vector_1.bin {NEW}",
        f"s3:PutObject LAKES/lake/tables/T/iceberg/metadata/v1.metadata.json {NEW}",
        "s3:PutObject LAKES/lake/tables/T/iceberg/metadata/version-hint.text",
        f"s3:PutObject LAKES/lake/tables/T/compacted/0a/c/1-a.parquet {NEW}",
        f"s3:PutObject LAKES/lake/tables/T/{ENTRY} {NEW}",
        "s3:DeleteObject LAKES/lake/tables/T/news/_/00000000000000000001",
        "s3:ListBucket LAKES s3:prefix=lake/tables/",
        "s3:ListBucket STATE",
        "s3:ListBucket STATE s3:prefix=archive/lithify.tar.gz",
        f"elasticmapreduce:RunJobFlow * {OUR_TAG}",
        f"elasticmapreduce:TerminateJobFlows arn:aws:elasticmapreduce:HERE:cluster/j-1 {OUR_CLUSTER}",
        "iam:PassRole EC2_ROLE iam:PassedToService=ec2.amazonaws.com",
        "iam:PassRole EMR_ROLE iam:PassedToService=elasticmapreduce.amazonaws.com",
        "states:SendTaskSuccess arn:aws:states:HERE:stateMachine:anybody",
        "states:GetExecutionHistory arn:aws:states:HERE:execution:lithify-dev-dispatchers:one",
        "kms:GenerateDataKey KEY",
    ],
    "SparkJobRole": [
        f"s3:PutObject LAKES/lake/tables/T/{ENTRY} {NEW}",
        "s3:PutObject LAKES/lake/tables/T/data/_/compacted/1/c/1-a.parquet",
        "s3:GetObject LAKES/lake/tables/T/data/_/delta/d/1.parquet",
        "s3:AbortMultipartUpload LAKES/lake/tables/T/data/_/delta/d/1.parquet",
        "s3:DeleteObject LAKES/lake/tables/T/news/_/00000000000000000001",
        "s3:GetObject STATE/state/job_runs/run/sessions/run.1/plan.json",
        f"s3:PutObject STATE/state/job_runs/run/sessions/run.1/log/00000000000000000001.json {NEW}",
        "s3:PutObject STATE/state/job_runs/run/bundles/b/heartbeat.json",
        "s3:GetObject STATE/archive/lithify.tar.gz",
        "s3:PutObject STATE/emr-logs/j-1/steps/s-1/stderr.gz",
        "kms:Decrypt KEY",
    ],
    "EmrServiceRole": ["iam:PassRole EC2_ROLE iam:PassedToService=ec2.amazonaws.com"],
    "WorkflowRole": [
        "ecs:RunTask arn:aws:ecs:HERE:task-definition/lithify-dev-dispatcher:7 ecs:cluster=CLUSTER",
        "ecs:StopTask arn:aws:ecs:HERE:task/lithify-dev/abc ecs:cluster=CLUSTER",
        "ecs:ListTasks * ecs:cluster=CLUSTER",
        "iam:PassRole TASK_ROLE iam:PassedToService=ecs-tasks.amazonaws.com",
        "iam:PassRole START_ROLE iam:PassedToService=ecs-tasks.amazonaws.com",
        "states:StartExecution arn:aws:states:HERE:stateMachine:lithify-dev-dispatchers",
        "states:StopExecution arn:aws:states:HERE:execution:lithify-dev-dispatchers:one",
    ],
    "KeeperRole": [
        "s3:DeleteObject LAKES/lake/tables/T/data/_/compacted/1/c/1-a.parquet",
        f"s3:DeleteObject LAKES/lake/tables/T/{CHECKPOINT}",
        f"s3:PutObject LAKES/lake/tables/T/{ENTRY} {NEW}",
        f"s3:PutObject LAKES/lake/tables/T/{CHECKPOINT}",
        "s3:PutObject LAKES/lake/tables/T/streams/_/log/_last_checkpoint",
        f"s3:PutObject LAKES/lake/tables/T/log/00000000000000000002.json {NEW}",
        "s3:PutObject LAKES/lake/tables/T/news/_/00000000000000000001",
        "kms:GenerateDataKey KEY",
        "s3:ListBucketMultipartUploads STATE",
        "s3:AbortMultipartUpload STATE/state/job_runs/run/result.json",
        "s3:PutObject LAKES/lake/tables/T/compacted/_delta_log/00000000000000000001.json",
        f"s3:PutObject STATE/state/keeper/0123456789abcdef/T/log/00000000000000000001.json {NEW}",
        "s3:PutObject STATE/state/history/lag_minutes/2026-11-24/2359/lake.parquet",
        "s3:DeleteObject STATE/state/history/lag_minutes/2026-11-24/2359/lake.parquet",
        "s3:DeleteObject STATE/state/job_runs/run/sessions/run.1/heartbeat.json",
        "s3:GetObject STATE/state/job_runs/run/log/00000000000000000001.json",
        "sqs:SendMessage QUEUE",
        "sns:Publish TOPIC",
    ],
    "KeeperScheduleRole": [
        "ecs:RunTask arn:aws:ecs:HERE:task-definition/lithify-dev-keeper:1 ecs:cluster=CLUSTER",
        "iam:PassRole KEEPER_ROLE iam:PassedToService=ecs-tasks.amazonaws.com",
    ],
    "IngestRole": [
        "sqs:ReceiveMessage ANNOUNCED",
        "sqs:DeleteMessage ANNOUNCED",
        "sqs:SendMessage ANNOUNCED",
        "sqs:SendMessage REFUSED",
        f"s3:PutObject LAKES/lake/tables/T/{ENTRY} {NEW}",
        "s3:PutObject LAKES/lake/tables/T/news/_/00000000000000000001",
        "s3:PutObject LAKES/lake/tables/T/data/_/delta/d/1.parquet",
        "s3:ListBucket LAKES s3:prefix=lake/tables/",
        "kms:GenerateDataKey KEY",
    ],
    "WriterRole": [
        f"s3:PutObject LAKES/lake/tables/T/log/00000000000000000001.json {NEW}",
        f"s3:PutObject LAKES/lake/tables/T/{ENTRY} {NEW}",
        "s3:PutObject LAKES/lake/tables/T/news/_/00000000000000000001",
        "s3:PutObject LAKES/lake/tables/T/data/_/delta/d/1.parquet",
        "s3:AbortMultipartUpload LAKES/lake/tables/T/data/_/delta/d/1.parquet",
        "s3:PutObject LAKES/lake/quarantine/T/1.jsonl",
        "s3:ListBucket LAKES s3:prefix=lake/tables/",
    ],
    "SenderRole": ["sqs:SendMessage QUEUE", "sqs:SendMessage ANNOUNCED", "kms:GenerateDataKey KEY"],
    "OperatorReadRole": [
        "s3:GetObject STATE/state/job_runs/run/log/00000000000000000001.json",
        "s3:GetObject LAKES/lake/tables/T/log/00000000000000000001.json",
        "sqs:GetQueueAttributes DEAD",
        "cloudwatch:GetMetricData *",
        "states:ListExecutions arn:aws:states:HERE:stateMachine:lithify-dev-dispatchers",
    ],
    "TableReaderRole": [
        "s3:GetObject LAKES/lake/tables/T/compacted/0a/c/1-a.parquet",
        "s3:GetObject LAKES/lake/tables/T/compacted/_delta_log/00000000000000000001.json",
        "s3:GetObject LAKES/lake/tables/T/compacted/dead/0a/deletion_vector_1.bin",
        "s3:GetObject LAKES/lake/tables/T/iceberg/metadata/v1.metadata.json",
        "s3:ListBucket LAKES s3:prefix=lake/tables/T/compacted/_delta_log/",
        "kms:Decrypt KEY",
    ],
    "OperatorActRole": [
        "sqs:ReceiveMessage DEAD",
        "sqs:DeleteMessage DEAD",
        "sqs:DeleteMessage REFUSED",
        "sqs:SendMessage QUEUE",
        "sqs:SendMessage ANNOUNCED",
        "sns:Publish TOPIC",
        f"s3:PutObject STATE/state/job_runs/run/log/00000000000000000003.json {NEW}",
        f"s3:PutObject STATE/state/paused/everything {NEW}",
        "s3:DeleteObject STATE/state/paused/everything",
        "s3:DeleteObject STATE/state/untold_job_runs/run",
        f"s3:PutObject LAKES/lake/tables/T/log/00000000000000000002.json {NEW}",
        f"s3:PutObject LAKES/lake/dropped_tables/T {NEW}",
        "s3:PutObject LAKES/lake/tables/T/dropped/_/00000000000000000007",
        f"elasticmapreduce:TerminateJobFlows arn:aws:elasticmapreduce:HERE:cluster/j-1 {OUR_CLUSTER}",
    ],
    "ContainerStartRole": [
        "ecr:GetAuthorizationToken *",
        "logs:PutLogEvents arn:aws:logs:HERE:log-group:/lithify-dev/dispatcher:x",
        "logs:PutLogEvents arn:aws:logs:HERE:log-group:/lithify-dev/ingest:x",
    ],
}

MAY_NOT = {
    "DispatcherRole": [
        "s3:DeleteObject STATE/state/job_runs/run/log/00000000000000000001.json",
        "s3:PutObject STATE/state/job_runs/run/log/00000000000000000001.json",
        "s3:DeleteObject LAKES/lake/tables/T/iceberg/metadata/v1.metadata.json",
        "s3:DeleteObject LAKES/lake/tables/T/data/_/delta/d/1.parquet",
        "s3:GetObject LAKES/somebody-else/x",
        "s3:ListBucket LAKES s3:prefix=somebody-else/",
        "s3:PutObject STATE/archive/lithify.tar.gz",
        "s3:ListBucket STATE s3:prefix=emr-logs/",
        "sqs:ReceiveMessage DEAD",
        "sqs:DeleteQueue QUEUE",
        "sns:Publish ALARMS",
        "sns:Subscribe TOPIC",
        "iam:PassRole TASK_ROLE iam:PassedToService=ec2.amazonaws.com",
        "iam:PassRole KEEPER_ROLE iam:PassedToService=ec2.amazonaws.com",
        "iam:PassRole EC2_ROLE iam:PassedToService=lambda.amazonaws.com",
        "iam:PassRole EC2_ROLE",
        "elasticmapreduce:RunJobFlow *",
        f"elasticmapreduce:TerminateJobFlows arn:aws:elasticmapreduce:HERE:cluster/j-1 {FOREIGN_CLUSTER}",
        "elasticmapreduce:TerminateJobFlows arn:aws:elasticmapreduce:HERE:cluster/j-1",
        "states:StartExecution arn:aws:states:HERE:stateMachine:lithify-dev-dispatchers",
        "states:GetExecutionHistory arn:aws:states:HERE:execution:somebody-else:one",
        "kms:CreateGrant KEY",
        "ecs:RunTask arn:aws:ecs:HERE:task-definition/lithify-dev-dispatcher:7 ecs:cluster=CLUSTER",
        "glue:UpdateTable arn:aws:glue:HERE:table/lakehouse/acme_orders_v1",
    ],
    "SparkJobRole": [
        f"s3:DeleteObject LAKES/lake/tables/T/{ENTRY}",
        f"s3:PutObject LAKES/lake/tables/T/{ENTRY}",
        f"s3:DeleteObject LAKES/lake/tables/T/{CHECKPOINT}",
        "s3:DeleteObject LAKES/lake/tables/T/data/_/delta/d/1.parquet",
        "s3:GetObject STATE/state/task_tokens/run/message",
        "s3:GetObject STATE/state/job_runs/run/log/00000000000000000001.json",
        f"s3:PutObject STATE/state/job_runs/run/log/00000000000000000009.json {NEW}",
        "s3:PutObject STATE/archive/lithify.tar.gz",
        "s3:GetObject STATE/emr-logs/j-1/steps/s-1/stderr.gz",
        "s3:ListBucket STATE s3:prefix=state/task_tokens/",
        "sqs:ReceiveMessage QUEUE",
        "sqs:SendMessage QUEUE",
        "sns:Publish TOPIC",
        "states:SendTaskSuccess *",
        f"elasticmapreduce:RunJobFlow * {OUR_TAG}",
    ],
    "EmrServiceRole": [
        "iam:PassRole TASK_ROLE iam:PassedToService=ec2.amazonaws.com",
        "s3:GetObject LAKES/lake/tables/T/data/_/delta/d/1.parquet",
    ],
    "WorkflowRole": [
        "ecs:RunTask arn:aws:ecs:HERE:task-definition/somebody-else:7 ecs:cluster=CLUSTER",
        "ecs:RunTask arn:aws:ecs:HERE:task-definition/lithify-dev-dispatcher:7 ecs:cluster=other",
        "iam:PassRole EC2_ROLE iam:PassedToService=ecs-tasks.amazonaws.com",
        "states:StartExecution arn:aws:states:HERE:stateMachine:somebody-else",
        "states:SendTaskSuccess *",
        "s3:GetObject STATE/state/task_tokens/run/message",
    ],
    "KeeperRole": [
        f"s3:DeleteObject LAKES/lake/tables/T/{ENTRY}",
        f"s3:PutObject LAKES/lake/tables/T/{ENTRY}",
        "s3:PutObject LAKES/lake/tables/T/data/_/delta/d/1.parquet",
        f"s3:PutObject LAKES/lake/tables/T/data/_/compacted/1/c/1-a.parquet {NEW}",
        "s3:PutObject LAKES/lake/tables/T/log/00000000000000000002.json",
        "s3:PutObject LAKES/lake/tables/T/dropped/_",
        "s3:PutObject LAKES/lake/dropped_tables/T",
        "s3:GetObject STATE/state/task_tokens/run/message",
        "s3:DeleteObject STATE/state/job_runs/run/result.json",
        f"s3:PutObject STATE/state/job_runs/run/log/00000000000000000002.json {NEW}",
        "s3:DeleteObject STATE/state/history/job_runs/day=2026-11-24/job_runs.parquet",
        "s3:DeleteObject STATE/state/history/lag/2026-11-24.parquet",
        "sqs:ReceiveMessage QUEUE",
        "sqs:SendMessage DEAD",
    ],
    "KeeperScheduleRole": [
        "ecs:RunTask arn:aws:ecs:HERE:task-definition/lithify-dev-dispatcher:1 ecs:cluster=CLUSTER",
        "iam:PassRole TASK_ROLE iam:PassedToService=ecs-tasks.amazonaws.com",
    ],
    "SenderRole": [
        "s3:GetObject LAKES/lake/tables/T/data/_/delta/d/1.parquet",
        "s3:ListBucket LAKES s3:prefix=lake/",
        "sqs:ReceiveMessage QUEUE",
        "sqs:SendMessage DEAD",
        "sns:Publish TOPIC",
    ],
    "OperatorReadRole": [
        "s3:GetObject STATE/state/task_tokens/run/message",
        "s3:PutObject LAKES/lake/tables/T/data/_/delta/d/1.parquet",
        "s3:DeleteObject LAKES/lake/tables/T/data/_/delta/d/1.parquet",
        "sqs:SendMessage QUEUE",
        "sqs:DeleteMessage DEAD",
        "states:GetExecutionHistory arn:aws:states:HERE:execution:lithify-dev-dispatchers:one",
        "kms:GenerateDataKey KEY",
    ],
    "TableReaderRole": [
        "s3:DeleteObject LAKES/lake/tables/T/compacted/0a/c/1-a.parquet",
        "s3:DeleteObject LAKES/lake/tables/T/iceberg/metadata/v1.metadata.json",
        f"s3:PutObject LAKES/lake/tables/T/iceberg/metadata/v2.metadata.json {NEW}",
        "s3:PutObject LAKES/lake/tables/T/compacted/_delta_log/_last_checkpoint",
        "s3:PutObject LAKES/lake/tables/T/compacted/0a/c/1-a.parquet",
        "s3:GetObject LAKES/lake/tables/T/data/_/delta/d/1.parquet",
        "s3:GetObject LAKES/somebody-else/x",
        "s3:GetObject STATE/state/job_runs/run/result.json",
        "kms:GenerateDataKey KEY",
        "glue:GetTable arn:aws:glue:HERE:table/lakehouse/acme_orders_v1",
    ],
    "OperatorActRole": [
        "sqs:DeleteMessage QUEUE",
        "sqs:ReceiveMessage QUEUE",
        "s3:GetObject STATE/state/task_tokens/run/message",
        "s3:PutObject STATE/state/task_tokens/run/message",
        "s3:DeleteObject STATE/state/job_runs/run/log/00000000000000000003.json",
        "s3:PutObject STATE/state/job_runs/run/sessions/run.1/plan.json",
        "s3:PutObject LAKES/lake/tables/T/data/_/delta/d/1.parquet",
        "s3:DeleteObject LAKES/lake/tables/T/data/_/delta/d/1.parquet",
        "sns:Publish ALARMS",
        f"elasticmapreduce:RunJobFlow * {OUR_TAG}",
        f"elasticmapreduce:TerminateJobFlows arn:aws:elasticmapreduce:HERE:cluster/j-1 {FOREIGN_CLUSTER}",
        "states:GetExecutionHistory arn:aws:states:HERE:execution:lithify-dev-dispatchers:one",
    ],
    "WriterRole": [
        "s3:PutObject LAKES/lake/tables/T/data/_/compacted/1/c/1-a.parquet",
        f"s3:PutObject LAKES/lake/tables/T/compacted/0a/c/1-a.parquet {NEW}",
        f"s3:PutObject LAKES/lake/tables/T/{ENTRY}",
        "s3:DeleteObject LAKES/lake/tables/T/data/_/delta/d/1.parquet",
        "s3:DeleteObject LAKES/lake/tables/T/news/_/00000000000000000001",
        "s3:GetObject STATE/state/job_runs/run/result.json",
        "sqs:SendMessage QUEUE",
    ],
    "IngestRole": [
        f"s3:PutObject LAKES/lake/tables/T/log/00000000000000000002.json {NEW}",
        f"s3:PutObject LAKES/lake/tables/T/{ENTRY}",
        f"s3:PutObject LAKES/lake/tables/T/compacted/0a/c/1-a.parquet {NEW}",
        "s3:DeleteObject LAKES/lake/tables/T/data/_/delta/d/1.parquet",
        "s3:GetObject STATE/state/job_runs/run/result.json",
        "s3:GetObject STATE/state/task_tokens/run/message",
        "sqs:ReceiveMessage QUEUE",
        "sqs:SendMessage QUEUE",
        "sqs:ReceiveMessage REFUSED",
        "sns:Publish TOPIC",
    ],
    "ContainerStartRole": [
        "ecr:PutImage arn:aws:ecr:HERE:repository/lithify-dev",
        "s3:GetObject STATE/state/job_runs/run/result.json",
    ],
}


def role(account: Account, name: str) -> str:
    return account.named("AWS::IAM::Role", name)


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in MAY.items() for text in texts])
def test_a_role_has_the_rights_that_its_part_needs(account: Account, name: str, text: str) -> None:
    assert account.allows(role(account, name), request_of(account, text))


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in MAY_NOT.items() for text in texts])
def test_a_role_lacks_the_rights_that_its_part_does_not_need(account: Account, name: str, text: str) -> None:
    assert not account.allows(role(account, name), request_of(account, text))


def test_every_role_is_tried_both_ways(account: Account) -> None:
    roles = {part.role for part in parts_of("dev")}
    assert roles == MAY.keys() == MAY_NOT.keys()


def test_without_encryption_on_the_way_nothing_is_served(account: Account) -> None:
    plain = {"aws:SecureTransport": "false"}
    for text in ("s3:GetObject STATE/state/job_runs/run/result.json", "sqs:ReceiveMessage QUEUE", "sns:Publish TOPIC"):
        request = request_of(account, text)
        assert not account.allows(role(account, "DispatcherRole"), Request(request.action, request.resource, plain))


def test_on_serverless_a_dispatcher_ends_job_runs_of_its_deployment_only(serverless: Account) -> None:
    dispatcher, job = role(serverless, "DispatcherRole"), role(serverless, "SparkJobRole")
    application = serverless.arn(serverless.named("AWS::EMRServerless::Application"))
    tagged = {f"aws:ResourceTag/{DEPLOYMENT_TAG}": "Lithify-prod"}
    run = f"{application}/jobruns/1"
    assert serverless.allows(dispatcher, Request("emr-serverless:CancelJobRun", run, tagged))
    assert not serverless.allows(dispatcher, Request("emr-serverless:CancelJobRun", run))
    passed = {"iam:PassedToService": "emr-serverless.amazonaws.com"}
    assert serverless.allows(dispatcher, Request("iam:PassRole", serverless.arn(job), passed))
    assert not serverless.allows(dispatcher, Request("iam:PassRole", serverless.arn(dispatcher), passed))
    request = Request("emr-serverless:StartJobRun", application, {f"aws:RequestTag/{DEPLOYMENT_TAG}": "other"})
    assert not serverless.allows(dispatcher, request)


@pytest.mark.parametrize("key", [ENTRY, "compacted/0a/c/1-a.parquet", "data/_/compacted/1/c/1-a.parquet"])
def test_a_dispatcher_without_workers_writes_no_lake(serverless: Account, key: str) -> None:
    lakes = serverless.arn(serverless.named("AWS::S3::Bucket", "Lakes"))
    request = Request("s3:PutObject", f"{lakes}/lake/tables/T/{key}", dict((NEW.split("=", 1),)))
    assert not serverless.allows(role(serverless, "DispatcherRole"), request)
    assert serverless.allows(role(serverless, "SparkJobRole"), request)


def test_a_key_of_the_account_s_choice_may_be_used_by_dispatcher_and_job(serverless: Account) -> None:
    (key,) = [each.partition("=")[2] for each in GIVEN["serverless"] if each.startswith("key_arn=")]
    for name in ("DispatcherRole", "SparkJobRole"):
        for action in ("kms:Decrypt", "kms:GenerateDataKey"):
            assert serverless.allows(role(serverless, name), Request(action, key)), (name, action)
            assert not serverless.allows(role(serverless, name), Request(action, f"{key[:-1]}6")), (name, action)


@pytest.mark.parametrize("resource", ["catalog", "database/lakehouse", "table/lakehouse/acme_orders_v1"])
def test_in_the_stage_s_databases_dispatchers_and_the_keeper_enter_tables_and_readers_find_them(resource: str) -> None:
    prod = Account(synthesised("prod"))
    arn = f"arn:aws:glue:eu-west-1:{ACCOUNT}:{resource}"
    finding = role(prod, "TableReaderRole")
    for entering in (role(prod, "DispatcherRole"), role(prod, "KeeperRole")):
        for action in ("glue:CreateTable", "glue:GetTable", "glue:UpdateTable"):
            assert prod.allows(entering, Request(action, arn)), action
        for action in ("glue:DeleteTable", "glue:CreatePartition", "glue:BatchCreatePartition", "glue:DeleteDatabase"):
            assert not prod.allows(entering, Request(action, arn)), action
    assert prod.allows(finding, Request("glue:GetTable", arn))
    for action in ("glue:CreateTable", "glue:UpdateTable", "glue:DeleteTable"):
        assert not prod.allows(finding, Request(action, arn)), action


@pytest.mark.parametrize("name", ["DispatcherRole", "SparkJobRole", "WriterRole", "OperatorReadRole"])
def test_files_outside_of_the_lakes_are_read_where_the_stage_allows_it_and_written_by_nobody(name: str) -> None:
    prod = Account(synthesised("prod"))
    assert prod.allows(role(prod, name), Request("s3:GetObject", "arn:aws:s3:::landing/orders/1.parquet"))
    listed_prefix = {"s3:prefix": "orders/1.parquet"}
    assert prod.allows(role(prod, name), Request("s3:ListBucket", "arn:aws:s3:::landing", listed_prefix))
    assert not prod.allows(role(prod, name), Request("s3:GetObject", "arn:aws:s3:::landing/salaries/1.parquet"))
    for action in ("s3:PutObject", "s3:DeleteObject"):
        assert not prod.allows(role(prod, name), Request(action, "arn:aws:s3:::landing/orders/1.parquet")), action
    assert not prod.allows(
        role(prod, "TableReaderRole"), Request("s3:GetObject", "arn:aws:s3:::landing/orders/1.parquet")
    )


def test_the_ingest_reads_what_has_landed_and_writes_nothing_beside_the_first_lake() -> None:
    prod = Account(synthesised("prod"))
    name = role(prod, "IngestRole")
    for folder in ("landing/feed", "partners/in"):
        arn = f"arn:aws:s3:::{folder}/1.parquet"
        bucket, _, prefix = folder.partition("/")
        assert prod.allows(name, Request("s3:GetObject", arn))
        assert prod.allows(name, Request("s3:ListBucket", f"arn:aws:s3:::{bucket}", {"s3:prefix": f"{prefix}/"}))
        for action in ("s3:PutObject", "s3:DeleteObject"):
            assert not prod.allows(name, Request(action, arn)), action
    assert not prod.allows(name, Request("s3:GetObject", "arn:aws:s3:::partners/salaries/1.parquet"))
    state = prod.arn(prod.named("AWS::S3::Bucket", "State"))
    for action in ("s3:PutObject", "s3:DeleteObject"):
        assert prod.allows(name, Request(action, f"{state}/state/live_ingests/one"))
        assert not prod.allows(name, Request(action, f"{state}/state/live_dispatchers/one"))
    lakes = prod.arn(prod.named("AWS::S3::Bucket", "Lakes"))
    entry = dict((NEW.split("=", 1),))
    for lake, may in (
        (f"{lakes}/lake", True),
        (f"{lakes}/finance/eu", False),
        ("arn:aws:s3:::older-lakes/lake", False),
    ):
        assert prod.allows(name, Request("s3:PutObject", f"{lake}/tables/T/{ENTRY}", entry)) is may, lake


def test_the_page_of_a_stage_reads_its_first_lake_and_the_state_and_writes_nothing() -> None:
    prod = Account(synthesised("prod"))
    name = role(prod, "ServeRole")
    state, lakes = (prod.arn(prod.named("AWS::S3::Bucket", each)) for each in ("State", "Lakes"))
    feed = prod.arn(prod.named("AWS::SQS::Queue", "PageFeed"))
    queue = prod.arn(prod.named("AWS::SQS::Queue", "Instructions"))
    entry = f"{lakes}/lake/tables/T/{ENTRY}"
    for request in (
        Request("s3:GetObject", entry),
        Request("s3:GetObject", f"{lakes}/lake/tables/T/iceberg/metadata/v1.metadata.json"),
        Request("s3:GetObject", f"{state}/state/job_runs/run/log/00000000000000000001.json"),
        Request("s3:ListBucket", state, {"s3:prefix": "state/history/days/"}),
        Request("sqs:ReceiveMessage", feed),
        Request("sqs:DeleteMessage", feed),
        Request("sqs:GetQueueAttributes", queue),
        Request("ssmmessages:OpenDataChannel", "*"),
    ):
        assert prod.allows(name, request), request
    written = {"s3:PutObject", "s3:DeleteObject", "sqs:SendMessage", "sns:Publish", "kms:GenerateDataKey"}
    assert not written & {action for each in prod.statements(name) for action in listed(each["Action"])}
    for request in (
        Request("s3:GetObject", f"{state}/state/task_tokens/run/message"),
        Request("s3:GetObject", f"{lakes}/finance/eu/tables/T/{ENTRY}"),
        Request("sqs:ReceiveMessage", queue),
    ):
        assert not prod.allows(name, request), request


def test_an_operator_forwards_the_port_of_the_page_and_opens_no_shell() -> None:
    prod = Account(synthesised("prod"))
    here = f"eu-west-1:{ACCOUNT}"
    task = f"arn:aws:ecs:{here}:task/lithify-prod/abc"
    documents = "arn:aws:ssm:eu-west-1::document/AWS-"
    for who in ("OperatorReadRole", "OperatorActRole"):
        name = role(prod, who)
        for each in (task, f"{documents}StartPortForwardingSession"):
            assert prod.allows(name, Request("ssm:StartSession", each, {"ssm:SessionDocumentAccessCheck": "true"}))
        for each in (f"{documents}StartInteractiveCommand", f"arn:aws:ssm:{here}:document/SSM-SessionManagerRunShell"):
            assert not prod.allows(name, Request("ssm:StartSession", each, {"ssm:SessionDocumentAccessCheck": "true"}))
        assert not prod.allows(name, Request("ssm:StartSession", task, {"ssm:SessionDocumentAccessCheck": "false"}))
        assert not prod.allows(name, Request("ecs:ExecuteCommand", task))


@pytest.mark.parametrize("resource", ["database/elsewhere", "table/elsewhere/acme_orders_v1"])
def test_in_other_databases_nobody_enters_tables(resource: str) -> None:
    prod = Account(synthesised("prod"))
    arn = f"arn:aws:glue:eu-west-1:{ACCOUNT}:{resource}"
    for name in ("DispatcherRole", "KeeperRole"):
        assert not prod.allows(role(prod, name), Request("glue:UpdateTable", arn))
    assert not prod.allows(role(prod, "TableReaderRole"), Request("glue:GetTable", arn))


# ---------------------------------------------------------------------------------------------------- no wildcards


def every_statement(template: Template) -> list[tuple[str, dict[str, object]]]:
    account = Account(template)
    names = [name for name, each in template["Resources"].items() if each["Type"] == "AWS::IAM::Role"]
    return [(name, statement) for name in names for statement in account.statements(name)]


def test_no_role_has_a_wildcard_action(template: Template) -> None:
    for name, statement in every_statement(template):
        assert all("*" not in action for action in listed(statement["Action"])), (name, statement)


def test_a_wildcard_resource_is_only_where_aws_has_nothing_else(template: Template) -> None:
    found = {
        action
        for _, statement in every_statement(template)
        if "*" in listed(statement["Resource"])
        for action in listed(statement["Action"])
    }
    assert found <= NOTHING_NARROWER.keys()


def test_policies_are_in_roles_alone(template: Template) -> None:
    others = {"AWS::IAM::Policy", "AWS::IAM::ManagedPolicy", "AWS::IAM::User", "AWS::IAM::Group"}
    assert not others & {each["Type"] for each in template["Resources"].values()}


def test_no_role_s_policy_is_larger_than_iam_takes(template: Template) -> None:
    for name in {name for name, _ in every_statement(template)}:
        text = json.dumps([each for owner, each in every_statement(template) if owner == name], separators=(",", ":"))
        assert len(text) <= 10_240
