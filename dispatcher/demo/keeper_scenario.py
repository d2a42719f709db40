"""The demo of the keeper: writers append for some time, the keeper decides, and a dispatcher compacts.

main thread      samples the table, shows it and the events, until the writers have ended and nothing is pending
writers          append a delta a second each
keeper           a thread with the loop of `lithify keeper`
dispatcher       a thread with the dispatcher of `lithify dispatch`; its Spark jobs are processes
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from compactor.events.relay import NoSink
from compactor.events.types import Severity
from compactor.lake import Table
from compactor.log.durable_log import DurableLog
from compactor.model.clock import Clock
from compactor.model.names import counted
from compactor.planning.stream_figures import StreamFigures, total
from compactor.planning.table_figures import read_figures
from dispatcher.demo.environment import DemoEnvironment
from dispatcher.demo.screen import Screen
from dispatcher.keeper.decision_log import DECISION_LOG, DecisionMade
from dispatcher.keeper.keeper import Keeper
from dispatcher.keeper.keys import DecisionLogFolder, lake_name
from dispatcher.keeper.table_keeper import KeeperServices, KeeperSettings
from dispatcher.operations.event_text import event_text
from dispatcher.records.job_run_events import JobRunSucceededEvent
from dispatcher.records.job_run_store import JobRunStore
from launcher.sizing.cluster_choice import ClusterRoom

TABLE_ID = "DEMO.CLICKS.V1"
POLICY = {"lag_seconds": 8, "not_before_seconds": 5}
LAG_SECONDS_MAX = 30.0
WRITERS = 2
ROWS_PER_DELTA = 500
SAMPLE_SECONDS = 1.0
SHOWN_EVERY = 5
"""Samples between two lines."""

DRAIN_SECONDS = 60.0
"""Time after the writers' end for what is pending then."""


@dataclass(frozen=True)
class KeptTable:
    """What the keeper has done. `usd`: what its job runs would cost on EMR."""

    seconds: float
    deltas: int
    decisions: int
    greatest_lag_seconds: float
    pending_deltas: int
    files: int
    usd: float

    @property
    def holds(self) -> bool:
        return self.greatest_lag_seconds < LAG_SECONDS_MAX and not self.pending_deltas

    @property
    def claim(self) -> str:
        return (
            f"{self.deltas:,} deltas in {self.seconds:.0f} s: the greatest lag was {self.greatest_lag_seconds:.0f} s, "
            f"of less than {LAG_SECONDS_MAX:.0f} s, with {counted(self.decisions, 'decision')}, and "
            f"{counted(self.files, 'file')} left; ${self.usd:,.4f} on EMR"
        )


@contextmanager
def keeper_and_dispatcher(
    environment: DemoEnvironment, clock: Clock, dispatch: Callable[[threading.Event], object], stops: threading.Event
) -> Iterator[None]:
    """Both run while the context is open; `stops` is set at its end. Raises what the dispatcher raised."""
    records = JobRunStore(environment.state, clock)
    services = KeeperServices(environment.lake, records, environment.queue, ClusterRoom(), NoSink(), clock)
    with ThreadPoolExecutor(1, thread_name_prefix="demo") as threads:
        dispatching = threads.submit(dispatch, stops)
        try:
            with Keeper(services, KeeperSettings(look_seconds=1.0)).loop(stops):
                try:
                    yield
                finally:
                    stops.set()
        finally:
            stops.set()
    dispatching.result()


class KeeperScenario:
    """Runs once."""

    def __init__(self, environment: DemoEnvironment, screen: Screen, clock: Clock, seconds: float) -> None:
        self._environment = environment
        self._screen = screen
        self._clock = clock
        self._seconds = seconds
        self._lock = threading.Lock()
        self._writers = WRITERS
        self._deltas = 0
        self._greatest_lag_seconds = 0.0
        folder = DecisionLogFolder(lake_name(environment.lake.location), TABLE_ID)
        self._decided = DurableLog(environment.state, folder.key, DECISION_LOG, clock)

    def run(self, dispatch: Callable[[threading.Event], object], stops: threading.Event) -> KeptTable:
        """Raises what a writer or the dispatcher raised."""
        begun = self._clock.monotonic_seconds()
        properties = {"compact_when": POLICY}
        table = self._environment.lake.create_table(TABLE_ID, ["page"], primary_keys={"id"}, properties=properties)
        self._screen.show_step(f"{TABLE_ID}: compact_when={POLICY}; {WRITERS} writers append for {self._seconds:.0f} s")
        with (
            ThreadPoolExecutor(WRITERS, thread_name_prefix="demo") as threads,
            keeper_and_dispatcher(self._environment, self._clock, dispatch, stops),
        ):
            writing = [threads.submit(self._write, table, number, stops) for number in range(WRITERS)]
            figures = self._watch(table, stops, begun)
        for each in writing:
            each.result()
        seconds = self._clock.monotonic_seconds() - begun
        decided, usd = self._decisions()
        lag_seconds = self._greatest_lag_seconds
        return KeptTable(seconds, self._deltas, decided, lag_seconds, figures.pending_deltas, figures.files, usd)

    def _decisions(self) -> tuple[int, float]:
        """Their number, and what their job runs would cost on EMR."""
        actions = (action for entry in self._decided.entries() for action in entry.actions)
        made = [action.expected_usd or 0.0 for action in actions if isinstance(action, DecisionMade)]
        return len(made), sum(made)

    def _write(self, table: Table, writer: int, stops: threading.Event) -> None:
        until = self._clock.monotonic_seconds() + self._seconds
        number = 0
        while self._clock.monotonic_seconds() < until and not stops.wait(1.0):
            ids = [writer * 1_000_000 + (number * 137 + each) % 50_000 for each in range(ROWS_PER_DELTA)]
            rows = pa.table({"id": ids, "clicks": [number] * ROWS_PER_DELTA})
            table.append({"page": f"page-{writer}"}, rows)
            number += 1
            with self._lock:
                self._deltas += 1
        with self._lock:
            self._writers -= 1

    def _watch(self, table: Table, stops: threading.Event, begun: float) -> StreamFigures:
        figures, samples = StreamFigures(), 0
        until = begun + self._seconds + DRAIN_SECONDS
        while not stops.wait(SAMPLE_SECONDS) and self._clock.monotonic_seconds() < until:
            for event in self._environment.receive():
                if isinstance(event.data, JobRunSucceededEvent) or event.severity is not Severity.INFO:
                    self._screen.show_step(f"{event.jobrunid[:15]} {event.type}: {event_text(event.data)}")
            figures = total(read_figures(table))
            lag_seconds = figures.lag_seconds(self._clock.now_ms())
            self._greatest_lag_seconds = max(self._greatest_lag_seconds, lag_seconds)
            if samples % SHOWN_EVERY == 0:
                self._show(figures, lag_seconds)
            samples += 1
            if not self._writers and not figures.pending_deltas:
                break
        return figures

    def _show(self, figures: StreamFigures, lag_seconds: float) -> None:
        decided, usd = self._decisions()
        self._screen.show_step(
            f"lag {lag_seconds:.0f} s, {counted(figures.pending_deltas, 'delta')} pending, "
            f"{counted(figures.files, 'file')}, {counted(decided, 'decision')}, ${usd:,.4f} on EMR"
        )
