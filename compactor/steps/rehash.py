"""The rehash step (seed 000, "Primary key index rehashing"): index rows to another bucket count, by digest modulo.

No data file is read: a digest knows its bucket, and its row does not move.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from compactor.catalog.actions import IndexFile
from compactor.index.files import IndexTarget, read_bucket, write_bucket
from compactor.index.layout import IndexRows
from compactor.kernels.digest_sort import digest_order
from compactor.kernels.hash_bucket import group_by_bucket, hash_buckets
from compactor.kernels.sort_values import SortColumn
from compactor.object_store import StoreLocation


@dataclass(frozen=True)
class RehashPlan:
    """What a rehash reads and writes. Travels to every task.

    keys                    live rows and tombstones of the stream: what the new index must hold
    from_hash_bucket_count  of the index as it is
    """

    location: StoreLocation
    index_files: tuple[IndexFile, ...]
    sort_columns: tuple[SortColumn, ...]
    from_index_version: int
    from_hash_bucket_count: int
    keys: int
    hash_bucket_count: int
    target: IndexTarget


def split_bucket(plan: RehashPlan, hash_bucket: int) -> Iterator[tuple[int, IndexRows]]:
    """Reads one old bucket; yields (new hash bucket, its rows) for every new bucket that gets any."""
    files = [file for file in plan.index_files if file.hash_bucket == hash_bucket]
    rows = read_bucket(plan.location, files, plan.sort_columns, plan.from_hash_bucket_count)
    order, bounds = group_by_bucket(hash_buckets(rows.words, plan.hash_bucket_count), plan.hash_bucket_count)
    for bucket in np.flatnonzero(np.diff(bounds)):
        yield int(bucket), rows.take(order[bounds[bucket] : bounds[bucket + 1]])


def join_bucket(plan: RehashPlan, hash_bucket: int, blocks: Sequence[IndexRows]) -> tuple[IndexFile, ...]:
    """Writes one new bucket from the rows that the old ones gave it."""
    if not blocks:
        return ()
    rows = IndexRows.concatenate(blocks)
    rows = rows.take(digest_order(rows.words))
    return write_bucket(plan.location, plan.target, hash_bucket, rows, plan.sort_columns)
