"""The peak memory of a step's Python worker, for the round's completion."""

from __future__ import annotations

import resource

_BYTES_PER_KIBIBYTE = 1024


def peak_memory_bytes() -> int:
    """The largest resident size of this process so far. A reused worker includes the peak of its earlier tasks."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _BYTES_PER_KIBIBYTE
