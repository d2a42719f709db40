"""`lithify table import` of folders that other programs have written: the rows are theirs, each once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import quote

import duckdb
import polars
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from pyarrow import orc

from compactor import DeltaCatalog, compact
from compactor.importing.hive_folder import read_hive_folder
from compactor.importing.table_import import FILES_PER_DELTA, TableImport
from compactor.model.clock import SystemClock
from compactor.model.errors import Unavailable
from compactor.model.names import ContentType
from compactor.storage.location import parse_location
from compactor.storage.opening import open_store
from tests.conftest import Command
from tests.fakes.faulty_store import FaultyStore, Stopped
from tests.fakes.unruly_engine import UnrulyEngine
from tests.integration.importing.conftest import KEYED, OLD, Importing
from tests.servers import BUCKET, REGION, aws_environment, create_bucket, seaweedfs_server

ROWS = pa.table(
    {
        "id": list(range(60)),
        "price": [number / 4 for number in range(60)],
        "year": ["2025", "2026"] * 30,
        "place": ["a b/ü", "x=y", "100%"] * 20,
    }
)


def write_by_pyarrow(folder: Path) -> None:
    hive = ds.partitioning(pa.schema([("year", pa.string()), ("place", pa.string())]), flavor="hive")
    ds.write_dataset(ROWS, folder, format="parquet", partitioning=hive, max_rows_per_file=4, max_rows_per_group=4)


def write_as_orc(folder: Path) -> None:
    """Under the names that Hive gives, which do not tell the format."""
    for year, place in {(row["year"], row["place"]) for row in ROWS.to_pylist()}:
        chosen = ROWS.filter((pc.field("year") == year) & (pc.field("place") == place)).drop_columns(["year", "place"])
        path = folder / f"year={year}" / f"place={quote(place, safe=' ')}" / "000000_0"
        path.parent.mkdir(parents=True)
        orc.write_table(chosen, path)


def write_by_duckdb(folder: Path) -> None:
    connection = duckdb.connect()
    connection.register("rows", ROWS)
    connection.execute(f"COPY rows TO '{folder}' (FORMAT parquet, PARTITION_BY (year, place))")


def write_by_polars(folder: Path) -> None:
    frame = polars.from_arrow(ROWS)
    assert isinstance(frame, polars.DataFrame)
    frame.write_parquet(folder, partition_by=["year", "place"])


WRITERS: Mapping[str, Callable[[Path], None]] = {
    "pyarrow": write_by_pyarrow,
    "orc": write_as_orc,
    "duckdb": write_by_duckdb,
    "polars": write_by_polars,
}


def counted_rows(table: pa.Table) -> Counter[str]:
    return Counter(repr(row) for row in table.select(ROWS.schema.names).to_pylist())


@pytest.mark.parametrize("writer", WRITERS)
def test_a_folder_of_another_program_is_imported_row_by_row_and_stays_as_it_was(
    writer: str, importing: Importing
) -> None:
    WRITERS[writer](importing.folder)
    before = importing.files()
    options = (*KEYED, "--content-type", "orc") if writer == "orc" else KEYED
    planned = importing.answer(*options)
    assert planned["imported"] is False
    assert not importing.lake_folder.exists(), "nothing is written without --write"
    assert planned["partition_keys"] == ["year", "place"]
    assert len(planned["partitions"]) == 6
    assert sum(each["rows"] for each in planned["partitions"]) == 60
    assert sum(each["bytes"] for each in planned["partitions"]) == sum(len(body) for _, body in before.values())
    assert sum(each["files"] for each in planned["partitions"]) == len(before)
    assert all(figure > 0 for figure in planned["expected"].values())
    imported = importing.answer(*options, "--write")
    assert imported == {**planned, "imported": True}
    assert planned["rewritten_files"] == []
    assert counted_rows(importing.compacted()) == counted_rows(ROWS)
    assert importing.files() == before


def test_files_are_registered_in_place_or_copied(importing: Importing) -> None:
    importing.write("d=1/a.parquet", {"id": [1, 2]})
    assert "every file is registered in place" in importing.text(*KEYED, "--write")
    (delta,) = importing.lake.table(OLD).stream({"d": "1"}).load().state.sources[1].deltas
    assert [file.path for file in delta.files] == [f"file://{importing.folder}/d=1/a.parquet"]
    importing.lake_folder = importing.folder.parent / "other"
    assert "every file is copied into the lake" in importing.text(*KEYED, "--write", "--copy")
    (delta,) = importing.lake.table(OLD).stream({"d": "1"}).load().state.sources[1].deltas
    assert all(file.path.startswith("tables/") for file in delta.files)


def test_an_import_again_changes_nothing_and_one_of_a_changed_file_is_refused(importing: Importing) -> None:
    importing.write("d=1/a.parquet", {"id": [1, 2]})
    importing.answer(*KEYED, "--write")
    importing.answer(*KEYED, "--write")
    importing.answer("--write")
    assert importing.lake.table(OLD).stream({"d": "1"}).load().entry_number == 1
    importing.write("d=1/a.parquet", {"id": [1, 2, 3]})
    importing.write("d=2/a.parquet", {"id": [9]})
    refusal = importing.refusal("--write")
    assert "d=1 was imported from" in refusal
    assert "append what is new" in refusal
    assert importing.lake.table(OLD).stream({"d": "1"}).load().entry_number == 1
    assert importing.lake.table(OLD).stream({"d": "2"}).load().entry_number == 1, "the other partition was imported"


@pytest.mark.parametrize("at", range(12))
def test_an_import_that_was_stopped_before_or_after_any_entry_goes_on(at: int, importing: Importing) -> None:
    write_by_pyarrow(importing.folder)
    lake = importing.lake
    lake.create_table(OLD, ["year", "place"], primary_keys={"id"})
    store = FaultyStore(lake.store)
    store.stop_at(at)
    source = read_hive_folder(open_store(parse_location(str(importing.folder))))
    table = DeltaCatalog(store, SystemClock()).table(OLD)
    with pytest.raises(Stopped):
        list(TableImport(source, ContentType.PARQUET).into(table, store.location))
    importing.answer("--write")
    assert counted_rows(importing.compacted()) == counted_rows(ROWS)


def test_a_store_that_fails_costs_another_call_and_no_row(importing: Importing) -> None:
    write_by_pyarrow(importing.folder)
    importing.lake.create_table(OLD, ["year", "place"], primary_keys={"id"})
    store = FaultyStore(importing.lake.store)
    source = read_hive_folder(open_store(parse_location(str(importing.folder))))

    def imported() -> int:
        table = DeltaCatalog(store, SystemClock()).table(OLD)
        found = TableImport(source, ContentType.PARQUET).into(table, store.location)
        return sum(each.rows or 0 for each in found)

    store.fail("put_if_absent", times=None)
    with pytest.raises(Unavailable):
        imported()
    store.heal()
    store.fail("put_if_absent", when="after", times=3)
    assert imported() == ROWS.num_rows, "a lost answer is settled by reading the entry"
    importing.answer("--write")
    assert counted_rows(importing.compacted()) == counted_rows(ROWS)


def test_of_a_keys_rows_the_one_in_the_last_file_stays_and_the_others_are_counted(importing: Importing) -> None:
    importing.write("d=1/a.parquet", {"id": [1, 2, 3, None, None], "v": [1] * 5})
    importing.write("d=1/b.parquet", {"id": [3, 4], "v": [2] * 2})
    importing.write("d=2/a.parquet", {"id": [3], "v": [3]})
    planned = importing.answer(*KEYED, "--count-duplicates")
    assert [each["duplicates"] for each in planned["partitions"]] == [2, 0]
    importing.answer(*KEYED, "--write")
    rows = sorted((row["d"], row["id"] or 0, row["v"]) for row in importing.compacted().to_pylist())
    assert rows == [("1", 0, 1), ("1", 1, 1), ("1", 2, 1), ("1", 3, 2), ("1", 4, 2), ("2", 3, 3)]


def test_what_cannot_be_imported_is_refused_before_anything_is_written(importing: Importing, tmp_path: Path) -> None:
    importing.write("d=1/a.parquet", {"id": [1], "v": [1]})
    importing.write("d=2/a.parquet", {"id": [1], "d": ["3"]})
    importing.write("d=3/a.parquet", {"other": [1]})
    (importing.folder / "d=4").mkdir()
    (importing.folder / "d=4" / "a.parquet").write_bytes(b"no Parquet")
    refusal = importing.refusal(*KEYED, "--write")
    for part in ("d=2/a.parquet", "d=3/a.parquet lacks primary key column 'id'", "d=4/a.parquet"):
        assert part in refusal, "every reason at once"
    assert not importing.lake_folder.exists()


def test_a_table_with_other_partition_keys_is_not_the_imported_one(importing: Importing) -> None:
    importing.lake.create_table(OLD, ["e"])
    importing.write("d=1/a.parquet", {"id": [1]})
    assert "has the partition keys ['e']" in importing.refusal("--write")


def test_without_a_key_nothing_is_expected_and_the_answer_says_so(importing: Importing) -> None:
    importing.write("a.parquet", {"id": [1]})
    assert importing.answer()["expected"] is None
    assert "no key is checked" in importing.text()
    assert "there is no folder at" in Importing(importing.command, importing.folder / "x").refusal()


def test_many_files_of_a_partition_are_several_deltas_in_order(
    importing: Importing, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert FILES_PER_DELTA > 2
    monkeypatch.setattr("compactor.importing.table_import.FILES_PER_DELTA", 2)
    for number in range(5):
        importing.write(f"{number}.parquet", {"id": [1], "v": [number]})
    importing.answer(*KEYED, "--write")
    deltas = importing.lake.table(OLD).stream({}).load().state.sources[1].deltas
    assert [len(delta.files) for delta in deltas] == [2, 2, 1]
    assert importing.compacted().to_pylist() == [{"id": 1, "v": 4}]


@pytest.mark.servers
def test_a_folder_on_s3_is_registered_where_sessions_may_read_it_and_else_copied(
    command: Command, tmp_path: Path
) -> None:
    write_by_pyarrow(tmp_path / "old")
    with aws_environment(), seaweedfs_server(tmp_path / "seaweedfs") as endpoint_url:
        create_bucket(endpoint_url)
        store = open_store(parse_location(f"s3://{BUCKET}/old", endpoint_url=endpoint_url, region=REGION))
        for path in (tmp_path / "old").rglob("*.parquet"):
            store.put_if_absent(str(path.relative_to(tmp_path / "old")), path.read_bytes())
        place = ("--s3-endpoint-url", endpoint_url, "--region", REGION, *KEYED)

        def run(lake: str, *options: str) -> str:
            lake_uri = f"s3://{BUCKET}/{lake}"
            ran = command("table", "import", OLD, f"s3://{BUCKET}/old", "--lake", lake_uri, *place, *options)
            return " ".join(f"{ran.out} {ran.err}".split())

        refusal = run("one", "--write")
        assert "lies outside of the lake" in refusal
        assert "--copy" in refusal
        assert list(open_store(parse_location(f"s3://{BUCKET}/one", endpoint_url=endpoint_url)).list("")) == []
        assert "copied into the lake" in run("one", "--write", "--copy")
        allowed = ("--property", f"allow_files=s3://{BUCKET}/old")
        assert "registered in place" in run("two", "--write", *allowed)
        for name in ("one", "two"):
            lake = DeltaCatalog.open(f"s3://{BUCKET}/{name}", endpoint_url=endpoint_url, region=REGION)
            compact(OLD, delta_catalog_client=lake, engine=UnrulyEngine())
            assert counted_rows(lake.table(OLD).scan().to_table()) == counted_rows(ROWS)
