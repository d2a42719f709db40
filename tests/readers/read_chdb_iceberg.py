"""Reads an Apache Iceberg table with ClickHouse (chdb): TABLE -> Arrow IPC on standard output."""

import sys

import chdb
import pyarrow as pa


def main() -> None:
    source = f"icebergLocal('{sys.argv[1]}')"
    rows = chdb.query(f"SELECT * FROM {source} SETTINGS output_format_arrow_string_as_string = 0", "ArrowStream")
    read = pa.ipc.open_stream(rows.bytes()).read_all()
    with pa.ipc.new_stream(sys.stdout.buffer, read.schema) as stream:
        stream.write_table(read)


main()
