"""Every option of `lithify dispatch`: its name, type, default, bounds and help. One field is one option.

`--max-sessions` and the variable LITHIFY_MAX_SESSIONS both give the field `max_sessions`; the command line wins. Values
arrive as text and are parsed here, so that all violations are reported together. `dispatcher/options/settings.py`
turns options into settings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Annotated, get_args, get_origin, get_type_hints

from compactor.model.endpoints import checked_endpoint
from compactor.model.errors import Invalid
from compactor.planning.bundle_plan import BundleBounds
from compactor.storage.location import parse_location
from dispatcher.clients import variable_of
from dispatcher.intake.instruction import parse_topic
from dispatcher.intake.intake import IntakeSettings
from dispatcher.operations.http_server import HttpAddress
from dispatcher.operations.metrics import parse_namespace
from dispatcher.records.history_upkeep import HistorySettings
from dispatcher.running.job_run_controller import JobRunControllerSettings
from dispatcher.service import DrainJobs, ServiceSettings
from dispatcher.workflow.dispatcher_task import TaskSettings
from launcher.poller import PollerSettings
from launcher.retrying import RetryPolicy
from launcher.sizing.cluster_choice import ClusterLimits
from launcher.verdict import WatchTimers

VISIBILITY_SECONDS_MAX = 43_200
"""SQS hides a message for 12 hours at most."""


@dataclass(frozen=True)
class Option:
    """
    help         one phrase for `--help`
    minimum      of a number
    maximum      of a number that has a minimum
    check        raises `Invalid` for a text that can never work
    is_required  there is no default
    """

    help: str
    minimum: float | None = None
    maximum: float | None = None
    check: Callable[[str], object] | None = None
    is_required: bool = False


@dataclass(frozen=True, kw_only=True)
class ServiceOptions:
    """The options, read. Where they become settings of the same meaning, they have the settings' names and defaults."""

    # -- where things are
    queue_url: Annotated[str, Option("The SQS queue of instruction documents.", is_required=True)] = ""
    state: Annotated[
        str,
        Option(
            "Where job runs are recorded: s3://bucket/prefix, file:///path or a path.",
            check=parse_location,
            is_required=True,
        ),
    ] = ""
    dead_letter_queue_url: Annotated[
        str | None, Option("The dead-letter queue, if it is not the one of the queue's redrive policy.")
    ] = None
    topic_arn: Annotated[
        str | None, Option("The SNS topic for events, unless an instruction names one.", check=parse_topic)
    ] = None
    lake: Annotated[str | None, Option("The lake of documents that name no delta_catalog.", check=parse_location)] = (
        None
    )
    endpoint_url: Annotated[
        str | None, Option("The endpoint of SQS and SNS, if it is not AWS's own.", check=checked_endpoint)
    ] = None
    s3_endpoint_url: Annotated[
        str | None, Option("The endpoint of S3, if it is not AWS's own.", check=checked_endpoint)
    ] = None
    region: Annotated[str | None, Option("The AWS region.")] = None
    work_folder: Annotated[Path, Option("The folder for Spark's output and scratch files.")] = Path(".lithify")

    # -- where sessions run
    cluster_settings: Annotated[
        str | None,
        Option("JSON, or a file of it: sessions run on EMR or EMR Serverless, with these settings; default: here."),
    ] = None
    master_url: Annotated[
        str | None, Option("A standalone Spark for sessions, spark://host:port; default: this machine.")
    ] = None
    archive: Annotated[
        Path | None, Option("The Python environment of that Spark's workers, made by `lithify archive`.")
    ] = None
    executor_cores: Annotated[
        int | None, Option("Tasks of one executor of that Spark; default: all cores that a worker offers.", minimum=1)
    ] = None
    driver_host: Annotated[
        str | None, Option("The name by which that Spark's workers reach this machine; default: its host name.")
    ] = None
    price_file: Annotated[
        Path | None, Option("JSON: instance types and their prices, instead of the built-in list.")
    ] = None
    instance_type: Annotated[tuple[str, ...], Option("An instance type for clusters; default: all of the list.")] = ()
    min_nodes: Annotated[int, Option("Least number of worker nodes of a session's cluster.")] = ClusterLimits.nodes_min
    max_nodes: Annotated[int, Option("Largest number of worker nodes of a session's cluster.")] = (
        ClusterLimits.nodes_max
    )
    max_vcpus: Annotated[int | None, Option("Largest number of vCPUs of a session's worker nodes.")] = (
        ClusterLimits.vcpus_max
    )
    max_usd: Annotated[float | None, Option("Most US dollars that a session may be expected to cost.")] = (
        ClusterLimits.usd_max
    )
    spot_share: Annotated[float, Option("Share of the worker nodes on Spot, 0 to 1; at least one node is not.")] = (
        ClusterLimits.spot_share
    )
    cluster_start_seconds: Annotated[
        float, Option("Expected time from the request for a cluster to its first task.")
    ] = ClusterLimits.start_seconds
    cluster_sweep_seconds: Annotated[
        float, Option("Time between the two looks after which a cluster without an owner is ended.", minimum=1)
    ] = ServiceSettings.cluster_sweep_seconds

    # -- how much at a time
    max_sessions: Annotated[int, Option("Sessions at a time, over all job runs.", minimum=1)] = 1
    max_job_runs: Annotated[int, Option("Job runs that this dispatcher works on at a time.", minimum=1)] = (
        JobRunControllerSettings.max_job_runs
    )
    max_sessions_per_table: Annotated[
        int | None, Option("Sessions of one table at a time, over all dispatchers.", minimum=1)
    ] = None
    max_sessions_in_all: Annotated[
        int | None, Option("Sessions at a time, over all dispatchers of the state.", minimum=1)
    ] = None
    max_clusters_per_dispatcher: Annotated[
        int | None, Option("Clusters of this dispatcher's sessions at a time.", minimum=1)
    ] = None
    max_clusters_per_table: Annotated[
        int | None, Option("Clusters of one table's sessions at a time, over all dispatchers.", minimum=1)
    ] = None
    max_clusters_in_all: Annotated[
        int | None, Option("Clusters at a time, over all dispatchers of the state.", minimum=1)
    ] = None
    max_vcpus_per_dispatcher: Annotated[
        int | None, Option("vCPUs of the worker nodes of this dispatcher's clusters at a time.", minimum=1)
    ] = None
    max_vcpus_per_table: Annotated[
        int | None, Option("vCPUs of one table's clusters at a time, over all dispatchers.", minimum=1)
    ] = None
    max_vcpus_in_all: Annotated[
        int | None, Option("vCPUs of clusters at a time, over all dispatchers of the state.", minimum=1)
    ] = None
    max_usd_per_run: Annotated[
        float | None, Option("US dollars that the clusters of a job run may cost; then it waits.", minimum=0.01)
    ] = None
    max_usd_per_day_per_dispatcher: Annotated[
        float | None, Option("US dollars that this dispatcher's clusters may cost on a day (UTC).", minimum=0.01)
    ] = None
    max_usd_per_day_per_table: Annotated[
        float | None, Option("US dollars that one table's clusters may cost on a day (UTC).", minimum=0.01)
    ] = None
    max_usd_per_day_in_all: Annotated[
        float | None, Option("US dollars that all clusters of the state may cost on a day (UTC).", minimum=0.01)
    ] = None
    turn_look_seconds: Annotated[
        float,
        Option("Pause between two looks at what others run, while something waits for it to end.", minimum=0.01),
    ] = JobRunControllerSettings.turn_look_seconds
    bundle_sessions: Annotated[
        int, Option("Largest number of small sessions of a job run that share a Spark job; 1: none do.", minimum=1)
    ] = BundleBounds.sessions
    bundle_seconds: Annotated[float, Option("Longest predicted time of such a Spark job.", minimum=1)] = (
        BundleBounds.seconds
    )
    cores: Annotated[int | None, Option("Cores for all sessions together; default: the machine's.", minimum=1)] = None
    memory_gib: Annotated[
        float | None, Option("Memory for all sessions together, in GiB; default: 3/4 of the machine's.", minimum=1)
    ] = None

    # -- taking over, and stopping
    drain_seconds: Annotated[float, Option("Time that running sessions get to end after SIGTERM.", minimum=0)] = (
        ServiceSettings.drain_seconds
    )
    claim_seconds: Annotated[
        float, Option("Silence of a dispatcher after which others take over its job runs.", minimum=0.5)
    ] = JobRunControllerSettings.claim_seconds
    sweep_seconds: Annotated[
        float, Option("Pause between two searches for job runs without a dispatcher.", minimum=0)
    ] = JobRunControllerSettings.sweep_seconds
    drain_jobs: Annotated[
        DrainJobs,
        Option(
            "What becomes of Spark jobs that outlast a drain: left for the next dispatcher, or stopped; "
            "auto: left, unless they end with this container."
        ),
    ] = DrainJobs.AUTO
    pause_look_seconds: Annotated[
        float, Option("Pause between two looks for job runs, tables or everything being paused.", minimum=0)
    ] = JobRunControllerSettings.pause_look_seconds
    until_idle: Annotated[bool, Option("Stop when the queue is empty and every job run has ended.")] = False

    # -- the history of job runs that have ended
    history_seconds: Annotated[
        float, Option("Pause between two rounds that close days of the history and clean old ones.", minimum=1)
    ] = HistorySettings.history_seconds
    keep_plans_days: Annotated[
        float,
        Option(
            "Days for which plans, heartbeats and cursors of ended job runs are kept; logs are for good.", minimum=0
        ),
    ] = HistorySettings.keep_plans_days

    # -- who looks after it
    http_port: Annotated[
        int | None,
        Option("Port for /live, /ready and /metrics; 0 is any that is free.", minimum=0, maximum=65_535),
    ] = None
    http_host: Annotated[str, Option("Address where they are served; 0.0.0.0 is every interface.")] = HttpAddress.host
    embedded_metrics_seconds: Annotated[
        float | None,
        Option("Pause between two writes of metrics to stdout, in CloudWatch's embedded format.", minimum=1),
    ] = None
    metrics_namespace: Annotated[str, Option("Namespace of these metrics.", check=parse_namespace)] = (
        ServiceSettings.metrics_namespace
    )
    stuck_seconds: Annotated[
        float, Option("Time without a tick after which a dispatcher says that it is stuck.", minimum=1)
    ] = JobRunControllerSettings.stuck_seconds
    cancel_abandoned: Annotated[bool, Option("Cancel a job run once all workflows that asked for it gave up.")] = False
    task_token: Annotated[
        str | None,
        Option(
            "Task token of the workflow whose task this dispatcher is. Set LITHIFY_TASK_TOKEN, or give "
            "--task-token-file: everybody on the machine can read a command line."
        ),
    ] = None
    task_token_file: Annotated[Path | None, Option("A file that holds the task token.")] = None
    execution_arn: Annotated[str | None, Option("That workflow's execution, whose events and days are counted.")] = None
    task_heartbeat_seconds: Annotated[float, Option("HeartbeatSeconds of the state that waits.", minimum=1)] = (
        TaskSettings.heartbeat_seconds
    )
    task_days_max: Annotated[
        float, Option("Days of the execution after which the dispatcher hands over.", minimum=0.001, maximum=365)
    ] = TaskSettings.days_max
    task_events_max: Annotated[
        int, Option("Events of the execution after which it does.", minimum=1, maximum=25_000)
    ] = TaskSettings.events_max

    # -- a session's attempts
    start_seconds: Annotated[
        float, Option("Time for a Spark job to start, before its attempt has stalled.", minimum=1)
    ] = WatchTimers.start_seconds
    stall_seconds: Annotated[float, Option("Time without progress, before an attempt has stalled.", minimum=1)] = (
        WatchTimers.stall_seconds
    )
    exit_seconds: Annotated[
        float, Option("Time for a Spark process to exit after its session has ended.", minimum=0.1)
    ] = WatchTimers.exit_seconds
    max_attempts: Annotated[
        int, Option("Attempts of a session that crashes, stalls or runs out of memory.", minimum=1)
    ] = RetryPolicy.max_attempts
    patience_seconds: Annotated[
        float, Option("Time that a session waits for unavailable services, or for room on the cluster.", minimum=0)
    ] = RetryPolicy.patience_seconds
    retry_seconds: Annotated[
        float, Option("Pause before a session's second attempt; doubled before each further one.", minimum=0)
    ] = RetryPolicy.retry_seconds
    retry_seconds_max: Annotated[float, Option("The longest pause between two attempts.", minimum=0)] = (
        RetryPolicy.retry_seconds_max
    )
    requeue_seconds: Annotated[
        float, Option("Pause before a session is run again that the state's service did not answer.", minimum=0)
    ] = JobRunControllerSettings.requeue_seconds

    # -- polling, and events
    wait_seconds: Annotated[int, Option("Length of one long poll of the queue.", minimum=0, maximum=20)] = 10
    poll_seconds: Annotated[float, Option("Pause between two looks at what runs.", minimum=0.01)] = 1.0
    look_seconds: Annotated[
        float,
        Option("Pause between two looks at a session's log and heartbeat, and at a far cluster.", minimum=0.01),
    ] = PollerSettings.look_seconds
    heartbeat_event_seconds: Annotated[
        float, Option("Least time between two heartbeat events of a session.", minimum=0)
    ] = JobRunControllerSettings.heartbeat_event_seconds

    # -- what documents may name
    allow_lake: Annotated[
        tuple[str, ...],
        Option("A lake, or a folder above lakes, that documents may name beside --lake; s3:// for any on S3."),
    ] = ()
    allow_table: Annotated[tuple[str, ...], Option("A table that documents may name, or 'ACME.*'; default: any.")] = ()
    allow_topic: Annotated[
        tuple[str, ...], Option("A topic that documents may name beside --topic-arn, or 'arn:aws:sns:...*'.")
    ] = ()
    allow_files: Annotated[
        tuple[str, ...], Option("A folder of files that a lake on S3 may name although they lie outside of it.")
    ] = ()

    # -- messages
    visibility_seconds: Annotated[
        int,
        Option(
            "Time after which a killed dispatcher's messages are delivered again.",
            minimum=1,
            maximum=VISIBILITY_SECONDS_MAX,
        ),
    ] = IntakeSettings.visibility_seconds
    judging_seconds: Annotated[
        int,
        Option("Time to judge a message, before another dispatcher may.", minimum=1, maximum=VISIBILITY_SECONDS_MAX),
    ] = IntakeSettings.judging_seconds
    put_back_seconds: Annotated[
        int,
        Option("Shortest pause of a message that cannot be judged now.", minimum=0, maximum=VISIBILITY_SECONDS_MAX),
    ] = IntakeSettings.put_back_seconds
    put_back_seconds_max: Annotated[
        int, Option("Longest pause of such a message.", minimum=0, maximum=VISIBILITY_SECONDS_MAX)
    ] = IntakeSettings.put_back_seconds_max
    message_patience_seconds: Annotated[
        int, Option("Time before a message is given up because a service is unavailable.", minimum=0)
    ] = IntakeSettings.message_patience_seconds
    deliveries_max: Annotated[
        int, Option("Deliveries before a message is given up for any other reason.", minimum=1)
    ] = IntakeSettings.deliveries_max


@dataclass(frozen=True)
class OptionField:
    """One option as the command line knows it. `value_type`: without `None`, and of a tuple the tuple's elements'."""

    name: str
    option: Option
    value_type: type
    is_repeatable: bool
    default: object

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"

    @property
    def variable(self) -> str:
        return variable_of(self.name)

    @property
    def choices(self) -> tuple[str, ...]:
        """Of an enumeration, all values."""
        return tuple(self.value_type) if issubclass(self.value_type, StrEnum) else ()

    def help_text(self) -> str:
        """The help, with the bounds and the default."""
        notes = []
        if self.option.is_required:
            notes.append("required")
        if self.option.minimum is not None:
            notes.append(_bounds(self.option))
        if self.default not in (None, (), False) and not self.option.is_required:
            notes.append(f"default {self.default}")
        return f"{self.option.help} ({'; '.join(notes)})" if notes else self.option.help


@dataclass
class OptionErrors:
    """The violations, a sentence each. `names`: the options that are wrong or missing."""

    reasons: list[str] = field(default_factory=list)
    names: set[str] = field(default_factory=set)

    def add(self, name: str, *reasons: str) -> None:
        self.names.add(name)
        self.reasons += reasons


Given = Mapping[str, str | Sequence[str] | bool | None]


@cache
def option_fields() -> tuple[OptionField, ...]:
    hints = get_type_hints(ServiceOptions, include_extras=True)
    return tuple(_option_field(each.name, hints[each.name], each.default) for each in fields(ServiceOptions))


def read_options(command_line: Given, variables: Mapping[str, str]) -> tuple[ServiceOptions, OptionErrors]:
    """The options, and all violations in them; an option with a wrong value has its default.

    command_line  by option name; None, false and () are not given
    variables     by option name; a list's elements stand between spaces
    """
    errors = OptionErrors()
    values: dict[str, object] = {}
    for each in option_fields():
        given, source = command_line.get(each.name), each.flag
        if not given:
            given, source = variables.get(each.name), each.variable
        if not given:
            if each.option.is_required:
                errors.add(each.name, f"{each.flag} is missing: give it, or set {each.variable}")
            continue
        try:
            values[each.name] = _value(each, given)
        except Invalid as error:
            errors.add(each.name, *(f"{source}: {reason}" for reason in error.reasons))
    return ServiceOptions(**values), errors  # type: ignore[arg-type]  # `_value` returns the field's type


def _option_field(name: str, hint: object, default: object) -> OptionField:
    annotated, option = get_args(hint)
    if get_origin(annotated) is tuple:
        return OptionField(name, option, get_args(annotated)[0], is_repeatable=True, default=default)
    (value_type,) = (each for each in get_args(annotated) or (annotated,) if each is not type(None))
    return OptionField(name, option, value_type, is_repeatable=False, default=default)


def _value(of: OptionField, given: str | Sequence[str] | bool) -> object:
    """Raises `Invalid`, which says what to write instead."""
    if isinstance(given, bool):
        return given
    if of.is_repeatable:
        return tuple(given.split() if isinstance(given, str) else given)
    text = str(given)
    if of.option.check is not None:
        of.option.check(text)
    if of.value_type is bool:
        return _truth(text)
    if of.value_type in (int, float):
        return _number(of, text)
    if issubclass(of.value_type, StrEnum):
        return _choice(of.value_type, text)
    return Path(text) if of.value_type is Path else text


def _truth(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered in {"1", "true", "yes", "on"}:
        return True
    if lowered in {"0", "false", "no", "off"}:
        return False
    raise Invalid(f"{text!r} is not true or false")


def _choice(choices: type[StrEnum], text: str) -> StrEnum:
    if text not in list(choices):
        raise Invalid(f"{text!r} is none of {', '.join(choices)}")
    return choices(text)


def _number(of: OptionField, text: str) -> int | float:
    minimum, maximum = of.option.minimum, of.option.maximum
    try:
        number: int | float = of.value_type(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or not (minimum or -math.inf) <= number <= (math.inf if maximum is None else maximum):
        wanted = "a whole number" if of.value_type is int else "a number"
        raise Invalid(", ".join(filter(None, (f"{text!r} is not {wanted}", _bounds(of.option)))))
    return number


def _bounds(option: Option) -> str:
    if option.minimum is None:
        return ""
    if option.maximum is None:
        return f"at least {option.minimum}"
    return f"{option.minimum} to {option.maximum}"
