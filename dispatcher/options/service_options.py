"""Every option of `lithify dispatch`: the setting that it gives, its bounds and its help. One row is one option.

`ServiceOptions` is made of the settings of the components themselves. An option names one value in it, whose type and
default are the option's. `--max-attempts` and the variable LITHIFY_MAX_ATTEMPTS both give
`dispatcher.launcher.retry.max_attempts`; the command line wins. Values arrive as text and are parsed here, so that all
violations are reported together. `dispatcher/options/settings.py` adds what follows from several options.

A setting without a row is a constant: its reason stands beside it in its class. Tests give other values as
`CommandDependencies.settings`.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar, get_args, get_origin, get_type_hints

from compactor.model.errors import Invalid, refuse_if
from compactor.model.wrong_input import meant
from compactor.planning.where_to_run import WorkerPool
from compactor.storage.location import checked_endpoint, parse_location
from dispatcher.assembly import DispatcherSettings
from dispatcher.clients import variable_of
from dispatcher.intake.instruction import parse_topic
from dispatcher.operations.http_server import HttpAddress
from dispatcher.operations.metrics import parse_namespace
from dispatcher.options.documents import read_limits
from dispatcher.scheduling.limits import Limits
from dispatcher.service import DrainJobs
from dispatcher.workflow.dispatcher_task import TaskSettings
from launcher.sizing.cluster_choice import ClusterLimits

HolderT = TypeVar("HolderT")

VISIBILITY_SECONDS_MAX = 43_200
"""SQS hides a message for 12 hours at most."""


@dataclass(frozen=True)
class ServicePlaces:
    queue_url: str = ""
    state: str = ""
    lake: str | None = None
    topic_arn: str | None = None
    dead_letter_queue_url: str | None = None
    endpoint_url: str | None = None
    s3_endpoint_url: str | None = None
    region: str | None = None
    work_folder: Path = Path(".lithify")


@dataclass(frozen=True)
class SparkOptions:
    """Where sessions run: on this machine, on a standalone Spark (`master_url`), or on AWS (`cluster_settings`)."""

    cores: int | None = None
    memory_gib: float | None = None
    master_url: str | None = None
    archive: Path | None = None
    executor_cores: int | None = None
    driver_host: str | None = None
    cluster_settings: str | None = None
    price_file: str | None = None
    instance_type: tuple[str, ...] = ()
    spot_share: float = ClusterLimits.spot_share


@dataclass(frozen=True)
class WorkersOptions:
    """Warm processes for small sessions, on this machine. None: as many as it holds."""

    workers: int | None = None
    seconds: float = WorkerPool.seconds


@dataclass(frozen=True)
class TaskOptions:
    """The task of a workflow that this dispatcher is, if it is one."""

    task_token: str | None = None
    task_token_file: Path | None = None
    execution_arn: str | None = None
    settings: TaskSettings = field(default_factory=TaskSettings)


@dataclass(frozen=True, kw_only=True)
class ServiceOptions:
    """`http.port` None: nothing is served."""

    places: ServicePlaces = field(default_factory=ServicePlaces)
    spark: SparkOptions = field(default_factory=SparkOptions)
    workers: WorkersOptions = field(default_factory=WorkersOptions)
    http: HttpAddress = field(default_factory=HttpAddress)
    task: TaskOptions = field(default_factory=TaskOptions)
    drain_jobs: DrainJobs = DrainJobs.AUTO
    dispatcher: DispatcherSettings = field(default_factory=DispatcherSettings)


@dataclass(frozen=True)
class Option:
    """
    Attributes:
        path: of the value in `ServiceOptions`
        help: a sentence for `--help`
        name: of the option, if it is not the value's
        minimum: of a number
        maximum: of a number that has a minimum
        check: raises `Invalid` for a text that can never work
        is_required: there is no default"""

    path: str
    help: str
    name: str = ""
    minimum: float | None = None
    maximum: float | None = None
    check: Callable[[str], object] | None = None
    is_required: bool = False


OPTIONS: Mapping[str, tuple[Option, ...]] = {
    "Places": (
        Option("places.queue_url", "The SQS queue of instruction documents.", is_required=True),
        Option(
            "places.state",
            "Where job runs are recorded: s3://bucket/prefix, file:///path or a path.",
            check=parse_location,
            is_required=True,
        ),
        Option("places.lake", "The lake of documents that name no delta_catalog.", check=parse_location),
        Option("places.topic_arn", "The SNS topic for events, unless an instruction names one.", check=parse_topic),
        Option(
            "places.dead_letter_queue_url", "The dead-letter queue, if it is not the one of the queue's redrive policy."
        ),
        Option("places.endpoint_url", "The endpoint of SQS and SNS, if it is not AWS's own.", check=checked_endpoint),
        Option("places.s3_endpoint_url", "The endpoint of S3, if it is not AWS's own.", check=checked_endpoint),
        Option("places.region", "The AWS region."),
        Option("places.work_folder", "The folder for Spark's output and scratch files."),
    ),
    "Where sessions run": (
        Option("spark.cores", "Cores for all sessions together; default: the machine's.", minimum=1),
        Option(
            "spark.memory_gib",
            "Memory for all sessions together, in GiB; default: 3/4 of the machine's. If Spark runs on this machine, a "
            "quarter of it is for workers.",
            minimum=1,
        ),
        Option("spark.master_url", "A standalone Spark for sessions, spark://host:port; default: this machine."),
        Option("spark.archive", "The Python environment of the standalone Spark's workers, made by `lithify archive`."),
        Option(
            "spark.executor_cores",
            "Tasks of one executor of the standalone Spark; default: all cores that a worker offers.",
            minimum=1,
        ),
        Option(
            "spark.driver_host",
            "The name by which the standalone Spark's workers reach this machine; default: its host name.",
        ),
        Option(
            "spark.cluster_settings",
            "JSON, or a file of it: sessions run on EMR or EMR Serverless, with these settings.",
        ),
        Option(
            "spark.price_file", "JSON, or a file of it: instance types and their prices, instead of the built-in list."
        ),
        Option("spark.instance_type", "An instance type for clusters; default: all of the list."),
        Option(
            "spark.spot_share",
            "Share of a cluster's worker nodes on Spot; at least one node is not.",
            minimum=0,
            maximum=1,
        ),
        Option(
            "workers.workers",
            "Warm processes on this machine, which run small sessions without Spark; default: one for each core, as "
            "far as the memory of sessions holds them; with --cluster-settings and for 0: none.",
            minimum=0,
        ),
        Option(
            "workers.seconds",
            "A session that is predicted to take as long in a worker runs on Spark; 1000000: whatever fits a worker's "
            "memory runs there.",
            name="worker_seconds",
            minimum=1,
        ),
    ),
    "How much at a time": (
        Option(
            "dispatcher.controller.max_sessions",
            "Sessions of this dispatcher on Spark at a time; each worker has one more.",
            minimum=1,
        ),
        Option("dispatcher.controller.max_job_runs", "Job runs of this dispatcher at a time.", minimum=1),
        Option(
            "dispatcher.controller.limits",
            "JSON, or a file of it: limits of each session, job run, table and dispatcher, and of all together.",
        ),
    ),
    "Taking over and stopping": (
        Option(
            "dispatcher.controller.claim_seconds",
            "Silence of a dispatcher after which others take over its job runs.",
            minimum=0.5,
        ),
        Option(
            "dispatcher.intake.visibility_seconds",
            "Time after which the messages of a dispatcher that was killed are delivered again.",
            minimum=1,
            maximum=VISIBILITY_SECONDS_MAX,
        ),
        Option("dispatcher.service.drain_seconds", "Time that running sessions get to end after SIGTERM.", minimum=0),
        Option(
            "drain_jobs",
            "What becomes of Spark jobs that outlast a drain: left for the next dispatcher, or stopped; "
            "auto: left, unless they end with this container.",
        ),
        Option("dispatcher.service.until_idle", "Stop when the queue is empty and every job run has ended."),
    ),
    "Attempts of a session": (
        Option(
            "dispatcher.launcher.retry.max_attempts",
            "Largest number of attempts of a session that crashes, stalls or runs out of memory.",
            minimum=1,
        ),
        Option(
            "dispatcher.launcher.retry.patience_seconds",
            "Longest time that a session waits for unavailable services, or for capacity of its cluster.",
            minimum=0,
        ),
        Option(
            "dispatcher.launcher.timers.stall_seconds",
            "Time without progress after which an attempt is stopped.",
            minimum=1,
        ),
    ),
    "What documents may name": (
        Option(
            "dispatcher.intake.admission.lakes",
            "A lake, or a folder above lakes, that documents may name beside --lake; s3:// for any on S3.",
            name="allow_lake",
        ),
        Option(
            "dispatcher.intake.admission.tables",
            "A table that documents may name, or 'ACME.*'; default: any.",
            name="allow_table",
        ),
        Option(
            "dispatcher.intake.admission.topics",
            "A topic that documents may name beside --topic-arn, or 'arn:aws:sns:...*'.",
            name="allow_topic",
        ),
        Option(
            "dispatcher.intake.admission.files",
            "A folder outside of the lake whose files a lake on S3 may register in place.",
            name="allow_files",
        ),
    ),
    "Operations": (
        Option(
            "http.port",
            "Port for /live, /ready and /metrics; 0 is any that is free.",
            name="http_port",
            minimum=0,
            maximum=65_535,
        ),
        Option("http.host", "Address on which these are served; 0.0.0.0 is every interface.", name="http_host"),
        Option(
            "dispatcher.service.metrics_namespace",
            "Namespace of metrics that are written to stdout in CloudWatch's embedded format; default: none are.",
            check=parse_namespace,
        ),
    ),
    "Workflows": (
        Option(
            "dispatcher.answers.cancel_abandoned",
            "Cancel a job run once all workflows that asked for it gave up.",
        ),
        Option(
            "task.task_token",
            "Task token of the workflow whose task this dispatcher is. Set LITHIFY_TASK_TOKEN, or give "
            "--task-token-file: everybody on the machine can read a command line.",
        ),
        Option("task.task_token_file", "A file that holds the task token."),
        Option("task.execution_arn", "The execution of that workflow, whose events and days are counted."),
        Option(
            "task.settings.heartbeat_seconds",
            "HeartbeatSeconds of that workflow's state.",
            name="task_heartbeat_seconds",
            minimum=1,
        ),
    ),
}
"""The options by group, in the order of `--help`."""

_TO_LIMITS = {
    "max_sessions_per_table": '{"table": {"sessions": N}}',
    "max_sessions_in_all": '{"all": {"sessions": N}}',
    "max_clusters_per_dispatcher": '{"dispatcher": {"clusters": N}}',
    "max_clusters_per_table": '{"table": {"clusters": N}}',
    "max_clusters_in_all": '{"all": {"clusters": N}}',
    "max_vcpus_per_dispatcher": '{"dispatcher": {"vcpus": N}}',
    "max_vcpus_per_table": '{"table": {"vcpus": N}}',
    "max_vcpus_in_all": '{"all": {"vcpus": N}}',
    "max_usd_per_run": '{"job_run": {"usd": N}}',
    "max_usd_per_day_per_dispatcher": '{"dispatcher": {"usd_per_day": N}}',
    "max_usd_per_day_per_table": '{"table": {"usd_per_day": N}}',
    "max_usd_per_day_in_all": '{"all": {"usd_per_day": N}}',
    "min_nodes": '{"session": {"nodes_min": N}}',
    "max_nodes": '{"session": {"nodes": N}}',
    "max_vcpus": '{"session": {"vcpus": N}}',
    "max_usd": '{"session": {"usd": N}}',
}
_CONSTANT = (
    *("cluster_start_seconds", "cluster_sweep_seconds", "exit_seconds", "heartbeat_event_seconds", "history_seconds"),
    *("judging_seconds", "keep_plans_days", "look_seconds", "message_patience_seconds", "pause_look_seconds"),
    *("poll_seconds", "put_back_seconds", "put_back_seconds_max", "requeue_seconds", "retry_seconds"),
    *("retry_seconds_max", "start_seconds", "stuck_seconds", "sweep_seconds", "task_days_max", "task_events_max"),
    *("turn_look_seconds", "wait_seconds"),
)
GONE: Mapping[str, str] = MappingProxyType(
    {name: f"write {path} in --limits" for name, path in _TO_LIMITS.items()}
    | dict.fromkeys(_CONSTANT, "leave it out, it cannot be set any more")
    | {
        "bundle_sessions": "leave it out: small sessions run in workers, or share a Spark job",
        "bundle_seconds": "leave it out: small sessions run in workers, or share a Spark job",
        "deliveries_max": "leave it out, and set the queue's maxReceiveCount",
        "embedded_metrics_seconds": "write --metrics-namespace Lithify, and metrics are written every minute",
    }
)
"""Options that are gone, and what to write instead."""


@dataclass(frozen=True)
class OptionField:
    """One option as the command line knows it. `value_type`: without `None`, and of a tuple the tuple's elements'."""

    group: str
    name: str
    option: Option
    value_type: type
    is_repeatable: bool
    default: object

    @property
    def flag(self) -> str:
        return flag_of(self.name)

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
        if self.default not in (None, False) and not self.option.is_required:
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


def flag_of(name: str) -> str:
    return f"--{name.replace('_', '-')}"


@cache
def option_fields() -> tuple[OptionField, ...]:
    return tuple(_option_field(group, each) for group, options in OPTIONS.items() for each in options)


def read_options(
    command_line: Given,
    variables: Mapping[str, str],
    *,
    unknown: Sequence[str] = (),
    settings: DispatcherSettings | None = None,
) -> tuple[ServiceOptions, OptionErrors]:
    """The options, and all violations in them; an option with a wrong value has its default.

    Args:
        command_line: by option name; None, false and () are not given
        variables: by option name; a list's elements stand between spaces
        unknown: arguments that belong to no option
        settings: what is not given has these values"""
    errors = OptionErrors()
    options = ServiceOptions(dispatcher=settings or DispatcherSettings())
    errors.reasons += unknown_options(unknown, [each.flag for each in option_fields()])
    errors.reasons += [f"{variable_of(name)} is gone: {instead}" for name, instead in GONE.items() if name in variables]
    for each in option_fields():
        given, source = command_line.get(each.name), each.flag
        if not given:
            given, source = variables.get(each.name), each.variable
        if not given:
            if each.option.is_required:
                errors.add(each.name, f"{each.flag} is missing: give it, or set {each.variable}")
            continue
        try:
            options = _with(options, each.option.path.split("."), _value(each, given))
        except Invalid as error:
            errors.add(each.name, *(f"{source}: {reason}" for reason in error.reasons))
    return options, errors


def unknown_options(arguments: Sequence[str], flags: Sequence[str]) -> Iterator[str]:
    """Sentences about the arguments of a command that belong to none of its `flags`."""
    may_be_value = False
    for each in arguments:
        flag, has_value, _ = each.partition("=")
        if not each.startswith("-"):
            if not may_be_value:
                yield f"{each!r} belongs to no option: leave it out"
            may_be_value = False
            continue
        may_be_value = not has_value
        yield what_instead(flag) or f"{flag}: there is no such option{meant(flag, flags, ': see --help')}"


def what_instead(flag: str) -> str | None:
    """What to write in place of an option that is gone; None: there never was one."""
    instead = GONE.get(flag.removeprefix("--").replace("-", "_"))
    return None if instead is None else f"{flag} is gone: {instead}"


def check_together(options: ServiceOptions) -> None:
    """Raises `Invalid`, with every reason, if one option makes another useless."""
    limits, max_sessions = options.dispatcher.controller.limits, options.dispatcher.controller.max_sessions
    reasons = [f"--limits: {reason}" for reason in limits.contradictions()]
    if limits.all.sessions is not None and max_sessions > limits.all.sessions:
        reasons.append(
            f"--max-sessions {max_sessions} is above all.sessions {limits.all.sessions} of --limits: "
            "lower the one, or raise the other"
        )
    if options.spark.cluster_settings is None:
        names = ("price_file", "instance_type", "spot_share")
        given = [flag_of(name) for name in names if getattr(options.spark, name) != getattr(SparkOptions(), name)]
        given += [f"--limits ({', '.join(limits.of_clusters())})"] if limits.of_clusters() else []
        if given:
            reasons.append(f"{', '.join(given)}: no cluster is launched for a session without --cluster-settings")
    refuse_if(reasons)


def _option_field(group: str, option: Option) -> OptionField:
    """Raises `AttributeError` for a path that leads to no value."""
    *holder, last = option.path.split(".")
    component = attrgetter(".".join(holder))(ServiceOptions()) if holder else ServiceOptions()
    hint, default = get_type_hints(type(component))[last], getattr(component, last)
    is_repeatable = get_origin(hint) is tuple
    value_type = next(each for each in get_args(hint) or (hint,) if each is not type(None))
    if is_repeatable or isinstance(default, Limits):
        default = None
    return OptionField(group, option.name or last, option, value_type, is_repeatable, default)


def _with(holder: HolderT, path: Sequence[str], value: object) -> HolderT:
    name, *rest = path
    within = _with(getattr(holder, name), rest, value) if rest else value
    return replace(holder, **{name: within})  # type: ignore[type-var]  # every holder on a path is a dataclass


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
    if of.value_type is Limits:
        return read_limits(text)
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
    if not math.isfinite(number) or not (-math.inf if minimum is None else minimum) <= number <= (
        math.inf if maximum is None else maximum
    ):
        wanted = "a whole number" if of.value_type is int else "a number"
        raise Invalid(", ".join(filter(None, (f"{text!r} is not {wanted}", _bounds(of.option)))))
    return number


def _bounds(option: Option) -> str:
    if option.minimum is None:
        return ""
    if option.maximum is None:
        return f"at least {option.minimum}"
    return f"{option.minimum} to {option.maximum}"
