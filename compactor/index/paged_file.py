"""An index file on an object store, with only the requested pages in memory."""

import mmap
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from compactor.index.page_sums import PageSums
from compactor.index.shared_pages import PAGE_BYTES, SharedFile, SharedPages
from compactor.model.errors import Corrupt
from compactor.storage.ranges import Span
from compactor.tabular.filesystems import local_path, reading

GAP_PAGES_MAX = 2
"""Unwanted pages between two wanted ones that are read with them: a request costs more than they do."""

KEPT_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of index files that a process caches, unless it is told otherwise. `sizing` counts them."""

KEPT_SHARED_MAX = 128
"""Files whose pages are shared, however small: each takes two file descriptors."""


class PageReader(Protocol):
    """The part of `RangeReader` that pages need."""

    def begin(self, uri: str, spans: Sequence[Span], join_gap_bytes: int) -> bool: ...

    def read(self, uri: str, spans: Sequence[Span], join_gap_bytes: int) -> list[memoryview]: ...

    def forget(self, uri: str) -> None: ...


class FolderPages:
    """See `PageReader`: files on this machine, which answer at once, so that nothing is requested early."""

    def begin(self, uri: str, spans: Sequence[Span], join_gap_bytes: int) -> bool:
        del uri, spans, join_gap_bytes
        return False

    def read(self, uri: str, spans: Sequence[Span], join_gap_bytes: int) -> list[memoryview]:
        del join_gap_bytes
        with reading(uri, "primary key index"), Path(local_path(uri) or "").open("rb", buffering=0) as file:
            found = [os.pread(file.fileno(), span.length, span.start) for span in spans]
        for span, data in zip(spans, found, strict=True):
            if len(data) < span.length:
                raise Corrupt(f"{uri} ends at byte {span.start + len(data)}, but is expected to have {span.end}")
        return [memoryview(data) for data in found]

    def forget(self, uri: str) -> None:
        del uri


IN_FOLDER = FolderPages()


class PagedFile:
    """Room for a whole file, which takes memory only where a page was fetched. Other pages read as zeros, so readers
    fetch pages first. Threads may share it: at worst two fetch the same page.

    Attributes:
        shared: where other processes of this machine keep theirs, and find what this one fetches; None: nowhere"""

    def __init__(self, reader: PageReader, uri: str, size_bytes: int, shared: SharedFile | None = None) -> None:
        self.uri = uri
        self.size_bytes = size_bytes
        self._reader = reader
        self._shared = shared
        # Not from the heap, which may be told to clear what it hands out.
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        room = max(size_bytes, 1)
        self._memory = mmap.mmap(-1, room, flags=private) if shared is None else shared.mapped(room)
        self._there = np.zeros(-(-size_bytes // PAGE_BYTES), np.bool_)
        self._compared = np.zeros_like(self._there)
        self._sums: PageSums | None = None
        self.buffer: pa.Buffer = pa.py_buffer(memoryview(self._memory)[:size_bytes])
        self.look_again()

    @property
    def bytes_there(self) -> int:
        """What may be resident in this process, also of a shared file: a cluster ends a process by that."""
        return int(np.count_nonzero(self._there)) * PAGE_BYTES

    def look_again(self) -> None:
        """Takes what other processes have fetched since."""
        if self._shared is not None:
            self._there |= self._shared.pages_there()

    def begin(self, spans: Sequence[Span]) -> None:
        """Requests the pages that `need` will wait for, if there is room."""
        self._reader.begin(self.uri, self._missing(spans), join_gap_bytes=0)

    def trust(self, sums: PageSums | None) -> None:
        """From now on `need` compares pages with these sums, each once; None: with nothing."""
        self._sums = sums

    def is_compared(self) -> None:
        """All bytes are those that the log means."""
        self._compared[:] = True

    def drop(self) -> None:
        """Drops all pages, those on the scratch disk too: what was read is not what was written."""
        self._drop(np.ones_like(self._there))

    def need(self, spans: Sequence[Span]) -> None:
        """Returns when these bytes are there. No page is fetched twice, but for one whose sum differs: it is dropped
        and fetched once more. Raises `Corrupt` if it differs again."""
        self._fetch(spans)
        damaged = self.damaged(spans)
        if damaged.any():
            self._drop(damaged)
            self._fetch(spans)
            damaged = self.damaged(spans)
        if damaged.any():
            self._drop(damaged)
            start = int(np.flatnonzero(damaged)[0]) * PAGE_BYTES
            raise Corrupt(
                f"{self.uri} is damaged: bytes {start:,} to {min(start + PAGE_BYTES, self.size_bytes):,} do not have "
                "their checksum"
            )

    def _fetch(self, spans: Sequence[Span]) -> None:
        missing = self._missing(spans)
        room = memoryview(self._memory)
        for span, data in zip(missing, self._reader.read(self.uri, missing, join_gap_bytes=0), strict=True):
            if self._shared is None or not self._shared.put(span.start, memoryview(data)):
                room[span.start : span.end] = data
            pages = slice(span.start // PAGE_BYTES, -(-span.end // PAGE_BYTES))
            self._compared[pages], self._there[pages] = False, True

    def damaged(self, spans: Sequence[Span]) -> npt.NDArray[np.bool_]:
        """The pages of these bytes whose sum differs."""
        damaged = np.zeros_like(self._there)
        if self._sums is not None:
            body = memoryview(self.buffer)
            for page in np.flatnonzero(self._pages_of(spans) & ~self._compared).tolist():
                damaged[page] = not self._sums.is_right(page, body)
                self._compared[page] = not damaged[page]
        return damaged

    def _drop(self, pages: npt.NDArray[np.bool_]) -> None:
        self._there[pages] = False
        self._compared[pages] = False
        if self._shared is not None:
            self._shared.drop(np.flatnonzero(pages).tolist())
        self._reader.forget(self.uri)

    def _pages_of(self, spans: Sequence[Span]) -> npt.NDArray[np.bool_]:
        pages = np.zeros(len(self._there), np.bool_)
        for span in spans:
            pages[max(span.start, 0) // PAGE_BYTES : -(-min(span.end, self.size_bytes) // PAGE_BYTES)] = True
        return pages

    def _missing(self, spans: Sequence[Span]) -> list[Span]:
        wanted = self._pages_of(spans) & ~self._there
        _close_gaps(wanted, self._there)
        edges = np.flatnonzero(np.diff(wanted, prepend=False, append=False))
        runs = edges.reshape(-1, 2) * PAGE_BYTES
        return [Span(start, min(end, self.size_bytes)) for start, end in runs.tolist()]


def _close_gaps(wanted: npt.NDArray[np.bool_], there: npt.NDArray[np.bool_]) -> None:
    pages = np.flatnonzero(wanted)
    gaps = np.diff(pages)
    near = (gaps > 1) & (gaps <= GAP_PAGES_MAX + 1)
    for page, gap in zip(pages[:-1][near].tolist(), gaps[near].tolist(), strict=True):
        between = slice(page + 1, page + gap)
        if not there[between].any():
            wanted[between] = True


class KeptFiles:
    """Files of which a process has read something that it may need again: what a round's dedupe step has read of the
    index is asked for again when the index is written. The oldest go where room is short. Thread-safe.

    Where pages are shared, a file that was let go is opened again with what is on the disk."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: OrderedDict[tuple[int, str], PagedFile] = OrderedDict()
        self._shared: SharedPages | None = None

    def share(self, pages: SharedPages) -> None:
        """From now on pages are on the machine's scratch disks, for all of its processes."""
        self._shared = pages

    def let_go(self) -> None:
        """Keeps none: whoever reads one holds it."""
        with self._lock:
            self._files.clear()

    def open(self, reader: PageReader, uri: str, size_bytes: int, room_bytes: int = KEPT_BYTES_MAX) -> PagedFile:
        with self._lock:
            key = id(reader), uri
            file = self._files.pop(key, None)
            if file is None or file.size_bytes != size_bytes:
                shared = self._shared.open(uri, size_bytes) if self._shared is not None and size_bytes > 0 else None
                file = PagedFile(reader, uri, size_bytes, shared)
            else:
                file.look_again()
            self._files[key] = file
            files_max = KEPT_SHARED_MAX if self._shared is not None else len(self._files)
            taken = sum(each.bytes_there for each in self._files.values())
            while (taken > room_bytes or len(self._files) > files_max) and len(self._files) > 1:
                _, oldest = self._files.popitem(last=False)
                taken -= oldest.bytes_there
            return file
