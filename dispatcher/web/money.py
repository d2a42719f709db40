"""Dollars by day and table, from the history. A day that is over is read once."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from compactor.model.clock import date_of
from dispatcher.records.history import EndedJobRun, History, day_of
from dispatcher.web.charts import usd_words

DAYS_SHOWN = 30
TABLES_SHOWN = 5
"""Tables that have a colour of their own, the dearest of all days."""

OTHERS = "others"
_WIDTH, _HEIGHT, _LEFT, _TOP = 1000.0, 200.0, 70.0, 12.0
_TICKS = 4


@dataclass(frozen=True)
class DayOfMoney:
    """Of the job runs that ended on a day (UTC): dollars by table. `failure`: why the day cannot be read."""

    day: str
    usd: Mapping[str, float]
    expected_usd: Mapping[str, float]
    failure: str | None = None

    @property
    def total_usd(self) -> float:
        return sum(self.usd.values())

    @property
    def total_expected_usd(self) -> float:
        return sum(self.expected_usd.values())

    @property
    def dearest(self) -> list[tuple[str, float]]:
        return sorted(self.usd.items(), key=lambda each: -each[1])[:TABLES_SHOWN]


def day_of_money(day: str, job_runs: Iterable[EndedJobRun], failure: str | None = None) -> DayOfMoney:
    usd: dict[str, float] = defaultdict(float)
    expected: dict[str, float] = defaultdict(float)
    for each in job_runs:
        if each.usd is not None or each.expected_usd is not None:
            usd[each.table or "?"] += each.usd or 0.0
            expected[each.table or "?"] += each.expected_usd or 0.0
    return DayOfMoney(day, dict(usd), dict(expected), failure)


class MoneyHistory:
    """For one thread at a time."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._closed: dict[str, DayOfMoney] = {}

    def of(self, now_ms: int) -> tuple[DayOfMoney, ...]:
        """The last 30 days on which a job run ended, the latest first."""
        first = (date_of(now_ms) - timedelta(days=DAYS_SHOWN - 1)).isoformat()
        days = [day for day in self._history.days() if first <= day <= day_of(now_ms)]
        known = {day: each for day, each in self._closed.items() if day >= first}
        closed = frozenset(self._history.closed_days())
        unread = [day for day in days if day not in known]
        if unread:
            for read in self._history.read(unread[0], unread[-1]):
                known.setdefault(read.day, day_of_money(read.day, read.job_runs, read.failure))
        self._closed = {day: each for day, each in known.items() if day in closed and each.failure is None}
        return tuple(known[day] for day in reversed(days) if day in known)


# --------------------------------------------------------------------------------------------------------------- chart


@dataclass(frozen=True)
class MoneyBar:
    """`colour`: number of the table in the legend; `TABLES_SHOWN`: the others."""

    y: float
    height: float
    colour: int
    title: str


@dataclass(frozen=True)
class MoneyColumn:
    x: float
    width: float
    day: str
    bars: tuple[MoneyBar, ...]
    expected: MoneyBar


@dataclass(frozen=True)
class MoneyChart:
    """`caps`: height and words of each limit on a day's money."""

    columns: tuple[MoneyColumn, ...]
    legend: tuple[str, ...]
    caps: tuple[tuple[float, str], ...]
    ticks: tuple[tuple[float, str], ...]


def money_chart(days: Sequence[DayOfMoney], caps: Mapping[str, float]) -> MoneyChart | None:
    """None: nothing was paid for. `days`: the latest first. `caps`: dollars a day, by what they limit."""
    paid = [day for day in reversed(days) if day.total_usd or day.total_expected_usd]
    if not paid:
        return None
    by_table: dict[str, float] = defaultdict(float)
    for day in paid:
        for table, usd in day.usd.items():
            by_table[table] += usd
    legend = sorted(by_table, key=lambda table: -by_table[table])[:TABLES_SHOWN]
    most = max(max(day.total_usd, day.total_expected_usd) for day in paid)
    # A cap far above what is spent would flatten the bars: it is named in words only.
    shown = {name: usd for name, usd in caps.items() if usd <= 3 * most}
    most = max(most, *shown.values()) if shown else most
    step = (_WIDTH - _LEFT) / len(paid)

    def height(usd: float) -> float:
        return round(usd / most * (_HEIGHT - _TOP), 2)

    columns = []
    for number, day in enumerate(paid):
        bars, top = [], _HEIGHT
        parts = {table: day.usd.get(table, 0.0) for table in legend}
        parts[OTHERS] = day.total_usd - sum(parts.values())
        for colour, (table, usd) in enumerate(parts.items()):
            if usd > 0:
                top -= height(usd)
                bars.append(MoneyBar(round(top, 2), height(usd), colour, f"{day.day}, {table}: {usd_words(usd)}"))
        expected = day.total_expected_usd
        title = f"{day.day}: {usd_words(expected)} expected"
        outline = MoneyBar(round(_HEIGHT - height(expected), 2), height(expected), TABLES_SHOWN, title)
        x, width = round(_LEFT + number * step + step * 0.15, 2), round(min(step * 0.7, 60.0), 2)
        columns.append(MoneyColumn(x, width, day.day, tuple(bars), outline))
    ticks = tuple(
        (round(_HEIGHT - height(most * n / _TICKS), 2), usd_words(most * n / _TICKS)) for n in range(_TICKS + 1)
    )
    lines = tuple((round(_HEIGHT - height(usd), 2), f"{name}: {usd_words(usd)}") for name, usd in shown.items())
    return MoneyChart(tuple(columns), (*legend, *((OTHERS,) if len(by_table) > TABLES_SHOWN else ())), lines, ticks)
