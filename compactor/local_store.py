"""A lake in a local folder: one file per object.

A reader never sees half an object, and of several writers of one key exactly one wins: the body is written to a file
of its own under `.writing/`, forced to disk, and only then given its name, by a hard link (which fails if the name is
taken) or by a rename (which replaces). What a crash leaves under `.writing/` is no object.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from compactor.errors import Corrupt, Invalid, Unavailable
from compactor.object_store import ObjectEntry, StoreLocation, check_key

WRITING_FOLDER = ".writing"

_WITHOUT_HARD_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


class LocalStore:
    """An `ObjectStore` over a folder, which is created with the first object."""

    def __init__(self, location: StoreLocation) -> None:
        if not location.root_uri.startswith("file:///"):
            raise Invalid(f"{location.root_uri!r} is no local folder: write file:///path/to/lake")
        self._location = location
        self._root = Path(location.root_uri.removeprefix("file://"))
        self._write_numbers = itertools.count()

    @property
    def location(self) -> StoreLocation:
        return self._location

    def put_if_absent(self, key: str, body: bytes) -> bool:
        path = self._path(key)
        with _translated(path):
            # Saves the loser of most races a write to disk; the link below is what decides.
            if path.exists():
                return False
            written = self._write_aside(body)
            try:
                self._make_folder(path.parent)
                os.link(written, path)
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno in _WITHOUT_HARD_LINKS:
                    raise Invalid(
                        f"the file system of {self._root} has no hard links, so it cannot create an object exclusively:"
                        " put the lake on another file system or on S3"
                    ) from error
                raise
            finally:
                written.unlink(missing_ok=True)
            _force_names_to_disk(path.parent)
            return True

    def overwrite(self, key: str, body: bytes) -> None:
        path = self._path(key)
        with _translated(path):
            written = self._write_aside(body)
            try:
                self._make_folder(path.parent)
                written.replace(path)
            finally:
                written.unlink(missing_ok=True)
            _force_names_to_disk(path.parent)

    def read(self, key: str) -> bytes | None:
        path = self._path(key)
        with _translated(path):
            try:
                return path.read_bytes()
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                return None

    def read_range(self, key: str, start: int, length: int) -> bytes:
        path = self._path(key)
        with _translated(path):
            try:
                with path.open("rb") as file:
                    file.seek(start)
                    return file.read(length)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
                raise Corrupt(f"{path} is not there, though it is referred to") from error

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ObjectEntry]:
        folder, _, _ = prefix.rpartition("/")
        top = self._root / folder if folder else self._root
        with _translated(top):
            yield from _walk(top, f"{folder}/" if folder else "", prefix, start_after)

    def list_folders(self, prefix: str) -> Iterator[str]:
        top = self._root / prefix
        with _translated(top):
            for name, is_folder in _children(top, at_root=not prefix):
                # A folder without a file in it is left over from a delete or a writer that stopped: no key, no folder.
                if is_folder and any(files for _, _, files in os.walk(top / name)):
                    yield name.removesuffix("/")

    def delete(self, key: str) -> None:
        path = self._path(key)
        with _translated(path):
            try:
                path.unlink(missing_ok=True)
            except (NotADirectoryError, IsADirectoryError):
                return

    def _path(self, key: str) -> Path:
        check_key(key)
        if key.split("/", 1)[0] == WRITING_FOLDER:
            raise Invalid(f"the key {key!r} lies in {WRITING_FOLDER}/, which the store keeps for itself")
        return self._root / key

    def _write_aside(self, body: bytes) -> Path:
        """The body in a file that nobody looks at, on disk."""
        folder = self._root / WRITING_FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        # The process and thread make a name nobody else alive on this machine uses; the exclusive open skips names that
        # a crashed process, or one on another machine, has left.
        while True:
            path = folder / f"{os.getpid()}-{threading.get_ident()}-{next(self._write_numbers)}"
            try:
                descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
                break
            except FileExistsError:
                continue
        with os.fdopen(descriptor, "wb") as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        return path

    def _make_folder(self, folder: Path) -> None:
        if folder.is_dir():
            return
        folder.mkdir(parents=True, exist_ok=True)
        for parent in folder.parents:
            _force_names_to_disk(parent)
            if parent == self._root:
                return


def _force_names_to_disk(folder: Path) -> None:
    """What was named in this folder keeps its name through a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _children(folder: Path, *, at_root: bool) -> list[tuple[str, bool]]:
    """Names in a folder and whether each is a folder itself, in the order of the keys below them (`a-` before `a/`)."""
    try:
        with os.scandir(folder) as entries:
            found = [(entry.name + "/", True) if entry.is_dir() else (entry.name, False) for entry in entries]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(child for child in found if not (at_root and child[0] == WRITING_FOLDER + "/"))


def _walk(folder: Path, folder_key: str, prefix: str, start_after: str | None) -> Iterator[ObjectEntry]:
    for name, is_folder in _children(folder, at_root=not folder_key):
        key = folder_key + name
        if is_folder:
            may_match = key.startswith(prefix) or prefix.startswith(key)
            all_before = start_after is not None and start_after > key and not start_after.startswith(key)
            if may_match and not all_before:
                yield from _walk(folder / name, key, prefix, start_after)
        elif key.startswith(prefix) and (start_after is None or key > start_after):
            try:
                status = (folder / name).stat()
            except FileNotFoundError:
                continue  # deleted while we listed
            if stat.S_ISREG(status.st_mode):
                yield ObjectEntry(key, status.st_size, status.st_mtime_ns // 1_000_000)


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise Invalid(f"{path} is too long a name for this file system") from error
        raise Unavailable(f"{path} cannot be reached: {error.strerror or error}") from error
