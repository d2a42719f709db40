"""The dependencies of the commands. `dispatcher/main.py` creates them, with the concrete clients."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from compactor.model.clock import Clock
from compactor.model.errors import Invalid
from dispatcher.stops import Stops

if TYPE_CHECKING:  # each verb loads what it needs
    import typer

    from compactor.events.relay import EventSink
    from compactor.lake import DeltaCatalog
    from compactor.planning.machine_share import WorkersShare
    from compactor.planning.sizing import Resources
    from compactor.publishing.glue import GlueService
    from compactor.storage.location import StoreLocation
    from compactor.storage.object_store import ObjectStore
    from dispatcher.assembly import DispatcherSettings
    from dispatcher.intake.queue import Queue
    from dispatcher.workflow.callbacks import Workflows
    from launcher.clusters import AwsCluster, Cluster
    from launcher.clusters.workers import Workers
    from launcher.emr.settings import AwsClusterSettings
    from launcher.sizing.cluster_choice import ClusterRoom
    from launcher.sizing.published_prices import PriceService

VARIABLE_PREFIX = "LITHIFY_"


OPTIONS_FROM_ENVIRONMENT = (
    "cluster",
    "cluster_settings",
    "dead_letter_queue_url",
    "default_policy",
    "endpoint_url",
    "events_queue_url",
    "lake",
    "limits",
    "price_file",
    "queue_url",
    "region",
    "s3_endpoint_url",
    "state",
    "topic_arn",
    "workers",
)
"""Options that all verbs but `dispatch` take from a variable, too. `dispatch` takes every option from one."""


def variable_of(option: str) -> str:
    return f"{VARIABLE_PREFIX}{option.upper()}"


@dataclass(frozen=True)
class QueueAddress:
    """The address of a queue, and of its dead-letter queue if that is not the one of its redrive policy."""

    url: str
    dead_letter_queue_url: str | None
    endpoint_url: str | None
    region: str | None


@dataclass(frozen=True)
class StandaloneAddress:
    """A standalone Spark, and the settings with which its workers run sessions: see `StandaloneClusterSettings`."""

    master_url: str
    archive: Path
    executor_cores: int | None
    driver_host: str | None


class Clients(Protocol):
    """Creates the clients of external services."""

    def queue(self, address: QueueAddress) -> Queue: ...

    def sns_regions(self) -> Mapping[str, frozenset[str]]: ...

    def topic(self, topic_arn: str, endpoint_url: str | None, *, patient: bool) -> EventSink:
        """`patient`: whether a call is repeated for minutes, or for some seconds at most."""

    def check_topic(self, topic_arn: str, endpoint_url: str | None) -> None:
        """Raises `Invalid` if there is no such topic, `Denied` or `Unavailable` if this is not known."""

    def glue(self, region: str | None, endpoint_url: str | None) -> GlueService:
        """The Glue Data Catalog of a region; None: that of the environment. Sends no request."""

    def callbacks(self, address: QueueAddress) -> Workflows:
        """The service in which workflows wait, in the region and at the endpoint of this queue. Sends no request."""

    def standalone_cluster(
        self, address: StandaloneAddress, resources: Resources, driver_memory_bytes: int, work_folder: Path
    ) -> Cluster:
        """Raises `Invalid` with all violations in its archive."""

    def local_cluster(self, resources: Resources, driver_memory_bytes: int, work_folder: Path) -> Cluster: ...

    def workers(self, share: WorkersShare, work_folder: Path) -> Workers:
        """Starts no process yet."""

    def prices(self, region: str, endpoint_url: str | None) -> PriceService:
        """The published prices of a region. Sends no request."""

    def aws_cluster(self, settings: AwsClusterSettings, room: ClusterRoom, owner: str) -> AwsCluster:
        """Clusters on EMR, or job runs on EMR Serverless. Sends no request. `owner`: of the launched ones."""


class TopicSinks:
    """Opens one sink for each topic, at its first use. The topic of a job run is the one in its instruction, else the
    dispatcher's own, else none. Thread-safe."""

    def __init__(self, own_topic_arn: str | None, open_topic: Callable[[str], EventSink]) -> None:
        self._own_topic_arn = own_topic_arn
        self._open_topic = open_topic
        self._lock = threading.Lock()
        self._sinks: dict[str, EventSink] = {}

    def of(self, topic_arn: str | None) -> EventSink:
        """The sink of job runs with this topic, or without one (None). Sends no request. Raises `Invalid` if it is no
        topic."""
        wanted = topic_arn or self._own_topic_arn
        if wanted is None:
            from compactor.events.relay import NoSink

            return NoSink()
        with self._lock:
            if wanted not in self._sinks:
                self._sinks[wanted] = self._open_topic(wanted)
            return self._sinks[wanted]


@dataclass(frozen=True)
class CommandDependencies:
    """
    Attributes:
        memory_bytes: of this machine
        cores: of this machine that this process may use
        owner: the name of this process in claims
        program: the name of this command in a shell
        variables: the environment's LITHIFY_* variables, by the option's name
        stops_on_signal: from its call on, the event that SIGTERM and SIGINT set, instead of ending the process
        stand_in_for_aws: from its call on, this process and its children have these AWS variables and no others
        settings: of a dispatcher, where its options do not say otherwise; None: those of every dispatcher"""

    clients: Clients
    clock: Clock
    memory_bytes: int
    cores: int
    owner: str
    program: str
    variables: Mapping[str, str]
    stops_on_signal: Callable[[], Stops]
    stand_in_for_aws: Callable[[Mapping[str, str]], None]
    settings: DispatcherSettings | None = None

    def store(self, uri: str, endpoint_url: str | None, region: str | None) -> ObjectStore:
        from compactor.storage.location import parse_location
        from compactor.storage.opening import open_store
        from dispatcher.records.keys import SECRET_PREFIXES

        location = parse_location(uri, endpoint_url=endpoint_url, region=region)
        return open_store(location, secret_prefixes=SECRET_PREFIXES)

    def lake(self, location: StoreLocation) -> DeltaCatalog:
        from compactor.lake import DeltaCatalog
        from compactor.storage.opening import open_store

        return DeltaCatalog(open_store(location), self.clock)


def machine_share(
    dependencies: CommandDependencies,
    cores: int | None,
    memory_gib: float | None,
    sessions: int,
    workers: WorkersShare | None = None,
) -> tuple[Resources, int]:
    """The share of one of `sessions` concurrent sessions on Spark in this machine, or in the given part of it, beside
    its workers; and its driver's bytes."""
    from compactor.planning.machine_share import session_share

    memory_bytes = sessions_bytes(dependencies, memory_gib) - (workers.total_bytes if workers is not None else 0)
    return session_share(memory_bytes, cores or dependencies.cores, sessions)


def sessions_bytes(dependencies: CommandDependencies, memory_gib: float | None) -> int:
    """The memory of all sessions on this machine together."""
    from compactor.planning.machine_share import GIB, service_memory_bytes

    try:
        return service_memory_bytes(dependencies.memory_bytes) if memory_gib is None else int(memory_gib * GIB)
    except OverflowError as error:
        raise Invalid(f"--memory-gib {memory_gib:g}: no machine has so much memory") from error


def dependencies_of(context: typer.Context) -> CommandDependencies:
    """The dependencies that `main` gave to all commands."""
    dependencies = context.find_object(CommandDependencies)
    if dependencies is None:
        raise TypeError("the commands were started without their dependencies")
    return dependencies
