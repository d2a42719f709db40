"""`lithify keeper`, `keeper plan` and `keeper log`."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from compactor.lake import DeltaCatalog
from compactor.log.durable_log import CHECKPOINT_ENTRIES, DurableLog
from compactor.model.clock import SystemClock
from compactor.storage.location import parse_location
from compactor.storage.opening import open_store
from dispatcher.keeper.decision_log import DECISION_LOG, DecisionLog, TableSetAside
from dispatcher.keeper.keys import DecisionLogFolder, lake_name
from tests.conftest import Command
from tests.servers import REGION, aws_environment

TABLE = "ACME.ORDERS.V1"


@pytest.fixture
def places(tmp_path: Path) -> tuple[str, ...]:
    (tmp_path / "state").mkdir()
    lake = DeltaCatalog.open(str(tmp_path / "lake"))
    table = lake.create_table(TABLE, primary_keys={"id"}, properties={"compact_when": {"pending_rows": 2}})
    table.append({}, pa.table({"id": [1, 2]}))
    return ("--lake", str(tmp_path / "lake"), "--state", str(tmp_path / "state"))


def test_a_plan_shows_what_is_due_in_text_and_json(command: Command, places: tuple[str, ...]) -> None:
    shown = command("keeper", "plan", *places)
    assert shown.exit_code == 0
    assert "due" in shown.out
    assert "pending_rows 2 >= 2" in shown.out
    (stream,) = json.loads(command("keeper", "plan", *places, "--output", "json").out)["streams"]
    assert (stream["state"], stream["by"]) == ("due", "pending_rows")
    assert stream["expected_seconds"] > 0


def test_a_plan_for_clusters_has_dollars(command: Command, places: tuple[str, ...]) -> None:
    answer = command("keeper", "plan", *places, "--cluster", "emr", "--output", "json")
    (stream,) = json.loads(answer.out)["streams"]
    assert stream["expected_usd"] > 0


def test_a_plan_says_that_sessions_on_a_cluster_take_longer_than_the_lag_that_is_allowed(
    command: Command, places: tuple[str, ...]
) -> None:
    def why(seconds: int) -> str:
        policy = json.dumps({"pending_rows": 2, "lag_seconds": seconds})
        assert command("table", "set", TABLE, *places[:2], f"compact_when={policy}").exit_code == 0
        (stream,) = json.loads(command("keeper", "plan", *places, "--cluster", "emr", "-o", "json").out)["streams"]
        assert stream["expected_seconds"] > 60
        return str(stream["why"])

    assert why(86_400) == "pending_rows 2 >= 2"
    assert "longer than the lag of 60 s that is allowed" in why(60)


@pytest.mark.parametrize(("share", "scope"), [("table", "table"), ("all", "all")])
def test_a_plan_names_the_budget_that_a_session_would_pass(
    command: Command, places: tuple[str, ...], share: str, scope: str
) -> None:
    def planned(usd: float) -> dict[str, object]:
        limits = json.dumps({share: {"usd_per_day": usd}})
        answer = command("keeper", "plan", *places, "--cluster", "emr", "--limits", limits, "--output", "json")
        (stream,) = json.loads(answer.out)["streams"]
        assert isinstance(stream, dict)
        return stream

    usd = planned(1000.0)["expected_usd"]
    assert isinstance(usd, float)
    assert planned(usd * 1.01)["state"] == "due"
    over = planned(usd * 0.99)
    assert (over["state"], over["by"]) == ("over budget", "pending_rows")
    assert f"that {scope} may spend on" in str(over["why"])
    assert over["until_ms"] is not None


def test_decisions_wait_while_the_queue_is_unavailable_and_the_log_says_why_and_since_when(
    command: Command, places: tuple[str, ...]
) -> None:
    away = ("--queue-url", "http://127.0.0.1:9/1/orders", "--endpoint-url", "http://127.0.0.1:9")
    with aws_environment():
        looked = command("keeper", "run", "--once", *places, *away, "--region", REGION, "--output", "json")
        assert looked.exit_code == 1
        assert "left to the next look: 1 decision: queue " in looked.err
        answer = json.loads(looked.out)
        assert (answer["decided"], answer["sent"], answer["waiting"]) == (1, 0, 1)
        assert "127.0.0.1:9" in answer["queue_away"]
        again = json.loads(command("keeper", "run", "--once", *places, *away, "--output", "json").out)
        assert (again["decided"], again["waiting"]) == (0, 1)
    (decision,) = json.loads(command("keeper", "log", *places, "--output", "json").out)["decisions"]
    assert decision["what"] == "waits"
    assert decision["sent_at_ms"] is None
    assert decision["waits_since_ms"] == decision["at_ms"]
    assert "cannot be used" in decision["waits_for"]
    shown = command("keeper", "log", *places).out
    assert "waits for the queue since" in " ".join(shown.split())


def test_a_wrong_default_policy_is_refused_with_every_reason(command: Command, places: tuple[str, ...]) -> None:
    given = '{"lag_seconds": 1, "not_before_seconds": 60}'
    answer = command("keeper", "plan", *places, "--default-policy", given)
    assert answer.exit_code == 2
    assert "a session takes 5 seconds or more" in answer.err
    assert "it could not be kept" in answer.err


def test_a_table_that_does_not_exist_is_bad_input(command: Command, places: tuple[str, ...]) -> None:
    answer = command("keeper", "plan", *places, "ACME.ABSENT.V1")
    assert answer.exit_code == 2
    assert "there is no table ACME.ABSENT.V1" in answer.err


@pytest.mark.parametrize("verb", ["plan", "log"])
def test_a_lake_that_does_not_exist_is_bad_input(command: Command, places: tuple[str, ...], verb: str) -> None:
    answer = command("keeper", verb, "--lake", f"{places[1]}-typo", *places[2:])
    assert answer.exit_code == 2
    assert f"{places[1]}-typo" in answer.err


def test_a_policy_is_set_at_the_command_line_and_a_wrong_one_leaves_it(
    command: Command, places: tuple[str, ...]
) -> None:
    lake = places[:2]
    assert command("table", "set", TABLE, *lake, "compact_when=nightly").exit_code == 0
    refused = command("table", "set", TABLE, *lake, 'compact_when={"lag": 3}')
    assert refused.exit_code == 2
    assert "compact_when.lag: there is no such field" in refused.err
    shown = json.loads(command("table", "get", TABLE, *lake, "compact_when", "--output", "json").out)
    assert shown["properties"]["compact_when"] == {"preset": "nightly"}


def test_the_log_shows_the_latest_decisions_and_reads_no_more_of_it(command: Command, places: tuple[str, ...]) -> None:
    lake, state = DeltaCatalog.open(places[1]), open_store(parse_location(places[3]))
    folder = DecisionLogFolder(lake_name(lake.location), TABLE)
    log: DecisionLog = DurableLog(state, folder.key, DECISION_LOG, SystemClock())
    for number in range(CHECKPOINT_ENTRIES + 10):
        log.append(lambda _, number=number: [TableSetAside(reason=f"reason {number}", at_ms=0)])  # type: ignore[misc]
    Path(places[3], folder.key, f"{1:020d}.json").write_text("not read")
    answer = command("keeper", "log", *places, "--limit", "2", "--output", "json")
    shown = [each["why"] for each in json.loads(answer.out)["decisions"]]
    assert shown == [f"reason {CHECKPOINT_ENTRIES + each}" for each in (8, 9)]
