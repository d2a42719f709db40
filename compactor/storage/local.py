"""A lake in a local folder: one file per object.

A reader never sees half an object, and of several writers of one key exactly one wins: the body is written to a
temporary file under `.writing/` and fsynced, and only then gets its name, by a hard link (which fails if the name is
taken) or by a rename (which replaces). Files that a crash leaves under `.writing/` are not objects.

An object behind a symbolic link is read by its key. A listing shows the link: what is listed may be deleted.
"""

import errno
import itertools
import os
import stat
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from compactor.model.errors import Corrupt, Denied, Invalid, Unavailable
from compactor.storage.location import StoreLocation
from compactor.storage.object_store import ObjectEntry, UnfinishedWrite, check_key

WRITING_FOLDER = ".writing"

_FULL = (errno.ENOSPC, errno.EDQUOT)
_WITHOUT_HARD_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


class LocalStore:
    """An `ObjectStore` over a folder, which is created with the first object."""

    def __init__(self, location: StoreLocation, secret_prefixes: tuple[str, ...] = ()) -> None:
        """`secret_prefixes`: of keys whose objects only their writer's user may read."""
        if not location.root_uri.startswith("file:///"):
            raise Invalid(f"{location.root_uri!r} is no local folder: write file:///path/to/lake")
        self.location = location
        self._root = Path(location.root_uri.removeprefix("file://"))
        self._above_keys = f"{self._root}/"
        self._secret_prefixes = secret_prefixes
        self._write_numbers = itertools.count()

    def put_if_absent(self, key: str, body: bytes) -> bool:
        path = self._path(key)
        with _translated(path):
            # This saves most losers of a race a write to disk; the link below decides.
            if os.path.exists(path):
                return False
            folder = path.rpartition("/")[0]
            unsynced = make_folder(folder)
            written = self._write_temp_file(key, body)
            try:
                fsync_folders(unsynced)
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
                _unlink(written)
            fsync_folders([folder])
            return True

    def overwrite(self, key: str, body: bytes) -> None:
        path = self._path(key)
        with _translated(path):
            folder = path.rpartition("/")[0]
            unsynced = make_folder(folder)
            written = self._write_temp_file(key, body)
            try:
                fsync_folders(unsynced)
                os.replace(written, path)
            finally:
                _unlink(written)
            fsync_folders([folder])

    def read(self, key: str) -> bytes | None:
        path = self._path(key)
        with _translated(path):
            try:
                with open(path, "rb", buffering=0) as file:
                    return file.readall()
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                return None

    def read_range(self, key: str, start: int, length: int) -> bytes:
        path = self._path(key)
        with _translated(path):
            try:
                with open(path, "rb") as file:
                    file.seek(start)
                    return file.read(length)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
                raise Corrupt(f"{path} does not exist, but a log refers to it") from error

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ObjectEntry]:
        folder, _, _ = prefix.rpartition("/")
        top = self._root / folder if folder else self._root
        with _translated(top):
            self._refuse_links_to(top)
            yield from _walk(top, f"{folder}/" if folder else "", prefix, start_after)

    def list_folders(self, prefix: str, *, even_empty: bool = False) -> Iterator[str]:
        top = self._root / prefix
        with _translated(top):
            found, above = None, f"{top}/"
            names = (name for name in _children(top, at_root=not prefix, follows_links=True) if name.endswith("/"))
            for name in names:
                # A folder without files remains after a delete or a stopped writer. It has no key, so it is not listed.
                # Folders beside each other are mostly alike: what one has is looked for in the next one first.
                if not even_empty and (found is None or not _is_file(above + name, found)):
                    found = _first_file(above + name)
                if even_empty or found is not None:
                    yield name.removesuffix("/")

    def delete(self, key: str) -> None:
        path = self._path(key)
        with _translated(path), suppress(NotADirectoryError, IsADirectoryError):
            Path(path).unlink(missing_ok=True)

    def delete_many(self, keys: Sequence[str]) -> dict[str, str]:
        for key in keys:
            check_key(key)
        failed: dict[str, str] = {}
        for key in keys:
            try:
                self.delete(key)
            except (Denied, Unavailable) as error:
                failed[key] = str(error)
        return failed

    def unfinished(self) -> Iterator[UnfinishedWrite]:
        folder = self._root / WRITING_FOLDER
        with _translated(folder):
            for name in _children(folder, at_root=False):
                with suppress(FileNotFoundError):  # ended while we listed
                    status = (folder / name).lstat()
                    if not name.endswith("/"):
                        modified_at_ms = status.st_mtime_ns // 1_000_000
                        yield UnfinishedWrite(f"{WRITING_FOLDER}/{name}", status.st_size, modified_at_ms)

    def give_up(self, write: UnfinishedWrite) -> None:
        path = f"{self._above_keys}{WRITING_FOLDER}/{Path(write.name).name}"
        with _translated(path):
            _unlink(path)

    def _path(self, key: str) -> str:
        check_key(key)
        if key.split("/", 1)[0] == WRITING_FOLDER:
            raise Invalid(f"the key {key!r} lies in {WRITING_FOLDER}/, which is reserved for the store")
        return self._above_keys + key

    def _refuse_links_to(self, folder: Path) -> None:
        for path in (folder, *folder.parents):
            if path == self._root:
                return
            if path.is_symlink():
                raise Invalid(
                    f"{path} is a symbolic link, and listings do not leave the lake: move the folder here, or mount it "
                    "in the place of the link"
                )

    def _write_temp_file(self, key: str, body: bytes) -> str:
        """Writes and fsyncs the body to a temporary file. A secret may be read by its writer's user only."""
        mode = 0o600 if key.startswith(self._secret_prefixes) else 0o666
        folder = self._above_keys + WRITING_FOLDER
        # Process and thread make the name unique among the live ones of this machine; the exclusive open skips names
        # left by a crashed process, or by one on another machine.
        while True:
            path = f"{folder}/{os.getpid()}-{threading.get_ident()}-{next(self._write_numbers)}"
            try:
                descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)
                break
            except FileExistsError:
                continue
            except FileNotFoundError:
                os.makedirs(folder, exist_ok=True)
        try:
            with open(descriptor, "wb", buffering=0) as file:
                rest = memoryview(body)
                while rest:
                    rest = rest[file.write(rest) :]
                os.fsync(descriptor)
        except BaseException:
            # Whatever ended the write: else a full disk would keep the part of each body that was written.
            _unlink(path)
            raise
        return path


def make_folder(folder: str) -> list[str]:
    """Creates a folder and its parents. Returns those in which a name is new, which `fsync_folders` makes durable: it
    waits least after a file that was created later has been fsynced, since the file system then has written both."""
    if os.path.isdir(folder):
        return []
    parent = folder.rpartition("/")[0] or "/"
    above = make_folder(parent)
    try:
        os.mkdir(folder)
    except FileExistsError:
        if not os.path.isdir(folder):
            raise
    return [*above, parent]


def _unlink(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)


def fsync_folders(folders: Iterable[str]) -> None:
    """Names given in these folders survive a power failure."""
    for folder in folders:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _first_file(folder: str) -> str | None:
    """The path in the folder of some file, at any depth; None: there is none. What cannot be read is an error: else a
    table or a partition would seem not to exist."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if not entry.is_dir(follow_symlinks=False):
                    if not entry.is_dir():
                        return entry.name
                elif (below := _first_file(entry.path)) is not None:
                    return f"{entry.name}/{below}"
    except FileNotFoundError:
        return None
    except OSError as error:
        with _translated(Path(folder)):
            raise error
    return None


def _is_file(folder: str, path: str) -> bool:
    """Whether there is a file of this path in the folder, whose name ends in `/`, and no symbolic link on the way."""
    *above, name = path.split("/")
    try:
        for each in above:
            folder = f"{folder}{each}/"
            if not stat.S_ISDIR(os.lstat(folder[:-1]).st_mode):
                return False
        return stat.S_ISREG(os.lstat(folder + name).st_mode)
    except OSError:
        return False


def _children(folder: Path, *, at_root: bool, follows_links: bool = False) -> list[str]:
    """Names in a folder, those of folders with a `/`, in the order of the keys below them (`a-` before `a/`)."""
    try:
        with os.scandir(folder) as entries:
            found = [
                f"{entry.name}/" if entry.is_dir(follow_symlinks=follows_links) else entry.name for entry in entries
            ]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(name for name in found if not (at_root and name == f"{WRITING_FOLDER}/"))


def _walk(folder: Path, folder_key: str, prefix: str, start_after: str | None) -> Iterator[ObjectEntry]:
    for name in _children(folder, at_root=not folder_key):
        key = folder_key + name
        if name.endswith("/"):
            may_match = key.startswith(prefix) or prefix.startswith(key)
            all_before = start_after is not None and start_after > key and not start_after.startswith(key)
            if may_match and not all_before:
                yield from _walk(folder / name, key, prefix, start_after)
        elif key.startswith(prefix) and (start_after is None or key > start_after):
            try:
                status = (folder / name).lstat()
            except FileNotFoundError:
                continue  # deleted while we listed
            if stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
                yield ObjectEntry(key, status.st_size, status.st_mtime_ns // 1_000_000)


@contextmanager
def _translated(path: str | Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise Invalid(f"{path} is too long a name for this file system") from error
        if error.errno in _FULL:
            reason = f"its disk is full: free some space and try again ({error.strerror})"
            raise Unavailable(f"{path} cannot be written, {reason}") from error
        kind = Denied if isinstance(error, PermissionError) else Unavailable
        raise kind(f"{path} cannot be reached: {error.strerror or error}") from error
