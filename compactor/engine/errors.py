"""Translates errors of Spark jobs into ours. Only this module knows how Spark wraps an exception of a task."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark import SparkContext
from pyspark.errors import PySparkException

from compactor.model import errors
from compactor.model.errors import Invalid, LithifyError, OutOfMemory, Unavailable

_OUR_ERROR = re.compile(
    r"^(?:compactor\.model\.errors\.)"
    r"(?P<kind>Invalid|Conflict|Unavailable|Denied|Outdated|OutOfMemory|Fenced|Corrupt): (?P<message>.*)$",
    re.M,
)
_SPARK_LOST = (
    "SparkContext was shut down",
    "SparkContext has been shut down",
    "ExecutorLostFailure",
)
_OUT_OF_MEMORY = re.compile(
    r"^(?:[\w.]*[._])?(?:Arrow|Array)?MemoryError\b.*|java\.lang\.OutOfMemoryError.*|OOMKilled"
    r"|Container killed .*exceeding .*memory.*|[Ee]xit ?[Cc]ode:? ?137\b",
    re.M,
)
SPARK_UNREACHABLE = (Py4JError, ConnectionError)
"""Errors that calls of Spark raise when its Java process has died, among others."""

_JAVA_CALL_FAILED = re.compile(r"An error occurred while calling \S+|\S+ does not exist in the JVM")
"""Py4J's whole message for a call that found no Java process. After this text it quotes an error of Java itself."""

_WORKER_DIED = "Python worker exited unexpectedly"
_WRONG_PYTHON = (
    re.compile(r"ModuleNotFoundError: (?P<message>No module named '[^']+')"),
    re.compile(
        r"PYTHON_VERSION_MISMATCH\] (?P<message>Python in worker has different version[^.]*\d\.\d+ than[^,.]*\d\.\d+)"
    ),
    re.compile(r"(?P<message>Cannot run program \"[^\n]+)"),
)
_DISK_FULL = "No space left on device"


@contextmanager
def spark_job(activity: str, spark: SparkContext) -> Iterator[None]:
    """Translates the errors of a Spark action: an error of ours that a task raised is raised as itself, a lost cluster
    or a full scratch disk as `Unavailable`, a lack of memory as `OutOfMemory`, a worker without Lithify as `Invalid`.

    Anything else a task raised is a bug, and keeps its traceback. Other edges translate the broken connections of their
    services, so a connection error here is that to Spark's Java process.
    """
    try:
        yield
    except (Py4JNetworkError, ConnectionError) as error:
        raise _java_died(activity) from error
    except MemoryError as error:
        raise OutOfMemory(f"the driver ran out of memory during {activity}: {error}") from error
    except (Py4JError, PySparkException) as error:
        translated = _translate(str(error), activity, spark)
        if translated is None:
            raise
        raise translated from error


def _java_died(activity: str) -> OutOfMemory:
    return OutOfMemory(
        f"Spark's Java process died during {activity}: if nobody killed it, this machine ran out of memory"
    )


def _translate(message: str, activity: str, spark: SparkContext) -> LithifyError | None:
    # An error with a cause is printed after its cause: the last one is what the task raised.
    found = list(_OUR_ERROR.finditer(message))
    if found:
        ours = found[-1]
        kind: type[LithifyError] = getattr(errors, ours["kind"])
        return kind(ours["message"])
    for pattern in _WRONG_PYTHON:
        reason = pattern.search(message)
        if reason is not None:
            return Invalid(_wrong_python(reason["message"], spark))
    return _machine_error(message, activity)


def _machine_error(message: str, activity: str) -> LithifyError | None:
    if _JAVA_CALL_FAILED.fullmatch(message):
        return _java_died(activity)
    lacked_memory = _OUT_OF_MEMORY.search(message)
    if lacked_memory is not None:
        return OutOfMemory(f"memory ran out during {activity}: {lacked_memory[0].strip()}")
    if _WORKER_DIED in message:
        return OutOfMemory(
            f"a Python worker of Spark died during {activity}: if nobody killed it, its machine ran out of memory"
        )
    if _DISK_FULL in message:
        return Unavailable(
            f"a disk of Spark's scratch folders (spark.local.dir) is full, during {activity}: {_DISK_FULL}"
        )
    if any(sign in message for sign in _SPARK_LOST):
        return Unavailable(f"Spark was lost during {activity}: {message.splitlines()[0]}")
    return None


def _wrong_python(reason: str, spark: SparkContext) -> str:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return (
        f"Spark's workers run the Python {spark.pythonExec!r}, which cannot run Lithify: {reason}; before Spark starts,"
        f" set PYSPARK_PYTHON to a Python {version} in which Lithify is installed (here it is {sys.executable})"
    )
