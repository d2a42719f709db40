"""Scratch folders that are removed after their Spark job has ended, by any process.

    <root>/<name>/       the job's scratch files
    <root>/<name>.lock   locked by the job's processes, while one of them runs

A lock ends with the last process that has it, so an unlocked folder has no owner: the next one's creator removes it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path

_LOCK = ".lock"


class ScratchFolder:
    """Held from `claim` to `remove` or `leave`. Processes that share it inherit `descriptor`."""

    def __init__(self, folder: Path, descriptor: int) -> None:
        self.folder = folder
        self.descriptor = descriptor

    @classmethod
    def claim(cls, root: Path, name: str) -> ScratchFolder:
        """A new, empty folder. Raises `OSError` if it cannot be created."""
        root.mkdir(parents=True, exist_ok=True)
        lock = _lock_of(root, name)
        while True:
            descriptor = os.open(lock, os.O_CREAT | os.O_RDWR, 0o666)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _has_name(lock, descriptor):
                break
            os.close(descriptor)  # a sweep removed it before it was locked
        (root / name).mkdir()
        return cls(root / name, descriptor)

    @property
    def lock(self) -> Path:
        return _lock_of(self.folder.parent, self.folder.name)

    def leave(self) -> None:
        """Leaves it to the processes that inherited the descriptor."""
        os.close(self.descriptor)
        self.descriptor = -1

    def remove(self) -> None:
        """Idempotent. Files that cannot be removed now are swept later."""
        if self.descriptor < 0:
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        if not self.folder.exists():
            _lock_of(self.folder.parent, self.folder.name).unlink(missing_ok=True)
        os.close(self.descriptor)
        self.descriptor = -1


def sweep(root: Path) -> None:
    """Removes the folders that are not locked."""
    for lock in sorted(root.glob(f"*{_LOCK}")):
        try:
            descriptor = os.open(lock, os.O_RDWR)
        except OSError:
            continue  # another process sweeps too
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _has_name(lock, descriptor):
                ScratchFolder(lock.with_name(lock.name.removesuffix(_LOCK)), os.dup(descriptor)).remove()
        except OSError:
            pass  # it is held
        finally:
            os.close(descriptor)


def is_held(root: Path, name: str) -> bool:
    """Whether there is such a folder, or a process creates or removes it now."""
    return _lock_of(root, name).exists()


def is_locked(root: Path, name: str) -> bool:
    """Whether a running process holds it."""
    try:
        descriptor = os.open(_lock_of(root, name), os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _lock_of(root: Path, name: str) -> Path:
    return root / f"{name}{_LOCK}"


def _has_name(lock: Path, descriptor: int) -> bool:
    """Whether the open file is the one that has the name now."""
    try:
        return os.path.samestat(lock.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
