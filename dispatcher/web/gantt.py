"""The Gantt chart of a job run: a row for each session, from the acceptance on. Pure.

Waiting is empty; then the launch, a bar for each attempt with its rounds, and a tick at the expected end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from dispatcher.layout import partition_text
from dispatcher.operations.status import JobRunView
from dispatcher.web.job_run_course import Attempt, Course
from dispatcher.web.words import seconds_words

_WIDTH, _ROW, _TOP = 1000.0, 26.0, 24.0
_LABEL, _SECONDS = 240.0, 90.0
"""Units that the names of sessions have, and their seconds."""

_TICKS_MAX, _DAY_SECONDS = 5, 86_400
_STEPS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300, 600, 1_200, 1_800, 3_600, 7_200, 18_000, 36_000, _DAY_SECONDS)
"""Seconds between two ticks."""

_WIDTH_MIN = 2.0
"""Of a bar that can be seen."""


@dataclass(frozen=True)
class Bar:
    """`kind`: waiting, launching, running, ended, failed, gone."""

    x: float
    width: float
    kind: str
    title: str


@dataclass(frozen=True)
class Segment:
    """The end of a round within a bar."""

    x: float
    title: str


@dataclass(frozen=True)
class GanttRow:
    """`seconds`: those that the status of the session shows."""

    y: float
    name: str
    bars: tuple[Bar, ...]
    segments: tuple[Segment, ...]
    expected_x: float | None
    seconds: str


@dataclass(frozen=True)
class Gantt:
    height: float
    rows: tuple[GanttRow, ...]
    ticks: tuple[tuple[float, str], ...]


def gantt_of(view: JobRunView, courses: Mapping[str, Course], now_ms: int) -> Gantt:
    begin_ms = view.accepted_at_ms
    expected_ms = {
        session.session_id: courses[session.session_id].attempts[-1].launching_at_ms + session.expected_sla * 1000
        for session in view.sessions
        if session.expected_sla is not None and session.session_id in courses and courses[session.session_id].attempts
    }
    ends = [begin_ms + view.seconds * 1000, *expected_ms.values()]
    for course in courses.values():
        ends += [attempt.ended_at_ms or now_ms for attempt in course.attempts]
    span_ms = max(max(ends) - begin_ms, 1.0)

    def x(at_ms: float) -> float:
        share = min(max((at_ms - begin_ms) / span_ms, 0.0), 1.0)
        return round(_LABEL + share * (_WIDTH - _LABEL - _SECONDS), 2)

    rows = []
    for number, session in enumerate(view.sessions):
        course = courses.get(session.session_id, Course())
        bars = tuple(_bars(begin_ms, course.attempts, x, now_ms))
        segments = tuple(
            Segment(x(each.ended_at_ms), f"round {each.number}: {seconds_words(each.seconds)}")
            for each in course.rounds
        )
        expected_x = x(expected_ms[session.session_id]) if session.session_id in expected_ms else None
        name = partition_text(dict(session.partition))
        rows.append(GanttRow(number * _ROW + _TOP, name, bars, segments, expected_x, seconds_words(session.seconds)))
    ticks = tuple((x(begin_ms + at * 1000), seconds_words(at)) for at in _tick_seconds(span_ms / 1000))
    return Gantt(len(rows) * _ROW + _TOP + 10, tuple(rows), ticks)


def _tick_seconds(span_seconds: float) -> list[float]:
    """Round seconds, from 0 on, of which each is written in full."""
    step = next((each for each in _STEPS if each * _TICKS_MAX >= span_seconds), None)
    if step is None:
        step = math.ceil(span_seconds / _TICKS_MAX / _DAY_SECONDS) * _DAY_SECONDS
    return [round(number * step, 1) for number in range(int(span_seconds / step) + 1)]


def _bars(begin_ms: int, attempts: list[Attempt], x: Callable[[float], float], now_ms: int) -> Iterator[Bar]:
    def bar(from_ms: float, to_ms: float, kind: str, what: str) -> Bar:
        title = f"{what}: {seconds_words(max(to_ms - from_ms, 0) / 1000)}"
        return Bar(x(from_ms), max(round(x(to_ms) - x(from_ms), 2), _WIDTH_MIN), kind, title)

    waits_from_ms: float = begin_ms
    for attempt in attempts:
        if attempt.launching_at_ms > waits_from_ms:
            yield bar(waits_from_ms, attempt.launching_at_ms, "waiting", "waiting")
        ended_ms = attempt.ended_at_ms if attempt.ended_at_ms is not None else now_ms
        launched_ms = attempt.launched_at_ms if attempt.launched_at_ms is not None else ended_ms
        if launched_ms > attempt.launching_at_ms:
            yield bar(attempt.launching_at_ms, launched_ms, "launching", f"attempt {attempt.number}, launching")
        if attempt.launched_at_ms is not None:
            yield bar(launched_ms, ended_ms, _kind(attempt), _title(attempt))
        waits_from_ms = ended_ms
    if not attempts:
        yield bar(begin_ms, now_ms, "waiting", "waiting")


def _kind(attempt: Attempt) -> str:
    if attempt.ended_at_ms is None:
        return "running"
    return "gone" if attempt.ended_well is None else "ended" if attempt.ended_well else "failed"


def _title(attempt: Attempt) -> str:
    shared = ", in a shared launch" if attempt.bundle is not None else ""
    return f"attempt {attempt.number}{shared}, {_kind(attempt)}"
