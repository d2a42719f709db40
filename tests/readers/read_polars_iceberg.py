"""Reads an Apache Iceberg table with Polars, which is given the newest metadata: TABLE -> Arrow IPC."""

import os
import sys

import polars as pl
import pyarrow as pa
from pyiceberg.io import load_file_io


def main() -> None:
    options = {"s3.endpoint": os.environ["AWS_ENDPOINT_URL"]} if "AWS_ENDPOINT_URL" in os.environ else {}
    folder = f"{sys.argv[1]}/metadata"
    with load_file_io(options, folder).new_input(f"{folder}/version-hint.text").open() as hint:
        version = hint.read().decode()
    rows = pl.scan_iceberg(f"{folder}/v{version}.metadata.json", storage_options=options or None).collect().to_arrow()
    with pa.ipc.new_stream(sys.stdout.buffer, rows.schema) as stream:
        stream.write_table(rows)


main()
