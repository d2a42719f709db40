"""Python workers start on every core that a session will have, not only on those that are there at its begin."""

from __future__ import annotations

from typing import Any, cast
from unittest.mock import MagicMock

import pytest
from pyspark import SparkContext

from compactor.engine.prestart import prestart_workers


@pytest.mark.parametrize(("registered", "asked_for", "tasks"), [(2, "16", 16), (8, None, 8), (8, "4", 8)])
def test_a_task_runs_for_each_core(registered: int, asked_for: str | None, tasks: int) -> None:
    spark: Any = MagicMock(defaultParallelism=registered)
    spark.getConf().get.side_effect = {"spark.cores.max": asked_for}.get
    prestart_workers(cast(SparkContext, spark)).join()
    spark.parallelize.assert_called_once_with(range(tasks), tasks)
    spark.parallelize().foreach.assert_called_once()
