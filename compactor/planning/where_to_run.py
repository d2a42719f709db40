"""Decides where the sessions of `compact()` run, in the caller's process or on a Spark that is started for them, and
which sessions of a dispatcher are small enough to share a Spark job. Pure.

A session needs a Spark if it may take as long in this process as a Spark takes to start, or does not fit its memory.
If none needs one, a Spark is still started if the sessions together gain more than its start. If there is a Spark,
every session runs where it ends sooner. Times are the worst case: every compacted file may have to be rewritten.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compactor.planning.sizing import (
    ROW_INDEX_BYTES,
    SESSION_SECONDS,
    TARGET_MEMORY_SHARE,
    SessionSize,
    dedupe_bytes_per_row,
    scratch_bytes,
)

BYTES_PER_ROW = 75
"""Bytes of the rows for which `DELTA_ROWS_PER_SECOND_CORE` was measured: wider rows count as several."""

DELTA_ROWS_PER_SECOND_CORE = 1_310_000
"""Rows read, deduplicated and written, per second and core: as if each row were rewritten (`time_model` is more
exact, once a session's input is known).
"""

ROUND_SECONDS = 0.38
"""Seconds of one round on a running Spark: its two jobs, and its commit."""

ROUND_SECONDS_IN_PROCESS = 0.05
"""Seconds of one round in this process: its plan, and its commit."""

FILE_SECONDS = 0.002
"""Seconds to open a file of a lake on this machine, in each round that reads it."""

REMOTE_FILE_SECONDS = 0.05
"""The same on S3: several requests in sequence."""


@dataclass(frozen=True)
class ThisProcess:
    """The resources of this process, without starting a Spark.

    memory_bytes  memory of a session in this process
    cores         that a Spark on this machine would have
    lake_is_remote  every request to its store takes a round trip
    """

    memory_bytes: int
    cores: int
    lake_is_remote: bool = False


@dataclass(frozen=True)
class SessionPlacement:
    """Where one session runs. `why` is a sentence with the figures.

    in_process_bytes  that it may hold in this process
    """

    on_spark: bool
    why: str
    in_process_bytes: int

    def fits(self, memory_bytes: int) -> bool:
        """Whether the session may run in this process, beside others, with so much memory."""
        return not self.on_spark and self.in_process_bytes <= memory_bytes * TARGET_MEMORY_SHARE


@dataclass(frozen=True)
class _Cost:
    """The cost of a session. `on_spark_seconds`: on a running Spark."""

    in_process_seconds: float
    on_spark_seconds: float
    in_process_bytes: int

    def reasons_for_spark(self, process: ThisProcess, start_seconds: float = SESSION_SECONDS) -> list[str]:
        """Reasons why it cannot run in this process; none: it can."""
        reasons = []
        if self.in_process_seconds >= start_seconds:
            reasons.append(
                f"it may take {self.in_process_seconds:.1f} s in this process, "
                f"and a Spark starts in {start_seconds:.1f} s"
            )
        room = process.memory_bytes * TARGET_MEMORY_SHARE
        if self.in_process_bytes > room:
            reasons.append(f"it may hold {self.in_process_bytes:,} bytes in this process, of {int(room):,}")
        return reasons

    @property
    def gain_seconds(self) -> float:
        """Seconds that a running Spark saves."""
        return max(self.in_process_seconds - self.on_spark_seconds, 0.0)


def choose_placements(
    sizes: Sequence[SessionSize], max_rows_per_round: int | None, process: ThisProcess
) -> tuple[SessionPlacement, ...]:
    """Where each session runs.

    Worked: 1 million delta rows in one file and no index: 0.05 + 0.002 + 1,000,000 / 1,310,000 = 0.8 s, less than the
    5 s of a start. Ten such sessions on 2 cores: Spark takes 0.38 + 0.38 = 0.8 s for each as well, and gains
    next to nothing. Ten of 4 million rows: 3.1 s here, 1.9 s there: 12 s are gained for 5.
    """
    costs = [_cost_of(size, max_rows_per_round, process) for size in sizes]
    reasons = [cost.reasons_for_spark(process) for cost in costs]
    gained_seconds = sum(cost.gain_seconds for cost in costs)
    starts = any(reasons) or gained_seconds > SESSION_SECONDS
    return tuple(_placement(cost, why, starts) for cost, why in zip(costs, reasons))


@dataclass(frozen=True)
class InOneTask:
    """A session inside one Spark task, on the engine of one core.

    seconds            from its beginning to its end, at most
    reasons_for_spark  reasons for a Spark job of its own; none: it may share one
    why                the reason why it may share one, in a sentence
    in_process_bytes   that it may hold in the task
    """

    seconds: float
    reasons_for_spark: tuple[str, ...]
    why: str
    in_process_bytes: int

    def fits(self, memory_bytes: int) -> bool:
        """Whether it may share its task, with so much of the memory."""
        return self.in_process_bytes <= memory_bytes * TARGET_MEMORY_SHARE


def in_one_task(
    size: SessionSize, max_rows_per_round: int | None, process: ThisProcess, start_seconds: float = SESSION_SECONDS
) -> InOneTask:
    """`process` is the task, `start_seconds` the start of a Spark job of its own.

    Worked: 1,000 delta rows in one file of a folder: 0.05 + 0.002 + 0.001 = 0.05 s."""
    cost = _cost_of(size, max_rows_per_round, process)
    why = (
        f"small: {cost.in_process_seconds:.1f} s and {cost.in_process_bytes:,} bytes at most in one task, "
        f"and a Spark takes {start_seconds:.1f} s to start"
    )
    reasons = tuple(cost.reasons_for_spark(process, start_seconds))
    return InOneTask(cost.in_process_seconds, reasons, why, cost.in_process_bytes)


def _placement(cost: _Cost, reasons: list[str], starts: bool) -> SessionPlacement:
    held = cost.in_process_bytes
    if reasons:
        return SessionPlacement(True, f"on Spark: {'; '.join(reasons)}", held)
    seconds = f"{cost.in_process_seconds:.1f} s and {held:,} bytes at most"
    if not starts:
        return SessionPlacement(
            False, f"in this process: {seconds}, and a Spark takes {SESSION_SECONDS:.1f} s to start", held
        )
    if cost.gain_seconds > 0:
        return SessionPlacement(
            True, f"on Spark, which is started anyway: it gains {cost.gain_seconds:.1f} s of {seconds}", held
        )
    return SessionPlacement(
        False, f"in this process: {seconds}, and a Spark that runs takes {cost.on_spark_seconds:.1f} s", held
    )


def _cost_of(size: SessionSize, max_rows_per_round: int | None, process: ThisProcess) -> _Cost:
    rounds = _rounds(size, max_rows_per_round)
    rows = size.delta_rows + size.index_rows * rounds
    of_bytes = (size.delta_bytes + size.compacted_bytes * rounds) / BYTES_PER_ROW
    files = size.delta_files + size.compacted_files * rounds
    work = max(rows, of_bytes) / DELTA_ROWS_PER_SECOND_CORE
    work += files * (REMOTE_FILE_SECONDS if process.lake_is_remote else FILE_SECONDS)
    return _Cost(
        in_process_seconds=ROUND_SECONDS_IN_PROCESS * rounds + work,
        on_spark_seconds=ROUND_SECONDS * rounds + work / process.cores,
        in_process_bytes=_bytes_held(size),
    )


def _rounds(size: SessionSize, max_rows_per_round: int | None) -> int:
    """At most one for each delta file, since files are not split."""
    wanted = 1 if max_rows_per_round is None else -(-size.delta_rows // max_rows_per_round)
    return max(min(wanted, size.delta_files), 1)


def _bytes_held(size: SessionSize) -> int:
    """Bytes of records in this process, including those that Spark would keep in scratch folders. Tasks take the
    rest.
    """
    rows, width = size.index_rows + size.delta_rows, size.sort_values_bytes
    of_tasks = rows * (dedupe_bytes_per_row(width) + ROW_INDEX_BYTES)
    return of_tasks + scratch_bytes(size.delta_rows, size.index_rows, width)
