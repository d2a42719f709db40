"""A `TaskRunner` of this process, one task after the other; the elements of a group run in threads. What goes to a task
and comes back is pickled."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

from compactor.model.errors import LithifyError, OutOfMemory

ElementT = TypeVar("ElementT")
ResultT = TypeVar("ResultT")


class ProcessDied(BaseException):
    """A function raises it to simulate the end of its process."""


class InProcessTaskRunner(Generic[ElementT, ResultT]):
    """`around` is called in place of the function, with the function and the element."""

    def __init__(
        self, around: Callable[[Callable[[ElementT, bool], ResultT], ElementT, bool], ResultT] | None = None
    ) -> None:
        self._around = around or (lambda function, element, is_again: function(element, is_again))
        self._ended: dict[int, ResultT] = {}

    def run(
        self,
        elements: Sequence[ElementT],
        function: Callable[[ElementT, bool], ResultT],
        groups: Sequence[Sequence[int]] = (),
    ) -> Mapping[int, LithifyError]:
        lost: dict[int, LithifyError] = {}
        left = [list(group) for group in groups or [[place] for place in range(len(elements))]]
        is_again = False
        while left:
            group = left.pop(0)
            try:
                found = self._run_task([elements[place] for place in group], function, is_again)
            except ProcessDied:
                is_again = True
                if len(group) == 1:
                    lost[group[0]] = OutOfMemory("a process of the tests died")
                else:
                    left = [[place] for place in group] + left
            else:
                self._ended = {**self._ended, **dict(zip(group, found, strict=True))}
        return lost

    def _run_task(
        self, elements: Sequence[ElementT], function: Callable[[ElementT, bool], ResultT], is_again: bool
    ) -> list[ResultT]:
        def call(element: ElementT) -> ResultT:
            sent, arrived = pickle.loads(pickle.dumps((function, element)))
            result: ResultT = pickle.loads(pickle.dumps(self._around(sent, arrived, is_again)))
            return result

        if len(elements) == 1:
            return [call(elements[0])]
        with ThreadPoolExecutor(len(elements)) as threads:
            return list(threads.map(call, elements))

    def ended(self) -> Mapping[int, ResultT]:
        return self._ended
