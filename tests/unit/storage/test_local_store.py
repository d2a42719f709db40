"""What a lake in a folder keeps beyond the contract of every store (tests/contract/test_object_store.py)."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from compactor.model.errors import Denied, Invalid, Unavailable
from compactor.storage.local import WRITING_FOLDER, LocalStore
from compactor.storage.location import StoreLocation
from dispatcher.records.keys import SECRET_PREFIXES, MarkedJobRun, TaskToken


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def store(root: Path) -> LocalStore:
    return LocalStore(StoreLocation(f"file://{root}"))


def test_a_half_written_file_of_a_crash_is_not_an_object(store: LocalStore, root: Path) -> None:
    (root / WRITING_FOLDER).mkdir(parents=True)
    (root / WRITING_FOLDER / "1-2-3").write_bytes(b"half")
    store.put_if_absent("a/b", b"")
    assert [entry.key for entry in store.list("")] == ["a/b"]
    assert list(store.list_folders("")) == ["a"]
    with pytest.raises(Invalid, match="is reserved for the store"):
        store.read(f"{WRITING_FOLDER}/1-2-3")


def test_a_folder_that_may_not_be_read_is_named_and_not_left_out(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put_if_absent("tables/a/log", b"")
    store.put_if_absent("tables/b/log", b"")
    scandir = os.scandir

    def refuse(path: str | Path) -> object:
        if Path(path) == root / "tables" / "a":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(Denied, match=r"tables/a cannot be reached: Permission denied"):
        list(store.list_folders("tables/"))


def test_folders_are_listed_by_files_of_their_own_however_alike_they_are(store: LocalStore, root: Path) -> None:
    for name in ("a", "c", "e"):
        store.put_if_absent(f"t/{name}/log/1", b"")
    store.put_if_absent("t/d/other/2", b"")
    (root / "t/b/log").mkdir(parents=True)
    (root / "t/f").mkdir()
    (root / "t/f/log").symlink_to(root / "t/a/log")
    assert list(store.list_folders("t/")) == ["a", "c", "d", "e"]


def test_a_task_token_is_readable_by_its_own_user_alone(root: Path) -> None:
    store = LocalStore(StoreLocation(f"file://{root}"), SECRET_PREFIXES)
    token, other = TaskToken("run", "message"), MarkedJobRun("run", 0, 0)
    store.put_if_absent(token.key, b"secret")
    store.put_if_absent(other.key, b"")
    assert (root / token.key).stat().st_mode & 0o077 == 0
    assert (root / other.key).stat().st_mode & 0o044


def test_a_file_is_durable_before_its_name_and_so_are_the_names_of_new_folders(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put_if_absent("a/b", b"")
    fsynced: list[str] = []

    def note(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        named = (root / "a/c/d/e").exists()
        fsynced.append(f"{'file' if path.is_file() else path.relative_to(root)}{', named' if named else ''}")

    monkeypatch.setattr(os, "fsync", note)
    store.put_if_absent("a/c/d/e", b"")
    assert fsynced == ["file", "a", "a/c", "a/c/d, named"]
    store.overwrite("a/c/d/e", b"")
    assert fsynced[4:] == ["file, named", "a/c/d, named"]


def test_names_that_a_crashed_process_left_are_passed_over(store: LocalStore, root: Path) -> None:
    store.put_if_absent("a", b"1")
    (root / WRITING_FOLDER / f"{os.getpid()}-{threading.get_ident()}-1").write_bytes(b"stale")
    assert store.put_if_absent("b", b"2")
    assert store.read("b") == b"2"


def test_nothing_is_left_aside_after_a_write(store: LocalStore, root: Path) -> None:
    store.put_if_absent("a", b"1")
    store.put_if_absent("a", b"2")
    store.overwrite("a", b"3")
    assert list((root / WRITING_FOLDER).iterdir()) == []


def test_a_record_that_does_not_fit_a_full_disk_is_not_kept_in_part(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", fail)
        for write in (store.put_if_absent, store.overwrite):
            with pytest.raises(Unavailable, match=r"a cannot be written, its disk is full: free some space"):
                write("a", b"body")
    assert [path for path in root.rglob("*") if path.is_file()] == []


def test_temporary_files_of_killed_writers_are_listed_and_can_be_deleted(store: LocalStore, root: Path) -> None:
    assert list(store.unfinished()) == []
    (root / WRITING_FOLDER).mkdir(parents=True)
    (root / WRITING_FOLDER / "1-2-3").write_bytes(b"half")
    (left,) = store.unfinished()
    assert (left.name, left.size_bytes) == (f"{WRITING_FOLDER}/1-2-3", 4)
    assert left.begun_at_ms == (root / WRITING_FOLDER / "1-2-3").stat().st_mtime_ns // 1_000_000
    for _ in range(2):
        store.give_up(left)
        assert list(store.unfinished()) == []


def test_others_may_read_what_was_written_as_the_umask_says(store: LocalStore, root: Path) -> None:
    before = os.umask(0o022)
    try:
        store.put_if_absent("a", b"")
    finally:
        os.umask(before)
    assert (root / "a").stat().st_mode & 0o777 == 0o644


def test_a_folder_goes_with_its_last_object(store: LocalStore) -> None:
    store.put_if_absent("t/a/1", b"")
    store.delete("t/a/1")
    assert list(store.list_folders("t/")) == []


def test_a_link_is_listed_as_a_file_and_never_followed(store: LocalStore, root: Path, tmp_path: Path) -> None:
    """Else garbage collection would list, and delete, what lies behind it."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_bytes(b"")
    store.put_if_absent("t/a/1", b"")
    (root / "t" / "a" / "folder").symlink_to(outside)
    (root / "t" / "a" / "file").symlink_to(outside / "file")
    (root / "t" / "a" / "nowhere").symlink_to(tmp_path / "nowhere")
    assert [entry.key for entry in store.list("t/")] == ["t/a/1", "t/a/file", "t/a/folder", "t/a/nowhere"]
    for entry in list(store.list("t/")):
        store.delete(entry.key)
    assert (outside / "file").exists()
    assert list(store.list("")) == []


@pytest.mark.parametrize("prefix", ["t/linked/", "t/linked/b/", "t/linked/b/c"])
def test_objects_behind_a_link_are_not_listed_but_refused_with_its_name(
    store: LocalStore, root: Path, tmp_path: Path, prefix: str
) -> None:
    (tmp_path / "outside" / "b").mkdir(parents=True)
    (tmp_path / "outside" / "b" / "c").write_bytes(b"body")
    store.put_if_absent("t/a/1", b"")
    (root / "t" / "linked").symlink_to(tmp_path / "outside")
    with pytest.raises(Invalid, match=rf"{root}/t/linked is a symbolic link.*mount"):
        list(store.list(prefix))
    assert list(store.list_folders("t/")) == ["a", "linked"]
    assert store.read("t/linked/b/c") == b"body"


def test_a_lake_may_itself_lie_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk" / "lake").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    store = LocalStore(StoreLocation(f"file://{tmp_path}/link/lake"))
    store.put_if_absent("a/b", b"")
    assert [entry.key for entry in store.list("a/")] == ["a/b"]


def test_what_may_not_be_deleted_is_named_and_the_rest_goes(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in ("a/1", "a/2", "a/3"):
        store.put_if_absent(key, b"")
    unlink = Path.unlink

    def refuse(path: Path, missing_ok: bool = False) -> None:
        if path.name == "2":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    assert store.delete_many(["a/1", "a/2", "a/3"]) == {"a/2": f"{root}/a/2 cannot be reached: Permission denied"}
    assert [entry.key for entry in store.list("")] == ["a/2"]


def test_a_name_too_long_for_the_file_system_is_refused(store: LocalStore) -> None:
    with pytest.raises(Invalid, match="too long a name"):
        store.put_if_absent("x" * 300, b"")


def test_a_location_that_is_no_folder_is_refused() -> None:
    with pytest.raises(Invalid, match="no local folder"):
        LocalStore(StoreLocation("s3://bucket/prefix"))
