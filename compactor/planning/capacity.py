"""What a plan needs at least, against what its machines have: a session that cannot fit is refused before anything is
launched, with both figures and what to change. Pure.

    driver   a count for each hash bucket and source file of a round
    scratch  the records of a round of one file, since files are not cut between rounds; of a rehash, all index rows
    task     a row group that is held whole while Arrow reads it; a hash bucket that is rehashed; the rows that one file
             has of each hash bucket

Other rows of a round are not checked: `size_session` makes rounds as small as need be, and refuses an unfit index.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from math import ceil

from compactor.model.errors import Invalid
from compactor.model.names import counted
from compactor.planning.sizing import (
    FILES_PER_ROUND_MIN,
    INDEX_BYTES_PER_ROW,
    REHASH_MEMORY_SHARE,
    ROW_INDEX_BYTES,
    Sizing,
    dedupe_bytes_per_row,
    rows_in_memory,
    scratch_bytes,
)

ORDER_BYTES = 8
"""Bytes of an index row's place in the order of new hash buckets, while its old bucket is divided."""


class Scarce(Enum):
    """What a machine may have too little of. More nodes of one kind have more scratch together, and nothing else."""

    DRIVER = auto()
    SCRATCH = auto()
    TASK = auto()


@dataclass(frozen=True)
class Shortage:
    """`why`: what does not fit, with both figures; `change`: what would help."""

    scarce: Scarce
    why: str
    change: str

    def __str__(self) -> str:
        return f"{self.why}: {self.change}"


def check_capacity(sizing: Sizing) -> None:
    """Raises `Invalid` with everything that cannot fit."""
    found = list(shortages(sizing))
    if found:
        raise Invalid(*map(str, found))


def shortages(sizing: Sizing) -> Iterator[Shortage]:
    """Everything that cannot fit. What is not known of a machine is enough."""
    yield from _of_driver(sizing)
    yield from _of_scratch(sizing)
    yield from _of_task(sizing)


def _of_driver(sizing: Sizing) -> Iterator[Shortage]:
    size, have = sizing.size, sizing.resources.driver_memory_bytes
    files = min(size.delta_files, FILES_PER_ROUND_MIN)
    needed = sizing.driver_bytes(files)
    if have is None or needed <= have:
        return
    # Counts are proportional to the hash buckets, the rest is not.
    without = 2 * needed - sizing.driver_bytes(files, hash_buckets=2 * sizing.hash_bucket_count)
    fitting = sizing.hash_bucket_count * (have - without) // max(needed - without, 1)
    holds_index = rows_in_memory(sizing.resources.task_memory_bytes, fitting, size.sort_values_bytes) > size.index_rows
    fewer = f"ask for at most {fitting:,} hash buckets (hash_bucket_count), " if holds_index else ""
    sources, buckets = counted(size.compacted_files + files, "source file"), counted(sizing.hash_bucket_count, "bucket")
    yield Shortage(
        Scarce.DRIVER,
        f"{sources} in {buckets} take {needed:,} bytes of the driver's memory, which has {have:,}",
        f"{fewer}write larger compacted files (rows_per_compacted_file), or give the driver more memory",
    )


def _of_scratch(sizing: Sizing) -> Iterator[Shortage]:
    size, have = sizing.size, sizing.resources.scratch_bytes
    if have is None:
        return
    rows = size.largest_delta_file_rows
    needed = scratch_bytes(rows, 0, size.sort_values_bytes) if size.has_key else rows * ROW_INDEX_BYTES
    if needed > have:
        fitting = rows * have // needed
        yield Shortage(
            Scarce.SCRATCH,
            f"the largest delta file has {counted(rows, 'row')}, whose round takes {needed:,} bytes of scratch "
            f"folders, which have {have:,}, and a file is not cut between rounds",
            f"write files of at most {fitting:,} rows, or give executors more disk",
        )
    moved = sizing.rehash_scratch_bytes
    if moved > have:
        yield Shortage(
            Scarce.SCRATCH,
            f"{counted(size.index_rows, 'index row')} are rehashed from {size.inherited_hash_bucket_count or 0:,} to "
            f"{counted(sizing.hash_bucket_count, 'hash bucket')} over {moved:,} bytes of scratch folders, which have "
            f"{have:,}",
            f"give executors more disk, or keep the {size.inherited_hash_bucket_count or 0:,} hash buckets and give "
            "tasks more memory",
        )


def _of_task(sizing: Sizing) -> Iterator[Shortage]:
    size, needed = sizing.size, sizing.size.held_row_group_bytes
    have = int(sizing.resources.task_memory_bytes / sizing.share_of_memory)
    if sizing.rehash_scratch_bytes:
        per_row = INDEX_BYTES_PER_ROW + size.sort_values_bytes + ORDER_BYTES
        of_bucket = -(-size.index_rows * per_row // (size.inherited_hash_bucket_count or 1))
        if of_bucket > have:
            yield Shortage(
                Scarce.TASK,
                f"{counted(size.index_rows, 'index row')} are rehashed from "
                f"{counted(size.inherited_hash_bucket_count or 1, 'hash bucket')}, each of which one task reads: that "
                f"is at least {of_bucket:,} bytes, and a task has {have:,} bytes of memory",
                "give each task more memory for this rehash: more in all, or fewer tasks side by side",
            )
    rows, per_row = size.largest_delta_file_rows, dedupe_bytes_per_row(size.sort_values_bytes)
    if size.has_key and rows > rows_in_memory(have, sizing.hash_bucket_count, size.sort_values_bytes):
        enough = ceil(rows * per_row / (REHASH_MEMORY_SHARE * have))
        yield Shortage(
            Scarce.TASK,
            f"the largest delta file has {counted(rows, 'row')} of {per_row} bytes in "
            f"{counted(sizing.hash_bucket_count, 'hash bucket')}, each of which one task holds in "
            f"{REHASH_MEMORY_SHARE:.0%} of its {have:,} bytes of memory, and a file is not cut between rounds",
            f"ask for {counted(enough, 'hash bucket')} or more (hash_bucket_count), or write smaller files",
        )
    if needed > have:
        yield Shortage(
            Scarce.TASK,
            f"the largest row group of the delta files has {needed:,} stored bytes, which one task holds at once, and "
            f"a task has {have:,} bytes of memory",
            "write smaller row groups, or give each task more memory: more in all, or fewer tasks side by side",
        )
