"""The dashboard and the rules for Grafana and Prometheus: generated, complete, and of metrics that there are."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from dispatcher.operations import lag_board, metrics, table_lag
from dispatcher.operations.metrics import prometheus_name
from dispatcher.records import metrics_samples
from dispatcher.records.metrics_samples import Metric
from tests.pages import grafana

ROOT = Path(__file__).parents[3]
QUERIES = [query for panel in grafana.panels() for query, _ in panel.queries]
EXPRESSIONS = [*QUERIES, *(rule.expression for rule in grafana.rules())]
METRICS = [
    each
    for module in (lag_board, metrics, metrics_samples, table_lag)
    for each in vars(module).values()
    if isinstance(each, Metric)
]


def series_of(metric: Metric) -> set[str]:
    name = prometheus_name(metric)
    if metric.buckets:
        return {f"{name}_{part}" for part in ("bucket", "sum", "count")}
    return {f"{name}_total" if metric.counts else name}


@pytest.mark.parametrize("name", grafana.files())
def test_the_files_are_those_that_are_generated(name: str) -> None:
    assert (ROOT / "grafana" / name).read_text() == grafana.files()[name], "python -m tests.pages"


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_names_only_series_that_are_exported(expression: str) -> None:
    exported = set[str]().union(*map(series_of, METRICS))
    named = set(re.findall(r"\blithify_\w+", expression))
    assert named
    assert named <= exported


def test_panels_have_their_places_and_ask_questions() -> None:
    board = json.loads(grafana.dashboard())
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board["panels"]}
    assert len(places) == len(board["panels"]) == len({panel["id"] for panel in board["panels"]})
    for panel in board["panels"]:
        assert panel["title"].endswith("?")
        assert panel["fieldConfig"]["defaults"]["unit"] in {"s", "short", "bytes", "percentunit"}
        assert [target["refId"] for target in panel["targets"]] == ["A", "B"][: len(panel["targets"])]


def test_each_rule_says_what_to_do_first() -> None:
    (group,) = yaml.safe_load(grafana.rule_file())["groups"]
    assert [rule["alert"] for rule in group["rules"]] == [f"Lithify{name}" for name in metrics.FIRST_ACTION]
    for rule in group["rules"]:
        assert "`" in rule["annotations"]["summary"] or "log" in rule["annotations"]["summary"]
