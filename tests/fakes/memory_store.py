"""An `ObjectStore` in memory, for tests. Obeys tests/contract/test_object_store.py as the real ones do."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from compactor.model.clock import Clock
from compactor.model.errors import Corrupt
from compactor.storage.location import StoreLocation
from compactor.storage.object_store import ObjectEntry, UnfinishedWrite, check_key

_LAST = "\U0010ffff"

_FEW = 100
"""New keys that are put into their places; more are sorted with all others."""


class MemoryStore:
    """Data files do not go through a store: a test that writes some gives the location of a real folder for them."""

    def __init__(self, clock: Clock, location: StoreLocation | None = None) -> None:
        self._location = location or StoreLocation("memory://lake")
        self._clock = clock
        self._lock = threading.Lock()
        self._objects: dict[str, tuple[bytes, int]] = {}
        self._sorted: list[str] = []
        """Every key, and some that were deleted: a listing of one folder looks at no other."""
        self._unsorted: list[str] = []

    @property
    def location(self) -> StoreLocation:
        return self._location

    def put_if_absent(self, key: str, body: bytes) -> bool:
        check_key(key)
        with self._lock:
            if key in self._objects:
                return False
            self._put(key, body)
            return True

    def overwrite(self, key: str, body: bytes) -> None:
        check_key(key)
        with self._lock:
            self._put(key, body)

    def _put(self, key: str, body: bytes) -> None:
        if key not in self._objects:
            self._unsorted.append(key)
        self._objects[key] = (body, self._clock.now_ms())

    def read(self, key: str) -> bytes | None:
        check_key(key)
        with self._lock:
            found = self._objects.get(key)
        return None if found is None else found[0]

    def read_range(self, key: str, start: int, length: int) -> bytes:
        body = self.read(key)
        if body is None:
            raise Corrupt(f"{key} does not exist, but a log refers to it")
        return body[start : start + length]

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ObjectEntry]:
        with self._lock:
            keys = self._keys_in_order()
            first = bisect_left(keys, prefix)
            listed = keys[first : bisect_left(keys, prefix + _LAST, first)]
            found = [(key, self._objects[key]) for key in listed if key in self._objects]
        for key, (body, modified_at_ms) in found:
            if start_after is None or key > start_after:
                yield ObjectEntry(key, len(body), modified_at_ms)

    def list_folders(self, prefix: str, *, even_empty: bool = False) -> Iterator[str]:
        with self._lock:
            keys = self._keys_in_order()
            place, folders = bisect_left(keys, prefix), dict[str, None]()
            while place < len(keys) and keys[place].startswith(prefix):
                name, slash, _ = keys[place].removeprefix(prefix).partition("/")
                is_there = keys[place] in self._objects
                if slash and is_there:
                    folders[name] = None
                # Past the folder at once: `0` follows `/`.
                place = bisect_left(keys, f"{prefix}{name}0", place) if slash and is_there else place + 1
        yield from sorted(folders)

    def _keys_in_order(self) -> Sequence[str]:
        if len(self._unsorted) > _FEW or len(self._sorted) > 2 * len(self._objects):
            self._sorted = sorted(self._objects)
        else:
            for key in self._unsorted:
                place = bisect_left(self._sorted, key)
                if self._sorted[place : place + 1] != [key]:
                    self._sorted.insert(place, key)
        self._unsorted = []
        return self._sorted

    def delete(self, key: str) -> None:
        check_key(key)
        with self._lock:
            self._objects.pop(key, None)

    def delete_many(self, keys: Sequence[str]) -> dict[str, str]:
        for key in keys:
            check_key(key)
        for key in keys:
            self.delete(key)
        return {}

    def unfinished(self) -> Iterator[UnfinishedWrite]:
        """Every write ends at once."""
        return iter(())

    def give_up(self, write: UnfinishedWrite) -> None:
        """Does nothing: there are no unfinished writes."""
