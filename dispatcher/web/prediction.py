"""Seconds taken over seconds predicted, on logarithmic scales. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dispatcher.layout import printable
from dispatcher.operations.status import BUFFER_SECONDS_MIN, BUFFER_SHARE, JobRunView
from dispatcher.web.words import seconds_words

DECADES = 6
"""Of seconds that the plot shows, from 0.1 s on."""

_LEAST_SECONDS = 0.1
_POINTS_A_DECADE = 8


@dataclass(frozen=True)
class Dot:
    """A job run that succeeded. `x`: predicted, `y`: taken, 0 to 100. `times`: taken over its expected SLA; a miss is
    above 1."""

    view: JobRunView
    x: float
    y: float
    times: float
    title: str

    @property
    def is_missed(self) -> bool:
        return self.times > 1


def dots_of(views: Sequence[JobRunView]) -> list[Dot]:
    """Without pauses. The expected SLA is the prediction with its buffer."""
    found = []
    for view in views:
        if view.expected_sla is None or view.status != "succeeded":
            continue
        seconds = max(view.seconds - view.paused_seconds, 0.0)
        expected = max(view.expected_sla - view.paused_seconds, _LEAST_SECONDS)
        buffer = max(expected * BUFFER_SHARE / (1 + BUFFER_SHARE), BUFFER_SECONDS_MIN)
        title = f"{printable(view.job_run_id)}: {seconds_words(seconds)}, {seconds_words(expected)} expected"
        found.append(Dot(view, on_axis(expected - buffer), on_axis(seconds), seconds / expected, title))
    return found


def misses_of(dots: Sequence[Dot], most: int) -> list[Dot]:
    """The worst first."""
    return sorted((dot for dot in dots if dot.is_missed), key=lambda dot: -dot.times)[:most]


def sla_line() -> str:
    """Points of the line above which a job run has missed its expected SLA: 10 % above the prediction, or 0.5 s."""
    points = []
    for number in range(DECADES * _POINTS_A_DECADE + 1):
        predicted = _LEAST_SECONDS * 10 ** (number / _POINTS_A_DECADE)
        expected = max(predicted * (1 + BUFFER_SHARE), predicted + BUFFER_SECONDS_MIN)
        points.append(f"{on_axis(predicted):.2f},{100 - on_axis(expected):.2f}")
    return " ".join(points)


def on_axis(seconds: float) -> float:
    """0 to 100."""
    decades = math.log10(max(seconds, _LEAST_SECONDS) / _LEAST_SECONDS)
    return round(min(decades / DECADES, 1.0) * 100, 2)
