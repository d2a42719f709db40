"""What Lithify asks of the place where a lake lies, and how such a place is named and opened.

Metadata (log entries, checkpoints, heartbeats) goes through an `ObjectStore`, because only it has put-if-absent.
Data files go through PyArrow filesystems (`compactor/tabular.py`), opened from the same `StoreLocation`. A location is
a plain value that travels to Spark executors; it never holds credentials, which every process finds by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from compactor.errors import Invalid


@dataclass(frozen=True)
class StoreLocation:
    """Where a lake (or a dispatcher's state) lies.

    root_uri      `s3://bucket/prefix` or `file:///absolute/path`, without a trailing slash
    endpoint_url  the S3 service's address where it is not AWS's own
    region        the S3 region; None: as the environment says
    """

    root_uri: str
    endpoint_url: str | None = None
    region: str | None = None


@dataclass(frozen=True)
class ObjectEntry:
    """One object as a listing shows it. `key` is relative to the store's root."""

    key: str
    size_bytes: int
    modified_at_ms: int


class ObjectStore(Protocol):
    """A flat map from keys (`a/b/c`, relative to the root) to bytes.

    Every method raises `Unavailable` when the service does not answer after the store's own retries. After an
    `Unavailable` from a write the outcome is unknown: the object may be there.
    """

    @property
    def location(self) -> StoreLocation: ...

    def put_if_absent(self, key: str, body: bytes) -> bool:
        """Create the object; False if the key was taken (nothing is changed then). Atomic: one winner, ever."""

    def overwrite(self, key: str, body: bytes) -> None:
        """Create or replace the object. For hints only: never for facts."""

    def read(self, key: str) -> bytes | None:
        """The whole object, None where there is none."""

    def read_range(self, key: str, start: int, length: int) -> bytes:
        """Bytes [start, start + length) of an object that must exist (`Corrupt` if it does not)."""

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ObjectEntry]:
        """Objects whose key starts with `prefix`, each once; those of one folder in key order.

        start_after  leave out keys at or before it; for prefixes that lie within one folder

        Across folders the order is the service's own: S3 compares whole keys, a file system compares part by part.
        """

    def list_folders(self, prefix: str) -> Iterator[str]:
        """The folders directly under the folder `prefix` (which ends with `/` or is empty): the next path part of every
        key that goes on after it, each once, in order. One whose last object is gone may be named for a while."""

    def delete(self, key: str) -> None:
        """Remove the object; a missing one is not an error."""


def check_key(key: str) -> None:
    """Raises `Invalid` for a key that is no path below the root: every store refuses it before it does anything."""
    parts = key.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\\" in key or "\0" in key:
        raise Invalid(f"{key!r} is no object key: write a/b/c, no part of it empty, `.` or `..`")


def key_bytes_max(location: StoreLocation) -> int:
    """The longest key that fits below this root: S3 takes 1,024 bytes with the prefix, Linux 4,095 with the folder."""
    if location.root_uri.startswith("s3://"):
        prefix = location.root_uri.removeprefix("s3://").partition("/")[2]
        return 1_024 - len(f"{prefix}/".encode())
    return 4_095 - len(location.root_uri.removeprefix("file://").encode()) - 1


def parse_location(uri_or_path: str, *, endpoint_url: str | None = None, region: str | None = None) -> StoreLocation:
    """A location from what a person types: `s3://bucket/prefix`, `file:///data/lake`, or a local path.

    Raises `Invalid` for any other scheme or an S3 URI without a bucket.
    """
    if uri_or_path.startswith("s3://"):
        bucket = uri_or_path.removeprefix("s3://").split("/", 1)[0]
        if not bucket:
            raise Invalid(f"{uri_or_path!r} names no bucket: write s3://bucket/prefix")
        return StoreLocation(uri_or_path.rstrip("/"), endpoint_url, region)
    if uri_or_path.startswith("file://"):
        path = uri_or_path.removeprefix("file://")
        if not path.startswith("/"):
            raise Invalid(f"{uri_or_path!r} is not absolute: write file:///path/to/lake")
        return StoreLocation("file://" + (path.rstrip("/") or "/"))
    if "://" in uri_or_path or not uri_or_path:
        raise Invalid(f"{uri_or_path!r} is no place for a lake: use s3://bucket/prefix, file:///path or a local path")
    return StoreLocation("file://" + str(Path(uri_or_path).absolute()))


def open_store(location: StoreLocation) -> ObjectStore:
    """The store at a location. boto3 is imported only when the location is on S3."""
    if location.root_uri.startswith("s3://"):
        from compactor.aws.s3 import S3Store

        return S3Store.open(location)
    from compactor.local_store import LocalStore

    return LocalStore(location)
