"""The pages, made on the server: a reading and a template, and no script is needed to read the result."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from compactor.model.errors import LithifyError
from compactor.sessions.session_log import describe_progress
from dispatcher.layout import age_text, count_text, partition_text, printable, time_text
from dispatcher.operations.status import JobRunView
from dispatcher.records.job_run_log import JobRunStatus
from dispatcher.records.lag_samples import LagHour
from dispatcher.web.charts import (
    BUFFER_UNITS,
    bytes_words,
    dots_of,
    gantt_of,
    iso_text,
    lag_plot,
    misses_of,
    seconds_words,
    usd_words,
)
from dispatcher.web.feed import EventsFeed
from dispatcher.web.money import money_chart
from dispatcher.web.readings import NOTHING_KNOWN, SESSIONS_SHOWN, Readings
from dispatcher.web.shared import Reading
from dispatcher.web.table_readings import privacy_waits
from dispatcher.web.troubles import troubles_of

PAGES: Mapping[str, str] = {
    "/": "now",
    "/tables": "tables",
    "/history": "history",
    "/dead-letters": "dead_letters",
    "/money": "money",
    "/prediction": "prediction",
}
"""The pages by path, in the order of the menu."""

MISSES_SHOWN = 20
_FOLDER = Path(__file__).parent
_QUOTED = re.compile("`([^`]+)`")
_TIME = re.compile(r"\b(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d(?::\d\d)?)(?:\.\d+)?(?: UTC\b|Z\b|\+00:00)", re.ASCII)
_LINK = re.compile(' href="/[^"]*"')


ValueT = TypeVar("ValueT")


class Renderer:
    """Safe to share between threads."""

    def __init__(self, readings: Readings, feed: EventsFeed | None = None) -> None:
        self._readings = readings
        self._feed = feed

    def page(self, name: str) -> str:
        match name:
            case "now":
                reading = self._readings.now()
                silence_at_ms = reading.silence_at_ms(self._readings.now_ms())
                troubles = troubles_of(reading.value, self._readings.commands, silence_at_ms)
                return self._render(name, reading, troubles=troubles, silence_at_ms=silence_at_ms)
            case "tables":
                return self._render(name, self._readings.tables())
            case "history":
                return self._render(name, self._readings.history())
            case "dead_letters":
                history, now = self._readings.history(), self._readings.now().value
                return self._render(name, history, letters=dead_letters_of(history.value), queue=now.queue)
            case "money":
                money, caps = self._readings.money(), self._readings.caps
                return self._render(name, money, chart=money_chart(money.value, caps), caps=caps)
            case _:
                history = self._readings.history()
                dots = dots_of(history.value)
                missed, misses = sum(dot.is_missed for dot in dots), misses_of(dots, MISSES_SHOWN)
                return self._render(name, history, dots=dots, missed=missed, misses=misses, buffer=BUFFER_UNITS)

    def job_run(self, job_run_id: str) -> str:
        reading = self._readings.job_run(job_run_id)
        run = reading.value
        return self._render("job_run", reading, gantt=gantt_of(run.view, run.courses, run.shards))

    def table(self, table_id: str) -> str:
        """What is read beside the table's own logs may fail: the rest is shown."""
        reading, readings = self._readings.table(table_id), self._readings
        one, no_decisions, no_hours = reading.value, list[dict[str, object]](), tuple[LagHour, ...]()
        decisions = self._or_failed(lambda: readings.decisions(table_id), no_decisions)
        hours = self._or_failed(lambda: readings.lag_hours(table_id), no_hours)
        now = self._or_failed(readings.now, NOTHING_KNOWN)
        return self._render(
            "table",
            reading,
            beside=(decisions, hours, now),
            properties=one.table.properties.model_dump(mode="json", exclude={"compact_when"}, exclude_defaults=True),
            policy=one.table.properties.compact_when,
            job_runs=[view for view in now.value.job_runs if table_id in (view.table, view.destination)],
            waits=list(privacy_waits(one.lag, one.table, readings.commands)),
            decisions=decisions.value,
            plot=lag_plot(hours.value),
        )

    def _or_failed(self, read: Callable[[], Reading[ValueT]], otherwise: ValueT) -> Reading[ValueT]:
        try:
            return read()
        except LithifyError as error:
            now_ms = self._readings.now_ms()
            return Reading(otherwise, now_ms, str(error), now_ms)

    def table_log(self, table_id: str, partition: str, before: int | None) -> str:
        return self._render("table_log", self._readings.table_log(table_id, partition, before))

    def snapshot(self) -> str:
        """One page with those of the menu, for a ticket or a mail: it needs nothing beside it, and links nowhere."""
        parts = [(name, _LINK.sub("", self._part(name))) for name in PAGES.values()]
        style = (_FOLDER / "static" / "page.css").read_text()
        now_ms = self._readings.now_ms()
        return _environment().get_template("snapshot.html").render(parts=parts, style=style, at_ms=now_ms)

    def _part(self, name: str) -> str:
        """Of a snapshot: a page that cannot be read says why."""
        try:
            return _main(self.page(name))
        except LithifyError as error:
            return _main(self.problem(503, f"{name.replace('_', ' ')}: {error}"))

    @staticmethod
    def problem(status: int, reason: str) -> str:
        return (
            _environment()
            .get_template("problem.html")
            .render(status=status, reason=reason, name="", reading=None, beside=(), feed=None)
        )

    def _render(self, name: str, reading: Reading[Any], beside: Sequence[Reading[Any]] = (), **values: object) -> str:
        """`beside`: readings that the page needs less than its own."""
        return (
            _environment()
            .get_template(f"{name}.html")
            .render(
                name=name,
                reading=reading,
                beside=beside,
                value=reading.value,
                commands=self._readings.commands,
                feed=None if self._feed is None else self._feed.state,
                **values,
            )
        )


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        auto_reload=False,  # an upgrade of the package under a running server must not mix two releases
    )
    environment.globals |= {"sessions_shown": SESSIONS_SHOWN, "menu": list(PAGES.items())}
    environment.filters |= {
        "age": age_text,
        "count": count_text,
        "at": time_text,
        "iso": iso_text,
        "seconds": seconds_words,
        "usd": usd_words,
        "bytes": bytes_words,
        "safe_text": printable,
        "prose": _prose,
        "printable_lines": lambda text: "\n".join(map(printable, text.split("\n"))),
        "partition": partition_text,
        "progress": describe_progress,
        "path": lambda text: quote(text, safe=""),
    }
    return environment


def _prose(text: str) -> Markup:
    """A sentence, with what it quotes as commands, and its times as the script shows them in the reader's zone."""
    quoted = _QUOTED.sub(r"<code>\1</code>", str(escape(printable(text))))
    return Markup(_TIME.sub(r'<time datetime="\1T\2Z">\1 \2 UTC</time>', quoted))


def _main(page: str) -> str:
    return page.partition("<main")[2].partition(">")[2].rpartition("</main>")[0]


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
