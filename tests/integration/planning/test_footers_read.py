"""Planning reads one footer of all files that have the same columns, and every footer that it must."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactor import DeltaCatalog, compact
from compactor.lake import Table
from compactor.model.errors import Corrupt, Invalid
from compactor.planning.session_input import SessionInput, read_session_input
from compactor.planning.session_planner import pin_sessions
from compactor.storage.location import StoreLocation
from compactor.tabular import TabularFile, read_schema
from tests.builders import pinned_session, run_of

ORDERS = "ACME.ORDERS.V1"


@pytest.fixture
def orders(lake: DeltaCatalog) -> Table:
    return lake.create_table(ORDERS)


def read(lake: DeltaCatalog, orders: Table) -> tuple[SessionInput, list[str]]:
    """The input, and the files whose columns were read."""
    read_uris: list[str] = []

    def schema_of(location: StoreLocation, file: TabularFile, declared: pa.Schema | None) -> pa.Schema:
        read_uris.append(file.uri)
        return read_schema(location, file, declared)

    return read_session_input(pinned_session(lake, ORDERS), lake, schema_of=schema_of), read_uris


def test_one_footer_is_read_of_a_hundred_files_of_one_schema(lake: DeltaCatalog, orders: Table) -> None:
    for n in range(20):
        orders.append({}, pa.table({"id": range(5), "n": [n] * 5}), rows_per_file=1)
    session, read_uris = read(lake, orders)
    assert (len(session.streams.pending), len(read_uris)) == (100, 1)
    assert set(session.schemas) == {session.schemas[0]}
    assert len(session.schemas) == 100


def test_each_schema_and_each_file_of_text_is_read(lake: DeltaCatalog, orders: Table, tmp_path: Path) -> None:
    rows = pa.table({"id": [1, 2]})
    (tmp_path / "one.csv").write_text("id\n7\n")
    (tmp_path / "two.csv").write_text("id,more\n7,text\n")
    pq.write_table(rows, tmp_path / "registered.parquet")
    orders.append({}, rows)
    orders.append({}, rows)
    orders.append({}, rows.append_column("more", pa.array(["x", "y"])))
    orders.append({}, rows, content_type="feather")
    orders.append({}, [tmp_path / "registered.parquet"])
    orders.append({}, [tmp_path / "one.csv", tmp_path / "two.csv"])
    session, read_uris = read(lake, orders)
    assert len(read_uris) == 5, "two of Parquet, one of Feather, and each CSV"
    assert [schema.names for schema in session.schemas[-2:]] == [["id"], ["id", "more"]]
    by_hand = [
        read_schema(lake.location, TabularFile(ref.uri, ref.file.content_type)) for ref in session.streams.pending
    ]
    assert [schema.remove_metadata() for schema in session.schemas] == [each.remove_metadata() for each in by_hand]


def test_one_footer_is_read_of_small_files_of_one_schema_in_all_sessions_of_a_run(lake: DeltaCatalog) -> None:
    days = lake.create_table(ORDERS, ["day"])
    for day in range(4):
        days.append({"day": str(day)}, pa.table({"id": [day]}))
    days.append({"day": "4"}, pa.table({"id": [4], "more": [4]}))
    read_uris: list[str] = []

    def schema_of(location: StoreLocation, file: TabularFile, declared: pa.Schema | None) -> pa.Schema:
        read_uris.append(file.uri)
        return read_schema(location, file, declared)

    pinned = pin_sessions(run_of(lake, ORDERS), lake)
    of_one_run = lake.for_one_run()
    found = [read_session_input(each.spec, of_one_run, schema_of=schema_of) for each in pinned]
    assert [each.schema.names for each in found] == [["id"]] * 4 + [["id", "more"]]
    assert len(read_uris) == 2


@pytest.mark.parametrize("place", ["footer", "page"])
def test_a_small_file_that_is_damaged_fails_its_own_session_though_its_footer_was_not_read_for_the_plan(
    lake: DeltaCatalog, place: str
) -> None:
    days = lake.create_table(ORDERS, ["day"])
    deltas = [days.append({"day": str(day)}, pa.table({"id": [day, 7]})) for day in range(3)]
    path = Path(f"{lake.location.root_uri.removeprefix('file://')}/{deltas[1].files[0].path}")
    body = bytearray(path.read_bytes())
    body[-40 if place == "footer" else 20] ^= 1
    path.write_bytes(body)
    with pytest.raises((Corrupt, Invalid), match="day=1"):
        compact(ORDERS, {"id"}, delta_catalog_client=lake)
    assert [days.scan({"day": str(day)}).count_rows() for day in range(3)] == [2, 0, 2]
