"""Reads ranges of index files for a lookup, and compares the pages that they lie in with their checksums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from compactor.index.page_sums import PageSums, footer_span
from compactor.index.paged_file import PagedFile, PageReader
from compactor.model.errors import Corrupt
from compactor.model.files import IndexFile
from compactor.storage.ranges import Span


class CheckedReads:
    """See `RangeReads`. Of files without checksums nothing is compared."""

    def __init__(self, reader: PageReader, root_uri: str, files: Sequence[IndexFile]) -> None:
        self._reader = reader
        self._root_uri = root_uri
        self._sizes = {file.path: file.size_bytes for file in files}
        self._sizes |= {file.pointers.path: file.pointers.size_bytes for file in files if file.pointers is not None}
        self._files: dict[str, PagedFile] = {}
        self._begun: dict[str, list[Span]] = {}
        self._trusted: set[str] = set()

    def begin(self, expected: Mapping[str, Sequence[Span]]) -> None:
        """Requests ranges of files that will be read, together with what they need to be compared."""
        for path, spans in expected.items():
            self._begun[path] = list(spans)
            self._file(path).begin(self._first_spans(path))

    def read_range(self, key: str, start: int, length: int) -> bytes:
        file = self._file(key)
        if key not in self._trusted:
            file.trust(_sums_of(file, self._first_spans(key)))
            self._trusted.add(key)
        file.need([Span(start, start + length)])
        return bytes(memoryview(file.buffer)[start : start + length])

    def _first_spans(self, path: str) -> list[Span]:
        return [*self._begun.get(path, []), footer_span(self._sizes[path])]

    def _file(self, path: str) -> PagedFile:
        if path not in self._files:
            self._files[path] = PagedFile(self._reader, f"{self._root_uri}/{path}", self._sizes[path])
        return self._files[path]


def _sums_of(file: PagedFile, spans: Sequence[Span]) -> PageSums | None:
    """From the footer, which is among the spans, and is read once more if it is damaged."""
    for is_last in (False, True):
        file.need(spans)
        try:
            return PageSums.of_file(pa.ipc.open_file(pa.BufferReader(file.buffer)).metadata)
        except (pa.ArrowException, OSError) as error:
            file.drop()
            if is_last:
                raise Corrupt(f"{file.uri} cannot be read as primary key index: {error}") from error
    raise AssertionError("the loop ends by the sums or an error")
