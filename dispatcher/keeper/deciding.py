"""The decisions on a table: pure, from what was seen of its streams and the fold of its decision log."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from compactor.catalog.compact_when import CompactWhen
from compactor.planning.due import (
    Candidate,
    Decision,
    Due,
    Expected,
    NotDue,
    Postponed,
    PostponedBy,
    Terms,
    benefit_per_usd,
    decide,
    decide_all,
)
from dispatcher.keeper.decision_log import (
    DecidedStream,
    DecisionAction,
    DecisionMade,
    DecisionState,
    StreamsPostponed,
    job_run_id_of,
)
from dispatcher.keeper.watching import WatchedStream

PARTITIONS_PER_INSTRUCTION = 64

BUDGET_MARGIN = 2.0
"""Sessions run together while there is money for so many times what they are expected to cost; one alone after that.

Worked: of $10 a day, $6 are spent, and five sessions are expected to cost $1 each: two of them run together, since
$4 / 2 are left. If they cost $1.90 each, $9.80 are spent, and the third waits for the next day.
"""

FIGURES_SHOWN = ("pending_deltas", "pending_rows", "pending_bytes", "files", "small_files", "rows", "dead_rows")

REASONS_KEPT = 3
"""Sentences about streams that are postponed, of which there may be thousands."""


@dataclass(frozen=True)
class Seen:
    """What the keeper knows of a table when it decides.

    Attributes:
        costs: what a compaction of a stream is expected to take: asked for those that are due
        pause: why the table is paused; None: it is not"""

    table_id: str
    policy: CompactWhen
    streams: Sequence[WatchedStream]
    costs: Callable[[WatchedStream], Expected]
    pause: str | None = None


@dataclass(frozen=True)
class StreamOutlook:
    """
    Attributes:
        cost: None: it is not due, and was not asked for
        decision: None: the stream is being compacted, or its last job run left it as it is"""

    stream: WatchedStream
    cost: Expected | None
    decision: Decision | None


def outlooks(seen: Seen, state: DecisionState, now_ms: int) -> list[StreamOutlook]:
    """What becomes of each stream, in the order of `seen`."""
    at_work, free = state.streams_at_work, Terms(pause=seen.pause)
    may_be = [each for each in seen.streams if each.key not in at_work and _may_be_tried(state, each, now_ms)]
    decisions = {each.key: decide(each.figures, seen.policy, now_ms, free) for each in may_be}
    due = [each for each in may_be if not isinstance(decisions[each.key], NotDue)]
    costs = {each.key: seen.costs(each) for each in due}
    spent_usd = state.spent_usd(now_ms)
    decisions |= decide_all(
        [Candidate(each.key, each.figures, costs[each.key]) for each in due],
        seen.policy,
        now_ms,
        lambda promised_usd, cost: Terms(spent_usd + promised_usd, cost, seen.pause),
    )
    return [StreamOutlook(each, costs.get(each.key), decisions.get(each.key)) for each in seen.streams]


def decisions_on(seen: Seen, state: DecisionState, now_ms: int) -> list[DecisionAction]:
    """The actions for the log: an instruction for each `PARTITIONS_PER_INSTRUCTION` streams, and what is postponed.

    Where money is limited one job run of the table is open at a time: what it has spent is known before the next one,
    so that one session at most passes a day's money, if none costs more than `BUDGET_MARGIN` times its expectation.
    """
    found = outlooks(seen, state, now_ms)
    due = [each for each in found if isinstance(each.decision, Due)]
    usd_per_day = seen.policy.usd_per_day
    if usd_per_day is None:
        groups = list(_groups(due, seen.policy.max_usd))
    elif state.open:
        groups = []
    else:
        together_usd = (usd_per_day - state.spent_usd(now_ms)) / BUDGET_MARGIN
        groups = list(_groups(due, min(together_usd, seen.policy.max_usd or together_usd)))[:1]
    made = [_made(seen, group, state, now_ms) for group in groups]
    made = [each for each in made if each.job_run_id not in state.ended]
    return [*made, *_postponed(found, state, now_ms)]


def _may_be_tried(state: DecisionState, stream: WatchedStream, now_ms: int) -> bool:
    unsettled = state.unsettled.get(stream.key)
    return unsettled is None or unsettled.may_be_tried(stream.entry_number, now_ms)


def _groups(due: Sequence[StreamOutlook], together_usd: float | None) -> Iterator[list[StreamOutlook]]:
    """What saves most for its money first, as many streams together as an instruction may name, and at most
    `together_usd`: a stream that costs more stands alone. None: whatever they cost."""
    ranked = sorted(due, key=lambda each: (-benefit_per_usd(each.stream.figures, _cost(each)), each.stream.key))
    group: list[StreamOutlook] = []
    usd = 0.0
    for each in ranked:
        cost = _cost(each).usd or 0.0
        is_dear = together_usd is not None and cost > 0 and usd + cost > together_usd
        if group and (len(group) == PARTITIONS_PER_INSTRUCTION or is_dear):
            yield group
            group, usd = [], 0.0
        group.append(each)
        usd += cost
    if group:
        yield group


def _made(seen: Seen, group: Sequence[StreamOutlook], state: DecisionState, now_ms: int) -> DecisionMade:
    streams = sorted((_decided(each) for each in group), key=lambda stream: stream.key)
    found = [_cost(each) for each in group]
    costs = [cost.usd for cost in found if cost.usd is not None]
    return DecisionMade(
        job_run_id=job_run_id_of(
            seen.table_id, seen.policy, [(each.key, each.entry_number) for each in streams], state
        ),
        streams=tuple(streams),
        expected_seconds=sum(cost.seconds for cost in found),
        expected_usd=sum(costs) if costs else None,
        at_ms=now_ms,
    )


def _cost(outlook: StreamOutlook) -> Expected:
    return outlook.cost or Expected(0.0)


def _decided(outlook: StreamOutlook) -> DecidedStream:
    stream, decision = outlook.stream, outlook.decision
    if not isinstance(decision, Due):
        raise TypeError(f"{stream.key} is not due")
    return DecidedStream(
        partition=stream.partition,
        entry_number=stream.entry_number,
        rule=decision.rule,
        why=decision.why,
        expected_usd=_cost(outlook).usd,
        figures={name: getattr(stream.figures, name) for name in FIGURES_SHOWN},
    )


def _postponed(found: Sequence[StreamOutlook], state: DecisionState, now_ms: int) -> Iterator[StreamsPostponed]:
    """Only what has changed: an entry for each look would say the same again and again."""
    held = [each.decision for each in found if isinstance(each.decision, Postponed)]
    before = state.postponed
    if not held:
        if before is not None:
            yield StreamsPostponed(postponed_by=before.postponed_by, streams=0, at_ms=now_ms)
        return
    first = min(held, key=lambda each: list(PostponedBy).index(each.by))
    if before is not None and before.postponed_by == first.by:
        return
    together = [each for each in held if each.by is first.by]
    yield StreamsPostponed(
        postponed_by=first.by,
        streams=len(together),
        until_ms=min((each.until_ms for each in together if each.until_ms is not None), default=None),
        reasons=tuple(dict.fromkeys(each.why for each in together))[:REASONS_KEPT],
        at_ms=now_ms,
    )
