"""Decides where the sessions of `compact()` run, in the caller's process or on a Spark that is started for them; which
sessions of a dispatcher run in its warm workers, and which are small enough to share a Spark job. Pure.

A session needs a Spark if it is predicted to take as long in this process as a Spark takes to start, or does not fit
its memory. If none needs one, a Spark is still started if the sessions together gain more than its start. If there is
a Spark, every session runs where it ends sooner. Times are those of `time_model`, as in the session's plan.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from compactor.model.names import counted
from compactor.planning.own_errors import NONE_SEEN, PlaceFactors
from compactor.planning.sizing import (
    ROW_INDEX_BYTES,
    SESSION_SECONDS,
    TARGET_MEMORY_SHARE,
    Resources,
    SessionSize,
    count_rounds,
    dedupe_bytes_per_row,
    predicted_time,
    scratch_bytes,
)


@dataclass(frozen=True)
class InOneProcess:
    """A session in one process or one Spark task, on the engine of one core."""

    seconds: float
    """Predicted, from its beginning to its end."""

    bytes_held: int
    """Bytes of records in the process, at most."""

    memory_bytes: int
    """Memory of the process for the session."""

    start_seconds: float = SESSION_SECONDS
    """What the start of a Spark job of its own takes."""

    @property
    def reasons_for_spark(self) -> tuple[str, ...]:
        """Why it needs a Spark job of its own; none: it runs in one process."""
        reasons = []
        if self.seconds >= self.start_seconds:
            reasons.append(
                f"it may take {self.seconds:.1f} s in this process, and a Spark starts in {self.start_seconds:.1f} s"
            )
        limit = self.memory_bytes * TARGET_MEMORY_SHARE
        if self.bytes_held > limit:
            reasons.append(f"it may hold {self.bytes_held:,} bytes in this process, of {int(limit):,}")
        return tuple(reasons)

    @property
    def why(self) -> str:
        """Why it may share a Spark job, in a sentence."""
        figures = f"{self.seconds:.1f} s and {self.bytes_held:,} bytes at most in one task"
        return f"small: {figures}, and a Spark takes {self.start_seconds:.1f} s to start"

    def fits(self, memory_bytes: int) -> bool:
        """Whether it may run beside others, with so much of the memory."""
        return self.bytes_held <= memory_bytes * TARGET_MEMORY_SHARE


def in_one_process(
    size: SessionSize, max_rows_per_round: int | None, memory_bytes: int, start_seconds: float = SESSION_SECONDS
) -> InOneProcess:
    """`start_seconds`: of a Spark job of its own.

    Worked: 1,000 delta rows in one file of a folder: 0.015 s for the round and its entry, 0.002 s for the file.
    """
    here = Resources(memory_bytes, tasks=1, start_seconds=0.0, in_process=True)
    seconds = predicted_time(size, here, _rounds(size, max_rows_per_round)).seconds
    return InOneProcess(seconds, _bytes_held(size), memory_bytes, start_seconds)


@dataclass(frozen=True)
class SessionPlacement:
    """Where one session of `compact()` runs."""

    on_spark: bool

    why: str
    """A sentence with the figures."""

    alone: InOneProcess
    """The same session in this process."""

    def fits(self, memory_bytes: int) -> bool:
        """Whether it may run in this process, beside others, with so much of the memory."""
        return not self.on_spark and self.alone.fits(memory_bytes)


def choose_placements(
    sizes: Sequence[SessionSize], max_rows_per_round: int | None, memory_bytes: int, cores: int
) -> tuple[SessionPlacement, ...]:
    """Where each session runs.

    Worked: 1 million delta rows of 75 bytes in one file and no index: 0.5 s, less than the 5 s of a start. Ten sessions
    of 8 million on 8 cores: 3.5 s each here, 1.1 s on Spark: 24 s are gained for 5.

    Args:
        sizes: Of the sessions.
        max_rows_per_round: What the job run asks for.
        memory_bytes: Memory of a session in this process.
        cores: Those that a Spark on this machine would have.
    """
    alone = [in_one_process(size, max_rows_per_round, memory_bytes) for size in sizes]
    running = Resources(memory_bytes, cores, start_seconds=0.0)
    on_spark = [predicted_time(size, running, _rounds(size, max_rows_per_round)).seconds for size in sizes]
    gained_seconds = sum(max(here.seconds - there, 0.0) for here, there in zip(alone, on_spark))
    starts = any(here.reasons_for_spark for here in alone) or gained_seconds > SESSION_SECONDS
    return tuple(_placement(here, there, starts=starts) for here, there in zip(alone, on_spark))


@dataclass(frozen=True)
class WorkerPool:
    """The warm workers of a dispatcher.

    Attributes:
        workers: sessions, or groups of small ones, at a time
        memory_bytes: of one worker for its session, beside what it takes to start
        seconds: a session that is predicted to take as long there runs on Spark
        place_factors: as in `Resources`"""

    workers: int
    memory_bytes: int
    seconds: float = 30.0
    place_factors: PlaceFactors = NONE_SEEN


FAILED_IN_WORKERS_MAX = 2
"""Attempts in a row that may fail in workers: among others, then alone. The next one is on Spark."""


@dataclass(frozen=True)
class PlaceChosen:
    """Where a session of a dispatcher runs. `why`: a sentence with the figures."""

    in_worker: bool
    why: str


def choose_place(alone: InOneProcess, pool: WorkerPool, failures: int = 0) -> PlaceChosen:
    """Whether a session runs in a warm worker, or on the configured Spark.

    Worked: 1,000 delta rows in one file of a folder: 0.02 s, of 30, and 46 kB, of 204 MB: in a worker. 60 million rows:
    35 s: on Spark.

    Args:
        alone: the session in a process with the memory of a worker
        failures: its attempts in a row that failed without progress"""
    limit_bytes = int(pool.memory_bytes * TARGET_MEMORY_SHARE)
    reasons = []
    if alone.seconds >= pool.seconds:
        reasons.append(f"it may take {alone.seconds:.1f} s in a worker, and {pool.seconds:g} s or more are for Spark")
    if not alone.fits(pool.memory_bytes):
        reasons.append(f"it may hold {alone.bytes_held:,} bytes in a worker, of {limit_bytes:,}")
    if failures >= FAILED_IN_WORKERS_MAX:
        reasons.append(f"{failures} attempts in a row have failed")
    if reasons:
        return PlaceChosen(False, f"on Spark: {'; '.join(reasons)}")
    figures = f"{alone.seconds:.2f} s of {pool.seconds:g}, and {alone.bytes_held:,} bytes of {limit_bytes:,} at most"
    return PlaceChosen(True, f"in a worker: {figures}")


def why_together_on_spark(seconds: Sequence[float], open_sessions: int, pool: WorkerPool) -> str | None:
    """Why small sessions share a Spark job though each of them fits a worker; None: they run in workers.

    Worked: 1,000 sessions of 0.02 s, all that are open, in 2 workers: 10 s, of 30: in workers. 500 of 10,000: 100 s: on
    Spark.

    Args:
        seconds: predicted for some sessions of a job run, each
        open_sessions: sessions of the job run that have not ended: the others are taken to be alike"""
    sessions = max(open_sessions, len(seconds))
    together_seconds = sum(seconds) / max(len(seconds), 1) * sessions / pool.workers
    if sessions == 1 or together_seconds < pool.seconds:
        return None
    return (
        f"on Spark, with others: {sessions:,} small sessions may take {together_seconds:.1f} s in "
        f"{counted(pool.workers, 'worker')}, where less than {pool.seconds:g} s are spent on a job run"
    )


def _placement(alone: InOneProcess, on_spark_seconds: float, *, starts: bool) -> SessionPlacement:
    figures = f"{alone.seconds:.1f} s and {alone.bytes_held:,} bytes at most"
    gain_seconds = alone.seconds - on_spark_seconds
    if alone.reasons_for_spark:
        return SessionPlacement(True, f"on Spark: {'; '.join(alone.reasons_for_spark)}", alone)
    if not starts:
        why = f"in this process: {figures}, and a Spark takes {SESSION_SECONDS:.1f} s to start"
        return SessionPlacement(False, why, alone)
    if gain_seconds > 0:
        why = f"on Spark, which is started anyway: it gains {gain_seconds:.1f} s of {figures}"
        return SessionPlacement(True, why, alone)
    why = f"in this process: {figures}, and a Spark that runs takes {on_spark_seconds:.1f} s"
    return SessionPlacement(False, why, alone)


def _rounds(size: SessionSize, max_rows_per_round: int | None) -> int:
    return count_rounds(size, max_rows_per_round or max(size.delta_rows, 1), None)


def _bytes_held(size: SessionSize) -> int:
    """Bytes of records in this process, including those that Spark would keep in scratch folders, and of a row group
    that is held whole. Tasks take the rest."""
    rows, width = size.index_rows + size.delta_rows, size.sort_values_bytes
    of_tasks = rows * (dedupe_bytes_per_row(width) + ROW_INDEX_BYTES)
    return of_tasks + scratch_bytes(size.delta_rows, size.index_rows, width) + size.held_row_group_bytes
