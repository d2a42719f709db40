"""Seconds taken over those of the expected SLA, on logarithmic scales. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from compactor.planning.time_model import SLA_BUFFER
from dispatcher.layout import printable
from dispatcher.operations.status import JobRunView
from dispatcher.web.words import seconds_words

DECADES = 6
"""Of seconds that the plot shows, from 0.1 s on."""

_LEAST_SECONDS = 0.1

BUFFER_UNITS = math.log10(SLA_BUFFER) / DECADES * 100
"""How far a prediction is below its expected SLA on the axis, where nothing but the paper's buffer is between them."""


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
