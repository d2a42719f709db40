"""The Python that Spark's workers run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from compactor.lake import Table
from compactor.model.errors import Invalid
from compactor.planning.spec import JobRunResult

pytestmark = pytest.mark.spark


@pytest.fixture
def without_lithify(spark: SparkSession, tmp_path: Path) -> Iterator[Path]:
    """A Python that Spark's workers run for now, and that has none of the packages of this one."""
    python = tmp_path / "python3"
    python.write_text(f'#!/bin/sh\ncd /\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    context = spark.sparkContext
    before, context.pythonExec = context.pythonExec, str(python)
    yield python
    context.pythonExec = before


def test_workers_that_cannot_import_lithify_are_one_sentence_that_names_their_python_and_what_to_set(
    orders: Table, compact_orders: partial[JobRunResult], without_lithify: Path
) -> None:
    orders.append({}, pa.table({"id": [1, 2]}))
    with pytest.raises(Invalid) as refusal:
        compact_orders()
    reason = str(refusal.value)
    assert "\n" not in reason
    assert reason.startswith(f"Spark's workers run the Python '{without_lithify}', which cannot run Lithify: No module")
    assert (
        f"set PYSPARK_PYTHON to a Python {sys.version_info.major}.{sys.version_info.minor} in which Lithify is"
        in reason
    )
