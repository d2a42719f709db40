"""The pages, made on the server: a reading and a template, and no script is needed to read the result."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from compactor.sessions.session_log import describe_progress
from dispatcher.layout import age_text, count_text, partition_text, printable, time_text
from dispatcher.operations.status import JobRunView
from dispatcher.records.job_run_log import JobRunStatus
from dispatcher.records.sessions import SessionState
from dispatcher.web.readings import OneJobRun, Readings
from dispatcher.web.shared import Reading
from dispatcher.web.troubles import troubles_of

PAGES: Mapping[str, str] = {
    "/": "now",
    "/tables": "tables",
    "/history": "history",
    "/dead-letters": "dead_letters",
    "/money": "money",
    "/prediction": "prediction",
}
"""By path, in the order of the menu."""

NOTHING = "\N{EN DASH}"
"""For a figure that is not known."""

_FOLDER = Path(__file__).parent
_SVG_WIDTH, _ROW = 1000.0, 26.0
_LABEL = 240.0
"""Units of a Gantt chart that the names of sessions have."""


@dataclass(frozen=True)
class Bar:
    """An attempt of a session in a Gantt chart; `kind`: failed, ended, running."""

    x: float
    width: float
    kind: str
    title: str


@dataclass(frozen=True)
class GanttRow:
    y: float
    name: str
    bars: tuple[Bar, ...]
    expected_x: float | None
    seconds: str


@dataclass(frozen=True)
class Gantt:
    height: float
    rows: tuple[GanttRow, ...]
    ticks: tuple[tuple[float, str], ...]


@dataclass(frozen=True)
class Dot:
    """A job run in the plot of predictions, by the logarithms of its seconds."""

    x: float
    y: float
    is_missed: bool
    title: str


class Renderer:
    """Safe to share between threads."""

    def __init__(self, readings: Readings) -> None:
        self._readings = readings
        self._environment = _environment()

    def page(self, name: str) -> str:
        match name:
            case "now":
                reading = self._readings.now()
                troubles = troubles_of(reading.value, self._readings.commands, self._readings.now_ms())
                return self._render(name, reading, troubles=troubles)
            case "tables":
                return self._render(name, self._readings.tables())
            case "history":
                return self._render(name, self._readings.history())
            case "dead_letters":
                history, now = self._readings.history(), self._readings.now().value
                return self._render(name, history, letters=dead_letters_of(history.value), queue=now.queue)
            case "money":
                history = self._readings.history()
                return self._render(name, history, days=money_by_day(history.value))
            case _:
                history = self._readings.history()
                dots = dots_of(history.value)
                return self._render(name, history, dots=dots, missed=sum(dot.is_missed for dot in dots))

    def job_run(self, job_run_id: str) -> str:
        reading = self._readings.job_run(job_run_id)
        return self._render("job_run", reading, gantt=gantt_of(reading.value, self._readings.now_ms()))

    def table(self, table_id: str) -> str:
        reading = self._readings.table(table_id)
        properties = reading.value.table.properties.model_dump(mode="json")
        now = self._readings.now().value
        runs = [view for view in now.job_runs if table_id in (view.table, view.destination)]
        return self._render("table", reading, properties=properties, job_runs=runs)

    def snapshot(self) -> str:
        """One page with all of them, for a ticket or a mail: it needs nothing beside it."""
        parts = [(name, _main(self.page(name))) for name in PAGES.values()]
        style = (_FOLDER / "static" / "page.css").read_text()
        now_ms = self._readings.now_ms()
        return self._environment.get_template("snapshot.html").render(parts=parts, style=style, at_ms=now_ms)

    @staticmethod
    def problem(status: int, reason: str) -> str:
        return _environment().get_template("problem.html").render(status=status, reason=reason, name="", reading=None)

    def _render(self, name: str, reading: Reading[Any], **values: object) -> str:
        now_ms = self._readings.now_ms()
        return self._environment.get_template(f"{name}.html").render(
            name=name,
            reading=reading,
            value=reading.value,
            now_ms=now_ms,
            commands=self._readings.commands,
            **values,
        )


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_FOLDER / "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.globals["menu"] = [(path, name) for path, name in PAGES.items()]
    environment.filters |= {
        "age": age_text,
        "count": count_text,
        "at": time_text,
        "iso": _iso,
        "seconds": seconds_words,
        "usd": _usd,
        "bytes": bytes_words,
        "safe_text": printable,
        "partition": partition_text,
        "progress": describe_progress,
        "path": lambda text: quote(text, safe=""),
    }
    return environment


def _main(page: str) -> str:
    return page.partition("<main")[2].partition(">")[2].rpartition("</main>")[0]


def _iso(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")


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


def _usd(amount: float | None) -> str:
    return NOTHING if amount is None else f"${amount:,.2f}" if amount >= 1 else f"${amount:,.4f}"


@dataclass(frozen=True)
class DeadLetter:
    """A rejected document. `accepted_later`: another document of its job run id was accepted after it."""

    view: JobRunView
    accepted_later: bool


def dead_letters_of(ended: Sequence[JobRunView]) -> list[DeadLetter]:
    """The latest first."""
    accepted: dict[str, int] = {}
    for view in ended:
        if view.status != JobRunStatus.REJECTED:
            accepted[view.job_run_id] = max(view.accepted_at_ms, accepted.get(view.job_run_id, 0))
    return [
        DeadLetter(view, accepted.get(view.job_run_id, 0) > view.accepted_at_ms)
        for view in ended
        if view.status == JobRunStatus.REJECTED
    ]


# --------------------------------------------------------------------------------------------------------------- money


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
        day = _iso(view.accepted_at_ms)[:10]
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


# ---------------------------------------------------------------------------------------------------------- prediction

_DECADES = 5.0
"""Of seconds that the plot shows, from 0.1 s on."""


def dots_of(views: Sequence[JobRunView]) -> list[Dot]:
    """Those that have ended with a prediction. A miss took longer than the expected SLA, which has the buffer in it."""
    found = []
    for view in views:
        if view.expected_sla is None or view.status != "succeeded":
            continue
        seconds = max(view.seconds - view.paused_seconds, 0.1)
        expected = max(view.expected_sla - view.paused_seconds, 0.1)
        title = f"{printable(view.job_run_id)}: {seconds_words(seconds)}, {seconds_words(expected)} expected"
        found.append(Dot(_on_axis(expected), _on_axis(seconds), seconds > expected, title))
    return found


def _on_axis(seconds: float) -> float:
    """0 to 100."""
    return min(max((math.log10(seconds) + 1) / _DECADES, 0.0), 1.0) * 100


# --------------------------------------------------------------------------------------------------------------- Gantt


def gantt_of(run: OneJobRun, now_ms: int) -> Gantt:
    """From the acceptance on. A session has a bar for each attempt, and a tick where it is expected to end."""
    begin_ms = run.view.accepted_at_ms
    ends = [begin_ms + run.view.seconds * 1000]
    for session in run.sessions.values():
        launched_ms = session.launched_at_ms
        if launched_ms is not None:
            ends.append(session.ended_at_ms if session.ended_at_ms is not None else now_ms)
    span_ms = max(max(ends) - begin_ms, 1.0)

    def x(at_ms: float) -> float:
        return _LABEL + (at_ms - begin_ms) / span_ms * (_SVG_WIDTH - _LABEL - 90)

    rows = []
    for number, view in enumerate(run.view.sessions):
        found = run.sessions.get(view.session_id)
        bars = () if found is None else tuple(_bars(found, x, now_ms))
        expected_x = None
        if found is not None and found.launched_at_ms is not None and view.expected_sla is not None:
            expected_x = min(x(found.launched_at_ms + view.expected_sla * 1000), _SVG_WIDTH - 2)
        name = partition_text(dict(view.partition))
        rows.append(GanttRow(number * _ROW + 24, name, bars, expected_x, seconds_words(view.seconds)))
    ticks = tuple((x(begin_ms + span_ms * part / 4), seconds_words(span_ms * part / 4_000)) for part in range(5))
    return Gantt(len(rows) * _ROW + 34, tuple(rows), ticks)


def _bars(session: SessionState, x: Any, now_ms: int) -> list[Bar]:  # noqa: ANN401  (a scale)
    bars = []
    failed_ms = session.failed_launched_at_ms
    if failed_ms is not None and session.failed_seconds:
        seconds = session.failed_seconds[-1]
        title = f"the last failed attempt: {seconds_words(seconds)}"
        bars.append(Bar(x(failed_ms), max(x(failed_ms + seconds * 1000) - x(failed_ms), 2.0), "failed", title))
    launched_ms = session.launched_at_ms
    if launched_ms is not None and launched_ms != failed_ms:
        ended_ms = session.ended_at_ms if session.ended_at_ms is not None else now_ms
        kind = "running" if session.ended_at_ms is None else "ended"
        title = f"attempt {session.attempt}: {seconds_words((ended_ms - launched_ms) / 1000)}"
        bars.append(Bar(x(launched_ms), max(x(ended_ms) - x(launched_ms), 2.0), kind, title))
    return bars
