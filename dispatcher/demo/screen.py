"""What the demo shows while it runs: every event as a line, and under them, on a terminal, the sessions as they go."""

from __future__ import annotations

from types import TracebackType
from typing import Self

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
        self._board.take(event)
        data = event.data
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
        running = list(board.running)
        head = Text.assemble(
            ("lithify demo  ", "bold"),
            f"{board.over_count} of {board.sessions_count} sessions done, {len(running)} running  ",
            (f"{self._seconds():.0f} s", "dim"),
        )
        table = Table(box=None, pad_edge=False, header_style="dim")
        for column in ("session", "", "round", "step", "tasks"):
            table.add_column(column, no_wrap=True, min_width=8)
        table.add_column("delta rows", justify="right", no_wrap=True, min_width=16)
        table.add_column("expected", justify="right", no_wrap=True)
        for line in running:
            table.add_row(*_cells(line))
        return Group(Text(), head, table)


def _cells(line: SessionLine) -> tuple[str, ...]:
    return (
        line.partition,
        line.state,
        f"{line.round_number} of {line.rounds}" if line.round_number else "",
        line.step,
        f"{line.tasks_done} of {line.tasks}" if line.tasks else "",
        f"{line.rows_done:,} of {line.rows:,}" if line.rows else "",
        f"{line.expected_sla:.1f} s" if line.expected_sla is not None else "",
    )
