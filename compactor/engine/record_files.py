"""Files that hold large records between tasks on one machine: written by one task, mapped into memory by others.

    with record_files(scratch) as files:         of one round; deleted at the end of the block
        location = files.append(parts)           in a task: into a file of its own
        mapped(location)                         in the task that receives the record

The files of a round are not deleted: the next round overwrites them. Writing to existing pages of a file is faster than
writing to new ones, which a virtual machine may have to request from its host.
"""

import mmap
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from compactor.model.errors import Unavailable

SPARE_BYTES_MAX = 2**30
"""The most bytes of spare files that are kept for the next round: those of some ten million rows."""


@dataclass(frozen=True)
class RecordLocation:
    """The location of a record. start, size: bytes; `start` is the start of a page."""

    path: Path
    start: int
    size: int


class RecordFiles:
    """The record files of a round. Each task gets a copy, and for its first record a file that only it writes to.

    Attributes:
        folder: of this round
        spare: files of earlier rounds"""

    def __init__(self, folder: Path, spare: Path) -> None:
        self._folder = folder
        self._spare = spare
        self._path: Path | None = None
        self._end = 0

    def append(self, parts: Sequence[bytes | memoryview]) -> RecordLocation:
        """Writes a record. Raises `Unavailable` if it cannot; then its location has not been published."""
        with _translate_disk_errors(self._folder):
            if self._path is None:
                self._path = self._take()
            start = self._end + -self._end % mmap.ALLOCATIONGRANULARITY
            with self._path.open("r+b") as file:
                file.seek(start)
                file.writelines(parts)
                self._end = file.tell()
        return RecordLocation(self._path, start, self._end - start)

    def _take(self) -> Path:
        """A new file, or a spare one, which is taken by renaming it, so that only one task gets it."""
        descriptor, path = tempfile.mkstemp(dir=self._folder)
        os.close(descriptor)
        for spare in self._spare.iterdir():
            with suppress(FileNotFoundError):
                return spare.rename(path)
        return Path(path)


def mapped(location: RecordLocation) -> npt.NDArray[np.uint8]:
    """The record's bytes, copied on write. Raises `Unavailable` if they do not exist any more."""
    with _translate_disk_errors(location.path.parent), location.path.open("rb") as file:
        pages = mmap.mmap(file.fileno(), location.size, access=mmap.ACCESS_COPY, offset=location.start)
    return np.frombuffer(pages, np.uint8)


@contextmanager
def record_files(scratch: Path, spare_bytes_max: int | None = None) -> Iterator[RecordFiles]:
    """A round's files, below a folder that its owner deletes at the end; concurrent rounds may share it.

    After a failed round they are deleted, because one of its tasks may still be writing.

    Args:
        spare_bytes_max: of files that are kept for the next round; None: as many as are useful"""
    spare = scratch / "spare-records"
    with _translate_disk_errors(scratch):
        spare.mkdir(exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="records-", dir=scratch))
    try:
        yield RecordFiles(folder, spare)
        with suppress(OSError):
            _keep_as_spare(
                folder, spare, SPARE_BYTES_MAX if spare_bytes_max is None else min(spare_bytes_max, SPARE_BYTES_MAX)
            )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _translate_disk_errors(folder: Path) -> Iterator[None]:
    """Errors of a scratch disk are `Unavailable`: a retry, perhaps on another machine, may work."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise Unavailable(f"Spark's scratch folder (spark.local.dir) cannot be used: {folder}: {reason}") from error


def _keep_as_spare(folder: Path, spare: Path, bytes_max: int) -> None:
    """Keeps a round's files for the next one, up to the permitted bytes; the others are deleted with their folder."""
    room = bytes_max - sum(file.stat().st_size for file in spare.iterdir())
    for file in folder.iterdir():
        room -= file.stat().st_size
        if room >= 0:
            file.rename(spare / file.name)
