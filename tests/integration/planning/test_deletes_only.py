"""Sessions that bring deletes and nothing else: their files need not have the columns that rows are sorted by."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from compactor import DeltaCatalog, compact
from compactor.model.errors import Invalid
from tests.builders import TABLE_ID

BY_TIME = [("time", "ascending")]


def test_deletes_without_sort_columns_are_compacted_into_an_empty_table(tmp_path: Path) -> None:
    lake = DeltaCatalog.open(tmp_path)
    table = lake.create_table(TABLE_ID)
    table.append({}, pa.table({"id": [1, 2]}), "delete")
    compact(TABLE_ID, {"id"}, BY_TIME, delta_catalog_client=lake)
    assert table.scan().count_rows() == 0


def test_rows_without_sort_columns_are_refused_by_the_column(tmp_path: Path) -> None:
    lake = DeltaCatalog.open(tmp_path)
    table = lake.create_table(TABLE_ID)
    table.append({}, pa.table({"id": [1]}))
    table.append({}, pa.table({"id": [1, 2]}), "delete")
    with pytest.raises(Invalid, match="time"):
        compact(TABLE_ID, {"id"}, BY_TIME, delta_catalog_client=lake)


def test_a_column_may_be_a_primary_key_and_a_sort_key_also_of_deletes(tmp_path: Path) -> None:
    lake = DeltaCatalog.open(tmp_path)
    table = lake.create_table(TABLE_ID)
    table.append({}, pa.table({"id": [1, 2]}))
    table.append({}, pa.table({"id": [1]}), "delete")
    compact(TABLE_ID, {"id"}, [("id", "ascending")], delta_catalog_client=lake)
    assert table.scan().to_table().to_pylist() == [{"id": 2}]
