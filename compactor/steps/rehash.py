"""The rehash step (the paper, "Primary key index rehashing"): index rows for another bucket count, by digest.

No data file is read: the bucket follows from the digest, and rows do not move.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Self

import numpy as np

from compactor.index.files import IndexPart, IndexTarget, open_bucket, overlay_pieces, without_void, write_bucket
from compactor.index.layout import IndexRows
from compactor.kernels.hash_bucket import group_by_bucket, hash_buckets
from compactor.kernels.sort_values import SortColumn
from compactor.model.clock import SystemClock
from compactor.model.files import IndexFile
from compactor.planning.round_plan import RehashPlan
from compactor.planning.task_memory import SENT_INDEX
from compactor.steps.output_files import new_task_attempt
from compactor.storage.location import StoreLocation
from compactor.storage.sending import Sending

_ROWS_PER_RECORD = 16 * 1024
"""Rows of a new bucket that are sent at a time, about."""


@dataclass(frozen=True)
class RehashStep:
    """The arguments that all tasks of a rehash share: see `RehashPlan`.

    Attributes:
        rows_expected: of a new hash bucket"""

    location: StoreLocation
    sort_columns: tuple[SortColumn, ...]
    from_hash_bucket_count: int
    hash_bucket_count: int
    target: IndexTarget
    rows_expected: int
    index_bytes_sent: int

    @classmethod
    def of(cls, plan: RehashPlan) -> Self:
        return cls(
            location=plan.location,
            sort_columns=plan.sort_columns,
            from_hash_bucket_count=plan.from_hash_bucket_count,
            hash_bucket_count=plan.hash_bucket_count,
            target=plan.target,
            rows_expected=sum(file.rows for file in plan.index_files) // plan.hash_bucket_count,
            index_bytes_sent=SENT_INDEX.of(plan.task_memory_bytes),
        )


@dataclass(frozen=True)
class JoinedBucket:
    """The files of a new bucket, which may still be on their way."""

    files: tuple[IndexFile, ...]
    sending: Sending


def old_buckets(plan: RehashPlan) -> list[tuple[IndexFile, ...]]:
    """The index files of each old hash bucket that has any."""
    files: dict[int, list[IndexFile]] = defaultdict(list)
    for file in plan.index_files:
        files[file.hash_bucket].append(file)
    return [tuple(files[bucket]) for bucket in sorted(files)]


@dataclass(frozen=True)
class RowsOfRun:
    """Rows of one run of an old bucket, sorted by digest, that go to the same new bucket."""

    run: int
    rows: IndexRows


def split_bucket(step: RehashStep, files: Sequence[IndexFile]) -> Iterator[tuple[int, RowsOfRun]]:
    """Reads one old bucket, file by file; yields (new hash bucket, its rows) where there are any."""
    buckets = step.hash_bucket_count
    for file in files:
        (segment,) = open_bucket(step.location, [file], step.from_hash_bucket_count)
        for rows in IndexPart(segment).in_pieces(step.sort_columns, _ROWS_PER_RECORD * buckets):
            order, bounds = group_by_bucket(hash_buckets(rows.digests, buckets), buckets)
            for bucket in np.flatnonzero(np.diff(bounds)):
                yield int(bucket), RowsOfRun(file.run, rows.take(order[bounds[bucket] : bounds[bucket + 1]]))


def join_bucket(step: RehashStep, hash_bucket: int, blocks: Iterable[RowsOfRun]) -> JoinedBucket:
    """Writes one new bucket from the rows that the old ones gave it: the newest of each key."""
    sending, pieces = Sending(step.index_bytes_sent), ((-block.run, block.rows) for block in blocks)
    first = next(pieces, None)
    if first is None:
        return JoinedBucket((), sending)
    rows = without_void(overlay_pieces(chain([first], pieces), step.rows_expected)[0])
    task_attempt = new_task_attempt(SystemClock())
    files = write_bucket(
        step.location, step.target, hash_bucket, rows, step.sort_columns, task_attempt, sending=sending
    )
    return JoinedBucket(files, sending)
