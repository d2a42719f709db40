"""What the demo shows while it runs: every event as a line, and under them, on a terminal, the sessions as they go."""

from __future__ import annotations

from types import TracebackType
from typing import Literal, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from compactor import event_types as said
from compactor.clock import Clock
from compactor.event_types import Severity
from compactor.events import Event
from dispatcher.demo.board import Board, SessionLine
from dispatcher.demo.sentences import sentence

_REFRESHES_PER_SECOND = 8
_COLUMNS: tuple[tuple[str, Literal["left", "right"], int], ...] = (
    ("session", "left", 30),
    ("state", "left", 12),
    ("round", "left", 6),
    ("step", "left", 12),
    ("tasks", "left", 6),
    ("delta rows", "right", 16),
    ("expected", "right", 8),
    ("since its plan", "right", 8),
)
_STYLES = {
    said.HeartbeatEmitted: "dim",
    said.SessionSucceeded: "green",
    said.JobRunSucceeded: "bold green",
    said.SessionRoundCompleted: "cyan",
}


class Screen:
    """A context manager: inside it the sessions are shown. Without a terminal there are only lines."""

    def __init__(self, out: Console, board: Board, clock: Clock) -> None:
        self._out = out
        self._board = board
        self._clock = clock
        self._started_at_seconds = clock.monotonic_seconds()
        self._seen_at_seconds: dict[str, float] = {}
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self._out.is_terminal:
            self._live = Live(
                console=self._out,
                get_renderable=self._render,
                refresh_per_second=_REFRESHES_PER_SECOND,
                transient=True,
            )
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        """A step of the demo itself."""
        line = Text.assemble((f"{self._seconds():6.1f} s  ", "dim"), (text, "bold"))
        self._out.print(line, soft_wrap=not self._out.is_terminal)

    def tell(self, event: Event) -> None:
        """Take an event to the board, and show it."""
        data = event.data
        if isinstance(data, said.SessionData):
            self._seen_at_seconds.setdefault(data.session_id, self._seconds())
        self._board.take(event)
        style = "bold red" if data.severity is not Severity.INFO else _STYLES.get(type(data), "")
        what = event.type.removeprefix("lithify.").removesuffix(".v1")
        about = self._board.sessions[data.session_id].partition if isinstance(data, said.SessionData) else ""
        line = Text.assemble(
            (f"{self._seconds():6.1f} s  ", "dim"),
            (f"{event.jobrunid:<8}{about:<22}", "dim" if style == "dim" else ""),
            (f"{what:<27}", style),
            (sentence(data), "dim" if style == "dim" else ""),
        )
        line.no_wrap, line.overflow = self._out.is_terminal, "ellipsis"
        self._out.print(line, soft_wrap=not self._out.is_terminal)

    def _seconds(self) -> float:
        return self._clock.monotonic_seconds() - self._started_at_seconds

    def _render(self) -> RenderableType:
        board = self._board
        running = board.running
        head = Text.assemble(
            ("lithify demo  ", "bold"),
            f"{board.over_count} of {board.sessions_count} sessions done, {len(running)} running  ",
            (f"{self._seconds():.0f} s", "dim"),
        )
        table = Table(box=None, pad_edge=False, header_style="dim")
        for column, justify, characters in _COLUMNS:
            table.add_column(column, justify=justify, min_width=characters, no_wrap=True)
        for session_id, line in running:
            table.add_row(*_cells(line, self._seconds() - self._seen_at_seconds[session_id]))
        return Group(Text(), head, table)


def _cells(line: SessionLine, seconds: float) -> tuple[str, ...]:
    return (
        f"{line.job_run_id:<8}{line.partition}",
        line.state,
        f"{line.round_number} of {line.rounds}" if line.round_number else "",
        line.step,
        f"{line.tasks_done} of {line.tasks}" if line.tasks else "",
        f"{line.rows_done:,} of {line.rows:,}" if line.rows else "",
        f"{line.expected_sla:.1f} s" if line.expected_sla is not None else "",
        f"{seconds:.1f} s",
    )
