"""What this process runs on: the release of Lithify, and the cores, memory and disk of its machine or container."""

import os
import re
import resource
import shutil
from functools import lru_cache
from importlib import metadata
from pathlib import Path

_BYTES_PER_KIBIBYTE = 1024
_PEAK = re.compile(rb"^VmHWM:\s+(\d+) kB", re.MULTILINE)
_STATUS_BYTES = 4096

_CONTAINER_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")
"""The memory limits of the kernel's control groups, version 2 and version 1; a container sees its own as the root."""


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_disk_bytes(folder: Path) -> int:
    """Free bytes on the disk of a folder, which need not exist yet."""
    existing = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
    return shutil.disk_usage(existing).free


def usable_memory_bytes(control_groups: Path = Path("/sys/fs/cgroup")) -> int:
    """The machine's memory, or the container's limit if that is less."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for name in _CONTAINER_LIMITS:
        path = control_groups / name
        text = path.read_text().strip() if path.is_file() else ""
        # Without a limit it is the word `max`, or a number above any memory.
        if text.isdigit():
            limits.append(int(text))
    return min(limits)


def peak_memory_bytes() -> int:
    """The largest resident size of this process so far. A reused worker includes the peak of its earlier tasks."""
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    kibibytes = _own_peak(largest)
    if kibibytes < largest:  # `getrusage` counts the process that started this one, too, so it hides a growth
        _own_peak.cache_clear()
        kibibytes = _own_peak(largest)
    return kibibytes * _BYTES_PER_KIBIBYTE


@lru_cache(maxsize=1)
def _own_peak(largest: int) -> int:
    """In KiB. It is read again when `largest`, which is read fifty times faster, has grown."""
    try:
        found = _PEAK.search(os.pread(_status_of(os.getpid()), _STATUS_BYTES, 0))
    except OSError:
        found = None
    return largest if found is None else int(found[1])


@lru_cache(maxsize=1)
def _status_of(process_id: int) -> int:
    """A descriptor of this process's status, which stays open: a task reads it several times. A forked process has
    another id, and opens its own."""
    return os.open(f"/proc/{process_id}/status", os.O_RDONLY)


@lru_cache(maxsize=1)
def this_release() -> str:
    """The version of Lithify; "unknown" if it is not installed: the source folder is on the path."""
    try:
        return metadata.version("lithify")
    except metadata.PackageNotFoundError:
        return "unknown"


def resident_bytes(process_id: int) -> int | None:
    """The resident size of a process now. None: it has ended, or this system does not tell."""
    try:
        pages = int(Path(f"/proc/{process_id}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")
