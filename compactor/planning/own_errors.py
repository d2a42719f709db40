"""What a table's own sessions say of the next prediction: each noted its seconds beside the predicted ones. Pure.

    factor    seconds / predicted seconds of a session, without the start of a Spark
    sessions  the last ones of the table in the same place (in a process, on Spark, on a cluster)
    p         the median of the last sessions of all tables there that were alike, as a dispatcher has seen them
              (`PlaceFactors`); 1 if it has seen none

| sessions        | prediction x                                | expected SLA                                       |
|-----------------|---------------------------------------------|----------------------------------------------------|
| 0               | p                                           | prediction and 10 %; said to be wide if p is 1     |
| 1 to ENOUGH - 1 | p * (the greatest factor / p) ** (n / (n + 2)) | prediction and 10 %                              |
| ENOUGH and more | the median factor                           | the bound that holds for `COVERAGE` of sessions    |

Where a table has fewer than `ENOUGH` sessions and its place has more, the spread of those takes the place of the 10 %,
if it is wider, and the table's median factor that of the greatest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import mean, median, stdev

from compactor.model.names import counted
from compactor.planning.time_model import SLA_BUFFER, SLA_BUFFER_SECONDS_MIN, PredictedTime, with_buffer

COVERAGE = 0.993
"""Share of sessions that are to end within their first expected SLA (the paper, "SLA Adherence")."""

ENOUGH = 8
"""Least sessions whose spread says more than the flat buffer."""

PULL = 2.0
"""Number of sessions, below enough, at which they count half."""

SPREAD_MIN = 0.02
"""Least standard deviation of the factors' logarithms: sessions that happen to be alike promise nothing."""

TAIL = 1.25
"""The bound is at least so many times as far from the median as the greatest factor, by logarithms."""

FACTOR_MIN, FACTOR_MAX = 1 / 8, 8.0
"""The least and the greatest factor that is counted: those beyond are of an accident, or of a clock."""

FIRST_RUN_LOW, FIRST_RUN_HIGH = 0.5, 2.0
"""The band of a first session: the figures of the benchmark's machine are halved or doubled by others."""

FACTORS_KEPT = 24
"""Of all tables in a place, the last ones."""

FACTOR_SECONDS_MIN = 0.05
"""Least predicted seconds of a session whose factor says something: below, a measurement is mostly noise."""

_Z = 2.5
"""The normal quantile of `COVERAGE`, 2.457, and a little for spreads that were underestimated."""


@dataclass(frozen=True)
class PlaceFactors:
    """Seconds / predicted seconds of the last sessions of all tables in a place, the oldest first.

    Attributes:
        plain: predicted by rows and bytes alone, of all sessions
        corrected: predicted with what the table's own rounds say, of those of which they said something"""

    plain: tuple[float, ...] = ()
    corrected: tuple[float, ...] = ()

    @classmethod
    def of_session(cls, plain: float | None, corrected: float | None, took: float | None) -> PlaceFactors:
        """What one says of others, by the seconds of its work."""
        if took is None or plain is None or corrected is None or plain < FACTOR_SECONDS_MIN:
            return cls()
        return cls((took / plain,), (took / corrected,) if corrected != plain else ())

    def then(self, later: PlaceFactors) -> PlaceFactors:
        plain, corrected = (*self.plain, *later.plain), (*self.corrected, *later.corrected)
        return PlaceFactors(plain[-FACTORS_KEPT:], corrected[-FACTORS_KEPT:])


NONE_SEEN = PlaceFactors()


@dataclass(frozen=True)
class OwnErrors:
    """The factors of a table's last sessions in a place, the oldest first. `others`: of all tables there, if known."""

    factors: tuple[float, ...] = ()
    others: OwnErrors | None = None

    @classmethod
    def of(cls, factors: Sequence[float], others: Sequence[float] = ()) -> OwnErrors:
        within = tuple(min(max(each, FACTOR_MIN), FACTOR_MAX) for each in factors)
        return cls(within, cls.of(others) if others else None)

    @property
    def are_enough(self) -> bool:
        return len(self.factors) >= ENOUGH

    @property
    def centre(self) -> float:
        """Of the next prediction.

        Worked: 3 sessions took at most 0.5 of their predictions: 0.5 ** (3 / 5) = 0.66; 8 with a median of 0.45: 0.45.
        """
        before = 1.0 if self.others is None else self.others.centre
        if not self.factors:
            return before
        if self.are_enough:
            return median(self.factors)
        # The flat 10 % allow for no spread, so the prediction does.
        is_spread_known = self.others is not None and self.others.are_enough
        own = median(self.factors) if is_spread_known else max(self.factors)
        return before * math.pow(own / before, len(self.factors) / (len(self.factors) + PULL))

    @property
    def bound(self) -> float | None:
        """The factor that the next session stays below in `COVERAGE` of all cases; None: there are not enough.

        If the logarithms are normal, it is their mean and so many deviations as Student's distribution has for so few;
        and at least somewhat more than the greatest factor, since a load is not normal.

        Worked: 8 sessions whose logarithms have the mean 0 and the deviation 0.05: 1.19; 24 of them: 1.15.
        """
        if not self.are_enough:
            of_others = None if self.others is None else self.others.bound
            if self.others is None or of_others is None:
                return None
            return self.centre * max(of_others / self.others.centre, SLA_BUFFER)
        logs = [math.log(each) for each in self.factors]
        spread = max(stdev(logs), SPREAD_MIN)
        by_spread = mean(logs) + _student(len(logs) - 1) * spread * math.sqrt(1 + 1 / len(logs))
        middle = median(logs)
        by_greatest = middle + TAIL * (max(logs) - middle)
        return math.exp(max(by_spread, by_greatest))


@dataclass(frozen=True)
class OwnPrediction:
    """The time of a session by its amounts (`model`), corrected by the table's own sessions. `late_seconds`: of a late
    start, beyond its 10 %."""

    model: PredictedTime
    own: OwnErrors
    late_seconds: float = 0.0

    @cached_property
    def time(self) -> PredictedTime:
        return self.model.corrected(self.own.centre)

    @property
    def expected_sla(self) -> float:
        """The buffer is 10 %, or what the table's own sessions say, and half a second: a disk that stands still for a
        moment lengthens a short session by as much as a long one.

        Worked: 420 s of start and 100 s of work; 8 own sessions stay below 1.2 of their predictions: 462 + 120 + 0.5.
        """
        bound = self.own.bound
        if bound is None:
            return with_buffer(self.time.seconds) + self.late_seconds
        by_own = self.model.start * SLA_BUFFER + self.model.work_seconds * bound
        return by_own + SLA_BUFFER_SECONDS_MIN + self.late_seconds

    @property
    def buffer(self) -> str:
        if self.own.bound is None:
            return "10 % buffer"
        return "buffer of its own sessions" if self.own.are_enough else "buffer of the sessions there"

    @property
    def sentence(self) -> str:
        """What the expected SLA rests on."""
        factors, others, bound = self.own.factors, self.own.others, self.own.bound
        if not factors and others is None:
            low, high = self.model.work_seconds * FIRST_RUN_LOW, self.model.work_seconds * FIRST_RUN_HIGH
            return (
                "no session of this table has ended in such a place yet, so the figures are another machine's: its "
                f"work may take {f'{low:,.1f} to {high:,.1f}' if high >= 0.05 else 'less than 0.1'} s"
            )
        found = [(factors, "own")] if factors else []
        found += [] if others is None or self.own.are_enough else [(others.factors, "recent")]
        took = " and ".join(
            f"{counted(len(each), f'{whose} session')}{' there' if whose == 'recent' else ''} took {min(each):.2f} to "
            f"{max(each):.2f}"
            for each, whose in found
        )
        corrected = f"{took} of the first prediction: it is corrected by {self.own.centre:.2f}"
        return corrected if bound is None else f"{corrected}, and {COVERAGE:.1%} stay below {bound:.2f}"


def _student(freedom: int) -> float:
    """The quantile of `COVERAGE` of Student's distribution, by its expansion (Abramowitz and Stegun, 26.7.5); for 7
    degrees of freedom or more it is within 1 %."""
    z = _Z
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3
