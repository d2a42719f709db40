"""The screen of the demo while it runs: a line for each event, and below them, on a terminal, the running sessions.

`DemoProgress` is a pure fold of the events."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from compactor.events.relay import Event
from compactor.events.types import (
    EventData,
    HeartbeatEvent,
    SessionData,
    SessionExpectedSlaChangedEvent,
    SessionFailedEvent,
    SessionRoundCompletedEvent,
    SessionStartedEvent,
    SessionSucceededEvent,
    Severity,
)
from compactor.model.clock import Clock
from compactor.model.names import render_partition
from dispatcher.operations.event_text import event_text
from dispatcher.records.job_run_events import (
    JobRunAcceptedEvent,
    JobRunCancelledEvent,
    JobRunFailedEvent,
    JobRunRejectedEvent,
    JobRunSucceededEvent,
    SessionLaunchedEvent,
    SessionPlannedEvent,
    SessionRetriedEvent,
    SessionStalledEvent,
)


@dataclass(frozen=True)
class SessionLine:
    """One session. `state` is from its last event; `rows_done` of `rows` delta rows have been read."""

    job_run_id: str
    partition: str
    state: str
    round_number: int = 0
    rounds: int = 0
    step: str = ""
    tasks_done: int = 0
    tasks: int = 0
    rows_done: int = 0
    rows: int = 0
    expected_sla: float | None = None
    is_over: bool = False


@dataclass(frozen=True)
class JobRunLine:
    sessions: int = 0
    outcome: str | None = None
    reasons: tuple[str, ...] = ()


class DemoProgress:
    """Events may arrive in any order that keeps the order of each session's events."""

    def __init__(self) -> None:
        self.job_runs: dict[str, JobRunLine] = {}
        self.sessions: dict[str, SessionLine] = {}

    def apply(self, event: Event) -> None:
        data = event.data
        if isinstance(data, SessionData):
            line = self.sessions.get(data.session_id)
            if line is None:
                line = SessionLine(event.jobrunid, render_partition(data.partition), "waiting")
            self.sessions[data.session_id] = _after(line, data)
        else:
            self.job_runs[event.jobrunid] = _job_run_after(self.job_runs.get(event.jobrunid, JobRunLine()), data)

    def have_ended(self, job_run_ids: Iterable[str]) -> bool:
        return all(self.job_runs.get(each, JobRunLine()).outcome is not None for each in job_run_ids)

    @property
    def running(self) -> list[tuple[str, SessionLine]]:
        """Sessions that have begun and not ended, with their ids. Any thread may call: it gets a copy."""
        return [(session_id, line) for session_id, line in list(self.sessions.items()) if not line.is_over]


def _job_run_after(line: JobRunLine, data: EventData) -> JobRunLine:
    match data:
        case JobRunAcceptedEvent():
            return replace(line, sessions=data.sessions)
        case JobRunSucceededEvent():
            return replace(line, outcome="succeeded")
        case JobRunFailedEvent() | JobRunRejectedEvent():
            return replace(line, outcome="failed", reasons=data.reasons)
        case JobRunCancelledEvent():
            return replace(line, outcome="cancelled", reasons=(data.reason,))
        case _:
            return line


_STATES: Mapping[type[EventData], str] = {
    SessionPlannedEvent: "planned",
    SessionLaunchedEvent: "Spark starts",
    SessionStartedEvent: "running",
    SessionStalledEvent: "stalled",
    SessionRetriedEvent: "tried again",
    SessionSucceededEvent: "succeeded",
    SessionFailedEvent: "failed",
}


def _after(line: SessionLine, data: SessionData) -> SessionLine:
    is_over = line.is_over or isinstance(data, SessionSucceededEvent | SessionFailedEvent)
    line = replace(line, state=_STATES.get(type(data), line.state), is_over=is_over)
    match data:
        case SessionPlannedEvent() | SessionStartedEvent():
            return replace(line, expected_sla=data.expected_sla)
        case SessionExpectedSlaChangedEvent():
            return replace(line, expected_sla=data.now)
        case SessionRoundCompletedEvent():
            return replace(line, round_number=data.round_number, rounds=data.rounds, step="committed")
        case HeartbeatEvent():
            return replace(
                line,
                round_number=data.round_number,
                rounds=data.rounds,
                step=data.step,
                tasks_done=data.tasks_done,
                tasks=data.tasks,
                rows_done=data.rows_done,
                rows=data.rows,
            )
        case _:
            return line


_REFRESHES_PER_SECOND = 8
_WIDE_CHARACTERS = 120
"""A terminal of this width has room for every column."""

_COLUMNS: tuple[tuple[str, Literal["left", "right"], int, bool], ...] = (
    ("session", "left", 28, True),
    ("state", "left", 12, True),
    ("round", "left", 6, True),
    ("step", "left", 12, False),
    ("tasks", "left", 6, False),
    ("delta rows", "right", 16, False),
    ("expected", "right", 8, True),
    ("since its plan", "right", 14, True),
)
"""Columns of running sessions: heading, justification, characters, and whether a narrow terminal shows it."""

_STYLES = {
    HeartbeatEvent: "dim",
    SessionSucceededEvent: "green",
    JobRunSucceededEvent: "bold green",
    SessionRoundCompletedEvent: "cyan",
}


class Screen:
    """A context manager: the sessions are shown while it is open. Without a terminal there are only lines."""

    def __init__(
        self, out: Console, progress: DemoProgress, clock: Clock, below: Callable[[], RenderableType] | None = None
    ) -> None:
        """`below`: what is shown below the lines; by default the sessions of `progress`."""
        self._out = out
        self._below = below or self._render
        self._progress = progress
        self._clock = clock
        self._started_at_seconds = clock.monotonic_seconds()
        self._seen_at_seconds: dict[str, float] = {}
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self._out.is_terminal:
            self._live = Live(
                console=self._out,
                get_renderable=self._below,
                refresh_per_second=_REFRESHES_PER_SECOND,
                transient=True,
            )
            self._live.start()
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show_step(self, text: str) -> None:
        """Shows a step of the demo itself."""
        line = Text.assemble((f"{self._seconds():6.1f} s  ", "dim"), (text, "bold"))
        self._out.print(line, soft_wrap=not self._out.is_terminal)

    def show_event(self, event: Event) -> None:
        """Applies an event to the progress, and shows it."""
        data = event.data
        if isinstance(data, SessionData):
            self._seen_at_seconds.setdefault(data.session_id, self._seconds())
        self._progress.apply(event)
        style = "bold red" if data.severity is not Severity.INFO else _STYLES.get(type(data), "")
        event_name = event.type.removeprefix("lithify.").removesuffix(".v1")
        about = self._progress.sessions[data.session_id].partition if isinstance(data, SessionData) else ""
        rest = "dim" if style == "dim" else ""
        if self._is_narrow:
            name = f"{event.jobrunid} {about}".rstrip()
            parts = ((f"{name}  ", rest), (f"{event_name}  ", style), (event_text(data), rest))
        else:
            name = f"{event.jobrunid:<8}{about:<22}"
            parts = ((name, rest), (f"{event_name:<27}", style), (event_text(data), rest))
        line = Text.assemble((f"{self._seconds():6.1f} s  ", "dim"), *parts)
        self._out.print(line, soft_wrap=not self._out.is_terminal)

    @property
    def _is_narrow(self) -> bool:
        return self._out.width < _WIDE_CHARACTERS

    def _seconds(self) -> float:
        return self._clock.monotonic_seconds() - self._started_at_seconds

    def _render(self) -> RenderableType:
        progress = self._progress
        running = progress.running
        accepted = sum(line.sessions for line in progress.job_runs.values())
        head = Text.assemble(
            ("lithify demo  ", "bold"),
            f"{len(progress.sessions) - len(running)} of {accepted} sessions done, {len(running)} running  ",
            (f"{self._seconds():.0f} s", "dim"),
        )
        table = Table(box=None, pad_edge=False, header_style="dim")
        shown = [number for number, column in enumerate(_COLUMNS) if column[3] or not self._is_narrow]
        for column, justify, characters, _ in (_COLUMNS[number] for number in shown):
            table.add_column(column, justify=justify, min_width=characters, no_wrap=True)
        for session_id, line in running:
            cells = _cells(line, self._seconds() - self._seen_at_seconds[session_id])
            table.add_row(*(cells[number] for number in shown))
        return Group(Text(), head, table)


def _cells(line: SessionLine, seconds: float) -> tuple[Text, ...]:
    """As `Text`: a plain string would be read as markup."""
    cells = (
        f"{line.job_run_id:<8}{line.partition}",
        line.state,
        f"{line.round_number} of {line.rounds}" if line.round_number else "",
        line.step,
        f"{line.tasks_done} of {line.tasks}" if line.tasks else "",
        f"{line.rows_done:,} of {line.rows:,}" if line.rows else "",
        f"{line.expected_sla:.1f} s" if line.expected_sla is not None else "",
        f"{seconds:.1f} s",
    )
    return tuple(map(Text, cells))
