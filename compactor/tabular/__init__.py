"""Data files of every format, on local disks and S3: the only package that reads and writes them.

Roles, one module each:

`filesystems`  tells files on this machine from objects on S3, and translates PyArrow's errors into Lithify's, once
`remote_file`  an object on S3 as Arrow reads it
`files`        the public functions on one file: read its schema, its rows whole or in batches, measure it
`formats`      the protocol of a format; `parquet`, `ipc`, `orc` and `text` implement it
`parquet_pages`  the subset of Parquet that Lithify reads and writes itself: numbers, and row groups copied undecoded;
               imported by itself, for it loads the kernels
`bounds`       null counts and bounds of columns, in a form that the log can store
`writer`       one output file, which is invisible until it is whole

All functions take a `StoreLocation` and a URI, both plain values that are sent to Spark executors. A file's rows are
always read in file order: a row's index in its file is part of its identity.
"""

from compactor.tabular.copying import copy_file, digest_file
from compactor.tabular.files import (
    begin_ends,
    begin_soon,
    check_bytes,
    check_written,
    each_begun,
    infer_content_type,
    measure,
    read_batches,
    read_batches_around,
    read_bytes,
    read_json_lines,
    read_outline,
    read_parquet_with_dictionaries,
    read_row,
    read_schema,
    read_table,
)
from compactor.tabular.filesystems import written_here
from compactor.tabular.formats import FileMeasure, FileOutline, TabularFile
from compactor.tabular.parquet import SharedParquet, check_row_count, columns_that_repeat, dictionary_columns_of
from compactor.tabular.stored_types import stored_schema
from compactor.tabular.text import is_named, without_value
from compactor.tabular.writer import TabularWriter

__all__ = [
    "FileMeasure",
    "FileOutline",
    "SharedParquet",
    "TabularFile",
    "TabularWriter",
    "begin_ends",
    "begin_soon",
    "check_bytes",
    "check_row_count",
    "check_written",
    "columns_that_repeat",
    "copy_file",
    "dictionary_columns_of",
    "digest_file",
    "each_begun",
    "infer_content_type",
    "is_named",
    "measure",
    "read_batches",
    "read_batches_around",
    "read_bytes",
    "read_json_lines",
    "read_outline",
    "read_parquet_with_dictionaries",
    "read_row",
    "read_schema",
    "read_table",
    "stored_schema",
    "without_value",
    "written_here",
]
