"""Which files append registers where they are, and which it copies."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactor.catalog.delta_files import DeltaRules
from compactor.catalog.keys import DeltaFilePath
from compactor.lake import DeltaCatalog, Table
from compactor.model.errors import Invalid
from compactor.model.names import Operation
from compactor.storage.location import StoreLocation
from compactor.tabular import TabularFile, read_table
from tests.fakes.manual_clock import ManualClock
from tests.fakes.memory_store import MemoryStore

ON_S3 = StoreLocation("s3://bucket/lake")
ROWS = pa.table({"id": [1, 2], "zip": ["01234", None]})


@pytest.fixture
def orders(lake: DeltaCatalog) -> Table:
    return lake.create_table("ACME.ORDERS.V1")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    pq.write_table(ROWS, tmp_path / "rows.parquet")
    return tmp_path / "rows.parquet"


def check_place(uri: str, *allowed: str, lake: StoreLocation = ON_S3) -> None:
    DeltaRules("ACME.ORDERS.V1", {}, Operation.UPSERT, allow_files=allowed).check_place(lake, uri)


# -- where files may be


def test_a_local_file_is_not_registered_in_a_lake_on_s3(file: Path) -> None:
    table = DeltaCatalog(MemoryStore(ManualClock(), ON_S3), ManualClock()).create_table("ACME.ORDERS.V1")
    for source in (file, f"file://{file}"):
        with pytest.raises(Invalid, match=r"rows\.parquet is on this machine.*s3://bucket/lake.*--copy \(copy=True\)"):
            table.append({}, [source])
    assert table.stream({}).load().entry_number == 0


def test_a_file_outside_of_a_lake_on_s3_is_registered_only_if_its_table_allows_it() -> None:
    with pytest.raises(
        Invalid, match=r"s3://other/in/a\.parquet lies outside .*--copy.* allow_files=s3://other/in .*--allow-files"
    ):
        check_place("s3://other/in/a.parquet")
    check_place("s3://other/in/a.parquet", "s3://other/in")
    check_place("s3://other/in/a.parquet", "s3://third", "s3://other/")
    check_place("s3://other/in/a.parquet", "s3://")
    check_place("s3://bucket/lake/landing/a.parquet")


@pytest.mark.parametrize(
    "uri", ["s3://other/input/a.parquet", "s3://other/in/../b/a.parquet", "s3://bucket/lake2/a.parquet"]
)
def test_a_name_that_only_begins_alike_is_outside(uri: str) -> None:
    with pytest.raises(Invalid, match="lies outside"):
        check_place(uri, "s3://other/in")


def test_a_lake_in_a_folder_registers_what_this_machine_reads() -> None:
    folder = StoreLocation("file:///data/lake")
    check_place("file:///elsewhere/a.parquet", lake=folder)
    check_place("s3://other/in/a.parquet", lake=folder)


def test_the_folders_that_a_table_allows_are_on_s3(lake: DeltaCatalog) -> None:
    with pytest.raises(Invalid, match="allow_files names '/data': write s3://bucket/folder"):
        lake.create_table("ACME.ORDERS.V1", properties={"allow_files": "/data"})
    table = lake.create_table("ACME.ORDERS.V1", properties={"allow_files": "s3://a/b,s3://c"})
    assert table.properties.allow_files == ("s3://a/b", "s3://c")


# -- copies


def test_a_copied_file_is_in_the_lake_byte_by_byte_and_not_needed_any_more(orders: Table, file: Path) -> None:
    body = file.read_bytes()
    delta = orders.append({}, [file], copy=True)
    file.unlink()
    (copied,) = delta.files
    assert DeltaFilePath.parse_or_none(copied.path) is not None
    assert Path(orders.stream({}).uri_of(copied.path).removeprefix("file://")).read_bytes() == body
    assert (copied.rows, copied.size_bytes, copied.etag) == (2, len(body), None)
    assert copied.crc32 is not None
    uri = orders.stream({}).uri_of(copied.path)
    assert read_table(orders.stream({}).location, TabularFile.of(uri, copied)).equals(ROWS)


def test_gzipped_text_is_copied_as_plain_text(orders: Table, tmp_path: Path) -> None:
    text = b"id,zip\n1,01234\n2,\n"
    (tmp_path / "rows.csv.gz").write_bytes(gzip.compress(text))
    (copied,) = orders.append({}, [tmp_path / "rows.csv.gz"], copy=True).files
    assert copied.path.endswith("/1.csv")
    assert copied.size_bytes == len(text)
    assert Path(orders.stream({}).uri_of(copied.path).removeprefix("file://")).read_bytes() == text


def test_a_repeated_copy_is_known_by_its_bytes_and_copies_nothing(
    lake: DeltaCatalog, orders: Table, file: Path
) -> None:
    first = orders.append({}, [file], delta_id="one", copy=True)
    elsewhere = file.rename(file.parent / "again.parquet")
    before = [entry.key for entry in lake.store.list("")]
    assert orders.append({}, [elsewhere], delta_id="one", copy=True) == first
    pq.write_table(ROWS.slice(1), elsewhere)
    with pytest.raises(Invalid, match="'one' was already used, with other content"):
        orders.append({}, [elsewhere], delta_id="one", copy=True)
    assert [entry.key for entry in lake.store.list("")] == before


def test_many_deltas_are_copied_together(orders: Table, file: Path) -> None:
    deltas = orders.append_many([({}, [file], "upsert"), ({}, ROWS, "upsert")], copy=True)
    assert [delta.files[0].path.startswith("tables/") for delta in deltas] == [True, True]


def test_a_file_that_the_table_refuses_is_not_copied(lake: DeltaCatalog, file: Path) -> None:
    table = lake.create_table("ACME.KEYED.V1", schema=pa.schema([("id", pa.int64())]))
    before = [entry.key for entry in lake.store.list("")]
    with pytest.raises(Invalid, match="'zip'"):
        table.append({}, [file], copy=True)
    with pytest.raises(Invalid, match="does not exist"):
        table.append({}, [file.parent / "none.parquet"], copy=True)
    assert [entry.key for entry in lake.store.list("")] == before
