"""Reads a Delta Lake table with ClickHouse (chdb): TABLE -> Arrow IPC on standard output."""

import os
import sys

import chdb
import pyarrow as pa


def main() -> None:
    table = sys.argv[1]
    if table.startswith("s3://"):
        url = f"{os.environ['AWS_ENDPOINT_URL']}/{table.removeprefix('s3://')}"
        source = f"deltaLake('{url}', '{os.environ['AWS_ACCESS_KEY_ID']}', '{os.environ['AWS_SECRET_ACCESS_KEY']}')"
    else:
        source = f"deltaLakeLocal('{table}')"
    rows = chdb.query(f"SELECT * FROM {source} SETTINGS output_format_arrow_string_as_string = 0", "ArrowStream")
    read = pa.ipc.open_stream(rows.bytes()).read_all()
    with pa.ipc.new_stream(sys.stdout.buffer, read.schema) as stream:
        stream.write_table(read)


main()
