"""A slice of `make sim`: weeks of retirement, garbage collection, slow readers and slow attempts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.unruly_engine import UnrulyEngine
from tests.simulation.publications import run_publications
from tests.simulation.years import run_years


@pytest.mark.parametrize("seed", [1, 2])
def test_weeks_of_retirement_and_garbage_collection_lose_nothing(seed: int, tmp_path: Path) -> None:
    assert run_years(seed, tmp_path / "lake", UnrulyEngine()) > 0


def test_garbage_collection_deletes_nothing_that_readers_of_the_newest_published_version_need(tmp_path: Path) -> None:
    happened = run_publications(8, tmp_path / "lake", UnrulyEngine())
    assert {name for name, count in happened.items() if count} >= {
        "versions of delta",
        "versions of iceberg",
        "readers of delta",
        "readers of iceberg",
        "dead rows",
        "cut off",
    }
