"""A compacted file of which a bit has flipped is never read as other rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from compactor import DeltaCatalog, compact
from compactor.lake import Table
from compactor.model.errors import Corrupt

TABLE_ID = "ACME.ORDERS.V1"


@pytest.fixture(params=[2_000, 150_000], ids=["small", "large"])
def orders(request: pytest.FixtureRequest, lake: DeltaCatalog) -> Table:
    rows = request.param
    made = np.random.default_rng(0)
    names = pa.array([f"name {number}" for number in made.integers(0, 500, rows)])
    table = lake.create_table(TABLE_ID, primary_keys=["id"])
    table.append({}, pa.table({"id": np.arange(rows), "share": made.random(rows), "name": names}))
    compact(TABLE_ID, delta_catalog_client=lake)
    return table


@pytest.mark.parametrize("is_filtered", [False, True], ids=["all rows", "some rows"])
def test_a_scan_after_a_bit_has_flipped_is_right_or_refused(orders: Table, tmp_path: Path, is_filtered: bool) -> None:
    def scanned() -> pa.Table:
        return orders.scan(filter=pc.field("id") < 900 if is_filtered else None).to_table().sort_by("id")

    (file,) = (each for each in tmp_path.rglob("*.parquet") if "compacted" in each.parts)
    whole, rows, refused = file.read_bytes(), scanned(), list[str]()
    for place in np.random.default_rng(1).integers(0, len(whole), 20):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << (place % 8)
        file.write_bytes(damaged)
        try:
            assert scanned() == rows
        except Corrupt as error:
            refused.append(str(error))
    assert refused
    assert all(file.name in each for each in refused)
