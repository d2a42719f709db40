"""The environment of the dispatcher's task: its options (dispatcher/options/), with the stage's values.

The dispatcher's own parser checks the variables: a variable that it does not know, or reads differently, fails the
synthesis. An option without a variable here has the dispatcher's default.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields

from compactor.model.clock import SystemClock
from compactor.model.errors import Invalid, reasons_of, refuse_if
from compactor.model.wrong_input import meant
from dispatcher.clients import VARIABLE_PREFIX, variable_of
from dispatcher.options.documents import read_limits
from dispatcher.options.service_options import ServiceOptions, check_together, option_fields, read_options
from dispatcher.options.settings import cluster_room
from infra.access.places import ARCHIVE_FOLDER, DEPLOYMENT_TAG, EMR_TAG, LOG_FOLDER
from infra.permissions import JsonObject
from infra.prices import price_document
from infra.stage_checks import STATE_PREFIX
from infra.stages import OF_DISPATCHER, Stage
from launcher.emr.settings import parse_settings

WORK_FOLDER = "/var/lithify"
TMP_FOLDER = "/tmp"
OF_THE_WORKFLOW = ("task_token", "execution_arn")
"""Options that the workflow gives to each task."""


@dataclass(frozen=True)
class Addresses:
    """Addresses of the stack's resources for a dispatcher. Values may be CloudFormation's own expressions."""

    queue_url: str
    dead_letter_queue_url: str
    announcements_url: str
    refused_url: str
    topic_arn: str
    page_feed_url: str
    state_bucket: str
    lake_bucket: str
    region: str
    stack_name: str


@dataclass(frozen=True)
class SparkAddresses:
    """Resources that sessions run on.

    Attributes:
        subnet_ids: one for each zone
        application_id: of EMR Serverless; the fields of EMR are empty then"""

    job_role: str
    subnet_ids: tuple[str, ...] = ()
    service_role: str = ""
    instance_profile: str = ""
    security_configuration: str = ""
    node_group: str = ""
    access_group: str = ""
    application_id: str = ""


EXAMPLE = Addresses(
    queue_url="https://sqs.us-east-1.amazonaws.com/123456789012/instructions",
    dead_letter_queue_url="https://sqs.us-east-1.amazonaws.com/123456789012/dead-letters",
    announcements_url="https://sqs.us-east-1.amazonaws.com/123456789012/announcements",
    refused_url="https://sqs.us-east-1.amazonaws.com/123456789012/refused",
    topic_arn="arn:aws:sns:us-east-1:123456789012:events",
    page_feed_url="https://sqs.us-east-1.amazonaws.com/123456789012/page-feed",
    state_bucket="state-bucket",
    lake_bucket="lake-bucket",
    region="us-east-1",
    stack_name="Lithify-example",
)
EXAMPLE_SPARK = SparkAddresses(
    subnet_ids=("subnet-0123456789abcdef0", "subnet-0123456789abcdef1"),
    service_role="arn:aws:iam::123456789012:role/emr",
    instance_profile="nodes",
    security_configuration="lithify",
    node_group="sg-0123456789abcdef0",
    job_role="arn:aws:iam::123456789012:role/job",
    application_id="00f1abcdefgh2345",
)
"""Values of the right form, in place of those that are known only once the stack is there."""


def lake_uris(stage: Stage, lake_bucket: str) -> tuple[str, ...]:
    return tuple(each if each.startswith("s3://") else f"s3://{lake_bucket}/{each}" for each in stage.lakes)


def state_uri(addresses: Addresses) -> str:
    return f"s3://{addresses.state_bucket}/{STATE_PREFIX}"


def archive_uri(addresses: Addresses) -> str:
    return f"s3://{addresses.state_bucket}/{ARCHIVE_FOLDER}/lithify.tar.gz"


def task_variables(stage: Stage, addresses: Addresses, own: Mapping[str, str]) -> dict[str, str]:
    """The environment of another task of the stack: its own variables, and those of all tasks; none is empty."""
    values = {
        "STATE": state_uri(addresses),
        "REGION": addresses.region,
        "ENDPOINT_URL": stage.endpoint_url,
        "S3_ENDPOINT_URL": stage.s3_endpoint_url,
        "LOG_FORMAT": "json",
        **own,
    }
    return {f"{VARIABLE_PREFIX}{name}": value for name, value in values.items() if value}


def metrics_namespace(stage: Stage) -> str:
    return f"Lithify/{stage.name}"


def dispatcher_environment(
    stage: Stage, addresses: Addresses, spark: SparkAddresses | None, to_json: Callable[[object], str]
) -> dict[str, str]:
    """All variables, by name."""
    lakes = lake_uris(stage, addresses.lake_bucket)
    options: dict[str, object] = {
        "queue_url": addresses.queue_url,
        "dead_letter_queue_url": addresses.dead_letter_queue_url,
        "topic_arn": addresses.topic_arn,
        "state": state_uri(addresses),
        "lake": next(iter(lakes), ""),
        "allow_lake": " ".join(lakes[1:]),
        "allow_files": " ".join(stage.allow_files),
        "region": addresses.region,
        "endpoint_url": stage.endpoint_url,
        "s3_endpoint_url": stage.s3_endpoint_url,
        "work_folder": WORK_FOLDER,
        "max_sessions": stage.max_sessions,
        "workers": stage.workers,
        "visibility_seconds": stage.visibility_seconds,
        "drain_seconds": stage.drain_seconds,
        "http_port": stage.http_port,
        "metrics_namespace": metrics_namespace(stage),
        "task_heartbeat_seconds": stage.heartbeat_seconds,
    }
    if spark is not None:
        options |= {
            "cluster_settings": to_json(cluster_settings(stage, addresses, spark)),
            "limits": _limits(stage),
            "spot_share": stage.spot_share,
            "price_file": price_document(stage),
        }
    options |= _own_options(stage, options)
    known = {each.name for each in option_fields()}
    unknown = sorted(options.keys() - known)
    refuse_if([f"the dispatcher has no option {name}, which the stack gives it" for name in unknown])
    variables = {variable_of(name): f"{value}" for name, value in options.items() if value not in ("", None)}
    return {**variables, f"{VARIABLE_PREFIX}LOG_FORMAT": "json"}


def _own_options(stage: Stage, given: Mapping[str, object]) -> Mapping[str, str]:
    """Those of `stage.dispatcher`. Raises `Invalid` for what the stack decides, or the dispatcher does not know."""
    reasons: list[str] = []
    names = [each.name for each in option_fields()]
    stage_fields = {each.name for each in fields(Stage)}
    for name in stage.dispatcher:
        if name not in names:
            suggestion = meant(name, names, ": see docs/reference/options.md")
            reasons.append(f"{OF_DISPATCHER}{name}: the dispatcher has no such option{suggestion}")
        elif name in stage_fields:
            reasons.append(f"{OF_DISPATCHER}{name}: it is a setting of the stage, write {name}=...")
        elif name in OF_THE_WORKFLOW or (name in given and name != "limits"):
            reasons.append(f"{OF_DISPATCHER}{name}: the stack decides it, leave it out")
    refuse_if(reasons)
    return {name: value for name, value in stage.dispatcher.items() if name != "limits" or name not in given}


def _limits(stage: Stage) -> str:
    """The document of limits: the stage's own, with its settings of one session."""
    session = {"nodes": stage.max_nodes, "vcpus": stage.max_vcpus, "usd": stage.max_usd}
    limits = read_limits(stage.dispatcher.get("limits", "{}"))
    twice = limits.session.model_fields_set & session.keys()
    refuse_if([f"{OF_DISPATCHER}limits: session.{name} is max_{name} of the stage" for name in sorted(twice)])
    document = limits.model_dump(exclude_unset=True)
    return json.dumps(document | {"session": document.get("session", {}) | session})


def cluster_settings(stage: Stage, addresses: Addresses, spark: SparkAddresses) -> JsonObject:
    """The cluster settings, in the form that `launcher/emr/settings.py` reads."""
    common: JsonObject = {
        "region": addresses.region,
        "archive_uri": archive_uri(addresses),
        "log_uri": f"s3://{addresses.state_bucket}/{LOG_FOLDER}/",
        "tags": {DEPLOYMENT_TAG: addresses.stack_name, **dict((EMR_TAG,))},
    }
    if stage.spark == "emr_serverless":
        return common | {
            "kind": "emr_serverless",
            "application_id": spark.application_id,
            "execution_role_arn": spark.job_role,
            "program_uri": f"s3://{addresses.state_bucket}/{ARCHIVE_FOLDER}/main.py",
        }
    groups = {"primary": spark.node_group, "nodes": spark.node_group}
    if spark.access_group:
        groups["service_access"] = spark.access_group
    return common | {
        "kind": "emr",
        "release_label": stage.release_label,
        "subnet_ids": list(spark.subnet_ids),
        "use_fleets": len(spark.subnet_ids) > 1,
        "service_role": spark.service_role,
        "instance_profile": spark.instance_profile,
        "security_configuration": spark.security_configuration,
        "security_groups": groups,
    }


def check_environment(stage: Stage) -> None:
    """Raises `Invalid` with every error that a dispatcher of this stage would report at its start."""
    spark = None if stage.spark == "local" else EXAMPLE_SPARK
    environment = dispatcher_environment(stage, EXAMPLE, spark, json.dumps)
    options, errors = read_options({}, by_option(environment))
    reasons = [*errors.reasons, *reasons_of(check_together, options), *reasons_of(_check_places, options, stage)]
    if spark is not None:
        reasons += (*reasons_of(_check_settings, options, stage), *reasons_of(_check_room, options, stage))
    refuse_if([f"stage {stage.name}: {reason}" for reason in reasons])


def _check_places(options: ServiceOptions, stage: Stage) -> None:
    """Where sessions run, as the dispatcher checks it on its machine."""
    spark, task_gib = options.spark, stage.dispatcher_memory_mib / 1_024
    if spark.master_url is not None and spark.cluster_settings is not None:
        raise Invalid(f"dispatcher.master_url is {spark.master_url}: sessions run on {stage.spark}, so leave it out")
    is_here = spark.master_url is None and spark.cluster_settings is None
    if is_here and (spark.memory_gib or 0) > task_gib:
        raise Invalid(
            f"dispatcher.memory_gib is {spark.memory_gib:g}: a dispatcher has {task_gib:g} GiB (dispatcher_memory_mib)"
        )


def _check_settings(options: ServiceOptions, _: Stage) -> None:
    parse_settings((options.spark.cluster_settings or "").encode(), "the cluster settings")


def _check_room(options: ServiceOptions, stage: Stage) -> None:
    """Limits, prices and instance types together, as the dispatcher reads them at its start."""
    limits, given = options.dispatcher.controller.limits, options.spark
    serverless = stage.spark == "emr_serverless"
    cluster_room(limits, given.spot_share, given.price_file, given.instance_type, SystemClock(), serverless=serverless)


def by_option(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables, in the form that `read_options` takes."""
    return {name.removeprefix(VARIABLE_PREFIX).lower(): value for name, value in environment.items()}
