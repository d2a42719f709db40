"""Sends many reads or other short requests to a store in parallel, so that their round trips overlap."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from compactor.storage.location import StoreLocation

AT_ONCE = 16

ElementT = TypeVar("ElementT")
ResultT = TypeVar("ResultT")


def run_concurrently(
    location: StoreLocation,
    call: Callable[[ElementT], ResultT],
    elements: Sequence[ElementT],
    at_once: int = AT_ONCE,
    *,
    writes: bool = False,
) -> list[ResultT]:
    """The results of the calls, in order. Raises the first error.

    In a local folder the calls run one after the other, unless they write: a small file is read faster than a thread
    starts, and one that is written waits for the disk.
    """
    if len(elements) > 1 and (location.is_remote or writes):
        with ThreadPoolExecutor(at_once) as threads:
            return list(threads.map(call, elements))
    return [call(element) for element in elements]


def run_many(
    location: StoreLocation,
    call: Callable[[ElementT], ResultT],
    elements: Iterable[ElementT],
    at_once: int = AT_ONCE,
) -> Iterator[ResultT]:
    """Like `run_concurrently`, of any number of elements: each is taken when one before it has ended, and at most twice
    `at_once` results wait to be read. Calls that have begun are ended when an error is raised."""
    if not location.is_remote:
        yield from map(call, elements)
        return
    waiting: deque[Future[ResultT]] = deque()
    with ThreadPoolExecutor(at_once) as threads:
        for element in elements:
            waiting.append(threads.submit(call, element))
            if len(waiting) == 2 * at_once:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
