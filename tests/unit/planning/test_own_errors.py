"""What a table's own sessions say of the next prediction: by worked numbers, and by simulated tables."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.catalog.actions import TIMINGS_KEPT
from compactor.planning.own_errors import COVERAGE, ENOUGH, FACTOR_MAX, FACTOR_MIN, OwnErrors, PlaceFactors
from compactor.planning.sizing import Resources, SessionSize, Sizing, size_session
from compactor.planning.time_model import SLA_BUFFER, SLA_BUFFER_SECONDS_MIN, with_buffer

GIB = 1024**3
MILLIONS = SessionSize(0, 50_000_000, 75 * 50_000_000, 0, None, delta_files=10)


def alike(deviation: float, sessions: int) -> OwnErrors:
    """Whose logarithms have the mean 0 and this deviation."""
    each = deviation * math.sqrt((sessions - 1) / sessions)
    return OwnErrors.of([math.exp(each if number % 2 else -each) for number in range(sessions)])


def test_the_bound_of_few_sessions_is_wider_than_that_of_many() -> None:
    assert alike(0.05, 8).bound == pytest.approx(1.19, abs=0.005)
    assert alike(0.05, 24).bound == pytest.approx(1.145, abs=0.005)
    assert alike(0.05, 7).bound is None


def test_few_sessions_pull_the_prediction_in_by_their_greatest_factor() -> None:
    assert OwnErrors.of([]).centre == 1
    assert OwnErrors.of([0.4, 0.5, 0.3]).centre == pytest.approx(0.5 ** (3 / 5))
    assert OwnErrors.of([2.0]).centre == pytest.approx(2 ** (1 / 3))
    assert OwnErrors.of([0.4] * 4 + [0.5] * 4).centre == pytest.approx(0.45)


def test_where_a_table_has_few_sessions_those_of_other_tables_there_speak_first() -> None:
    others = [1.8, 2.0, 2.2] * 3
    none, one = OwnErrors.of([], others), OwnErrors.of([1.0], others)
    assert none.centre == pytest.approx(2.0)
    assert none.bound == OwnErrors.of(others).bound
    assert one.centre == pytest.approx(2 * 0.5 ** (1 / 3))
    assert one.bound is not None
    assert none.bound is not None
    assert one.bound / one.centre == pytest.approx(none.bound / none.centre)
    assert OwnErrors.of([0.5] * ENOUGH, others).centre == 0.5
    assert OwnErrors.of([], others[:3]).bound is None
    assert OwnErrors.of([2.0, 8.0, 2.0], others).centre == pytest.approx(2.0), "an accident is in the spread of others"


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=40))
def test_no_accident_moves_a_prediction_beyond_bounds(factors: list[float]) -> None:
    own = OwnErrors.of(factors)
    assert FACTOR_MIN <= own.centre <= FACTOR_MAX
    assert own.bound is None or own.bound >= max(own.factors) >= own.centre


def test_a_session_keeps_the_ten_percent_until_its_table_has_enough_of_its_own() -> None:
    for sessions in (0, 1, ENOUGH - 1):
        sizing = sized([("spark", 0.5)] * sessions)
        assert sizing.expected_sla == with_buffer(sizing.time.seconds)
    enough = sized([("spark", 0.5)] * ENOUGH)
    assert enough.time.seconds == pytest.approx(enough.prediction.model.work_seconds / 2)
    assert 0 <= enough.expected_sla - enough.time.seconds - SLA_BUFFER_SECONDS_MIN < 0.1 * enough.time.seconds


def test_sessions_in_another_place_say_nothing() -> None:
    assert sized([("process", 0.5)] * 20).expected_sla == sized([]).expected_sla
    assert sized([("process", 0.5)] * 20 + [("spark", 0.5)] * 8).expected_sla < sized([]).expected_sla


def test_a_plan_says_what_its_expected_sla_rests_on() -> None:
    first = sized([])
    low, high = first.prediction.model.work_seconds / 2, first.prediction.model.work_seconds * 2
    assert f"its work may take {low:,.1f} to {high:,.1f} s" in first.arithmetic[-1]
    assert (
        "3 own sessions took 0.50 to 0.50 of the first prediction: it is corrected by 0.66"
        in (sized([("spark", 0.5)] * 3).arithmetic[-1])
    )
    enough = sized([("spark", 0.5)] * 9)
    assert f"and {COVERAGE:.1%} stay below" in enough.arithmetic[-1]
    assert "with the buffer of its own sessions" in enough.arithmetic[-2]


def test_where_a_tables_own_rounds_correct_the_steps_only_sessions_count_that_were_corrected_likewise() -> None:
    there = Resources(4 * GIB, 2, start_seconds=0.0, place_factors=PlaceFactors(plain=(3.0,) * ENOUGH))
    first = size_session(MILLIONS, there, None, None).time.seconds
    assert first == pytest.approx(
        3 * size_session(MILLIONS, replace(there, place_factors=PlaceFactors()), None, None).time.seconds
    )
    corrected = replace(MILLIONS, corrections=(("dedupe", 3.0),))
    assert size_session(corrected, there, None, None).prediction.own.centre == 1
    likewise = PlaceFactors(plain=(3.0,) * ENOUGH, corrected=(0.5, 1.0, 2.0) * ENOUGH)
    apart = size_session(corrected, replace(there, place_factors=likewise), None, None)
    assert apart.prediction.own.centre == 1
    assert apart.expected_sla > 2 * apart.time.seconds
    assert "with the buffer of the sessions there" in apart.arithmetic[-2]


def sized(own: list[tuple[str, float]]) -> Sizing:
    size = replace(MILLIONS, own_factors=tuple(own))
    return size_session(size, Resources(4 * GIB, 2, start_seconds=0.0), None, None)


Noise = Callable[[random.Random], float]


def steady(chance: random.Random) -> float:
    return chance.gauss(0, 0.1)


def loaded(chance: random.Random) -> float:
    """One in thirty takes up to twice as long, since something else runs."""
    return chance.gauss(0, 0.08) + (chance.uniform(0, 0.7) if chance.random() < 1 / 30 else 0)


def sessions_of_tables(
    noise: Noise, drift: float = 0.0, sessions: int = 60
) -> Iterator[tuple[int, float, float, float]]:
    """Of each session: its number, prediction, expected SLA and seconds. A table's prediction is wrong by a factor of
    its own, which `drift` changes from session to session."""
    chance = random.Random(7)
    for _ in range(150):
        bias, factors = chance.gauss(0, 0.5), list[float]()
        for number in range(sessions):
            own = OwnErrors.of(factors[-TIMINGS_KEPT:])
            took = math.exp(bias + drift * number + noise(chance))
            sla = own.bound if own.bound is not None else own.centre * SLA_BUFFER
            yield number, own.centre, sla, took
            factors.append(took)


@pytest.mark.parametrize(
    ("noise", "drift", "kept"), [(steady, 0.0, COVERAGE), (steady, 0.005, 0.98), (loaded, 0.0, 0.975)]
)
def test_as_many_sessions_as_stated_end_in_time_once_there_are_enough_and_fewer_under_load_or_growth(
    noise: Noise, drift: float, kept: float
) -> None:
    later = [each for each in sessions_of_tables(noise, drift) if each[0] >= ENOUGH]
    assert sum(took <= sla for _, _, sla, took in later) / len(later) >= kept
    assert median(predicted / took for _, predicted, _, took in later) <= 1.15
    assert median(sla / took for _, _, sla, took in later) <= 1.45


def test_within_some_sessions_a_wrong_prediction_is_pulled_in() -> None:
    errors: dict[int, list[float]] = {}
    for number, predicted, _, took in sessions_of_tables(steady, sessions=11):
        errors.setdefault(number, []).append(abs(math.log(predicted / took)))
    first, after_three, after_ten = (median(errors[number]) for number in (0, 3, 10))
    assert after_three < 0.7 * first
    assert after_ten < 0.35 * first
