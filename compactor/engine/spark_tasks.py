"""Runs many calls of one function on Spark, each in a task of its own.

One Spark job has a task for each element, and an accumulator returns the results task by task. If a task kills its
Python worker, Spark gives up the whole job; it is started again without that element.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Generic, TypeVar

from pyspark import Accumulator, AccumulatorParam, SparkContext, TaskContext

from compactor.engine.errors import spark_job
from compactor.log_context import configure_logging
from compactor.model.errors import LithifyError, OutOfMemory, Unavailable

ElementT = TypeVar("ElementT")
ResultT = TypeVar("ResultT")

LOST_MAX = 8
"""After so many tasks that killed their process, the machines are considered faulty."""

_FAILED_TASK = re.compile(r"Task (\d+) in stage \S+ failed")


class SparkTaskRunner(Generic[ElementT, ResultT]):
    """A `TaskRunner` on a running Spark."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        self._ended: Accumulator[dict[int, ResultT]] = context.accumulator({}, _ByPlace())

    def run(
        self, elements: Sequence[ElementT], function: Callable[[ElementT, bool], ResultT]
    ) -> Mapping[int, LithifyError]:
        lost: dict[int, LithifyError] = {}
        left = list(enumerate(elements))
        while left:
            call = partial(_call, function, self._ended, bool(lost))
            try:
                with spark_job("the sessions of a bundle", self._context):
                    self._context.parallelize(left, len(left)).foreach(call)
                return lost
            except (OutOfMemory, Unavailable) as error:
                failed = _FAILED_TASK.search(str(error.__cause__))
                if failed is None or len(lost) == LOST_MAX:
                    raise
                number, _ = left[int(failed[1])]
                lost[number] = error
            done = self._ended.value.keys() | lost.keys()
            left = [(number, element) for number, element in left if number not in done]
        return lost

    def ended(self) -> Mapping[int, ResultT]:
        return self._ended.value


class _ByPlace(AccumulatorParam[dict[int, ResultT]]):
    """Spark adds a task's result as soon as it has ended, perhaps twice if it ran twice."""

    def zero(self, value: dict[int, ResultT]) -> dict[int, ResultT]:
        return {}

    def addInPlace(self, value1: dict[int, ResultT], value2: dict[int, ResultT]) -> dict[int, ResultT]:  # noqa: N802
        return value1 | value2


def _call(
    function: Callable[[ElementT, bool], ResultT],
    ended: Accumulator[dict[int, ResultT]],
    may_have_run: bool,
    numbered: tuple[int, ElementT],
) -> None:
    _configure_logging()
    number, element = numbered
    task = TaskContext.get()
    ended.add({number: function(element, may_have_run or (task is not None and task.attemptNumber() > 0))})


@cache
def _configure_logging() -> None:
    """Configures the worker's log: its output is the Spark job's output."""
    configure_logging(as_json=True, runs_session=True)
