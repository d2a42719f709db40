"""Files of mixed inserts, updates and deletes become a table.

    python change_files.py FOLDER LAKE

Each file is CSV with a column `op` (I, U or D), the columns of the row, and `changed_at`, the order of the changes. A
file that was appended before is not appended again: its name is the delta's id.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from lithify import DeltaCatalog, Table, compact

TABLE = "SHOP.CUSTOMERS.V1"


def append_changes(customers: Table, file: Path) -> None:
    changes = pyarrow.csv.read_csv(file)
    is_delete = pc.equal(changes["op"], "D")
    rows = changes.drop_columns(["op"])
    for operation, chosen in (("upsert", rows.filter(pc.invert(is_delete))), ("delete", rows.filter(is_delete))):
        if chosen.num_rows:
            customers.append({}, chosen, operation=operation, delta_id=f"{file.name}-{operation}")


def main(folder: Path, lake_uri: str) -> pa.Table:
    lake = DeltaCatalog.open(lake_uri)
    if TABLE in lake.tables():
        customers = lake.table(TABLE)
    else:
        customers = lake.create_table(
            TABLE,
            primary_keys=["customer_id"],
            sort_keys=[("changed_at", "ascending")],
            properties={"private_columns": ["customer_id", "name"]},  # before any row: log entries stay for ever
        )
    for file in sorted(folder.glob("*.csv")):
        append_changes(customers, file)
    compact(TABLE, delta_catalog_client=lake)
    return customers.scan({}).to_table()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    for row in main(Path(sys.argv[1]), sys.argv[2]).to_pylist():
        print(row)
