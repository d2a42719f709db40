"""Runs many calls of one function in this process: groups of one element first, one after the other; then all others in
threads, as many side by side as the largest group has elements.

A call that kills the process ends all of them: whoever started the process sees it (`launcher/clusters/workers.py`).
"""

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

        for number in range(len(elements)) if not groups else [group[0] for group in groups if len(group) == 1]:
            call(number)
        together = [group for group in groups if len(group) > 1]
        if together:
            # The groups only bound how many run at a time: none waits for the slowest of the group before it.
            with ThreadPoolExecutor(max(map(len, together)), thread_name_prefix="member") as threads:
                numbers = [number for group in together for number in group]
                for begun in [threads.submit(copy_context().run, call, number) for number in numbers]:
                    begun.result()
        return {}

    def ended(self) -> Mapping[int, ResultT]:
        return self._ended.copy()
