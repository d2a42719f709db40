"""A slice of the simulated dispatchers; all of it is `make sim`."""

from __future__ import annotations

import pytest

from tests.simulation.dispatchers import Ask
from tests.simulation.seeds import run_seeds

SEEDS = 3


@pytest.mark.slow
def test_every_instruction_of_simulated_dispatchers_is_run_once_and_the_same_seed_gives_the_same_log() -> None:
    results = {each.seed: each for each in run_seeds(1, SEEDS, processes=2)}
    assert sorted(results) == list(range(1, SEEDS + 1))
    assert {each.seed: each.wrong for each in results.values() if each.wrong is not None} == {}
    assert len({each.digest for each in results.values()}) == SEEDS
    (again,) = run_seeds(3, 3)
    assert again == results[3]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1013, pytest.param(1026, marks=pytest.mark.release)])
def test_no_other_job_run_takes_a_stream_while_some_sessions_of_a_bundle_are_tried_again(seed: int) -> None:
    (result,) = run_seeds(seed, seed)
    assert result.wrong is None


@pytest.mark.release
@pytest.mark.parametrize(
    ("broken", "seed", "violation"),
    [
        (Ask.LOSE_AN_EVENT, 2, "was never told to be started"),
        (Ask.COMMIT_TWICE, 2, "with 2 commits"),
        (Ask.LOSE_A_RECORD, 3, "0 times"),
        (Ask.PASS_OTHERS, 1, "which goes first on its stream"),
        (Ask.TAKE_ANY_TURN, 4, "a session of one destination at work at once"),
        (Ask.KEEP_WORKERS, 5, "and none is idle"),
    ],
)
def test_the_simulation_sees_what_is_broken_on_purpose(broken: Ask, seed: int, violation: str) -> None:
    (result,) = run_seeds(seed, seed, asks=[broken])
    assert result.wrong is not None
    assert violation in result.wrong
