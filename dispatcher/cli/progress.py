"""Shows the progress of a compaction in this process: live on a terminal, and a line for each round."""

from __future__ import annotations

import threading
from typing import Self

from rich.console import Console
from rich.status import Status
from rich.text import Text

from compactor.model.clock import Clock
from compactor.model.names import counted
from compactor.sessions.session_log import Heartbeat, SessionProgress, describe_progress
from dispatcher.layout import partition_text, printable


class ProgressScreen:
    """A context manager, and inside it a `Listener`. Thread-safe."""

    def __init__(self, out: Console, clock: Clock) -> None:
        self._out = out
        self._clock = clock
        self._began_at_seconds = clock.monotonic_seconds()
        self._status = Status(Text("looking for work"), console=out)
        self._lock = threading.Lock()
        self._committed: dict[int, int] = {}

    def __enter__(self) -> Self:
        if self._out.is_terminal:
            self._status.start()
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self._status.stop()

    def __call__(self, progress: SessionProgress) -> None:
        with self._lock:
            name = printable(partition_text(progress.partition))
            if progress.sessions > 1:
                name += f" ({progress.number} of {progress.sessions})"
            if progress.waits_for is not None:
                self._status.update(Text(f"{name} waits"))
                self._line(f"{name} waits: {progress.waits_for}")
                return
            beat = progress.heartbeat
            self._status.update(Text(f"{name}: {_progress_text(beat)}"))
            committed = self._committed.get(progress.number, 0)
            if beat is not None and beat.step == "committed" and beat.round_number > committed:
                self._committed[progress.number] = beat.round_number
                self._line(f"{name}: {_round(beat)} committed, {counted(beat.rows_done, 'delta row')} done")

    def _line(self, text: str) -> None:
        seconds = self._clock.monotonic_seconds() - self._began_at_seconds
        self._out.print(Text(f"{seconds:6.1f} s  {text}"), soft_wrap=not self._out.is_terminal)


def _progress_text(beat: Heartbeat | None) -> str:
    if beat is None:
        return "starts"
    if beat.share_done is None or not beat.tasks:
        return describe_progress(beat)
    return f"{describe_progress(beat)}, {beat.share_done:.0%} of {counted(beat.rows, 'delta row')}"


def _round(beat: Heartbeat) -> str:
    return f"round {beat.round_number} of {beat.rounds}"
