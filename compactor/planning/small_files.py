"""Which small compacted files of a partition are merged into fewer. Pure.

Each run of new keys leaves a file, and a file that no later round touches would stay small for ever. A file is *small*
if it has less than a quarter of what a compacted file takes; in a table without a key, less than half. Small files that
follow each other in file order, whatever larger ones lie between them, are merged if they fit one compacted file, and
none of them has more bytes than all others of the group together. So the file of every byte that is rewritten grows to
twice its size at least, and over the life of a table at most log2(files) times its bytes are rewritten by merges, for
files of any sizes and in any order.

Where rows keep their order, only the last files can be merged. So they are merged, however few they are, with what
arrives if that makes a file that is not small: behind it they would stay small for ever.

Worked: files of 8, 1, 1, 1, 1, 1, 1 and 1 MB: the seven are merged, since the first is larger than they together. With
another one of 1 MB all nine are.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Self

from compactor.catalog.properties import NO_PROPERTIES
from compactor.model.files import DataFile, DeletionVector

SMALL_FILE_SHARE = 0.25
"""A file with less than this share of a compacted file's rows and bytes is small."""

SMALL_SHARE_IN_ORDER = 0.5
"""Likewise in a table without a key, whose rows no later round rewrites: each is merged once more, by reference."""

MERGES_PER_ROUND = 64
"""The most files that a round makes of small ones; what is left waits for later rounds. Worked: at 512 MiB each, they
have 32 GiB, and at 4 million rows each, the indices of their rows take 1 GB of scratch folders."""


def rows_that_fit(files: Collection[DataFile], rows_max: int, bytes_max: int | None) -> int:
    """How many rows of a size that these files have on average a file takes, at most `rows_max`."""
    size_bytes, rows = sum(file.size_bytes for file in files), sum(file.rows for file in files)
    if bytes_max is None or not size_bytes or not rows:
        return rows_max
    return max(1, min(rows_max, bytes_max * rows // size_bytes))


@dataclass(frozen=True)
class MergeLimits:
    """When small files are merged, and how large a file becomes.

    Attributes:
        rows_per_file, bytes_per_file: of a compacted file at most; `bytes_per_file` None: only rows count
        in_order: rows keep their order, in a table without a key: only the last files are merged
        small_files, share: so many small files, and so large a share of all files, are merged; 0: none ever are"""

    rows_per_file: int
    bytes_per_file: int | None = None
    small_files: int = NO_PROPERTIES.merge_small_files
    share: float = NO_PROPERTIES.merge_small_files_share
    in_order: bool = False

    def of(self, files: Collection[DataFile]) -> Self:
        """With the rows of these files in the bytes of one, if they are fewer: as many as a round writes to a file."""
        return replace(self, rows_per_file=rows_that_fit(files, self.rows_per_file, self.bytes_per_file))

    def are_enough(self, small: int, files: int) -> bool:
        """Whether so many small files among `files` are merged."""
        return bool(self.small_files) and small >= max(self.small_files, 2) and small >= self.share * files


@dataclass(frozen=True)
class _Size:
    """The live rows of a file, and their share of its bytes."""

    file_number: int
    rows: int
    size_bytes: int


def small_files(
    files: Mapping[int, DataFile], vectors: Collection[DeletionVector], limits: MergeLimits
) -> tuple[int, ...]:
    """Numbers of the small ones among live compacted files, ascending.

    Args:
        vectors: of the files that have dead rows: only live rows count"""
    return tuple(size.file_number for size in _small(files, vectors, limits.of(files.values())))


def small_files_to_merge(
    files: Mapping[int, DataFile],
    vectors: Collection[DeletionVector],
    limits: MergeLimits,
    arriving: Collection[DataFile] = (),
) -> tuple[tuple[int, ...], ...]:
    """Groups of small files, each of which becomes one file, by their numbers; no more than one round makes. None: too
    few files are small, or all are too different in size.

    Args:
        arriving: where rows keep their order: files of deltas, whose rows are written behind those of the last small
            files"""
    behind = _Size(0, sum(file.rows for file in arriving), sum(file.size_bytes for file in arriving))
    if not (limits.in_order and arriving) and not limits.are_enough(len(files), len(files)):
        return ()
    limits = limits.of(files.values())
    small = _small(files, vectors, limits)
    if limits.in_order:
        small = _tail(small, sorted(files))
    is_last_chance = limits.in_order and limits.small_files > 0 and not _is_small(behind, limits)
    if not is_last_chance and not limits.are_enough(len(small), len(files)):
        return ()
    if limits.in_order:
        count = _length_of_end(small, behind.size_bytes)
        return (tuple(size.file_number for size in small[-count:]),) if count else ()
    groups: list[tuple[int, ...]] = []
    start = 0
    while start < len(small) and len(groups) < MERGES_PER_ROUND:
        count = _length_of_group(small, start, limits)
        if count:
            groups.append(tuple(size.file_number for size in small[start : start + count]))
        start += max(count, 1)
    return tuple(groups)


def _small(files: Mapping[int, DataFile], vectors: Collection[DeletionVector], limits: MergeLimits) -> Sequence[_Size]:
    dead = {vector.file_number: vector.rows for vector in vectors}
    sizes = (_size_of(files[number], dead.get(number, 0)) for number in sorted(files))
    return [size for size in sizes if _is_small(size, limits)]


def _size_of(file: DataFile, dead_rows: int) -> _Size:
    rows = file.rows - dead_rows
    return _Size(file.file_number, rows, file.size_bytes * rows // max(file.rows, 1))


def _is_small(size: _Size, limits: MergeLimits) -> bool:
    bytes_max, share = limits.bytes_per_file, SMALL_SHARE_IN_ORDER if limits.in_order else SMALL_FILE_SHARE
    return size.rows < share * limits.rows_per_file and (bytes_max is None or size.size_bytes < share * bytes_max)


def _length_of_group(small: Sequence[_Size], start: int, limits: MergeLimits) -> int:
    """How many files from `start` on are merged, as many as possible; 0: fewer than two can be."""
    rows = size_bytes = largest = found = 0
    for end in range(start, len(small)):
        rows, size_bytes = rows + small[end].rows, size_bytes + small[end].size_bytes
        largest = max(largest, small[end].size_bytes)
        if rows > limits.rows_per_file or (limits.bytes_per_file is not None and size_bytes > limits.bytes_per_file):
            break
        if end > start and 2 * largest <= size_bytes:
            found = end + 1 - start
    return found


def _tail(small: Sequence[_Size], numbers: Sequence[int]) -> Sequence[_Size]:
    """Those that no larger file follows."""
    pairs = zip(reversed(small), reversed(numbers), strict=False)
    count = sum(1 for _ in takewhile(lambda pair: pair[0].file_number == pair[1], pairs))
    return small[len(small) - count :]


def _length_of_end(small: Sequence[_Size], arriving_bytes: int) -> int:
    """The most of the last files that are merged; none is larger than the others and what arrives. 0: none."""
    size_bytes, largest, found = arriving_bytes, 0, 0
    for count, size in enumerate(reversed(small), 1):
        size_bytes, largest = size_bytes + size.size_bytes, max(largest, size.size_bytes)
        if (count > 1 or arriving_bytes) and 2 * largest <= size_bytes:
            found = count
    return found
