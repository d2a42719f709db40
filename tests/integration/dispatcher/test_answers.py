"""What every verb that needs no queue answers, in each form: programs can rely on keys, partitions and the end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from compactor import DeltaCatalog, compact
from tests.conftest import Command
from tests.fakes.unruly_engine import UnrulyEngine

TABLE = "ACME.ORDERS.V1"
DAY = {"day": "a=1, [/]"}
OF_DAY = ("-p", f"day={DAY['day']}")
VERBS = (
    ("status", "--state"),
    ("gc",),
    ("plan",),
    ("rehash", TABLE, "--hash-bucket-count", "3", "--dry-run"),
    ("table", "show"),
    ("table", "show", TABLE),
    ("table", "log", TABLE, *OF_DAY),
    ("table", "scan", TABLE),
    ("table", "scan", TABLE, "--files"),
    ("table", "lookup", TABLE, *OF_DAY, "--key", "id=1"),
    ("table", "verify", TABLE),
)
FORMS = ("text", "json", "jsonl")


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One day whose name looks like an option, a list and markup, compacted; its instruction beside it."""
    folder = tmp_path_factory.mktemp("answers")
    catalog = DeltaCatalog.open(str(folder / "lake"))
    catalog.create_table(TABLE, partition_keys=["day"]).append(DAY, pa.table({"id": [1, 2], "v": ["[/]", '"\n']}))
    compact(TABLE, {"id"}, delta_catalog_client=catalog, hash_bucket_count=2, engine=UnrulyEngine())
    document = {"schema_version": "1", "source_table_id": TABLE, "primary_keys": ["id"]}
    (folder / "document.json").write_text(json.dumps(document))
    return folder


def output_of(command: Command, lake: Path, verb: tuple[str, ...], form: str) -> str:
    if verb[0] == "status":
        arguments: tuple[str, ...] = ("status", "--state", str(lake / "state"))
        (lake / "state").mkdir(exist_ok=True)
    elif verb[0] == "plan":
        arguments = ("plan", str(lake / "document.json"), "--lake", str(lake / "lake"))
    else:
        arguments = (*verb, "--lake", str(lake / "lake"))
    answer = command(*arguments, "--output", form)
    assert answer.exit_code == 0, answer.err
    return answer.out


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_an_answer_ends_in_a_line_end_and_its_keys_are_words(
    command: Command, lake: Path, verb: tuple[str, ...], form: str
) -> None:
    out = output_of(command, lake, verb, form)
    assert out.endswith("\n") or (form == "jsonl" and not out)
    values = {"text": [], "json": [out], "jsonl": out.splitlines()}[form]
    keys = [key for value in values for key, _ in pairs(json.loads(value))]
    assert not [key for key in keys if " " in key and key not in DAY]


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_a_partition_has_one_spelling(command: Command, lake: Path, verb: tuple[str, ...]) -> None:
    in_json = [value for key, value in pairs(json.loads(output_of(command, lake, verb, "json"))) if key == "partition"]
    assert all(partition == DAY for partition in in_json)


def test_rows_come_out_of_json_lines_as_they_went_in(command: Command, lake: Path) -> None:
    rows = [{"id": 1, "v": "[/]", **DAY}, {"id": 2, "v": '"\n', **DAY}]
    scan = ("table", "scan", TABLE)
    lines = [json.loads(line) for line in output_of(command, lake, scan, "jsonl").splitlines()]
    assert sorted(lines, key=lambda row: row["id"]) == rows


def pairs(value: object) -> Iterator[tuple[str, object]]:
    """Every key with its value, at any depth."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key, inner
            yield from pairs(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from pairs(inner)
