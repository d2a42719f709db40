"""The fixtures of tests/integration/compaction, with Spark."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
from pyspark.sql import SparkSession

from compactor import DeltaCatalog, compact
from compactor.engine.protocol import Engine
from compactor.engine.settings import QUICK_JVM
from compactor.engine.spark import SparkEngine
from compactor.planning.spec import JobRunResult
from tests.builders import TABLE_ID
from tests.integration.compaction.conftest import lake, orders, pending_lake, prepared_lake

__all__ = ["lake", "orders", "pending_lake", "prepared_lake"]


@pytest.fixture(scope="session", autouse=True)
def quick_java() -> Iterator[None]:
    """Masters, workers and executors of tests live for seconds: half of their processor time was to optimise code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JDK_JAVA_OPTIONS", " ".join(QUICK_JVM))
        yield


@pytest.fixture
def compact_orders(lake: DeltaCatalog, spark: SparkSession) -> partial[JobRunResult]:
    return partial(compact, TABLE_ID, {"id"}, delta_catalog_client=lake, hash_bucket_count=2, spark=spark)


@pytest.fixture(scope="session")
def engine(spark: SparkSession) -> Engine:
    return SparkEngine(spark.sparkContext)
