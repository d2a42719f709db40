"""Reads a Delta Lake table with Polars: TABLE -> Arrow IPC on standard output."""

import os
import sys

import polars as pl
import pyarrow as pa


def main() -> None:
    options = {name: os.environ[name] for name in os.environ if name.startswith("AWS_")}
    rows = pl.scan_delta(sys.argv[1], storage_options=options or None).collect().to_arrow()
    with pa.ipc.new_stream(sys.stdout.buffer, rows.schema) as stream:
        stream.write_table(rows)


main()
