"""The fixtures of tests/integration/compaction, with Spark."""

from __future__ import annotations

from functools import partial

import pytest
from pyspark.sql import SparkSession

from compactor import DeltaCatalog, compact
from compactor.engine.protocol import Engine
from compactor.engine.spark import SparkEngine
from compactor.planning.spec import JobRunResult
from tests.builders import TABLE_ID
from tests.integration.compaction.conftest import lake, orders, pending_lake, prepared_lake

__all__ = ["lake", "orders", "pending_lake", "prepared_lake"]


@pytest.fixture
def compact_orders(lake: DeltaCatalog, spark: SparkSession) -> partial[JobRunResult]:
    return partial(compact, TABLE_ID, {"id"}, delta_catalog_client=lake, hash_bucket_count=2, spark=spark)


@pytest.fixture(scope="session")
def engine(spark: SparkSession) -> Engine:
    return SparkEngine(spark.sparkContext)
