"""A new file that is invisible under its final name until it is whole.

local  a temporary file in the same folder, fsynced and renamed
S3     an upload, which becomes an object when it is completed (compactor/storage/aws/upload.py)

A discarded file leaves nothing. Only the temporary file is ever deleted, never a file of the final name.
"""

import ctypes
import itertools
import os
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, Self

import pyarrow as pa
from isal import isal_zlib

from compactor.storage.local import fsync_folders, make_folder
from compactor.storage.location import StoreLocation
from compactor.tabular.filesystems import local_path

BUFFER_BYTES = 64 * 1024
"""Bytes that are collected before they are written: writers of formats write each header and padding by itself."""

FLUSH_BYTES = 8 * 1024 * 1024
"""Bytes of a local file after which their write-back begins."""

_SYNC_FILE_RANGE_WRITE = 2

_temporary_numbers = itertools.count(1)
_UNFINISHED = re.compile(r"(?:.*/)?\.[^/]+\.[0-9]+-[0-9]+\.partial")


def is_unfinished(path: str) -> bool:
    """Whether a path is the temporary name of a file that is being written, or whose writer died."""
    return _UNFINISHED.fullmatch(path) is not None


class _Target(Protocol):
    """What keeps the bytes: a local file or an upload. `size_bytes`: written so far."""

    size_bytes: int

    def write(self, data: bytes | memoryview) -> int: ...

    def finish(self) -> int:
        """Makes the file durable and visible under its name; returns its size in bytes."""

    def discard(self) -> None:
        """Removes what was written, by best effort; later writes are ignored."""


class _Checksummed:
    """The file object behind a `pa.PythonFile`, with the CRC-32 of the bytes that were written."""

    def __init__(self, target: _Target) -> None:
        self.crc32 = 0
        self.closed = False
        self._target = target

    def write(self, data: bytes | memoryview) -> int:
        self.crc32 = isal_zlib.crc32(data, self.crc32)
        return self._target.write(data)

    def tell(self) -> int:
        return self._target.size_bytes

    def flush(self) -> None:
        """Does nothing: a local file has no buffer, and a part of an upload cannot be sent before it is full."""

    def close(self) -> None:
        """Ends the writing. Only the target's `finish` makes the file visible."""
        self.closed = True


class OutputFile:
    """The format's writer writes to `stream`. After a failure, also of `finish`, call `discard`."""

    def __init__(self, target: _Target, *, gzipped: bool) -> None:
        self._target = target
        self._written = _Checksummed(target)
        self.stream: pa.NativeFile = pa.BufferedOutputStream(pa.PythonFile(self._written, "w"), BUFFER_BYTES)
        if gzipped:
            self.stream = pa.CompressedOutputStream(self.stream, "gzip")

    @property
    def crc32(self) -> int:
        """Of all bytes of a finished file."""
        return self._written.crc32

    @classmethod
    def open(cls, location: StoreLocation, uri: str) -> Self:
        """Starts a file; text is gzipped if the URI ends in `.gz`. Raises `Invalid` for an unknown scheme."""
        path = local_path(uri)
        if path is None:
            from compactor.storage.aws.upload import S3Upload  # only a file on S3 loads botocore

            return cls(S3Upload.open(location, uri), gzipped=uri.endswith(".gz"))
        return cls(_LocalFile(path), gzipped=uri.endswith(".gz"))

    def close(self) -> int:
        """Ends the writing; returns the size in bytes. Only `finish` makes the file visible."""
        self.stream.close()
        return self._target.size_bytes

    def finish(self) -> int:
        """Makes the file visible under its name; returns its size in bytes."""
        self.stream.close()
        return self._target.finish()

    def discard(self) -> None:
        """Removes what was written, by best effort: the failure that led here is the one to report.

        A format's writer may write more after this, for instance its footer; it is ignored.
        """
        self._target.discard()


def _find_sync_file_range() -> Callable[[int, int, int, int], int] | None:
    """The system call of that name, which only Linux has."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "sync_file_range"):
        return None
    library.sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return library.sync_file_range


_sync_file_range = _find_sync_file_range()


class _LocalFile:
    """Its write-back to disk begins while it is written, so that the final fsync is short. It keeps one descriptor,
    because the system reports a failed write-back once per descriptor."""

    def __init__(self, path: str) -> None:
        self._folder, _, name = path.rpartition("/")
        self._unsynced = make_folder(self._folder)
        self._path = path
        self._temporary = f"{self._folder}/.{name[:200]}.{os.getpid()}-{next(_temporary_numbers)}.partial"
        self._descriptor = os.open(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        self.size_bytes = self._sent = 0

    def write(self, data: bytes | memoryview) -> int:
        rest = memoryview(data).cast("B")
        size = len(rest)
        while rest and self._descriptor >= 0:
            count = os.write(self._descriptor, rest[:FLUSH_BYTES])
            rest = rest[count:]
            self.size_bytes += count
            if self.size_bytes >= self._sent + FLUSH_BYTES:
                self._begin_write_back()
        return size

    def finish(self) -> int:
        try:
            os.fsync(self._descriptor)
        finally:
            self._close_descriptor()
        os.replace(self._temporary, self._path)
        fsync_folders([self._folder, *self._unsynced])
        return self.size_bytes

    def discard(self) -> None:
        self._close_descriptor()
        with suppress(OSError):
            os.unlink(self._temporary)

    def _close_descriptor(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _begin_write_back(self) -> None:
        """Asks the system to begin the write-back. It does not wait, and guarantees nothing."""
        if _sync_file_range is not None:
            _sync_file_range(self._descriptor, self._sent, self.size_bytes - self._sent, _SYNC_FILE_RANGE_WRITE)
        self._sent = self.size_bytes
