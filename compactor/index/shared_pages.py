"""Fetched pages of remote index files, shared by the processes of one machine.

Spark finishes a bucket on the machine that deduplicated it, but in any of that machine's processes. So what one of them
has read of the index lies in files of a scratch disk, where the next one finds it.
"""

import hashlib
import mmap
import os
import shutil
import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt

from compactor.log_context import LOG

PAGE_BYTES = 64 * 1024

DISK_SHARE_MAX = 1 / 16
"""Share of a scratch disk's free space that the pages take. The plan of a round leaves more
(`planning.sizing.SCRATCH_SHARE`)."""

LOOKS = 16
"""A process looks for files to delete after it has opened this part of what may be kept."""

_FOLDER = "index-pages"


class SharedFile:
    """The pages of one remote file that are on this machine: each at its own offset of a sparse file, and behind them a
    byte for each page, which is 1 once the page is there. A page is marked after it is written, so what a killed
    process has left is never taken for a page."""

    def __init__(self, path: Path, size_bytes: int) -> None:
        """Raises `OSError`."""
        self._pages = -(-size_bytes // PAGE_BYTES)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        weakref.finalize(self, os.close, self._descriptor)
        os.truncate(self._descriptor, self._pages * (PAGE_BYTES + 1))
        os.utime(self._descriptor)  # the files that nobody has opened for longest are deleted first

    def mapped(self, size_bytes: int) -> mmap.mmap:
        """Memory that shows what is and what will be in the file, and can be written to without changing it."""
        return mmap.mmap(self._descriptor, size_bytes, access=mmap.ACCESS_COPY)

    def pages_there(self) -> npt.NDArray[np.bool_]:
        return np.frombuffer(os.pread(self._descriptor, self._pages, self._pages * PAGE_BYTES), np.bool_)

    def put(self, start: int, data: memoryview) -> bool:
        """Whether the pages from `start`, which begins one, could be written: a disk may be full."""
        try:
            self._write(start, data)
            first, end = start // PAGE_BYTES, -(-(start + len(data)) // PAGE_BYTES)
            self._write(self._pages * PAGE_BYTES + first, memoryview(b"\x01" * (end - first)))
        except OSError:
            return False
        return True

    def drop(self, pages: Sequence[int]) -> None:
        """Marks pages as not there: their bytes are not those of the remote file."""
        with suppress(OSError):
            for page in pages:
                self._write(self._pages * PAGE_BYTES + page, memoryview(b"\x00"))

    def _write(self, offset: int, data: memoryview) -> None:
        while data:
            written = os.pwrite(self._descriptor, data, offset)
            offset, data = offset + written, data[written:]


class SharedPages:
    """Folders in which a machine's processes keep pages. Spark's executor deletes them at its end."""

    def __init__(self, scratch_folders: Sequence[Path]) -> None:
        self._folders = [folder / _FOLDER for folder in scratch_folders]
        self._opened_bytes = dict.fromkeys(self._folders, 0)
        self._unusable: set[Path] = set()

    def open(self, uri: str, size_bytes: int) -> SharedFile | None:
        """None if the scratch disk cannot be used: each process then reads for itself."""
        name = hashlib.sha256(f"{uri}?{size_bytes}".encode()).hexdigest()
        folder = self._folders[int(name[:8], 16) % len(self._folders)]
        if folder in self._unusable:
            return None
        try:
            folder.mkdir(exist_ok=True)
            self._make_room(folder, size_bytes)
            return SharedFile(folder / name, size_bytes)
        except OSError as error:
            self._unusable.add(folder)
            LOG.warning("index_pages_not_shared", folder=str(folder), reason=str(error))
            return None

    def _make_room(self, folder: Path, size_bytes: int) -> None:
        """Deletes the oldest files, where there is no room for more. Who has one open keeps it until it is closed."""
        self._opened_bytes[folder] += size_bytes
        room_bytes = shutil.disk_usage(folder).free * DISK_SHARE_MAX
        if self._opened_bytes[folder] < room_bytes / LOOKS:
            return
        self._opened_bytes[folder] = 0
        oldest_first = sorted(_files_of(folder), key=lambda file: file[1].st_mtime)
        kept = sum(status.st_blocks * 512 for _, status in oldest_first)
        for path, status in oldest_first:
            if kept <= room_bytes:
                return
            path.unlink(missing_ok=True)
            kept -= status.st_blocks * 512


def _files_of(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for path in folder.iterdir():
        with suppress(FileNotFoundError):  # another process makes room as well
            yield path, path.stat()
