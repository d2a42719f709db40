"""Divides a machine's resources among sessions and tasks: one policy for `compact()`, the dispatcher and the demo.
Pure.
"""

from __future__ import annotations

from compactor.planning.sizing import Resources

MIB = 1024**2
GIB = 1024 * MIB

SERVICE_MEMORY_SHARE = 0.75
"""Share of a machine's memory for all sessions of a service together; the rest is for the operating system and the
file cache.
"""

GUEST_MEMORY_SHARE = 0.5
"""Share of a machine's memory for the tasks of a session inside another program; the rest is for that program, its
data and the driver's JVM.
"""

TASK_MEMORY_BYTES_MAX = 8 * GIB
"""The paper recommends 8 GiB per core; more would only make hash buckets larger."""

DRIVER_MEMORY_BYTES_MIN = 512 * MIB
DRIVER_SHARE = 0.1
"""Share of a session's memory. The JVM schedules and moves shuffle files; the Python workers hold the rows."""


def tasks_of(memory_bytes: int, cores: int) -> Resources:
    """A task per core, each with an even share of the memory, at most `TASK_MEMORY_BYTES_MAX`.

    Worked: 12 GiB and 4 cores are 4 tasks of 3 GiB.
    """
    return Resources(min(max(memory_bytes // cores, MIB), TASK_MEMORY_BYTES_MAX), cores)


def guest_share(machine_memory_bytes: int, cores: int) -> Resources:
    """The resources of a session on a machine that it shares with the calling program."""
    return tasks_of(int(machine_memory_bytes * GUEST_MEMORY_SHARE), cores)


def service_memory_bytes(machine_memory_bytes: int) -> int:
    """The memory of all sessions of a service together."""
    return int(machine_memory_bytes * SERVICE_MEMORY_SHARE)


def session_share(memory_bytes: int, cores: int, sessions: int) -> tuple[Resources, int]:
    """The share of one of `sessions` concurrent sessions in a service's memory and cores, and its driver's memory in
    bytes.

    Worked: 32 GiB and 8 cores for 2 sessions are 16 GiB and 4 cores each: a driver of 1.6 GiB, and 4 tasks of 3.6 GiB.
    """
    session_bytes = memory_bytes // sessions
    driver_memory_bytes = max(int(session_bytes * DRIVER_SHARE), DRIVER_MEMORY_BYTES_MIN)
    return tasks_of(session_bytes - driver_memory_bytes, max(cores // sessions, 1)), driver_memory_bytes
