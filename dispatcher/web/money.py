"""Dollars by day and table. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from dispatcher.operations.status import JobRunView
from dispatcher.web.words import iso_text


@dataclass(frozen=True)
class DayOfMoney:
    """`share`: of the dearest day, 0 to 1."""

    day: str
    usd: float
    expected_usd: float
    share: float
    by_table: tuple[tuple[str, float], ...]


def money_by_day(views: Sequence[JobRunView]) -> list[DayOfMoney]:
    """The latest first; of each day the dearest tables first."""
    spent: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    expected: dict[str, float] = defaultdict(float)
    for view in views:
        if view.usd is None and view.expected_usd is None:
            continue
        day = iso_text(view.accepted_at_ms)[:10]
        spent[day][view.table or "?"] += view.usd or 0.0
        expected[day] += view.expected_usd or 0.0
    most = max((max(sum(spent[day].values()), expected[day]) for day in spent), default=0.0) or 1.0
    return [
        DayOfMoney(
            day,
            sum(spent[day].values()),
            expected[day],
            sum(spent[day].values()) / most,
            tuple(sorted(spent[day].items(), key=lambda each: -each[1])[:5]),
        )
        for day in sorted(spent, reverse=True)
    ]
