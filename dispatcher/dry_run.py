"""A store that reads what is there and keeps every write to itself: what would come of it, without doing it."""

from __future__ import annotations

from collections.abc import Iterator

from compactor.clock import Clock
from compactor.errors import Corrupt
from compactor.object_store import ObjectEntry, ObjectStore, StoreLocation


class DryRunStore:
    """An `ObjectStore` over another, for one thread. Its writes are gone with it."""

    def __init__(self, beneath: ObjectStore, clock: Clock) -> None:
        self._beneath = beneath
        self._clock = clock
        self._written: dict[str, bytes | None] = {}

    @property
    def location(self) -> StoreLocation:
        return self._beneath.location

    def put_if_absent(self, key: str, body: bytes) -> bool:
        if self.read(key) is not None:
            return False
        self._written[key] = body
        return True

    def overwrite(self, key: str, body: bytes) -> None:
        self._written[key] = body

    def read(self, key: str) -> bytes | None:
        return self._written[key] if key in self._written else self._beneath.read(key)

    def read_range(self, key: str, start: int, length: int) -> bytes:
        if key not in self._written:
            return self._beneath.read_range(key, start, length)
        body = self._written[key]
        if body is None:
            raise Corrupt(f"{key} is not there, though it is referred to")
        return body[start : start + length]

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ObjectEntry]:
        found = {entry.key: entry for entry in self._beneath.list(prefix, start_after)}
        for key, body in self._written.items():
            if body is None:
                found.pop(key, None)
            elif key.startswith(prefix) and (start_after is None or key > start_after):
                found[key] = ObjectEntry(key, len(body), self._clock.now_ms())
        yield from (found[key] for key in sorted(found))

    def list_folders(self, prefix: str) -> Iterator[str]:
        written = (key.removeprefix(prefix) for key, body in self._written.items() if body and key.startswith(prefix))
        folders = {rest.split("/", 1)[0] for rest in written if "/" in rest}
        yield from sorted({*self._beneath.list_folders(prefix), *folders})

    def delete(self, key: str) -> None:
        self._written[key] = None
