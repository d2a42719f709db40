"""A new file that is invisible under its final name until it is whole.

local  a temporary file in the same folder, fsynced and renamed
S3     an upload, which becomes an object when it is completed (compactor/storage/aws/upload.py)

A discarded file leaves nothing. Only the temporary file is ever deleted, never a file of the final name.
"""

from __future__ import annotations

import itertools
import os
import re
from contextlib import suppress
from typing import Protocol

import pyarrow as pa
from isal import isal_zlib

from compactor.storage.local import fsync_folders, make_folder
from compactor.storage.location import StoreLocation
from compactor.tabular.filesystems import local_path
from compactor.tabular.growing_file import GrowingFile

BUFFER_BYTES = 64 * 1024
"""Smaller writes are collected: the writers of formats write each header and each padding by itself."""

_temporary_numbers = itertools.count(1)
_UNFINISHED = re.compile(r"(?:.*/)?\.[^/]+\.[0-9]+-[0-9]+\.partial")


def is_unfinished(path: str) -> bool:
    """Whether a path is the temporary name of a file that is being written, or whose writer died."""
    return _UNFINISHED.fullmatch(path) is not None


class _Bytes(Protocol):
    """The file object behind a `pa.PythonFile`: a local file or an upload."""

    closed: bool

    def write(self, data: bytes | memoryview) -> int: ...

    def tell(self) -> int: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...

    def finish(self) -> int:
        """Makes the file durable and visible under its name; returns its size in bytes."""

    def discard(self) -> None:
        """Removes what was written, by best effort; later writes are ignored."""


class _Checksummed:
    """The file object of a target, with the CRC-32 of the bytes that were written."""

    def __init__(self, target: _Bytes) -> None:
        self.crc32 = 0
        self._target = target

    @property
    def closed(self) -> bool:
        return self._target.closed

    def write(self, data: bytes | memoryview) -> int:
        self.crc32 = isal_zlib.crc32(data, self.crc32)
        return self._target.write(data)

    def tell(self) -> int:
        return self._target.tell()

    def flush(self) -> None:
        self._target.flush()

    def close(self) -> None:
        self._target.close()


class OutputFile:
    """The format's writer writes to `stream`. After a failure, also of `finish`, call `discard`."""

    def __init__(self, target: _Bytes, *, gzipped: bool) -> None:
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
    def open(cls, location: StoreLocation, uri: str) -> OutputFile:
        """Starts a file; text is gzipped if the URI ends in `.gz`. Raises `Invalid` for an unknown scheme."""
        path = local_path(uri)
        if path is None:
            from compactor.storage.aws.upload import S3Upload  # only a file on S3 loads boto3

            return cls(S3Upload.open(location, uri), gzipped=uri.endswith(".gz"))
        return cls(_LocalFile(path), gzipped=uri.endswith(".gz"))

    def close(self) -> int:
        """Ends the writing; returns the size in bytes. Only `finish` makes the file visible."""
        self.stream.close()
        return self._target.tell()

    def finish(self) -> int:
        """Makes the file visible under its name; returns its size in bytes."""
        self.stream.close()
        return self._target.finish()

    def discard(self) -> None:
        """Removes what was written, by best effort: the failure that led here is the one to report.

        A format's writer may write more after this, for instance its footer; it is ignored.
        """
        self._target.discard()


class _LocalFile(GrowingFile):
    def __init__(self, path: str) -> None:
        self._folder, _, name = path.rpartition("/")
        self._unsynced = make_folder(self._folder)
        self._path = path
        self._temporary = f"{self._folder}/.{name[:200]}.{os.getpid()}-{next(_temporary_numbers)}.partial"
        super().__init__(self._temporary)

    def finish(self) -> int:
        self.flush_to_disk()
        os.replace(self._temporary, self._path)
        fsync_folders([self._folder, *self._unsynced])
        return self.tell()

    def discard(self) -> None:
        self.close_descriptor()
        with suppress(OSError):
            os.unlink(self._temporary)
