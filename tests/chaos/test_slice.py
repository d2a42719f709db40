"""A short slice of `make chaos`: what it finds there it finds in every run of the tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.run import Options, run

pytestmark = [pytest.mark.servers, pytest.mark.slow]


def test_three_dispatchers_under_harm_lose_nothing_double_nothing_and_leave_nothing_behind(tmp_path: Path) -> None:
    said: list[str] = []
    verdict = run(Options(seed=826, seconds=14.0, settle_seconds=120.0), tmp_path, said.append)
    wrong = [f"{name}: {finding}" for name, findings in verdict.found.items() for finding in findings]
    assert wrong == [], "\n".join([*said, *wrong, "make chaos ARGS='--seed 826 --minutes 0.2334' does the same again"])
    assert int(verdict.figures["Spark jobs launched"]) > 0
