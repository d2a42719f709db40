"""Seconds taken over seconds expected. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dispatcher.layout import printable
from dispatcher.operations.status import JobRunView
from dispatcher.web.words import seconds_words


@dataclass(frozen=True)
class Dot:
    """A job run in the plot of predictions, by the logarithms of its seconds."""

    x: float
    y: float
    is_missed: bool
    title: str


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
