"""Sends written files to an object store in the background, while a task prepares the next ones.

    Sending    the files of one task: `wait` returns when they are at rest

Files in flight hold memory, which is bounded for the whole process: a file that does not fit beside the others is begun
when it does. A file on this machine needs none of this: it is written faster than a thread starts.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import lru_cache, partial

from compactor.model.background import soon
from compactor.storage.concurrently import AT_ONCE

HELD_BYTES_MAX = 24 * 1024 * 1024
"""Bytes of a file that are held in memory. Longer files are sent in parts, at most three of them in memory."""


class Sending:
    """A task's files in flight. When it is pickled they have arrived: no other process learns of one that may yet fail.

    Attributes:
        room_bytes: that files in flight may hold; a file that is longer than that is sent alone"""

    def __init__(self, room_bytes: int) -> None:
        self._room_bytes = room_bytes
        self._sent: list[Future[None]] = []

    def begin(self, send: Callable[[], None], size_bytes: int) -> None:
        """Calls `send` in a thread; waits before that until there is room."""
        held_bytes = min(size_bytes, HELD_BYTES_MAX)
        room = _room_of_process(os.getpid())
        room.take(held_bytes, self._room_bytes)
        # A process that ends by an error does not wait for files that no entry will name.
        self._sent.append(soon(partial(_send_and_leave, send, held_bytes, room)))

    def wait(self) -> None:
        """Returns when all files have arrived. Raises the first error."""
        for sent in self._sent:
            sent.result()

    def __reduce__(self) -> tuple[object, ...]:
        self.wait()
        return Sending, (self._room_bytes,)


def _send_and_leave(send: Callable[[], None], held_bytes: int, room: _Room) -> None:
    try:
        send()
    finally:
        room.leave(held_bytes)


class _Room:
    """The files in flight from this process. Concurrent sessions share it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._files = 0
        self._bytes = 0

    def take(self, held_bytes: int, room_bytes: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._fits(held_bytes, room_bytes))
            self._files += 1
            self._bytes += held_bytes

    def leave(self, held_bytes: int) -> None:
        with self._changed:
            self._files -= 1
            self._bytes -= held_bytes
            self._changed.notify_all()

    def _fits(self, held_bytes: int, room_bytes: int) -> bool:
        return not self._files or (self._files < AT_ONCE and self._bytes + held_bytes <= room_bytes)


@lru_cache(maxsize=1)
def _room_of_process(_process_id: int) -> _Room:
    """A forked process has none of its parent's threads, so none of its files in flight."""
    return _Room()
