"""Short slices of `make chaos` and `make proof`: what they find there they find in every run of `make test`, and of
`make test-long`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.run import Options, run

pytestmark = [pytest.mark.servers, pytest.mark.slow]


def test_three_dispatchers_under_harm_lose_nothing_double_nothing_and_leave_nothing_behind(tmp_path: Path) -> None:
    options = Options(seed=826, seconds=14.0, settle_seconds=120.0)
    figures = _right(options, tmp_path, "make chaos ARGS='--seed 826 --minutes 0.2334'")
    assert int(figures["Spark jobs launched"]) > 0


@pytest.mark.long
def test_instructions_that_are_sent_several_times_while_dispatchers_are_killed_end_once_each(tmp_path: Path) -> None:
    options = Options(seed=1, seconds=15.0, on_s3=True, settle_seconds=180.0, instructions=5)
    figures = _right(options, tmp_path, "make proof ARGS='--seed 1 --minutes 0.25 --instructions 5'")
    assert figures["harm"].startswith("2 SIGKILL")
    assert int(figures["messages"]) > 5


def _right(options: Options, folder: Path, again: str) -> dict[str, str]:
    """The figures of a run in which everything is right. `again`: the command that does the same."""
    lines: list[str] = []
    verdict = run(options, folder, lines.append)
    wrong = [f"{name}: {finding}" for name, findings in verdict.found.items() for finding in findings]
    assert wrong == [], "\n".join([*lines, *wrong, f"{again} does the same again"])
    return verdict.figures
