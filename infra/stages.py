"""Stages: the settings of one deployment of Lithify, as frozen values.

    python -m infra.app dev region=eu-west-1 lakes=lake,finance/eu

A field that is None has no value in its stage: it is given at deployment, as `name=value` after the stage's name. All
errors are reported together (`infra/stage_checks.py`), before anything is synthesised.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import get_args, get_type_hints

from compactor.model.errors import Invalid, refuse_if
from compactor.model.wrong_input import meant
from dispatcher.options.service_options import option_fields

ANY_ACCOUNT = "any"
"""The account of a stage that is deployed to whichever account the credentials lead to."""

OF_DISPATCHER = "dispatcher."
"""The beginning of the name of a setting that is an option of `lithify dispatch`."""

SPARKS = ("emr", "emr_serverless", "local")

RELEASE: str = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]["version"]
"""The release of this checkout."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """
    Attributes:
        account: twelve digits, or `any`
        region: of AWS
        alarm_addresses: e-mail addresses that alarms are sent to
        lakes: each a prefix in the stack's own bucket of lakes, or s3://bucket/prefix of a lake that exists already;
            documents that name no lake mean the first
        allow_files: each s3://bucket/prefix: files below it may be registered in the lakes, in place. Files of another
            bucket have to be readable for this account, and their key, too
        landing: each s3://bucket/prefix: a file that lands below it is announced to `lithify ingest`, which appends it
            to its table. The bucket is of this account and region, and its notifications go to EventBridge
        glue_databases: of the Glue Data Catalog, in the stage's region, that dispatchers and the keeper may enter
            published tables into
        state_bucket: the name of the bucket that the stack makes for the state; empty: CloudFormation chooses
        key_arn: a KMS key for buckets, queues and topics; empty: the stack makes one
        cidr: of the network
        zones: availability zones over which the dispatchers are spread
        nat_gateways: number; 0: tasks and clusters have public addresses; else they are in private subnets
        flow_logs: whether the network's connections are logged

        dispatchers: number that run at a time
        image_tag: of the dispatcher's image in the stack's repository
        dispatcher_cpu: of a dispatcher's task; 1024 is one vCPU
        dispatcher_memory_mib: of a dispatcher's task
        http_port: on which a dispatcher answers probes, inside its task
        heartbeat_seconds: after which a silent dispatcher is replaced
        restart_seconds: between a dispatcher's end and the start of the next; no pause after a missed heartbeat
        drain_seconds: for a dispatcher's sessions to end when it is stopped
        stop_seconds: after which its task is killed
        watch_seconds: between two checks of the length of the workflow's execution
        execution_events_max: after which it continues as a new one
        max_sessions: on clusters at a time, of one dispatcher
        workers: warm processes in a dispatcher's task, which run small sessions without a cluster. The role of the
            dispatcher may write lakes then, as the Spark job's may; 0: it may not, and each session starts a cluster
        dispatcher: other options of `lithify dispatch`, each given as dispatcher.NAME=value, such as
            dispatcher.max_attempts=5

        spark: where sessions run: emr, emr_serverless, or local, which is the dispatcher's own task
        release_label: of EMR
        max_nodes, max_vcpus, max_usd: limits of one session
        spot_share: of a session's worker nodes, from 0 to 1
        price_file: that `lithify prices` has written for the stage's region, read at synthesis; empty: the built-in
            list, which is that of us-east-1. Without prices of its region there is no stage on clusters

        visibility_seconds: time-out of an instruction
        deliveries_max: before the queue itself moves it to the dead letters
        retention_days: of instructions
        dead_letter_days: of dead letters
        log_days: of log lines, and of Spark's logs
        keeper_minutes: between two looks of the keeper at all tables
        default_policy: of tables without `compact_when`: JSON, or a preset; empty: they are left alone
        keeper_hours: between two garbage collections
        grace_hours: of garbage collection
        ingests: number of `lithify ingest` that run at a time, for the first of the lakes; more than 0 once the image
            is in the repository
        serve: whether `lithify serve` runs, over the first of the lakes; true once the image is in the repository, and
            a first job run has ended

        oldest_instruction_seconds, usd_per_day: above which an alarm is raised
        endpoint_url, s3_endpoint_url: if they are not AWS's own"""

    name: str
    account: str | None = None
    region: str | None = None
    alarm_addresses: tuple[str, ...] | None = None
    lakes: tuple[str, ...] = ("lake",)
    allow_files: tuple[str, ...] = ()
    landing: tuple[str, ...] = ()
    glue_databases: tuple[str, ...] = ()
    state_bucket: str = ""
    key_arn: str = ""
    cidr: str = "10.20.0.0/16"
    zones: int = 2
    nat_gateways: int
    flow_logs: bool

    dispatchers: int = 2
    image_tag: str = RELEASE
    dispatcher_cpu: int
    dispatcher_memory_mib: int
    http_port: int = 8080
    heartbeat_seconds: int = 300
    restart_seconds: int = 30
    drain_seconds: int = 80
    stop_seconds: int = 120
    watch_seconds: int = 900
    execution_events_max: int = 15_000
    max_sessions: int
    workers: int
    dispatcher: Mapping[str, str] = field(default_factory=dict)

    spark: str
    release_label: str = "emr-spark-8.0.0"
    max_nodes: int
    max_vcpus: int
    max_usd: float
    spot_share: float = 0.0
    price_file: str = ""

    visibility_seconds: int = 120
    deliveries_max: int = 5
    retention_days: int = 14
    dead_letter_days: int = 14
    log_days: int
    keeper_minutes: int = 5
    default_policy: str = ""
    keeper_hours: int = 24
    grace_hours: int = 168
    ingests: int = 0
    serve: bool = False

    oldest_instruction_seconds: int
    usd_per_day: float
    endpoint_url: str = ""
    s3_endpoint_url: str = ""

    @property
    def containers(self) -> tuple[str, ...]:
        """Their names, which are those of their log groups."""
        return ("dispatcher", "keeper", "ingest", *(("serve",) if self.serve else ()))


DEV = Stage(
    name="dev",
    account=ANY_ACCOUNT,
    region="us-east-1",
    alarm_addresses=(),
    nat_gateways=0,
    flow_logs=False,
    dispatcher_cpu=512,
    dispatcher_memory_mib=2_048,
    max_sessions=4,
    workers=1,
    dispatcher={"max_job_runs": "20"},
    spark="emr",
    max_nodes=4,
    max_vcpus=64,
    max_usd=10,
    log_days=7,
    oldest_instruction_seconds=3_600,
    usd_per_day=50,
)

PROD = Stage(
    name="prod",
    nat_gateways=2,
    flow_logs=True,
    dispatcher_cpu=2_048,
    dispatcher_memory_mib=8_192,
    max_sessions=100,
    workers=2,
    dispatcher={"max_job_runs": "1000"},
    spark="emr",
    max_nodes=100,
    max_vcpus=3_200,
    max_usd=1_000,
    spot_share=0.5,
    log_days=90,
    oldest_instruction_seconds=900,
    usd_per_day=5_000,
)

STAGES: Mapping[str, Stage] = {each.name: each for each in (DEV, PROD)}


def read_stage(name: str, given: Sequence[str]) -> Stage:
    """The stage of this name with the given `name=value` settings. Raises `Invalid` with every error."""
    stage = STAGES.get(name)
    if stage is None:
        raise Invalid(f"there is no stage {name!r}: the stages are {', '.join(STAGES)}")
    values: dict[str, object] = {}
    options = dict(stage.dispatcher)
    reasons: list[str] = []
    for each in given:
        field_name, separator, text = each.partition("=")
        try:
            if not separator:
                raise Invalid(f"{each!r} is no setting: write name=value")
            if field_name.startswith(OF_DISPATCHER):
                options[field_name.removeprefix(OF_DISPATCHER).replace("-", "_")] = text
            else:
                values[field_name] = _value(field_name, text)
        except Invalid as error:
            reasons += error.reasons
    refuse_if(reasons)
    return replace(stage, dispatcher=options, **values)  # type: ignore[arg-type]  # `_value` returns the field's type


def _value(name: str, text: str) -> object:
    names = [each.name for each in fields(Stage) if each.name not in ("name", "dispatcher")]
    if name not in names:
        if name in {each.name for each in option_fields()}:
            raise Invalid(f"a stage has no {name!r}: it is the dispatcher's: write {OF_DISPATCHER}{name}=...")
        raise Invalid(f"a stage has no {name!r}{meant(name, names, ': see infra/stages.py')}")
    hint = get_type_hints(Stage)[name]
    kind = next((each for each in get_args(hint) if each in (str, tuple)), None) or hint
    if "tuple" in str(hint):
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if kind is bool:
        if text not in {"true", "false"}:
            raise Invalid(f"{name} is {text!r}: write true or false")
        return text == "true"
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            raise Invalid(f"{name} is {text!r}: write a {'whole ' if kind is int else ''}number") from None
    return text
