"""What `lithify dispatch` makes of its options, and of the variables that stand for them."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from compactor.model.errors import Invalid
from dispatcher.intake.intake import IntakeSettings
from dispatcher.main import _defaults
from dispatcher.options.option_limits import check_limits
from dispatcher.options.service_options import OptionField, ServiceOptions, option_fields, read_options
from dispatcher.options.settings import POLL_SECONDS_MAX, dispatcher_settings
from dispatcher.running.job_run_controller import JobRunControllerSettings
from dispatcher.scheduling.lease_log import FlowLimits
from dispatcher.service import DrainJobs
from launcher.poller import PollerSettings
from launcher.retrying import RetryPolicy
from launcher.verdict import WatchTimers

NAMED_OTHERWISE = {
    "admission": "allow_lake",
    "s3_region": "region",
    "tick_seconds": "poll_seconds",
}
NOT_TO_BE_SET = {"max_unwatched", "receiver_seconds", "set_aside_seconds", "stuck_seconds"}
REQUIRED = {"queue_url": "q", "state": "s"}


def test_every_setting_of_the_service_is_an_option() -> None:
    settings = {
        field.name
        for kind in (
            *(IntakeSettings, JobRunControllerSettings, FlowLimits),
            *(RetryPolicy, WatchTimers, PollerSettings),
        )
        for field in fields(kind)
    }
    options = {each.name for each in option_fields()}
    assert {NAMED_OTHERWISE.get(name, name) for name in settings - NOT_TO_BE_SET - {"limits"}} <= options


def test_an_option_becomes_the_setting_of_its_name_and_others_keep_their_defaults() -> None:
    options = ServiceOptions(
        work_folder=Path("/data"), max_attempts=7, claim_seconds=5.0, visibility_seconds=9, poll_seconds=0.5, region="r"
    )
    settings = dispatcher_settings(options, sns_regions={})
    assert settings.launcher.retry.max_attempts == 7
    assert settings.controller.claim_seconds == 5.0
    assert settings.controller.tick_seconds == settings.receiver.idle_seconds == 0.5
    assert settings.launcher.poller.poll_seconds == POLL_SECONDS_MAX
    assert settings.intake.visibility_seconds == 9
    assert settings.intake.s3_region == "r"
    assert settings.service.health_file == Path("/data/health.json")
    assert settings.launcher.retry.max_unwatched == RetryPolicy.max_unwatched
    assert settings.controller.set_aside_seconds == JobRunControllerSettings.set_aside_seconds


def test_an_option_comes_from_the_command_line_or_else_from_its_variable_or_else_from_its_default() -> None:
    command_line = {**REQUIRED, "max_sessions": "3", "until_idle": None, "allow_lake": ["s3://a b"]}
    variables = {"max_sessions": "4", "claim_seconds": "7.5", "until_idle": "true", "allow_table": "A.B.V1 A.C.*"}
    options, errors = read_options(command_line, variables)
    assert errors.reasons == []
    assert (options.max_sessions, options.claim_seconds, options.until_idle) == (3, 7.5, True)
    assert options.allow_lake == ("s3://a b",)
    assert options.allow_table == ("A.B.V1", "A.C.*")
    assert options.stall_seconds == WatchTimers.stall_seconds


def test_all_that_is_wrong_is_said_at_once_and_where_it_was_given() -> None:
    command_line = {
        "max_sessions": "0",
        "wait_seconds": "21",
        "stall_seconds": "nan",
        "drain_jobs": "kill",
        "s3_endpoint_url": "here",
    }
    variables = {"claim_seconds": "soon", "until_idle": "maybe", "topic_arn": "events", "deliveries_max": "1.5"}
    options, errors = read_options(command_line, variables)
    assert errors.reasons == [
        "--queue-url is missing: give it, or set LITHIFY_QUEUE_URL",
        "--state is missing: give it, or set LITHIFY_STATE",
        "LITHIFY_TOPIC_ARN: 'events' is no SNS topic: write arn:aws:sns:region:account:name",
        "--s3-endpoint-url: 'here' is not an endpoint: write http://host:port or https://host",
        "--max-sessions: '0' is not a whole number, at least 1",
        "LITHIFY_CLAIM_SECONDS: 'soon' is not a number, at least 0.5",
        "--drain-jobs: 'kill' is none of auto, leave, stop",
        "LITHIFY_UNTIL_IDLE: 'maybe' is not true or false",
        "--stall-seconds: 'nan' is not a number, at least 1",
        "--wait-seconds: '21' is not a whole number, 0 to 20",
        "LITHIFY_DELIVERIES_MAX: '1.5' is not a whole number, at least 1",
    ]
    assert options.max_sessions == 1
    assert "topic_arn" in errors.names


@pytest.mark.parametrize("each", option_fields(), ids=lambda each: each.name)
def test_every_option_comes_from_a_variable_too_and_is_explained(each: OptionField) -> None:
    text = {int: "2", float: "2.5", bool: "true", DrainJobs: "stop"}.get(each.value_type, "s3://bucket/a")
    if each.name == "topic_arn":
        text = "arn:aws:sns:us-east-1:123456789012:events"
    if "endpoint" in each.name:
        text = "http://127.0.0.1:9"
    options, errors = read_options({}, {**REQUIRED, each.name: text})
    assert errors.reasons == []
    assert getattr(options, each.name) not in (None, each.default)
    assert each.variable == f"LITHIFY_{each.name.upper()}"
    assert each.option.help.endswith(".")


def test_shared_options_come_from_one_variable_for_all_commands() -> None:
    given = {"queue_url": "https://queue", "max_sessions": "3"}
    shared = {"queue_url": "https://queue"}
    assert _defaults(["submit", "file.json"], given) == {"submit": {**shared, "file.json": shared}}
    assert _defaults(["events", "publish"], given) == {"events": {**shared, "publish": shared}}
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


def test_limits_that_make_one_another_useless_are_refused_together_and_say_what_to_do() -> None:
    options = ServiceOptions(
        max_sessions=5, max_sessions_in_all=4, max_sessions_per_table=6, max_vcpus_per_table=9, max_vcpus_in_all=8
    )
    with pytest.raises(Invalid) as refused:
        check_limits(options)
    assert refused.value.reasons == (
        "--max-sessions 5 is above --max-sessions-in-all 4: lower the one, or raise the other",
        "--max-sessions-per-table 6 is above --max-sessions-in-all 4: lower the one, or raise the other",
        "--max-vcpus-per-table 9 is above --max-vcpus-in-all 8: lower the one, or raise the other",
        "--max-vcpus-per-table, --max-vcpus-in-all: no cluster is launched for a session without --cluster-settings",
    )


@pytest.mark.parametrize(
    ("option", "value"), [("max_nodes", 3), ("max_usd", 5.0), ("spot_share", 0.5), ("price_file", Path("prices.json"))]
)
def test_an_option_of_clusters_is_refused_where_none_is_launched(option: str, value: object) -> None:
    with pytest.raises(Invalid, match=f"^--{option.replace('_', '-')}: no cluster is launched for a session without"):
        check_limits(ServiceOptions(**{option: value}))  # type: ignore[arg-type]


def test_limits_become_settings_of_the_controller() -> None:
    options = ServiceOptions(max_sessions_in_all=4, max_usd_per_day_per_table=7.5)
    limits = dispatcher_settings(options, sns_regions={}).controller.limits
    assert limits == FlowLimits(max_sessions_in_all=4, max_usd_per_day_per_table=7.5)
