"""The `ObjectStore` protocol: what Lithify needs of a store of objects.

Metadata (log entries, checkpoints, heartbeats) goes through an `ObjectStore`, because only it has put-if-absent.
Data files go through PyArrow filesystems (`compactor/tabular/`), opened from the same `StoreLocation`. A location is
a plain value that is sent to Spark executors; it never holds credentials, which each process finds by itself.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from compactor.model.errors import Invalid
from compactor.storage.keys import continues
from compactor.storage.location import StoreLocation


@dataclass(frozen=True)
class ObjectEntry:
    """One object of a listing. `key` is relative to the store's root. `etag`: None where the store has none."""

    key: str
    size_bytes: int
    modified_at_ms: int
    etag: str | None = None


@dataclass(frozen=True)
class UnfinishedWrite:
    """A write that has begun and is not an object yet: its writer is still at work, or was killed.

    Attributes:
        name: a file in a folder's `.writing/`, or `<key>?uploadId=<id>`"""

    name: str
    size_bytes: int
    begun_at_ms: int


class ObjectStore(Protocol):
    """A flat map from keys (`a/b/c`, relative to the root) to bytes.

    Every method raises `Unavailable` when the service does not answer after the store's own retries. After an
    `Unavailable` from a write the outcome is unknown: the object may exist.
    """

    @property
    def location(self) -> StoreLocation: ...

    def put_if_absent(self, key: str, body: bytes) -> bool:
        """Create the object; False if the key was taken (then nothing is changed). Atomic: exactly one writer wins."""

    def overwrite(self, key: str, body: bytes) -> None:
        """Create or replace the object. For hints only: never for facts."""

    def read(self, key: str) -> bytes | None:
        """The whole object; None if it does not exist."""

    def read_range(self, key: str, start: int, length: int) -> bytes:
        """Bytes [start, start + length) of an object that must exist (`Corrupt` if it does not)."""

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ObjectEntry]:
        """Objects whose key starts with `prefix`, each once; those of one folder in key order.

        Args:
            start_after: leave out keys up to and including it; only for prefixes within one folder

        Across folders the order is the service's: S3 compares whole keys, a file system compares part by part."""

    def list_folders(self, prefix: str, *, even_empty: bool = False) -> Iterator[str]:
        """The folders directly under the folder `prefix` (which ends with `/` or is empty): the next path part of every
        longer key, each once, in order. A folder may be listed for a while after its last object was deleted.

        Args:
            even_empty: any folder without objects may be listed too; in a file system that is faster"""

    def delete(self, key: str) -> None:
        """Remove the object; a missing one is not an error."""

    def delete_many(self, keys: Sequence[str]) -> dict[str, str]:
        """Remove the objects, many in a request; missing ones are not an error. Returns the reasons of those that could
        not be removed, by key; raises, as `delete` does, if a whole request fails: some may be removed then."""

    def unfinished(self) -> Iterator[UnfinishedWrite]:
        """Every write below the root that has begun and not ended."""

    def give_up(self, write: UnfinishedWrite) -> None:
        """Remove an unfinished write of a killed writer; no error if it is gone. A live writer's write fails then."""


def check_key(key: str) -> None:
    """Raises `Invalid` for a key that is not a path below the root. Every store calls it before any request."""
    parts = key.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\\" in key or "\0" in key:
        raise Invalid(f"{key!r} is not an object key: write a/b/c, no part of it empty, `.` or `..`")


NameT = TypeVar("NameT")


def encoded_names(store: ObjectStore, prefix: str, *, even_empty: bool = False) -> Iterator[str]:
    """The encoded folder names below a prefix; a name that spans several path parts is joined again. `even_empty`: as
    `ObjectStore.list_folders`."""
    for part in store.list_folders(prefix, even_empty=even_empty):
        if continues(part):
            yield from (f"{part}/{rest}" for rest in encoded_names(store, f"{prefix}{part}/", even_empty=even_empty))
        else:
            yield part


def decoded_names(store: ObjectStore, prefix: str, decode: Callable[[str], NameT]) -> Iterator[NameT]:
    """The decoded names below a prefix."""
    return decoded(encoded_names(store, prefix), decode)


def decoded(names: Iterable[str], decode: Callable[[str], NameT]) -> Iterator[NameT]:
    """Folders whose names cannot be decoded are others': they are skipped."""
    for name in names:
        try:
            yield decode(name)
        except Invalid:
            continue
