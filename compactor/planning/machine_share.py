"""Divides a machine's resources among sessions and tasks, for `compact()`, the dispatcher and the demo. Pure."""

from dataclasses import dataclass

from compactor.model.errors import Invalid
from compactor.planning.sizing import Resources
from compactor.planning.where_to_run import WorkerPool

MIB = 1024**2
GIB = 1024 * MIB

SERVICE_MEMORY_SHARE = 0.75
"""Share of a machine's memory for all sessions of a service; the rest is for the system and its file cache."""

GUEST_MEMORY_SHARE = 0.5
"""Share of a machine's memory for the tasks of a session inside another program, which has the rest with its JVM."""

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
    """The share of one of `sessions` concurrent ones in a service's memory and cores, and its driver's bytes.

    Worked: 32 GiB and 8 cores for 2 sessions are 16 GiB and 4 cores each: a driver of 1.6 GiB, and 4 tasks of 3.6 GiB.
    """
    session_bytes = memory_bytes // sessions
    driver_memory_bytes = max(int(session_bytes * DRIVER_SHARE), DRIVER_MEMORY_BYTES_MIN)
    return tasks_of(session_bytes - driver_memory_bytes, max(cores // sessions, 1)), driver_memory_bytes


WORKER_START_BYTES = 256 * MIB
"""What a worker holds before its first session: Python, libraries, kernels."""

WORKER_BYTES_MIN = 512 * MIB
WORKER_BYTES_MAX = 2 * GIB
"""Memory of one worker, at most, by default: a larger session has enough to do for a Spark."""

WORKERS_MEMORY_SHARE = 0.25
"""Share of a service's memory for its workers, if Spark runs on this machine, too."""

WORKERS_ALONE_MEMORY_SHARE = 0.5
"""Share of a service's memory for its workers, if Spark runs elsewhere. The rest is for the dispatcher."""


@dataclass(frozen=True)
class WorkersShare:
    """`memory_bytes`: that one worker may hold in all."""

    pool: WorkerPool
    memory_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.pool.workers * self.memory_bytes


def workers_share(
    service_bytes: int, cores: int, workers: int | None, seconds: float, *, spark_is_here: bool
) -> WorkersShare | None:
    """The workers of a dispatcher on a machine whose sessions together may hold `service_bytes`. None: there are none.

    Raises `Invalid`, with the figures, for more workers than the memory holds.

    Worked: 24 GiB of a machine and 8 cores: a quarter is 6 GiB, 8 workers of 768 MiB; of 3 GiB: one of 768 MiB; of 1.5
    GiB: none.

    Args:
        service_bytes: For all sessions on this machine.
        cores: Of the machine.
        workers: How many; None: one for each core, as far as there is memory; 0: none.
        seconds: As in `WorkerPool`.
        spark_is_here: Sessions on Spark take memory of this machine, too.
    """
    total_bytes = int(service_bytes * (WORKERS_MEMORY_SHARE if spark_is_here else WORKERS_ALONE_MEMORY_SHARE))
    count = min(cores, total_bytes // WORKER_BYTES_MIN) if workers is None else workers
    if count == 0:
        return None
    each_bytes = min(total_bytes // count, WORKER_BYTES_MAX)
    if each_bytes < WORKER_BYTES_MIN:
        raise Invalid(
            f"--workers {count}: {each_bytes // MIB:,} MiB are left for each, of {service_bytes / GIB:.1f} GiB for all "
            f"sessions, and a worker needs {WORKER_BYTES_MIN // MIB} MiB: lower --workers, or raise --memory-gib"
        )
    return WorkersShare(WorkerPool(count, each_bytes - WORKER_START_BYTES, seconds), each_bytes)
