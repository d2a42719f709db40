"""`lithify prices`, and the prices of plans and of health."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from compactor.model.clock import SystemClock
from dispatcher.operations.health import HEALTH_FILE, HealthFile
from tests.conftest import Command
from tests.fakes.published_prices import REGION, price_server
from tests.servers import aws_environment


@pytest.fixture
def endpoint() -> Iterator[str]:
    with aws_environment(), price_server() as url:
        yield url


@pytest.fixture
def document(command: Command, tmp_path: Path) -> Path:
    lake = str(tmp_path / "lake")
    rows = tmp_path / "rows.csv"
    rows.write_text("id,v\n1,a\n2,b\n")
    assert command("table", "create", "ACME.ROWS.V1", "--lake", lake).exit_code == 0
    assert command("table", "append", "ACME.ROWS.V1", str(rows), "--lake", lake).exit_code == 0
    document = {
        "schema_version": "1",
        "source_table_id": "ACME.ROWS.V1",
        "primary_keys": ["id"],
        "delta_catalog": f"file://{lake}",
    }
    file = tmp_path / "instruction.json"
    file.write_text(json.dumps(document))
    return file


@pytest.mark.servers
def test_the_prices_of_a_region_are_written_and_plans_are_made_with_them(
    command: Command, endpoint: str, document: Path, tmp_path: Path
) -> None:
    file = tmp_path / "prices.json"
    written = command("prices", "--region", REGION, str(file), "--endpoint-url", endpoint)
    assert written.exit_code == 0, written.err
    assert "5 instance types of eu-west-1, and EMR Serverless, on" in written.out
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == []
    plan = ("plan", str(document), "--price-file", str(file), "--region", REGION)
    on_emr, on_serverless = (command(*plan, "--cluster", each) for each in ("emr", "emr_serverless"))
    assert "prices of eu-west-1 on" in " ".join(on_emr.out.split())
    assert "1 x r5d.xlarge" in on_emr.out or "1 x r6i.xlarge" in on_emr.out
    assert "2 workers of EMR Serverless and one for the driver" in " ".join(on_serverless.out.split())
    for each in (on_emr, on_serverless):
        assert "prices are" not in " ".join(each.out.split())


@pytest.mark.servers
def test_a_region_that_has_no_prices_is_bad_input_and_leaves_the_file(
    command: Command, endpoint: str, tmp_path: Path
) -> None:
    file = tmp_path / "prices.json"
    file.write_text("as it was")
    answer = command("prices", "--region", "eu-nowhere-9", str(file), "--endpoint-url", endpoint)
    assert answer.exit_code == 2
    assert "AWS publishes no price in eu-nowhere-9" in answer.err
    assert file.read_text() == "as it was"


def test_a_plan_warns_of_old_prices_and_of_those_of_another_region(command: Command, document: Path) -> None:
    shown = command("plan", str(document), "--cluster", "emr", "--region", "eu-west-1")
    text = " ".join(shown.out.split())
    assert "prices are those of us-east-1, and clusters run in eu-west-1" in text
    assert "prices are of 2024-12-01, more than a year old" in text


def test_health_warns_of_prices_and_calls_the_dispatcher_well(command: Command, tmp_path: Path) -> None:
    file = HealthFile(tmp_path / HEALTH_FILE, "me", 5.0, SystemClock(), warnings=("prices are old",))
    file.write_when_due({}, 3)
    shown = command("health", "--work-folder", str(tmp_path))
    assert shown.exit_code == 0
    assert "me is well" in shown.out
    assert "Warning: prices are old." in shown.out
    assert json.loads(command("health", "--work-folder", str(tmp_path), "--output", "json").out)["warnings"] == [
        "prices are old"
    ]
