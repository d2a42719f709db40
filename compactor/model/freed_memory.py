"""When Python looks for memory that is free, and what glibc and Arrow do with it, on glibc only."""

import ctypes
import gc
import sys
from collections.abc import Callable

_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8
"""Parameters of `mallopt` (glibc's malloc.h)."""

_NEVER_TRIMMED_BYTES = 2**30
_ARENAS = 2

_YOUNG_OBJECTS_MAX = 5_000


def collect_seldom() -> None:
    """For a process that has loaded what it needs, and serves from now on: the collector scans that no more, and looks
    at new objects after so many of them; Python's 700 take it a tenth of the time of small sessions."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS_MAX)
    gc.enable()


def keep_freed_memory() -> None:
    """Lets glibc keep freed memory for the next task, up to the peak of a task, for which memory was planned.

    Otherwise glibc returns a freed large array to the kernel, which clears its pages again for the next array.
    """
    _adjust(_M_MMAP_MAX, 0)
    _adjust(_M_TRIM_THRESHOLD, _NEVER_TRIMMED_BYTES)


def keep_few_arenas() -> None:
    """For a process whose threads come and go: glibc keeps freed memory for each, in up to eight arenas a core."""
    _adjust(_M_ARENA_MAX, _ARENAS)


def return_freed_memory() -> None:
    """Returns to the system what Arrow and glibc keep, of all threads."""
    arrow = sys.modules.get("pyarrow")
    if arrow is not None:
        arrow.default_memory_pool().release_unused()
    trim = _of_glibc("malloc_trim")
    if trim is not None:
        trim(0)


def _adjust(parameter: int, value: int) -> None:
    adjust = _of_glibc("mallopt")
    if adjust is not None:
        adjust(parameter, value)


def _of_glibc(name: str) -> Callable[..., object] | None:
    return getattr(ctypes.CDLL(None), name, None)
