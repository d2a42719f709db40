"""What a failed Spark job is said to have failed of."""

from __future__ import annotations

import pytest
from py4j.protocol import Py4JError

from compactor.errors import Corrupt, Invalid, LithifyError, Unavailable
from compactor.spark_errors import spark_job

TASK_LOST = "org.apache.spark.SparkException: Job aborted: Task 0 in stage 3.0 failed 4 times"


def failed_with(message: str) -> None:
    with spark_job("dedupe"):
        raise Py4JError(message)


CHAINED = """
compactor.errors.Invalid: not a Parquet file

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
compactor.errors.Corrupt: f.parquet is damaged

\tat org.apache.spark.scheduler.Task"""


@pytest.mark.parametrize(
    ("message", "kind", "said"),
    [
        (f"{TASK_LOST}\ncompactor.errors.Invalid: the file has no key\n\n\tat org", Invalid, "the file has no key"),
        (TASK_LOST + CHAINED, Corrupt, "f.parquet is damaged"),
        (f"{TASK_LOST} ExecutorLostFailure (executor 1)", Unavailable, f"Spark was lost during dedupe: {TASK_LOST}"),
    ],
    ids=["ours", "ours with a cause of ours", "lost"],
)
def test_an_error_of_a_task_comes_out_as_itself(message: str, kind: type[LithifyError], said: str) -> None:
    with pytest.raises(kind) as error:
        failed_with(message)
    assert str(error.value).startswith(said)


def test_what_is_neither_ours_nor_a_lost_cluster_keeps_its_traceback() -> None:
    with pytest.raises(Py4JError, match="ZeroDivisionError"):
        failed_with(f"{TASK_LOST}\nZeroDivisionError: division by zero")
