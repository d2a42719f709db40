"""Between dedupe and materialize: from the row counts of all buckets, where every surviving row will come to lie. Pure.

The compacted rows of a round are ordered by materialize task, source file, dedupe task (seed 000). So the place of a
bucket's first row of a source file, within what its materialize task writes, is a sum of counts; and a row's compacted
pointer is known before the row has been read: the predictive index of the paper, by way of Spark's stage boundary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from compactor.planning import CompactedSource, RoundPlan

ROWS_PER_SMALL_FILE = 250_000
"""Rather than leave a core idle, a round writes files smaller than asked for, but not smaller than this many rows."""

CARRIED = -1


@dataclass(frozen=True)
class BucketCounts:
    """What one dedupe task found: one count per source file that keeps rows, and the bucket's bookkeeping.

    ordinals          int32 (files,)
    rows              int64 (files,): surviving rows of that file in this bucket
    tombstones_added  less those that ended; may be negative
    hash_seconds      this bucket's share of what the hash bucket tasks took
    """

    hash_bucket: int
    ordinals: npt.NDArray[np.int32]
    rows: npt.NDArray[np.int64]
    rows_in: int
    rows_deduplicated: int
    rows_deleted: int
    tombstones_added: int
    hash_seconds: float
    hash_peak_memory_bytes: int
    peak_memory_bytes: int


@dataclass(frozen=True)
class MaterializeLayout:
    """Who writes which source file's rows, and where.

    tasks               int64 (sources,): the materialize task of a source file; CARRIED: by reference, or no rows left
    places              int64 (sources, hash buckets): place, in its task's output, of the first row of (source, bucket)
    first_file_numbers  int64 (tasks,): number of the first compacted file that a task writes
    rows_of_tasks       int64 (tasks,): rows that a task writes
    carried             ordinals of compacted files that are carried over by reference
    marked              of those, the ones of which rows died: they get a new deletion vector
    carried_rows        live rows in carried files
    """

    tasks: npt.NDArray[np.int64]
    places: npt.NDArray[np.int64]
    first_file_numbers: npt.NDArray[np.int64]
    rows_of_tasks: npt.NDArray[np.int64]
    carried: tuple[int, ...]
    marked: tuple[int, ...]
    carried_rows: int

    @property
    def task_count(self) -> int:
        return len(self.rows_of_tasks)

    @property
    def first_file_numbers_by_source(self) -> npt.NDArray[np.int64]:
        """Of each source file's task; 0 for a source file without one."""
        return np.append(self.first_file_numbers, 0)[self.tasks]


def lay_out(plan: RoundPlan, counts: Sequence[BucketCounts]) -> MaterializeLayout:
    """Assigns source files to materialize tasks, in order and balanced by rows, and numbers the files they write."""
    per_source = np.zeros((len(plan.sources), plan.hash_bucket_count), np.int64)
    for bucket in counts:
        per_source[bucket.ordinals, bucket.hash_bucket] = bucket.rows
    surviving = per_source.sum(axis=1)
    carried = tuple(file.ordinal for file in plan.compacted if _stays(plan, file, int(surviving[file.ordinal])))
    to_write = surviving.copy()
    to_write[list(carried)] = 0
    tasks = _assign(to_write, plan)
    task_count = int(tasks.max(initial=CARRIED)) + 1

    written = np.where((tasks != CARRIED)[:, None], per_source, 0)
    flat = written.reshape(-1)
    running = np.concatenate(([0], np.cumsum(flat)))
    rows_of_tasks = np.bincount(tasks[tasks != CARRIED], weights=to_write[tasks != CARRIED], minlength=task_count)
    rows_of_tasks = rows_of_tasks.astype(np.int64)
    starts_of_tasks = np.concatenate(([0], np.cumsum(rows_of_tasks)))
    # Tasks take consecutive sources, so a running sum over (source, bucket) less the task's start is the place.
    start_of_source = np.where(tasks != CARRIED, starts_of_tasks[tasks], 0)
    places = running[:-1].reshape(written.shape) - start_of_source[:, None]
    files_of_tasks = -(-rows_of_tasks // plan.output.rows_per_compacted_file)
    first_file_numbers = plan.output.next_file_number + np.concatenate(([0], np.cumsum(files_of_tasks)[:-1]))
    return MaterializeLayout(
        tasks=tasks,
        places=places,
        first_file_numbers=first_file_numbers.astype(np.int64)[:task_count],
        rows_of_tasks=rows_of_tasks,
        carried=carried,
        marked=tuple(ordinal for ordinal in carried if surviving[ordinal] < plan.sources[ordinal].live_rows),
        carried_rows=int(surviving[list(carried)].sum()),
    )


def _stays(plan: RoundPlan, file: CompactedSource, live_rows: int) -> bool:
    """Whether a compacted file is kept as it is: it still has rows, and not too many of them are dead."""
    return live_rows > 0 and file.rows - live_rows <= plan.output.max_dead_row_share * file.rows


def _assign(to_write: npt.NDArray[np.int64], plan: RoundPlan) -> npt.NDArray[np.int64]:
    """Consecutive source files per task; a task per full file's worth of rows, or per core where the rows allow it."""
    total = int(to_write.sum())
    tasks = np.full(len(to_write), CARRIED, np.int64)
    has_rows = np.flatnonzero(to_write)
    if not total:
        return tasks
    full_files = -(-total // plan.output.rows_per_compacted_file)
    wanted = max(full_files, min(plan.tasks, total // ROWS_PER_SMALL_FILE), 1)
    # A file belongs to the task in whose share of the rows its middle lies.
    middles = np.cumsum(to_write[has_rows]) - to_write[has_rows] / 2
    shares = np.minimum((middles * wanted / total).astype(np.int64), wanted - 1)
    _, tasks[has_rows] = np.unique(shares, return_inverse=True)
    return tasks
