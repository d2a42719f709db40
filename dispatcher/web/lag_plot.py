"""The plot of a table's lag over 30 days, as SVG, and the same points for the script that makes it larger. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from dispatcher.records.lag_samples import LagHour
from dispatcher.web.words import iso_text, seconds_words

_WIDTH, _HEIGHT, _LEFT = 1000.0, 180.0, 60.0
_TICKS_Y = 3
_GAP_MS = 3 * 3_600_000
"""Between two samples, from which on the line is broken: no keeper was looking."""


@dataclass(frozen=True)
class LagPlot:
    """`lines`, `published`: runs of points as SVG has them; `bound_y` None: the table has no bound. `points`: JSON of
    seconds since the epoch, lag, bound and published lag, as columns."""

    lines: tuple[str, ...]
    published: tuple[str, ...]
    bound_y: float | None
    ticks_x: tuple[tuple[float, str], ...]
    ticks_y: tuple[tuple[float, str], ...]
    points: str
    words: str


def lag_plot(hours: Sequence[LagHour]) -> LagPlot | None:
    """None: there is nothing to draw."""
    if not hours:
        return None
    bound = hours[-1].lag_bound_seconds
    published = [hour.published_lag_seconds or 0.0 for hour in hours]
    most = max(*(hour.lag_seconds for hour in hours), *published, bound or 0.0, 1.0)
    begin_ms, span_ms = hours[0].at_ms, max(hours[-1].at_ms - hours[0].at_ms, 1)

    def x(at_ms: float) -> float:
        return round(_LEFT + (at_ms - begin_ms) / span_ms * (_WIDTH - _LEFT), 1)

    def y(seconds: float) -> float:
        return round(_HEIGHT - seconds / most * (_HEIGHT - 10), 1)

    lines = _lines([(hour.at_ms, x(hour.at_ms), y(hour.lag_seconds)) for hour in hours])
    known = [(hour.at_ms, x(hour.at_ms), y(each)) for hour in hours if (each := hour.published_lag_seconds) is not None]
    ticks_x = tuple(
        (x(begin_ms + span_ms * part / 4), iso_text(begin_ms + span_ms * part // 4)[:10]) for part in range(5)
    )
    ticks_y = tuple((y(most * part / _TICKS_Y), seconds_words(most * part / _TICKS_Y)) for part in range(_TICKS_Y + 1))
    worst = max(hours, key=lambda hour: hour.lag_seconds)
    late = sum(hour.lag_bound_seconds is not None and hour.lag_seconds > hour.lag_bound_seconds for hour in hours)
    words = (
        f"At most {seconds_words(worst.lag_seconds)}, in the hour from {iso_text(worst.at_ms)[:16]} UTC on; above its "
        f"bound in {late:,} of {len(hours):,} hours."
    )
    bound_y = None if bound is None else y(bound)
    return LagPlot(lines, _lines(known), bound_y, ticks_x, ticks_y, json.dumps(_columns(hours)), words)


def _columns(hours: Sequence[LagHour]) -> list[list[float | None]]:
    """With a row of nulls where the line is broken."""
    rows: list[tuple[float | None, ...]] = []
    last_ms: int | None = None
    for hour in hours:
        if last_ms is not None and hour.at_ms - last_ms > _GAP_MS:
            rows.append((last_ms // 1000 + 1, None, None, None))
        figures = (round(hour.lag_seconds, 1), hour.lag_bound_seconds, hour.published_lag_seconds)
        rows.append((hour.at_ms // 1000, *figures))
        last_ms = hour.at_ms
    return [list(column) for column in zip(*rows, strict=True)]


def _lines(points: Sequence[tuple[int, float, float]]) -> tuple[str, ...]:
    runs: list[list[str]] = []
    last_ms: int | None = None
    for at_ms, x, y in points:
        if last_ms is None or at_ms - last_ms > _GAP_MS:
            runs.append([])
        runs[-1].append(f"{x},{y}")
        last_ms = at_ms
    return tuple(" ".join(run if len(run) > 1 else [*run, *run]) for run in runs)
