"""A store whose service fails on command: before a request, after it with the answer lost, for a while or for ever.

It can also stop the whole process (for a test: raise `Stopped`) at any *point*, which is the moment just before or just
after one write. A test first runs the work unhindered, reads `points`, and then stops at each of them in turn.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from compactor.model.errors import Unavailable
from compactor.storage.location import StoreLocation
from compactor.storage.object_store import ObjectEntry, ObjectStore, UnfinishedWrite

Verb = Literal["put_if_absent", "overwrite", "read", "read_range", "list", "list_folders", "delete", "delete_many"]
When = Literal["before", "after"]
ResultT = TypeVar("ResultT")

PAGE_OBJECTS = 1_000
"""Of a listing, as on S3."""

_WRITES: tuple[Verb, ...] = ("put_if_absent", "overwrite", "delete")


class Stopped(BaseException):
    """The process is gone. Not an Exception, as a kill -9 is not: no handler in Lithify may catch it."""


@dataclass
class _Fault:
    verb: Verb
    key_part: str
    when: When
    times: int | None  # None: for ever
    error: type[Exception]


class FaultyStore:
    """Wraps a real store or a fake one. `requests` and `points` record its requests and writes, in order."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._faults: list[_Fault] = []
        self._stop_at: str | None = None
        self._points_left = 0
        self.requests: list[tuple[Verb, str]] = []
        self.points: list[str] = []

    def fail(
        self,
        verb: Verb,
        key_part: str = "",
        when: When = "before",
        times: int | None = 1,
        error: type[Exception] = Unavailable,
    ) -> None:
        """The next `times` requests of this kind end in `error`; `after`: after it was carried out."""
        self._faults.append(_Fault(verb, key_part, when, times, error))

    def count(self, verb: Verb, key_part: str = "") -> int:
        """Requests of this kind until now."""
        with self._lock:
            return sum(requested == verb and key_part in key for requested, key in self.requests)

    def stop_at(self, point_number: int) -> None:
        """Stop at `points[point_number]` of the run that begins now."""
        self.points.clear()
        self._points_left = point_number
        self._stop_at = "armed"

    def heal(self) -> None:
        """From now on all requests succeed."""
        self._faults.clear()
        self._stop_at = None

    @property
    def location(self) -> StoreLocation:
        return self._store.location

    def put_if_absent(self, key: str, body: bytes) -> bool:
        return self._ask("put_if_absent", key, lambda: self._store.put_if_absent(key, body))

    def overwrite(self, key: str, body: bytes) -> None:
        self._ask("overwrite", key, lambda: self._store.overwrite(key, body))

    def read(self, key: str) -> bytes | None:
        return self._ask("read", key, lambda: self._store.read(key))

    def read_range(self, key: str, start: int, length: int) -> bytes:
        return self._ask("read_range", key, lambda: self._store.read_range(key, start, length))

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ObjectEntry]:
        return self._pages(prefix, self._ask("list", prefix, lambda: self._store.list(prefix, start_after)))

    def _pages(self, prefix: str, entries: Iterator[ObjectEntry]) -> Iterator[ObjectEntry]:
        """The entries in pages. Each page after the first is a request of its own."""
        for number, entry in enumerate(entries):
            if number and number % PAGE_OBJECTS == 0:
                self._ask("list", prefix, lambda: None)
            yield entry

    def list_folders(self, prefix: str, *, even_empty: bool = False) -> Iterator[str]:
        return self._ask("list_folders", prefix, lambda: self._store.list_folders(prefix, even_empty=even_empty))

    def delete(self, key: str) -> None:
        self._ask("delete", key, lambda: self._store.delete(key))

    def delete_many(self, keys: Sequence[str]) -> dict[str, str]:
        """A request for each 1,000 keys. A fault of `delete` is the failure of its key; a stop may be at each."""
        failed: dict[str, str] = {}
        for start in range(0, len(keys), PAGE_OBJECTS):
            with self._lock:
                self.requests.append(("delete_many", keys[start]))
            for key in keys[start : start + PAGE_OBJECTS]:
                try:
                    self._pass("delete", key, "before")
                    failed |= self._store.delete_many([key])
                    self._pass("delete", key, "after")
                except Unavailable as error:
                    failed[key] = str(error)
        return failed

    def unfinished(self) -> Iterator[UnfinishedWrite]:
        return self._store.unfinished()

    def give_up(self, write: UnfinishedWrite) -> None:
        self._store.give_up(write)

    def _ask(self, verb: Verb, key: str, carry_out: Callable[[], ResultT]) -> ResultT:
        self._pass(verb, key, "before")
        with self._lock:
            self.requests.append((verb, key))
        result = carry_out()
        self._pass(verb, key, "after")
        return result

    def _pass(self, verb: Verb, key: str, when: When) -> None:
        with self._lock:
            if verb in _WRITES:
                self.points.append(f"{when} {verb} {key}")
                if self._stop_at is not None:
                    if self._points_left == 0:
                        raise Stopped(self.points[-1])
                    self._points_left -= 1
            for fault in self._faults:
                if fault.verb == verb and fault.when == when and fault.key_part in key and fault.times != 0:
                    fault.times = None if fault.times is None else fault.times - 1
                    raise fault.error(f"the store failed {when} {verb} of {key}, as the test told it to")
