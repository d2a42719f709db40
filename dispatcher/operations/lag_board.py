"""What a keeper shows to monitoring: the lag of the tables that it keeps, whether it looks, and what fails.

It is given the result of each look, and writes the samples of the history.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence

from compactor.model.clock import Clock
from compactor.storage.object_store import ObjectStore
from dispatcher.operations.table_lag import TableLag, most_behind_first, table_gauges
from dispatcher.records.lag_samples import LagSample, write_sample
from dispatcher.records.metrics_samples import Metric, Sample

TABLES_SAMPLED = 1_000
"""Tables with a sample each minute, those that are most behind: a day of them is 1.4 million rows."""

KEEPER_LOOKS = Metric("keeper_looks", "count", "Looks at all tables that ended.")
KEEPER_LOOK_AGE = Metric("keeper_look_age", "seconds", "Since the last look at all tables ended, or the start.", False)
KEEPER_TROUBLES = Metric(
    "keeper_troubles", "count", "Tables and services that the last look failed for, and steps of its upkeep.", False
)


class LagBoard:
    """Thread-safe."""

    def __init__(self, store: ObjectStore, lake: str, clock: Clock) -> None:
        """`store`: of the state. `lake`: its URI."""
        self._store = store
        self._lake = lake
        self._clock = clock
        self._lock = threading.Lock()
        self._lags: Sequence[TableLag] = ()
        self._looks = 0
        self._looked_at_seconds = clock.monotonic_seconds()
        self._look_troubles: Mapping[str, str] = {}
        self._upkeep_troubles: Mapping[str, Mapping[str, str]] = {}
        self._sampled_minute: int | None = None

    def looked(self, lags: Sequence[TableLag], troubles: Mapping[str, str]) -> None:
        """A look has ended. `troubles`: what failed, with the reason."""
        with self._lock:
            self._lags, self._look_troubles = lags, troubles
            self._looks += 1
            self._looked_at_seconds = self._clock.monotonic_seconds()

    def could_not_look(self, troubles: Mapping[str, str]) -> None:
        """A look has ended before its first table: what is known of the tables stays."""
        with self._lock:
            self._look_troubles = troubles

    def upkept(self, step: str, troubles: Mapping[str, str]) -> None:
        """A step of the keeper's upkeep has ended. What failed is a trouble until the step is done again."""
        with self._lock:
            self._upkeep_troubles = {**self._upkeep_troubles, step: troubles}

    @property
    def troubles(self) -> Mapping[str, str]:
        """Of the last look, and of the last upkeep."""
        with self._lock:
            found = ((step, each) for step, failed in self._upkeep_troubles.items() for each in failed.items())
            upkeep = {step if what == step else f"{step}: {what}": why for step, (what, why) in found}
            return {**self._look_troubles, **upkeep}

    @property
    def look_age_seconds(self) -> float:
        with self._lock:
            return self._clock.monotonic_seconds() - self._looked_at_seconds

    def samples(self) -> Iterator[Sample]:
        yield Sample(KEEPER_LOOKS, self._looks)
        yield Sample(KEEPER_LOOK_AGE, self.look_age_seconds)
        yield Sample(KEEPER_TROUBLES, len(self.troubles))
        yield from table_gauges(self._lags)

    def write_sample(self) -> None:
        """Writes the minute's sample of the history, after a look; one without a table says that a keeper looks. Raises
        the state's errors."""
        lags, at_ms = self._lags, self._clock.now_ms()
        if not self._looks or self._sampled_minute == at_ms // 60_000:
            return
        shown = most_behind_first(lags)[:TABLES_SAMPLED]
        write_sample(self._store, self._lake, at_ms, [sample_of(each, self._lake, at_ms) for each in shown])
        self._sampled_minute = at_ms // 60_000


def sample_of(lag: TableLag, lake: str, at_ms: int) -> LagSample:
    figures = lag.figures
    return LagSample(
        at_ms=at_ms,
        lake=lake,
        table=lag.table_id,
        partitions=lag.partitions,
        lag_seconds=lag.lag_seconds,
        lag_bound_seconds=lag.bound_seconds,
        pending_deltas=figures.pending_deltas,
        pending_rows=figures.pending_rows,
        pending_bytes=figures.pending_bytes,
        files=figures.files,
        file_bytes=figures.file_bytes,
        small_files=figures.small_files,
        rows=figures.rows,
        dead_rows=figures.dead_rows,
        published_lag_seconds=lag.published_lag_seconds,
        unsent_decisions=lag.unsent_decisions,
    )
