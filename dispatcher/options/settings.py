"""What follows from several options: settings and clients, once for `lithify dispatch` and the demo."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from compactor.log_context import LOG, Logged
from compactor.model.clock import Clock, date_of
from compactor.model.errors import Invalid, Unavailable, refuse_if
from compactor.planning.machine_share import GIB, WorkersShare, workers_share
from compactor.storage.location import StoreLocation, parse_location
from compactor.storage.object_store import ObjectStore
from dispatcher.assembly import DispatcherSettings, ExternalServices
from dispatcher.clients import (
    CommandDependencies,
    QueueAddress,
    StandaloneAddress,
    TopicSinks,
    machine_share,
    sessions_bytes,
)
from dispatcher.intake.admission import Admission
from dispatcher.intake.queue import Queue
from dispatcher.operations.health import HEALTH_FILE
from dispatcher.options.documents import document_body, secret_in
from dispatcher.options.service_options import ServiceOptions
from dispatcher.scheduling.limits import Limits
from dispatcher.workflow.dispatcher_task import DispatcherTask
from launcher.archive import ArchiveManifest
from launcher.clusters import AwsCluster, Cluster
from launcher.clusters.local import violations
from launcher.clusters.workers import Workers
from launcher.emr.settings import EmrServerlessSettings, check_archive, check_places, parse_settings, room_on
from launcher.sizing.cluster_choice import ClusterLimits, ClusterRoom
from launcher.sizing.instance_types import BUILT_IN, PriceList, parse_price_list

RECEIVER_SECONDS = 60.0
"""Time in addition to the longest judgement of a message and a long poll, after which the receiver counts as stuck."""

ValueT = TypeVar("ValueT")


def dispatcher_settings(options: ServiceOptions, sns_regions: Mapping[str, frozenset[str]]) -> DispatcherSettings:
    """`sns_regions`: see `Admission`."""
    given, places = options.dispatcher, options.places
    claim_seconds = given.controller.claim_seconds
    return replace(
        given,
        intake=replace(
            given.intake,
            admission=admission(options, sns_regions),
            s3_endpoint_url=places.s3_endpoint_url,
            s3_region=places.region,
        ),
        controller=replace(
            given.controller,
            receiver_seconds=given.intake.judging_seconds + given.receiver.wait_seconds + RECEIVER_SECONDS,
        ),
        service=replace(
            given.service,
            health_file=places.work_folder.absolute() / HEALTH_FILE,
            health_seconds=min(given.service.health_seconds, claim_seconds / 3),
            gone_after_seconds=min(given.service.gone_after_seconds, claim_seconds),
        ),
    )


def admission(options: ServiceOptions, sns_regions: Mapping[str, frozenset[str]]) -> Admission:
    return replace(
        options.dispatcher.intake.admission,
        own_lake=own_lake(options),
        own_topic=options.places.topic_arn,
        sns_regions=sns_regions,
    )


def own_lake(options: ServiceOptions) -> StoreLocation | None:
    places = options.places
    if places.lake is None:
        return None
    return parse_location(places.lake, endpoint_url=places.s3_endpoint_url, region=places.region)


def queue_address(options: ServiceOptions) -> QueueAddress:
    places = options.places
    return QueueAddress(places.queue_url, places.dead_letter_queue_url, places.endpoint_url, places.region)


def connections(
    dependencies: CommandDependencies, options: ServiceOptions, queue: Queue, state: ObjectStore, clusters: Clusters
) -> ExternalServices:
    """The external services of the dispatcher."""
    clients, places = dependencies.clients, options.places
    sinks = TopicSinks(places.topic_arn, lambda arn: clients.topic(arn, places.endpoint_url, patient=False))
    return ExternalServices(
        queue=queue,
        state=state,
        cluster=clusters.cluster,
        open_lake=dependencies.lake,
        open_glue=lambda lake: clients.glue(lake.region or places.region, places.endpoint_url),
        sink_for=sinks.of,
        callbacks=clients.callbacks(queue_address(options)),
        owner=dependencies.owner,
        clock=dependencies.clock,
        listing=clusters.listing,
        workers=clusters.workers,
    )


def dispatcher_task(dependencies: CommandDependencies, options: ServiceOptions) -> DispatcherTask | None:
    """None: no workflow waits for this dispatcher. Raises `Invalid` if its token cannot be read."""
    task = options.task
    if task.task_token is not None and task.task_token_file is not None:
        raise Invalid("--task-token and --task-token-file are both given: leave one out")
    file = task.task_token_file
    token = task.task_token if file is None else secret_in(file, "--task-token-file")
    if token is None:
        if task.execution_arn is not None:
            raise Invalid("--execution-arn is of no use without --task-token or --task-token-file")
        return None
    workflows = dependencies.clients.callbacks(queue_address(options))
    return DispatcherTask(token, task.execution_arn, workflows, workflows, task.settings, dependencies.clock)


# --------------------------------------------------------------------------------------------- where sessions run


@dataclass(frozen=True)
class Clusters:
    """`listing`, `workers`: see `ExternalServices`."""

    cluster: Cluster
    listing: AwsCluster | None
    workers: Workers | None


def session_clusters(dependencies: CommandDependencies, options: ServiceOptions, state: StoreLocation) -> Clusters:
    """Where sessions run. Raises `Invalid`, with every reason, where they cannot."""
    reasons: list[str] = []
    listing = _checked(lambda: aws_cluster(dependencies, options, state), reasons)
    address = _checked(lambda: standalone_address(options, state), reasons)
    spark_is_here = options.spark.cluster_settings is None and options.spark.master_url is None
    share = _checked(lambda: share_of_workers(dependencies, options, spark_is_here=spark_is_here), reasons)
    if spark_is_here and sessions_bytes(dependencies, options.spark.memory_gib) > dependencies.memory_bytes:
        there = dependencies.memory_bytes / GIB
        reasons.append(f"--memory-gib {options.spark.memory_gib:g}: this machine has {there:.1f} GiB: lower it")
    refuse_if(reasons)
    work_folder = options.places.work_folder.absolute()
    workers = dependencies.clients.workers(share, work_folder) if share is not None else None
    if listing is not None:
        return Clusters(listing, listing, workers)
    resources, driver_memory_bytes = machine_share(
        dependencies,
        options.spark.cores,
        options.spark.memory_gib,
        options.dispatcher.controller.max_sessions,
        share if spark_is_here else None,
    )
    if address is None:
        return Clusters(dependencies.clients.local_cluster(resources, driver_memory_bytes, work_folder), None, workers)
    cluster = dependencies.clients.standalone_cluster(address, resources, driver_memory_bytes, work_folder)
    return Clusters(cluster, None, workers)


def share_of_workers(
    dependencies: CommandDependencies, options: ServiceOptions, *, spark_is_here: bool
) -> WorkersShare | None:
    """None: there are none, as by default on AWS, where a dispatcher has no rights to the lakes of its sessions.
    Raises `Invalid` if the machine does not hold them."""
    given = options.workers
    if given.workers is None and options.spark.cluster_settings is not None:
        return None
    memory_gib = options.spark.memory_gib if spark_is_here else None
    return workers_share(
        sessions_bytes(dependencies, memory_gib),
        (options.spark.cores if spark_is_here else None) or dependencies.cores,
        given.workers,
        given.seconds,
        spark_is_here=spark_is_here,
    )


def aws_cluster(dependencies: CommandDependencies, options: ServiceOptions, state: StoreLocation) -> AwsCluster | None:
    """The cluster of `--cluster-settings`; None without them. Raises `Invalid` with all violations in settings, limits,
    prices, locations and the archive, before anything is launched."""
    given, places = options.spark, options.places
    if given.cluster_settings is None:
        return None
    body, where = given.cluster_settings, "the cluster settings"
    reasons: list[str] = []
    settings = _checked(lambda: parse_settings(*document_body(body, where)), reasons)
    limits = options.dispatcher.controller.limits
    room = _checked(
        lambda: cluster_room(
            limits,
            given.spot_share,
            given.price_file,
            given.instance_type,
            dependencies.clock,
            None if settings is None else settings.region,
            serverless=isinstance(settings, EmrServerlessSettings),
        ),
        reasons,
    )
    _checked(lambda: check_places(state, own_lake(options)), reasons)
    # What is wrong is told before S3 is asked, which may be silent for half a minute.
    if settings is not None and not reasons:
        uri = settings.archive_uri
        manifest = _checked(
            lambda: _read_archive(
                uri, lambda folder: dependencies.store(folder, places.s3_endpoint_url, places.region)
            ),
            reasons,
        )
        if manifest is not None and room is not None:
            room = _checked(partial(room_on, manifest, room), reasons)
    if settings is None or room is None or reasons:
        raise Invalid(*reasons)
    for reason in room.warnings:
        LOG.warning("prices_doubtful", reason=reason)
    return dependencies.clients.aws_cluster(settings, room, dependencies.owner)


def cluster_room(
    limits: Limits,
    spot_share: float,
    price_file: str | None,
    instance_types: Sequence[str],
    clock: Clock,
    region: str | None = None,
    *,
    serverless: bool = False,
) -> ClusterRoom:
    """Instance types, prices and limits of clusters in a region (None: not known). Raises `Invalid` with all
    violations."""
    of_session = ClusterLimits(
        limits.session.nodes_min, limits.session.nodes, limits.session_vcpus, limits.session_usd, spot_share
    )
    reasons: list[str] = []
    prices = _checked(lambda: _prices(price_file, instance_types, clock), reasons)
    if prices is None:
        _checked(of_session.check, reasons)
        raise Invalid(*reasons)
    room = ClusterRoom(of_session, prices, prices.warnings(region, date_of(clock.now_ms())), serverless)
    _checked(room.check, reasons)
    refuse_if(reasons)
    return room


def standalone_address(options: ServiceOptions, state: StoreLocation) -> StandaloneAddress | None:
    """None: sessions run elsewhere. Raises `Invalid` with all violations in the options of a standalone Spark."""
    given = options.spark
    if given.master_url is None:
        unused = {
            "--archive": given.archive,
            "--executor-cores": given.executor_cores,
            "--driver-host": given.driver_host,
        }
        names = [name for name, value in unused.items() if value is not None]
        if names:
            raise Invalid(f"{', '.join(names)} is about a standalone Spark: add --master-url spark://host:port")
        return None
    reasons = list(violations(given.master_url, _stores(options, state)))
    if given.cluster_settings is not None:
        reasons.append("--master-url and --cluster-settings name two places for sessions: leave one out")
    if given.archive is None:
        reasons.append("--master-url needs --archive: make one with `lithify archive lithify.tar.gz`")
    elif not given.archive.is_file():
        reasons.append(f"there is no archive {given.archive}: make one with `lithify archive {given.archive}`")
    if given.cores is None or given.memory_gib is None:
        reasons.append("--master-url needs --cores and --memory-gib: what sessions may take of that Spark, in all")
    if reasons or given.archive is None:
        raise Invalid(*reasons)
    return StandaloneAddress(given.master_url, given.archive, given.executor_cores, given.driver_host)


def _stores(options: ServiceOptions, state: StoreLocation) -> dict[str, StoreLocation]:
    """What the workers of a standalone Spark must reach, by the option that names it."""
    lake = own_lake(options)
    folders = [each for each in options.dispatcher.intake.admission.lakes if not each.startswith("s3://")]
    return {
        "--state": state,
        **({"--lake": lake} if lake is not None else {}),
        **{f"--allow-lake {each}:": parse_location(each) for each in folders},
    }


def _read_archive(uri: str, open_folder: Callable[[str], ObjectStore]) -> ArchiveManifest | None:
    """None: S3 does not answer now, or this process may not read there; then the nodes report it."""
    with Logged("archive_not_checked", Unavailable, archive=uri):
        return check_archive(uri, open_folder)
    return None


def _prices(price_file: str | None, instance_types: Sequence[str], clock: Clock) -> PriceList:
    prices = BUILT_IN
    if price_file is not None:
        body, where = document_body(price_file, "the price file")
        prices = parse_price_list(body, where, date_of(clock.now_ms()))
    return prices.only(tuple(instance_types)) if instance_types else prices


def _checked(check: Callable[[], ValueT], reasons: list[str]) -> ValueT | None:
    """None: the check has added its reasons."""
    try:
        return check()
    except Invalid as error:
        reasons += error.reasons
        return None
