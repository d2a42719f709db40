"""A local file that goes to the disk while it is being written, so that little is left to wait for at its end."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

FLUSH_BYTES = 8 * 1024 * 1024
"""So many are written at a time, and then sent to the disk."""

_SYNC_FILE_RANGE_WRITE = 2


def _find_sync_file_range() -> Callable[[int, int, int, int], int] | None:
    """The system's call of that name, which Linux alone has."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "sync_file_range"):
        return None
    library.sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return library.sync_file_range


_sync_file_range = _find_sync_file_range()


class GrowingFile:
    """What `pa.PythonFile` writes to. One descriptor throughout: the system tells each of a failed write once.

    Raises `OSError`, from `flush_to_disk` also for what failed on the disk before.
    """

    def __init__(self, path: str) -> None:
        self.closed = False
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        self._size = self._sent = 0

    def write(self, data: bytes | memoryview) -> int:
        rest = memoryview(data).cast("B")
        size = len(rest)
        while rest:
            count = os.write(self._descriptor, rest[:FLUSH_BYTES])
            rest = rest[count:]
            self._size += count
            if self._size >= self._sent + FLUSH_BYTES:
                self._send()
        return size

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        """Nothing is held back here."""

    def close(self) -> None:
        """The end of what is written; the descriptor is needed until all of it is on the disk."""
        self.closed = True

    def flush_to_disk(self) -> None:
        """All that was written is on the disk when this returns; nothing more will be written."""
        try:
            os.fsync(self._descriptor)
        finally:
            self.let_go()

    def let_go(self) -> None:
        """Close the descriptor, if that has not been done."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _send(self) -> None:
        """Have the system begin to write what it was given. It waits for nothing, and promises nothing."""
        if _sync_file_range is not None:
            _sync_file_range(self._descriptor, self._sent, self._size - self._sent, _SYNC_FILE_RANGE_WRITE)
        self._sent = self._size
