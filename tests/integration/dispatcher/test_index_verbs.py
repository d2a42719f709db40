"""`lithify table lookup` and `lithify table verify`, on a table of two days that is compacted without Spark."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from compactor import DeltaCatalog, compact
from tests.conftest import Command
from tests.fakes.unruly_engine import UnrulyEngine

ORDERS = "ACME.ORDERS.V1"
MONDAY, TUESDAY = {"day": "monday"}, {"day": "tuesday"}


@pytest.fixture
def lithify(tmp_path: Path, command: Command) -> Command:
    catalog = DeltaCatalog.open(str(tmp_path))
    orders = catalog.create_table(ORDERS, partition_keys=["day"])
    for day, status in ((MONDAY, "sent"), (TUESDAY, "lost")):
        orders.append(day, pa.table({"id": [1, 2], "line": ["a", "b"], "status": ["new", "new"]}))
        orders.append(day, pa.table({"id": [2], "line": ["b"], "status": [status]}))
    compact(ORDERS, {"id", "line"}, delta_catalog_client=catalog, hash_bucket_count=2, engine=UnrulyEngine())
    return lambda *arguments: command(*arguments, "--lake", str(tmp_path))


def looked_up(lithify: Command, *arguments: str) -> Any:  # noqa: ANN401 (it is JSON)
    result = lithify("table", "lookup", ORDERS, "--partition", "day=tuesday", "--output", "json", *arguments)
    assert result.exit_code == 0, result.err
    return json.loads(result.out)["row"]


def test_a_row_is_found_by_its_key(lithify: Command) -> None:
    lost = {"id": 2, "line": "b", "status": "lost", "day": "tuesday"}
    assert looked_up(lithify, "--key", "id=2", "--key", "line=b") == lost
    new = {"id": 1, "line": "a", "status": "new", "day": "tuesday"}
    assert looked_up(lithify, "-k", "line=a", "-k", "id=1") == new


def test_a_key_that_is_not_there_is_no_error(lithify: Command) -> None:
    assert looked_up(lithify, "--key", "id=1", "--key", "line=b") is None
    result = lithify("table", "lookup", ORDERS, "--partition", "day=monday", "-k", "id=9", "-k", "line=a")
    assert (result.exit_code, result.out) == (0, "There is no such row.\n")


@pytest.mark.parametrize(
    ("pairs", "reason"),
    [
        (["status=new"], "write COLUMN=VALUE with a column of id, line"),
        (["id"], "write COLUMN=VALUE with a column of id, line"),
        (["id=one", "line=a"], "'one' is no int64"),
        (["id=1", "id=2", "line=a"], "names 'id' twice"),
        (["id=1"], "the key has columns ['id'], but the index was built for ['id', 'line']"),
    ],
)
def test_a_key_that_can_not_be_is_one_sentence_and_exit_code_2(lithify: Command, pairs: list[str], reason: str) -> None:
    keys = [word for pair in pairs for word in ("--key", pair)]
    result = lithify("table", "lookup", ORDERS, "--partition", "day=monday", *keys)
    assert (result.exit_code, result.out) == (2, "")
    assert reason in " ".join(result.err.split())


@pytest.mark.parametrize("options", [(), ("--dry-run",)])
def test_a_rehash_to_more_hash_buckets_than_an_index_may_have_is_refused(
    lithify: Command, options: tuple[str, ...]
) -> None:
    result = lithify("rehash", ORDERS, "--hash-bucket-count", "1000001", *options)
    assert (result.exit_code, result.out) == (2, "")
    assert "hash_bucket_count is 1,000,001: at most 1,000,000 are allowed" in result.err


def test_every_stream_of_a_table_is_audited(lithify: Command) -> None:
    result = lithify("table", "verify", ORDERS, "--output", "json")
    assert result.exit_code == 0, result.err
    streams = json.loads(result.out)["streams"]
    assert [(each["rows"], each["problems"]) for each in streams] == [(2, []), (2, [])]


def test_an_audit_that_finds_something_exits_with_1(lithify: Command, tmp_path: Path) -> None:
    """A compacted file of the wrong rows: their keys are not those that the index points at."""
    import pyarrow.parquet as pq

    file = next(path for path in sorted(tmp_path.rglob("*.parquet")) if "compacted" in str(path))
    rows = pq.read_table(file)
    pq.write_table(rows.set_column(0, "id", pa.array([7] * len(rows), pa.int64())), file)
    result = lithify("table", "verify", ORDERS)
    assert result.exit_code == 1
    assert "day=monday" in result.out
    assert "restore the files and logs that it names; if an index is wrong" in " ".join(result.err.split())


def test_an_audit_of_the_table_names_a_partition_whose_log_is_lost(lithify: Command, tmp_path: Path) -> None:
    """Not one whose first append has written its file and no entry."""
    (folder,) = tmp_path.rglob(ORDERS)
    shutil.rmtree(folder / "streams" / "day=monday")
    (folder / "data" / "day=new" / "delta" / "0a").mkdir(parents=True)
    result = lithify("table", "verify", ORDERS, "--output", "json")
    assert result.exit_code == 1
    found = {each["partition"]["day"]: each["problems"] for each in json.loads(result.out)["streams"]}
    assert {day for day, problems in found.items() if problems} == {"monday"}
    assert len(found) == 2
    assert "shows that it had one: its rows are not read" in found["monday"][0]
