"""What a failed Spark job is said to have failed of."""

from __future__ import annotations

from typing import cast

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark import SparkContext

from compactor.engine.errors import spark_job
from compactor.engine.local import stop_spark
from compactor.engine.protocol import sentence_of
from compactor.model.errors import (
    EXIT_FAILED,
    EXIT_FENCED,
    EXIT_INVALID,
    Corrupt,
    Denied,
    Fenced,
    Invalid,
    LithifyError,
    OutOfMemory,
    Unavailable,
)
from compactor.session_job import exit_code_of

TASK_LOST = "org.apache.spark.SparkException: Job aborted: Task 0 in stage 3.0 failed 4 times"


class _Context:
    """Of a SparkContext, what a sentence about it needs."""

    pythonExec = "/opt/other/python3"  # noqa: N815  (Spark's name)


def failed_with(message: str) -> None:
    with spark_job("dedupe", cast("SparkContext", _Context())):
        raise Py4JError(message)


CHAINED = """
compactor.model.errors.Invalid: not a Parquet file

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
compactor.model.errors.Corrupt: f.parquet is damaged

\tat org.apache.spark.scheduler.Task"""

WITHOUT_US = """
Error from python worker:
  /opt/other/python3: Error while finding module specification for 'compactor.worker_daemon' (ModuleNotFoundError: \
No module named 'compactor')
PYTHONPATH was:
  /opt/spark/python/lib/pyspark.zip
java.io.EOFException"""
OTHER_VERSION = """
pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different \
version: 3.9 than that in driver: 3.11, PySpark cannot run with different minor versions.
"""
NO_SUCH_PROGRAM = """An error occurred while calling o55.count.
: java.io.IOException: Cannot run program "/opt/other/python3": error=2, No such file or directory
\tat java.base/java.lang.ProcessBuilder.start"""
FULL = """
java.io.IOException: No space left on device
\tat java.base/sun.nio.ch.FileDispatcherImpl.write0(Native Method)"""


@pytest.mark.parametrize(
    ("message", "kind", "reason"),
    [
        (
            f"{TASK_LOST}\ncompactor.model.errors.Invalid: the file has no key\n\n\tat org",
            Invalid,
            "the file has no key",
        ),
        (f"{TASK_LOST}\ncompactor.model.errors.Denied: the token has expired\n\tat", Denied, "the token has expired"),
        (TASK_LOST + CHAINED, Corrupt, "f.parquet is damaged"),
        (f"{TASK_LOST}{WITHOUT_US}", Invalid, "Spark's workers run the Python '/opt/other/python3', which cannot run"),
        (
            f"{TASK_LOST}{OTHER_VERSION}",
            Invalid,
            "Spark's workers run the Python '/opt/other/python3', which cannot run",
        ),
        (NO_SUCH_PROGRAM, Invalid, "Spark's workers run the Python '/opt/other/python3', which cannot run"),
        (
            f"{TASK_LOST}{FULL}",
            Unavailable,
            "a disk of Spark's scratch folders (spark.local.dir) is full, during dedupe",
        ),
        (f"{TASK_LOST} ExecutorLostFailure (executor 1)", Unavailable, f"Spark was lost during dedupe: {TASK_LOST}"),
        (f"{TASK_LOST}\ncompactor.model.errors.OutOfMemory: too much\n\tat", OutOfMemory, "too much"),
        (f"{TASK_LOST}\nMemoryError\n\tat org", OutOfMemory, "memory ran out during dedupe: MemoryError"),
        (
            f"{TASK_LOST}\nnumpy._core._exceptions._ArrayMemoryError: Unable to allocate 9 GiB\n\tat org",
            OutOfMemory,
            "memory ran out during dedupe: numpy._core._exceptions._ArrayMemoryError: Unable to allocate 9 GiB",
        ),
        (
            f"{TASK_LOST}\npyarrow.lib.ArrowMemoryError: malloc of size 64 failed\n",
            OutOfMemory,
            "memory ran out during dedupe: pyarrow.lib.ArrowMemoryError: malloc of size 64 failed",
        ),
        (
            f"{TASK_LOST}: java.lang.OutOfMemoryError: Java heap space",
            OutOfMemory,
            "memory ran out during dedupe: java.lang.OutOfMemoryError: Java heap space",
        ),
        (f"{TASK_LOST} ExecutorLostFailure (executor 1 exited with exit code 137)", OutOfMemory, "memory ran out"),
        (f"{TASK_LOST} Python worker exited unexpectedly (crashed)", OutOfMemory, "a Python worker of Spark died"),
    ],
    ids=[
        "ours",
        "ours that was denied",
        "ours with a cause of ours",
        "workers without Lithify",
        "workers of another version",
        "no such Python",
        "full disk",
        "lost",
        "ours for lack of memory",
        "memory of Python",
        "memory of numpy",
        "memory of Arrow",
        "memory of Java",
        "an executor that was killed",
        "a worker that died",
    ],
)
def test_an_error_of_a_task_comes_out_as_itself(message: str, kind: type[LithifyError], reason: str) -> None:
    with pytest.raises(kind) as error:
        failed_with(message)
    assert str(error.value).startswith(reason)


@pytest.mark.parametrize(
    "error",
    [
        Py4JNetworkError("Answer from Java side is empty"),
        ConnectionRefusedError(111, "refused"),
        Py4JError("PairwiseRDD does not exist in the JVM"),
        Py4JError("An error occurred while calling o31.rdd"),
    ],
    ids=repr,
)
def test_a_dead_java_process_is_reported(error: Exception) -> None:
    spark = cast("SparkContext", _Context())
    died = pytest.raises(OutOfMemory, match=r"^Spark's Java process died during dedupe: ")
    with died as death, spark_job("dedupe", spark):
        raise error
    assert death.value.__cause__ is error


class _Unreachable:
    """A SparkContext whose Java process is gone: it cannot be told to stop, and what is in this process can."""

    def __init__(self) -> None:
        self.errors: list[Exception] = [ConnectionRefusedError(111, "refused")]

    def stop(self) -> None:
        if self.errors:
            raise self.errors.pop()


def test_a_spark_whose_java_process_is_gone_is_stopped_without_another_error() -> None:
    spark = _Unreachable()
    stop_spark(cast("SparkContext", spark))
    assert spark.errors == []


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (None, 0),
        (Unavailable("away"), EXIT_FAILED),
        (OutOfMemory("too much"), EXIT_FAILED),
        (Invalid("wrong"), EXIT_INVALID),
        (Fenced("overtaken"), EXIT_FENCED),
    ],
    ids=repr,
)
def test_each_way_to_end_has_an_exit_code(error: Exception | None, code: int) -> None:
    def run() -> None:
        if error is not None:
            raise error

    assert exit_code_of(run) == code
    assert len({0, EXIT_FAILED, EXIT_INVALID, EXIT_FENCED}) == 4


def test_of_an_error_that_nobody_expected_the_log_keeps_the_line_that_says_what_it_was() -> None:
    stack = (
        f"{TASK_LOST}\nTraceback (most recent call last):\n  File x\nKeyError: 5\n\n\tat org.apache.spark\n\tat java"
    )
    assert sentence_of(Py4JError(stack)) == "KeyError: 5"
    assert sentence_of(Py4JError(f"{TASK_LOST}\n\tat org.apache.spark")) == TASK_LOST
    assert sentence_of(ValueError("a\nb")) == "a"
    assert sentence_of(ValueError()) == ""


def test_other_errors_keep_their_traceback() -> None:
    with pytest.raises(Py4JError, match="ZeroDivisionError"):
        failed_with(f"{TASK_LOST}\nZeroDivisionError: division by zero")
