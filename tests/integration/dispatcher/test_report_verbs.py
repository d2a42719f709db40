"""What `status`, `redrive --list` and `report tables` say of all there are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from structlog.testing import capture_logs

from compactor.model.clock import SystemClock
from compactor.storage.location import parse_location
from compactor.storage.opening import open_store
from dispatcher.aws.sqs import SqsQueue
from dispatcher.demo.stand_ins import queue_server
from tests.conftest import Command
from tests.fakes.dispatch_desk import TABLE, Desk
from tests.fakes.small_cluster import Hangs
from tests.servers import REGION, aws_environment

OTHER = "ACME.OTHER.V1"


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    """Its state is in a folder. One job run has succeeded, another one hangs; a second table lags behind. What it logs
    meanwhile, from any thread, is kept out of the verbs' output."""
    with capture_logs():
        yield from desk_at_work(tmp_path)


def desk_at_work(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path, state=open_store(parse_location(str(tmp_path / "state"))))
    made.append([{"id": 7}, {"id": 8}], table=OTHER)
    made.append([{"id": 1}])
    made.accept(job_run_id="done", desired_sla=3_600)
    made.run()
    made.append([{"id": 2}])
    made.cluster.behaves = lambda _: Hangs()
    made.accept(job_run_id="hangs")
    made.tick_until(lambda: bool(made.cluster.launched[1:]))
    yield made
    made.close()


def records(command: Command, key: str, *arguments: str) -> list[dict[str, object]]:
    result = command(*arguments, "-o", "json")
    assert result.exit_code == 0, result.err
    found: list[dict[str, object]] = json.loads(result.out)[key]
    return found


def test_runs_have_their_time_against_what_was_expected_and_desired(
    desk: Desk, tmp_path: Path, command: Command
) -> None:
    state = ("--state", str(tmp_path / "state"))
    found = {each["job_run_id"]: each for each in records(command, "job_runs", "status", *state)}
    assert (found["done"]["status"], found["done"]["desired_sla"], found["done"]["late_seconds"]) == (
        "succeeded",
        3_600,
        0,
    )
    assert isinstance(found["done"]["expected_sla"], float)
    assert (found["hangs"]["status"], found["hangs"]["late_seconds"]) == ("running", None)
    assert "expected" in command("status", *state).out


def test_tables_are_listed_by_lag(desk: Desk, tmp_path: Path, command: Command) -> None:
    first, second = records(command, "tables", "report", "tables", "--lake", str(tmp_path / "lake"))
    assert (first["table_id"], first["pending_rows"]) == (OTHER, 2)
    assert (second["table_id"], second["pending_rows"]) == (TABLE, 1)
    assert float(str(first["pending_seconds"])) >= float(str(second["pending_seconds"])) > 0
    assert (first["lag_bound_seconds"], first["published_lag_seconds"]) == (None, None)


def test_a_table_that_is_late_by_its_own_policy_comes_first(desk: Desk, tmp_path: Path, command: Command) -> None:
    desk.lake.table(TABLE).set_properties({"primary_keys": ["id"], "compact_when": {"lag_seconds": 5}})
    desk.move_on(60)
    places = ("--lake", str(tmp_path / "lake"))
    first, second = records(command, "tables", "report", "tables", *places)
    assert (first["table_id"], first["lag_bound_seconds"], second["table_id"]) == (TABLE, 5, OTHER)
    assert float(str(first["behind"])) == float(str(first["pending_seconds"])) / 5
    given = ("--default-policy", '{"lag_seconds": 10}')

    def bounds() -> set[object]:
        return {each["lag_bound_seconds"] for each in records(command, "tables", "report", "tables", *places, *given)}

    assert bounds() == {5, None}, "no keeper keeps a table that declares no keys"
    desk.lake.table(OTHER).set_properties({"primary_keys": ["id"]})
    assert bounds() == {5, 10}
    text = command("report", "tables", *places).out
    assert text.index(TABLE) < text.index(OTHER)
    assert "bound" in text


@pytest.mark.parametrize("verb", [("report", "tables"), ("table", "list"), ("table", "list", "--garbage")])
def test_a_table_that_cannot_be_read_keeps_no_other_from_being_listed(
    desk: Desk, tmp_path: Path, command: Command, verb: tuple[str, ...]
) -> None:
    (first, *_) = sorted((tmp_path / "lake").glob(f"tables/{OTHER}/streams/**/{1:020d}.json"))
    first.write_text("broken")
    answer = command(*verb, "--lake", str(tmp_path / "lake"), "--output", "json")
    assert answer.exit_code == 1
    assert [each["table_id"] for each in json.loads(answer.out)["tables"]] == [TABLE]
    assert list(json.loads(answer.out)["failed"]) == [OTHER]
    assert f"{OTHER}: tables/{OTHER}/streams" in answer.err


@pytest.mark.servers
def test_dead_letters_are_shown_with_their_reasons_and_stay(command: Command) -> None:
    with aws_environment(), queue_server() as endpoint_url:
        client = boto3.client("sqs", endpoint_url=endpoint_url, region_name=REGION)
        name = SystemClock().new_id()
        url = client.create_queue(QueueName=name)["QueueUrl"]
        dead = client.create_queue(QueueName=f"{name}-dead")["QueueUrl"]
        queue = SqsQueue.open(url, dead_letter_queue_url=dead, endpoint_url=endpoint_url, region=REGION)
        body = json.dumps({"job_run_id": "wrong", "source_table_id": TABLE, "task_token": "a secret"})
        queue.send(body)
        (message,) = queue.receive(1, 0, 30)
        queue.dead_letter(message, ["primary_keys is missing"])
        places = ("--queue-url", url, "--dead-letter-queue-url", dead, "--endpoint-url", endpoint_url)
        for _ in range(2):
            (found,) = records(command, "messages", "redrive", "--list", *places, "--region", REGION)
            assert (found["job_run_id"], found["reasons"]) == ("wrong", '["primary_keys is missing"]')
            assert "secret" not in str(found)
        shown = command("redrive", "--list", *places, "--region", REGION).out
        assert "primary_keys is missing" in shown
        assert '"' not in shown
