"""A slice of `make sim`: weeks of retirement, garbage collection, slow readers and slow attempts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.unruly_engine import UnrulyEngine
from tests.simulation.years import run_years


@pytest.mark.parametrize("seed", [1, 2])
def test_weeks_of_retirement_and_garbage_collection_lose_nothing(seed: int, tmp_path: Path) -> None:
    assert run_years(seed, tmp_path / "lake", UnrulyEngine()) > 0
