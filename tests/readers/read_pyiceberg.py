"""Reads an Apache Iceberg table with PyIceberg, which is given the newest metadata: TABLE -> Arrow IPC."""

import os
import sys

import pyarrow as pa
from pyiceberg.io import load_file_io
from pyiceberg.table import StaticTable


def main() -> None:
    options = {"s3.endpoint": os.environ["AWS_ENDPOINT_URL"]} if "AWS_ENDPOINT_URL" in os.environ else {}
    folder = f"{sys.argv[1]}/metadata"
    with load_file_io(options, folder).new_input(f"{folder}/version-hint.text").open() as hint:
        version = hint.read().decode()
    rows = StaticTable.from_metadata(f"{folder}/v{version}.metadata.json", options).scan().to_arrow()
    with pa.ipc.new_stream(sys.stdout.buffer, rows.schema) as stream:
        stream.write_table(rows)


main()
