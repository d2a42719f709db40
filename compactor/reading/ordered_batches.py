"""Reads the parts of a scan in several threads, and hands out their batches in order.

Parts are begun in order. A thread reads a step of one part, some batches, and then takes the next part that may go on.
No thread waits for the consumer: one that finds no part with room ends, and the consumer starts another when it has
taken batches. So a scan that nobody reads any more has no threads, wherever its consumer stopped.

What is bounded is the bytes that are decoded and not taken. A step counts as full before it runs; the part whose turn
it is may always take one.
"""

import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import pyarrow as pa

STEP_BYTES = 16 * 1024 * 1024
"""Bytes that a thread decodes before it looks for the part that is most urgent."""

BYTES_MAX_PER_THREAD = 4 * STEP_BYTES
"""Bytes that are decoded and not taken, at most: enough for a consumer that takes a part at a time."""

OPEN_PARTS_PER_THREAD = 16
"""Parts that are begun and not taken, however small, at most: each may hold an open file."""

Batches: TypeAlias = Generator[pa.RecordBatch, None, None]


def batches_in_order(parts: Sequence[Callable[[], Batches]], threads: int, bytes_max: int | None = None) -> Batches:
    """The batches of all parts, in order. An error of a part is raised in its place.

    Args:
        threads: 1, or a single part: the consumer's own thread reads
        bytes_max: decoded and not taken; None: `BYTES_MAX_PER_THREAD` for each thread"""
    if threads < 2 or len(parts) < 2:
        for part in parts:
            yield from part()
        return
    readers = _Readers(parts, threads, threads * BYTES_MAX_PER_THREAD if bytes_max is None else bytes_max)
    try:
        while (batch := readers.take()) is not None:
            yield batch
    finally:
        readers.stop()


@dataclass(eq=False)
class _OpenPart:
    """A part that is begun. `error` is raised after its batches are taken."""

    batches: Batches
    ready: deque[pa.RecordBatch] = field(default_factory=deque)
    is_running: bool = False
    is_ended: bool = False
    error: BaseException | None = None


class _Readers:
    """The threads of one scan, and what they have read."""

    def __init__(self, parts: Sequence[Callable[[], Batches]], threads: int, bytes_max: int) -> None:
        self._changed = threading.Condition()
        self._waiting = deque(parts)
        self._open: deque[_OpenPart] = deque()
        self._threads = threads
        self._bytes_max = bytes_max
        self._ready_bytes = 0
        self._running = 0
        self._is_stopped = False

    def take(self) -> pa.RecordBatch | None:
        """The next batch; None: there is none left."""
        with self._changed:
            self._start_threads()
            while self._open:
                part = self._open[0]
                if part.ready:
                    batch = part.ready.popleft()
                    self._ready_bytes -= batch.nbytes
                    return batch
                if not part.is_ended:
                    self._changed.wait()
                elif part.error is not None:
                    raise part.error
                else:
                    self._open.popleft()
                    self._start_threads()
        return None

    def stop(self) -> None:
        """No thread begins another step; those that run end after their batch."""
        with self._changed:
            self._is_stopped = True
            idle = [part for part in self._open if not part.is_running]
            self._waiting.clear()
            self._open.clear()
        for part in idle:
            part.batches.close()

    def _start_threads(self) -> None:
        while self._running < self._threads and (part := self._next_part()) is not None:
            self._running += 1
            threading.Thread(target=self._read, args=(part,), name="scan").start()

    def _next_part(self) -> _OpenPart | None:
        """The first part that may go on, marked as running."""
        found = next((part for part in self._open if not part.is_running and not part.is_ended), None)
        is_urgent = not self._open or (found is self._open[0] and not found.ready)
        has_room = self._ready_bytes + (self._running + 1) * STEP_BYTES <= self._bytes_max
        if self._is_stopped or not (is_urgent or has_room):
            return None
        if found is None and self._waiting and len(self._open) < OPEN_PARTS_PER_THREAD * self._threads:
            found = _OpenPart(self._waiting.popleft()())
            self._open.append(found)
        if found is not None:
            found.is_running = True
        return found

    def _read(self, part: _OpenPart) -> None:
        following: _OpenPart | None = part
        while following is not None:
            part = following
            is_ended = self._step(part)
            with self._changed:
                part.is_running, part.is_ended = False, is_ended
                self._running -= 1
                following = self._next_part()
                self._running += following is not None
                self._changed.notify()

    def _step(self, part: _OpenPart) -> bool:
        """Reads some batches. True: the part has no more."""
        size = 0
        try:
            for batch in part.batches:
                with self._changed:
                    if self._is_stopped:
                        part.batches.close()
                        return True
                    part.ready.append(batch)
                    self._ready_bytes += batch.nbytes
                    self._changed.notify()
                size += batch.nbytes
                if size >= STEP_BYTES:
                    return False
        except BaseException as error:  # noqa: BLE001  (raised in the consumer's thread)
            part.error = error
        return True
