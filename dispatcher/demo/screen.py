"""The screen of the demo: a line for each of its steps and for each event."""

from rich.console import Console
from rich.text import Text

from compactor.events.relay import Event
from compactor.events.types import (
    HeartbeatEvent,
    SessionData,
    SessionRoundCompletedEvent,
    SessionSucceededEvent,
    Severity,
)
from compactor.model.clock import Clock
from compactor.model.names import render_partition
from dispatcher.operations.event_text import event_text
from dispatcher.records.job_run_events import JobRunSucceededEvent

_WIDE_CHARACTERS = 120
"""A terminal of this width has room for columns."""

_STYLES = {
    HeartbeatEvent: "dim",
    SessionSucceededEvent: "green",
    JobRunSucceededEvent: "bold green",
    SessionRoundCompletedEvent: "cyan",
}


class Screen:
    """Lines with the seconds since its start. Thread-safe."""

    def __init__(self, out: Console, clock: Clock) -> None:
        self._out = out
        self._clock = clock
        self._started_at_seconds = clock.monotonic_seconds()

    def show_step(self, text: str) -> None:
        """Shows a step of the demo itself."""
        self._print((text, "bold"))

    def show_event(self, event: Event) -> None:
        data = event.data
        style = "bold red" if data.severity is not Severity.INFO else _STYLES.get(type(data), "")
        event_name = event.type.removeprefix("lithify.").removesuffix(".v1")
        about = render_partition(data.partition) if isinstance(data, SessionData) else ""
        rest = "dim" if style == "dim" else ""
        if self._out.width < _WIDE_CHARACTERS:
            name = f"{event.jobrunid} {about}".rstrip()
            self._print((f"{name}  ", rest), (f"{event_name}  ", style), (event_text(data), rest))
        else:
            name = f"{event.jobrunid:<8}{about:<22}"
            self._print((name, rest), (f"{event_name:<26} ", style), (event_text(data), rest))

    def _print(self, *parts: tuple[str, str]) -> None:
        seconds = self._clock.monotonic_seconds() - self._started_at_seconds
        line = Text.assemble((f"{seconds:6.1f} s  ", "dim"), *parts)
        self._out.print(line, soft_wrap=not self._out.is_terminal)
