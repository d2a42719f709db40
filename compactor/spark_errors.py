"""Says in our words what went wrong in a Spark job. The one place that knows how Spark wraps an exception of a task."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from compactor import errors
from compactor.errors import LithifyError, Unavailable

_OUR_ERROR = re.compile(
    r"^(?:compactor\.errors\.)(?P<kind>Invalid|Conflict|Unavailable|Fenced|Corrupt): (?P<said>.*)$", re.M
)
_SPARK_LOST = (
    "SparkContext was shut down",
    "SparkContext has been shut down",
    "ExecutorLostFailure",
    "Python worker exited unexpectedly",
)


@contextmanager
def spark_job(what: str) -> Iterator[None]:
    """Around a Spark action: an error of ours that a task raised comes out as itself, a lost cluster as `Unavailable`.

    Anything else a task raised is a bug, and keeps its traceback.
    """
    try:
        yield
    except (Py4JError, PySparkException) as error:
        translated = _translate(str(error), what)
        if translated is None:
            raise
        raise translated from error


def _translate(message: str, what: str) -> LithifyError | None:
    # An error with a cause is printed after its cause: the last one is what the task raised.
    found = list(_OUR_ERROR.finditer(message))
    if found:
        ours = found[-1]
        kind: type[LithifyError] = getattr(errors, ours["kind"])
        return kind(ours["said"])
    if any(sign in message for sign in _SPARK_LOST):
        return Unavailable(f"Spark was lost during {what}: {message.splitlines()[0]}")
    return None
