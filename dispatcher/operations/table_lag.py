"""How far tables are behind, for reports, metrics and samples."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from compactor.catalog.tables import Table
from compactor.planning.stream_figures import StreamFigures, total
from compactor.planning.table_figures import read_figures


@dataclass(frozen=True)
class TableLag:
    """A table at one time.

    at_ms          when it was looked at, by the looking process's clock
    bound_seconds  the most lag that its policy allows; None: it has no such policy
    """

    table_id: str
    at_ms: int
    partitions: int
    figures: StreamFigures
    bound_seconds: float | None = None

    @property
    def lag_seconds(self) -> float:
        return self.figures.lag_seconds(self.at_ms)

    @property
    def behind(self) -> float:
        """The lag as a share of its bound: above 1 it is broken; 0 where there is no bound."""
        return 0.0 if not self.bound_seconds else self.lag_seconds / self.bound_seconds


def table_lag(table: Table, now_ms: int) -> TableLag:
    """Reads the logs of all of the table's streams."""
    streams = read_figures(table)
    return TableLag(table.table_id, now_ms, len(streams), total(streams))


def most_behind_first(lags: Iterable[TableLag]) -> list[TableLag]:
    """By lag against the own bound; tables without a bound after those, by lag, then by rows that wait."""
    return sorted(
        lags,
        key=lambda each: (-each.behind, -each.lag_seconds, -each.figures.pending_rows, each.table_id),
    )
