"""Lets a worker process die, or hang, at one durable write that a test names, and tells which writes there were.

A `sitecustomize` module leads here (`make_site`); WORKER_DOOM names a folder:

    doom.json  the next doom: the number of a write from then on, from 1, and what happens there; removed once it is met
    writes     keys of logs that workers have written, one a line
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from compactor.log.keys import CheckpointObject, EntryObject, HintObject
from compactor.storage.local import LocalStore

When = Literal["before", "after"]
Fate = Literal["is killed", "hangs"]

_DOOM, _WRITES = "doom.json", "writes"


@dataclass(frozen=True)
class WorkerDoom:
    """`write`: of all that workers write into logs from now on, from 1."""

    write: int
    when: When
    fate: Fate = "is killed"

    def put(self, folder: Path) -> None:
        (folder / _WRITES).write_text("")
        (folder / _DOOM).write_text(json.dumps(asdict(self)))

    @staticmethod
    def is_met(folder: Path) -> bool:
        return not (folder / _DOOM).exists()


def writes(folder: Path) -> list[str]:
    return (folder / _WRITES).read_text().splitlines()


def make_site(folder: Path) -> Path:
    """A folder for PYTHONPATH."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text("from tests.fakes.doomed_worker import watch_writes\nwatch_writes()\n")
    return folder


def watch_writes() -> None:
    """In a worker; in other processes nothing."""
    if "compactor.worker" not in sys.orig_argv:
        return
    folder, lock = Path(os.environ["WORKER_DOOM"]), threading.Lock()
    put_if_absent, overwrite = LocalStore.put_if_absent, LocalStore.overwrite

    def watched_put(self: LocalStore, key: str, body: bytes) -> bool:
        if not _is_of_a_log(key):
            return put_if_absent(self, key, body)
        with lock:
            _meet(folder, "before")
            written = put_if_absent(self, key, body)
            _note(folder, key)
            return written

    def watched_overwrite(self: LocalStore, key: str, body: bytes) -> None:
        if not _is_of_a_log(key):
            return overwrite(self, key, body)
        with lock:
            _meet(folder, "before")
            overwrite(self, key, body)
            return _note(folder, key)

    LocalStore.put_if_absent, LocalStore.overwrite = watched_put, watched_overwrite  # type: ignore[method-assign]


def _is_of_a_log(key: str) -> bool:
    return any(kind.parse_or_none(key) is not None for kind in (EntryObject, CheckpointObject, HintObject))


def _note(folder: Path, key: str) -> None:
    with (folder / _WRITES).open("a") as file:
        file.write(f"{key}\n")
    _meet(folder, "after")


def _meet(folder: Path, when: When) -> None:
    try:
        doom = WorkerDoom(**json.loads((folder / _DOOM).read_text()))
    except FileNotFoundError:
        return
    if doom.when != when or len(writes(folder)) + (1 if when == "before" else 0) != doom.write:
        return
    (folder / _DOOM).unlink()
    if doom.fate == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    threading.Event().wait()
