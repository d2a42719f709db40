"""README and the documentation keep their word: each block that says `tested` is run, here or beside its servers."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from datetime import date
from pathlib import Path

import boto3
import duckdb
import pyarrow as pa
import pytest

from compactor.catalog.compact_when import CompactWhen, contradictions_of
from compactor.events.relay import Event
from compactor.events.types import EVENT_TYPES, Severity
from dispatcher.intake.instruction import InstructionDocument, parse_instruction
from dispatcher.options.service_options import read_options
from launcher.emr.settings import EmrSettings, parse_settings
from launcher.sizing.instance_types import parse_price_list
from lithify import DeltaCatalog
from tests.e2e.conftest import Mailroom
from tests.pages.sources import ROOT, blocks, pages
from tests.servers import REGION

BLOCKS = blocks()
MARKED = re.compile(r"<!-- (?:tested: (?P<name>\w+)|needs an account: .+) -->")
DRAWN = ("mermaid",)
"""Languages of pictures."""

GENERATED = re.compile(r"<!-- generated: (\w+) -->\n.*?<!-- end of \1 -->\n", re.S)

PROGRAMS = Path(sys.executable).parent


def test_every_block_is_run_by_a_test_or_says_why_it_needs_an_account() -> None:
    """Blocks without a language are drawings and what a command prints. What is generated has a test of its own."""
    sources = [each.read_text() for each in (ROOT / "tests").rglob("test_*.py")]
    opened = [
        (page, before)
        for page in pages()
        for before, language in re.findall(r"^(.*)\n```(\w+)\n", written_by_hand(page), re.M)
        if language not in DRAWN
    ]
    assert opened
    for page, before in opened:
        marked = MARKED.fullmatch(before)
        assert marked is not None, (page, before)
        name = marked["name"]
        calls = (f'BLOCKS["{name}"]', f'blocks()["{name}"]', f'block("{name}")')
        assert name is None or any(call in source for source in sources for call in calls), name


def written_by_hand(page: Path) -> str:
    return GENERATED.sub("", page.read_text())


def test_the_price_list_is_a_good_one() -> None:
    prices = parse_price_list(BLOCKS["prices"].encode(), "costs.md", date(2026, 11, 2))
    assert [each.name for each in prices.instance_types] == ["r6g.4xlarge"]


def test_the_places_of_a_queue_are_what_a_dispatcher_reads() -> None:
    exported = run(ROOT, "sh", "-e", "-c", BLOCKS["places"] + "env")
    variables = dict(re.findall(r"^LITHIFY_(\w+)=(.*)$", exported, re.M))
    options, errors = read_options({}, {name.lower(): value for name, value in variables.items()})
    assert not errors.reasons
    assert (str(options.places.lake), str(options.places.state)) == ("s3://bucket/lake", "s3://bucket/state")


def test_the_policy_is_a_good_one() -> None:
    policy = CompactWhen.model_validate_json(BLOCKS["policy"])
    assert list(contradictions_of(policy, ("order_id",))) == []
    assert policy.lag_bound_seconds() == 86_400


def test_the_keeper_decides_once_sends_an_instruction_and_its_decision_is_read_in_sql(
    tmp_path: Path, mailroom: Mailroom, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_python(tmp_path, BLOCKS["python"])
    orders = DeltaCatalog.open(str(tmp_path / "lake")).table("ACME.ORDERS.V1")
    rows = pa.table({"order_id": [7], "status": ["NEW"], "last_updated": [90]})
    orders.append({"order_day": "1995-04-03"}, rows)
    (tmp_path / "state").mkdir()
    places = {
        "LITHIFY_LAKE": str(tmp_path / "lake"),
        "LITHIFY_STATE": str(tmp_path / "state"),
        "LITHIFY_QUEUE_URL": mailroom.queue_url,
        "LITHIFY_ENDPOINT_URL": mailroom.endpoint_url,
        "LITHIFY_REGION": REGION,
    }
    output = run(tmp_path, "sh", "-e", "-c", BLOCKS["keeper"], **places)
    assert "1 decision, 1 instruction sent" in output
    assert output.count("pending_deltas 1 >= 1") == 2, "in the plan and in the log"
    monkeypatch.chdir(tmp_path)
    with duckdb.connect() as connection:
        ((table, rule, decisions, expected_seconds, *took),) = connection.execute(BLOCKS["decisions"]).fetchall()
    assert (table, rule, decisions, took) == ("ACME.ORDERS.V1", "pending_deltas", 1, [None, None])
    assert expected_seconds > 0


def test_the_instruction_is_a_valid_one() -> None:
    assert isinstance(parse_instruction(BLOCKS["instruction"]), InstructionDocument)


def test_the_settings_of_emr_are_good_ones() -> None:
    assert isinstance(parse_settings(BLOCKS["emr"].encode(), "run.md"), EmrSettings)


def test_a_table_without_a_key_keeps_every_row_in_order(tmp_path: Path) -> None:
    assert run_python(tmp_path, BLOCKS["appended"]).strip() == "[3, 1, 3]"


def test_the_event_is_one() -> None:
    event = Event.model_validate_json(BLOCKS["event"])
    assert json.loads(event.render()) == json.loads(BLOCKS["event"])


def test_the_filter_policy_filters_what_there_is() -> None:
    policy = json.loads(BLOCKS["filter"])
    assert set(policy) <= set(Event.model_validate_json(BLOCKS["event"]).attributes)
    assert set(policy["type"]) <= set(EVENT_TYPES)
    assert set(policy["severity"]) <= set(Severity)


def test_readmes_example_prints_what_readme_says(tmp_path: Path) -> None:
    """Without Spark."""
    printed = run(tmp_path, sys.executable, "-c", "import sys; sys.modules['pyspark'] = None\n" + BLOCKS["readme"])
    shown = re.search(r"```python\n.*?^```\n\n```\n(.*?)^```$", (ROOT / "README.md").read_text(), re.S | re.M)
    assert shown is not None
    assert printed == shown[1]


def test_the_first_table_needs_no_spark(tmp_path: Path) -> None:
    run(tmp_path, sys.executable, "-c", "import sys; sys.modules['pyspark'] = None\n" + BLOCKS["python"])


def test_files_of_dms_become_rows_of_their_partitions(tmp_path: Path) -> None:
    output = run(tmp_path, "sh", "-e", "-c", BLOCKS["changes_dms"], LITHIFY_LAKE=str(tmp_path / "lake"))
    assert "region=south: delete of 1 row." in output
    assert "PAID" in output
    assert "1 row" in output.splitlines()[-1]


def test_a_feed_of_debezium_is_followed_from_partition_to_partition(tmp_path: Path) -> None:
    printed = run_python(tmp_path, BLOCKS["changes_debezium"])
    assert printed.strip() == "[{'id': 2, 'region': 'south', 'items': 1}]"


def test_a_feed_of_maxwell_is_read(tmp_path: Path) -> None:
    printed = run_python(tmp_path, BLOCKS["changes_maxwell"])
    assert printed.strip() == "[{'id': 1, 'name': 'Bea', 'change': 8}]"


def test_a_feed_goes_on_without_a_dropped_column(tmp_path: Path) -> None:
    refused, rows = run_python(tmp_path, BLOCKS["changes_dropped"]).strip().rsplit("\n", 1)
    assert "row 2: the update has no 'fax'" in refused
    assert rows == "[{'id': 1, 'name': 'Bea'}]"


def test_the_changes_of_one_feed_go_to_their_tables(tmp_path: Path) -> None:
    printed = run_python(tmp_path, BLOCKS["changes_tables"])
    assert printed.strip() == "[[{'id': 1, 'name': 'pen'}], [{'id': 1, 'usd': 2}]]"


def test_refused_changes_are_quarantined_with_their_reasons(tmp_path: Path) -> None:
    output = run(tmp_path, "sh", "-e", "-c", BLOCKS["changes_quarantine"], LITHIFY_LAKE=str(tmp_path / "lake"))
    *_, appended, told, truncated, keyless = output.splitlines()
    assert "upsert of 1 row." in appended
    assert told.startswith(f"2 changes quarantined in file://{tmp_path}/refused/SHOP.CLIENTS.V1/clients.json-")
    assert (json.loads(truncated)["row"], json.loads(keyless)["row"]) == (2, 3)
    assert json.loads(keyless)["reasons"] == ["the key column 'id' has no value"]


def test_a_global_key_has_one_row(tmp_path: Path) -> None:
    printed = run_python(tmp_path, BLOCKS["changes_global"])
    assert printed.strip() == "[{'id': 1, 'region': 'south', '__source_lsn': 11}]"


def test_a_column_says_what_each_row_does(tmp_path: Path) -> None:
    assert run_python(tmp_path, BLOCKS["changes_ops"]).strip() == "[{'item': 'a', 'left': 4}]"


def test_the_page_is_served(tmp_path: Path) -> None:
    run_python(tmp_path, BLOCKS["python"])
    (tmp_path / "state").mkdir()
    install, serve = BLOCKS["serve"].splitlines()
    assert install == "pip install 'lithify[serve]'"
    environment = {**os.environ, "PATH": f"{PROGRAMS}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    command = shlex.split(f"{serve} --port 0")
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        try:
            url = server.stderr.readline().rpartition(" ")[2].strip()
            with urllib.request.urlopen(f"{url}tables") as page:
                assert b"ACME.ORDERS.V1" in page.read()
        finally:
            server.terminate()
        assert server.wait(30) in (0, -signal.SIGTERM)


def test_a_file_that_is_announced_is_taken_in(tmp_path: Path, mailroom: Mailroom) -> None:
    (tmp_path / "lake").mkdir()
    visits = tmp_path / "landing" / "visits"
    visits.mkdir(parents=True)
    (visits / "1.csv").write_text("id,day\n7,monday\n")
    sqs = boto3.client("sqs", endpoint_url=mailroom.endpoint_url, region_name=REGION)
    sqs.send_message(
        QueueUrl=mailroom.queue_url, MessageBody=json.dumps({"register": {"files": [f"file://{visits}/1.csv"]}})
    )
    places = {
        "LITHIFY_LAKE": str(tmp_path / "lake"),
        "LITHIFY_ENDPOINT_URL": mailroom.endpoint_url,
        "LITHIFY_REGION": REGION,
        "LANDING": f"file://{tmp_path}/landing",
        "ANNOUNCEMENTS": mailroom.queue_url,
    }
    output = run(tmp_path, "sh", "-e", "-c", BLOCKS["landing"], **places)
    assert "1 file taken in, 1 row; 0 refused." in output
    assert "monday" in output


def test_a_folder_is_imported_as_the_page_says(tmp_path: Path) -> None:
    output = run(tmp_path, "sh", "-e", "-c", BLOCKS["importing"], LITHIFY_LAKE=str(tmp_path / "lake"))
    assert "1 row is left out by the first compaction" in output
    assert "sent" in output


@pytest.mark.long
def test_tables_of_other_formats_are_imported_as_the_page_says(tmp_path: Path) -> None:
    output = run(tmp_path, "sh", "-e", "-c", BLOCKS["delta_import"], LITHIFY_LAKE=str(tmp_path / "lake"))
    assert "3 rows in 2 files" in output
    assert "sent" in output
    output = run(tmp_path, "sh", "-e", "-c", BLOCKS["iceberg_import"], LITHIFY_LAKE=str(tmp_path / "lake"))
    assert "3 rows in 2 files" in output
    assert "sent" in output


@pytest.mark.spark
@pytest.mark.slow
def test_code_and_commands_do_what_the_pages_say(tmp_path: Path, mailroom: Mailroom) -> None:
    """One after the other in one folder, as a reader would."""
    run_python(tmp_path, BLOCKS["python"])

    output = run(tmp_path, "sh", "-e", "-c", BLOCKS["terminal"])
    assert "RETURNED" in output

    output = run(tmp_path, "sh", "-e", "-c", BLOCKS["readers"], LITHIFY_LAKE=str(tmp_path / "lake"))
    assert output.count("RETURNED") == 2

    output = run(tmp_path, "sh", "-e", "-c", BLOCKS["published"], LITHIFY_LAKE=str(tmp_path / "lake"))
    assert output.count("RETURNED") == 2, "as Delta Lake and as Apache Iceberg"

    (tmp_path / "instruction.json").write_text(BLOCKS["instruction"])
    output = run(
        tmp_path,
        *("sh", "-e", "-c", BLOCKS["queue"]),
        LITHIFY_LAKE=str(tmp_path / "lake"),
        LITHIFY_STATE=str(tmp_path / "state"),
        LITHIFY_QUEUE_URL=mailroom.queue_url,
        LITHIFY_TOPIC_ARN=mailroom.topic_arn,
        LITHIFY_ENDPOINT_URL=mailroom.endpoint_url,
        LITHIFY_REGION=REGION,
    )
    assert "orders-1995-04-04" in output
    assert "succeeded" in output
    # The dispatcher publishes beside its job runs, so `table.published` comes before or after the end of one.
    assert [each for each in mailroom.event_types() if each.startswith("job_run.")][-1] == "job_run.succeeded"


def run_python(folder: Path, program: str) -> str:
    """What it prints, in this process: the README's program has one of its own."""
    printed = io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(printed):
        exec(program, {})
    return printed.getvalue()


def run(folder: Path, *command: str, **more: str) -> str:
    """What it says. It must succeed."""
    environment = {**os.environ, "PATH": f"{PROGRAMS}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), **more}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
