"""An `ObjectStore` in memory, for tests. Obeys tests/contract/test_object_store.py as the real ones do."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from compactor.model.clock import Clock
from compactor.model.errors import Corrupt
from compactor.storage.location import StoreLocation
from compactor.storage.object_store import ObjectEntry, UnfinishedWrite, check_key


class MemoryStore:
    """Data files do not go through a store: a test that writes some gives the location of a real folder for them."""

    def __init__(self, clock: Clock, location: StoreLocation | None = None) -> None:
        self._location = location or StoreLocation("memory://lake")
        self._clock = clock
        self._lock = threading.Lock()
        self._objects: dict[str, tuple[bytes, int]] = {}

    @property
    def location(self) -> StoreLocation:
        return self._location

    def put_if_absent(self, key: str, body: bytes) -> bool:
        check_key(key)
        with self._lock:
            if key in self._objects:
                return False
            self._objects[key] = (body, self._clock.now_ms())
            return True

    def overwrite(self, key: str, body: bytes) -> None:
        check_key(key)
        with self._lock:
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
            objects = sorted(self._objects.items())
        for key, (body, modified_at_ms) in objects:
            if key.startswith(prefix) and (start_after is None or key > start_after):
                yield ObjectEntry(key, len(body), modified_at_ms)

    def list_folders(self, prefix: str) -> Iterator[str]:
        rests = (entry.key.removeprefix(prefix) for entry in self.list(prefix))
        yield from sorted({rest.split("/", 1)[0] for rest in rests if "/" in rest})

    def delete(self, key: str) -> None:
        check_key(key)
        with self._lock:
            self._objects.pop(key, None)

    def unfinished(self) -> Iterator[UnfinishedWrite]:
        """Every write ends at once."""
        return iter(())

    def give_up(self, write: UnfinishedWrite) -> None:
        """Does nothing: there are no unfinished writes."""
