"""A store that fails at one write of one key: an answer is lost, the service goes down, or the process ends.

A test can also run a function just before a write, in the writer's own thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from compactor.model.errors import Unavailable
from compactor.storage.location import StoreLocation
from compactor.storage.object_store import ObjectEntry, ObjectStore, UnfinishedWrite
from tests.fakes.faulty_store import Stopped

Fate = Literal["one answer is lost", "the store is down from then on", "the process is killed"]
When = Literal["before", "after"]
ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class Doom:
    """What happens at the first write of `key` whose body has `content` in it. `after`: after the write was carried
    out, but before its answer."""

    key: str
    when: When
    fate: Fate
    content: bytes = b""

    def meets(self, key: str, body: bytes) -> bool:
        return self.key in (key, "") and self.content in body


class DoomedStore:
    """Wraps a sound store. `writes` are the keys that were put or overwritten, in order."""

    def __init__(self, store: ObjectStore, doom: Doom | None = None) -> None:
        self._store = store
        self._doom = doom
        self._met = False
        self._steps: dict[str, Callable[[], object]] = {}
        self.writes: list[str] = []

    @property
    def met(self) -> bool:
        """Whether that write was requested."""
        return self._met

    def just_before(self, key: str, step: Callable[[], object]) -> None:
        """Runs `step` once, before the first write of `key`."""
        self._steps[key] = step

    @property
    def location(self) -> StoreLocation:
        return self._store.location

    def put_if_absent(self, key: str, body: bytes) -> bool:
        return self._write(key, body, lambda: self._store.put_if_absent(key, body))

    def overwrite(self, key: str, body: bytes) -> None:
        self._write(key, body, lambda: self._store.overwrite(key, body))

    def read(self, key: str) -> bytes | None:
        self._refuse_if_over()
        return self._store.read(key)

    def read_range(self, key: str, start: int, length: int) -> bytes:
        self._refuse_if_over()
        return self._store.read_range(key, start, length)

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ObjectEntry]:
        self._refuse_if_over()
        return self._store.list(prefix, start_after)

    def list_folders(self, prefix: str, *, even_empty: bool = False) -> Iterator[str]:
        self._refuse_if_over()
        return self._store.list_folders(prefix, even_empty=even_empty)

    def delete(self, key: str) -> None:
        self._refuse_if_over()
        self._store.delete(key)

    def delete_many(self, keys: Sequence[str]) -> dict[str, str]:
        self._refuse_if_over()
        return self._store.delete_many(keys)

    def unfinished(self) -> Iterator[UnfinishedWrite]:
        self._refuse_if_over()
        return self._store.unfinished()

    def give_up(self, write: UnfinishedWrite) -> None:
        self._refuse_if_over()
        self._store.give_up(write)

    def _write(self, key: str, body: bytes, carry_out: Callable[[], ResultT]) -> ResultT:
        self._refuse_if_over()
        step = self._steps.pop(key, None)
        if step is not None:
            step()
        doom = self._doom
        meets = doom is not None and doom.meets(key, body) and not self._met
        self._met = self._met or meets
        if doom is not None and meets and doom.when == "before":
            raise self._end(doom)
        self.writes.append(key)
        result = carry_out()
        if doom is not None and meets:
            raise self._end(doom)
        return result

    def _refuse_if_over(self) -> None:
        doom = self._doom
        if self._met and doom is not None and doom.fate != "one answer is lost":
            raise self._end(doom)

    def _end(self, doom: Doom) -> BaseException:
        if doom.fate == "the process is killed":
            return Stopped(f"{doom.when} the write of {doom.key}")
        return Unavailable(f"the store failed {doom.when} the write of {doom.key}, as the test told it to")
