"""Decides whether a partition stream is to be compacted now, by its table's policy. Pure, with its arithmetic.

    nothing to do             NotDue
    no rule of the policy     NotDue, and when one will be and the floor has passed, if nothing changes
    the floor has not passed  NotDue until then
    no window is open         Postponed, unless the oldest delta is older than `at_latest_seconds`
    a pause                   Postponed
    too expensive             Postponed

A policy is a list of rules, and a rule a list of bounds that all must be reached: each bound of a policy is a rule of
its own, or all of them are one; the presets `upsolver` and `size_ratio` are rules that no fields say.

Files of a stream are its compacted files and one for each pending delta: what a reader would open now.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import ceil, inf

from compactor.catalog.compact_when import CompactWhen, Match, Preset
from compactor.model.clock import seconds_since
from compactor.planning.stream_figures import StreamFigures

UPSOLVER_FILE_BYTES = 32_000_000
UPSOLVER_FILES = 60
UPSOLVER_MANY_FILES = 1_000
UPSOLVER_QUIET_SECONDS = 2 * 86_400
UPSOLVER_OLD_SECONDS = 35 * 86_400

SIZE_RATIO = 3.0
"""The size ratio of a policy that names none."""

_MS_PER_DAY = 86_400_000

READER_SECONDS_PER_FILE = 0.03
"""Seconds of a reader that opens one more file on S3."""

READER_SECONDS_PER_BYTE = 1e-8
"""Seconds of a reader that reads 100 MB in a second."""

READER_SECONDS_PER_ROW = 1e-7
"""Seconds of a reader that compares a row with those of the same key, or passes a dead one over."""

USD_MIN = 1e-6
"""Least dollars by which a job run is ranked: one that launches nothing costs less."""


@dataclass(frozen=True)
class Expected:
    """What a compaction is expected to take. `usd` None: nothing is paid for it. `unknown`: why neither is known."""

    seconds: float
    usd: float | None = None
    unknown: str | None = None


class PostponedBy(StrEnum):
    BUDGET = "budget"
    WINDOW = "window"
    PAUSE = "pause"


@dataclass(frozen=True)
class Due:
    """`rule`: the names of its figures. `why`: each of them beside its bound."""

    rule: str
    why: str


@dataclass(frozen=True)
class NotDue:
    """`until_ms`: when it will be due if nothing changes, by `figure`; None: never."""

    until_ms: int | None
    figure: str | None
    why: str


@dataclass(frozen=True)
class Postponed:
    """It is due, and may not begin. `until_ms` None: until somebody changes something."""

    by: PostponedBy
    until_ms: int | None
    rule: str
    why: str


Decision = Due | NotDue | Postponed


@dataclass(frozen=True)
class Terms:
    """What holds for a stream beside its figures.

    Attributes:
        spent_usd: of the table's money of the day, spent or promised
        cost: of the compaction
        pause: why an operator has paused the table; None: it is not paused"""

    spent_usd: float = 0.0
    cost: Expected = Expected(0.0)
    pause: str | None = None


def decide(figures: StreamFigures, policy: CompactWhen, now_ms: int, terms: Terms) -> Decision:
    """See above. The policy was checked when it was set."""
    if policy.preset is Preset.MANUAL:
        return NotDue(None, None, "the table is compacted by instructions only")
    if figures.of_a_copy:
        return NotDue(None, None, "it is compacted by instructions for another table, by that one's policy")
    if not has_work(figures):
        return NotDue(None, None, "there is nothing to do")
    measured = _measure(figures, now_ms)
    chosen = policy.resolved
    floor = chosen.not_before_seconds
    since = measured["seconds_since_compaction"]
    floor_ms = 0 if floor is None or since == inf else (figures.last_compacted_at_ms or 0) + floor * 1000
    rule = next((each for each in _rules(policy) if each.is_met(measured)), None)
    if rule is None:
        return _next_rule(policy, measured, now_ms, floor_ms)
    if now_ms < floor_ms:
        begins = _begins(chosen, measured, now_ms, floor_ms, "not_before_seconds")
        return NotDue(*begins, f"{since:,.0f} s since the last compaction, of {floor:,}")
    why = rule.sentence(measured) + _beyond_bound(policy, terms.cost)
    return _held_back(chosen, measured, now_ms, terms, rule, why) or Due(rule.name, why)


def has_work(figures: StreamFigures) -> bool:
    """Whether a session could do anything: compact deltas, remove dead rows, merge small files."""
    works = figures.pending_deltas > 0 or figures.dead_rows > 0 or figures.mergeable_files > 0
    return works and not figures.of_a_copy


def reader_seconds_saved(figures: StreamFigures) -> float:
    """What a reader of the whole stream saves once it is compacted.

    Worked: 100 deltas of 1,000 rows and 100 kB each: 3 s for their files, 0.1 s for their bytes, 0.01 s for their rows.
    """
    files = figures.pending_deltas + max(figures.small_files - 1, 0)
    rows = figures.pending_rows + figures.dead_rows
    dead_bytes = figures.file_bytes * figures.dead_row_share
    return (
        files * READER_SECONDS_PER_FILE
        + (figures.pending_bytes + dead_bytes) * READER_SECONDS_PER_BYTE
        + rows * READER_SECONDS_PER_ROW
    )


def benefit_per_usd(figures: StreamFigures, cost: Expected) -> float:
    """Seconds of readers that a dollar saves: what competes for a budget is ranked by it, the greatest first."""
    return reader_seconds_saved(figures) / max(cost.usd or 0.0, USD_MIN)


# ------------------------------------------------------------------------------------------------------- rules


_GROWING = ("lag_seconds", "seconds_since_write", "seconds_since_compaction")
"""Figures that grow by themselves, a second a second."""


@dataclass(frozen=True)
class _Bound:
    """`is_most`: the figure must be below the limit. `is_strict`: reaching it does not suffice."""

    figure: str
    limit: float
    is_strict: bool = False
    is_most: bool = False

    def is_met(self, value: float) -> bool:
        if self.is_most:
            return value < self.limit
        return value > self.limit if self.is_strict else value >= self.limit

    def ms_left(self, value: float) -> int | None:
        """Until it is met, if nothing changes; None: never."""
        if self.is_met(value):
            return 0
        if self.figure not in _GROWING:
            return None
        return ceil((self.limit - value) * 1000) + self.is_strict

    def sentence(self, value: float) -> str:
        sign = "<" if self.is_most else ">" if self.is_strict else ">="
        return f"{self.figure} {_number(value)} {sign} {_number(self.limit)}"


@dataclass(frozen=True)
class _Rule:
    bounds: tuple[_Bound, ...]

    @property
    def name(self) -> str:
        return ", ".join(bound.figure for bound in self.bounds)

    def is_met(self, measured: Mapping[str, float]) -> bool:
        return all(bound.is_met(measured[bound.figure]) for bound in self.bounds)

    def ms_left(self, measured: Mapping[str, float]) -> tuple[int, str] | None:
        """Until it is met, and by which figure; None: never."""
        if not measured["pending_deltas"] and any(bound.figure == "lag_seconds" for bound in self.bounds):
            return None  # the lag of no delta does not grow
        found = [(bound.ms_left(measured[bound.figure]), bound.figure) for bound in self.bounds]
        known = [(left, figure) for left, figure in found if left is not None]
        return max(known) if len(known) == len(found) else None

    def sentence(self, measured: Mapping[str, float]) -> str:
        return ", ".join(bound.sentence(measured[bound.figure]) for bound in self.bounds)


def _rules(policy: CompactWhen) -> Sequence[_Rule]:
    if policy.preset is Preset.UPSOLVER:
        return _UPSOLVER
    if policy.preset is Preset.SIZE_RATIO:
        return (_Rule((_Bound("size_ratio", policy.ratio or SIZE_RATIO),)),)
    chosen = policy.resolved
    bounds = [_bound(name, getattr(chosen, name)) for name in chosen.triggers]
    rules = [_Rule((bound,)) for bound in bounds] if chosen.match is Match.ANY else [_Rule(tuple(bounds))]
    if chosen.at_latest_seconds is not None:
        rules.append(_Rule((_Bound("lag_seconds", chosen.at_latest_seconds),)))
    return [rule for rule in rules if rule.bounds]


def _bound(name: str, limit: float) -> _Bound:
    return _Bound("seconds_since_compaction" if name == "every" else name, limit)


_SMALL = _Bound("average_file_bytes", UPSOLVER_FILE_BYTES, is_most=True)

_UPSOLVER = (
    _Rule((_Bound("all_files", UPSOLVER_FILES), _SMALL, _Bound("seconds_since_write", UPSOLVER_QUIET_SECONDS, True))),
    _Rule((_Bound("all_files", UPSOLVER_MANY_FILES), _SMALL)),
    _Rule((_Bound("seconds_since_write", UPSOLVER_OLD_SECONDS, True), _SMALL)),
)


def _measure(figures: StreamFigures, now_ms: int) -> Mapping[str, float]:
    """The figures that bounds are compared with. A time that is not recorded was long ago."""
    all_files = figures.files + figures.pending_deltas
    merges = figures.mergeable_files > 0  # small files that no compaction would merge make no stream due
    return {
        "pending_rows": figures.pending_rows,
        "pending_bytes": figures.pending_bytes,
        "pending_deltas": figures.pending_deltas,
        "lag_seconds": seconds_since(figures.oldest_pending_at_ms, now_ms) if figures.pending_deltas else 0.0,
        "dead_row_share": figures.dead_row_share,
        "small_files": figures.small_files if merges else 0,
        "small_file_share": figures.small_file_share if merges else 0.0,
        "all_files": all_files,
        "average_file_bytes": (figures.file_bytes + figures.pending_bytes) / max(all_files, 1),
        "seconds_since_write": seconds_since(figures.last_write_at_ms, now_ms),
        "seconds_since_compaction": seconds_since(figures.last_compacted_at_ms, now_ms),
        "size_ratio": figures.size_ratio,
    }


def _next_rule(policy: CompactWhen, measured: Mapping[str, float], now_ms: int, floor_ms: int) -> NotDue:
    waits = [left for rule in _rules(policy) if (left := rule.ms_left(measured)) is not None]
    why = "; ".join(rule.sentence(measured) for rule in _rules(policy))
    why = f"not reached: {why}"
    if not waits:
        return NotDue(None, None, why)
    left_ms, figure = min(waits)
    at_ms, figure = max((now_ms + left_ms, figure), (floor_ms, "not_before_seconds"))
    return NotDue(*_begins(policy.resolved, measured, now_ms, at_ms, figure), why)


def begins_at_ms(figures: StreamFigures, policy: CompactWhen, now_ms: int, due_ms: int) -> int | None:
    """When a stream that is due then may begin; None: no window opens."""
    return _begins(policy.resolved, _measure(figures, now_ms), now_ms, due_ms, "")[0]


def _begins(
    policy: CompactWhen, measured: Mapping[str, float], now_ms: int, due_ms: int, figure: str
) -> tuple[int | None, str]:
    """Likewise, and what it waits for."""
    if not policy.windows or any(window.is_open(due_ms) for window in policy.windows):
        return due_ms, figure
    opens_ms, latest_ms = _opens_at_ms(policy, due_ms), _latest_ms(policy, measured, now_ms)
    if latest_ms is None or (opens_ms is not None and opens_ms <= latest_ms):
        return opens_ms, "windows"
    return (latest_ms, "at_latest_seconds") if latest_ms >= due_ms else (due_ms, figure)


def _latest_ms(policy: CompactWhen, measured: Mapping[str, float], now_ms: int) -> int | None:
    """From when on it waits for no window; None: it always does, or has no delta."""
    if policy.at_latest_seconds is None or not measured["pending_deltas"]:
        return None
    return now_ms + ceil(max(policy.at_latest_seconds - measured["lag_seconds"], 0.0) * 1000)


def _opens_at_ms(policy: CompactWhen, at_ms: int) -> int | None:
    opens = (window.opens_at_ms(at_ms) for window in policy.windows)
    return min((each for each in opens if each is not None), default=None)


def _beyond_bound(policy: CompactWhen, cost: Expected) -> str:
    """That no session can keep the policy's bound: when it was set, nobody knew where sessions run."""
    bound = policy.lag_bound_seconds()
    if bound is None or cost.seconds <= bound:
        return ""
    return f"; a session is expected to take {cost.seconds:,.0f} s, longer than the lag of {bound:,} s that is allowed"


# ------------------------------------------------------------------------------------------------ what holds back


def _held_back(
    policy: CompactWhen, measured: Mapping[str, float], now_ms: int, terms: Terms, rule: _Rule, why: str
) -> Postponed | None:
    closed = _closed_until(policy, measured, now_ms)
    if closed is not None:
        until_ms, reason = closed
        return Postponed(PostponedBy.WINDOW, until_ms, rule.name, f"{why}; {reason}")
    if terms.pause is not None:
        return Postponed(PostponedBy.PAUSE, None, rule.name, f"{why}; paused: {terms.pause}")
    usd = terms.cost.usd or 0.0
    if terms.cost.unknown is None and not usd:
        return None
    if terms.cost.unknown is not None and (policy.max_usd is not None or policy.usd_per_day is not None):
        reason = f"its cost is not known, and the policy limits money: {terms.cost.unknown}"
        return Postponed(PostponedBy.BUDGET, None, rule.name, f"{why}; {reason}")
    if policy.max_usd is not None and usd > policy.max_usd:
        reason = f"it is expected to cost ${usd:,.4f}, and max_usd is ${policy.max_usd:,.4f}"
        return Postponed(PostponedBy.BUDGET, None, rule.name, f"{why}; {reason}")
    if policy.usd_per_day is not None and terms.spent_usd + usd > policy.usd_per_day:
        reason = (
            f"it is expected to cost ${usd:,.4f}; of the ${policy.usd_per_day:,.4f} of the day, "
            f"${terms.spent_usd:,.4f} are spent or promised"
        )
        tomorrow_ms = (now_ms // _MS_PER_DAY + 1) * _MS_PER_DAY if usd <= policy.usd_per_day else None
        return Postponed(PostponedBy.BUDGET, tomorrow_ms, rule.name, f"{why}; {reason}")
    return None


def _closed_until(policy: CompactWhen, measured: Mapping[str, float], now_ms: int) -> tuple[int | None, str] | None:
    """When it may begin, if all windows are closed; None: it may begin now."""
    begins_ms, _ = _begins(policy, measured, now_ms, now_ms, "")
    return None if begins_ms == now_ms else (begins_ms, "no window is open")


def _number(value: float) -> str:
    if value == inf:
        return "not recorded"
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:,.3g}"
