"""Joins the parts of a dispatcher. Settings are values, components are objects; the caller provides both."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from compactor.catalog.tables import DeltaCatalog
from compactor.events.relay import EventSink
from compactor.model.clock import Clock
from compactor.planning.bundle_plan import BundleBounds, SmallSession
from compactor.planning.session_streams import Commit
from compactor.planning.sizing import Resources
from compactor.planning.spec import SessionPlan, SessionSpec
from compactor.planning.where_to_run import WorkerPool
from compactor.publishing.glue import GlueService
from compactor.sessions.in_flight import refuse_beside_another
from compactor.storage.location import StoreLocation
from compactor.storage.object_store import ObjectStore
from compactor.storage.opening import with_region
from dispatcher.intake.intake import Intake, IntakeSettings
from dispatcher.intake.queue import Queue
from dispatcher.intake.receiver import Receiver, ReceiverSettings
from dispatcher.operations.ownerless import owners_in
from dispatcher.outbox.event_publisher import EventPublisher, PublisherSettings
from dispatcher.outbox.table_publications import TablePublications, TablePublicationSettings
from dispatcher.outbox.workflow_callbacks import AnswerSettings, WorkflowAnswers
from dispatcher.records.cluster_starts import LearnedStarts
from dispatcher.records.history_upkeep import HistoryUpkeep
from dispatcher.records.job_run_store import JobRunStore
from dispatcher.records.metrics_samples import Metrics
from dispatcher.running.job_run_controller import JobRunController, JobRunControllerSettings, Launchers
from dispatcher.running.journal import Listeners
from dispatcher.running.session_finding import SessionFinding
from dispatcher.running.sharding import Sharding
from dispatcher.service import Background, Dispatcher, ServiceSettings, health_file
from dispatcher.workflow.callbacks import Callbacks
from dispatcher.workflow.dispatcher_task import DispatcherTask
from launcher.clusters import Cluster, ListingCluster
from launcher.clusters.workers import Workers
from launcher.launch import LaunchDependencies, WarmStarts
from launcher.outcomes import NothingToDo
from launcher.plan import (
    LackOfMemory,
    LargeSession,
    WorkerPlanner,
    plan_for_cluster,
    plan_in_one_task,
    plan_in_worker,
    session_commits,
)
from launcher.poller import Poller, PollerSettings, WokenPoller
from launcher.session_launcher import Planners, SessionLauncher, SessionLauncherSettings, WorkerLaunches
from launcher.sizing.cluster_choice import ClusterRoom
from launcher.sizing.desired_sla import DesiredSla
from launcher.sweep import Sweep


@dataclass(frozen=True)
class DispatcherSettings:
    """Every setting, with the defaults that each part keeps for itself."""

    intake: IntakeSettings = field(default_factory=IntakeSettings)
    controller: JobRunControllerSettings = field(default_factory=JobRunControllerSettings)
    publisher: PublisherSettings = field(default_factory=PublisherSettings)
    tables: TablePublicationSettings = field(default_factory=TablePublicationSettings)
    answers: AnswerSettings = field(default_factory=AnswerSettings)
    receiver: ReceiverSettings = field(default_factory=ReceiverSettings)
    launcher: SessionLauncherSettings = field(default_factory=SessionLauncherSettings)
    bundles: BundleBounds = field(default_factory=BundleBounds)
    service: ServiceSettings = field(default_factory=ServiceSettings)


@dataclass(frozen=True)
class ExternalServices:
    """The external services of a dispatcher.

    Attributes:
        state: where job runs are recorded
        open_lake: the lake at a location
        open_glue: the Glue Data Catalog of a lake's region
        sink_for: where the events of a job run go that named a topic, or none
        callbacks: the service in which workflows wait
        listing: the cluster, if it can list its jobs, those of other launchers too: then it is swept
        task: where a workflow waits for this dispatcher itself
        workers: for small sessions; None: all run on `cluster`
        owner: the name of this dispatcher in claims, unique among all that share the state"""

    queue: Queue
    state: ObjectStore
    cluster: Cluster
    open_lake: Callable[[StoreLocation], DeltaCatalog]
    open_glue: Callable[[StoreLocation], GlueService]
    sink_for: Callable[[str | None], EventSink]
    callbacks: Callbacks
    owner: str
    clock: Clock
    listing: ListingCluster | None = None
    task: DispatcherTask | None = None
    workers: Workers | None = None


def build_dispatcher(outside: ExternalServices, settings: DispatcherSettings) -> Dispatcher:
    """Raises `Invalid` if the queue has no dead-letter queue, which documents that can never work need; and the errors
    of the state's store if it cannot be written."""
    outside.queue.dead_letters()
    records = JobRunStore(outside.state, outside.clock, outside.owner)
    records.check_writable(outside.owner)
    records.note_release()
    open_lake = OpenLakes(outside.open_lake).at
    pool = outside.workers.pool if outside.workers is not None else None

    def plan(spec: SessionSpec, lack: LackOfMemory | None, desired: DesiredSla | None) -> SessionPlan | NothingToDo:
        spec = _with_region(spec)
        lake = open_lake(spec.job_run.lake).for_one_run()
        planned = plan_for_cluster(spec, lake, launching.room(), lack, pool, desired)
        refuse_beside_another(spec, lake, outside.clock)  # before a cluster is launched in vain
        return planned

    def plan_small(
        spec: SessionSpec, lake: DeltaCatalog, resources: Resources
    ) -> SmallSession | LargeSession | NothingToDo:
        spec = _with_region(spec)
        planned = plan_in_one_task(spec, lake, resources)
        refuse_beside_another(spec, lake, outside.clock)
        return planned

    def plan_for_worker(
        spec: SessionSpec, lake: DeltaCatalog, pool: WorkerPool, failures: int
    ) -> SmallSession | LargeSession | NothingToDo:
        spec = _with_region(spec)
        planned = plan_in_worker(spec, lake, pool, failures)
        refuse_beside_another(spec, lake, outside.clock)
        return planned

    def commits(spec: SessionSpec) -> list[Commit]:
        return session_commits(spec, open_lake(spec.job_run.lake))

    launching = LaunchDependencies(
        outside.state,
        outside.cluster,
        commits,
        Poller(settings.launcher.poller, outside.clock),
        settings.launcher.timers,
        settings.launcher.retry,
        outside.clock,
        LearnedStarts(outside.state, _learns_as(outside.cluster), outside.clock),
    )
    planners = Planners(plan, plan_small, open_lake)
    in_workers = _in_workers(outside.workers, launching, plan_for_worker, settings.launcher.poller)
    sessions = SessionLauncher(launching, planners, settings.bundles, in_workers)
    finding = SessionFinding(open_lake, settings.intake.admission.file_refusals, outside.clock)
    launchers = Launchers(sessions, finding, Sharding(records, open_lake, outside.clock))
    answers = WorkflowAnswers(records, outside.callbacks, settings.answers, outside.clock)
    publisher = EventPublisher(records, outside.sink_for, answers, settings.publisher, outside.clock)
    tables = TablePublications(open_lake, outside.open_glue, publisher.announce, settings.tables, outside.clock)
    listeners = Listeners(publisher, answers, Metrics(outside.clock), tables)
    controller = JobRunController(outside.owner, records, launchers, listeners, settings.controller, outside.clock)
    intake = Intake(outside.queue, records, open_lake, settings.intake, outside.clock)
    polls = settings.receiver.until_idle() if settings.service.until_idle else settings.receiver
    receiver = Receiver(outside.queue, intake, controller, listeners.metrics, polls, outside.clock)
    health = health_file(settings.service, outside.owner, outside.clock, _warnings_of(outside.cluster))
    sweep = _sweep(outside, records, settings.service.cluster_sweep_seconds)
    history = HistoryUpkeep(records, outside.clock)
    background = Background(history, sweep, outside.task, outside.workers)
    return Dispatcher(receiver, controller, listeners, health, settings.service, outside.clock, background=background)


def _learns_as(cluster: Cluster) -> str:
    """Whose launches say how the next ones go. A machine's own place has another name whenever it starts."""
    kind, _, _ = cluster.place.partition(" ")
    return cluster.place if isinstance(cluster.resources(), ClusterRoom) else kind


def _in_workers(
    workers: Workers | None, on_spark: LaunchDependencies, plan: WorkerPlanner, settings: PollerSettings
) -> WorkerLaunches | None:
    if workers is None:
        return None
    poller = WokenPoller(settings, on_spark.clock)
    workers.notify_ended = poller.wake
    launching = replace(on_spark, cluster=workers, poller=poller, starts=WarmStarts())
    return WorkerLaunches(launching, workers.pool, plan, workers.start_seconds, lambda: len(workers.process_ids))


def _with_region(spec: SessionSpec) -> SessionSpec:
    """The location with its region: the machines that run a plan may have no default region."""
    job_run = spec.job_run.model_copy(update={"lake": with_region(spec.job_run.lake)})
    return spec.model_copy(update={"job_run": job_run})


def _sweep(outside: ExternalServices, records: JobRunStore, interval_seconds: float) -> Sweep | None:
    if outside.listing is None:
        return None
    location = outside.state.location
    return Sweep(outside.listing, location, lambda tags: owners_in(records, tags), outside.clock, interval_seconds)


def _warnings_of(cluster: Cluster) -> tuple[str, ...]:
    room = cluster.resources()
    return room.warnings if isinstance(room, ClusterRoom) else ()


LAKES_KEPT = 16
"""Lakes in the cache. Each has a bounded part of its logs, so memory does not grow with the number of job runs."""


class OpenLakes:
    """Thread-safe."""

    def __init__(self, open_lake: Callable[[StoreLocation], DeltaCatalog]) -> None:
        self._open_lake = open_lake
        self._lock = threading.Lock()
        self._lakes: OrderedDict[StoreLocation, DeltaCatalog] = OrderedDict()

    def at(self, location: StoreLocation) -> DeltaCatalog:
        with self._lock:
            lake = self._lakes.pop(location, None)
            if lake is None:
                lake = self._open_lake(location)
            self._lakes[location] = lake
            if len(self._lakes) > LAKES_KEPT:
                self._lakes.popitem(last=False)
            return lake
