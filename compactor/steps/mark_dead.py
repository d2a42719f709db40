"""Writes the deletion vectors of compacted files that are kept with dead rows. Part of materialize."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import numpy.typing as npt

from compactor.index.deletion_vectors import read_dead_rows, write_dead_rows
from compactor.index.keys import DeletionVectorPath
from compactor.model.files import DeletionVector
from compactor.planning.round_plan import CompactedSource
from compactor.steps.index_update import BucketForWriter
from compactor.steps.output_files import WriteStep

_VECTORS_AT_ONCE = 8
"""Vectors are small: writing one is mostly waiting for the disk or the store."""


def mark_dead(
    step: WriteStep, marked: Sequence[CompactedSource], bucket_outputs: Sequence[BucketForWriter], task_attempt: str
) -> Iterator[DeletionVector]:
    """One vector per file: rows that were dead before the round, and rows that died in it."""
    died = [[each.died[file.ordinal] for each in bucket_outputs if file.ordinal in each.died] for file in marked]
    with ThreadPoolExecutor(_VECTORS_AT_ONCE) as pool:
        yield from pool.map(partial(_write_vector, step, task_attempt), marked, died)


def _write_vector(
    step: WriteStep, task_attempt: str, file: CompactedSource, died: Sequence[npt.NDArray[np.int64]]
) -> DeletionVector:
    dead_before = [] if file.vector is None else [read_dead_rows(step.location, file.vector)]
    path = DeletionVectorPath(step.output.index.stream, step.commit_id, file.file_number, task_attempt)
    return write_dead_rows(step.location, path, np.sort(np.concatenate([*died, *dead_before])))
