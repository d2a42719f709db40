"""A dispatcher put together from fakes around a real lake in a folder: all but the services and Spark is real."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from compactor.catalog.catalog import DeltaCatalog
from compactor.clock import Clock, SystemClock
from compactor.object_store import ObjectStore, StoreLocation, open_store
from compactor.spec import SessionPlan, SessionSpec
from dispatcher.foreman import Foreman, ForemanSettings
from dispatcher.intake import Accepted, Intake, IntakeSettings, Taken
from dispatcher.job_runs import JobRunState
from dispatcher.records import JobRunRecords
from launcher.outcomes import NothingToDo
from launcher.session_launcher import RetryPolicy, SessionLauncher, SessionLauncherSettings
from launcher.session_plan import plan_for_cluster
from launcher.watch import WatchTimers
from tests.fakes.memory_queue import MemoryQueue
from tests.fakes.memory_sink import MemorySink
from tests.fakes.memory_store import MemoryStore
from tests.fakes.small_cluster import SmallCluster

TABLE = "ACME.ORDERS.V1"
WAIT_SECONDS_MAX = 20.0

QUICK = SessionLauncherSettings(
    poll_seconds=0.01,
    timers=WatchTimers(start_seconds=0.3, stall_seconds=0.3, exit_seconds=0.3),
    retry=RetryPolicy(max_attempts=3, retry_seconds=0.01),
)


@dataclass
class Desk:
    """One dispatcher. `second` makes another over the same state, queue and lake."""

    folder: Path
    clock: Clock = field(default_factory=SystemClock)
    state: ObjectStore = None  # type: ignore[assignment]
    queue: MemoryQueue = None  # type: ignore[assignment]
    sink: MemorySink = field(default_factory=MemorySink)
    settings: ForemanSettings = field(
        default_factory=lambda: ForemanSettings(tick_seconds=0.01, sweep_seconds=0.0, requeue_seconds=0.01)
    )
    launcher_settings: SessionLauncherSettings = QUICK
    owner: str = "first"
    open_lake: Callable[[StoreLocation], DeltaCatalog] | None = None
    has_own_lake: bool = True
    plans_break: list[Exception] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.state is None:
            self.state = MemoryStore(self.clock)
        if self.queue is None:
            self.queue = MemoryQueue(self.clock, MemoryQueue(self.clock), deliveries_max=5)
        self.lake = DeltaCatalog.open(str(self.folder / "lake"))
        self.records = JobRunRecords(self.state, self.clock)
        self.cluster = SmallCluster(self.state, self.clock)
        launcher = SessionLauncher(self.state, self.cluster, self.plan, self.launcher_settings, self.clock)
        default_lake = self.lake.location if self.has_own_lake else None
        self.foreman = Foreman(self.owner, self.records, launcher, lambda _: self.sink, self.settings, self.clock)
        self.intake = Intake(
            self.queue,
            self.records,
            self.open_lake or self._open_lake,
            self.sink,
            IntakeSettings(default_lake=default_lake),
        )

    def second(self, **changes: object) -> Desk:
        """Another dispatcher of the same state, queue, topic and lake."""
        return replace(self, **{"owner": "second", **changes})  # type: ignore[arg-type]

    # -- what a test does

    def append(self, rows: list[dict[str, object]], operation: str = "upsert", table: str = TABLE) -> None:
        """A delta in the unpartitioned test table, which is created when it is not there."""
        self.lake.create_table(table).append({}, pa.Table.from_pylist(rows), operation=operation)

    def send(self, document: Mapping[str, object] | str) -> str:
        return self.queue.send(document if isinstance(document, str) else json.dumps(document))

    def take(self) -> list[Taken]:
        """Receive what is visible and take it in."""
        return [self.intake.take(message) for message in self.queue.receive(10, 0, 30)]

    def accept(self, **fields: object) -> str:
        """A good document from the queue to the foreman; answers the job run's id."""
        self.send(instruction(**fields))
        (accepted,) = self.take()
        assert isinstance(accepted, Accepted), accepted
        self.foreman.offer(accepted.job_run_id)
        return accepted.job_run_id

    def run(self) -> None:
        """Tick until nothing is left to do."""
        self.foreman.tick()
        self.tick_until(lambda: self.foreman.is_idle)

    def tick_until(self, done: Callable[[], bool]) -> None:
        until = self.clock.monotonic_seconds() + WAIT_SECONDS_MAX
        while not done():
            assert self.clock.monotonic_seconds() < until, "waited too long"
            self.foreman.tick()
            threading.Event().wait(0.005)

    def close(self) -> None:
        self.foreman.stop()

    # -- what a test looks at

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

    def plan(self, spec: SessionSpec) -> SessionPlan | NothingToDo:
        """As a dispatcher plans; `plans_break` is what the first plannings raise."""
        if self.plans_break:
            raise self.plans_break.pop(0)
        return plan_for_cluster(spec, self._open_lake(spec.job_run.lake), self.cluster.resources())

    def _open_lake(self, location: StoreLocation) -> DeltaCatalog:
        return DeltaCatalog(open_store(location), self.clock)


def instruction(**fields: object) -> dict[str, object]:
    """A good document, with these fields beside or instead of its own; None takes a field out."""
    document = {"schema_version": "1", "source_table_id": TABLE, "primary_keys": ["id"], **fields}
    return {name: value for name, value in document.items() if value is not None}
