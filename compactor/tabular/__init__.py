"""Data files, whatever their format and wherever they lie: the only room that reads and writes them.

Roles, one module each:

`filesystems`  opens PyArrow's filesystem for a URI, and translates its errors into ours, once
`files`        the public verbs on one file: read its schema, its rows whole or by batches, measure it
`formats`      what a format must be able to do; `parquet`, `ipc`, `orc` and `text` each know one family
`row_groups`   row groups of Parquet that pass from file to file undecoded; by way of `column_chunks` and `thrift`
`number_columns`  numbers read from Parquet's pages, which is how most keys are read; by way of `column_chunks` too
`bounds`       what is known of a column's values, in a form that the log can hold
`writer`       one output file: nobody sees it before it is whole

Everything here takes a `StoreLocation` and a URI, both plain values that travel to Spark executors. A file's rows are
read in file order, always: a row's index in its file is part of its identity.
"""

from __future__ import annotations

from compactor.tabular.files import infer_content_type, measure, read_batches, read_row, read_schema, read_table
from compactor.tabular.filesystems import open_filesystem, written_here
from compactor.tabular.formats import FileMeasure, TabularFile
from compactor.tabular.parquet import dictionary_columns_of
from compactor.tabular.row_groups import ParquetRows, RowGroup, open_rows
from compactor.tabular.stored_types import stored_schema
from compactor.tabular.writer import TabularWriter

__all__ = [
    "FileMeasure",
    "ParquetRows",
    "RowGroup",
    "TabularFile",
    "TabularWriter",
    "dictionary_columns_of",
    "infer_content_type",
    "measure",
    "open_filesystem",
    "open_rows",
    "read_batches",
    "read_row",
    "read_schema",
    "read_table",
    "stored_schema",
    "written_here",
]
