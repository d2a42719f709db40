"""Runs many calls of one function on Spark, each in a task of its own.

One Spark job has a task for each element, or group of elements, and an accumulator returns the results task by task.
If a task kills its Python worker, Spark gives up the whole job; it is started again without that element. If that was a
group's task, it is started again with a task for each of its elements.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Generic, TypeVar

from pyspark import Accumulator, AccumulatorParam, SparkContext, TaskContext

from compactor.engine.errors import spark_job
from compactor.log_context import configure_logging
from compactor.model.errors import LithifyError, OutOfMemory, Unavailable

ElementT = TypeVar("ElementT")
ResultT = TypeVar("ResultT")

LOST_MAX = 8
"""After so many tasks that killed their process, a group's included, the machines are considered faulty."""

_FAILED_TASK = re.compile(r"Task (\d+) in stage \S+ failed")


class SparkTaskRunner(Generic[ElementT, ResultT]):
    """A `TaskRunner` on a running Spark."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        self._ended: Accumulator[dict[int, ResultT]] = context.accumulator({}, _ByPlace())

    def run(
        self,
        elements: Sequence[ElementT],
        function: Callable[[ElementT, bool], ResultT],
        groups: Sequence[Sequence[int]] = (),
    ) -> Mapping[int, LithifyError]:
        lost: dict[int, LithifyError] = {}
        left = [list(group) for group in groups or [[number] for number in range(len(elements))]]
        deaths = 0
        while left:
            call = partial(_call_all, function, self._ended, bool(deaths))
            tasks = [[(number, elements[number]) for number in group] for group in left]
            try:
                with spark_job("the sessions of a bundle", self._context):
                    self._context.parallelize(tasks, len(tasks)).foreach(call)
                return lost
            except (OutOfMemory, Unavailable) as error:
                failed = _FAILED_TASK.search(str(error.__cause__))
                if failed is None or deaths == LOST_MAX:
                    raise
                deaths += 1
                suspects = left.pop(int(failed[1]))
                if len(suspects) == 1:
                    lost[suspects[0]] = error
                else:
                    left = [[number] for number in suspects] + left
            done = self._ended.value.keys()
            left = [group for group in ([each for each in group if each not in done] for group in left) if group]
        return lost

    def ended(self) -> Mapping[int, ResultT]:
        return self._ended.value


class _ByPlace(AccumulatorParam[dict[int, ResultT]]):
    """Spark adds a task's result as soon as it has ended, perhaps twice if it ran twice."""

    def zero(self, value: dict[int, ResultT]) -> dict[int, ResultT]:
        return {}

    def addInPlace(self, value1: dict[int, ResultT], value2: dict[int, ResultT]) -> dict[int, ResultT]:  # noqa: N802
        return value1 | value2


def _call_all(
    function: Callable[[ElementT, bool], ResultT],
    ended: Accumulator[dict[int, ResultT]],
    may_have_run: bool,
    numbered: Sequence[tuple[int, ElementT]],
) -> None:
    _configure_logging()
    task = TaskContext.get()
    is_again = may_have_run or (task is not None and task.attemptNumber() > 0)
    with ThreadPoolExecutor(len(numbered)) as threads:
        calls = [(number, threads.submit(function, element, is_again)) for number, element in numbered]
    ended.add({number: call.result() for number, call in calls})


@cache
def _configure_logging() -> None:
    """Configures the worker's log: its output is the Spark job's output."""
    configure_logging(as_json=True, runs_session=True)
