"""A local file whose write-back to disk begins while it is written, so that the final fsync is short."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

FLUSH_BYTES = 8 * 1024 * 1024
"""After so many bytes their write-back begins."""

_SYNC_FILE_RANGE_WRITE = 2


def _find_sync_file_range() -> Callable[[int, int, int, int], int] | None:
    """The system call of that name, which only Linux has."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "sync_file_range"):
        return None
    library.sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return library.sync_file_range


_sync_file_range = _find_sync_file_range()


class GrowingFile:
    """The file object behind a `pa.PythonFile`. It keeps one descriptor, because the system reports a failed write-back
    once per descriptor. Writes after `close_descriptor` are ignored.

    Raises `OSError`; `flush_to_disk` also for earlier write-backs that failed.
    """

    def __init__(self, path: str) -> None:
        self.closed = False
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        self._size = self._sent = 0

    def write(self, data: bytes | memoryview) -> int:
        rest = memoryview(data).cast("B")
        size = len(rest)
        while rest and self._descriptor >= 0:
            count = os.write(self._descriptor, rest[:FLUSH_BYTES])
            rest = rest[count:]
            self._size += count
            if self._size >= self._sent + FLUSH_BYTES:
                self._begin_write_back()
        return size

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        """Does nothing: nothing is buffered here."""

    def close(self) -> None:
        """Ends the writing; the descriptor stays open until all data is on the disk."""
        self.closed = True

    def flush_to_disk(self) -> None:
        """Fsyncs all written data and closes the descriptor."""
        try:
            os.fsync(self._descriptor)
        finally:
            self.close_descriptor()

    def close_descriptor(self) -> None:
        """Does nothing if it is closed already."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _begin_write_back(self) -> None:
        """Asks the system to begin the write-back. It does not wait, and guarantees nothing."""
        if _sync_file_range is not None:
            _sync_file_range(self._descriptor, self._sent, self._size - self._sent, _SYNC_FILE_RANGE_WRITE)
        self._sent = self._size
