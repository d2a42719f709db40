"""README.md keeps its word: every block that says `tested` is run here, and every link leads somewhere."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactor.event_types import EVENT_TYPES, Severity
from compactor.events import Event
from dispatcher.instruction import FIELD_NAMES, InstructionDocument, parse_instruction
from dispatcher.main import OPTIONS_FROM_ENVIRONMENT
from tests.e2e.conftest import Mailroom
from tests.servers import REGION

REPOSITORY = Path(__file__).parents[2]
README = (REPOSITORY / "README.md").read_text()
BLOCKS = {
    found["name"]: found["text"]
    for found in re.finditer(r"<!-- tested: (?P<name>\w+) -->\n```\w+\n(?P<text>.*?)^```$", README, re.S | re.M)
}
PROGRAMS = Path(sys.executable).parent


def test_the_instruction_is_a_valid_one() -> None:
    assert isinstance(parse_instruction(BLOCKS["instruction"]), InstructionDocument)


def test_every_field_of_an_instruction_is_explained() -> None:
    explained = re.findall(r"^\| `(\w+)` \|", README.partition("| field |")[2].partition("\n\n")[0], re.M)
    assert sorted(explained) == sorted(FIELD_NAMES)


def test_the_event_is_one() -> None:
    event = Event.model_validate_json(BLOCKS["event"])
    assert json.loads(event.render()) == json.loads(BLOCKS["event"])


def test_the_filter_policy_filters_what_there_is() -> None:
    policy = json.loads(BLOCKS["filter"])
    assert set(policy) <= set(Event.model_validate_json(BLOCKS["event"]).attributes)
    assert set(policy["type"]) <= set(EVENT_TYPES)
    assert set(policy["severity"]) <= set(Severity)


def test_every_variable_that_is_named_is_read() -> None:
    named = {name.lower() for name in re.findall(r"LITHIFY_(\w+)", README)}
    assert named <= set(OPTIONS_FROM_ENVIRONMENT)


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\((?!https?:)([^)]+)\)", README))))
def test_every_link_leads_somewhere(link: str) -> None:
    assert (REPOSITORY / link).exists()


@pytest.mark.spark
@pytest.mark.slow
def test_its_code_and_its_commands_do_what_they_say(tmp_path: Path, mailroom: Mailroom) -> None:
    """One after the other in one folder, as a reader would."""
    run(tmp_path, sys.executable, "-c", BLOCKS["python"])

    shipped = pa.table({"order_id": [2], "status": ["RETURNED"], "last_updated": [50]})
    pq.write_table(shipped, tmp_path / "update.parquet")
    said = run(tmp_path, "sh", "-e", "-c", BLOCKS["terminal"])
    assert "RETURNED" in said

    (tmp_path / "instruction.json").write_text(BLOCKS["instruction"])
    pq.write_table(shipped, tmp_path / "again.parquet")
    lake = {"LITHIFY_LAKE": str(tmp_path / "lake")}
    run(tmp_path, "sh", "-c", "lithify table append ACME.ORDERS.V1 again.parquet -p order_day=1995-04-03", **lake)
    said = run(
        tmp_path,
        *("sh", "-e", "-c", BLOCKS["queue"]),
        **lake,
        LITHIFY_STATE=str(tmp_path / "state"),
        LITHIFY_QUEUE_URL=mailroom.queue_url,
        LITHIFY_TOPIC_ARN=mailroom.topic_arn,
        LITHIFY_ENDPOINT_URL=mailroom.endpoint_url,
        LITHIFY_REGION=REGION,
    )
    assert "orders-1995-04-04" in said
    assert "succeeded" in said
    assert mailroom.told()[-1] == "job_run.succeeded"


def run(folder: Path, *command: str, **more: str) -> str:
    """What it says. It must succeed."""
    environment = {**os.environ, "PATH": f"{PROGRAMS}:{os.environ['PATH']}", "PYTHONPATH": str(REPOSITORY), **more}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
