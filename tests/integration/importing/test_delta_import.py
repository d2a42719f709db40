"""`lithify table import` of tables that `deltalake` has written: the rows are those that it reads itself."""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from compactor import DeltaCatalog
from compactor.importing.table_import import TableImport, read_source
from compactor.model.clock import SystemClock
from compactor.model.names import ContentType
from compactor.publishing.delta_vectors import vector_file
from compactor.storage.location import parse_location
from tests.builders import TABLE_ID
from tests.conftest import Command
from tests.fakes.faulty_store import FaultyStore, Stopped
from tests.integration.importing.conftest import KEYED, OLD, Importing
from tests.published_rows import PARTITIONS, append_round, compact_all, published_lake
from tests.servers import BUCKET, REGION, aws_environment, create_bucket, seaweedfs_server

AT = datetime(2026, 11, 25, 13, 4, 5, 123456, tzinfo=UTC)


def orders(*numbers: int) -> pa.Table:
    """`place` and `day` are the partition; names of places must be encoded in a path."""
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "price": pa.array([Decimal(number) / 4 for number in numbers], pa.decimal128(12, 2)),
            "at": pa.array([AT + timedelta(hours=number) for number in numbers], pa.timestamp("us", tz="UTC")),
            "who": pa.array(
                [None if number % 5 == 0 else {"name": f"n{number}", "tags": [{"tag": "x"}]} for number in numbers],
                pa.struct([("name", pa.string()), ("tags", pa.list_(pa.struct([("tag", pa.string())])))]),
            ),
            "place": ["a b/ü" if number % 2 else "100%" for number in numbers],
            "day": pa.array([date(2026, 11, 1 + number % 2) for number in numbers], pa.date32()),
        }
    )


MAPPED: Mapping[str, Mapping[str, str]] = {
    "by name in the file": {},
    "by physical name": {"delta.columnMapping.mode": "name"},
    "by id": {"delta.columnMapping.mode": "id"},
}


def write(folder: Path, rows: pa.Table, **options: Any) -> None:  # noqa: ANN401
    write_deltalake(folder, rows, partition_by=["place", "day"], **options)


def write_history(folder: Path, configuration: Mapping[str, str]) -> None:
    write(folder, orders(*range(20)), configuration=dict(configuration))
    more = orders(*range(20, 30))
    if "delta.columnMapping.mode" in configuration:  # `deltalake` adds no columns then
        write(folder, more, mode="append")
    else:
        write(folder, more.append_column("note", pa.array(["late"] * 10)), mode="append", schema_mode="merge")
    DeltaTable(folder).delete("id IN (3, 21)")
    DeltaTable(folder).update(updates={"price": "0.5"}, predicate="id = 8")


def add_vectors(folder: Path, dead: Callable[[int], bool]) -> int:
    """Deletes rows by vectors in the next version, as Spark does; `deltalake` only reads them. Returns how many."""
    table, count = DeltaTable(folder), 0
    features = ["deletionVectors", "columnMapping"]
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": features, "writerFeatures": features}
    actions: list[dict[str, Any]] = [{"protocol": protocol}]
    added = [
        line["add"] for path in sorted((folder / "_delta_log").glob("*.json")) for line in lines(path) if "add" in line
    ]
    live = set(pa.table(table.get_add_actions())["path"].to_pylist())
    for number, add in enumerate(each for each in added if each["path"] in live):
        rows = np.array([row for row in range(json.loads(add["stats"])["numRecords"]) if dead(row)], np.int64)
        if len(rows):
            body = vector_file(rows)
            (folder / f"vector-{number}.bin").write_bytes(body)
            vector = {"storageType": "p", "pathOrInlineDv": f"file://{folder}/vector-{number}.bin", "offset": 1}
            vector |= {"sizeInBytes": len(body) - 9, "cardinality": len(rows)}
            removed = {"path": add["path"], "dataChange": True, "partitionValues": add["partitionValues"]}
            actions += [{"remove": removed | {"deletionTimestamp": 1}}, {"add": add | {"deletionVector": vector}}]
            count += len(rows)
    path = folder / "_delta_log" / f"{table.version() + 1:020}.json"
    path.write_text("\n".join(json.dumps(action) for action in actions))
    return count


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def rows_of(table: pa.Table | DeltaTable) -> Counter[str]:
    """Partition values are texts in Lithify; columns that are null in every row count as missing."""
    if isinstance(table, DeltaTable):
        table = pa.RecordBatchReader.from_stream(table.scan()).read_all()
    rows = table.to_pylist()
    return Counter(
        repr(sorted((name, str(value) if name == "day" else value) for name, value in row.items() if value is not None))
        for row in rows
    )


@pytest.mark.parametrize("mapped", MAPPED)
def test_a_table_of_delta_lake_is_imported_row_by_row_and_stays_as_it_was(mapped: str, importing: Importing) -> None:
    write_history(importing.folder, MAPPED[mapped])
    expected = rows_of(DeltaTable(importing.folder))
    assert expected.total() == 28
    before = importing.files()
    planned = importing.answer(*KEYED, "--count-duplicates")
    assert not importing.lake_folder.exists()
    assert (planned["partition_keys"], planned["version"]) == (["place", "day"], 3)
    assert sum(each["rows"] for each in planned["partitions"]) == 28
    assert [each["duplicates"] for each in planned["partitions"]] == [0, 0]
    files = sum(each["files"] for each in planned["partitions"])
    assert sum(each["rewritten"] for each in planned["partitions"]) == len(planned["rewritten_files"])
    if MAPPED[mapped]:
        assert len(planned["rewritten_files"]) == files, "nothing in a file has the table's names"
        assert all("has other names for columns: id and" in each["why"] for each in planned["rewritten_files"])
    else:
        assert planned["rewritten_files"] == []
    assert importing.answer(*KEYED, "--count-duplicates", "--write") == {**planned, "imported": True}
    assert rows_of(importing.compacted()) == expected
    assert importing.files() == before


@pytest.mark.parametrize("mapped", MAPPED)
def test_rows_of_deletion_vectors_stay_deleted_and_other_files_stay_in_place(mapped: str, importing: Importing) -> None:
    write_history(importing.folder, MAPPED[mapped])
    dead = add_vectors(importing.folder, lambda row: row == 1)
    expected = rows_of(DeltaTable(importing.folder))
    assert expected.total() == 28 - dead
    unchecked = "Not checked: the values in"
    assert unchecked in importing.text(*KEYED)
    text = importing.text(*KEYED, "--write")
    assert "is rewritten: it has a deletion vector, which leaves 1 row out" in text
    assert unchecked not in text
    assert f"{28 - dead} rows in" in text
    assert rows_of(importing.compacted()) == expected
    for vector in importing.folder.glob("vector-*.bin"):
        vector.unlink()
    assert "cannot be read as a table of Delta Lake" in importing.refusal(*KEYED)


def test_a_table_whose_columns_were_renamed_or_dropped_has_the_names_of_now(importing: Importing) -> None:
    """As an engine does it: only the schema in the log changes."""
    write(importing.folder, orders(1, 2), configuration={"delta.columnMapping.mode": "name"})
    write(importing.folder, orders(3), mode="append")
    table = DeltaTable(importing.folder)
    (metadata,) = [
        line["metaData"] for line in lines(importing.folder / "_delta_log" / f"{0:020}.json") if "metaData" in line
    ]
    schema = json.loads(metadata["schemaString"])
    by_name = {field["name"]: field for field in schema["fields"]}
    by_name["price"]["name"] = "amount"
    by_name["who"]["type"]["fields"] = [each for each in by_name["who"]["type"]["fields"] if each["name"] != "tags"]
    schema["fields"] = [field for field in schema["fields"] if field["name"] != "at"]
    changed = {"metaData": metadata | {"schemaString": json.dumps(schema)}}
    (importing.folder / "_delta_log" / f"{table.version() + 1:020}.json").write_text(json.dumps(changed))
    expected = rows_of(DeltaTable(importing.folder))
    planned = importing.answer(*KEYED, "--write")
    assert all("has columns that the table has not: " in each["why"] for each in planned["rewritten_files"])
    found = importing.compacted()
    assert rows_of(found) == expected
    assert set(found.schema.names) == {"id", "amount", "who", "place", "day"}


def test_null_partitions_need_a_name_and_an_older_version_can_be_named(importing: Importing) -> None:
    rows = pa.table({"id": [1, 2], "d": ["x", None]})
    write_deltalake(importing.folder, rows, partition_by=["d"])
    write_deltalake(importing.folder, pa.table({"id": [3], "d": ["x"]}), mode="append")
    assert "whose d is null" in importing.refusal(*KEYED)
    planned = importing.answer(*KEYED, "--null-partition", "none", "--version", "0")
    assert [(each["partition"]["d"], each["rows"]) for each in planned["partitions"]] == [("none", 1), ("x", 1)]
    assert "cannot be read as a table of Delta Lake" in importing.refusal("--version", "9")


def test_an_import_again_of_a_newer_version_is_refused_and_of_the_same_one_changes_nothing(
    importing: Importing,
) -> None:
    write_deltalake(importing.folder, orders(1, 2, 3), configuration={"delta.columnMapping.mode": "name"})
    importing.answer(*KEYED, "--write")
    importing.answer(*KEYED, "--write")
    assert importing.lake.table(OLD).stream({}).load().entry_number == 1
    write_deltalake(importing.folder, orders(4), mode="append")
    assert "name the version that was imported with --version" in importing.refusal(*KEYED, "--write")
    importing.answer(*KEYED, "--write", "--version", "0")
    assert importing.lake.table(OLD).stream({}).load().entry_number == 1


@pytest.mark.parametrize("at", range(4))
def test_an_import_that_was_stopped_goes_on_with_files_in_place_and_rewritten_ones(
    at: int, importing: Importing
) -> None:
    write_history(importing.folder, {})
    add_vectors(importing.folder, lambda row: row == 0)
    importing.lake.create_table(OLD, ["place", "day"], primary_keys={"id"})
    store = FaultyStore(importing.lake.store)
    store.stop_at(at)
    source = read_source(parse_location(str(importing.folder)))
    table = DeltaCatalog(store, SystemClock()).table(OLD)
    with pytest.raises(Stopped):
        list(TableImport(source, ContentType.PARQUET).into(table, store.location))
    importing.answer("--write")
    assert rows_of(importing.compacted()) == rows_of(DeltaTable(importing.folder))


def test_without_the_library_the_command_that_installs_it_is_named(
    importing: Importing, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_deltalake(importing.folder, orders(1))
    monkeypatch.setitem(sys.modules, "deltalake", None)
    assert "pip install 'lithify[delta]'" in importing.refusal(*KEYED)


def test_an_imported_table_that_is_published_is_read_again_by_the_library(importing: Importing) -> None:
    write_history(importing.folder, {})
    importing.answer(*KEYED, "--property", "publish=delta", "--write")
    importing.compacted()
    published = DeltaTable(importing.lake_folder / "tables" / OLD / "compacted")
    assert rows_of(published) == rows_of(DeltaTable(importing.folder))


def test_what_lithify_has_published_is_imported_with_its_vectors(importing: Importing) -> None:
    """Every type, partition columns in the files, and a schema that has grown."""
    lake, table = published_lake(importing.folder)
    chance = random.Random(1)
    for turn in range(2):
        for partition in PARTITIONS:
            append_round(table, partition, chance, turn)
        compact_all(lake)
    importing.folder = importing.folder / "tables" / TABLE_ID / "compacted"
    planned = importing.answer(*KEYED, "--write")
    assert any("has a deletion vector" in each["why"] for each in planned["rewritten_files"])
    assert rows_of(importing.compacted()) == rows_of(DeltaTable(importing.folder))


@pytest.mark.parametrize("name", ["a#b?c", "50% ü+"])
def test_a_folder_of_an_unusual_name_is_imported_with_its_vectors(name: str, importing: Importing) -> None:
    lake, table = published_lake(importing.folder)
    chance = random.Random(1)
    for turn in range(2):
        append_round(table, PARTITIONS[0], chance, turn)
        compact_all(lake)
    folder = importing.folder / "tables" / TABLE_ID / "compacted"
    importing.folder = folder.rename(importing.folder.parent / name)
    planned = importing.answer(*KEYED, "--write")
    assert any("has a deletion vector" in each["why"] for each in planned["rewritten_files"])
    assert rows_of(importing.compacted()) == rows_of(DeltaTable(importing.folder))


@pytest.mark.parametrize(("name", "taken"), [("pc%41", "pcA"), ("a%2Fb", "a/b"), ("a\\b", "a/b")])
def test_a_folder_of_a_name_that_the_library_takes_for_another_is_refused(
    name: str, taken: str, importing: Importing
) -> None:
    parent = importing.folder.parent
    write_deltalake(importing.folder, orders(1))
    (parent / taken).parent.mkdir(exist_ok=True)
    write_deltalake(parent / taken, orders(1, 2))
    importing.folder = importing.folder.rename(parent / name)
    assert f"the library takes this name for file://{parent}/{taken}. Copy the table" in importing.refusal(*KEYED)


def test_a_table_with_the_mark_of_column_mapping_and_not_the_feature_has_its_own_names(importing: Importing) -> None:
    """`deltalake` creates such a table, with vectors enabled, and writes plain names."""
    configuration = {"delta.columnMapping.mode": "name", "delta.enableDeletionVectors": "true"}
    write_deltalake(importing.folder, orders(1, 2), configuration=configuration)
    assert importing.answer(*KEYED, "--write")["rewritten_files"] == []
    assert rows_of(importing.compacted()) == rows_of(DeltaTable(importing.folder))


@pytest.mark.servers
def test_a_table_of_delta_lake_on_s3_is_imported_into_a_lake_there(command: Command, tmp_path: Path) -> None:
    with aws_environment(), seaweedfs_server(tmp_path / "seaweedfs") as endpoint_url:
        create_bucket(endpoint_url)
        place = {"AWS_ENDPOINT_URL": endpoint_url, "AWS_ALLOW_HTTP": "true", "AWS_REGION": REGION}
        old, lake_uri = f"s3://{BUCKET}/lake/old #1", f"s3://{BUCKET}/lake"
        encoded = quote(old, safe=":/")
        for rows, mode in ((orders(1, 2, 3), "error"), (orders(4), "append")):
            options = {**place, "AWS_S3_ALLOW_UNSAFE_RENAME": "true"}
            write_deltalake(encoded, rows, partition_by=["place"], mode=mode, storage_options=options)  # type: ignore[call-overload]
        ran = command(
            *("table", "import", OLD, old, "--lake", lake_uri, *KEYED, "--write"),
            *("--s3-endpoint-url", endpoint_url, "--region", REGION),
        )
        assert ran.exit_code == 0, ran.err
        assert "4 rows in 3 files" in ran.out
        lake = DeltaCatalog.open(lake_uri, endpoint_url=endpoint_url, region=REGION)
        found = lake.table(OLD).scan(view="merged").to_table()
        assert rows_of(found) == rows_of(DeltaTable(encoded, storage_options=place))
