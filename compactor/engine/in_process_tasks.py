"""Runs many calls of one function in this process: the groups one after the other, the elements of a group side by side
in threads.

A call that kills the process ends all of them: whoever started the process sees it (`launcher/clusters/workers.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Generic, TypeVar

from compactor.model.errors import LithifyError

ElementT = TypeVar("ElementT")
ResultT = TypeVar("ResultT")


class InProcessTasks(Generic[ElementT, ResultT]):
    """A `TaskRunner` of this process."""

    def __init__(self) -> None:
        self._ended: dict[int, ResultT] = {}

    def run(
        self,
        elements: Sequence[ElementT],
        function: Callable[[ElementT, bool], ResultT],
        groups: Sequence[Sequence[int]] = (),
    ) -> Mapping[int, LithifyError]:
        def call(number: int) -> None:
            # A single assignment, so that `ended` may copy it at any time.
            self._ended[number] = function(elements[number], False)

        for group in groups or [[number] for number in range(len(elements))]:
            if len(group) == 1:
                call(group[0])
                continue
            with ThreadPoolExecutor(len(group), thread_name_prefix="member") as threads:
                for begun in [threads.submit(copy_context().run, call, number) for number in group]:
                    begun.result()
        return {}

    def ended(self) -> Mapping[int, ResultT]:
        return self._ended.copy()
