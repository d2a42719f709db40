"""What a step's Python worker has held at most, for the round's completion."""

from __future__ import annotations

import resource

_BYTES_PER_KIBIBYTE = 1024


def peak_memory_bytes() -> int:
    """The largest resident size of this process so far. A reused worker reports what an earlier task of it needed."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _BYTES_PER_KIBIBYTE
