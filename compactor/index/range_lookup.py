"""Finds one key in the index by range reads: a bounded number of them, whatever the table's size.

Digests are uniform, so the position of a digest among n sorted ones is proportional to its value, with an error of
about the square root of n. One read of a window there finds it; one of ten thousand lookups needs a second window.

    read 1     the head of an index file: the offsets of its columns
    read 2     a window of digests around the expected place (of 38,000,000 rows: half a MiB)
    reads 3-4  on a hit: the file number and the row index; if other pointers replace the file's, their head first
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

from compactor.index.layout import DIGEST_BYTES, TOMBSTONE_FILE_NUMBER, VOID_FILE_NUMBER
from compactor.index.packed_pointers import file_number_in
from compactor.model.errors import Corrupt
from compactor.model.files import IndexFile
from compactor.storage.ranges import Span

_HEAD_BYTES = 16 * 1024
_EXPECTED_HEAD_BYTES = 4 * 1024
"""The first column of an index file begins before this, unless there are very many sort columns."""

_MAGIC_BYTES = 8
_BUFFER_ALIGNMENT_BYTES = 8
_WINDOW_DEVIATIONS = 4
_WINDOW_ROWS_MIN = 64
_PREFIX_BYTES = 8
_CONTINUATION = b"\xff\xff\xff\xff"


def expected_ranges(files: Sequence[IndexFile], digest: bytes) -> dict[str, list[Span]]:
    """What `find_pointer` most probably reads of each object, to be asked for at once where each request takes long:
    of every run the part in which the digest is expected, there the head and the windows of all three columns."""
    share = int.from_bytes(digest[:8], "big") / (1 << 64)
    ranges: dict[str, list[Span]] = {}
    newest_first = sorted(files, key=lambda file: (-file.run, file.part))
    for _, parts_of_run in groupby(newest_first, key=lambda file: file.run):
        parts = tuple(parts_of_run)
        part = parts[_expected_part(parts, share)]
        window = _Window.around(_Head(part, 0), _expected_row(parts, part, share))
        numbers_at = _padded(DIGEST_BYTES * part.rows)
        widths = part.placed.file_number_bytes, part.placed.row_index_bytes
        of_pointers = [(numbers_at, widths[0]), (numbers_at + _padded(widths[0] * part.rows), widths[1])]
        own = [(0, DIGEST_BYTES), *(of_pointers if part.pointers is None else [])]
        ranges[part.path] = _expected_spans(part.size_bytes, window, own)
        if part.pointers is not None:
            placed = [(at - numbers_at, width) for at, width in of_pointers]
            ranges[part.pointers.path] = _expected_spans(part.pointers.size_bytes, window, placed)
    return ranges


def _expected_spans(size_bytes: int, window: _Window, columns: Sequence[tuple[int, int]]) -> list[Span]:
    """`columns`: (where it begins after the first one, bytes of a value)."""
    spans = [Span(0, min(_EXPECTED_HEAD_BYTES, size_bytes))]
    for at, width in columns:
        start = at + width * window.start
        end = at + width * window.end + _EXPECTED_HEAD_BYTES
        spans.append(Span(min(start, size_bytes), min(end, size_bytes)))
    return spans


class RangeReads(Protocol):
    """The part of `ObjectStore` that a lookup needs."""

    def read_range(self, key: str, start: int, length: int) -> bytes: ...


@dataclass(frozen=True)
class RowPointer:
    """The location of a key's row: a compacted file and a row in it, from 0."""

    file_number: int
    row_index: int


def find_pointer(store: RangeReads, files: Sequence[IndexFile], digest: bytes) -> RowPointer | None:
    """The live row of a key; None if the key does not exist. `files`: those of the digest's bucket."""
    newest_first = sorted(files, key=lambda file: (-file.run, file.part))
    for _, parts in groupby(newest_first, key=lambda file: file.run):
        pointer = _find_in_run(store, tuple(parts), digest)
        if pointer is not None:
            deleted = pointer.file_number in (TOMBSTONE_FILE_NUMBER, VOID_FILE_NUMBER)
            return None if deleted else pointer
    return None


def _find_in_run(store: RangeReads, parts: Sequence[IndexFile], digest: bytes) -> RowPointer | None:
    """Parts are sorted like their rows. A digest outside of the expected part is most often in the neighbouring part,
    or further away if parts are small: the neighbour is tried next, then the middle of the remaining parts."""
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
    """The position of the digest in a file, and True; or the position where it would be, and False."""
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
    """The byte offset of the digests of an index file."""

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
        placed = self.file.placed
        width, index_width = placed.file_number_bytes, placed.row_index_bytes
        indices_at = numbers_at + _padded(width * self.file.rows)
        number = file_number_in(store.read_range(path, numbers_at + width * row, width), is_packed=placed.are_packed)
        row_index = store.read_range(path, indices_at + index_width * row, index_width)
        return RowPointer(number, int.from_bytes(row_index, "little"))


def _columns_at(store: RangeReads, path: str, size_bytes: int) -> int:
    """The byte offset of the first column of an index file."""
    head = store.read_range(path, 0, min(_EXPECTED_HEAD_BYTES, size_bytes))
    try:
        schema_ends = _MAGIC_BYTES + _message_bytes(head, _MAGIC_BYTES)
        if schema_ends + _PREFIX_BYTES > len(head):
            head = store.read_range(path, 0, min(_HEAD_BYTES, size_bytes))
        return schema_ends + _message_bytes(head, schema_ends)
    except (ValueError, IndexError) as error:
        raise Corrupt(f"{path} is not an index file: {error}") from error


def _digest_at(raw: bytes, row: int) -> bytes:
    return raw[row * DIGEST_BYTES : (row + 1) * DIGEST_BYTES]


def _message_bytes(head: bytes, at: int) -> int:
    """Length of the metadata of the IPC message that begins at `at`, its prefix included."""
    if head[at : at + 4] != _CONTINUATION:
        raise ValueError(f"no Arrow IPC message at byte {at}")
    return _PREFIX_BYTES + int.from_bytes(head[at + 4 : at + 8], "little")


def _padded(length: int) -> int:
    return -(-length // _BUFFER_ALIGNMENT_BYTES) * _BUFFER_ALIGNMENT_BYTES
