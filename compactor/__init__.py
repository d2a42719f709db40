"""Lithify's compactor: the catalog of tables and deltas, the primary key index, and the compaction itself.

    from compactor import DeltaCatalog, compact

imports neither PySpark nor boto3; they are loaded when a Spark job starts or a lake on S3 is opened.
"""

from __future__ import annotations

from compactor.api import compact
from compactor.catalog.catalog import DeltaCatalog

__all__ = ["DeltaCatalog", "compact"]
