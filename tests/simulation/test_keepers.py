"""A slice of the simulated keepers; more of it is `make sim`."""

from __future__ import annotations

import pytest

from dispatcher.keeper.decision_log import DecisionState
from tests.simulation.keepers import run_keepers

SEEDS = 4


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, SEEDS + 1))
def test_keepers_have_every_delta_compacted_once_in_time_and_within_its_money(seed: int) -> None:
    assert run_keepers(seed) == []


@pytest.mark.slow
def test_the_simulation_sees_a_keeper_that_forgets_what_is_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DecisionState, "streams_at_work", frozenset())
    assert any("are at work on" in wrong or "behind" in wrong for wrong in run_keepers(3))


@pytest.mark.slow
def test_the_simulation_sees_a_keeper_that_forgets_what_was_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DecisionState, "spent_usd", lambda *_: 0.0)
    assert any("has spent" in wrong for wrong in run_keepers(2))
