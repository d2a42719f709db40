"""A `TaskRunner` of this process, one task after the other. What goes to a task and comes back is pickled."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
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
        self, elements: Sequence[ElementT], function: Callable[[ElementT, bool], ResultT]
    ) -> Mapping[int, LithifyError]:
        lost: dict[int, LithifyError] = {}
        for place, element in enumerate(elements):
            sent, arrived = pickle.loads(pickle.dumps((function, element)))
            try:
                result = self._around(sent, arrived, bool(lost))
            except ProcessDied:
                lost[place] = OutOfMemory("a process of the tests died")
            else:
                self._ended = {**self._ended, place: pickle.loads(pickle.dumps(result))}
        return lost

    def ended(self) -> Mapping[int, ResultT]:
        return self._ended
