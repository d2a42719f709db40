"""`lithify debug log`: every kind of log, entry by entry, with what it folds to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from compactor import DeltaCatalog, compact
from compactor.engine.in_process import InProcessEngine
from tests.conftest import Command

TABLE = "ACME.ORDERS.V1"


@pytest.fixture
def lake(tmp_path: Path) -> str:
    catalog = DeltaCatalog.open(tmp_path / "lake")
    table = catalog.create_table(TABLE, ["day"], properties={"primary_keys": ["id"]})
    for key in range(3):
        table.append({"day": "1"}, pa.table({"id": [key]}))
    compact(TABLE, delta_catalog_client=catalog, engine=InProcessEngine())
    return catalog.location.root_uri


def shown(command: Command, *arguments: str) -> Any:  # noqa: ANN401 (it is JSON)
    result = command("debug", "log", *arguments, "-o", "json")
    assert result.exit_code == 0, result.err
    return json.loads(result.out)


def test_the_log_of_a_stream_shows_its_entries_and_their_fold(command: Command, lake: str) -> None:
    log = shown(command, f"tables/{TABLE}/streams/day=1/log", "--lake", lake)
    assert [each["entry"] for each in log["entries"]] == [1, 2, 3, 4]
    assert log["entries"][-1]["actions"][0]["action"] == "round_committed"
    assert log["fold"]["compacted"]["files"]["1"]["rows"] == 3
    assert len(log["fold"]["sources"]["1"]["deltas"]) == 3


def test_a_declared_schema_is_shown_by_its_columns(command: Command, lake: str) -> None:
    DeltaCatalog.open(lake).create_table("ACME.DECLARED.V1", schema=pa.schema([("id", pa.int64())]))
    fold = shown(command, "tables/ACME.DECLARED.V1/log", "--lake", lake)["fold"]
    assert (fold["schema"], fold["partition_keys"]) == ("id: int64", [])
    assert "arrow_schema" not in fold


def test_earlier_entries_fold_to_what_was_true_then(command: Command, lake: str) -> None:
    log = shown(command, f"tables/{TABLE}/streams/day=1/log", "--lake", lake, "--as-of", "3", "--last", "1")
    assert [each["entry"] for each in log["entries"]] == [3]
    assert log["fold"]["compacted"] is None


def test_definitions_and_sessions_have_logs_too(command: Command, lake: str) -> None:
    assert shown(command, f"tables/{TABLE}/log", "--lake", lake)["fold"]["properties"]["primary_keys"] == ["id"]
    (session,) = (Path(lake.removeprefix("file://")) / "job_runs").glob("*/sessions/*")
    key = session.relative_to(lake.removeprefix("file://"))
    assert shown(command, f"{key}/log", "--lake", lake)["fold"]["end"]["action"] == "session_succeeded"


def test_the_text_has_a_line_for_each_action(command: Command, lake: str) -> None:
    text = command("debug", "log", f"tables/{TABLE}/streams/day=1/log", "--lake", lake).out
    assert text.count('\n  {"action":"delta_added"') == 3
    assert "fold of entries 1 to 4" in text


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("tables/ACME.ORDERS.V1", "is no folder of a log: write one of tables/<table id>/streams/<partition>/log"),
        ("tables/ACME.OTHER.V1/log", "there is no log tables/ACME.OTHER.V1/log"),
    ],
)
def test_a_key_without_a_log_is_refused(command: Command, lake: str, key: str, reason: str) -> None:
    refused = command("debug", "log", key, "--lake", lake)
    assert (refused.exit_code, refused.out) == (2, "")
    assert reason in refused.err
