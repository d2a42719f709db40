"""What is known of a column's values: null counts and bounds, in a form that the log can hold."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from compactor.catalog.actions import ColumnStats


def parquet_column_stats(metadata: pq.FileMetaData, schema: pa.Schema) -> dict[str, ColumnStats]:
    """Of each top-level column that is not nested, from the statistics of its column chunks."""
    return {}
