"""Writes the deletion vectors of compacted files that are kept although rows of them died. Part of materialize."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import numpy.typing as npt

from compactor.catalog.actions import DeletionVector
from compactor.catalog.paths import DeletionVectorPath
from compactor.deletion_vectors import read_dead_rows, write_dead_rows
from compactor.planning import RoundPlan
from compactor.steps.finish import RowsOfFiles

_VECTORS_AT_ONCE = 8
"""Vectors are small: to write one is to wait for the disk, or for the store."""


def mark_dead(plan: RoundPlan, blocks: Sequence[RowsOfFiles]) -> Iterator[DeletionVector]:
    """One vector per file: the rows that were dead before the round, and those that died in it."""
    died: dict[int, list[npt.NDArray[np.int64]]] = defaultdict(list)
    for block in blocks:
        died[int(block.ordinals[0])].append(block.row_indices)
    ordinals = sorted(died)
    with ThreadPoolExecutor(_VECTORS_AT_ONCE) as pool:
        yield from pool.map(partial(_write_vector, plan), ordinals, [died[ordinal] for ordinal in ordinals])


def _write_vector(plan: RoundPlan, ordinal: int, died: Sequence[npt.NDArray[np.int64]]) -> DeletionVector:
    file = plan.compacted[ordinal]
    dead_before = [] if file.vector is None else [read_dead_rows(plan.location, file.vector)]
    path = DeletionVectorPath(plan.output.index.stream, plan.commit_id, file.file_number)
    return write_dead_rows(plan.location, path, np.sort(np.concatenate([*died, *dead_before])))
