"""A dispatcher put together from fakes around a real lake in a folder: all but the services and Spark is real."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from compactor.catalog import tables
from compactor.events.relay import EventSink
from compactor.lake import DeltaCatalog
from compactor.model.clock import Clock
from compactor.model.errors import Unavailable
from compactor.model.retries import Backoff
from compactor.planning.bundle_plan import BundleBounds, SmallSession
from compactor.planning.session_streams import Commit
from compactor.planning.sizing import Resources
from compactor.planning.spec import SessionPlan, SessionSpec
from compactor.planning.where_to_run import WorkerPool
from compactor.sessions.in_flight import refuse_beside_another
from compactor.storage.location import StoreLocation
from compactor.storage.object_store import ObjectStore
from compactor.storage.opening import open_store
from dispatcher.intake.admission import Admission
from dispatcher.intake.intake import Accepted, Intake, IntakeSettings, Taken
from dispatcher.outbox.event_publisher import EventPublisher, PublisherSettings
from dispatcher.outbox.table_publications import TablePublications, TablePublicationSettings
from dispatcher.outbox.workflow_callbacks import AnswerSettings, WorkflowAnswers
from dispatcher.records.cluster_starts import LearnedStarts
from dispatcher.records.job_run_log import JobRunState
from dispatcher.records.job_run_store import JobRunStore
from dispatcher.records.metrics_samples import Metrics
from dispatcher.running.job_run_controller import JobRunController, JobRunControllerSettings, Launchers
from dispatcher.running.journal import Listeners
from dispatcher.running.session_finding import SessionFinding
from dispatcher.running.sharding import Sharding
from launcher.clusters.workers import KIND as WORKER
from launcher.launch import LaunchDependencies
from launcher.outcomes import NothingToDo
from launcher.plan import (
    LackOfMemory,
    LargeSession,
    plan_for_cluster,
    plan_in_one_task,
    plan_in_worker,
    session_commits,
)
from launcher.poller import Poller, PollerSettings
from launcher.retrying import RetryPolicy
from launcher.session_launcher import Planners, SessionLauncher, SessionLauncherSettings, WorkerLaunches
from launcher.sizing.desired_sla import DesiredSla
from tests.fakes.memory_callbacks import MemoryCallbacks
from tests.fakes.memory_glue import MemoryGlue
from tests.fakes.memory_queue import MemoryQueue
from tests.fakes.memory_sink import MemorySink
from tests.fakes.memory_store import MemoryStore
from tests.fakes.moving_clock import MovingClock
from tests.fakes.small_cluster import SmallCluster, SmallJob
from tests.waiting import wait_until

TABLE = "ACME.ORDERS.V1"
TELLS_AT_ONCE = PublisherSettings(round_seconds=0.002, backoff=Backoff(0.0, 0.0), flush_seconds=1.0)
"""No topic is left alone, so that a test need not wait for the end of that."""

ANSWERS_AT_ONCE = AnswerSettings(round_seconds=0.002, backoff=Backoff(0.0, 0.0), flush_seconds=1.0)

STALL_SECONDS = 10_000.0
"""Longer than any launch or step may take without progress."""

FOLLOWS_SPEED = ("heartbeat.emitted", "session.expected_sla_changed")
"""Events that a session publishes as often as the machine's speed makes it."""

QUICK = SessionLauncherSettings(
    poller=PollerSettings(poll_seconds=0.002, look_seconds=0.002),
    retry=RetryPolicy(max_attempts=3, retry_seconds=0.002),
)


@dataclass
class Desk:
    """One dispatcher. `second` makes another over the same state, queue and lake."""

    folder: Path
    clock: Clock = field(default_factory=MovingClock)
    state: ObjectStore = None  # type: ignore[assignment]
    queue: MemoryQueue = None  # type: ignore[assignment]
    sink: MemorySink = field(default_factory=MemorySink)
    settings: JobRunControllerSettings = field(
        default_factory=lambda: JobRunControllerSettings(
            max_sessions=2,
            tick_seconds=0.002,
            sweep_seconds=0.0,
            look_seconds=0.0,
            requeue_seconds=0.002,
            turn_look_seconds=0.05,
        )
    )
    launcher_settings: SessionLauncherSettings = QUICK
    bundles: BundleBounds = field(default_factory=lambda: BundleBounds(sessions=1))
    owner: str = "first"
    sink_for: Callable[[str | None], EventSink] | None = None
    open_lake: Callable[[StoreLocation], DeltaCatalog] | None = None
    has_own_lake: bool = True
    admission: Admission | None = None
    plans_break: list[Exception] = field(default_factory=list)
    glue: MemoryGlue = field(default_factory=MemoryGlue)
    callbacks: MemoryCallbacks = field(default_factory=MemoryCallbacks)
    answer_settings: AnswerSettings = ANSWERS_AT_ONCE
    place: str = "small"
    jobs: dict[str, SmallJob] = field(default_factory=dict)
    pool: WorkerPool | None = None
    """Of workers, which are another cluster then: `in_workers`."""
    large: set[str] = field(default_factory=set)
    """Partition values whose sessions are said to be too large for a bundle."""

    def __post_init__(self) -> None:
        if self.state is None:
            self.state = MemoryStore(self.clock)
        if self.queue is None:
            self.queue = MemoryQueue(self.clock, MemoryQueue(self.clock), deliveries_max=5)
        self.lake = DeltaCatalog.open(str(self.folder / "lake"))
        self.records = JobRunStore(self.state, self.clock, self.owner)
        self.cluster = SmallCluster(
            self.state,
            self.clock,
            let_time_pass=lambda: self.move_on(STALL_SECONDS),
            jobs=self.jobs,
            place=self.place,
        )
        settings = self.launcher_settings
        launching = LaunchDependencies(
            self.state,
            self.cluster,
            self.commits,
            Poller(settings.poller, self.clock),
            settings.timers,
            settings.retry,
            self.clock,
            LearnedStarts(self.state, self.cluster.place, self.clock),
        )
        self.room = launching.room
        self.in_workers = SmallCluster(
            self.state,
            self.clock,
            let_time_pass=lambda: self.move_on(STALL_SECONDS),
            jobs=self.jobs,
            place=f"{WORKER} of {self.owner}",
            kind=WORKER,
        )
        workers = None
        if self.pool is not None:
            workers = WorkerLaunches(replace(launching, cluster=self.in_workers), self.pool, plan_in_worker)
        planners = Planners(self.plan, self.plan_small, self._open_lake)
        launcher = SessionLauncher(launching, planners, self.bundles, workers)
        default_lake = self.lake.location if self.has_own_lake else None
        self.answers = WorkflowAnswers(self.records, self.callbacks, self.answer_settings, self.clock)
        sink_for = self.sink_for or (lambda _: self.sink)
        self.publisher = EventPublisher(self.records, sink_for, self.answers, TELLS_AT_ONCE, self.clock)
        self.metrics = Metrics(self.clock)
        self.tables = TablePublications(
            self.open_lake or self._open_lake,
            lambda _: self.glue,
            self.publisher.announce,
            TablePublicationSettings(),
            self.clock,
        )
        listeners = Listeners(self.publisher, self.answers, self.metrics, self.tables)
        admission = self.admission or Admission(own_lake=default_lake)
        open_lake = self.open_lake or self._open_lake
        finding = SessionFinding(open_lake, admission.file_refusals, self.clock)
        launchers = Launchers(launcher, finding, Sharding(self.records, open_lake, self.clock))
        self.controller = JobRunController(self.owner, self.records, launchers, listeners, self.settings, self.clock)
        self.turns = self.controller.leases
        self.intake = Intake(
            self.queue,
            self.records,
            self.open_lake or self._open_lake,
            IntakeSettings(admission=admission),
            self.clock,
        )

    def second(self, **changes: object) -> Desk:
        """Another dispatcher of the same state, queue, topic and lake, that sees the Spark jobs of this one."""
        return replace(self, **{"owner": "second", **changes})  # type: ignore[arg-type]

    # -- actions

    def append(self, rows: list[dict[str, object]], operation: str = "upsert", table: str = TABLE) -> None:
        """A delta in the unpartitioned test table, which is created when it is not there."""
        self.lake.create_table(table).append({}, pa.Table.from_pylist(rows), operation=operation)

    def append_days(self, table_id: str, days: int) -> None:
        """Creates a table with a partition stream for each day, from day 1 on, and a delta in each."""
        table = self.lake.create_table(table_id, ["day"])
        for day in range(1, days + 1):
            table.append({"day": str(day)}, pa.table({"id": [1, 2, 1], "v": ["a", "b", "c"]}))

    def send(self, document: Mapping[str, object] | str) -> str:
        return self.queue.send(document if isinstance(document, str) else json.dumps(document))

    def take(self) -> list[Taken]:
        """Receives the visible messages and processes them."""
        return [self.intake.take(message) for message in self.queue.receive(10, 0, 30)]

    def publish(self, *job_run_ids: str) -> None:
        """Publishes the events, as a receiver does after a rejection or a repeat."""
        for job_run_id in job_run_ids:
            self.controller.offer(job_run_id)
        self.tick()

    def accept(self, **fields: object) -> str:
        """Passes a valid document from the queue to the controller; returns the job run's id."""
        self.send(instruction(**fields))
        (accepted,) = self.take()
        assert isinstance(accepted, Accepted), accepted
        self.controller.offer(accepted.job_run_id, accepted.log)
        return accepted.job_run_id

    def run(self) -> None:
        """Tick until nothing is left to do."""
        self.controller.tick()
        self.tick_until(lambda: self.controller.is_idle and self.publisher.is_idle and self.answers.is_idle)

    def tick_until(self, done: Callable[[], bool]) -> None:
        def done_after_a_tick() -> bool:
            if done():
                return True
            self.tick()
            self.clock.sleep(0.002)  # moves a manual clock to the end of a pause
            return False

        wait_until(done_after_a_tick, every_seconds=0.001)

    def move_on(self, seconds: float) -> None:
        """Moves the clock forward."""
        if isinstance(self.clock, MovingClock):
            self.clock.move_on(seconds)
        else:
            self.clock.sleep(seconds)

    def tick(self) -> None:
        self.controller.tick()
        self.answers.answer_round()
        self.publisher.publish_round()

    def close(self) -> None:
        """Its Spark jobs end with it, as with their machine."""
        self.controller.stop(stops_jobs=True)

    def leave(self) -> None:
        """It ends at once; its Spark jobs continue, and its claims stay."""
        self.controller.stop(stops_jobs=False)

    # -- state

    def job_run(self, job_run_id: str) -> JobRunState:
        return self.records.state(job_run_id)

    def rows(self, table: str = TABLE) -> list[dict[str, object]]:
        """The live compacted rows."""
        stream = self.lake.table(table).stream({})
        compacted = stream.load().state.compacted
        if compacted is None:
            return []
        tables = [pq.read_table(stream.uri_of(file.path).removeprefix("file://")) for file in compacted.files.values()]
        rows: list[dict[str, object]] = pa.concat_tables(tables).to_pylist()
        return sorted(rows, key=str)

    def plan(
        self, spec: SessionSpec, lack: LackOfMemory | None = None, desired: DesiredSla | None = None
    ) -> SessionPlan | NothingToDo:
        """Plans as a dispatcher does; the first calls raise the errors in `plans_break`."""
        if self.plans_break:
            raise self.plans_break.pop(0)
        lake = self._open_lake(spec.job_run.lake)
        planned = plan_for_cluster(spec, lake, self.room(), lack, self.pool, desired)
        refuse_beside_another(spec, lake, self.clock)
        return planned

    def plan_small(
        self, spec: SessionSpec, lake: tables.DeltaCatalog, resources: Resources
    ) -> SmallSession | LargeSession | NothingToDo:
        if self.plans_break:
            raise self.plans_break.pop(0)
        if self.large & set(spec.partition.values()):
            return LargeSession(("a test says so",))
        planned = plan_in_one_task(spec, lake, resources)
        refuse_beside_another(spec, lake, self.clock)
        return planned

    def commits(self, spec: SessionSpec) -> list[Commit]:
        return session_commits(spec, self._open_lake(spec.job_run.lake))

    def _open_lake(self, location: StoreLocation) -> DeltaCatalog:
        return DeltaCatalog(open_store(location), self.clock)


class Busy(Desk):
    """Its sessions are planned until it is closed, so time stands still unless a test moves it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.closed = threading.Event()

    def plan(
        self, spec: SessionSpec, lack: LackOfMemory | None = None, desired: DesiredSla | None = None
    ) -> SessionPlan | NothingToDo:
        self.closed.wait()
        raise Unavailable("the dispatcher is gone")

    def close(self) -> None:
        self.closed.set()
        super().close()


def instruction(**fields: object) -> dict[str, object]:
    """A valid document with these fields added or replaced; None removes a field."""
    document = {"schema_version": "1", "source_table_id": TABLE, "primary_keys": ["id"], **fields}
    return {name: value for name, value in document.items() if value is not None}
