"""How far a table was behind, hour by hour, from the samples that keepers wrote. What is over is read once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial

from compactor.storage.concurrently import run_concurrently
from compactor.storage.object_store import ObjectStore
from dispatcher.records.history import day_of
from dispatcher.records.lag_samples import LagHour, days_of_lag, lag_of_day, lag_of_open_day

DAYS_SHOWN = 30
DAYS_KEPT = 64 * DAYS_SHOWN
"""Days of tables that are kept: 24 hours each."""


class LagHistory:
    """Safe to share between threads."""

    def __init__(self, store: ObjectStore, lake_uri: str) -> None:
        """`store`: of the state. `lake_uri`: as its keeper has it."""
        self._store = store
        self._lake_uri = lake_uri
        self._closed_day = lru_cache(DAYS_KEPT)(partial(lag_of_day, store, lake_uri))

    def of(self, table_id: str, now_ms: int) -> tuple[LagHour, ...]:
        """The last 30 days. A day whose samples are not in one file yet has one sample an hour."""
        today = datetime.fromtimestamp(now_ms / 1000, UTC).date()
        first = (today - timedelta(days=DAYS_SHOWN - 1)).isoformat()
        closed, of_minutes = days_of_lag(self._store)
        wanted = sorted(day for day in closed | of_minutes if first <= day <= day_of(now_ms))
        read = partial(self._day, table_id, closed)
        return tuple(hour for hours in run_concurrently(self._store.location, read, wanted) for hour in hours)

    def _day(self, table_id: str, closed: frozenset[str], day: str) -> tuple[LagHour, ...]:
        if day not in closed:
            return lag_of_open_day(self._store, self._lake_uri, table_id, day)
        return self._closed_day(table_id, day)
