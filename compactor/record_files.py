"""Files in which large records lie between tasks on one machine: written by one task, mapped into memory by others.

    with record_files(scratch) as files:         a round's; they end with the block
        place = files.append(parts)              in a task: into a file of its own
        mapped(place)                            in the task that gets the record

What a round leaves is overwritten by the next one rather than deleted. Pages that a file has already are written to in
half of the time of new ones; and new ones a virtual machine may have to get from its host first.
"""

from __future__ import annotations

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

from compactor.errors import Unavailable

SPARE_BYTES_MAX = 2**30
"""Of files that wait for the next round: those of some ten million rows."""


@dataclass(frozen=True)
class Place:
    """Where a record lies. start, size: bytes; `start` is where a page begins."""

    path: Path
    start: int
    size: int


class RecordFiles:
    """What a round's tasks write to. Each task gets a copy, and with its first record a file that only it writes to.

    folder  of this round
    spare   files that no round uses any more
    """

    def __init__(self, folder: Path, spare: Path) -> None:
        self._folder = folder
        self._spare = spare
        self._path: Path | None = None
        self._end = 0

    def append(self, parts: Sequence[bytes | memoryview]) -> Place:
        """Writes a record. Raises `Unavailable` where it cannot: then nobody has been told of its place."""
        with _using(self._folder):
            if self._path is None:
                self._path = self._take()
            start = self._end + -self._end % mmap.ALLOCATIONGRANULARITY
            with self._path.open("r+b") as file:
                file.seek(start)
                file.writelines(parts)
                self._end = file.tell()
        return Place(self._path, start, self._end - start)

    def _take(self) -> Path:
        """A new file, or in its place a spare one, which renaming gives to one taker only."""
        descriptor, path = tempfile.mkstemp(dir=self._folder)
        os.close(descriptor)
        for spare in self._spare.iterdir():
            with suppress(FileNotFoundError):
                return spare.rename(path)
        return Path(path)


def mapped(place: Place) -> npt.NDArray[np.uint8]:
    """The record's bytes. Whoever writes to them writes to a copy. Raises `Unavailable` where they are no more."""
    with _using(place.path.parent), place.path.open("rb") as file:
        pages = mmap.mmap(file.fileno(), place.size, access=mmap.ACCESS_COPY, offset=place.start)
    return np.frombuffer(pages, np.uint8)


@contextmanager
def record_files(scratch: Path) -> Iterator[RecordFiles]:
    """A round's files, below a folder that its owner deletes in the end; rounds side by side may share it.

    After a round that failed they are deleted: one of its tasks may still be writing.
    """
    spare = scratch / "spare-records"
    with _using(scratch):
        spare.mkdir(exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="records-", dir=scratch))
    try:
        yield RecordFiles(folder, spare)
        with suppress(OSError):
            _put_by(folder, spare)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _using(folder: Path) -> Iterator[None]:
    """A scratch disk that fails is a reason to try again, elsewhere if need be."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise Unavailable(f"Spark's scratch folder (spark.local.dir) cannot be used: {folder}: {reason}") from error


def _put_by(folder: Path, spare: Path) -> None:
    """Leaves a round's files to the next one, as far as there is room for them; its folder goes with the others."""
    room = SPARE_BYTES_MAX - sum(file.stat().st_size for file in spare.iterdir())
    for file in folder.iterdir():
        room -= file.stat().st_size
        if room >= 0:
            file.rename(spare / file.name)
