"""What `lithify dispatch` makes of its options, and of the variables that stand for them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

import pytest

from compactor.model.errors import Invalid
from dispatcher.assembly import DispatcherSettings
from dispatcher.intake.receiver import ReceiverSettings
from dispatcher.main import _defaults
from dispatcher.options.documents import document_body, read_limits
from dispatcher.options.service_options import (
    GONE,
    OptionField,
    ServiceOptions,
    SparkOptions,
    check_together,
    option_fields,
    read_options,
    unknown_options,
)
from dispatcher.options.settings import cluster_room, dispatcher_settings
from dispatcher.scheduling.limits import JobRunLimits, Limits, SessionLimits, SharedLimits
from dispatcher.service import DrainJobs
from launcher.verdict import WatchTimers
from tests.fakes.manual_clock import ManualClock

REQUIRED = {"queue_url": "q", "state": "s"}
OPTIONS_MAX = 45


def given(**variables: str) -> ServiceOptions:
    options, errors = read_options({}, {**REQUIRED, **variables})
    assert errors.reasons == []
    return options


def test_an_option_is_a_setting_of_its_component_and_all_others_keep_theirs() -> None:
    options = given(work_folder="/data", max_attempts="7", claim_seconds="5", visibility_seconds="9", region="r")
    settings = dispatcher_settings(options, sns_regions={})
    plain = DispatcherSettings()
    assert settings.launcher == replace(plain.launcher, retry=replace(plain.launcher.retry, max_attempts=7))
    assert settings.controller.claim_seconds == 5.0
    assert (settings.intake.visibility_seconds, settings.intake.s3_region) == (9, "r")
    assert settings.service.health_file == Path("/data/health.json")
    assert settings.receiver == plain.receiver
    assert settings.bundles == plain.bundles


def test_what_no_option_says_is_as_the_caller_of_the_command_says() -> None:
    quick = DispatcherSettings(receiver=ReceiverSettings(wait_seconds=0))
    options, _ = read_options({}, {**REQUIRED, "max_job_runs": "3"}, settings=quick)
    assert options.dispatcher.receiver.wait_seconds == 0
    assert options.dispatcher.controller.max_job_runs == 3


def test_an_option_comes_from_the_command_line_or_else_from_its_variable_or_else_from_its_default() -> None:
    command_line = {**REQUIRED, "max_sessions": "3", "until_idle": None, "allow_lake": ["s3://a b"]}
    variables = {"max_sessions": "4", "claim_seconds": "7.5", "until_idle": "true", "allow_table": "A.B.V1 A.C.*"}
    options, errors = read_options(command_line, variables)
    assert errors.reasons == []
    settings = options.dispatcher
    assert (settings.controller.max_sessions, settings.controller.claim_seconds) == (3, 7.5)
    assert settings.service.until_idle
    assert settings.intake.admission.lakes == ("s3://a b",)
    assert settings.intake.admission.tables == ("A.B.V1", "A.C.*")
    assert settings.launcher.timers.stall_seconds == WatchTimers.stall_seconds


def test_all_that_is_wrong_is_said_at_once_and_where_it_was_given() -> None:
    command_line = {
        "max_sessions": "0",
        "patience_seconds": "-1",
        "stall_seconds": "nan",
        "drain_jobs": "kill",
        "s3_endpoint_url": "here",
        "limits": '{"all": {"session": 3}}',
    }
    variables = {"claim_seconds": "soon", "until_idle": "maybe", "topic_arn": "events", "turn_look_seconds": "3"}
    unknown = ["--max-nodes", "20", "--max-sesions=4", "more"]
    options, errors = read_options(command_line, variables, unknown=unknown)
    assert errors.reasons == [
        '--max-nodes is gone: write {"session": {"nodes": N}} in --limits',
        "--max-sesions: there is no such option; did you mean '--max-sessions'?",
        "'more' belongs to no option: leave it out",
        "LITHIFY_TURN_LOOK_SECONDS is gone: leave it out, it cannot be set any more",
        "--queue-url is missing: give it, or set LITHIFY_QUEUE_URL",
        "--state is missing: give it, or set LITHIFY_STATE",
        "LITHIFY_TOPIC_ARN: 'events' is no SNS topic: write arn:aws:sns:region:account:name",
        "--s3-endpoint-url: 'here' is not an endpoint: write http://host:port or https://host",
        "--max-sessions: '0' is not a whole number, at least 1",
        "--limits: all.session: there is no such field; did you mean 'sessions'?",
        "LITHIFY_CLAIM_SECONDS: 'soon' is not a number, at least 0.5",
        "--drain-jobs: 'kill' is none of auto, leave, stop",
        "LITHIFY_UNTIL_IDLE: 'maybe' is not true or false",
        "--patience-seconds: '-1' is not a number, at least 0",
        "--stall-seconds: 'nan' is not a number, at least 1",
    ]
    assert options.dispatcher.controller.max_sessions == 1
    assert "topic_arn" in errors.names


@pytest.mark.parametrize("each", option_fields(), ids=lambda each: each.name)
def test_every_option_comes_from_a_variable_too_and_is_explained(each: OptionField) -> None:
    text = {int: "2", float: "0.75", bool: "true", DrainJobs: "stop", Limits: '{"job_run": {"usd": 2}}'}.get(
        each.value_type, "s3://bucket/a"
    )
    if (each.option.minimum or 0) >= 0.75:
        text = "2"
    if each.name == "topic_arn":
        text = "arn:aws:sns:us-east-1:123456789012:events"
    if "endpoint" in each.name:
        text = "http://127.0.0.1:9"
    options, errors = read_options({}, {**REQUIRED, each.name: text})
    assert errors.reasons == []
    assert attrgetter(each.option.path)(options) not in (None, each.default)
    assert each.variable == f"LITHIFY_{each.name.upper()}"
    assert each.option.help.endswith(".")


def test_options_are_few_and_none_has_the_name_of_one_that_is_gone() -> None:
    names = [each.name for each in option_fields()]
    assert len(names) == len(set(names)) <= OPTIONS_MAX
    assert not GONE.keys() & set(names)


@pytest.mark.parametrize("name", GONE)
def test_an_option_that_is_gone_is_refused_with_what_to_write(name: str) -> None:
    flag = f"--{name.replace('_', '-')}"
    (reason,) = unknown_options([flag, "1"], [])
    assert reason == f"{flag} is gone: {GONE[name]}"
    (limits,) = [part.split(" in --limits")[0] for part in [GONE[name].removeprefix("write ")]]
    if limits.startswith("{"):
        assert read_limits(limits.replace("N", "2")) != Limits()


def test_shared_options_come_from_one_variable_for_all_commands() -> None:
    given = {"queue_url": "https://queue", "max_sessions": "3"}
    shared = {"queue_url": "https://queue"}
    assert _defaults(["gc", "queue_url"], given) == {"gc": shared}
    assert _defaults(["events", "publish"], given) == {"events": {"publish": shared}}
    assert _defaults(["dispatch"], given) == {}


@pytest.mark.parametrize(
    ("drain_jobs", "run_elsewhere", "process_id", "stops"),
    [
        (DrainJobs.AUTO, False, 7, False),
        (DrainJobs.AUTO, False, 1, True),
        (DrainJobs.AUTO, True, 1, False),
        (DrainJobs.LEAVE, False, 1, False),
        (DrainJobs.STOP, True, 7, True),
    ],
)
def test_a_drain_stops_only_what_would_end_with_the_container_or_was_asked_to_end(
    drain_jobs: DrainJobs, run_elsewhere: bool, process_id: int, stops: bool
) -> None:
    assert drain_jobs.stops_them(run_elsewhere=run_elsewhere, process_id=process_id) is stops


# ---------------------------------------------------------------------------------------------------- the limits


def reasons_of(limits: Mapping[str, object], **variables: str) -> tuple[str, ...]:
    with pytest.raises(Invalid) as refused:
        check_together(given(limits=json.dumps(limits), **variables))
    return refused.value.reasons


def test_limits_that_make_one_another_useless_are_refused_together_and_say_what_to_do() -> None:
    limits = {"all": {"sessions": 4, "vcpus": 8}, "table": {"sessions": 6, "vcpus": 9}, "dispatcher": {"vcpus": 10}}
    vcpus = "table.vcpus, dispatcher.vcpus, all.vcpus"
    assert reasons_of(limits, max_sessions="5") == (
        "--limits: table.sessions 6 is above all.sessions 4: lower the one, or raise the other",
        "--limits: dispatcher.vcpus 10 is above all.vcpus 8: lower the one, or raise the other",
        "--limits: table.vcpus 9 is above all.vcpus 8: lower the one, or raise the other",
        "--max-sessions 5 is above all.sessions 4 of --limits: lower the one, or raise the other",
        f"--limits ({vcpus}): no cluster is launched for a session without --cluster-settings",
    )


@pytest.mark.parametrize("narrow", ["dispatcher", "table"])
@pytest.mark.parametrize("name", ["clusters", "vcpus", "usd_per_day"])
def test_a_share_may_not_be_above_the_whole(narrow: str, name: str) -> None:
    limits = {narrow: {name: 2}, "all": {name: 1}}
    assert f"--limits: {narrow}.{name} 2 is above all.{name} 1" in reasons_of(limits, cluster_settings="{}")[0]
    check_together(given(limits=json.dumps({narrow: {name: 1}, "all": {name: 1}}), cluster_settings="{}"))


def test_a_session_may_not_cost_more_than_its_job_run() -> None:
    limits = {"session": {"usd": 3}, "job_run": {"usd": 2.5}}
    assert reasons_of(limits, cluster_settings="{}") == (
        "--limits: session.usd 3 is above job_run.usd 2.5: lower the one, or raise the other",
    )


@pytest.mark.parametrize(
    ("spark", "named"),
    [
        (SparkOptions(spot_share=0.5), "--spot-share"),
        (SparkOptions(price_file="prices.json"), "--price-file"),
        (SparkOptions(instance_type=("r5.xlarge",)), "--instance-type"),
    ],
)
def test_an_option_of_clusters_is_refused_where_none_is_launched(spark: SparkOptions, named: str) -> None:
    with pytest.raises(Invalid, match=f"^{named}: no cluster is launched for a session without"):
        check_together(ServiceOptions(spark=spark))


def test_a_limit_of_sessions_needs_no_cluster_and_any_other_does() -> None:
    check_together(given(limits='{"table": {"sessions": 2}, "all": {"sessions": 3}}'))
    (reason,) = reasons_of({"session": {"nodes": 3}, "job_run": {"usd": 5}})
    assert reason.startswith("--limits (session.nodes, job_run.usd): no cluster is launched")


def test_limits_are_the_controller_s_and_those_of_a_session_choose_its_cluster() -> None:
    options = given(limits='{"all": {"sessions": 4, "vcpus": 64}, "session": {"nodes": 7, "usd": 2}}')
    limits = dispatcher_settings(options, sns_regions={}).controller.limits
    assert limits == Limits(all=SharedLimits(sessions=4, vcpus=64), session=SessionLimits(nodes=7, usd=2))
    room = cluster_room(limits, 0.5, None, (), ManualClock())
    assert (room.limits.nodes_max, room.limits.usd_max, room.limits.spot_share) == (7, 2, 0.5)
    assert room.limits.vcpus_max == 64, "no session may take more than all may together"


@pytest.mark.parametrize(
    "limits",
    [{"job_run": {"usd": 1.5}}, *({share: {"usd_per_day": 1.5}} for share in ("dispatcher", "table", "all"))],
    ids=str,
)
def test_a_session_that_no_budget_could_ever_hold_is_refused_and_does_not_wait_for_ever(
    limits: Mapping[str, object],
) -> None:
    for usd, most in ((1, 1.0), (2, 1.5)):
        of_all = given(limits=json.dumps({"session": {"usd": usd}, **limits})).dispatcher.controller.limits
        assert cluster_room(of_all, 0, None, (), ManualClock()).limits.usd_max == most


@pytest.mark.parametrize(
    ("text", "reasons"),
    [
        ("{", ["it is not JSON"]),
        ('{"all": "\udcff"}', ["it is not JSON"]),
        ('{"tables": {}}', ["tables: there is no such field; did you mean 'table'?"]),
        ('{"job_run": {"x": 1}}', ["job_run.x: there is no such field: it takes usd"]),
        ('{"dispatcher": {"sessions": 2}}', ["dispatcher.sessions: there is no such field: it takes clusters"]),
        ('{"all": {"sessions": 0, "vcpus": "8"}}', ['all.vcpus is "8": it must be', "all.sessions is 0: it must be"]),
        ('{"all": []}', ["all is []: it must be"]),
    ],
)
def test_limits_that_are_none_are_refused_with_every_reason(text: str, reasons: list[str]) -> None:
    with pytest.raises(Invalid) as refused:
        read_limits(text, "--limits")
    for reason, expected in zip(refused.value.reasons, reasons, strict=True):
        assert reason.startswith(f"--limits: {expected}")


def test_a_document_may_be_given_as_it_is_or_as_a_file(tmp_path: Path) -> None:
    file = tmp_path / "limits.json"
    file.write_text('{"job_run": {"usd": 5}}')
    assert read_limits(str(file)) == read_limits(f" {file.read_text()}") == Limits(job_run=JobRunLimits(usd=5))
    assert document_body(str(file), "the limits")[1] == str(file)
    with pytest.raises(Invalid, match=r"^the cluster settings .*nowhere\.json cannot be read: No such file"):
        document_body(str(tmp_path / "nowhere.json"), "the cluster settings")
    file.write_text('{"job_run": {"usd": 5, "usd": 500}}')
    with pytest.raises(Invalid, match=r'limits\.json: field "usd" stands more than once'):
        read_limits(str(file))
    with pytest.raises(Invalid, match=r'^--limits: field "usd" stands more than once'):
        read_limits(file.read_text(), "--limits")
