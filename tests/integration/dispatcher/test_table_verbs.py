"""`lithify table`: create with a schema, list, schema, files, drop, scan with filters, and the backlog in show."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactor import DeltaCatalog, compact
from compactor.catalog.definition import TablePropertiesSet
from compactor.catalog.dropping import definition_log
from compactor.catalog.properties import TableProperties
from compactor.lake import Table
from compactor.model.errors import Invalid
from tests.builders import figures_of_stream
from tests.conftest import Command, CommandResult
from tests.fakes.manual_clock import ManualClock
from tests.fakes.unruly_engine import UnrulyEngine

ORDERS = "ACME.ORDERS.V1"
MONDAY, TUESDAY = {"day": "monday"}, {"day": "tuesday"}


class Lithify:
    """`lithify table ...` on one lake."""

    def __init__(self, command: Command, lake: Path) -> None:
        self.command, self.lake = command, lake

    def run(self, *arguments: str) -> CommandResult:
        return self.command("table", *arguments, "--lake", str(self.lake))

    def answer(self, *arguments: str) -> Any:  # noqa: ANN401 (it is JSON)
        result = self.run(*arguments, "--output", "json")
        assert result.exit_code == 0, result.err
        return json.loads(result.out)

    def refusal(self, *arguments: str) -> str:
        result = self.run(*arguments)
        assert (result.exit_code, result.out) == (2, ""), result
        return " ".join(result.err.split())


@pytest.fixture
def lithify(tmp_path: Path, command: Command) -> Lithify:
    return Lithify(command, tmp_path / "lake")


@pytest.fixture
def orders(lake: DeltaCatalog) -> Table:
    """Two days, compacted; a delta pending."""
    orders = lake.create_table(ORDERS, ["day"])
    for day in (MONDAY, TUESDAY):
        orders.append(day, pa.table({"id": [1, 2, 3], "price": [1.5, None, 9.0]}))
        orders.append(day, pa.table({"id": [2], "price": [2.5]}))
    run(lake)
    orders.append(MONDAY, pa.table({"id": [7, 8], "price": [0.0, 0.0]}))
    return orders


def run(lake: DeltaCatalog, max_dead_row_share: float = 0.0) -> None:
    compact(ORDERS, {"id"}, delta_catalog_client=lake, max_dead_row_share=max_dead_row_share, engine=UnrulyEngine())


def test_create_says_that_a_table_exists_already_and_what_it_has_beside(lithify: Lithify) -> None:
    wanted = ("create", ORDERS, "--partition-key", "day", "--schema", "id:int64,day:string")
    assert lithify.run(*wanted).out == f"Created {ORDERS} (partition keys: day).\n"
    assert lithify.run(*wanted).out == f"{ORDERS} exists already (partition keys: day), as it was asked for.\n"
    assert not lithify.answer(*wanted)["created"]

    lithify.answer("set", ORDERS, "primary_keys=id")
    second = lithify.run(*wanted)
    assert second.exit_code == 0
    assert f"It also has the properties primary_keys: `lithify table get {ORDERS}` shows them." in second.out
    assert "primary_keys" not in lithify.run(*wanted, "--property", "primary_keys=id").out
    assert "is already in" in lithify.refusal("create", ORDERS, "--partition-key", "hour")


def test_a_schema_is_declared_in_words_or_by_a_file(lithify: Lithify, tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    created = lithify.answer(
        "create", ORDERS, "--schema", "id:int64, price:decimal(12, 2), at:timestamp[us, UTC], tags:string"
    )
    assert created["schema"] == {
        "id": "int64",
        "price": "decimal128(12, 2)",
        "at": "timestamp[us, tz=UTC]",
        "tags": "string",
    }
    assert [column["column"] for column in lithify.answer("schema", ORDERS)["columns"]] == ["id", "price", "at", "tags"]
    pq.write_table(pa.table({"id": ["x"]}), tmp_path / "rows.parquet")
    assert lithify.answer("create", "ACME.B.V1", "--schema", str(tmp_path / "rows.parquet"))["schema"] == {
        "id": "string"
    }
    (tmp_path / "zips.csv").write_text("id\n01234\n")
    assert lithify.answer("append", "ACME.B.V1", str(tmp_path / "zips.csv"))["rows"] == 1
    assert lithify.answer("schema", "ACME.B.V1")["columns"][0]["type"] == "string"
    pq.write_table(pa.table({"id": [1]}), tmp_path / "numbers.parquet")
    refused = lithify.refusal("append", "ACME.B.V1", str(tmp_path / "numbers.parquet"))
    assert "column 'id' is string in table ACME.B.V1 but int64 in" in refused
    assert "which there is not: write Arrow's names" in lithify.refusal("create", "A.C.V1", "--schema", "id:bigint")
    assert "is no COLUMN:TYPE" in lithify.refusal("create", "A.C.V1", "--schema", "id:int64,price")


def test_tables_are_listed_with_their_sizes(lithify: Lithify, orders: Table) -> None:
    (listed,) = lithify.answer("list")["tables"]
    assert (listed["table_id"], listed["partitions"], listed["rows"], listed["pending_rows"]) == (ORDERS, 2, 6, 2)
    assert listed["bytes"] == sum(
        Path(path).stat().st_size for path in lithify.run("files", ORDERS, "-o", "paths").out.split()
    )


def test_the_backlog_is_told_with_its_age(lithify: Lithify, orders: Table) -> None:
    monday, tuesday = lithify.answer("show", ORDERS)["streams"]
    assert (monday["pending_deltas"], monday["pending_rows"]) == (1, 2)
    entry = orders.stream(MONDAY).log.entry(orders.stream(MONDAY).load().entry_number)
    assert monday["oldest_pending_at_ms"] == entry.at_ms
    assert monday["pending_seconds"] >= 0
    assert (tuesday["pending_deltas"], tuesday["pending_rows"], tuesday["oldest_pending_at_ms"]) == (0, 0, None)
    assert "oldest pending" in lithify.run("show", ORDERS).out


def test_a_source_whose_rows_are_all_in_its_compacted_copy_waits_for_nothing(lake: DeltaCatalog) -> None:
    source = lake.create_table("ACME.SOURCE.V1", partition_keys=["day"])
    source.append(MONDAY, pa.table({"id": [1], "price": [1.0]}))
    assert figures_of_stream(source, MONDAY).pending_deltas == 1
    compact(
        source.table_id,
        {"id"},
        delta_catalog_client=lake,
        destination_compacted_table_id="ACME.COPY.V1",
        engine=UnrulyEngine(),
    )
    nothing = figures_of_stream(source, MONDAY)
    assert (nothing.pending_deltas, nothing.pending_rows, nothing.oldest_pending_at_ms) == (0, 0, None)
    source.append(MONDAY, pa.table({"id": [2], "price": [1.0]}))
    assert figures_of_stream(source, MONDAY).pending_rows == 1


def test_the_oldest_pending_delta_is_found_among_many_entries(
    lake: DeltaCatalog, orders: Table, clock: ManualClock
) -> None:
    for number in range(20):
        clock.sleep(1.0)
        orders.append(TUESDAY, pa.table({"id": [number], "price": [1.0]}))
        if number == 11:
            run(lake)
    stream = orders.stream(TUESDAY)
    figures = figures_of_stream(orders, TUESDAY)
    first = next(
        entry for entry in stream.log.entries(after=0) if entry.actions[0] == stream.load().state.sources[1].deltas[-8]
    )
    assert (figures.pending_deltas, figures.pending_rows, figures.oldest_pending_at_ms) == (8, 8, first.at_ms)


@pytest.mark.parametrize(
    ("conditions", "ids"),
    [
        (["id >= 2"], [2, 3]),
        (["id>1", "price < 5"], [2]),
        (["price is not null", "id != 3"], [1, 2]),
        (["day = monday"], [1, 2, 3]),
        (["price is null"], []),
    ],
)
def test_a_scan_is_filtered_and_counted(lithify: Lithify, orders: Table, conditions: list[str], ids: list[int]) -> None:
    filters = [word for condition in conditions for word in ("--filter", condition)]
    rows = lithify.answer("scan", ORDERS, "-p", "day=monday", *filters)["rows"]
    assert sorted(row["id"] for row in rows) == ids
    assert lithify.answer("scan", ORDERS, "-p", "day=monday", "--count", *filters) == {"rows": len(ids)}


def test_rows_are_counted_in_both_views(lithify: Lithify, orders: Table) -> None:
    assert lithify.run("scan", ORDERS, "--count").out == "6 rows\n"
    assert lithify.run("scan", ORDERS, "--count", "--view", "merged").out == "8 rows\n"


def test_a_filter_that_fits_nothing_is_refused(lithify: Lithify, orders: Table) -> None:
    assert "there is no column 'idd' (there are: id, price, day)" in lithify.refusal(
        "scan", ORDERS, "--filter", "idd = 1"
    )
    assert "'one' is no int64, which column 'id' is" in lithify.refusal("scan", ORDERS, "--filter", "id = one")
    assert "write COLUMN = VALUE" in lithify.refusal("scan", ORDERS, "--filter", "id")


def test_live_files_are_listed_for_other_readers(lithify: Lithify, orders: Table) -> None:
    result = lithify.run("files", ORDERS, "--output", "paths")
    assert result.exit_code == 0, result.err
    paths = result.out.splitlines()
    assert len(paths) == 2
    rows = sorted((row["id"], row["price"]) for row in orders.scan().to_table().to_pylist())
    with duckdb.connect() as connection:
        assert sorted(connection.read_parquet(paths, union_by_name=True).fetchall()) == rows
    assert sorted(polars.scan_parquet(paths).collect().rows()) == rows
    assert lithify.run("files", ORDERS, "-p", "day=monday", "--output", "paths").out.splitlines() == paths[:1]
    (_, tuesday) = lithify.answer("files", ORDERS)["files"]
    assert (tuesday["partition"], tuesday["path"], tuesday["dead_rows"]) == (TUESDAY, paths[1], 0)


def test_files_with_dead_rows_are_never_passed_off_as_clean(
    lake: DeltaCatalog, lithify: Lithify, orders: Table
) -> None:
    orders.append(MONDAY, pa.table({"id": [1]}), operation="delete")
    run(lake, max_dead_row_share=0.9)
    assert "1 file of ACME.ORDERS.V1 with 1 dead row would be read wrongly" in lithify.refusal(
        "files", ORDERS, "--output", "paths"
    )
    marked = [file for file in lithify.answer("files", ORDERS)["files"] if file["deletion_vector"]]
    assert [file["dead_rows"] for file in marked] == [1]
    assert Path(marked[0]["deletion_vector"]).exists()
    run(lake)
    assert lithify.run("files", ORDERS, "--output", "paths").exit_code == 0


def test_dropping_a_table_says_what_goes_and_does_it_only_when_told(
    lake: DeltaCatalog, lithify: Lithify, orders: Table, tmp_path: Path
) -> None:
    before = [entry.key for entry in lake.store.list("tables/")]
    foretold = lithify.answer("drop", ORDERS)
    assert (foretold["dropped"], len(foretold["partitions"])) == (False, 2)
    assert "To drop ACME.ORDERS.V1 (2 partitions, " in lithify.run("drop", ORDERS).out
    assert [entry.key for entry in lake.store.list("tables/")] == before
    other = lake.create_table("ACME.OTHER.V1")

    answer = lithify.answer("drop", ORDERS, "--delete")
    assert (answer["dropped"], answer["partitions"]) == (True, foretold["partitions"])

    assert lake.tables() == [other.table_id]
    assert {entry.key for entry in lake.store.list("tables/")} >= set(before)
    assert "table ACME.ORDERS.V1 was dropped at " in lithify.refusal("scan", ORDERS)
    again = lithify.answer("drop", ORDERS, "--delete")
    assert (again["partitions"], again["files"], again["bytes"]) == ([], answer["files"], answer["bytes"])
    for options in ([], ["--delete"]):
        said = lithify.run("drop", ORDERS, *options).out
        assert f"and {answer['files']} files, " in said
        assert "are left of it: from " in said
    assert "there is no table ACME.NEVER.V1" in lithify.refusal("drop", "ACME.NEVER.V1")
    lake.create_table("ACME.ORDERS.V2", ["day"])


def test_a_table_whose_retention_ends_after_the_last_date_is_dropped(
    lake: DeltaCatalog, lithify: Lithify, orders: Table, clock: ManualClock
) -> None:
    longer = TablePropertiesSet(properties=TableProperties(retention_seconds=300_000_000_000))
    definition_log(lake.store, ORDERS, clock).append(lambda _: [longer])
    dropped = lithify.run("drop", ORDERS, "--delete")
    assert dropped.exit_code == 0
    assert "From 9999-12-31 23:59:59 UTC on, lithify gc --delete deletes " in dropped.out


def test_dropping_partitions_says_what_goes_and_does_it_only_when_told(
    lake: DeltaCatalog, lithify: Lithify, orders: Table
) -> None:
    assert "To drop 1 partition, " in lithify.run("drop", ORDERS, "-p", "day=monday").out
    assert orders.partitions() == [MONDAY, TUESDAY]
    dropped = lithify.run("drop", ORDERS, "-p", "day=monday", "--delete").out
    assert dropped.splitlines()[0].startswith("day=monday: ")
    assert "Dropped 1 partition, " in dropped
    assert "UTC on, lithify gc --delete deletes " in dropped
    assert orders.partitions() == [TUESDAY]
    assert "are dropped already" in lithify.run("drop", ORDERS, "-p", "day=monday", "--delete").out
    assert "--purge is of a whole table" in lithify.refusal("drop", ORDERS, "-p", "day=tuesday", "--purge")


def test_a_purge_says_what_goes_and_frees_the_id(lake: DeltaCatalog, lithify: Lithify, orders: Table) -> None:
    assert "Nothing was purged. To delete " in lithify.run("drop", ORDERS, "--purge").out
    assert "add --nothing-runs" in lithify.refusal("drop", ORDERS, "--purge", "--delete")
    assert lake.tables() == [ORDERS]
    assert lithify.answer("drop", ORDERS, "--purge", "--delete", "--nothing-runs")["purged"] is True
    assert lake.tables() == lake.dropped_tables() == []
    lake.create_table(ORDERS)


def test_a_copied_folder_is_named_beside_the_tables_and_left_alone_by_gc(
    lake: DeltaCatalog, lithify: Lithify, orders: Table, tmp_path: Path, command: Command
) -> None:
    tables = Path(lake.location.root_uri.removeprefix("file://")) / "tables"
    shutil.copytree(tables / ORDERS, tables / "ACME.BACKUP.V1")
    answer = lithify.answer("list")
    assert [each["table_id"] for each in answer["tables"]] == [ORDERS]
    assert "ACME.BACKUP.V1 is a copy of table ACME.ORDERS.V1" in answer["no_tables"][0]
    shutil.copytree(tables / ORDERS, tables / "junk")
    for verb in ("list", "show"):
        lines = lithify.run(verb).out.splitlines()
        assert [line.split()[-1] for line in lines if "is a copy of table" in line] == ["reads", "reads"], lines
        assert not any(line.startswith(("ACME.BACKUP", "junk")) for line in lines)
    assert lithify.answer("show")["tables"] == [ORDERS]
    collected = command("gc", "--lake", lake.location.root_uri, "--delete", "--grace-hours", "0", "--nothing-runs")
    assert "ACME.BACKUP.V1 is a copy of table ACME.ORDERS.V1" in collected.err
    assert {path.relative_to(tables / ORDERS) for path in (tables / ORDERS).rglob("*")} <= {
        path.relative_to(tables / "ACME.BACKUP.V1") for path in (tables / "ACME.BACKUP.V1").rglob("*")
    }


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("scan", ORDERS, "-p", "day=friday"), "has no partition day=friday: there are day=monday, day=tuesday"),
        (("files", ORDERS, "-p", "day=friday"), "has no partition day=friday"),
        (("log", ORDERS, "-p", "day=friday"), "has no partition day=friday"),
        (("verify", ORDERS, "-p", "day=friday"), "has no partition day=friday"),
        (("scan", "acme.orders.V1"), "there is no table acme.orders.V1 in"),
        (("scan", "acme.orders.V1"), "did you mean ACME.ORDERS.V1? Ids are told apart by case"),
        (("create", "ACME.ORDERS.v2"), "'ACME.ORDERS.v2' is not a table id (did you mean ACME.ORDERS.V2?)"),
    ],
)
def test_a_missing_table_is_named(lithify: Lithify, orders: Table, arguments: tuple[str, ...], sentence: str) -> None:
    assert sentence in lithify.refusal(*arguments)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("scan", ORDERS, "--limit", "9" * 30), "Invalid value for '--limit': "),
        (("scan", ORDERS, "--filter", "day = \udcff"), r"'\udcff' is no string, which column 'day' is"),
        (("create", "A.B.V1", "--schema", f"a:decimal({'9' * 20}, 2)"), "column 'a' has type 'decimal(9"),
        (("create", "A.B.V1", "--schema", "a:decimal(5, -99999999999999)"), "column 'a' has type 'decimal(5, -9"),
        (("create", "A.B.V1", "--schema", "\udcff:int64"), "is no COLUMN:TYPE"),
        (("set", ORDERS, f"compact_when={'[' * 300 + ']' * 300}"), "begins as JSON and is none: recursion limit"),
        (("set", ORDERS, f"compact_when={'[' * 100_000}"), "begins as JSON and is none: recursion limit"),
    ],
)
def test_what_is_too_large_or_no_text_is_refused(
    lithify: Lithify, orders: Table, arguments: tuple[str, ...], sentence: str
) -> None:
    assert sentence in lithify.refusal(*arguments)


@pytest.mark.parametrize("verb", ["show", "list", "scan", "files", "schema"])
def test_a_lake_that_does_not_exist_is_an_error(command: Command, tmp_path: Path, verb: str) -> None:
    named = () if verb in ("show", "list") else (ORDERS,)
    result = command("table", verb, *named, "--lake", str(tmp_path / "nowhere"))
    assert (result.exit_code, result.out) == (2, "")
    assert "there is no lake at" in result.err
    assert command("gc", "--lake", str(tmp_path / "nowhere")).exit_code == 2


@pytest.mark.parametrize("verb", [("status",), ("status", "orders"), ("cancel", "orders"), ("retry", "orders")])
def test_a_state_that_does_not_exist_is_an_error(command: Command, tmp_path: Path, verb: tuple[str, ...]) -> None:
    result = command(*verb, "--state", str(tmp_path / "nowhere"))
    assert (result.exit_code, result.out) == (2, "")
    assert "there is no state at" in result.err


def test_set_and_get_say_what_a_table_knows_about_itself(lithify: Lithify, orders: Table) -> None:
    """`orders` makes the lake."""
    keys = ("primary_keys=id", "sort_keys=price:descending", "destination_compacted_table_id=ACME.CHEAPEST.V1")
    answered = lithify.answer("set", ORDERS, *keys, "gc_grace_seconds=86400")
    assert answered["properties"]["primary_keys"] == ["id"]
    lithify.answer("set", ORDERS, "state=offline", "--unset", "gc_grace_seconds")
    got = lithify.answer("get", ORDERS)["properties"]
    assert got["sort_keys"] == [{"column": "price", "order": "descending"}]
    assert (got["state"], got["gc_grace_seconds"]) == ("offline", None)
    assert lithify.answer("get", ORDERS, "state")["properties"] == {"state": "offline"}
    text = lithify.run("get", ORDERS).out
    assert "primary_keys" in text
    assert "offline" in text


def test_set_refuses_with_every_reason_and_changes_nothing(lithify: Lithify, orders: Table) -> None:
    refusal = lithify.refusal("set", ORDERS, "private_columns=day", "retention_seconds=5", "state=offline")
    assert "private column 'day' is a partition key" in refusal
    assert "retention_seconds is 5" in refusal
    assert lithify.answer("get", ORDERS, "state")["properties"] == {"state": "online"}
    assert "not PROPERTY=VALUE" in lithify.refusal("set", ORDERS, "state")
    assert "nothing to set" in lithify.refusal("set", ORDERS)
    assert "no property 'stat'" in lithify.refusal("get", ORDERS, "stat")


def test_set_refuses_other_keys_than_those_of_the_compacted_rows(
    lake: DeltaCatalog, lithify: Lithify, orders: Table
) -> None:
    wrong = lithify.refusal("set", ORDERS, "primary_keys=idd", "sort_keys=price")
    assert "day=monday was compacted with primary_keys=id and by arrival: keep these" in wrong
    assert lithify.answer("get", ORDERS, "primary_keys")["properties"] == {"primary_keys": None}
    lithify.answer("set", ORDERS, "primary_keys=id", "sort_keys=partition_stream_position")
    run(lake)


def test_the_log_shows_the_id_of_each_delta_that_retract_takes(lithify: Lithify, orders: Table) -> None:
    pending = orders.append(MONDAY, pa.table({"id": [9], "price": [0.0]}))
    assert f"delta_added {pending.delta_id} (upsert)" in lithify.run("log", ORDERS, "-p", "day=monday").out


def test_a_verb_of_one_partition_asks_for_it_as_it_is_written(lithify: Lithify, orders: Table) -> None:
    for verb in (("log", ORDERS), ("lookup", ORDERS, "--key", "id=1"), ("append", ORDERS, "more.parquet")):
        assert "which partition of ACME.ORDERS.V1? Add --partition 'day=VALUE'" in lithify.refusal(*verb)


def test_compact_names_partitions_that_exist_and_the_right_key(command: Command, lake: DeltaCatalog) -> None:
    lake.create_table(ORDERS, ["day"]).append(MONDAY, pa.table({"id": [1]}))
    wrong = (("day=friday", "has no partition day=friday: there are day=monday"), ("dya=monday", "is no partition key"))
    for partition, sentence in wrong:
        result = command("compact", ORDERS, "-k", "id", "-p", partition, "--lake", lake.location.root_uri)
        assert (result.exit_code, sentence in result.err) == (2, True), result.err


def test_create_takes_properties(lithify: Lithify) -> None:
    created = lithify.answer(
        "create", ORDERS, "--property", "primary_keys=a,b", "--property", "retention_seconds=2592000"
    )
    assert created["properties"] == {"primary_keys": ["a", "b"], "retention_seconds": 2592000}
    assert "primary_keys" in lithify.refusal("create", ORDERS, "--property", "primary_keys=a")


def test_a_stream_version_is_made_filled_released_and_deprecated(
    lithify: Lithify, orders: Table, tmp_path: Path
) -> None:
    monday = ("--partition", "day=monday")
    made = lithify.answer("new-version", ORDERS, *monday)
    assert (made["stream_version"], made["state"]) == (2, "unreleased")
    pq.write_table(pa.table({"id": [1], "price": [3.5]}), tmp_path / "second.parquet")
    lithify.answer("append", ORDERS, str(tmp_path / "second.parquet"), *monday, "--stream-version", "2")
    assert lithify.answer("release", ORDERS, *monday, "--stream-version", "2")["state"] == "active"
    states = {number: each.state for number, each in orders.stream(MONDAY).load().state.sources.items()}
    assert states == {1: "deprecated", 2: "active"}
    assert "deprecated and cannot come back" in lithify.refusal("release", ORDERS, *monday, "--stream-version", "1")
    assert "there is no stream version 7" in lithify.refusal("deprecate", ORDERS, *monday, "--stream-version", "7")
    refusal = lithify.refusal("deprecate", ORDERS, *monday, "--stream-version", "2")
    assert "stream version 2 has 1 row that no compaction has" in refusal
    assert lithify.answer("deprecate", ORDERS, *monday, "--stream-version", "2", "--abandon")["state"] == "deprecated"
    with pytest.raises(Invalid, match="no stream version is active"):
        orders.append(MONDAY, pa.table({"id": [1], "price": [1.0]}))


def test_a_compacted_stream_version_is_deprecated_and_no_longer_compacted(
    lithify: Lithify, orders: Table, lake: DeltaCatalog
) -> None:
    tuesday = ("--partition", "day=tuesday")
    before = orders.scan(TUESDAY).to_table()
    assert lithify.answer("deprecate", ORDERS, *tuesday, "--stream-version", "1")["state"] == "deprecated"
    lithify.answer("deprecate", ORDERS, *tuesday, "--stream-version", "1")
    result = compact(ORDERS, {"id"}, delta_catalog_client=lake, engine=UnrulyEngine())
    assert [session.partition for session in result.sessions] == [MONDAY]
    assert orders.scan(TUESDAY).to_table().equals(before)


def test_a_restore_says_what_it_does_and_does_it_only_when_told(
    lake: DeltaCatalog, lithify: Lithify, orders: Table, clock: ManualClock
) -> None:
    log = lithify.answer("log", ORDERS, "-p", "day=monday")["entries"]
    rows = lithify.answer("scan", ORDERS, "-p", "day=monday")["rows"]
    orders.append(MONDAY, pa.table({"id": [99]}))
    compact(ORDERS, {"id"}, delta_catalog_client=lake, engine=UnrulyEngine())
    restore = ("restore", ORDERS, "-p", "day=monday", "--as-of", str(len(log)))
    foretold = lithify.answer(*restore)
    assert (foretold["restored"], foretold["partitions"][0]["outcome"]) == (False, "restored")
    assert "To restore 1 partition, add --write." in lithify.run(*restore).out
    assert lithify.answer("scan", ORDERS, "-p", "day=monday")["rows"] != rows
    assert "Restored 1 partition." in lithify.run(*restore, "--write").out
    assert lithify.answer("scan", ORDERS, "-p", "day=monday")["rows"] == rows
    again = lithify.run(*restore, "--write").out
    assert "1 partition was restored to this time before, and what was appended since stays" in again
    assert "which is still to come" in lithify.refusal("restore", ORDERS, "--as-of", "2999-01-01")


def test_append_says_what_its_writer_probably_did_not_mean(
    lithify: Lithify, lake: DeltaCatalog, tmp_path: Path
) -> None:
    lake.create_table(ORDERS)
    (tmp_path / "changes.csv").write_text("Op,id\nI,1\nD,2\n")
    told = lithify.run("append", ORDERS, str(tmp_path / "changes.csv")).out.splitlines()
    assert [line.partition(" ")[0] for line in told] == ["Delta", "Warning:"]
    assert "column 'Op'" in told[1]
    assert "('I' 1, 'D' 1)" in told[1]
    assert len(lithify.answer("append", ORDERS, str(tmp_path / "changes.csv"))["warnings"]) == 1


def test_append_copies_files_where_it_is_asked_to(lithify: Lithify, lake: DeltaCatalog, tmp_path: Path) -> None:
    table = lake.create_table(ORDERS)
    file = tmp_path / "rows.csv"
    file.write_text("id\n1\n")
    lithify.answer("append", ORDERS, str(file), "--copy")
    file.unlink()
    active = table.stream({}).load().state.active
    assert active is not None
    assert [each.path.partition("/")[0] for each in active.deltas[0].files] == ["tables"]


def test_a_partition_without_a_value_is_refused_unless_it_is_written_as_the_empty_text(
    lithify: Lithify, lake: DeltaCatalog, tmp_path: Path
) -> None:
    table = lake.create_table(ORDERS, ["day"])
    (tmp_path / "rows.csv").write_text("id\n1\n")
    for verb in (("append", ORDERS, str(tmp_path / "rows.csv")), ("scan", ORDERS), ("log", ORDERS)):
        refused = lithify.refusal(*verb, "--partition", "day=")
        assert "--partition 'day=' has no value: if it is the empty text, write --partition 'day=\"\"'" in refused
    assert table.partitions() == []
    lithify.answer("append", ORDERS, str(tmp_path / "rows.csv"), "--partition", 'day=""')
    assert table.partitions() == [{"day": ""}]
