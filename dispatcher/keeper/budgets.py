"""Which of the sessions that are due the dispatchers' budgets leave for another day. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from compactor.planning.due import Due, benefit_per_usd
from dispatcher.keeper.deciding import StreamOutlook
from dispatcher.keeper.table_keeper import TableOutlook
from dispatcher.records.history import day_of
from dispatcher.scheduling.lease_log import Demand, LeaseState, QuotaExceeded, over_budget
from dispatcher.scheduling.limits import DispatcherLimits, Limits

_NOBODY = ""
"""Which dispatcher runs a session is not known before: the budget of one is left out."""


def over_budgets(
    found: Sequence[TableOutlook], limits: Limits, leases: LeaseState, now_ms: int
) -> Mapping[tuple[str, str], QuotaExceeded]:
    """By table and stream. What saves most for its money is paid for first, after what is spent or runs today.

    Worked: of $10 a day, $9 are spent, and three sessions are expected to cost $0.60, $0.60 and $0.30: the first and
    the third are paid for, the second waits.
    """
    due: list[tuple[str, StreamOutlook, float]] = [
        (table.table_id, each, each.cost.usd)
        for table in found
        for each in table.streams
        if isinstance(each.decision, Due) and each.cost is not None and each.cost.usd
    ]
    due.sort(key=_rank)
    day, shared = day_of(now_ms), limits.model_copy(update={"dispatcher": DispatcherLimits()})
    exceeded: dict[tuple[str, str], QuotaExceeded] = {}
    for table_id, each, usd in due:
        over = over_budget(leases, Demand(_NOBODY, table_id, usd=usd), shared, day)
        if over is None:
            leases = leases.with_spent(day, table_id, _NOBODY, usd)
        else:
            exceeded[table_id, each.stream.key] = over
    return exceeded


def _rank(due: tuple[str, StreamOutlook, float]) -> tuple[float, str, str]:
    table_id, each, _ = due
    benefit = 0.0 if each.cost is None else benefit_per_usd(each.stream.figures, each.cost)
    return -benefit, table_id, each.stream.key
