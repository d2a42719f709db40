"""The queries of the documentation: each engine reads what a scan reads."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest

from compactor import DeltaCatalog, compact
from tests.pages.sources import DOCS
from tests.readers.conftest import Engine

TABLE = "ACME.ORDERS.V1"


def queries() -> list[tuple[str, str]]:
    """Engine and query, of each cell of the table below its mark."""
    table = (DOCS / "guide" / "publishing.md").read_text().split("<!-- tested: engines -->\n")[1].split("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    return [(engine, found[1]) for engine, *cells in rows for cell in cells if (found := re.fullmatch("`(.+)`", cell))]


def test_the_page_has_a_query_for_every_engine_and_format() -> None:
    found = queries()
    assert len(found) == len(set(found)) == 10
    assert {"/compacted'" in query for _, query in found} == {True, False}


@pytest.mark.parametrize(("engine", "query"), queries())
def test_a_query_of_the_page_reads_the_rows_of_a_scan(engine: str, query: str, tmp_path: Path) -> None:
    lake = DeltaCatalog.open(tmp_path / "lake")
    table = lake.create_table(TABLE, properties={"publish": "delta,iceberg"})
    table.append({}, pa.table({"order_id": range(100), "status": ["new"] * 100}))
    compact(TABLE, {"order_id"}, delta_catalog_client=lake)
    table.append({}, pa.table({"order_id": [1, 2, 3]}), operation="delete")
    table.append({}, pa.table({"order_id": [4, 200], "status": ["paid"] * 2}))
    compact(TABLE, {"order_id"}, delta_catalog_client=lake, max_dead_row_share=0.5)
    (version,) = (
        (tmp_path / "lake" / "tables" / TABLE / "iceberg" / "metadata" / "version-hint.text").read_text().split()
    )
    asked = query.replace("'lake/", f"'{tmp_path}/lake/").replace("v<version>", f"v{version}")
    read = Engine(engine).run("run_query.py", engine, asked)
    expected = table.scan().to_table()
    assert sorted(read.to_pylist(), key=repr) == sorted(expected.to_pylist(), key=repr)
