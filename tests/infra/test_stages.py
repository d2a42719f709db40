"""Stages: what is wrong with one is told at once, and nothing is synthesised."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import boto3
import pytest

from compactor.model.clock import SystemClock
from compactor.model.errors import Invalid
from dispatcher.clients import OPTIONS_FROM_ENVIRONMENT
from dispatcher.options.service_options import check_together, option_fields, read_options
from dispatcher.options.settings import cluster_room
from dispatcher.scheduling.limits import Limits, SessionLimits
from infra import dispatcher_environment
from infra.alarms import alarms
from infra.app import checked_stage, main
from infra.aws.regions import SERVERLESS
from infra.dispatcher_environment import EXAMPLE, EXAMPLE_SPARK, OF_THE_WORKFLOW, by_option, check_environment
from infra.keeper import keeper_environment
from infra.queues import QueueNames
from infra.stages import DEV, STAGES
from tests.infra.templates import GIVEN

PROD = GIVEN["prod"][1:4]


def reasons(*arguments: str) -> tuple[str, ...]:
    with pytest.raises(Invalid) as refused:
        checked_stage(arguments)
    return refused.value.reasons


@pytest.mark.parametrize("example", sorted(GIVEN))
def test_the_examples_are_good(example: str) -> None:
    assert checked_stage(GIVEN[example]).name in STAGES


def test_an_unknown_stage_is_refused_with_those_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["staging"]) == 2
    assert capsys.readouterr().err == "there is no stage 'staging': the stages are dev, prod\n"


def test_no_stage_at_all_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "the stages are dev, prod" in capsys.readouterr().err


def test_every_setting_that_is_missing_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prod"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[2] for line in lines] == ["account", "region", "alarm_addresses"]
    assert lines[0] == "stage prod: account is missing: give it, account=..., behind the stage's name"


def test_everything_that_is_wrong_is_told_at_once() -> None:
    found = reasons(
        "dev", "account=12", "region=Ireland", "max_sessions=0", "lakes=lake,lake/inner", "image_tag=a b", "spark=yarn"
    )
    assert found == (
        "stage dev: max_sessions is 0: it must be more than 0",
        "stage dev: account is '12': write its twelve digits, or any",
        "stage dev: region is 'Ireland': write one like eu-west-1",
        "stage dev: lakes: lake/inner and lake overlap: a lake is not inside another",
        "stage dev: image_tag is 'a b': write letters, digits, . - and _",
        "stage dev: spark is 'yarn': write one of emr, emr_serverless, local",
        "stage dev: LITHIFY_MAX_SESSIONS: '0' is not a whole number, at least 1",
    )


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("lakes=s3://states/lake state_bucket=states", "overlaps the state, which has the bucket states for itself"),
        ("lakes=", "lakes is empty: name one at least"),
        (
            "glue_databases=lakehouse,Lake-House",
            "glue_databases: 'Lake-House' is no name: write 1 to 255 small letters",
        ),
        ("lakes=/lake", "'/lake' is no place for a lake"),
        ("lakes=s3://B/lake", "'s3://B/lake' is no place for a lake"),
        ("state_bucket=A", "state_bucket is 'A': write 3 to 63 small letters"),
        ("allow_files=landing", "allow_files: 'landing' is no place of files: write s3://bucket/prefix"),
        ("allow_files=s3://landing", "allow_files: 's3://landing' is no place of files"),
        ("allow_files=s3://states/x state_bucket=states", "is in the bucket of the state, which holds secrets"),
        ("ingests=1 landing=orders", "landing: 'orders' is no folder where files land: write s3://bucket/prefix"),
        ("ingests=1 landing=s3://states/x state_bucket=states", "landing: s3://states/x is in the bucket of the state"),
        ("landing=s3://landing/orders", "landing names folders, and ingests is 0: nothing would take their files in"),
        ("ingests=-1", "ingests is -1: write 0 for none"),
        (
            "ingests=1 lakes=s3://all/lake landing=s3://all/lake/in",
            "landing: s3://all/lake/in overlaps the lake s3://all/lake: what is appended would land again",
        ),
        ("keeper_minutes=168", "keeper_minutes is 168: 60 at most"),
        ("default_policy=hourly", 'default_policy: compact_when.preset is "hourly"'),
        ('default_policy={"lag_seconds":1}', "a session takes 5 seconds or more"),
        ("zones=4", "zones is 4: 3 at most"),
        ("dispatchers=1", "two of each at least, or one fault ends the service"),
        ("nat_gateways=3", "nat_gateways is 3: 0 to 2, one a zone at most"),
        ("cidr=8.8.8.0/24", "write a private network of 16 to 24 bits"),
        ("cidr=10.0.0.1/16", "has host bits set"),
        ("dispatcher_memory_mib=100", "Fargate has no such task"),
        ("drain_seconds=120", "a dispatcher must not be killed while it drains"),
        ("stop_seconds=600", "Fargate kills a task after 120"),
        ("watch_seconds=7200", "take less, or a shorter watch_seconds, or a longer restart_seconds"),
        ("watch_seconds=7200 restart_seconds=600", "continues as a new one after 139 days, and 90 are the most"),
        ("visibility_seconds=50000", "SQS takes 43200 at most"),
        ("retention_days=20", "SQS takes 14 at most"),
        ("dead_letter_days=3", "it would be lost before somebody has read it"),
        ("log_days=8", "CloudWatch takes 1, 3, 5, 7"),
        ("spot_share=2", "spot_share is 2.0: write 0 to 1"),
        ("max_usd=0", "max_usd is 0.0: it must be more than 0"),
        ("usd_per_day=-1", "usd_per_day is -1.0: it must be more than 0"),
        ("alarm_addresses=nobody", "'nobody' is no e-mail address"),
        ("key_arn=alias/lakes", "key_arn is 'alias/lakes': write one like arn:aws:kms:"),
        (
            "key_arn=arn:aws:kms:eu-west-1:123456789012:key/1",
            "key_arn is of eu-west-1, and the stage is in us-east-1: a key is used in its own region",
        ),
        (
            "release_label=emr-6.1.0",
            "the cluster settings: release_label is emr-6.1.0: its Spark and Python are too old",
        ),
        ("endpoint_url=nowhere", "LITHIFY_ENDPOINT_URL"),
        ("workers=2", "workers is 2: a dispatcher with dispatcher_memory_mib 2048 holds 1; take fewer, or more memory"),
        ("spark=local", "workers is 1: a dispatcher with dispatcher_memory_mib 2048 holds 0, beside Spark"),
        ("workers=-1", "workers is -1: write 0 for none"),
        ("dispatcher.max_attempt=2", "the dispatcher has no such option; did you mean 'max_attempts'?"),
        ("dispatcher.max_attempts=none", "LITHIFY_MAX_ATTEMPTS: 'none' is not a whole number"),
        ("dispatcher.max_sessions=4", "dispatcher.max_sessions: it is a setting of the stage, write max_sessions=..."),
        ("dispatcher.state=s3://mine/state", "dispatcher.state: the stack decides it, leave it out"),
        ("dispatcher.task_token=abc", "dispatcher.task_token: the stack decides it, leave it out"),
        ('dispatcher.limits={"session":{"usd":5}}', "dispatcher.limits: session.usd is max_usd of the stage"),
        ('dispatcher.limits={"sesion":{}}', "sesion: there is no such field; did you mean 'session'?"),
        ("max_attempts=2", "it is the dispatcher's: write dispatcher.max_attempts=..."),
        ("max_sesions=4", "a stage has no 'max_sesions'; did you mean 'max_sessions'?"),
        ("max_sessions=many", "max_sessions is 'many': write a whole number"),
        ("flow_logs=maybe", "flow_logs is 'maybe': write true or false"),
        (
            "region=eu-west-1",
            "the stage is in eu-west-1: write its own with `lithify prices --region eu-west-1`, and give price_file=",
        ),
        (
            "price_file=tests/infra/prices-eu-west-1.json",
            "the prices in tests/infra/prices-eu-west-1.json are those of eu-west-1, and the stage is in us-east-1",
        ),
        (
            "region=eu-west-1 workers=0 spark=emr_serverless price_file=tests/infra/prices-eu-west-1.json",
            "the prices of eu-west-1 have none of EMR Serverless: add serverless to the price file",
        ),
        ("dispatcher.instance_type=r99.xlarge", "stage dev: instance type 'r99.xlarge' is unknown in us-east-1"),
        ('dispatcher.limits={"session":{"nodes_min":9}}', "at least 9 nodes and at most 4"),
        ('dispatcher.limits={"all":{"vcpus":2}}', "type r5.xlarge has 4 vCPUs, and a session may take 2"),
        ("spark=local price_file=tests/infra/prices-eu-west-1.json", "no cluster is launched, leave it out"),
        ("price_file=nowhere.json", "the price file nowhere.json cannot be read: No such file"),
        ("price_file=tests/infra/test_stages.py", "tests/infra/test_stages.py: it is not JSON"),
        ("dispatcher.price_file=a.json", "dispatcher.price_file: it is a setting of the stage, write price_file=..."),
        ("region", "'region' is no setting: write name=value"),
        ("region=eu-nowhere-1", "knows no such region"),
    ],
)
def test_invalid_values_are_refused_with_a_correction(given: str, reason: str) -> None:
    assert any(reason in each for each in reasons("dev", *given.split())), reasons("dev", *given.split())


def test_a_region_without_a_service_is_refused_where_boto3_knows() -> None:
    session = boto3.session.Session()
    of_all = [set(session.get_available_regions(each, "aws-iso")) for each in ("sqs", SERVERLESS)]
    (region, *_) = sorted(of_all[0] - of_all[1])
    (reason,) = reasons("dev", f"region={region}", "spark=emr_serverless")
    assert f"region {region} has no {SERVERLESS}, as far as boto3" in reason
    assert checked_stage(["dev", f"region={region}", "spark=local", "workers=0"]).region == region


def test_a_file_that_cannot_be_read_is_told_once() -> None:
    assert len(reasons("dev", "price_file=nowhere.json")) == 1
    of_ireland = ("region=eu-west-1", "price_file=tests/infra/prices-eu-west-1.json", "spark=emr_serverless")
    assert len(reasons("dev", *of_ireland, "workers=0")) == 1


def test_dispatchers_and_the_keeper_of_a_stage_plan_with_the_prices_of_its_region() -> None:
    stage = checked_stage(GIVEN["prod"])
    of_dispatcher = dispatcher_environment.dispatcher_environment(stage, EXAMPLE, EXAMPLE_SPARK, json.dumps)
    options, errors = read_options({}, by_option(of_dispatcher))
    assert errors.reasons == []
    given = options.spark
    room = cluster_room(Limits(), 0.0, given.price_file, (), SystemClock(), "eu-west-1")
    assert (room.prices.region, [each.name for each in room.prices.instance_types]) == ("eu-west-1", ["r6g.4xlarge"])
    assert keeper_environment(stage, EXAMPLE)["LITHIFY_PRICE_FILE"] == given.price_file
    assert "LITHIFY_PRICE_FILE" not in keeper_environment(checked_stage(["dev"]), EXAMPLE)


@pytest.mark.parametrize("minutes", [1, 5, 7, 60])
def test_an_alarm_of_a_late_table_lasts_until_the_next_look_however_far_that_is(minutes: int) -> None:
    raised = {each.name: each for each in alarms(replace(DEV, keeper_minutes=minutes), QueueNames("", "", "", ""))}
    late, silent, seconds = raised["TableLate"], raised["KeeperSilent"], minutes * 60
    assert late.times == 1
    assert late.periods * late.period_seconds >= seconds + late.period_seconds  # the next look may begin late
    assert silent.periods * silent.period_seconds >= 4 * seconds


def test_the_tasks_beside_the_dispatcher_read_every_variable_that_they_are_given() -> None:
    resources = json.loads(Path("tests/infra/golden/prod.template.json").read_text())["Resources"].values()
    tasks = [each["Properties"] for each in resources if each["Type"] == "AWS::ECS::TaskDefinition"]
    containers = [container for task in tasks for container in task["ContainerDefinitions"]]
    beside = [each for each in containers if each["Name"] != "dispatcher"]
    assert {each["Name"] for each in beside} == {"keeper", "ingest", "serve"}
    given = {variable["Name"] for each in beside for variable in each["Environment"]}
    assert {name.removeprefix("LITHIFY_").lower() for name in given} <= {*OPTIONS_FROM_ENVIRONMENT, "log_format"}
    stage = checked_stage([*GIVEN["prod"], "default_policy=streaming"])
    assert keeper_environment(stage, EXAMPLE)["LITHIFY_DEFAULT_POLICY"] == "streaming"


def test_more_instance_types_than_a_task_definition_holds_are_refused(tmp_path: Path) -> None:
    prices = json.loads(Path("tests/infra/prices-eu-west-1.json").read_text())
    (one,) = prices["instance_types"]
    prices["instance_types"] = [{**one, "name": f"r6g.{number}xlarge"} for number in range(300)]
    (tmp_path / "prices.json").write_text(json.dumps(prices))
    (reason,) = reasons("dev", "region=eu-west-1", f"price_file={tmp_path / 'prices.json'}")
    assert "and a task definition has room for 32,000: leave out the instance types" in reason


# ------------------------------------------------------------------------------------------------ the dispatcher's


def environment(**changes: object) -> dict[str, str]:
    stage = replace(DEV, **changes)  # type: ignore[arg-type]
    return dispatcher_environment.dispatcher_environment(stage, EXAMPLE, EXAMPLE_SPARK, json.dumps)


def test_the_dispatcher_reads_every_variable_as_the_stage_means_it() -> None:
    folders = ("s3://landing/orders", "s3://other/in")
    options, errors = read_options({}, by_option(environment(lakes=("lake", "eu/lake"), allow_files=folders)))
    assert errors.reasons == []
    assert options.places.lake == "s3://lake-bucket/lake"
    assert options.dispatcher.intake.admission.lakes == ("s3://lake-bucket/eu/lake",)
    assert options.dispatcher.intake.admission.files == folders
    assert options.places.state == "s3://state-bucket/state"
    assert options.task.settings.heartbeat_seconds == DEV.heartbeat_seconds == 300
    controller = options.dispatcher.controller
    assert controller.max_sessions == DEV.max_sessions
    assert controller.limits.session == SessionLimits(nodes=DEV.max_nodes, vcpus=DEV.max_vcpus, usd=DEV.max_usd)
    assert options.dispatcher.service.metrics_namespace == "Lithify/dev"


def test_a_stage_can_set_every_option_of_the_dispatcher_that_the_stack_does_not_decide() -> None:
    budget = '{"table":{"usd_per_day":50},"session":{"nodes_min":2}}'
    stage = checked_stage(["dev", "dispatcher.max-attempts=7", f"dispatcher.limits={budget}"])
    variables = dispatcher_environment.dispatcher_environment(stage, EXAMPLE, EXAMPLE_SPARK, json.dumps)
    options, errors = read_options({}, by_option(variables))
    assert errors.reasons == []
    controller = options.dispatcher.controller
    assert variables["LITHIFY_MAX_ATTEMPTS"] == "7"
    assert controller.max_job_runs == int(DEV.dispatcher["max_job_runs"])
    assert controller.limits.table.usd_per_day == 50
    assert controller.limits.session == SessionLimits(
        nodes_min=2, nodes=DEV.max_nodes, vcpus=DEV.max_vcpus, usd=DEV.max_usd
    )


def test_the_dispatcher_of_a_stage_without_clusters_is_given_no_limits_of_clusters() -> None:
    """It would refuse them at its start."""
    stage = replace(DEV, spark="local", workers=0)
    check_environment(stage)
    variables = dispatcher_environment.dispatcher_environment(stage, EXAMPLE, None, json.dumps)
    options, errors = read_options({}, by_option(variables))
    assert errors.reasons == []
    check_together(options)
    assert options.dispatcher.controller.limits == Limits()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"spark": "local", "workers": 0, "dispatcher": {"memory_gib": "500"}},
            "500: a dispatcher has 2 ",
        ),
        (
            {"dispatcher": {"master_url": "spark://there:7077"}},
            "there:7077: sessions run on emr",
        ),
    ],
)
def test_what_a_dispatcher_would_refuse_at_its_start_ends_the_synthesis(
    changes: dict[str, object], reason: str
) -> None:
    with pytest.raises(Invalid, match=reason):
        check_environment(replace(DEV, **changes))  # type: ignore[arg-type]


def test_a_variable_that_the_dispatcher_does_not_know_ends_the_synthesis(monkeypatch: pytest.MonkeyPatch) -> None:
    fewer = tuple(each for each in option_fields() if each.name != "limits")
    monkeypatch.setattr(dispatcher_environment, "option_fields", lambda: fewer)
    (reason,) = reasons("dev")
    assert reason == "the dispatcher has no option limits, which the stack gives it"


def test_options_of_the_workflow_are_the_dispatcher_s() -> None:
    assert set(OF_THE_WORKFLOW) <= {each.name for each in option_fields()}
