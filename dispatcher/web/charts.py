"""Charts of the pages, as values for SVG in their templates. Pure.

lag_plot    a table's lag over 30 days; the same points go to the script that makes it larger
dots_of     seconds taken over those of the expected SLA, on logarithmic scales
gantt_of    a job run: a row for each session, from the acceptance on. Waiting is empty; then the launch, a bar for each
            attempt with its rounds, and a tick at the expected end
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from compactor.model.clock import utc_time
from compactor.model.names import counted
from compactor.planning.time_model import SLA_BUFFER
from dispatcher.layout import partition_text, printable, time_text
from dispatcher.operations.status import JobRunView, SessionView
from dispatcher.operations.table_lag import is_late
from dispatcher.records.lag_samples import LagHour
from dispatcher.web.job_run_course import Attempt, Course, EndedShard

_WIDTH, _ROW, _TOP = 1000.0, 26.0, 24.0
_LABEL, _SECONDS = 240.0, 90.0
"""Units that the names of sessions have, and their seconds."""

_TICKS_MAX, _DAY_SECONDS = 5, 86_400
_STEPS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300, 600, 1_200, 1_800, 3_600, 7_200, 18_000, 36_000, _DAY_SECONDS)
"""Seconds that two ticks may be apart."""

_WIDTH_MIN = 2.0
"""Least width of a bar, so that it can be seen."""


@dataclass(frozen=True)
class Bar:
    """`kind`: waiting, launching, running, ended, failed, cancelled, gone."""

    x: float
    width: float
    kind: str
    title: str


@dataclass(frozen=True)
class GanttRow:
    """`segments`: ends of rounds, each with its title. `seconds`: those that the status of the session shows."""

    y: float
    name: str
    bars: tuple[Bar, ...]
    segments: tuple[tuple[float, str], ...]
    expected_x: float | None
    seconds: str


@dataclass(frozen=True)
class Gantt:
    height: float
    rows: tuple[GanttRow, ...]
    ticks: tuple[tuple[float, str], ...]


def gantt_of(view: JobRunView, courses: Mapping[str, Course], shards: Sequence[EndedShard] = ()) -> Gantt:
    """What has not ended goes on until the job run's end, or until it was read. `shards`: rows below the sessions."""
    begin_ms, end_ms = view.accepted_at_ms, view.accepted_at_ms + view.seconds * 1000
    expected_ms = {
        session.session_id: courses[session.session_id].attempts[-1].launching_at_ms + session.expected_sla * 1000
        for session in view.sessions
        if session.expected_sla is not None and session.session_id in courses and courses[session.session_id].attempts
    }
    ends = [attempt.ended_at_ms or end_ms for course in courses.values() for attempt in course.attempts]
    span_ms = max(end_ms - begin_ms, *(at_ms - begin_ms for at_ms in (*ends, *expected_ms.values())), 1.0)

    def x(at_ms: float) -> float:
        share = min(max((at_ms - begin_ms) / span_ms, 0.0), 1.0)
        return round(_LABEL + share * (_WIDTH - _LABEL - _SECONDS), 2)

    rows = []
    for number, session in enumerate(view.sessions):
        course = courses.get(session.session_id, Course())
        bars = tuple(_bars(begin_ms, end_ms, session, course.attempts or _attempts_of(session, end_ms), x))
        segments = tuple(
            (x(each.ended_at_ms), f"round {each.number}: {seconds_words(each.seconds)}") for each in course.rounds
        )
        expected_x = x(expected_ms[session.session_id]) if session.session_id in expected_ms else None
        name = partition_text(dict(session.partition))
        rows.append(GanttRow(number * _ROW + _TOP, name, bars, segments, expected_x, seconds_words(session.seconds)))
    for each in shards:
        took, status = seconds_words((each.ended_at_ms - each.opened_at_ms) / 1000), each.outcome.status
        kind, what = "ended" if status == "succeeded" else status, counted(each.outcome.sessions, "session")
        bar = _bar(x, each.opened_at_ms, each.ended_at_ms, kind, f"{what}, {status}")
        rows.append(GanttRow(len(rows) * _ROW + _TOP, f"shard {each.number + 1}", (bar,), (), None, took))
    ticks = tuple((x(begin_ms + at * 1000), seconds_words(at)) for at in _tick_seconds(span_ms / 1000))
    return Gantt(len(rows) * _ROW + _TOP + 10, tuple(rows), ticks)


def _tick_seconds(span_seconds: float) -> list[float]:
    """Round seconds, from 0 on, of which each is written in full."""
    step = next((each for each in _STEPS if each * _TICKS_MAX >= span_seconds), None)
    if step is None:
        step = math.ceil(span_seconds / _TICKS_MAX / _DAY_SECONDS) * _DAY_SECONDS
    return [round(number * step, 1) for number in range(int(span_seconds / step) + 1)]


def _attempts_of(session: SessionView, end_ms: float) -> list[Attempt]:
    """The one that runs, of a session whose attempts are in the log of a shard, or are too long ago to be read."""
    if session.seconds is None or session.end is not None:
        return []
    launched_at_ms = round(end_ms - session.seconds * 1000)
    return [Attempt(session.attempt, launched_at_ms, launched_at_ms)]


def _bar(x: Callable[[float], float], from_ms: float, to_ms: float, kind: str, what: str) -> Bar:
    title = f"{what}: {seconds_words(max(to_ms - from_ms, 0) / 1000)}"
    return Bar(x(from_ms), max(round(x(to_ms) - x(from_ms), 2), _WIDTH_MIN), kind, title)


def _bars(
    begin_ms: int, end_ms: float, session: SessionView, attempts: Sequence[Attempt], x: Callable[[float], float]
) -> Iterator[Bar]:
    bar = partial(_bar, x)
    waits_from_ms: float = begin_ms if not attempts or attempts[0].number == 1 else attempts[0].launching_at_ms
    for attempt in attempts:
        if attempt.launching_at_ms > waits_from_ms:
            yield bar(waits_from_ms, attempt.launching_at_ms, "waiting", "waiting")
        ended_ms = attempt.ended_at_ms if attempt.ended_at_ms is not None else end_ms
        launched_ms = attempt.launched_at_ms if attempt.launched_at_ms is not None else ended_ms
        if launched_ms > attempt.launching_at_ms:
            yield bar(attempt.launching_at_ms, launched_ms, "launching", f"attempt {attempt.number}, launching")
        if attempt.launched_at_ms is not None:
            shared, kind = ", in a shared launch" if attempt.bundle is not None else "", _kind(attempt)
            yield bar(launched_ms, ended_ms, kind, f"attempt {attempt.number}{shared}, {kind}")
        waits_from_ms = ended_ms
    if session.status == "waiting" or (session.status == "cancelled" and session.attempt == 0):
        yield bar(waits_from_ms, end_ms, "waiting", "waiting")


def _kind(attempt: Attempt) -> str:
    if attempt.ended_at_ms is None:
        return "running"
    if attempt.is_cancelled:
        return "cancelled"
    return "gone" if attempt.ended_well is None else "ended" if attempt.ended_well else "failed"


DECADES = 6
"""Decades of seconds that the plot shows, from 0.1 s on."""

_LEAST_SECONDS = 0.1

BUFFER_UNITS = math.log10(SLA_BUFFER) / DECADES * 100
"""Distance of a prediction from its expected SLA on the axis, where nothing but the paper's buffer is between them."""


@dataclass(frozen=True)
class Dot:
    """A job run that succeeded. `x`: its expected SLA, `y`: taken, 0 to 100. `times`: taken over its expected SLA; a
    miss is above 1, and above the diagonal."""

    view: JobRunView
    x: float
    y: float
    times: float
    title: str

    @property
    def is_missed(self) -> bool:
        return self.times > 1


def dots_of(views: Sequence[JobRunView]) -> list[Dot]:
    """Without pauses."""
    found = []
    for view in views:
        if view.expected_sla is None or view.status != "succeeded":
            continue
        seconds = max(view.seconds - view.paused_seconds, 0.0)
        expected = max(view.expected_sla - view.paused_seconds, _LEAST_SECONDS)
        title = f"{printable(view.job_run_id)}: {seconds_words(seconds)}, {seconds_words(expected)} expected"
        found.append(Dot(view, on_axis(expected), on_axis(seconds), seconds / expected, title))
    return found


def misses_of(dots: Sequence[Dot], most: int) -> list[Dot]:
    """The worst first."""
    return sorted((dot for dot in dots if dot.is_missed), key=lambda dot: -dot.times)[:most]


def on_axis(seconds: float) -> float:
    """0 to 100."""
    decades = math.log10(max(seconds, _LEAST_SECONDS) / _LEAST_SECONDS)
    return round(min(decades / DECADES, 1.0) * 100, 2)


NOTHING = "\N{EN DASH}"
"""The text in place of a figure that is not known."""


def iso_text(at_ms: int) -> str:
    return utc_time(at_ms).isoformat(timespec="seconds")


def seconds_words(seconds: float | None) -> str:
    """`0.4 s`, `95 s`, `12 min`, `3.5 h`."""
    if seconds is None:
        return NOTHING
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:,.0f} min" if seconds < 7_200 else f"{seconds / 3_600:,.1f} h"


def bytes_words(size: int) -> str:
    value, units = float(size), iter(("B", "kB", "MB", "GB", "TB", "PB"))
    unit = next(units)
    while value >= 1000 and unit != "PB":
        value, unit = value / 1000, next(units)
    return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"


def usd_words(amount: float | None) -> str:
    return NOTHING if amount is None else f"${amount:,.2f}" if amount >= 1 or amount == 0 else f"${amount:,.4f}"


_HEIGHT, _LEFT = 180.0, 60.0
_TICKS_Y = 3
_GAP_MS = 3 * 3_600_000
"""Time between two samples from which on the line is broken: no keeper was looking."""


@dataclass(frozen=True)
class LagPlot:
    """`lines`, `published`: runs of points as SVG has them; `bound_y` None: the table has no bound. `points`: JSON of
    seconds since the epoch, lag, bound and published lag, as columns."""

    lines: tuple[str, ...]
    published: tuple[str, ...]
    bound_y: float | None
    ticks_x: tuple[tuple[float, str], ...]
    ticks_y: tuple[tuple[float, str], ...]
    points: str
    words: str


def lag_plot(hours: Sequence[LagHour]) -> LagPlot | None:
    """None: there is nothing to draw."""
    if not hours:
        return None
    bound = hours[-1].lag_bound_seconds
    published = [hour.published_lag_seconds or 0.0 for hour in hours]
    most = max(*(hour.lag_seconds for hour in hours), *published, bound or 0.0, 1.0)
    begin_ms, span_ms = hours[0].at_ms, max(hours[-1].at_ms - hours[0].at_ms, 1)

    def x(at_ms: float) -> float:
        return round(_LEFT + (at_ms - begin_ms) / span_ms * (_WIDTH - _LEFT), 1)

    def y(seconds: float) -> float:
        return round(_HEIGHT - seconds / most * (_HEIGHT - 10), 1)

    lines = _lines([(hour.at_ms, x(hour.at_ms), y(hour.lag_seconds)) for hour in hours])
    known = [(hour.at_ms, x(hour.at_ms), y(each)) for hour in hours if (each := hour.published_lag_seconds) is not None]
    ticks_x = tuple(
        (x(begin_ms + span_ms * part / 4), iso_text(begin_ms + span_ms * part // 4)[:10]) for part in range(5)
    )
    ticks_y = tuple((y(most * part / _TICKS_Y), seconds_words(most * part / _TICKS_Y)) for part in range(_TICKS_Y + 1))
    worst = max(hours, key=lambda hour: hour.lag_seconds)
    late = sum(is_late(hour.lag_seconds, hour.lag_bound_seconds) for hour in hours)
    words = (
        f"At most {seconds_words(worst.lag_seconds)}, in the hour from {time_text(worst.at_ms)} UTC on; late "
        f"in {late:,} of {len(hours):,} hours."
    )
    bound_y = None if bound is None else y(bound)
    return LagPlot(lines, _lines(known), bound_y, ticks_x, ticks_y, json.dumps(_columns(hours)), words)


def _columns(hours: Sequence[LagHour]) -> list[list[float | None]]:
    """With a row of nulls where the line is broken."""
    rows: list[tuple[float | None, ...]] = []
    last_ms: int | None = None
    for hour in hours:
        if last_ms is not None and hour.at_ms - last_ms > _GAP_MS:
            rows.append((last_ms // 1000 + 1, None, None, None))
        figures = (round(hour.lag_seconds, 1), hour.lag_bound_seconds, hour.published_lag_seconds)
        rows.append((hour.at_ms // 1000, *figures))
        last_ms = hour.at_ms
    return [list(column) for column in zip(*rows, strict=True)]


def _lines(points: Sequence[tuple[int, float, float]]) -> tuple[str, ...]:
    runs: list[list[str]] = []
    last_ms: int | None = None
    for at_ms, x, y in points:
        if last_ms is None or at_ms - last_ms > _GAP_MS:
            runs.append([])
        runs[-1].append(f"{x},{y}")
        last_ms = at_ms
    return tuple(" ".join(run if len(run) > 1 else [*run, *run]) for run in runs)
