"""A slice of `make sla`: its sessions run, on a folder and on S3, and its section says what came of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib import pyplot

from tests.benchmarks.cluster_sla import ClusterOutcome, cluster_section, cluster_trials
from tests.benchmarks.plot import draw_predictions
from tests.benchmarks.sla import Outcome, Summary, Trial, read_outcomes, run_missing, run_trials, section, trials


def test_half_of_the_trials_are_far_and_all_kinds_of_change_are_among_them() -> None:
    chosen = trials(150, 12, seed=1)
    assert len(chosen) == 150
    assert sum(trial.far for trial in chosen) in range(70, 81)
    assert sum(trial.on_spark for trial in chosen) == 12
    assert not any(trial.far and trial.on_spark for trial in chosen)
    assert {trial.change for trial in chosen} == {"first", "clustered", "uniform", "dead rows"}
    assert {trial.rounds for trial in chosen} == {1, 2, 3, 4}
    assert {trial.keys for trial in chosen} == {1, 2, 3}
    assert trials(150, 12, seed=1) == chosen != trials(150, 12, seed=2)


@pytest.mark.servers
def test_a_slice_of_them_runs_and_is_reported(tmp_path: Path) -> None:
    chosen = trials(12, 0, seed=3, scale=0.002)
    assert {trial.far for trial in chosen} == {False, True}
    outcomes = list(run_trials(tmp_path, chosen))
    assert [outcome.trial for outcome in outcomes] == chosen
    for outcome in outcomes:
        assert outcome.seconds > 0
        assert outcome.model_seconds > 0
        assert outcome.expected_sla > outcome.predicted_seconds > 0
        assert outcome.rounds >= 1
        assert (outcome.usd > 0, outcome.expected_usd > 0) == (True, True)
    assert len({outcome.rounds for outcome in outcomes}) > 1
    heading, text = section(outcomes, seed=3, load=0.0)
    assert heading == "Expected SLA and cost, before and after"
    assert "| in this process, S3 | 6 |" in text


def test_a_run_goes_on_after_the_sessions_that_earlier_ones_have_noted(tmp_path: Path) -> None:
    chosen = [trial for trial in trials(12, 0, seed=3, scale=0.002) if not trial.far][:4]
    noted = tmp_path / "outcomes.jsonl"
    first = run_missing(tmp_path / "first", chosen, noted, at_most=2)
    assert [each.trial for each in first] == chosen[:2]
    with noted.open("a") as file:
        file.write(noted.read_text().splitlines()[0][:50])  # as a killed run leaves it
    assert read_outcomes(noted) == first
    second = run_missing(tmp_path / "second", chosen, noted, at_most=100)
    assert second[:2] == first
    assert [each.trial for each in second] == chosen
    assert run_missing(tmp_path / "third", chosen, noted, at_most=100) == second == read_outcomes(noted)


def outcome(seconds: float, predicted: float, *, far: bool = False) -> Outcome:
    trial = Trial(0, far, False, 0, 1, 1, 0, 1, False, 1, None, "first")
    return Outcome(trial, predicted * 1.1, predicted, seconds, seconds, 1, predicted, seconds, predicted, seconds)


def test_late_sessions_the_median_and_costs_as_expected_are_counted() -> None:
    summary = Summary((outcome(1.0, 1.0), outcome(1.0, 0.9, far=True), outcome(1.0, 2.0), outcome(1.0, 1.05)))
    assert summary.beyond == 1
    assert summary.median_ratio == pytest.approx(1.025)
    assert summary.cost_share() == 0.75
    assert summary.of(far=True).beyond == 1
    assert summary.quantiles()[0] == 0.9
    assert summary.quantiles()[-1] == 2.0


def on_cluster(number: int, seconds: float) -> ClusterOutcome:
    return ClusterOutcome(cluster_trials(1)[0][number], 20.0, 22.0, seconds, 1, 1)


def test_each_table_on_a_cluster_has_a_first_compaction_and_later_ones_of_all_shapes() -> None:
    tables = cluster_trials(seed=1)
    assert sum(map(len, tables)) >= 40
    assert [trials[0].base_rows for trials in tables] == [0] * len(tables)
    assert all(trial.base_rows == trials[0].delta_rows for trials in tables for trial in trials[1:])
    assert {trial.rounds for trials in tables for trial in trials} == {1, 2, 3, 4, 6}
    assert cluster_trials(1) == tables != cluster_trials(2)


def test_sessions_on_a_cluster_that_were_beyond_are_counted() -> None:
    measured = [on_cluster(number, seconds) for number, seconds in enumerate([21.0] * 9 + [44.0] * 3)]
    heading, text = cluster_section(measured, seed=1, load=0.5)
    assert heading == "Expected SLA on a cluster"
    assert "| all | 12 | 9 (75.0%) | at least 99.3% | 0.95 | at most 1.15 |" in text
    assert "| 3 | 0 (0.0%) |" in text


def test_the_plot_shows_sessions_beyond_their_expected_sla_in_red(tmp_path: Path) -> None:
    pictures = []
    for name, beyond in (("within.png", False), ("beyond.png", True)):
        draw_predictions([(1.0, 1.05, False), (20.0, 44.0, beyond)], tmp_path / name)
        pictures.append(pyplot.imread(tmp_path / name))
    red = [((each[..., 0] > 0.7) & (each[..., 1] < 0.3)).sum() for each in pictures]
    assert red[0] < red[1]
