"""A store that counts the requests of its readers, and refuses to write."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

from compactor.model.errors import Denied
from compactor.storage.location import StoreLocation
from compactor.storage.object_store import ObjectEntry, ObjectStore, UnfinishedWrite

_READ_ONLY = "the page only reads"


class CountedStore:
    """`requests`: so far. Safe to share between threads."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self.requests = 0

    @property
    def location(self) -> StoreLocation:
        return self._store.location

    def read(self, key: str) -> bytes | None:
        self._count()
        return self._store.read(key)

    def read_range(self, key: str, start: int, length: int) -> bytes:
        self._count()
        return self._store.read_range(key, start, length)

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ObjectEntry]:
        self._count()
        return self._store.list(prefix, start_after)

    def list_folders(self, prefix: str) -> Iterator[str]:
        self._count()
        return self._store.list_folders(prefix)

    def unfinished(self) -> Iterator[UnfinishedWrite]:
        self._count()
        return self._store.unfinished()

    def put_if_absent(self, key: str, body: bytes) -> bool:
        raise Denied(f"{_READ_ONLY}, and would write {key} of {len(body)} bytes")

    def overwrite(self, key: str, body: bytes) -> None:
        raise Denied(f"{_READ_ONLY}, and would write {key} of {len(body)} bytes")

    def delete(self, key: str) -> None:
        raise Denied(f"{_READ_ONLY}, and would delete {key}")

    def delete_many(self, keys: Sequence[str]) -> dict[str, str]:
        raise Denied(f"{_READ_ONLY}, and would delete {len(keys)} objects")

    def give_up(self, write: UnfinishedWrite) -> None:
        raise Denied(f"{_READ_ONLY}, and would give up {write.name}")

    def _count(self) -> None:
        with self._lock:
            self.requests += 1
