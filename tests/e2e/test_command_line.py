"""The `lithify` command: exit codes, what goes to stdout and what to stderr, and each verb's JSON."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dispatcher.records.job_run_log import JobRunStatus
from tests.conftest import Command, CommandResult
from tests.e2e.conftest import REPOSITORY, House, Mailroom
from tests.fakes.dispatch_desk import TABLE, instruction

pytestmark = pytest.mark.servers


@pytest.fixture
def document(tmp_path: Path) -> Path:
    file = tmp_path / "document.json"
    file.write_text(json.dumps(instruction(job_run_id="by-hand")))
    return file


def answer(house: House, *arguments: str) -> Any:  # noqa: ANN401 (it is JSON, of a shape that each test knows)
    """The JSON answer of a command that succeeds."""
    done = house.lithify(*arguments, "--output", "json")
    assert done.exit_code == 0, done.err
    return json.loads(done.out)


Refusal = Callable[..., str]


@pytest.fixture
def refusal(command: Command) -> Refusal:
    """What a command says that was asked for something wrong: nothing on stdout, exit code 2."""

    def refuse(*arguments: str) -> str:
        result = command(*arguments)
        assert (result.exit_code, result.out) == (2, ""), result.err
        return result.err

    return refuse


def test_a_document_goes_from_submit_to_status(house: House, mailroom: Mailroom, document: Path) -> None:
    house.append([{"id": 1, "v": "a"}, {"id": 1, "v": "b"}])
    queue = ("--queue-url", mailroom.queue_url, "--endpoint-url", mailroom.endpoint_url, "--region", "us-east-1")
    state = ("--state", str(house.folder / "state"))

    assert answer(house, "submit", str(document), "--dry-run", *queue) == {"valid": True, "sent": False}
    assert mailroom.waiting() == 0
    sent = answer(house, "submit", str(document), *queue)
    assert sent["job_run_id"] == "by-hand"
    assert mailroom.waiting() == 1

    house.dispatch()

    (listed,) = answer(house, "status", *state)["job_runs"]
    assert (listed["job_run_id"], listed["status"]) == ("by-hand", "succeeded")
    shown = answer(house, "status", "by-hand", *state)
    (session,) = shown["sessions"]
    assert session["end"]["result"]["rows_in"] == 2
    assert session["rounds_done"] == 1
    assert answer(house, "watch", "by-hand", *state)["status"] == "succeeded"
    assert "succeeded" in house.lithify("status", "by-hand", *state).out
    lake = ("--lake", str(house.folder / "lake"))
    scanned = answer(house, "table", "scan", TABLE, *lake)
    assert scanned == {"columns": ["id", "v"], "rows": [{"id": 1, "v": "b"}], "more": False}
    assert len(answer(house, "table", "scan", TABLE, "--files", *lake)["files"]) == 1
    assert "1 row" in house.lithify("table", "scan", TABLE, *lake).out


def test_watching_a_job_run_that_failed_exits_with_1(house: House, mailroom: Mailroom) -> None:
    message_id = mailroom.send("{")
    house.dispatch()
    done = house.lithify("watch", message_id, "--state", str(house.folder / "state"))
    assert done.exit_code == 1
    assert "the document is not JSON" in done.out


def test_a_document_of_a_table_that_does_not_exist_is_not_sent(
    house: House, mailroom: Mailroom, document: Path
) -> None:
    queue = ("--queue-url", mailroom.queue_url, "--endpoint-url", mailroom.endpoint_url, "--region", "us-east-1")
    lake = ("--lake", str(house.folder / "lake"))
    house.append([{"id": 1, "v": "a"}])
    owner, name, version = TABLE.split(".")
    other_case = f"{owner}.{name.swapcase()}.{version}"
    document.write_text(json.dumps({**json.loads(document.read_text()), "source_table_id": other_case}))
    refused = house.lithify("submit", str(document), *queue, *lake)
    assert (refused.exit_code, refused.out) == (2, "")
    assert f"did you mean {TABLE}?" in refused.err
    assert mailroom.waiting() == 0


def test_submit_says_what_will_come_of_an_id_that_was_used_before(
    house: House, mailroom: Mailroom, document: Path
) -> None:
    house.append([{"id": 1, "v": "a"}])
    queue = ("--queue-url", mailroom.queue_url, "--endpoint-url", mailroom.endpoint_url, "--region", "us-east-1")
    state = ("--state", str(house.folder / "state"))
    assert "outlook" not in answer(house, "submit", str(document), *queue, *state)
    house.dispatch()

    again = answer(house, "submit", str(document), "--dry-run", *queue, *state)
    assert again["outlook"].startswith("job run by-hand has succeeded: to compact what came since")
    document.write_text(json.dumps({**json.loads(document.read_text()), "priority": 3}))
    refused = house.lithify("submit", str(document), *queue, *state)
    assert (refused.exit_code, refused.out) == (2, "")
    assert "job_run_id 'by-hand' was used before, for other content" in refused.err
    assert mailroom.waiting() == 0


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ((), "there is no lake to work on: give --lake, or --allow-lake"),
        (("--lake", "lake", "--topic-arn", "arn:aws:sns:-:1:a"), "is no SNS topic"),
        (("--lake", "lake", "--allow-topic", "arn:aws:sns:us-nowhere-1:123456789012:a"), "aws has no us-nowhere-1"),
    ],
)
def test_settings_that_no_document_can_work_with_end_the_service_at_its_start(
    refusal: Refusal, tmp_path: Path, options: tuple[str, ...], sentence: str
) -> None:
    message = refusal("dispatch", "--queue-url", "http://127.0.0.1:9/1/q", "--state", str(tmp_path), *options)
    assert sentence in message
    assert len(message.splitlines()) == 1


def test_a_wrong_document_is_refused_before_it_is_sent_with_every_reason(
    house: House, mailroom: Mailroom, refusal: Refusal
) -> None:
    file = house.folder / "wrong.json"
    file.write_text(json.dumps({"schema_version": "1", "source_table_id": "x", "primary_keys": [], "more": 1}))
    output = refusal("submit", str(file), "--queue-url", mailroom.queue_url)
    assert [line.split()[1].rstrip(":") for line in output.splitlines()] == ["source_table_id", "primary_keys", "more"]
    assert mailroom.waiting() == 0


def test_a_plan_shows_its_arithmetic_and_writes_nothing(house: House, document: Path) -> None:
    house.append([{"id": 1, "v": "a"}])
    requested = json.loads(document.read_text())
    document.write_text(
        json.dumps({**requested, "destination_compacted_table_id": "ACME.ELSEWHERE.V1", "desired_sla": 1})
    )
    before = sorted(entry.key for entry in house.lake.store.list(""))

    planned = answer(house, "plan", str(document), "--lake", house.lake.location.root_uri, "--workers", "0")

    (session,) = planned["sessions"]
    assert session["hash_bucket_count"] >= 1
    assert any("delta rows" in sentence for sentence in session["arithmetic"])
    assert planned["total"]["within_desired_sla"] is False
    assert sorted(entry.key for entry in house.lake.store.list("")) == before


@pytest.mark.spark
@pytest.mark.long
def test_a_damaged_page_is_one_sentence_and_sparks_stack_only_when_it_is_asked_for(house: House) -> None:

    def process(*arguments: str) -> CommandResult:
        """Java writes to what the process began with."""
        command = [sys.executable, "-m", "dispatcher.start", *arguments]
        environment = {**os.environ, "LITHIFY_LOG_LEVEL": "error"}
        done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
        return CommandResult(done.returncode, done.stdout, done.stderr)

    sentence, (quiet, verbose) = compact_what_is_damaged(house, process, rows=17_000_000)
    assert "org.apache.spark" not in quiet
    assert sentence in verbose.splitlines()
    # Newer Sparks write more between these two.
    assert re.search(r"PythonException: .*Traceback \(most recent call last\)", verbose, re.DOTALL)
    assert "at org.apache.spark.scheduler.Task" in verbose


def test_a_damaged_page_is_the_same_sentence_in_a_session_without_spark(house: House) -> None:
    sentence, outputs = compact_what_is_damaged(house, house.lithify, rows=1_000)
    for each in outputs:
        assert sentence in each.splitlines()
        assert "org.apache.spark" not in each


def compact_what_is_damaged(house: House, lithify: Command, rows: int) -> tuple[str, tuple[str, str]]:
    """The sentence, and all that `lithify compact` says on stderr without and with --verbose. So many rows decide
    whether it starts a Spark."""
    file = house.folder / "delta.parquet"
    pq.write_table(pa.table({"id": np.arange(rows)}), file, use_dictionary=False, compression="zstd")
    file.write_bytes(file.read_bytes()[:4] + b"\xff" * 396 + file.read_bytes()[400:])
    house.lake.create_table(TABLE).append({}, [file])
    compact = ("compact", TABLE, "--lake", str(house.folder / "lake"), "-k", "id")

    quiet, verbose = lithify(*compact), lithify(*compact, "--verbose")

    assert (quiet.exit_code, quiet.out) == (2, "")
    (sentence,) = [line for line in quiet.err.splitlines() if line.startswith("lithify:")]
    assert "Traceback" not in quiet.err
    assert sentence.startswith(f"lithify: {file.as_uri()} cannot be read as parquet")
    return sentence, (quiet.err, verbose.err)


def test_dead_letters_are_listed_with_their_reasons_and_sent_again(house: House, mailroom: Mailroom) -> None:
    mailroom.send(instruction(job_run_id="too-early"))
    house.dispatch()
    queue = ("--queue-url", mailroom.queue_url, "--endpoint-url", mailroom.endpoint_url, "--region", "us-east-1")

    (listed,) = answer(house, "redrive", "--list", *queue)["messages"]
    assert "there is no table" in listed["reasons"]
    house.append([{"id": 1, "v": "a"}])
    answer(house, "redrive", *queue)
    house.dispatch()

    assert mailroom.dead_letters() == []
    assert house.job_run("too-early").status is JobRunStatus.SUCCEEDED


def test_schemas_are_json_schemas(house: House) -> None:
    for document in ("instruction", "event"):
        done = house.lithify("schema", document)
        jsonschema.Draft202012Validator.check_schema(json.loads(done.out))


def test_a_table_is_created_appended_to_and_shown(house: House) -> None:
    lake = ("--lake", str(house.folder / "lake"))
    file = house.folder / "rows.parquet"
    pq.write_table(pa.table({"id": [1, 2, 3]}), file)

    created = answer(house, "table", "create", "ACME.CLI.V1", "--partition-key", "day", *lake)
    assert created == {"table_id": "ACME.CLI.V1", "created": True, "partition_keys": ["day"], "schema": None}
    added = answer(house, "table", "append", "ACME.CLI.V1", str(file), "-p", "day=1", "--delta-id", "d", *lake)
    assert (added["rows"], added["operation"]) == (3, "upsert")
    assert answer(house, "table", "append", "ACME.CLI.V1", str(file), "-p", "day=1", "--delta-id", "d", *lake) == added
    assert answer(house, "table", "show", *lake) == {"tables": ["ACME.CLI.V1"]}
    (stream,) = answer(house, "table", "show", "ACME.CLI.V1", *lake)["streams"]
    assert (stream["partition"], stream["delta_rows"]) == ({"day": "1"}, 3)
    logged = answer(house, "table", "log", "ACME.CLI.V1", "-p", "day=1", *lake)
    assert [action["action"] for entry in logged["entries"] for action in entry["actions"]] == [
        "stream_version_created",
        "delta_added",
    ]
    assert "ACME.CLI.V1, partitioned by day" in house.lithify("table", "show", "ACME.CLI.V1", *lake).out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("table", "show", "NO.SUCH.V1"), "there is no table NO.SUCH.V1"),
        (("table", "create", "orders"), "'orders' is not a table id"),
        (("table", "append", "NO.SUCH.V1", "x.parquet"), "there is no table NO.SUCH.V1"),
        (("table", "log", "NO.SUCH.V1", "-p", "day"), "--partition 'day' is not key=value"),
        (("gc", "--grace-hours", "0.5", "--delete"), "a grace of 0.5 hours may delete files that a compaction"),
        (("compact", "NO.SUCH.V1", "-k", "id"), "there is no table NO.SUCH.V1"),
        (("compact", "A.B.V1", "-k", "id", "--sort-key", "at:up"), "--sort-key 'at:up': the order is 'up'"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(
    house: House, refusal: Refusal, arguments: tuple[str, ...], sentence: str
) -> None:
    (house.folder / "lake").mkdir()
    output = refusal(*arguments, "--lake", str(house.folder / "lake"))
    assert sentence in output
    assert output.startswith("lithify: ")
    assert len(output.splitlines()) == 1
