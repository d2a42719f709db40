"""Publishes a table as Delta Lake, and reads it in DuckDB and in Polars.

    python other_engines.py LAKE

Every compaction of the table is then a version of the Delta table, over the same files: no row is copied.
"""

from __future__ import annotations

import sys

import duckdb
import polars as pl
import pyarrow as pa
from deltalake import DeltaTable

from lithify import DeltaCatalog, compact

TABLE = "SHOP.SALES.V1"


def main(lake_uri: str) -> tuple[float, float]:
    """The total of all sales, by DuckDB and by Polars."""
    lake = DeltaCatalog.open(lake_uri)
    sales = lake.create_table(TABLE, primary_keys=["sale_id"], properties={"publish": "delta"})
    sales.append({}, pa.table({"sale_id": [1, 2, 3], "usd": [10.0, 20.0, 30.0]}))
    sales.append({}, pa.table({"sale_id": [2], "usd": [25.0]}))
    sales.append({}, pa.table({"sale_id": [3]}), operation="delete")
    compact(TABLE, delta_catalog_client=lake)

    published = f"{lake_uri}/tables/{TABLE}/compacted"
    rows = DeltaTable(published).to_pyarrow_dataset()  # with DuckDB's delta extension: FROM delta_scan('...')
    ((in_duckdb,),) = duckdb.from_arrow(rows).aggregate("sum(usd)").fetchall()
    in_polars = pl.scan_delta(published).select(pl.col("usd").sum()).collect().item()
    return in_duckdb, in_polars


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    print(main(sys.argv[1]))
