"""What materialize writes is the same whether rows pass undecoded, or by way of Arrow, or some this way, some that."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactor import DeltaCatalog, compact
from compactor.catalog.keys import CompactedFilePath, DeltaFilePath
from compactor.engine.protocol import Engine
from compactor.index.keys import DeletionVectorPath, IndexFilePath
from compactor.lake import Table
from compactor.maintenance.named_files import DATA_KEYS
from compactor.maintenance.verify import verify
from compactor.model.errors import Corrupt, Invalid, Unavailable
from compactor.steps import materialize, output_files, parts
from compactor.storage.keys import parse_any
from compactor.tabular import FileMeasure, TabularWriter
from compactor.tabular.parquet_pages import numbers
from compactor.tabular.parquet_pages import row_groups as row_groups_module
from compactor.tabular.parquet_pages.page_reader import ColumnType, ReadColumn, read_column
from compactor.tabular.parquet_pages.page_writer import ColumnChunk, encode_rows
from tests.fakes.unruly_engine import UnrulyEngine

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


def scattered_rows(first: int, last: int, count: int, time: int) -> pa.Table:
    """So many of these rows, from all over them."""
    return rows_of(first, last, time).take(np.arange(0, last - first, (last - first) // count))


def run(
    lake: DeltaCatalog,
    rows_per_compacted_file: int = 100_000,
    hash_bucket_count: int = 3,
    max_dead_row_share: float = 0.0,
    engine: Engine | None = None,
    own_parquet_pages: bool = True,
    page_check_share: float = 1.0,
) -> None:
    compact(
        ORDERS,
        {"id"},
        [("time", "ascending")],
        delta_catalog_client=lake,
        hash_bucket_count=hash_bucket_count,
        rows_per_compacted_file=rows_per_compacted_file,
        max_dead_row_share=max_dead_row_share,
        own_parquet_pages=own_parquet_pages,
        page_check_share=page_check_share,
        engine=engine or UnrulyEngine(),
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
    path.write_bytes(_damaged(whole))
    orders.append({}, [str(path)], delta_id="damaged")
    with pytest.raises(Invalid, match=r"orders\.parquet cannot be read"):
        run(lake)
    orders.retract({}, "damaged")
    path.write_bytes(whole)
    orders.append({}, [str(path)])
    run(lake)
    compacted = orders.stream({}).load().state.compacted
    assert compacted is not None
    file = Path(orders.stream({}).uri_of(compacted.files[1].path).removeprefix("file://"))
    file.write_bytes(_damaged(file.read_bytes()))
    orders.append({}, rows_of(0, 2, 2))
    with pytest.raises(Corrupt, match="cannot be read"):
        run(lake)


@pytest.mark.usefixtures("undecoded")
@pytest.mark.parametrize("own_pages", [True, False])
@pytest.mark.parametrize("max_dead_row_share", [0.0, 0.3])
def test_files_that_are_too_large_to_decode_are_written_part_by_part_and_the_index_knows_where(
    lake: DeltaCatalog, orders: Table, monkeypatch: pytest.MonkeyPatch, max_dead_row_share: float, own_pages: bool
) -> None:
    monkeypatch.setattr(parts, "rows_per_part", lambda *_: 3)
    monkeypatch.setattr(materialize, "DECODED_MEMORY_SHARE", 0.0001)
    # The second and third leave the first one's run of the index as it is, and rewrite one file, then all of them.
    tables = [rows_of(0, 1_000, 1), rows_of(20, 60, 2), scattered_rows(0, 1_000, 30, 3), rows_of(500, 2_500, 4)]
    for number, table in enumerate(tables, 1):
        orders.append({}, table)
        run(
            lake,
            rows_per_compacted_file=300,
            hash_bucket_count=3,
            max_dead_row_share=max_dead_row_share,
            own_parquet_pages=own_pages,
        )
        assert compacted_rows(orders) == latest(*tables[:number])
        assert verify(orders.stream({})).problems == ()


@pytest.mark.usefixtures("undecoded")
def test_a_large_file_is_written_in_its_own_order_but_for_the_buckets_of_a_part(
    lake: DeltaCatalog, orders: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "rows_per_part", lambda *_: 100)
    orders.append({}, rows_of(0, 1_000, 1))
    run(lake, hash_bucket_count=8)
    ids = orders.scan().to_table().column("id").to_numpy()
    assert (ids // 100).tolist() == np.repeat(np.arange(10), 100).tolist()
    assert ids.tolist() != list(range(1_000))


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


def test_a_task_that_runs_twice_writes_files_of_its_own_each_time_and_the_log_names_one_of_each(
    lake: DeltaCatalog, orders: Table
) -> None:
    engine = UnrulyEngine(share_run_twice=1.0)
    for time, dead_row_share in ((1, 0.0), (2, 0.9)):
        orders.append({}, rows_of(0, 1_000 if time == 1 else 10, time))
        run(lake, rows_per_compacted_file=300, max_dead_row_share=dead_row_share, engine=engine)
    assert compacted_rows(orders) == latest(rows_of(0, 1_000, 1), rows_of(0, 10, 2))
    assert verify(orders.stream({})).problems == ()
    written = [parse_any(entry.key, DATA_KEYS) for entry in lake.store.list(f"{orders.stream({}).folder.data}/")]
    attempts = defaultdict[object, set[str]](set)
    for path in written:
        if not isinstance(path, DeltaFilePath):
            assert isinstance(path, CompactedFilePath | IndexFilePath | DeletionVectorPath)
            attempts[replace(path, task_attempt="any")].add(path.task_attempt)
    assert {type(path) for path in attempts} == {CompactedFilePath, IndexFilePath, DeletionVectorPath}
    assert all(len(found) == 2 for found in attempts.values())


def writers_of(orders: Table) -> set[str]:
    """Who wrote the compacted files, by their footers: Lithify or Arrow."""
    compacted = orders.stream({}).load().state.compacted
    assert compacted is not None
    paths = [orders.stream({}).uri_of(file.path).removeprefix("file://") for file in compacted.files.values()]
    return {pq.read_metadata(path).created_by.split()[0] for path in paths}


@pytest.mark.usefixtures("undecoded")
@pytest.mark.parametrize(("own_pages", "writer"), [(True, "lithify"), (False, "parquet-cpp-arrow")])
def test_a_setting_leaves_all_pages_to_arrow(
    lake: DeltaCatalog, orders: Table, monkeypatch: pytest.MonkeyPatch, own_pages: bool, writer: str
) -> None:
    read_here = list[str]()

    def counted_read(kind: ColumnType, data: object, chunks: object) -> ReadColumn:
        read_here.append(kind.name)
        return read_column(kind, data, chunks)  # type: ignore[arg-type]

    for module in (row_groups_module, numbers):
        monkeypatch.setattr(module, "read_column", counted_read)
    first, second = rows_of(0, 1_000, 1), rows_of(500, 1_500, 2)
    for table in (first, second):
        orders.append({}, table)
        run(lake, own_parquet_pages=own_pages)
    assert writers_of(orders) == {writer}
    assert bool(read_here) == own_pages
    assert compacted_rows(orders) == latest(first, second)
    assert verify(orders.stream({})).problems == ()


def _write_reversed(column: ReadColumn, rows: npt.NDArray[np.int64]) -> ColumnChunk:
    """A writer with a fault: rows of one column come in the wrong order."""
    return encode_rows(column, rows[::-1].copy() if column.column_type.name == "note" else rows)


@pytest.mark.usefixtures("undecoded")
def test_a_row_group_that_arrow_reads_otherwise_is_corrupt_and_nothing_is_committed(
    lake: DeltaCatalog, orders: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.append({}, rows_of(0, 1_000, 1))
    monkeypatch.setattr(row_groups_module, "encode_rows", _write_reversed)
    with pytest.raises(Corrupt, match=r"column 'note' of row group 0 .* does not hold the values of"):
        run(lake, page_check_share=1.0)
    assert orders.stream({}).load().state.compacted is None
    run(lake, page_check_share=1.0, own_parquet_pages=False)
    assert compacted_rows(orders) == latest(rows_of(0, 1_000, 1))


@pytest.mark.usefixtures("undecoded")
def test_the_share_says_how_many_row_groups_are_read_back(
    lake: DeltaCatalog, orders: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(materialize, "PIECE_ROWS_MAX", 10)
    checked = dict[float, int]()
    for share in (0.0, 0.25, 1.0):
        read_back = Mock()
        monkeypatch.setattr(output_files, "check_row_group", read_back)
        orders.append({}, rows_of(0, 4_000, int(share * 4)))
        run(lake, page_check_share=share)
        checked[share] = read_back.call_count
    groups = sum(len(each) for each in row_groups(orders))
    assert checked[0.0] == 0
    assert 0.1 * groups < checked[0.25] < 0.4 * groups
    assert checked[1.0] == groups


@pytest.mark.usefixtures("undecoded")
def test_row_groups_are_read_back_whatever_their_values_and_row_groups_are(
    lake: DeltaCatalog, orders: Table, tmp_path: Path
) -> None:
    numbers_of = np.array([0.0, -0.0, np.nan, np.inf, 1.5] * 200)
    table = rows_of(0, 1_000, 1).append_column("amount", pa.array(numbers_of))
    table = table.append_column("code", pa.array(["x", None, "y", "z"] * 250).dictionary_encode())
    pq.write_table(table, tmp_path / "orders.parquet", row_group_size=130)
    orders.append({}, [str(tmp_path / "orders.parquet")])
    run(lake, rows_per_compacted_file=400, page_check_share=1.0)
    assert writers_of(orders) == {"lithify"}
    assert orders.scan().to_table().num_rows == 1_000


def _damaged(body: bytes) -> bytes:
    """With notes that do not decompress."""
    at = body.index(b"note 1")
    return body[:at] + b"\xff" * 60 + body[at + 60 :]
