"""The dashboard and the alert rules for Prometheus and Grafana, as values, and the files that are made of them.

A panel is a question, and a rule says what to do first. `infra/alarms.py` says the same of the alarms in CloudWatch.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass

from dispatcher.operations import lag_board, metrics, table_lag
from dispatcher.operations.metrics import FIRST_ACTION, prometheus_name
from dispatcher.records import metrics_samples as own
from dispatcher.records.metrics_samples import Metric

RATE_INTERVAL = "$__rate_interval"
"""The interval of a rate: Grafana writes the panel's own here."""

KEEPER_SILENT_SECONDS = 600


@dataclass(frozen=True)
class Panel:
    """`unit`: of Grafana. `queries`: each with the legend of its series."""

    question: str
    unit: str
    queries: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Rule:
    name: str
    expression: str
    minutes: int


EACH_TABLE = "{{table}}, {{job}}"


def _by_table(metric: Metric) -> str:
    return f"max by (job, table) ({prometheus_name(metric)})"


def _rate(metric: Metric, by: str = "", suffix: str = "_total") -> str:
    return f"sum{f' by ({by})' if by else ''} (rate({prometheus_name(metric)}{suffix}[{RATE_INTERVAL}]))"


def _quantiles(metric: Metric) -> tuple[tuple[str, str], ...]:
    buckets = _rate(metric, "le", "_bucket")
    return tuple((f"histogram_quantile({share}, {buckets})", f"{share:.0%} take less") for share in (0.5, 0.95))


def panels() -> Iterator[Panel]:
    lag, bound = _by_table(table_lag.TABLE_LAG), _by_table(table_lag.TABLE_LAG_BOUND)
    yield Panel("How much of its bound has each table used?", "percentunit", ((f"{lag} / {bound}", EACH_TABLE),))
    yield Panel("For how long has each table's oldest row been waiting?", "s", ((lag, EACH_TABLE),))
    yield Panel("How many rows wait?", "short", ((_by_table(table_lag.TABLE_PENDING_ROWS), EACH_TABLE),))
    yield Panel("How many bytes wait?", "bytes", ((_by_table(table_lag.TABLE_PENDING_BYTES), EACH_TABLE),))
    yield Panel("How many files are small?", "short", ((_by_table(table_lag.TABLE_SMALL_FILES), EACH_TABLE),))
    yield Panel("How many rows are dead?", "short", ((_by_table(table_lag.TABLE_DEAD_ROWS), EACH_TABLE),))
    yield Panel("What do other engines not see yet?", "s", ((_by_table(table_lag.TABLE_PUBLISHED_LAG), EACH_TABLE),))
    yield Panel(
        "How many tables are late?",
        "short",
        (
            (f"max by (job) ({prometheus_name(table_lag.TABLES_LATE)})", "late, {{job}}"),
            (f"max by (job) ({prometheus_name(table_lag.TABLES_WATCHED)})", "all, {{job}}"),
        ),
    )
    yield Panel(
        "Does the keeper look, and does it fail?",
        "short",
        (
            (f"min by (job) ({prometheus_name(lag_board.KEEPER_LOOK_AGE)})", "seconds since a look, {{job}}"),
            (f"max by (job) ({prometheus_name(lag_board.KEEPER_TROUBLES)})", "failures, {{job}}"),
        ),
    )
    yield from _panels_of_dispatchers()


def _panels_of_dispatchers() -> Iterator[Panel]:
    yield Panel("How long do sessions take?", "s", _quantiles(own.SESSION_SECONDS))
    yield Panel("Do they take what was expected?", "short", _quantiles(own.SESSION_RATIO))
    attempts = _rate(own.SESSION_ATTEMPTS, suffix="_sum")
    sessions = _rate(own.SESSION_ATTEMPTS, suffix="_count")
    yield Panel("How many attempts does a session take?", "short", ((f"{attempts} / {sessions}", "attempts"),))
    yield Panel(
        "What are job runs doing?", "short", ((f"sum by (state) ({prometheus_name(metrics.JOB_RUNS)})", "{{state}}"),)
    )
    yield Panel("How do job runs end, a second?", "short", ((_rate(own.JOB_RUNS_ENDED, "status"), "{{status}}"),))
    yield Panel("How many rows go through, a second?", "short", ((_rate(own.ROWS, "kind"), "{{kind}}"),))
    age, heartbeat = prometheus_name(metrics.QUEUE_AGE), prometheus_name(own.HEARTBEAT_AGE)
    yield Panel(
        "Is anything stuck?",
        "s",
        (
            (f"max({age})", "oldest instruction that waits"),
            (f"max({heartbeat})", "since the quietest session progressed"),
        ),
    )
    troubles = prometheus_name(metrics.TROUBLES)
    yield Panel("Which services are not reached?", "short", ((f"sum by (instance) ({troubles})", "{{instance}}"),))


def rules() -> Iterator[Rule]:
    lag, bound = _by_table(table_lag.TABLE_LAG), _by_table(table_lag.TABLE_LAG_BOUND)
    yield Rule("TableLate", f"{lag} > {bound} + {table_lag.LATE_SECONDS}", 0)
    ended = f'{prometheus_name(own.JOB_RUNS_ENDED)}_total{{status="failed"}}'
    yield Rule("JobRunFailed", f"sum by (job) (increase({ended}[10m])) > 0", 0)
    age = prometheus_name(lag_board.KEEPER_LOOK_AGE)
    yield Rule("KeeperSilent", f"min by (job) ({age}) > {KEEPER_SILENT_SECONDS} or absent({age})", 5)
    yield Rule("KeeperFails", f"max by (job) ({prometheus_name(lag_board.KEEPER_TROUBLES)}) > 0", 10)


# ------------------------------------------------------------------------------------------------------- the files

WIDTH, HEIGHT = 12, 8
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def dashboard() -> str:
    """`grafana/lithify.json`, to be imported or provisioned."""
    body = {
        "uid": "lithify-lag",
        "title": "Lithify",
        "tags": ["lithify"],
        "schemaVersion": 36,
        "timezone": "utc",
        "editable": True,
        "refresh": "1m",
        "time": {"from": "now-6h", "to": "now"},
        "annotations": {"list": []},
        "templating": {"list": [{"type": "datasource", "name": "datasource", "query": "prometheus"}]},
        "panels": [_panel(number, panel) for number, panel in enumerate(panels())],
    }
    return json.dumps(body, indent=2) + "\n"


def _panel(number: int, panel: Panel) -> dict[str, object]:
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.question,
        "gridPos": {"h": HEIGHT, "w": WIDTH, "x": WIDTH * (number % 2), "y": HEIGHT * (number // 2)},
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "options": {},
        "targets": [
            {
                "refId": chr(ord("A") + place),
                "datasource": _SOURCE,
                "expr": query,
                "legendFormat": legend,
                "range": True,
            }
            for place, (query, legend) in enumerate(panel.queries)
        ],
    }


def rule_file() -> str:
    """`grafana/lithify.rules.yaml`, for Prometheus' `rule_files`."""
    lines = ["groups:", "  - name: lithify", "    rules:"]
    for rule in rules():
        lines += [
            f"      - alert: Lithify{rule.name}",
            f"        expr: {json.dumps(rule.expression)}",
            f"        for: {rule.minutes}m",
            "        labels: {severity: warning}",
            "        annotations:",
            f"          summary: {json.dumps(FIRST_ACTION[rule.name])}",
        ]
    return "\n".join(lines) + "\n"


def files() -> dict[str, str]:
    """By name, below `grafana/`."""
    return {"lithify.json": dashboard(), "lithify.rules.yaml": rule_file()}
