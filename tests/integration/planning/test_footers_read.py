"""Planning reads one footer of all files that have the same columns, and every footer that it must."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactor import DeltaCatalog
from compactor.lake import Table
from compactor.planning.session_input import SessionInput, read_session_input
from compactor.storage.location import StoreLocation
from compactor.tabular import TabularFile, read_schema
from tests.builders import pinned_session

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
