"""What a task's memory is divided into, and how much a task reads and writes. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

HASH_BYTES_PER_ROW = 32
"""Bytes of a hash task per row, without sort values: digest 20, position in the order by bucket 8, bucket 4."""

HASH_MEMORY_SHARE = 0.25
"""Share of a task's memory for those rows: 4 GiB hold 33 million of them, 256 MiB two million. The rest is for
decoded batches, the worker's own needs, and memory that earlier tasks of the worker did not release."""

WRITER_BYTES_PER_ROW = 16
"""Bytes of a writer per written row: the row's index in its source as received, and once more sorted."""

WRITER_MEMORY_SHARE = 0.25
"""Share of a task's memory for those row indices: 4 GiB hold those of 67 million rows, 256 MiB of four million."""

DECODED_MEMORY_SHARE = 0.25
"""Share of a task's memory for a source file that is decoded whole. A larger one is read by pages, or parts."""

PIECE_MEMORY_SHARE = 1 / 8
"""Share of a task's memory for the rows of one row group that is written, which are there in their old and new form."""

PART_MEMORY_SHARE = 1 / 64
PART_BYTES_MAX = 8 * 1024 * 1024
"""Share of a task's memory, and most bytes, for the stored bytes of a part of a large file: 256 MiB give 4 MiB. A row
group takes several parts, so that few of them belong to two."""

DIVIDED_MEMORY_SHARE = 1 / 16
"""A file with more stored bytes than this share of a task's memory has parts. Decoded a smaller one is 4 times that."""


@dataclass(frozen=True)
class MemoryPart:
    """A bounded part of a task's memory."""

    share: float
    bytes_max: int

    def of(self, task_memory_bytes: int) -> int:
        return min(int(task_memory_bytes * self.share), self.bytes_max)


AHEAD = MemoryPart(1 / 16, 64 * 1024**2)
"""Bytes asked of an object store, or received, before a task needs them: 256 MiB give 16 MiB, 1 GiB gives 64."""

KEPT_INDEX = MemoryPart(1 / 16, 256 * 1024**2)
"""Pages of a remote index that dedupe has read, kept until the new run is written: 256 MiB give 16 MiB, which hold the
file numbers of 4 million rows or more. Spark's workers keep them on a scratch disk for all of their machine
(`index.shared_pages`), and of those this much mapped."""

SENT_INDEX = MemoryPart(1 / 16, 64 * 1024**2)
"""New index files that are being uploaded while the next ones, and compacted files, are written: 256 MiB give 16 MiB,
the new run of half a million rows."""

BYTES_PER_TASK = 4 * 1024**3
"""Bytes of files per hash task or writer, which takes minutes to read from a remote store. A larger file that cannot be
cut is a task of its own."""

ROWS_PER_SMALL_FILE = 250_000
"""Least rows of a file: to use all cores, a round may write files smaller than requested, but not smaller than this."""

ROWS_PER_CUT = 250_000
"""Rows of a large file for a task of their own, at least: each reads the file's footer again."""


def rows_per_hash_task(task_memory_bytes: int, sort_values_bytes: int) -> int:
    """Rows that a hash task holds at a time, at most. Worked: 256 MiB and 9 bytes of sort values are 1.6 million."""
    return max(int(HASH_MEMORY_SHARE * task_memory_bytes / (HASH_BYTES_PER_ROW + sort_values_bytes)), 1)


def rows_per_part(rows: int, size_bytes: int, task_memory_bytes: int) -> int:
    """Rows of each part of a file with so many rows and stored bytes. Worked: of 2 million rows of 600 bytes, 256 MiB
    give parts of 6,991 rows; of a file of 16 MiB, all rows."""
    if size_bytes <= DIVIDED_MEMORY_SHARE * task_memory_bytes:
        return rows
    return max(int(rows * _part_bytes(task_memory_bytes) / size_bytes), 1)


def parts_of(files: int, size_bytes: int, task_memory_bytes: int) -> int:
    """Parts of this many files of equal size, in all. Worked: 10 files of 64 MiB each, 1 GiB: 10; 512 MiB: 90."""
    if size_bytes <= DIVIDED_MEMORY_SHARE * task_memory_bytes * files:
        return files
    return files + int(size_bytes / _part_bytes(task_memory_bytes))


def _part_bytes(task_memory_bytes: int) -> float:
    return min(PART_MEMORY_SHARE * task_memory_bytes, PART_BYTES_MAX)


def rows_per_writer(task_memory_bytes: int) -> int:
    """Rows that a writer writes at most. Worked: 256 MiB are 4 million."""
    return max(int(WRITER_MEMORY_SHARE * task_memory_bytes / WRITER_BYTES_PER_ROW), 1)


def ends_of_pieces(rows: int, row_groups: Sequence[int]) -> tuple[int, ...]:
    """Where the smallest pieces of a file end that may be read by different tasks.

    Worked: a file of 10 row groups of 200,000 rows has 5 pieces; one whose row groups are not recorded is one.
    """
    ends: list[int] = []
    end = begin = 0
    for count in row_groups if sum(row_groups) == rows else ():
        if end - begin >= ROWS_PER_CUT and rows - end >= ROWS_PER_CUT:
            ends.append(begin := end)
        end += count
    return (*ends, rows)
