"""What a keeper shows to monitoring: the lag of the tables that it keeps, whether it looks, and what fails.

It is given the result of each look, and writes the samples of the history.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence

from compactor.model.clock import Clock
from compactor.storage.object_store import ObjectStore
from dispatcher.operations.table_lag import TableLag, most_behind_first, table_gauges
from dispatcher.records.lag_samples import LagSample, write_sample
from dispatcher.records.metrics_samples import Metric, Sample

TABLES_SAMPLED = 1_000
"""So many tables have a sample each minute, those that are most behind: a day of them is 1.4 million rows."""

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
        self._troubles: Mapping[str, str] = {}
        self._sampled_minute: int | None = None

    def looked(self, lags: Sequence[TableLag], troubles: Mapping[str, str]) -> None:
        """A look has ended, with the reasons of what failed. Writes the minute's sample, and raises the state's
        errors."""
        with self._lock:
            self._lags, self._troubles = lags, troubles
            self._looks += 1
            self._looked_at_seconds = self._clock.monotonic_seconds()
        self._sample(lags)

    @property
    def troubles(self) -> Mapping[str, str]:
        return self._troubles

    def samples(self) -> Iterator[Sample]:
        with self._lock:
            lags, troubles, looks = self._lags, len(self._troubles), self._looks
            age_seconds = self._clock.monotonic_seconds() - self._looked_at_seconds
        yield Sample(KEEPER_LOOKS, looks)
        yield Sample(KEEPER_LOOK_AGE, age_seconds)
        yield Sample(KEEPER_TROUBLES, troubles)
        yield from table_gauges(lags)

    def _sample(self, lags: Sequence[TableLag]) -> None:
        at_ms = self._clock.now_ms()
        if not lags or self._sampled_minute == at_ms // 60_000:
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
        published_lag_seconds=figures.published_lag_seconds(lag.at_ms) if lag.is_published else None,
    )
