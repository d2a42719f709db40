"""How far tables are behind, for reports, metrics and samples."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from compactor.catalog.compact_when import CompactWhen
from compactor.catalog.tables import Table
from compactor.model.clock import Clock
from compactor.model.names import PartitionValues
from compactor.planning.stream_figures import StreamFigures, total
from compactor.planning.table_figures import read_figures
from compactor.storage.object_store import ObjectStore
from dispatcher.records.metrics_samples import Metric, Sample

TABLES_SHOWN = 100
"""So many tables have metrics of their own, those that are most behind: each has 5 to 7 series, and CloudWatch asks
money for each. All tables count in the two metrics without a table."""

TABLE_LAG = Metric("table_lag", "seconds", "For how long the oldest delta has been waiting to be compacted.", False)
TABLE_LAG_BOUND = Metric("table_lag_bound", "seconds", "The most lag that the table's policy allows.", False)
TABLE_PENDING_ROWS = Metric("table_pending_rows", "count", "Rows that are not compacted.", False)
TABLE_PENDING_BYTES = Metric("table_pending", "bytes", "Bytes of files that are not compacted.", False)
TABLE_SMALL_FILES = Metric("table_small_files", "count", "Compacted files that are small enough to be merged.", False)
TABLE_DEAD_ROWS = Metric("table_dead_rows", "count", "Dead rows in compacted files.", False)
TABLE_PUBLISHED_LAG = Metric(
    "table_published_lag", "seconds", "For how long the oldest change of a published table has been waiting.", False
)
TABLES_LATE = Metric("tables_late", "count", "Tables whose lag is more than ten minutes above their bound.", False)
TABLES_WATCHED = Metric("tables_watched", "count", "Tables whose lag is known.", False)


LATE_SECONDS = 600
"""A table is late if its lag is so much above its bound. Until then the delta that has reached the bound, and is due by
that, has a look, the start of a cluster and its session."""


@dataclass(frozen=True)
class TableLag:
    """A table at one time.

    Attributes:
        at_ms: when it was looked at, by the looking process's clock
        bound_seconds: the most lag that its policy allows; None: it has no such policy
        is_published: whether other engines read it
        unsent_decisions: of the keeper on it, that the queue has not taken"""

    table_id: str
    at_ms: int
    partitions: int
    figures: StreamFigures
    bound_seconds: float | None = None
    is_published: bool = False
    unsent_decisions: int = 0

    @property
    def lag_seconds(self) -> float:
        return self.figures.lag_seconds(self.at_ms)

    @property
    def published_lag_seconds(self) -> float | None:
        """None: it is not published."""
        return self.figures.published_lag_seconds(self.at_ms) if self.is_published else None

    @property
    def behind(self) -> float:
        """The lag as a share of its bound; 0 where there is no bound."""
        return 0.0 if not self.bound_seconds else self.lag_seconds / self.bound_seconds

    @property
    def is_late(self) -> bool:
        return is_late(self.lag_seconds, self.bound_seconds)


def is_late(lag_seconds: float, bound_seconds: float | None) -> bool:
    return bound_seconds is not None and lag_seconds > bound_seconds + LATE_SECONDS


def table_lag(store: ObjectStore, table: Table, clock: Clock, default_policy: CompactWhen | None = None) -> TableLag:
    """Reads the logs of all of the table's streams, and what is published of them. `default_policy`: see `lag_of`."""
    partitions = list(table.partitions())
    lag = lag_of(table, read_figures(table, partitions), clock, default_policy)
    return with_published(lag, store, table, clock, partitions)


def lag_of(
    table: Table, figures: Sequence[StreamFigures], clock: Clock, default_policy: CompactWhen | None = None
) -> TableLag:
    """From the figures of the table's streams, without what is published. Reads nothing.

    Args:
        default_policy: of tables that have none of their own"""
    policy = table.properties.kept_by(default_policy)
    found = total(figures)
    bound = None if policy is None or found.of_a_copy else policy.lag_bound_seconds()
    return TableLag(table.table_id, clock.now_ms(), len(figures), found, bound)


def with_published(
    lag: TableLag,
    store: ObjectStore,
    table: Table,
    clock: Clock,
    partitions: Sequence[PartitionValues],
    ends: Mapping[str, int] = MappingProxyType({}),
) -> TableLag:
    """With the lag of what is published, if the table is. `ends`: see `lags`. Raises `Invalid` if it cannot be."""
    if not table.properties.publish:
        return lag
    from compactor.publishing.publication import lags, publishers_of, with_gone_streams

    publishers = publishers_of(store, table, clock)
    streams = with_gone_streams(table, publishers, [table.stream(partition) for partition in partitions])
    by_format = [lags(publisher, streams, ends) for publisher in publishers]
    since = min((each.since_ms for found in by_format for each in found if each.since_ms is not None), default=None)
    files = max(sum(each.behind for each in found) for found in by_format)
    figures = replace(lag.figures, unpublished_files=files, unpublished_since_ms=since)
    return replace(lag, figures=figures, is_published=True)


def most_behind_first(lags: Iterable[TableLag]) -> list[TableLag]:
    """Late tables, then the others, by lag against the own bound; tables without a bound after those, by lag, then by
    rows that wait."""

    def order(lag: TableLag) -> tuple[object, ...]:
        return not lag.is_late, -lag.behind, -lag.lag_seconds, -lag.figures.pending_rows, lag.table_id

    return sorted(lags, key=order)


def table_gauges(lags: Iterable[TableLag]) -> Iterator[Sample]:
    """Metrics of the `TABLES_SHOWN` tables that are most behind, and two over all."""
    found = most_behind_first(lags)
    yield Sample(TABLES_WATCHED, len(found))
    yield Sample(TABLES_LATE, sum(each.is_late for each in found))
    for each in found[:TABLES_SHOWN]:
        table, figures = (("table", each.table_id),), each.figures
        yield Sample(TABLE_LAG, each.lag_seconds, table)
        if each.bound_seconds is not None:
            yield Sample(TABLE_LAG_BOUND, each.bound_seconds, table)
        yield Sample(TABLE_PENDING_ROWS, figures.pending_rows, table)
        yield Sample(TABLE_PENDING_BYTES, figures.pending_bytes, table)
        yield Sample(TABLE_SMALL_FILES, figures.small_files, table)
        yield Sample(TABLE_DEAD_ROWS, figures.dead_rows, table)
        if each.published_lag_seconds is not None:
            yield Sample(TABLE_PUBLISHED_LAG, each.published_lag_seconds, table)
