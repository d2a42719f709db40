"""Turns the service's options into settings and connections, once for `lithify dispatch` and the demo."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from compactor.model.errors import Invalid
from compactor.planning.bundle_plan import BundleBounds
from compactor.storage.location import StoreLocation, parse_location
from compactor.storage.object_store import ObjectStore
from dispatcher.assembly import DispatcherSettings, ExternalServices
from dispatcher.clients import CommandDependencies, QueueAddress, StandaloneAddress, machine_share
from dispatcher.intake.admission import Admission
from dispatcher.intake.intake import IntakeSettings
from dispatcher.intake.queue import Queue
from dispatcher.intake.receiver import ReceiverSettings
from dispatcher.operations.health import GONE_AFTER_SECONDS, HEALTH_FILE
from dispatcher.operations.http_server import HttpAddress
from dispatcher.options.cluster_settings import checked, cluster_room, read_aws_sessions
from dispatcher.options.service_options import ServiceOptions
from dispatcher.options.standalone_options import StandaloneOptions
from dispatcher.outbox.topic_sinks import TopicSinks
from dispatcher.outbox.workflow_callbacks import AnswerSettings
from dispatcher.records.history_upkeep import HistorySettings
from dispatcher.running.job_run_controller import JobRunControllerSettings
from dispatcher.scheduling.lease_log import FlowLimits
from dispatcher.service import ServiceSettings
from dispatcher.workflow.dispatcher_task import DispatcherTask, TaskSettings
from launcher.clusters import AwsCluster, Cluster
from launcher.poller import PollerSettings
from launcher.retrying import RetryPolicy
from launcher.session_launcher import SessionLauncherSettings
from launcher.sizing.cluster_choice import ClusterLimits
from launcher.verdict import WatchTimers

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    SettingsT = TypeVar("SettingsT", bound=DataclassInstance)


RECEIVER_SECONDS = 60.0
"""In addition to the longest judgement of a message and a long poll, before the receiver counts as stuck."""

POLL_SECONDS_MAX = 0.2
"""Between two checks of commands and of local Spark jobs, which need no request."""

LOOKS_AT_JOB_RUNS = 3.0
"""By this factor a job run's log is read less often than its sessions' logs, for entries of others such as `cancel`."""


def dispatcher_settings(options: ServiceOptions, sns_regions: Mapping[str, frozenset[str]]) -> DispatcherSettings:
    """`sns_regions`: see `Admission`."""
    return DispatcherSettings(
        intake=_settings(IntakeSettings, options, admission=admission(options, sns_regions), s3_region=options.region),
        controller=_settings(
            JobRunControllerSettings,
            options,
            limits=_settings(FlowLimits, options),
            receiver_seconds=options.judging_seconds + options.wait_seconds + RECEIVER_SECONDS,
            look_seconds=options.look_seconds * LOOKS_AT_JOB_RUNS,
            tick_seconds=options.poll_seconds,
        ),
        receiver=_settings(ReceiverSettings, options, idle_seconds=options.poll_seconds),
        launcher=SessionLauncherSettings(
            poller=_settings(PollerSettings, options, poll_seconds=min(options.poll_seconds, POLL_SECONDS_MAX)),
            timers=_settings(WatchTimers, options),
            retry=_settings(RetryPolicy, options),
        ),
        bundles=BundleBounds(options.bundle_sessions, options.bundle_seconds),
        answers=_settings(AnswerSettings, options),
        history=_settings(HistorySettings, options),
        service=_settings(
            ServiceSettings,
            options,
            health_file=options.work_folder.absolute() / HEALTH_FILE,
            health_seconds=min(ServiceSettings.health_seconds, options.claim_seconds / 3),
            gone_after_seconds=min(GONE_AFTER_SECONDS, options.claim_seconds),
        ),
    )


def admission(options: ServiceOptions, sns_regions: Mapping[str, frozenset[str]]) -> Admission:
    return Admission(
        own_lake=own_lake(options),
        own_topic=options.topic_arn,
        lakes=options.allow_lake,
        tables=options.allow_table or ("*",),
        topics=options.allow_topic,
        files=options.allow_files,
        sns_regions=sns_regions,
    )


def own_lake(options: ServiceOptions) -> StoreLocation | None:
    if options.lake is None:
        return None
    return parse_location(options.lake, endpoint_url=options.s3_endpoint_url, region=options.region)


def queue_address(options: ServiceOptions) -> QueueAddress:
    return QueueAddress(options.queue_url, options.dead_letter_queue_url, options.endpoint_url, options.region)


def aws_cluster(dependencies: CommandDependencies, options: ServiceOptions, state: StoreLocation) -> AwsCluster | None:
    """The cluster of `--cluster-settings`; None without them. Raises `Invalid` with all violations in them."""
    if options.cluster_settings is None:
        return None
    limits = ClusterLimits(
        options.min_nodes,
        options.max_nodes,
        _least(
            options.max_vcpus,
            options.max_vcpus_per_dispatcher,
            options.max_vcpus_per_table,
            options.max_vcpus_in_all,
        ),
        options.max_usd,
        options.spot_share,
        options.cluster_start_seconds,
    )
    sessions = read_aws_sessions(
        options.cluster_settings,
        lambda: cluster_room(limits, options.price_file, options.instance_type, dependencies.clock),
        state,
        own_lake(options),
        lambda folder: dependencies.store(folder, options.s3_endpoint_url, options.region),
    )
    return dependencies.clients.aws_cluster(sessions.settings, sessions.room, dependencies.owner)


def local_or_standalone_cluster(
    dependencies: CommandDependencies, options: ServiceOptions, address: StandaloneAddress | None
) -> Cluster:
    """Spark jobs on this machine, or on a standalone Spark. Raises `Invalid` if they cannot run there."""
    resources, driver_memory_bytes = machine_share(
        dependencies, options.cores, options.memory_gib, options.max_sessions
    )
    work_folder = options.work_folder.absolute()
    if address is None:
        return dependencies.clients.local_cluster(resources, driver_memory_bytes, work_folder)
    return dependencies.clients.standalone_cluster(address, resources, driver_memory_bytes, work_folder)


def standalone_address(options: ServiceOptions, state: StoreLocation) -> StandaloneAddress | None:
    """None without `--master-url`. Raises `Invalid` with all violations in the options of a standalone Spark."""
    stores = {"--state": state}
    lake = own_lake(options)
    if lake is not None:
        stores["--lake"] = lake
    folders = [each for each in options.allow_lake if not each.startswith("s3://")]
    stores |= {f"--allow-lake {each}:": parse_location(each) for each in folders}
    standalone = StandaloneOptions(
        options.master_url,
        options.archive,
        options.executor_cores,
        options.driver_host,
        options.cores,
        options.memory_gib,
    )
    return standalone.address(stores, is_aws=options.cluster_settings is not None)


@dataclass(frozen=True)
class Clusters:
    """`listing`: see `ExternalServices`."""

    cluster: Cluster
    listing: AwsCluster | None


def session_clusters(dependencies: CommandDependencies, options: ServiceOptions, state: StoreLocation) -> Clusters:
    """Where sessions run. Raises `Invalid`, with every reason, where they cannot."""
    reasons: list[str] = []
    listing = checked(lambda: aws_cluster(dependencies, options, state), reasons)
    address = checked(lambda: standalone_address(options, state), reasons)
    if reasons:
        raise Invalid(*reasons)
    return Clusters(listing or local_or_standalone_cluster(dependencies, options, address), listing)


def connections(
    dependencies: CommandDependencies, options: ServiceOptions, queue: Queue, state: ObjectStore, clusters: Clusters
) -> ExternalServices:
    """The external services of the dispatcher."""
    clients = dependencies.clients
    sinks = TopicSinks(options.topic_arn, lambda arn: clients.topic(arn, options.endpoint_url, patient=False))
    return ExternalServices(
        queue=queue,
        state=state,
        cluster=clusters.cluster,
        open_lake=dependencies.lake,
        open_glue=lambda lake: clients.glue(lake.region or options.region, options.endpoint_url),
        sink_for=sinks.of,
        callbacks=clients.callbacks(queue_address(options)),
        owner=dependencies.owner,
        clock=dependencies.clock,
        listing=clusters.listing,
    )


def http_address(options: ServiceOptions) -> HttpAddress | None:
    return None if options.http_port is None else HttpAddress(options.http_host, options.http_port)


def dispatcher_task(dependencies: CommandDependencies, options: ServiceOptions) -> DispatcherTask | None:
    """None: no workflow waits for this dispatcher. Raises `Invalid` if its token cannot be read."""
    if options.task_token is not None and options.task_token_file is not None:
        raise Invalid("--task-token and --task-token-file are both given: leave one out")
    token = options.task_token if options.task_token_file is None else _task_token_in(options.task_token_file)
    if token is None:
        if options.execution_arn is not None:
            raise Invalid("--execution-arn is of no use without --task-token or --task-token-file")
        return None
    workflows = dependencies.clients.callbacks(queue_address(options))
    settings = TaskSettings(
        heartbeat_seconds=options.task_heartbeat_seconds,
        days_max=options.task_days_max,
        events_max=options.task_events_max,
    )
    return DispatcherTask(token, options.execution_arn, workflows, workflows, settings, dependencies.clock)


def _least(*bounds: int | None) -> int | None:
    """The least of the given limits: a session is planned within all of them, or it could never be launched."""
    return min((each for each in bounds if each is not None), default=None)


def _task_token_in(file: Path) -> str:
    try:
        token = file.read_text().strip()
    except OSError as error:
        raise Invalid(f"--task-token-file {file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise Invalid(f"--task-token-file {file} cannot be read: it is no text") from None
    if not token:
        raise Invalid(f"--task-token-file {file} is empty")
    return token


def _settings(kind: type[SettingsT], options: ServiceOptions, **named_otherwise: object) -> SettingsT:
    """Every option that has the name of a setting of this kind is that setting."""
    names = {each.name for each in fields(kind)} & {each.name for each in fields(options)}
    return kind(**{name: getattr(options, name) for name in names} | named_otherwise)
