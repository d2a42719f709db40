"""What materialize writes is the same whether rows pass undecoded, or by way of Arrow, or some this way, some that."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactor import DeltaCatalog, compact
from compactor.catalog.catalog import Table
from compactor.errors import Corrupt, Invalid, Unavailable
from compactor.steps import materialize
from compactor.tabular import FileMeasure, TabularWriter
from compactor.verify import verify
from tests.fakes.in_process_spark import in_process_spark

ORDERS = "ACME.ORDERS.V1"
Row = dict[str, object]


@pytest.fixture
def lake(tmp_path: Path) -> DeltaCatalog:
    return DeltaCatalog.open(tmp_path / "lake")


@pytest.fixture
def orders(lake: DeltaCatalog) -> Table:
    return lake.create_table(ORDERS)


@pytest.fixture
def undecoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few the rows of a file are, they pass undecoded."""
    monkeypatch.setattr(materialize, "ROW_GROUP_BYTES_MIN", 0)


def rows_of(first: int, last: int, time: int) -> pa.Table:
    ids = range(first, last)
    notes = [None if number % 5 == 0 else f"note {number} at {time}" for number in ids]
    return pa.table({"id": ids, "note": notes, "status": ["new", "paid"] * (len(ids) // 2), "time": [time] * len(ids)})


def run(lake: DeltaCatalog, rows_per_compacted_file: int = 100_000, hash_bucket_count: int = 3) -> None:
    compact(
        ORDERS,
        {"id"},
        [("time", "ascending")],
        delta_catalog_client=lake,
        hash_bucket_count=hash_bucket_count,
        rows_per_compacted_file=rows_per_compacted_file,
        spark=in_process_spark(),
    )


def compacted_rows(orders: Table) -> list[Row]:
    return sorted(orders.scan().to_table().to_pylist(), key=lambda row: str(row["id"]).zfill(9))


def latest(*tables: pa.Table) -> list[Row]:
    """Of tables in the order of their times."""
    found = {row["id"]: row for table in tables for row in table.to_pylist()}
    return [found[number] for number in sorted(found)]


def row_groups(orders: Table) -> list[list[int]]:
    """Rows of each row group of each compacted file."""
    compacted = orders.stream({}).load().state.compacted
    assert compacted is not None
    paths = [orders.stream({}).uri_of(file.path).removeprefix("file://") for file in compacted.files.values()]
    footers = [pq.read_metadata(path) for path in paths]
    return [[each.row_group(number).num_rows for number in range(each.num_row_groups)] for each in footers]


@pytest.mark.usefixtures("undecoded")
def test_each_source_becomes_a_row_group_and_files_are_cut_where_they_are_full(
    lake: DeltaCatalog, orders: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(materialize, "PIECE_ROWS_MAX", 60)
    first, second = rows_of(0, 200, 1), rows_of(100, 250, 2)
    orders.append({}, first)
    orders.append({}, second)
    run(lake, rows_per_compacted_file=130)
    assert compacted_rows(orders) == latest(first, second)
    # One task has 100 rows of the first source, the other 150 of the second; row groups of a source are of one size.
    assert row_groups(orders) == [[50, 50], [50, 50, 30], [20]]
    assert verify(orders.stream({})).problems == ()


def test_small_sources_share_a_row_group_and_large_ones_stand_between(
    lake: DeltaCatalog, orders: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    small, large, smaller = rows_of(0, 10, 1), rows_of(10, 2_000, 1), rows_of(2_000, 2_004, 1)
    for table in (small, small, large, smaller, smaller):
        orders.append({}, table)
    monkeypatch.setattr(materialize, "ROW_GROUP_BYTES_MIN", 10_000)
    run(lake)
    assert compacted_rows(orders) == latest(small, large, smaller)
    assert row_groups(orders) == [[10, 1_990, 4]]


@pytest.mark.usefixtures("undecoded")
def test_a_bucket_that_nothing_arrives_for_keeps_its_rows_when_their_file_is_rewritten(
    lake: DeltaCatalog, orders: Table
) -> None:
    table, late = rows_of(0, 1_000, 1), rows_of(500, 502, 2)
    orders.append({}, table)
    run(lake, hash_bucket_count=8)
    orders.append({}, late)
    run(lake, hash_bucket_count=8)
    assert compacted_rows(orders) == latest(table, late)
    assert verify(orders.stream({})).problems == ()


@pytest.mark.usefixtures("undecoded")
def test_a_file_whose_pages_only_arrow_reads_goes_the_other_way(
    lake: DeltaCatalog, orders: Table, tmp_path: Path
) -> None:
    table, more = rows_of(0, 100, 1), rows_of(50, 150, 2)
    pq.write_table(table, tmp_path / "of-version-2.parquet", data_page_version="2.0")
    orders.append({}, [str(tmp_path / "of-version-2.parquet")])
    orders.append({}, more)
    run(lake)
    assert compacted_rows(orders) == latest(table, more)


@pytest.mark.usefixtures("undecoded")
def test_rows_of_an_older_schema_go_the_other_way(lake: DeltaCatalog, orders: Table) -> None:
    table, wider = rows_of(0, 100, 1), rows_of(50, 150, 2).append_column("extra", pa.array([1.5] * 100))
    orders.append({}, table)
    orders.append({}, wider)
    run(lake)
    assert compacted_rows(orders) == latest(table.append_column("extra", pa.nulls(100, pa.float64())), wider)


@pytest.mark.usefixtures("undecoded")
def test_a_damaged_delta_is_bad_input_and_a_damaged_compacted_file_is_corrupt(
    lake: DeltaCatalog, orders: Table, tmp_path: Path
) -> None:
    path = tmp_path / "orders.parquet"
    pq.write_table(rows_of(0, 100, 1), path, compression="snappy")
    whole = path.read_bytes()
    orders.append({}, [str(path)])
    path.write_bytes(_damaged(whole))
    with pytest.raises(Invalid, match=r"orders\.parquet cannot be read"):
        run(lake)
    path.write_bytes(whole)
    run(lake)
    compacted = orders.stream({}).load().state.compacted
    assert compacted is not None
    file = Path(orders.stream({}).uri_of(compacted.files[1].path).removeprefix("file://"))
    file.write_bytes(_damaged(file.read_bytes()))
    orders.append({}, rows_of(0, 2, 2))
    with pytest.raises(Corrupt, match="cannot be read"):
        run(lake)


def test_a_file_that_cannot_be_finished_fails_the_round_though_later_ones_can(
    lake: DeltaCatalog, orders: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    close, closed = TabularWriter.close, list[str]()

    def close_but_the_first(writer: TabularWriter) -> FileMeasure:
        closed.append("once")
        if len(closed) == 1:
            raise Unavailable("the disk is full")
        return close(writer)

    orders.append({}, rows_of(0, 1_000, 1))
    monkeypatch.setattr(TabularWriter, "close", close_but_the_first)
    with pytest.raises(Unavailable, match="the disk is full"):
        run(lake, rows_per_compacted_file=300)
    assert orders.stream({}).load().state.compacted is None
    run(lake, rows_per_compacted_file=300)
    assert compacted_rows(orders) == latest(rows_of(0, 1_000, 1))


def _damaged(body: bytes) -> bytes:
    """With notes that do not decompress."""
    at = body.index(b"note 1")
    return body[:at] + b"\xff" * 60 + body[at + 60 :]
