"""Finds one key in the index by range reads: a bounded number of them, whatever the table's size.

Digests are uniform, so the place of a digest among n sorted ones is its value's share of n, off by about the square
root of n at most. One read of a window there finds it; only in one of ten thousand cases a second window is needed.

    read 1     the head of an index file: where its columns begin
    read 2     a window of digests around the expected place (of 38,000,000 rows: half a MiB)
    reads 3-4  on a hit: the file number and the row index; where other pointers hold in place of the file's, their head
               is read before that
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Protocol

import numpy as np

from compactor.catalog.actions import IndexFile
from compactor.errors import Corrupt
from compactor.index.layout import DIGEST_BYTES, TOMBSTONE_FILE_NUMBER, VOID_FILE_NUMBER

_HEAD_BYTES = 16 * 1024
_MAGIC_BYTES = 8
_BUFFER_ALIGNMENT_BYTES = 8
_WINDOW_DEVIATIONS = 4
_WINDOW_ROWS_MIN = 64
_CONTINUATION = b"\xff\xff\xff\xff"


class RangeReads(Protocol):
    """What a lookup needs of an `ObjectStore`."""

    def read_range(self, key: str, start: int, length: int) -> bytes: ...


@dataclass(frozen=True)
class RowPointer:
    """Where a key's row lies: a compacted file and a row in it, from 0."""

    file_number: int
    row_index: int


def find_pointer(store: RangeReads, files: Sequence[IndexFile], digest: bytes) -> RowPointer | None:
    """The live row of a key; None for a key that is not there or was deleted. `files`: those of the digest's bucket."""
    newest_first = sorted(files, key=lambda file: (-file.run, file.part))
    for _, parts in groupby(newest_first, key=lambda file: file.run):
        pointer = _find_in_run(store, tuple(parts), digest)
        if pointer is not None:
            deleted = pointer.file_number in (TOMBSTONE_FILE_NUMBER, VOID_FILE_NUMBER)
            return None if deleted else pointer
    return None


def _find_in_run(store: RangeReads, parts: Sequence[IndexFile], digest: bytes) -> RowPointer | None:
    """Parts are sorted as their rows are. A digest that lies outside of the expected one is most often just over its
    border, and, where parts are small, further away: the neighbour is tried next, then the middle of what is left.
    """
    share = int.from_bytes(digest[:8], "big") / (1 << 64)
    lowest, highest = 0, len(parts) - 1
    number = _expected_part(parts, share)
    neighbour_tried = False
    while lowest <= highest:
        opened = _Head.read(store, parts[number])
        row, hit = _search(store, opened, _expected_row(parts, parts[number], share), digest)
        if hit:
            return opened.pointer(store, row)
        if 0 < row < parts[number].rows:
            return None
        if row == 0:
            highest = neighbour = number - 1
        else:
            lowest = neighbour = number + 1
        number = (lowest + highest) // 2 if neighbour_tried else neighbour
        neighbour_tried = True
    return None


def _search(store: RangeReads, opened: _Head, expected_row: int, digest: bytes) -> tuple[int, bool]:
    """Where the digest is in a file, and True; or where it would be, and False."""
    lower, upper = 0, opened.file.rows
    window = _Window.around(opened, expected_row)
    while lower < upper:
        raw = window.read(store, opened)
        rows = window.end - window.start
        found = bisect_left(range(rows), digest, key=partial(_digest_at, raw))
        if found < rows and _digest_at(raw, found) == digest:
            return window.start + found, True
        if 0 < found < rows:
            return window.start + found, False
        if found == 0:
            upper = window.start
            window = _Window(max(upper - 2 * rows, lower), upper)
        else:
            lower = window.end
            window = _Window(lower, min(lower + 2 * rows, upper))
    return lower, False


def _expected_part(parts: Sequence[IndexFile], share: float) -> int:
    starts = np.concatenate(([0], np.cumsum([part.rows for part in parts])))
    return min(int(np.searchsorted(starts, share * starts[-1], side="right")) - 1, len(parts) - 1)


def _expected_row(parts: Sequence[IndexFile], part: IndexFile, share: float) -> int:
    rows = sum(each.rows for each in parts)
    before = sum(each.rows for each in parts if each.part < part.part)
    return min(max(int(share * rows) - before, 0), part.rows - 1)


@dataclass(frozen=True)
class _Window:
    """Rows [start, end) of an index file."""

    start: int
    end: int

    @classmethod
    def around(cls, opened: _Head, row: int) -> _Window:
        reach = max(_WINDOW_DEVIATIONS * math.isqrt(opened.file.rows) // 2, _WINDOW_ROWS_MIN)
        return cls(max(row - reach, 0), min(row + reach, opened.file.rows))

    def read(self, store: RangeReads, opened: _Head) -> bytes:
        length = (self.end - self.start) * DIGEST_BYTES
        return store.read_range(opened.file.path, opened.digests_at + self.start * DIGEST_BYTES, length)


@dataclass(frozen=True)
class _Head:
    """Where the digests of an index file begin, in bytes."""

    file: IndexFile
    digests_at: int

    @classmethod
    def read(cls, store: RangeReads, file: IndexFile) -> _Head:
        return cls(file, _columns_at(store, file.path, file.size_bytes))

    def pointer(self, store: RangeReads, row: int) -> RowPointer:
        path, numbers_at = self.file.path, self.digests_at + _padded(DIGEST_BYTES * self.file.rows)
        if self.file.pointers is not None:
            path = self.file.pointers.path
            numbers_at = _columns_at(store, path, self.file.pointers.size_bytes)
        number = store.read_range(path, numbers_at + 4 * row, 4)
        row_index = store.read_range(path, numbers_at + _padded(4 * self.file.rows) + 8 * row, 8)
        return RowPointer(int.from_bytes(number, "little", signed=True), int.from_bytes(row_index, "little"))


def _columns_at(store: RangeReads, path: str, size_bytes: int) -> int:
    """Where the first column of an index file begins, in bytes."""
    head = store.read_range(path, 0, min(_HEAD_BYTES, size_bytes))
    try:
        schema_ends = _MAGIC_BYTES + _message_bytes(head, _MAGIC_BYTES)
        return schema_ends + _message_bytes(head, schema_ends)
    except (ValueError, IndexError) as error:
        raise Corrupt(f"{path} is not an index file: {error}") from error


def _digest_at(raw: bytes, row: int) -> bytes:
    return raw[row * DIGEST_BYTES : (row + 1) * DIGEST_BYTES]


def _message_bytes(head: bytes, at: int) -> int:
    """Length of the metadata of the IPC message that begins at `at`, its prefix included."""
    if head[at : at + 4] != _CONTINUATION:
        raise ValueError(f"no Arrow IPC message at byte {at}")
    return 8 + int.from_bytes(head[at + 4 : at + 8], "little")


def _padded(length: int) -> int:
    return -(-length // _BUFFER_ALIGNMENT_BYTES) * _BUFFER_ALIGNMENT_BYTES
