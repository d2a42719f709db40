"""Prometheus itself scrapes a dispatcher and a keeper, evaluates the dashboard, and fires and resolves the rules."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import boto3
import pyarrow as pa
import pytest

from compactor import DeltaCatalog
from compactor.model.clock import SystemClock
from dispatcher.demo.stand_ins import free_ports, queue_server
from dispatcher.operations.metrics import FIRST_ACTION
from tests.pages import grafana
from tests.servers import REGION, aws_environment
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
RULES = ROOT / "grafana" / "lithify.rules.yaml"
LITHIFY = Path(sys.executable).with_name("lithify")
EXPRESSIONS = [query.replace(grafana.RATE_INTERVAL, "1m") for panel in grafana.panels() for query, _ in panel.queries]


def program(name: str) -> str:
    """`make test-monitoring` says the same before it starts."""
    found = shutil.which(name)
    assert found is not None, f"{name} is missing: apt install prometheus (Debian), or the release of Prometheus"
    return found


# -------------------------------------------------------------------------------------------------------- the rules


def minutes(*counts: tuple[float, int]) -> str:
    """A series with a value a minute: so many minutes of each value."""
    return " ".join(f"{value}x{count - 1}" for value, count in counts)


LATE = {"table": "ACME.ORDERS.V1", "job": "keeper"}
CASES: dict[str, tuple[dict[str, str], dict[int, list[dict[str, str]]]]] = {
    "TableLate": (
        {
            'lithify_table_lag_seconds{table="ACME.ORDERS.V1",job="keeper"}': f"0+60x24 {minutes((10, 10))}",
            'lithify_table_lag_bound_seconds{table="ACME.ORDERS.V1",job="keeper"}': minutes((300, 35)),
            'lithify_table_lag_seconds{table="ACME.FREE.V1",job="keeper"}': minutes((9_000, 35)),
            'lithify_table_lag_seconds{table="ACME.ORDERS.V1",job="another"}': minutes((5, 35)),
            'lithify_table_lag_bound_seconds{table="ACME.ORDERS.V1",job="another"}': minutes((9_999, 35)),
            'lithify_keeper_look_age_seconds{job="keeper"}': minutes((10, 35)),
        },
        {10: [], 15: [], 16: [LATE], 27: []},
    ),
    "JobRunFailed": (
        {
            'lithify_job_runs_ended_total{job="dispatcher",status="failed"}': minutes((0, 5), (1, 30)),
            'lithify_job_runs_ended_total{job="dispatcher",status="succeeded"}': "0+1x35",
            'lithify_keeper_look_age_seconds{job="keeper"}': minutes((10, 35)),
        },
        {3: [], 7: [{"job": "dispatcher"}], 25: []},
    ),
    "KeeperSilent": (
        {'lithify_keeper_look_age_seconds{job="keeper"}': f"{minutes((10, 5))} _x15 {minutes((700, 10), (10, 10))}"},
        {4: [], 17: [{}], 27: [{"job": "keeper"}], 33: []},
    ),
    "KeeperFails": (
        {
            'lithify_keeper_troubles{job="keeper"}': minutes((0, 5), (2, 15), (0, 10)),
            'lithify_keeper_look_age_seconds{job="keeper"}': minutes((10, 35)),
        },
        {10: [], 16: [{"job": "keeper"}], 22: []},
    ),
}


@pytest.mark.parametrize("name", FIRST_ACTION)
def test_a_rule_fires_and_resolves(name: str, tmp_path: Path) -> None:
    series, expected = CASES[name]
    summary = FIRST_ACTION[name]
    test = {
        "interval": "1m",
        "input_series": [{"series": each, "values": values} for each, values in series.items()],
        "alert_rule_test": [
            {
                "eval_time": f"{minute}m",
                "alertname": f"Lithify{name}",
                "exp_alerts": [
                    {"exp_labels": {"severity": "warning", **labels}, "exp_annotations": {"summary": summary}}
                    for labels in fired
                ],
            }
            for minute, fired in expected.items()
        ],
    }
    cases = tmp_path / "cases.yaml"
    cases.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [test]}))
    tried = subprocess.run(
        [program("promtool"), "test", "rules", str(cases)], capture_output=True, text=True, check=False
    )
    assert tried.returncode == 0, tried.stdout + tried.stderr


# ------------------------------------------------------------------------------------------------------ the dashboard


@contextmanager
def running(*command: str, log: Path) -> Iterator[None]:
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT) as process:
        try:
            yield
        finally:
            process.terminate()
            process.wait(60)


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a Prometheus that scrapes a dispatcher and a keeper, which has had a table compacted."""
    folder = tmp_path_factory.mktemp("monitoring")
    orders = DeltaCatalog.open(str(folder / "lake")).create_table(
        "ACME.ORDERS.V1",
        primary_keys=["id"],
        properties={"compact_when": {"lag_seconds": 5}, "publish": ["delta"]},
    )
    orders.append({}, pa.table({"id": [1, 2], "price": [1.0, 2.0]}))
    dispatcher, keeper, own = free_ports(3)
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [
            {"job_name": name, "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
            for name, port in (("dispatcher", dispatcher), ("keeper", keeper))
        ],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))
    with ExitStack() as stack:
        stack.enter_context(aws_environment())
        endpoint = stack.enter_context(queue_server())
        sqs = boto3.client("sqs", endpoint_url=endpoint, region_name=REGION)
        queue, dead = (sqs.create_queue(QueueName=SystemClock().new_id())["QueueUrl"] for _ in range(2))
        places = (
            "--state",
            str(folder / "state"),
            "--queue-url",
            queue,
            "--endpoint-url",
            endpoint,
            "--region",
            REGION,
        )
        lake = ("--lake", str(folder / "lake"))
        work = ("--dead-letter-queue-url", dead, "--work-folder", str(folder / "work"), "--http-port", str(dispatcher))
        look = ("--look-seconds", "1", "--http-port", str(keeper))
        start = stack.enter_context
        start(running(str(LITHIFY), "dispatch", *places, *lake, *work, log=folder / "dispatcher.log"))
        start(running(str(LITHIFY), "keeper", "run", *places, *lake, *look, log=folder / "keeper.log"))
        served = ("--storage.tsdb.path", str(folder / "tsdb"), "--web.listen-address", f"127.0.0.1:{own}")
        configured = ("--config.file", str(folder / "prometheus.yml"))
        start(running(program("prometheus"), *configured, *served, log=folder / "prometheus.log"))
        url = f"http://127.0.0.1:{own}"
        wait_until(lambda: _answers(url), every_seconds=0.5)
        yield url


def _answers(url: str) -> bool:
    """Whether Prometheus is there, and has seen the end of the session that the keeper had started."""
    try:
        return bool(ask(url, 'lithify_job_runs_ended_total{status="succeeded"} > 0'))
    except OSError:
        return False


def ask(url: str, expression: str) -> list[object]:
    query = urllib.parse.urlencode({"query": expression})
    with urllib.request.urlopen(f"{url}/api/v1/query?{query}", timeout=10) as answer:
        found: list[object] = json.load(answer)["data"]["result"]
    return found


@pytest.mark.servers
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_each_expression_of_the_dashboard_has_a_series(prometheus: str, expression: str) -> None:
    wait_until(lambda: ask(prometheus, expression) != [], seconds=60, every_seconds=0.5)


@pytest.mark.servers
def test_no_rule_fires_while_all_is_well(prometheus: str) -> None:
    with urllib.request.urlopen(f"{prometheus}/api/v1/rules", timeout=10) as answer:
        (group,) = json.load(answer)["data"]["groups"]
    assert [rule["name"] for rule in group["rules"]] == [f"Lithify{each.name}" for each in grafana.rules()]
    wait_until(lambda: ask(prometheus, 'ALERTS{alertstate="firing"}') == [], seconds=30)
    assert all(rule["health"] in ("ok", "unknown") for rule in group["rules"])
