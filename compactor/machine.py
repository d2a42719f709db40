"""What the machine, or the container around this process, lets it have."""

from __future__ import annotations

import os
from pathlib import Path

_CONTAINER_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")
"""Of version 2 of the kernel's control groups, and of version 1; a container sees its own group as the topmost."""


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def usable_memory_bytes(control_groups: Path = Path("/sys/fs/cgroup")) -> int:
    """The machine's memory, or what the container is limited to if that is less."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for name in _CONTAINER_LIMITS:
        path = control_groups / name
        text = path.read_text().strip() if path.is_file() else ""
        # Without a limit it is a word, or a number beyond all memory.
        if text.isdigit():
            limits.append(int(text))
    return min(limits)
