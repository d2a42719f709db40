"""Reads a Delta Lake table with deltalake (delta-rs, DataFusion): TABLE -> Arrow IPC on standard output."""

import os
import sys

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder


def main() -> None:
    options = {name: os.environ[name] for name in os.environ if name.startswith("AWS_")}
    table = DeltaTable(sys.argv[1], storage_options=options or None)
    batches = QueryBuilder().register("t", table).execute("select * from t")
    rows = pa.table(batches.read_all() if hasattr(batches, "read_all") else batches)
    with pa.ipc.new_stream(sys.stdout.buffer, rows.schema) as stream:
        stream.write_table(rows)


main()
