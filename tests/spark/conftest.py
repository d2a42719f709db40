"""A lake with one table, and `compact` with what every test of the compaction says anyway already said."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from compactor import DeltaCatalog, compact
from compactor.catalog.catalog import Table
from compactor.spec import JobRunResult
from tests.builders import TABLE_ID


@pytest.fixture
def lake(tmp_path: Path) -> DeltaCatalog:
    return DeltaCatalog.open(tmp_path / "lake")


@pytest.fixture
def orders(lake: DeltaCatalog) -> Table:
    """A table without partition keys; its key is `id` wherever a test names no other."""
    return lake.create_table(TABLE_ID)


@pytest.fixture
def compact_orders(lake: DeltaCatalog, spark: SparkSession) -> partial[JobRunResult]:
    return partial(compact, TABLE_ID, {"id"}, delta_catalog_client=lake, hash_bucket_count=2, spark=spark)
