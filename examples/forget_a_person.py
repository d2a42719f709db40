"""Deletes a person from a table, and proves that no file holds their values any more.

    python forget_a_person.py LAKE CUSTOMER_ID

The table declares its `private_columns`, as `change_files.py` does. Run this every day until its exit code is 0: the
delete is appended once, and old files go when the grace period of the table has passed. The proof names every object
that may still hold the values, and when it goes; run what it names for those without a time, such as `lithify rehash`.
"""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa

from lithify import DeltaCatalog, compact

TABLE = "SHOP.CUSTOMERS.V1"


def main(lake_uri: str, customer_id: int) -> int:
    """The exit code of the proof: 0 if nothing holds the values, 1 if something does."""
    lake = DeltaCatalog.open(lake_uri)
    person = pa.table({"customer_id": [customer_id]})  # without the sort key: later than any change, and no tombstone
    lake.table(TABLE).append({}, person, operation="delete", delta_id=f"forget-{customer_id}")
    compact(TABLE, delta_catalog_client=lake)
    subprocess.run(["lithify", "gc", "--lake", lake_uri, "--delete"], check=True)
    key = f"customer_id={customer_id}"
    proof = ["lithify", "privacy", "prove", TABLE, "--lake", lake_uri, "--key", key]
    return subprocess.run(proof, check=False).returncode


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
