"""Compacts every table of a lake that has something to compact. One that fails does not stop the others.

python every_night.py LAKE
"""

from __future__ import annotations

import sys

from lithify import DeltaCatalog, LithifyError, compact


def main(lake_uri: str) -> int:
    """The exit code: 1 if a table could not be compacted."""
    lake = DeltaCatalog.open(lake_uri)
    failed = 0
    for table_id in lake.tables():
        try:
            result = compact(table_id, delta_catalog_client=lake)
        except LithifyError as error:
            failed += 1
            print(f"{table_id} is not compacted: {error}", file=sys.stderr)
            continue
        compacted = [session for session in result.sessions if session.rounds]
        rows = sum(session.rows_out for session in compacted)
        print(f"{table_id}: {len(compacted)} partitions compacted, {rows} rows in them")
    return 1 if failed else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1]))
