"""Reads chosen rows of a column of a file that is too large to decode: one page at a time, and only pages with such
rows. What is held is in proportion to the chosen rows, whatever the size of the file and of its row groups."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from compactor.storage.ranges import Span
from compactor.tabular.parquet_pages.page_format import PageType
from compactor.tabular.parquet_pages.page_reader import (
    Bytes,
    ColumnReader,
    ColumnType,
    Int64s,
    Page,
    ReadColumn,
    StoredPage,
    Values,
    can_stay_in_place,
    read_page,
)
from compactor.tabular.remote_file import RemoteFile

_HEADER_BYTES = 4 * 1024
_HEADER_BYTES_MAX = 16 * 1024 * 1024
"""Bytes of the header of a page, at most: a few dozen, and its bounds, which have the size of two values."""

WINDOW_BYTES = 8 * 1024 * 1024
"""Bytes of a larger column chunk of a remote file that are fetched at a time."""

_PAGE_BYTES = 1024 * 1024
"""Bytes of most pages. Where a row lies in its chunk is estimated to that."""

ReadBytes: TypeAlias = Callable[[int, int, int], memoryview]
"""Bytes [start, end) of a file; the third number is where the bytes end that may be read next."""


class RemoteWindow:
    """The bytes of a remote file that are being decoded: a window that follows the reader."""

    def __init__(self, remote: RemoteFile) -> None:
        self._remote = remote
        self._held: list[tuple[Span, memoryview]] = []

    def hold(self, chunks: Sequence[ChunkPages], following: Sequence[ChunkPages]) -> None:
        """Fetches chunks that fit a window, together, and begins with `following`, if there is room."""
        self._remote.begin(_within_a_window(following))
        spans = _within_a_window(chunks)
        self._held = list(zip(spans, next(self._remote.read_groups([spans])), strict=True))

    def read(self, start: int, end: int, until: int) -> memoryview:
        """See `ReadBytes`."""
        for span, data in self._held:
            if span.start <= start and end <= span.end:
                return data[start - span.start : end - span.start]
        window = Span(start, max(end, min(start + WINDOW_BYTES, until)))
        found = next(self._remote.read_groups([[window]]))[0]
        self._remote.begin([Span(window.end, min(window.end + WINDOW_BYTES, until))] if window.end < until else [])
        # Rows are read in ascending order: only what lies ahead is needed.
        self._held = [(window, found), *((span, data) for span, data in self._held if span.start > start)]
        return found[: end - start]


def _within_a_window(chunks: Sequence[ChunkPages]) -> list[Span]:
    """The first chunks that together fit a window."""
    ends = np.cumsum([each.end - each.start for each in chunks])
    return [Span(each.start, each.end) for each, end in zip(chunks, ends, strict=True) if end <= WINDOW_BYTES]


class ChunkPages:
    """The pages of one column chunk. Where they begin is remembered as far as it was looked for.

    Attributes:
        start, end: of the chunk in its file"""

    def __init__(self, chunk: pq.ColumnChunkMetaData, start: int, end: int, read: ReadBytes) -> None:
        self.chunk = chunk
        self.start, self.end = start, end
        self._read = read
        self._first_rows = [0]
        self._positions = [start]
        self._dictionaries: list[int] = []
        self._until = end

    def with_rows(self, rows: Int64s) -> Iterator[tuple[Page, memoryview, Int64s]]:
        """The data pages that have some of these rows of the chunk, which ascend: each page, its bytes, and those rows,
        counted from the page's first one."""
        share = (int(rows[-1]) + 1) / max(self.chunk.num_values, 1) if len(rows) else 0
        self._until = min(self.start + int((self.end - self.start) * share) + _PAGE_BYTES, self.end)
        found = 0
        while found < len(rows):
            first, page = self._page_of(int(rows[found]))
            last = int(np.searchsorted(rows, first + page.rows))
            yield page, self._bytes_of(page), rows[found:last] - first
            found = last

    def dictionary_position(self, page: Page) -> int | None:
        """Where the dictionary of a page begins that was found; None: it has none."""
        before = bisect_right(self._dictionaries, page.start)
        return self._dictionaries[before - 1] if before else None

    def dictionary(self, position: int) -> tuple[Page, memoryview]:
        """The dictionary page that begins there."""
        page = self._page_at(position, 0)
        return page, self._bytes_of(page)

    def _page_of(self, row: int) -> tuple[int, Page]:
        """The data page with this row, and its first row."""
        place = bisect_right(self._first_rows, row) - 1
        while True:
            first, position = self._first_rows[place], self._positions[place]
            if position >= self.end:
                raise pa.ArrowInvalid(
                    f"a column chunk's pages do not have the {self.chunk.num_values} values of its metadata"
                )
            page = self._page_at(position, first)
            if row < first + page.rows:
                return first, page
            place += 1
            if place == len(self._positions):
                self._first_rows.append(first + page.rows)
                self._positions.append(page.end)
                if page.kind == PageType.DICTIONARY_PAGE:
                    self._dictionaries.append(position)

    def _page_at(self, position: int, rows_before: int) -> Page:
        """The page whose header begins there; its body is at `start` and `end` in the file."""
        try:
            return self._parsed(position, rows_before, _HEADER_BYTES)
        except pa.ArrowInvalid:
            if position + _HEADER_BYTES >= self.end:
                raise
        return self._parsed(position, rows_before, _HEADER_BYTES_MAX)

    def _parsed(self, position: int, rows_before: int, header_bytes_max: int) -> Page:
        data = self._read(position, min(position + header_bytes_max, self.end), self._until)
        page = read_page(self.chunk, rows_before, data, 0, self.end - position)
        return replace(page, start=page.start + position, end=page.end + position)

    def _bytes_of(self, page: Page) -> memoryview:
        return page.checked(self._read(page.start, page.end, self._until))


def read_rows(
    column_type: ColumnType, groups: Sequence[tuple[ChunkPages, Int64s]], in_place: Bytes | None
) -> ReadColumn:
    """Chosen rows of a column: of each of these chunks those rows, which ascend.

    Args:
        in_place: the bytes of the whole file: values that lie in them as they are, are not copied"""
    stays = in_place is not None and can_stay_in_place(column_type, [pages.chunk for pages, _ in groups])
    reader = ColumnReader(column_type, in_place if stays else None)
    size = sum(_plain_bytes(pages.chunk, len(rows)) for pages, rows in groups)
    for pages, rows in groups:
        position: int | None = None
        dictionary: Values | None = None
        for page, body, chosen in pages.with_rows(rows):
            before = pages.dictionary_position(page)
            if before is not None and before != position:
                position, dictionary = before, reader.dictionary(pages.chunk, *pages.dictionary(before))
            stored = StoredPage(page, body, page.end, pages.chunk.compression, dictionary)
            if len(chosen) == page.rows:
                reader.add_page(stored, size)
            else:
                reader.add_rows(stored, size, chosen)
    return reader.column()


def _plain_bytes(chunk: pq.ColumnChunkMetaData, rows: int) -> int:
    """The size of so many rows of a chunk, by the average of the footer."""
    return int(max(chunk.total_uncompressed_size, 0) * rows / max(chunk.num_values, 1))
