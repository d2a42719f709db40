"""Joins the parts of a dispatcher. Settings are values, components are objects; who calls brings both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from compactor.catalog.catalog import DeltaCatalog
from compactor.clock import Clock
from compactor.events import EventSink
from compactor.object_store import ObjectStore, StoreLocation
from compactor.spec import SessionPlan, SessionSpec
from dispatcher.foreman import Foreman, ForemanSettings
from dispatcher.intake import Intake, IntakeSettings
from dispatcher.queue import Queue
from dispatcher.receiver import Receiver, ReceiverSettings
from dispatcher.records import JobRunRecords
from dispatcher.service import Dispatcher, ServiceSettings
from launcher.clusters import Cluster
from launcher.outcomes import NothingToDo
from launcher.session_launcher import SessionLauncher, SessionLauncherSettings
from launcher.session_plan import plan_for_cluster


@dataclass(frozen=True)
class DispatcherSettings:
    """Every setting, with the defaults that each part keeps for itself."""

    intake: IntakeSettings = field(default_factory=IntakeSettings)
    foreman: ForemanSettings = field(default_factory=ForemanSettings)
    receiver: ReceiverSettings = field(default_factory=ReceiverSettings)
    launcher: SessionLauncherSettings = field(default_factory=SessionLauncherSettings)
    service: ServiceSettings = field(default_factory=ServiceSettings)


@dataclass(frozen=True)
class Outside:
    """What a dispatcher talks to.

    state      where job runs are recorded
    open_lake  the lake at a location
    sink_for   where the events of a job run go that named a topic, or none
    owner      how this dispatcher is called in claims: unique among all that share the state
    """

    queue: Queue
    state: ObjectStore
    cluster: Cluster
    open_lake: Callable[[StoreLocation], DeltaCatalog]
    sink_for: Callable[[str | None], EventSink]
    owner: str
    clock: Clock


def build_dispatcher(outside: Outside, settings: DispatcherSettings) -> Dispatcher:
    """Raises `Invalid` if the queue has no dead-letter queue: what can never work would have nowhere to go."""
    outside.queue.dead_letters()
    records = JobRunRecords(outside.state, outside.clock)

    def plan(spec: SessionSpec) -> SessionPlan | NothingToDo:
        return plan_for_cluster(spec, outside.open_lake(spec.job_run.lake), outside.cluster.resources())

    launcher = SessionLauncher(outside.state, outside.cluster, plan, settings.launcher, outside.clock)
    foreman = Foreman(outside.owner, records, launcher, outside.sink_for, settings.foreman, outside.clock)
    intake = Intake(outside.queue, records, outside.open_lake, outside.sink_for(None), settings.intake)
    receiver = Receiver(outside.queue, intake, foreman, settings.receiver)
    return Dispatcher(receiver, foreman, settings.service)
