"""A program that writes: `python -m tests.roles.writer TABLE ROWS [KEY=VALUE ...]`. ROWS: JSON, a list of rows."""

from __future__ import annotations

import json
import os
import sys

import pyarrow as pa

from compactor import DeltaCatalog


def main(table_id: str, rows: str, *partition: str) -> None:
    lake = DeltaCatalog.open(
        os.environ["LITHIFY_LAKE"],
        endpoint_url=os.environ["LITHIFY_S3_ENDPOINT_URL"],
        region=os.environ["LITHIFY_REGION"],
    )
    lake.table(table_id).append(dict(each.split("=", 1) for each in partition), pa.Table.from_pylist(json.loads(rows)))


if __name__ == "__main__":
    main(*sys.argv[1:])
