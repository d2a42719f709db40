"""The decisions on a table: pure, from what was seen of its streams and the fold of its decision log."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from compactor.catalog.compact_when import CompactWhen
from compactor.model.clock import CLOCKS_DIFFER_MS
from compactor.planning.due import (
    Decision,
    Due,
    Expected,
    NotDue,
    Postponed,
    PostponedBy,
    Terms,
    begins_at_ms,
    benefit_per_usd,
    decide,
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
        lake: `lake_name` of its lake
        costs: what a compaction of a stream is expected to take: asked for those that are due
        pause: why the table is paused; None: it is not"""

    lake: str
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
        decision: None: the stream is being compacted"""

    stream: WatchedStream
    cost: Expected | None
    decision: Decision | None


def outlooks(seen: Seen, state: DecisionState, now_ms: int) -> list[StreamOutlook]:
    """What becomes of each stream, in the order of `seen`."""
    at_work, free = state.streams_at_work, Terms(pause=seen.pause)
    rest = [each for each in seen.streams if each.key not in at_work]
    decisions: dict[str, Decision] = {
        each.key: _left(state, each, seen.policy, now_ms) or decide(each.figures, seen.policy, now_ms, free)
        for each in rest
    }
    due = [StreamOutlook(each, seen.costs(each), None) for each in rest if not isinstance(decisions[each.key], NotDue)]
    spent_usd = state.spent_usd(now_ms)
    for each in sorted(due, key=rank):
        terms = Terms(spent_usd, _cost(each), seen.pause)
        decisions[each.stream.key] = found = decide(each.stream.figures, seen.policy, now_ms, terms)
        spent_usd += (terms.cost.usd or 0.0) if isinstance(found, Due) else 0.0
    costs = {each.stream.key: each.cost for each in due}
    return [StreamOutlook(each, costs.get(each.key), decisions.get(each.key)) for each in seen.streams]


def decisions_on(seen: Seen, state: DecisionState, now_ms: int) -> list[DecisionAction]:
    """The actions for the log: an instruction for each `PARTITIONS_PER_INSTRUCTION` streams, and what is postponed.

    Where money is limited, what is open and new is expected to cost at most the rest of the day's money by
    `BUDGET_MARGIN`, or is one session: so one session at most passes that money, if none costs more than so many times
    its expectation.
    """
    found = outlooks(seen, state, now_ms)
    due = [each for each in found if isinstance(each.decision, Due)]
    due.sort(key=rank)
    usd_per_day = seen.policy.usd_per_day
    if usd_per_day is not None:
        left_usd = (usd_per_day - state.spent_usd(now_ms, BUDGET_MARGIN)) / BUDGET_MARGIN
        free, dear = ([each for each in due if bool(_cost(each).usd) is costs] for costs in (False, True))
        paid = bisect_right(list(accumulate(_cost(each).usd or 0.0 for each in dear)), left_usd)
        due = free + dear[: max(paid, 0 if state.open else 1)]
    made = [_made(seen, group, state, now_ms) for group in _groups(due, seen.policy.max_usd)]
    made = [each for each in made if each.job_run_id not in state.ended]
    return [*made, *_postponed(found, state, now_ms)]


def rank(outlook: StreamOutlook) -> tuple[float, str]:
    """What has most benefit per dollar takes the money first."""
    return -benefit_per_usd(outlook.stream.figures, _cost(outlook)), outlook.stream.key


def _left(state: DecisionState, stream: WatchedStream, policy: CompactWhen, now_ms: int) -> NotDue | None:
    """Why it is left as it is, whatever its figures; None: it is not."""
    left = state.unsettled.get(stream.key)
    if left is None or (stream.figures.last_compacted_at_ms or 0) > left.at_ms:  # compacted since, by an instruction
        return None
    again_at_ms = left.again_at_ms(stream.entry_number, stream.figures.last_write_at_ms)
    if again_at_ms is not None:
        if now_ms >= again_at_ms or left.at_ms > now_ms + CLOCKS_DIFFER_MS:  # a wrong clock's holds nothing back
            return None
        again_at_ms = begins_at_ms(stream.figures, policy, now_ms, again_at_ms)
    why = f"its last job run has failed, number {left.failures:,}" if left.failures else "its last job run left it so"
    return NotDue(again_at_ms, None, why)


def _groups(due: Sequence[StreamOutlook], most_usd: float | None) -> Iterator[list[StreamOutlook]]:
    """In this order, as many streams together as an instruction may name, and at most `most_usd`. None: whatever they
    cost."""
    group: list[StreamOutlook] = []
    usd = 0.0
    for each in due:
        cost = _cost(each).usd or 0.0
        is_dear = most_usd is not None and usd + cost > most_usd
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
    at = sorted((each.key, each.entry_number, each.figures.last_write_at_ms) for each in (one.stream for one in group))
    return DecisionMade(
        job_run_id=job_run_id_of((seen.lake, seen.table_id), seen.policy, at, state),
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
