"""A store that counts the requests of its readers, keeps what never changes, and refuses to write."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

from compactor.log.keys import EntryObject
from compactor.model.errors import Denied
from compactor.storage.keys import parse_any
from compactor.storage.location import StoreLocation
from compactor.storage.object_store import ObjectEntry, ObjectStore, UnfinishedWrite
from dispatcher.records.keys import HistoryFile

KEPT_BYTES_MAX = 8_000_000
"""Of all objects that are kept; the one that nobody has read for longest goes."""

KEPT_OBJECT_BYTES_MAX = 500_000

_UNCHANGING = (EntryObject, HistoryFile)
"""Each is created once, and neither changed nor deleted."""

_READ_ONLY = "the page only reads"


class CountedStore:
    """`requests`: so far. Safe to share between threads."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._kept: dict[str, bytes] = {}
        self._kept_bytes = 0
        self.requests = 0

    @property
    def location(self) -> StoreLocation:
        return self._store.location

    def read(self, key: str) -> bytes | None:
        with self._lock:
            kept = self._kept.pop(key, None)
            if kept is not None:
                self._kept[key] = kept  # the latest
                return kept
        self._count()
        body = self._store.read(key)
        if body is not None and len(body) <= KEPT_OBJECT_BYTES_MAX and parse_any(key, _UNCHANGING) is not None:
            self._keep(key, body)
        return body

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

    def _keep(self, key: str, body: bytes) -> None:
        with self._lock:
            self._kept_bytes += len(body) - len(self._kept.pop(key, b""))
            self._kept[key] = body
            while self._kept_bytes > KEPT_BYTES_MAX:
                self._kept_bytes -= len(self._kept.pop(next(iter(self._kept))))

    def _count(self) -> None:
        with self._lock:
            self.requests += 1
