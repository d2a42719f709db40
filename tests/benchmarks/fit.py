"""Fits the figures of compactor/planning/time_model.py to what was measured: least squares of relative errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tests.benchmarks.contests import Entry
from tests.benchmarks.spark_events import DEDUPE, HASH_BUCKET, INDEX, MATERIALIZE

OBSERVATIONS_MIN = 6


@dataclass(frozen=True)
class Observation:
    """One run of ours, over all of its rounds; rows_before is summed over rounds, since each meets the whole index."""

    seconds: float
    cores: int
    rounds: int
    delta_rows: int
    rows_before: int
    rows_written: int
    busy_seconds: dict[str, float]


@dataclass(frozen=True)
class Fit:
    """seconds = sum of each term's cost times its amount.

    costs   per term: seconds per row and core (or per round)
    errors  median and largest of |predicted - measured| / measured
    """

    what: str
    costs: dict[str, float]
    observations: int
    median_error: float
    largest_error: float


_Terms = dict[str, Callable[[Observation], float]]

_TASKS: _Terms = {"round": lambda seen: seen.rounds}
_DELTA: _Terms = {"delta row": lambda seen: seen.delta_rows}
_BEFORE: _Terms = {"index row": lambda seen: seen.rows_before}
_WRITTEN: _Terms = {"row written": lambda seen: seen.rows_written}

_TERMS_OF_STEPS: dict[str, _Terms] = {
    HASH_BUCKET: {**_TASKS, **_DELTA},
    DEDUPE: {**_TASKS, **_DELTA, **_BEFORE},
    INDEX: {**_TASKS, **_WRITTEN},
    MATERIALIZE: {**_TASKS, **_WRITTEN},
}
_TERMS_OF_THE_WHOLE: _Terms = {
    "round": lambda seen: seen.rounds,
    "delta row": lambda seen: seen.delta_rows / seen.cores,
    "index row": lambda seen: seen.rows_before / seen.cores,
    "row written": lambda seen: seen.rows_written / seen.cores,
}


def observe(entry: Entry) -> Observation | None:
    """What the fit needs to know of an entry of ours."""
    session = entry.timing.median_run.session
    if session is None:
        return None
    rounds = session.completions
    return Observation(
        seconds=entry.seconds,
        cores=entry.cores,
        rounds=len(rounds),
        delta_rows=sum(each.counts.rows_in - each.counts.rows_before for each in rounds),
        rows_before=sum(each.counts.rows_before for each in rounds),
        rows_written=sum(file.rows for each in rounds for file in each.files_added),
        busy_seconds={name: step.busy_seconds for name, step in entry.steps.items()},
    )


def fit_steps(seen: Sequence[Observation]) -> list[Fit]:
    """Core-seconds of each step, and seconds of the whole."""
    fits = [
        _fit(f"{step}, core-seconds", terms, seen, [each.busy_seconds.get(step, 0.0) for each in seen])
        for step, terms in _TERMS_OF_STEPS.items()
        if any(each.busy_seconds.get(step) for each in seen)
    ]
    seconds = [each.seconds for each in seen]
    fits.append(_fit("the whole, seconds, with rows written", _TERMS_OF_THE_WHOLE, seen, seconds))
    return fits


def _fit(what: str, terms: _Terms, seen: Sequence[Observation], measured: Sequence[float]) -> Fit:
    took = [(each, seconds) for each, seconds in zip(seen, measured, strict=True) if seconds > 0]
    seconds = np.array([each for _, each in took])
    amounts = np.array([[of(each) for of in terms.values()] for each, _ in took], np.float64)
    costs = _costs(amounts / seconds[:, None])
    errors = np.abs(amounts @ costs - seconds) / seconds
    named = dict(zip(terms, map(float, costs), strict=True))
    return Fit(what, named, len(took), float(np.median(errors)), float(errors.max()))


def _costs(shares: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Least squares for ones. What comes out negative costs nothing: it is left out, the lowest first, and the rest
    is fitted again."""
    kept = list(range(shares.shape[1]))
    while True:
        costs = np.zeros(shares.shape[1])
        costs[kept] = np.linalg.lstsq(shares[:, kept], np.ones(len(shares)), rcond=None)[0]
        if (costs >= 0).all():
            return costs
        kept.remove(int(costs.argmin()))
