"""A round of a table without a key: every row survives, and rows keep their order. So the layout is known without
reading a row, and the writers are told row numbers that a dedupe would find for other tables."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from compactor.model.machine import peak_memory_bytes
from compactor.planning.round_plan import RoundPlan
from compactor.steps.index_update import BucketForWriter, RowsOfFiles
from compactor.steps.parts import Parts
from compactor.steps.placement import BucketCounts, MaterializeLayout, NumbersByPart, Writers

_ONLY_BUCKET = 0


def count_all(plan: RoundPlan) -> BucketCounts:
    """The counts of a dedupe that keeps every row."""
    rows = np.array([file.rows for file in plan.sources], np.int64)
    return BucketCounts(
        hash_bucket=_ONLY_BUCKET,
        rows=NumbersByPart.of(Parts.of_round(plan).row_counts(rows)),
        rows_in=int(rows.sum()),
        rows_deduplicated=0,
        rows_deleted=0,
        tombstones_added=0,
        hash_seconds=0.0,
        hash_peak_memory_bytes=0,
        peak_memory_bytes=peak_memory_bytes(),
    )


@dataclass(frozen=True)
class RowsOfTask:
    """Parts of source files that a materialize task writes, whole and in order.

    Attributes:
        ordinals, parts: of each: its source file, and its number
        first_rows, row_counts: of each: where it begins in its file, and how many rows it has"""

    writer: int
    task: int
    ordinals: tuple[int, ...]
    parts: tuple[int, ...]
    first_rows: tuple[int, ...]
    row_counts: tuple[int, ...]


def rows_of_tasks(plan: RoundPlan, layout: MaterializeLayout, writers: Writers) -> list[RowsOfTask]:
    """One for each materialize task."""
    all_parts, pieces = Parts.of_round(plan), layout.pieces
    ordinals, first_rows = all_parts.ordinals, all_parts.first_rows
    found = []
    for task in range(layout.task_count):
        here = np.flatnonzero(pieces.tasks == task)
        parts = pieces.parts[here]
        found.append(
            RowsOfTask(
                writer=int(writers.of_tasks[task]),
                task=task,
                ordinals=tuple(ordinals[parts].tolist()),
                parts=tuple(parts.tolist()),
                first_rows=tuple(first_rows[parts].tolist()),
                row_counts=tuple(pieces.rows[here].tolist()),
            )
        )
    return found


def all_rows(rows: RowsOfTask) -> Iterator[tuple[int, BucketForWriter]]:
    """The rows of a task, addressed to its writer."""
    ranges = zip(rows.first_rows, rows.row_counts, strict=True)
    of_files = RowsOfFiles(
        np.array(rows.ordinals, np.int32),
        np.array(rows.parts, np.int32),
        np.array(rows.row_counts, np.int64),
        np.concatenate([np.arange(first, first + count, dtype=np.int64) for first, count in ranges]),
    )
    yield rows.writer, BucketForWriter(_ONLY_BUCKET, {rows.task: of_files}, {}, (), peak_memory_bytes())
